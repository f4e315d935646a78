"""SIGTERM and Ctrl-C of programs that use the clients: what they finish, commit and give back, and how they end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

from pocketmq.client import Admin, Message, Producer, PullConsumer
from pocketmq.proto.clock import SystemClock

from ..served import ServerProcess

pytestmark = pytest.mark.processes

TERM, INT = signal.SIGTERM, signal.SIGINT
BOTH = pytest.mark.parametrize("how", [TERM, INT], ids=["sigterm", "ctrl-c"])

BEGIN = """
import asyncio, sys, threading
from pocketmq.client import *
from pocketmq.proto.errors import *
TOPIC, ADDRESS = sys.argv[1:3]
def say(text):
    print(text, flush=True)
"""
PUSH = """
def listener(message):
    say(message.body.decode())
    threading.Event().wait(0.3)  # At work when the signal comes.
    say("done")
PushConsumer("g-" + TOPIC, TOPIC, listener, ADDRESS, auto_commit_interval_ms=60_000).run()
say("after")
"""
PUSH_WAIT = """
def listener(message):
    say(message.body.decode())
    threading.Event().wait(0.3)
    say("done")
with PushConsumer("g-" + TOPIC, TOPIC, listener, ADDRESS, auto_commit_interval_ms=60_000) as consumer:
    consumer.wait()
say("after")
"""
ASYNC_PUSH = """
async def listener(message):
    say(message.body.decode())
    await asyncio.sleep(0.3)
    say("done")
asyncio.run(AsyncPushConsumer("g-" + TOPIC, TOPIC, listener, ADDRESS, auto_commit_interval_ms=60_000).run())
say("after")
"""
PULL = """
with PullConsumer("g-" + TOPIC, TOPIC, ADDRESS, auto_commit_interval_ms=60_000) as consumer:
    for message in consumer:
        say(message.body.decode())
        threading.Event().wait(0.3)
        say("done")
say("after")
"""
ASYNC_PULL = """
async def main():
    async with AsyncPullConsumer("g-" + TOPIC, TOPIC, ADDRESS, auto_commit_interval_ms=60_000) as consumer:
        async for message in consumer:
            say(message.body.decode())
            await asyncio.sleep(0.3)
            say("done")
asyncio.run(main())
say("after")
"""
POLL = """
with PullConsumer("g-" + TOPIC, TOPIC, ADDRESS, auto_commit_interval_ms=60_000) as consumer:
    while True:
        for message in consumer.poll(1):
            say(message.body.decode())
            threading.Event().wait(0.3)
            say("done")
say("after")
"""
ASYNC_POLL = """
async def main():
    async with AsyncPullConsumer("g-" + TOPIC, TOPIC, ADDRESS, auto_commit_interval_ms=60_000) as consumer:
        while True:
            for message in await consumer.poll(1):
                say(message.body.decode())
                await asyncio.sleep(0.3)
                say("done")
asyncio.run(main())
say("after")
"""
TO_THE_END = """
with PullConsumer("g-" + TOPIC, TOPIC, ADDRESS, auto_commit_interval_ms=60_000) as consumer:
    for message in consumer.messages(timeout_ms=60_000):
        say(message.body.decode())
        threading.Event().wait(0.3)
        say("done")
say("after")
"""
PRODUCER = """
with Producer(ADDRESS, linger_ms=20_000) as producer:
    for n in range(100):
        producer.send_nowait(TOPIC, b"%d" % n)
    say("sent")
    threading.Event().wait()
"""
ASYNC_PRODUCER = """
async def main():
    async with AsyncProducer(ADDRESS, linger_ms=20_000) as producer:
        for n in range(100):
            producer.send_nowait(TOPIC, b"%d" % n)
        say("sent")
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("signals") / "store") as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest, server: ServerProcess) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    with Admin(server.nameserver) as admin:
        admin.create_topic(name, queues=1)
    return name


@contextmanager
def program(code: str, topic: str, server: ServerProcess) -> Iterator[subprocess.Popen[str]]:
    """Run CODE in a process of its own."""
    command = [sys.executable, "-c", BEGIN + code, topic, server.nameserver]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def told(code: str, topic: str, server: ServerProcess, how: signal.Signals) -> tuple[int, str, str]:
    """Run CODE, send it the signal HOW at its first line; return its exit code, all it said, and its errors."""
    with program(code, topic, server) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(how)
        out, err = process.communicate(timeout=30)
    return process.returncode, first + out, err


def send(server: ServerProcess, topic: str, count: int = 10) -> None:
    with Producer(server.nameserver) as producer:
        producer.send_many([Message(topic, b"%d" % n, queue=0) for n in range(count)])


def next_of_group(server: ServerProcess, topic: str) -> tuple[bytes, int]:
    """Return what the group's next member gets first, and after how many milliseconds."""
    clock = SystemClock()
    began_ms = clock.now_ms()
    with PullConsumer("g-" + topic, topic, server.nameserver) as consumer:
        (message,) = islice(consumer.messages(timeout_ms=20_000), 1)
        return message.body, clock.now_ms() - began_ms


@BOTH
@pytest.mark.parametrize(
    "code",
    [PUSH, PUSH_WAIT, ASYNC_PUSH, PULL, ASYNC_PULL],
    ids=["push", "push-wait", "async-push", "pull", "async-pull"],
)
def test_a_running_consumer_finishes_commits_releases_and_returns(
    code: str, how: signal.Signals, topic: str, server: ServerProcess
) -> None:
    send(server, topic)
    code = code.replace("ADDRESS,", "ADDRESS, concurrency=1,") if "Push" in code else code

    assert told(code, topic, server, how) == (0, "0\ndone\nafter\n", "")

    body, took_ms = next_of_group(server, topic)
    assert body == b"1"
    assert took_ms < 1_000


@pytest.mark.parametrize(
    "code", [POLL, ASYNC_POLL, TO_THE_END], ids=["poll", "async-poll", "to-the-end"]
)
def test_a_block_that_is_broken_off_finishes_what_it_was_handed_and_says_so(
    code: str, topic: str, server: ServerProcess
) -> None:
    send(server, topic)

    assert told(code, topic, server, TERM) == (143, "0\ndone\n", "")

    body, took_ms = next_of_group(server, topic)
    assert body == b"1"
    assert took_ms < 1_000


@pytest.mark.parametrize("code", [POLL, ASYNC_POLL], ids=["poll", "async-poll"])
def test_a_poll_that_waits_is_ended(code: str, topic: str, server: ServerProcess) -> None:
    send(server, topic, 1)
    waits = code.replace("poll(1)", "poll(1, None)").replace(
        'say("done")', 'threading.Timer(0.5, say, ["waits"]).start()'
    )

    with program(waits, topic, server) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["0\n", "waits\n"]
        process.send_signal(TERM)
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (143, "", "")


@pytest.mark.long
@pytest.mark.parametrize("code", [PRODUCER, ASYNC_PRODUCER], ids=["producer", "async-producer"])
def test_a_producer_delivers_what_it_took_before_the_program_ends(
    code: str, topic: str, server: ServerProcess
) -> None:
    assert told(code, topic, server, TERM) == (143, "sent\n", "")

    with PullConsumer("g-" + topic, topic, server.nameserver) as consumer:
        assert len(list(consumer.messages(timeout_ms=1_000))) == 100


@pytest.mark.long
def test_a_producer_that_nobody_closes_delivers_at_exit(topic: str, server: ServerProcess) -> None:
    code = """
producer = Producer(ADDRESS, linger_ms=20_000)
for n in range(100):
    producer.send_nowait(TOPIC, b"%d" % n)
"""
    with program(code, topic, server) as process:
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (0, "", "")
    with PullConsumer("g-" + topic, topic, server.nameserver) as consumer:
        assert len(list(consumer.messages(timeout_ms=1_000))) == 100


@pytest.mark.long
def test_what_cannot_be_delivered_at_exit_is_told() -> None:
    code = BEGIN + 'Producer(ADDRESS, route_timeout_ms=100).send_nowait(Message(TOPIC, b"x"))'

    done = subprocess.run(
        [sys.executable, "-c", code, "T", "127.0.0.1:1"], capture_output=True, text=True, check=True
    )

    assert done.stderr == "messages not delivered at exit count=1\n"


@pytest.mark.long
def test_a_listener_that_does_not_end_is_left_by_a_second_signal(
    topic: str, server: ServerProcess
) -> None:
    send(server, topic)
    code = PUSH.replace("wait(0.3)", "wait(3600)").replace("run()", "run()")

    with program(code, topic, server) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(TERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(TERM)
        process.stdout.close()
        process.wait(30)

    assert process.returncode == 143
