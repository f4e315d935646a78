"""Deadlines: met at the end of their step, never early; cancelled ones are not, and cost nothing."""

from __future__ import annotations

import random
import tracemalloc
from functools import partial

from pocketmq.proto.rpc import deadlines
from pocketmq.proto.rpc.deadlines import Deadlines
from pocketmq.proto.rpc.memory_quota import STEP_MS


def test_deadlines_are_met_once_in_order_and_within_their_step() -> None:
    chooser = random.Random(1)
    woken: list[int] = []
    tested = Deadlines(woken.append)
    met: list[int] = []
    due = [chooser.randrange(10_000) for _ in range(500)]
    for due_ms in due:
        tested.add(due_ms, partial(met.append, due_ms))

    for now_ms in range(0, 11_000, 7):
        before = len(met)
        for action in tested.take_due(now_ms):
            action()
        assert all(now_ms - STEP_MS - 7 < due_ms <= now_ms for due_ms in met[before:])
    assert sorted(met) == sorted(due)
    assert tested.next_ms is None
    assert woken == sorted(woken, reverse=True)
    assert woken[-1] - STEP_MS < min(due) <= woken[-1]


def test_a_deadline_that_was_cancelled_is_not_met() -> None:
    tested = Deadlines(lambda _: None)
    met: list[str] = []
    kept = tested.add(100, partial(met.append, "kept"))
    dropped = tested.add(100, partial(met.append, "dropped"))
    dropped.cancel()
    dropped.cancel()

    for action in tested.take_due(100):
        action()
    kept.cancel()
    assert met == ["kept"]


def test_deadlines_that_were_cancelled_leave_no_memory_behind() -> None:
    """A caller names any time up to 11,000 years; each call of another one must not cost memory till then."""
    tested = Deadlines(lambda _: None)

    def come_and_go(count: int) -> None:
        for number in range(count):
            tested.add(10**9 + number * 3_600_000, print).cancel()

    come_and_go(100)
    only = tracemalloc.Filter(True, deadlines.__file__)
    tracemalloc.start()
    try:
        come_and_go(10_000)
        left = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([only]).traces)
    finally:
        tracemalloc.stop()
    assert left < 100_000
