"""How many work: more while messages wait and are taken slowly, fewer while they are taken quickly."""

from __future__ import annotations

import pytest

from pocketmq.client.pushing.listening import Job
from pocketmq.client.pushing.process_queue import Chunk, WorkerPlace
from pocketmq.client.pushing.workers import (
    HISTOGRAM_MS,
    CallTimes,
    SharedBacklog,
    ThreadWorkers,
    WorkerPool,
    WorkersParts,
)
from pocketmq.client.tasks import TaskGroup
from pocketmq.proto.clock import VirtualClock

from .test_process_queue import held


def staff(limit: int = 20, messages: int = 100) -> WorkerPool:
    backlog = SharedBacklog()
    _, portions = held(*range(messages))
    backlog.put(portions)
    return WorkerPool(limit, backlog)


def test_one_begins() -> None:
    made = staff()

    assert made.wake(100) == 1
    assert made.wake(100) == 0
    assert made.busy == 1


def test_slow_work_doubles_the_workers_up_to_the_bound() -> None:
    made = staff(limit=10)
    missing = [made.wake(100)]

    for _ in range(5):
        made.adapt(taken=5, left=100)
        missing.append(made.wake(100))

    assert missing == [1, 1, 2, 4, 2, 0]
    assert made.busy == 10


def test_no_more_are_called_in_than_there_are_messages() -> None:
    made = staff()
    for _ in range(4):
        made.adapt(taken=0, left=3)

    assert made.wake(3) == 3


def test_quick_work_sends_workers_home() -> None:
    made = staff()
    for _ in range(3):
        made.adapt(taken=5, left=100)
    made.wake(100)
    assert made.busy == 8

    made.adapt(taken=1_000, left=100)

    jobs = [made.next_job() for _ in range(8)]
    assert jobs.count(None) == 4
    assert made.busy == 4


@pytest.mark.parametrize(("taken", "left"), [(5, 0), (200, 100)], ids=["nothing left", "between"])
def test_else_nothing_changes(taken: int, left: int) -> None:
    made = staff()
    made.wake(100)

    made.adapt(taken, left)

    assert made.wake(100) == 0


def test_who_finds_nothing_is_idle() -> None:
    made = staff(messages=1)
    made.wake(1)
    job = made.next_job()
    assert job is not None
    list(job.row)

    assert made.next_job() is None
    assert made.busy == 0


def test_a_call_counts_with_the_average_of_its_spell() -> None:
    times = CallTimes()

    times.add(0.64, 64)
    times.add(5_000, 1)
    times.add(HISTOGRAM_MS[-1] + 1, 1)

    assert times.counts == [64, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    assert times.sum_ms == 0.64 + 5_000 + HISTOGRAM_MS[-1] + 1


async def test_a_thread_whose_work_breaks_goes_on_with_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backlog, tasks = SharedBacklog(), TaskGroup()
    for _ in range(2):
        backlog.put(held(0)[1])
    left: list[Chunk] = []

    def spell(job: Job, place: WorkerPlace) -> int:
        next(job.row)
        raise ZeroDivisionError

    parts = WorkersParts(
        limit=1, backlog=backlog, clock=VirtualClock(), tasks=tasks, on_progress=left.append
    )
    workers = ThreadWorkers(parts, spell, "billing")
    workers.put(2)
    await workers.close()
    await tasks.close()

    assert len(left) == 2
    assert [portion.places for portion in left] == [{}, {}]
    assert (
        caplog.messages == ["worker failed queue=orders[broker-a:0] reason=ZeroDivisionError()"] * 2
    )
