"""The end of a turn: functions are called after all reads of the turn, and right after its only one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

import pytest

from pocketmq.proto.rpc.turn_loop import TurnLoop, at_turn_end, reading

Make = Callable[[], asyncio.AbstractEventLoop]


def run(work: Coroutine[Any, Any, None], make: Make = TurnLoop) -> None:
    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(work)


async def read_all(count: int, on_read: Callable[[str], None]) -> None:
    """Let COUNT sockets be ready in one turn; call ON_READ with the name of each, as a server reads it."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    names = iter("abc")
    left = count

    def read(end: socket.socket) -> None:
        nonlocal left
        end.recv(1)
        with reading(loop):
            on_read(next(names))
        left -= 1
        if not left:
            done.set()

    with ExitStack() as stack:
        for _ in range(count):
            ours, peer = map(stack.enter_context, socket.socketpair())
            peer.send(b"x")
            loop.add_reader(ours, read, ours)
            stack.callback(loop.remove_reader, ours)
        await done.wait()
        await asyncio.sleep(0)


def test_the_turn_of_an_only_read_ends_right_after_it() -> None:
    seen: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()

        def on_read(name: str) -> None:
            loop.call_soon(seen.append, "next turn")
            at_turn_end(lambda: seen.append("first"))
            at_turn_end(lambda: seen.append("second"))
            seen.append(name)

        await read_all(1, on_read)

    run(work())
    assert seen == ["a", "first", "second", "next turn"]


@pytest.mark.parametrize("make", [TurnLoop, asyncio.SelectorEventLoop])
def test_all_reads_of_a_turn_come_before_its_end(make: Make) -> None:
    seen: list[str] = []

    async def work() -> None:
        def on_read(name: str) -> None:
            at_turn_end(lambda: seen.append("end"))
            seen.append(name)

        await read_all(3, on_read)

    run(work(), make)
    assert seen == ["a", "b", "c", "end", "end", "end"]


def test_outside_reads_and_at_the_end_itself_the_next_turn_counts() -> None:
    seen: list[str] = []

    async def work() -> None:
        at_turn_end(lambda: seen.append("outside"))
        seen.append("first")
        await asyncio.sleep(0)

        def on_read(name: str) -> None:
            at_turn_end(lambda: at_turn_end(lambda: seen.append("later")))
            asyncio.get_running_loop().call_soon(seen.append, "next turn")

        await read_all(1, on_read)

    run(work())
    assert seen == ["first", "outside", "next turn", "later"]


@pytest.mark.parametrize("error", [ZeroDivisionError(), asyncio.CancelledError()])
def test_a_function_that_fails_is_reported_and_stops_nothing(error: BaseException) -> None:
    seen: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(repr(context["exception"])))

        def fail() -> None:
            raise error

        def on_read(name: str) -> None:
            at_turn_end(fail)
            at_turn_end(lambda: seen.append("end"))

        await read_all(1, on_read)
        seen.append("read")

    run(work())
    assert seen == [repr(error), "end", "read"]


def test_a_read_that_fails_ends_its_turn_too() -> None:
    seen: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(repr(context["exception"])))
        done = asyncio.Event()
        ours, peer = socket.socketpair()

        def read() -> None:
            ours.recv(1)
            loop.call_soon(done.set)
            with reading(loop):
                at_turn_end(lambda: seen.append("end"))
                raise ValueError("bad frame")

        with ours, peer:
            loop.add_reader(ours, read)
            peer.send(b"x")
            await done.wait()
            loop.remove_reader(ours)

    run(work())
    assert seen == ["end", "ValueError('bad frame')"]
