"""Processes that are forked while clients are open: `multiprocessing`, servers that load a program before they fork.

What is inherited has no thread there, and shares its connections with the process before: it must not be used, and
must say so. Clients that are made there work, and those of the process before go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from pocketmq.client import Admin, Message, Producer, PullConsumer, PushConsumer
from pocketmq.proto.errors import ClientClosed

from ..served import ServerProcess

pytestmark = [
    pytest.mark.processes,
    # Python 3.12 and later warn of what is tested here.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

TOPIC = "forked"


def in_a_fork(work: Callable[[], Any]) -> int:
    """Do WORK in a process that is forked now; return 0 if it ended well, within a minute."""
    child = os.fork()
    if not child:
        status = 1
        signal.alarm(60)
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_clients_that_are_made_in_the_fork_work(server: ServerProcess) -> None:
    address = server.nameserver

    def work() -> None:
        with Producer(address) as producer:
            producer.send(TOPIC, b"child")
        with PullConsumer("forks", TOPIC, address, start="earliest") as consumer:
            found: set[bytes] = set()
            while found != {b"before", b"child"}:
                found |= {message.body for message in consumer.poll(10_000)}

    with Producer(address) as producer:
        producer.send(TOPIC, b"before")

        assert in_a_fork(work) == 0
        assert producer.send(TOPIC, b"after").durability == "memory"


def test_clients_that_are_inherited_say_so_and_close_without_a_word(server: ServerProcess) -> None:
    address, topic = server.nameserver, f"{TOPIC}-inherited"
    heard: list[bytes] = []
    with (
        Producer(address) as producer,
        Admin(address) as admin,
        PullConsumer("inheriting-pull", topic, address, start="earliest") as pull,
        PushConsumer("inheriting-push", topic, lambda m: heard.append(m.body), address) as push,
    ):
        producer.send_many([Message(topic, b"%d" % number) for number in range(100)])
        assert len(pull.poll(max_messages=1, timeout_ms=30_000)) == 1  # More of them lie ready.

        def work() -> None:
            uses: list[Callable[[], object]] = [
                lambda: producer.send(topic, b"x"),
                lambda: producer.send_nowait(topic, b"x"),
                lambda: producer.send(Message(topic, b"x")),
                lambda: producer.send_many(topic, [b"x"]),
                producer.flush,
                admin.topics,
                lambda: pull.poll(max_messages=1),
                lambda: next(pull.messages()),
                pull.commit,
                push.wait,
            ]
            for use in uses:
                with pytest.raises(ClientClosed, match="before this process was forked"):
                    use()
            for client in (push, pull, admin, producer):
                client.close()

        assert in_a_fork(work) == 0
        assert producer.send(topic, b"after").durability == "memory"
        left = 99 + 1
        while left:
            left -= len(pull.poll(timeout_ms=30_000))
        assert topic in {one.name for one in admin.topics()}


def leave_a_producer_open(address: str, topic: str) -> None:
    producer = Producer(address)
    for number in range(500):
        producer.send_nowait(topic, b"%d" % number)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_delivers_what_it_took(
    server: ServerProcess, method: str
) -> None:
    topic = f"{TOPIC}-by-{method}"
    with Producer(server.nameserver) as producer:
        producer.send(topic, b"first")

    context: Any = multiprocessing.get_context(method)  # Its stub has no Process.
    process = context.Process(target=leave_a_producer_open, args=(server.nameserver, topic))
    process.start()
    process.join(60)

    assert process.exitcode == 0
    with PullConsumer(f"after-{method}", topic, server.nameserver, start="earliest") as consumer:
        left = 501
        while left:
            left -= len(consumer.poll(timeout_ms=10_000))
