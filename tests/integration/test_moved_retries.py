"""`pocketmq clock advance` with consumers that fail, as programs of their own: each try comes at its own instant."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from pocketmq.broker.unfinished_messages import PATIENCE_S
from pocketmq.client import Admin, Message, Producer
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from ..served import ServerProcess
from .command import Shell
from .v2_caller import INVISIBLE_S, Caller

pytestmark = pytest.mark.processes

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
CLASSIC: Final = [
    *(10 * SECOND, 30 * SECOND),
    *(minutes * MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
]
#: A listener that says what it was called with, and fails where it is told to.
PROGRAM: Final = """
import sys
from pocketmq.client import PushConsumer

def listen(message):
    # In one piece: two threads may print at a time.
    print(f"{message.reconsume_times} {message.store_timestamp_ms}\\n", end="", flush=True)
    if message.body == b"poison":
        raise ValueError("no")

with PushConsumer("g", "orders", listen, sys.argv[1]) as consumer:
    print("ready", flush=True)
    sys.stdin.read()
"""


class Program:
    """A push consumer, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stand_still(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> list[tuple[int, int]]:
        """End it; return (reconsume times, store time) of all that its listener was called with since."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        out = self._process.stdout.read()
        return [(int(times), int(stored)) for times, stored in map(str.split, out.splitlines())]


@contextmanager
def consuming(server: ServerProcess) -> Iterator[Program]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server.nameserver],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    program = Program(process)
    with process:
        try:
            assert program.says() == "ready"
            yield program
        finally:
            process.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "store", "--clock", "virtual") as running:
        with Admin(running.nameserver) as admin:
            admin.create_topic("orders", queues=2)
        yield running


def send(server: ServerProcess, *messages: Message) -> None:
    with Producer(server.nameserver) as producer:
        for message in messages:
            producer.send(message)


def between(tries: list[tuple[int, int]]) -> list[int]:
    """Return how long after each other TRIES were stored."""
    stored = [at_ms for _, at_ms in tries]
    return [later - earlier for earlier, later in pairwise(stored)]


async def received_on_the_way(server: ServerProcess, by: str) -> tuple[list[v2.Message], float]:
    """Receive what comes while the clock is moved by BY; return it, and how long the move went on behind that."""
    caller = Caller(str(server.ready["broker"]))
    receiving = asyncio.create_task(asyncio.to_thread(caller.receive))
    await asyncio.sleep(0.3)  # It waits at the broker.
    shell = Shell(server.nameserver)
    moving = asyncio.create_task(asyncio.to_thread(shell.done, "clock", "advance", by))
    found = await receiving
    began = time.perf_counter()
    for message in found:
        await asyncio.sleep(0.3)
        await asyncio.to_thread(caller.acknowledge, message)
    await moving
    return found, time.perf_counter() - began


def dead_letters(call: Shell) -> list[Any]:
    return call.done("dead-letters", "list", "g")


def test_five_hours_bring_sixteen_retries_and_the_dead_letter_each_at_its_instant(
    server: ServerProcess,
) -> None:
    call = Shell(server.nameserver)
    with consuming(server) as program:
        send(server, Message("orders", b"sound"))
        assert program.says().startswith("0 ")
        send(server, Message("orders", b"poison"))
        began = time.perf_counter()
        (moved,) = call.done("clock", "advance", "5h")
        took_s = time.perf_counter() - began

        tries = program.stop()

    assert [times for times, _ in tries] == list(range(17))
    assert between(tries) == CLASSIC
    (letter,) = dead_letters(call)
    assert letter["reconsume_times"] == 17
    assert moved["now_ms"] == tries[0][1] + 5 * HOUR
    assert took_s < 2 * PATIENCE_S, took_s


def test_a_consumer_that_has_just_come_is_waited_for_too(server: ServerProcess) -> None:
    call = Shell(server.nameserver)
    call.done("group", "create", "g", "--retries", "3", "--retry-intervals", "10s,1h")
    send(server, Message("orders", b"poison"), Message("orders", b"poison"))
    with consuming(server) as program:
        first = program.says().split()
        call.done("clock", "advance", "5h")

        tries = [(int(first[0]), int(first[1])), *program.stop()]

    assert sorted(times for times, _ in tries) == [0, 0, 1, 1, 2, 2, 3, 3]
    began_ms = tries[0][1]
    retries = {(times, at_ms - began_ms) for times, at_ms in tries if times}
    assert retries == {(1, 10 * SECOND), (2, HOUR + 10 * SECOND), (3, 2 * HOUR + 10 * SECOND)}
    assert len(dead_letters(call)) == 2


def test_what_is_due_on_the_way_is_handled_at_its_instant(server: ServerProcess) -> None:
    call = Shell(server.nameserver)
    with consuming(server) as program:
        send(server, Message("orders", b"sound"))
        assert program.says().startswith("0 ")
        send(server, *(Message("orders", b"sound", delay=f"{n}h") for n in range(1, 6)))
        began = time.perf_counter()
        call.done("clock", "advance", "10h")
        took_s = time.perf_counter() - began

        handled = program.stop()

    assert [times for times, _ in handled] == [0] * 5
    assert between(handled) == [HOUR] * 4
    assert took_s < PATIENCE_S, took_s


@pytest.mark.long
def test_a_consumer_that_stands_still_keeps_the_clock_for_so_long_and_no_longer(
    server: ServerProcess,
) -> None:
    call = Shell(server.nameserver)
    with consuming(server) as program:
        send(server, Message("orders", b"sound"))
        assert program.says().startswith("0 ")
        send(server, *(Message("orders", b"sound", delay=f"{n}h") for n in range(1, 6)))
        program.stand_still()
        began = time.perf_counter()
        call.done("clock", "advance", "10h")
        took_s = time.perf_counter() - began
        program.go_on()

        handled = [program.says() for _ in range(5)]

    assert all(line.startswith("0 ") for line in handled)
    # Its reader may have asked for more before it stood still: then both of its queues are waited for, one by one.
    assert PATIENCE_S <= took_s < 3 * PATIENCE_S, took_s


async def test_a_simple_consumer_is_waited_for_with_what_it_was_given_on_the_way(
    server: ServerProcess,
) -> None:
    with Admin(server.nameserver) as admin:
        admin.create_topic("T", queues=1)
    send(server, Message("T", b"sound", delay="1h"))

    found, behind_s = await received_on_the_way(server, "5h")

    # The acknowledgement was taken: its lease of a minute lasted, though five hours passed.
    assert [message.body for message in found] == [b"sound"]
    assert 0.3 <= behind_s < PATIENCE_S, behind_s


def test_what_a_simple_consumer_had_before_comes_again_when_its_time_is_over(
    server: ServerProcess,
) -> None:
    with Admin(server.nameserver) as admin:
        admin.create_topic("T", queues=1)
    caller = Caller(str(server.ready["broker"]))
    send(server, Message("T", b"sound"))
    (first,) = caller.receive()
    began = time.perf_counter()
    Shell(server.nameserver).done("clock", "advance", f"{INVISIBLE_S}s")
    took_s = time.perf_counter() - began

    (second,) = caller.receive()

    attempts = [one.system_properties.delivery_attempt for one in (first, second)]
    assert attempts == [1, 2]
    assert took_s < PATIENCE_S, took_s
