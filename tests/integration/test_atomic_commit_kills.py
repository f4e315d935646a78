"""A program that transforms messages, and its server, killed again and again: each input has one output.

What is drawn by lot is when who is killed; what holds does so wherever that falls.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pocketmq.client import Admin, Message, Producer, PullConsumer

from ..served import ServerProcess

pytestmark = pytest.mark.processes

COUNT = 300
KILLS = 6

#: Reads a few messages, makes an output of each, and commits; says so, so that it is killed amid its work.
PROGRAM = """
import sys
from pocketmq.client import Producer, PullConsumer
from pocketmq.proto.errors import PocketMQError

settings = dict(auto_commit=False, max_poll_records=3, instance_id="one")
with PullConsumer("transformers", "in", sys.argv[1], **settings) as consumer, Producer(sys.argv[1]) as producer:
    while True:
        try:
            with producer.atomic_commit(consumer) as commit:
                for message in consumer.poll(timeout_ms=1_000):
                    commit.send("out", message.body)
        except PocketMQError as error:
            print("refused", type(error).__name__, flush=True)
        else:
            print("committed", flush=True)
"""


@contextmanager
def transformer(address: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, address], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def outputs(address: str) -> list[int]:
    found = []
    with PullConsumer("lookers", "out", address, auto_commit=False) as consumer:
        while batch := consumer.poll(timeout_ms=2_000):
            found += [int(message.body) for message in batch]
    return found


@pytest.mark.long
def test_each_input_has_one_output_whoever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(0)
    store = tmp_path / "store"
    server = ServerProcess(store)
    ports = [
        word
        for option, name in (("--nameserver-port", "nameserver"), ("--port", "broker"))
        for word in (option, str(server.ready[name]).rpartition(":")[2])
    ]
    address = server.nameserver
    try:
        with Admin(address) as admin:
            admin.create_topic("in", queues=2)
            admin.create_topic("out", queues=3)
        with Producer(address) as producer:
            producer.send_many(
                [Message("in", b"%d" % number, queue=number % 2) for number in range(COUNT)]
            )
        for _ in range(KILLS):
            with transformer(address) as process:
                assert process.stdout is not None
                for _ in range(chance.randint(1, 25)):
                    process.stdout.readline()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(chance.random() * 0.01)
                if chance.random() < 0.5:
                    server.kill()
                    server = ServerProcess(store, *ports)
                    for _ in range(chance.randint(0, 10)):
                        process.stdout.readline()
        done = 0
        with transformer(address) as process:
            assert process.stdout is not None
            deadline = time.monotonic() + 60
            while done < COUNT and time.monotonic() < deadline:
                process.stdout.readline()
                with Admin(address) as admin:
                    found = admin.group_offsets("transformers", "in")
                done = sum(max(0, one.offset) for one in found)

        assert done == COUNT
        assert sorted(Counter(outputs(address)).items()) == [(number, 1) for number in range(COUNT)]
    finally:
        server.kill()
