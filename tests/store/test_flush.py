"""The flushing thread and the group commit."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pocketmq.proto.errors import DiskFailure, StoreError, StoreFull
from pocketmq.store.files import Syncable
from pocketmq.store.flush import Flusher, FlushJob, GroupCommit, sync_all


class Part:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1
        if self.error:
            raise self.error


class HeldFlusher(Flusher):
    """A flusher whose jobs end when the test says so."""

    def __init__(self) -> None:
        super().__init__("held")
        self.jobs: list[FlushJob] = []

    def submit(self, job: FlushJob) -> None:
        self.jobs.append(job)

    def end_job(self, error: StoreError | None = None) -> None:
        job = self.jobs.pop(0)
        job.done(sync_all(job.parts) or error)


class Log:
    """An end that moves."""

    def __init__(self) -> None:
        self.end = 0
        self.collected = 0
        self.part = Part()

    def collect(self) -> tuple[int, list[Syncable]]:
        self.collected += 1
        return self.end, [self.part]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def flusher() -> HeldFlusher:
    return HeldFlusher()


@pytest.fixture
def commit(log: Log, flusher: HeldFlusher) -> GroupCommit:
    return GroupCommit(log.collect, flusher)


def results() -> tuple[list[object], Callable[[StoreError | None], None]]:
    seen: list[object] = []
    return seen, seen.append


def test_one_sync_serves_all_who_came_before_it(
    log: Log, commit: GroupCommit, flusher: HeldFlusher
) -> None:
    first, on_first = results()
    others, on_others = results()
    log.end = 10
    commit.wait_for(10, on_first)
    for end in (20, 30, 40):
        log.end = end
        commit.wait_for(end, on_others)

    flusher.end_job()
    assert (first, others) == ([None], [])
    flusher.end_job()

    assert others == [None, None, None]
    assert log.collected == 2
    assert flusher.jobs == []


def test_who_waits_for_the_same_end_as_another_waits_as_long(
    log: Log, commit: GroupCommit, flusher: HeldFlusher
) -> None:
    seen, waiter = results()
    log.end = 10
    commit.wait_for(10, waiter)
    commit.wait_for(10, waiter)
    commit.wait_for(5, waiter)

    assert seen == []
    flusher.end_job()

    assert seen == [None, None, None]


def test_who_comes_after_the_sync_is_told_at_once(
    log: Log, commit: GroupCommit, flusher: HeldFlusher
) -> None:
    log.end = 10
    commit.flush_up_to(10)
    flusher.end_job()
    seen, waiter = results()

    commit.wait_for(10, waiter)

    assert seen == [None]
    assert commit.flushed_offset == 10


def test_a_failed_sync_fails_everybody_now_and_later(log: Log, flusher: HeldFlusher) -> None:
    failure = DiskFailure("gone")
    told: list[StoreError] = []
    commit = GroupCommit(log.collect, flusher, on_failed=told.append)
    seen, waiter = results()
    log.end = 20
    commit.wait_for(10, waiter)
    commit.wait_for(20, waiter)

    flusher.end_job(failure)
    commit.wait_for(5, waiter)

    assert seen == [failure, failure, failure]
    assert told == [failure]
    assert commit.flushed_offset == 0
    assert flusher.jobs == []


def test_each_new_flushed_offset_is_reported(log: Log, flusher: HeldFlusher) -> None:
    offsets: list[int] = []
    commit = GroupCommit(log.collect, flusher, on_flushed=[offsets.append])

    for end in (10, 10, 25):
        log.end = end
        commit.flush_up_to(end)
        if flusher.jobs:
            flusher.end_job()

    assert offsets == [10, 25]


def test_parts_are_synced_in_order_up_to_the_first_failure() -> None:
    parts = [Part(), Part(DiskFailure("bad")), Part()]

    error = sync_all(list[Syncable](parts))

    assert isinstance(error, DiskFailure)
    assert [part.syncs for part in parts] == [1, 1, 0]


def test_an_operating_system_error_becomes_a_disk_failure() -> None:
    assert isinstance(sync_all([Part(OSError(5, "input/output error"))]), DiskFailure)


def test_the_thread_finishes_what_was_submitted_and_ends() -> None:
    flusher = Flusher("test-flush")
    flusher.start()
    threads: list[str] = []
    for _ in range(3):
        flusher.submit(
            FlushJob([Part()], lambda _: threads.append(threading.current_thread().name))
        )

    flusher.stop()

    assert threads == ["test-flush"] * 3
    assert all(thread.name != "test-flush" for thread in threading.enumerate())


def test_without_a_thread_a_job_is_done_at_once() -> None:
    seen, done = results()

    Flusher("never started").submit(FlushJob([Part()], done))

    assert seen == [None]


def test_a_sync_without_room_is_a_failure_and_no_refusal() -> None:
    """A producer sends what was refused to another broker; what waits for a sync is stored here."""
    error = sync_all([Part(StoreFull("no space left on the device", path="log"))])

    assert isinstance(error, DiskFailure)
    assert "no space left" in error.message
    assert error.details["path"] == "log"
