"""Signal handlers of clients in use: whose they are, when they are there, and what was there before."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from pocketmq.client.signals import EXIT_CODE, Signals

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.fixture(autouse=True)
def python_handlers() -> Iterator[None]:
    """The handlers of Python at the beginning, and again behind the test."""
    before = {number: signal.getsignal(number) for number in (TERM, INT)}
    signal.signal(TERM, signal.SIG_DFL)
    signal.signal(INT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_handlers_are_there_within_the_block_alone() -> None:
    one = Signals()

    one.enter()
    assert signal.getsignal(TERM) != signal.SIG_DFL
    assert signal.getsignal(INT) is signal.default_int_handler
    with one.returning():
        assert signal.getsignal(INT) is not signal.default_int_handler
    with one.leaving():
        assert signal.getsignal(INT) is signal.default_int_handler

    assert signal.getsignal(TERM) == signal.SIG_DFL


def test_the_handlers_of_the_program_stay() -> None:
    heard: list[int] = []

    def own(number: int, _frame: object) -> None:
        heard.append(number)

    one = Signals()
    signal.signal(TERM, own)
    signal.signal(INT, signal.SIG_IGN)

    one.enter()
    with one.leaving(), one.returning():
        signal.raise_signal(TERM)
        signal.raise_signal(INT)

    assert heard == [TERM]
    assert (signal.getsignal(TERM), signal.getsignal(INT)) == (own, signal.SIG_IGN)


def test_a_handler_that_the_program_sets_within_the_block_stays() -> None:
    one = Signals()

    one.enter()
    signal.signal(TERM, signal.SIG_IGN)
    with one.leaving():
        signal.raise_signal(TERM)

    assert signal.getsignal(TERM) == signal.SIG_IGN


def test_other_threads_change_nothing() -> None:
    seen: list[object] = []

    def elsewhere() -> None:
        one = Signals()
        one.enter()
        with one.leaving(), one.returning():
            seen.extend((signal.getsignal(TERM), signal.getsignal(INT)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

    assert seen == [signal.SIG_DFL, signal.default_int_handler]


def test_a_block_is_broken_off_by_an_exit() -> None:
    one = Signals()
    one.enter()

    with pytest.raises(SystemExit) as caught:
        signal.raise_signal(TERM)
    with one.leaving():
        pass

    assert caught.value.code == EXIT_CODE == 143


def test_what_ends_by_itself_is_not_broken_off_but_by_a_second_signal() -> None:
    outer, inner = Signals(), Signals(lambda: True)
    outer.enter()
    inner.enter()

    with inner.returning():
        signal.raise_signal(INT)
        assert (inner.received, outer.received) == (INT, None)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(INT)
    for one in (inner, outer):
        with one.leaving():
            pass


def test_the_end_of_a_client_is_not_broken_off_but_followed_by_the_exit() -> None:
    one = Signals()
    one.enter()
    done = []

    def close() -> None:
        with one.leaving():
            signal.raise_signal(TERM)
            done.append(True)

    with pytest.raises(SystemExit) as caught:
        close()

    assert done
    assert caught.value.code == EXIT_CODE
    assert signal.getsignal(TERM) == signal.SIG_DFL


def test_a_task_is_cancelled_and_its_block_ends_by_an_exit() -> None:
    seen: list[str] = []

    async def work() -> None:
        one = Signals()
        one.enter()
        try:
            signal.raise_signal(TERM)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
        with one.leaving():
            await asyncio.sleep(0)
            seen.append("closed")

    with pytest.raises(SystemExit) as caught:
        asyncio.run(work())

    assert caught.value.code == EXIT_CODE
    assert seen == ["cancelled", "closed"]


def test_tasks_that_run_beside_each_other_all_end() -> None:
    async def run(told: list[int]) -> None:
        ended = asyncio.Event()

        def finish() -> bool:
            ended.set()
            return True

        one = Signals(finish)
        with one.returning():
            await ended.wait()
        told.append(one.received or 0)

    async def both() -> list[int]:
        told: list[int] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(run(told))
            await asyncio.sleep(0)
            signal.raise_signal(INT)
        return told

    assert asyncio.run(both()) == [INT, INT]
