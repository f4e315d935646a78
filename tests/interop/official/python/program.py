"""The official Python client of Apache RocketMQ, driven by JSON lines: commands on standard input, replies and events
on standard output. driver.py, one folder up, says what they are."""

import hashlib
import itertools
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

ENDPOINTS = sys.argv[1]
clients = {}
received = {}  # by number: messages that can be acknowledged
numbers = itertools.count(1)
writing = threading.Lock()


def say(**line):
    with writing:
        print(json.dumps(line), flush=True)


def described(message):
    number = next(numbers)
    received[number] = message
    return {
        "number": number,
        "id": message.message_id,
        "topic": message.topic,
        "size": len(message.body),
        "md5": hashlib.md5(message.body).hexdigest(),
        "body": message.body[:64].decode(errors="replace"),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "group": message.message_group,
        "attempt": message.delivery_attempt,
    }


def subscription(command):
    kind = FilterType.SQL if command.get("filter") == "sql" else FilterType.TAG
    return {command["topic"]: FilterExpression(command.get("expression", "*"), kind)}


def configuration():
    return ClientConfiguration(
        ENDPOINTS,
        Credentials(os.environ.get("OFFICIAL_USER", ""), os.environ.get("OFFICIAL_SECRET", "")),
    )


class Checker(TransactionChecker):
    """Answers as the message's own property says."""

    def __init__(self, name):
        self.name = name

    def check(self, message):
        say(event="check", client=self.name, message=described(message))
        commit = message.properties.get("check") == "commit"
        return TransactionResolution.COMMIT if commit else TransactionResolution.ROLLBACK


class Listener(MessageListener):
    """Fails the first attempts of every message."""

    def __init__(self, name, failures):
        self.name, self.failures = name, failures

    def consume(self, message):
        say(event="message", client=self.name, message=described(message))
        failed = message.delivery_attempt <= self.failures
        return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS


def started(name, client):
    client.startup()
    clients[name] = client
    return {}


def producer(command):
    checker = Checker(command["name"]) if command.get("transactions") else None
    return started(command["name"], Producer(configuration(), command["topics"], checker))


def simple(command):
    consumer = SimpleConsumer(
        configuration(), command["group"], subscription(command), await_duration=command["await_s"]
    )
    return started(command["name"], consumer)


def push(command):
    listener = Listener(command["name"], command.get("failures", 0))
    consumer = PushConsumer(configuration(), command["group"], listener, subscription(command))
    return started(command["name"], consumer)


def message_of(command):
    message = Message()
    message.topic = command["topic"]
    body = command["body"].encode()
    size = command.get("size", len(body))
    message.body = (body * (size // len(body) + 1))[:size]
    if "tag" in command:
        message.tag = command["tag"]
    for key in command.get("keys", ()):
        message.keys = key
    for key, value in command.get("properties", {}).items():
        message.add_property(key, value)
    if "message_group" in command:
        message.message_group = command["message_group"]
    if "deliver_at_ms" in command:
        message.delivery_timestamp = command["deliver_at_ms"] // 1000
    if "priority" in command:
        message.priority = command["priority"]
    return message


def send(command):
    client, outcome = clients[command["client"]], command.get("transaction")
    if outcome is None:
        receipt = client.send(message_of(command))
    else:
        transaction = client.begin_transaction()
        receipt = client.send(message_of(command), transaction)
        if outcome == "commit":
            transaction.commit()
        elif outcome == "rollback":
            transaction.rollback()
    return {"message_id": receipt.message_id, "recall_handle": receipt.recall_handle or ""}


def recall(command):
    client = clients[command["client"]]
    return {"message_id": client.recall_message(command["topic"], command["handle"])}


def receive(command):
    found = clients[command["client"]].receive(command["count"], command["invisible_s"])
    return {"messages": [described(message) for message in found or ()]}


def ack(command):
    clients[command["client"]].ack(received[command["number"]])
    return {}


def change(command):
    message = received[command["number"]]
    clients[command["client"]].change_invisible_duration(message, command["invisible_s"])
    return {}


def close(command):
    clients.pop(command["client"]).shutdown()
    return {}


def storm(command):
    """Send COUNT messages, IN_FLIGHT at a time; say how long each took."""
    client, costs_us = clients[command["client"]], []

    def one(_):
        begun = time.perf_counter()
        client.send(message_of(command))
        costs_us.append((time.perf_counter() - begun) * 1e6)

    begun = time.perf_counter()
    with ThreadPoolExecutor(command["in_flight"]) as pool:
        list(pool.map(one, range(command["count"])))
    return {"seconds": time.perf_counter() - begun, "costs_us": sorted(costs_us)}


def drain(command):
    """Receive and acknowledge, one after the other on each of THREADS, until COUNT are done."""
    client, left = clients[command["client"]], itertools.count(1)
    finished = threading.Event()

    def work(_):
        while not finished.is_set():
            for message in client.receive(command["batch"], 60) or ():
                client.ack(message)
                if next(left) >= command["count"]:
                    finished.set()

    begun = time.perf_counter()
    with ThreadPoolExecutor(command["threads"]) as pool:
        list(pool.map(work, range(command["threads"])))
    return {"seconds": time.perf_counter() - begun}


COMMANDS = {
    function.__name__: function
    for function in (
        producer,
        simple,
        push,
        send,
        recall,
        receive,
        ack,
        change,
        close,
        storm,
        drain,
    )
}


def run(command):
    try:
        say(id=command["id"], reply=COMMANDS[command["do"]](command))
    except Exception as error:  # Whatever the client raises is what is asked for.
        code = getattr(error, "code", None)
        say(
            id=command["id"],
            error={
                "type": type(error).__name__,
                "code": code if isinstance(code, int) else None,
                "text": str(error),
            },
        )


with ThreadPoolExecutor(128) as workers:
    for line in sys.stdin:
        workers.submit(run, json.loads(line))
    workers.shutdown(wait=False, cancel_futures=True)
