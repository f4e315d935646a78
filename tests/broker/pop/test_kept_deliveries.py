"""Deliveries on disk: what a restart finds after a clean stop and a kill, and how they are kept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from pocketmq.broker.pop.deliveries import PopKey, forgotten
from pocketmq.proto.errors import DiskFailure, InvalidReceiptHandle, StoreFull
from pocketmq.store import tables
from pocketmq.store.flush import FlushJob, sync_all
from pocketmq.store.slices import Slices
from pocketmq.store.table_journal import RETRY_MS

from ...fakes import FaultyDisk
from .popping import GROUP, INVISIBLE_MS, TOPIC, Popping, bodies, seen
from .table_files import SMALL, end_of, files, newest


def note_forgotten(broker: Popping, group: str = "a", topic: str = "b") -> None:
    broker.tables.deliveries.change_all([forgotten(PopKey(group, topic, 0))])


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
class TestRestart:
    async def test_acknowledged_messages_do_not_come_again(
        self, tmp_path: Path, clean: bool
    ) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b", b"c", b"d")
        _, b, _, d = broker.pop()
        broker.ack(b, d)
        await broker.safe()

        await broker.restart(clean=clean)

        assert broker.pop() == []
        await broker.clock.advance(INVISIBLE_MS)
        assert seen(broker.pop()) == [(b"a", 2), (b"c", 2)]
        await broker.stop()

    async def test_handles_of_before_are_good(self, tmp_path: Path, clean: bool) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b", b"c")
        a, _, c = broker.pop(invisible_ms=10_000)
        changed = broker.pops.change_invisible(GROUP, TOPIC, c.handle, 60_000)
        await broker.safe()

        await broker.restart(clean=clean)

        broker.ack(a)
        with pytest.raises(InvalidReceiptHandle):
            broker.ack(c)
        broker.pops.acknowledge(GROUP, TOPIC, changed)
        await broker.clock.advance(10_000)
        assert seen(broker.pop()) == [(b"b", 2)]
        await broker.stop()

    async def test_a_lease_ends_when_it_would_have(self, tmp_path: Path, clean: bool) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a")
        broker.pop(invisible_ms=10_000)
        await broker.clock.advance(4_000)

        await broker.restart(clean=clean)

        broker.wait(20_000)
        await broker.clock.advance(5_999)
        assert broker.answers == []
        await broker.clock.advance(1)
        assert seen(broker.answer().deliveries) == [(b"a", 2)]
        await broker.stop()

    @pytest.mark.parametrize("step_ms", [-86_400_000, -3_600_000, 3_600_000, 86_400_000])
    async def test_a_lease_ends_when_it_would_have_where_the_clock_was_set_before_the_stop(
        self, tmp_path: Path, clean: bool, step_ms: int
    ) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a")
        broker.pop(invisible_ms=10_000)
        await broker.clock.advance(3_000)
        broker.clock.step(step_ms)
        broker.send(b"b")
        broker.pop(invisible_ms=90_000)
        await broker.clock.advance(1_000)

        await broker.restart(clean=clean)

        broker.wait(20_000)
        await broker.clock.advance(5_000)
        assert broker.answers == []
        await broker.clock.advance(
            1_500
        )  # A kill loses what has passed since the clocks were noted.
        assert seen(broker.answer().deliveries) == [(b"a", 2)]
        await broker.stop()

    async def test_a_lease_lasts_no_longer_where_the_clock_was_set_back_between_two_runs(
        self, tmp_path: Path, clean: bool
    ) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a")
        broker.pop(invisible_ms=10_000)
        await broker.clock.advance(4_000)

        await broker.stop(clean=clean)
        broker.clock.step(-3_600_000)
        broker._begin()

        broker.wait(20_000)
        await broker.clock.advance(5_999)
        assert broker.answers == []
        await broker.clock.advance(4_001)
        assert seen(broker.answer().deliveries) == [(b"a", 2)]
        await broker.stop()

    async def test_owners_go_after_a_restart_too(self, tmp_path: Path, clean: bool) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a")
        broker.pop(auto_renew=True, client_id="one")

        await broker.restart(clean=clean)

        broker.pops.client_gone("one")
        await broker.clock.advance(1_000)
        assert seen(broker.pop()) == [(b"a", 2)]
        await broker.stop()

    async def test_it_holds_over_many_restarts(self, tmp_path: Path, clean: bool) -> None:
        broker = Popping(tmp_path)
        broker.send(*(b"%d" % number for number in range(8)))
        (first, *_) = broker.pop(4)

        for number in range(3):
            await broker.restart(clean=clean)
            (one,) = broker.pop(1)
            assert bodies([one]) == [b"%d" % (4 + number)]
            broker.ack(one)
            await broker.safe()

        await broker.restart(clean=clean)
        broker.ack(first)
        assert bodies(broker.pop()) == [b"7"]
        assert broker.committed() == 1
        assert len(files(tmp_path, "snapshot-3-")) == 1
        await broker.stop()

    async def test_a_topic_that_was_deleted_begins_anew(self, tmp_path: Path, clean: bool) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b")
        broker.pop()
        broker.pops.forget_topic(TOPIC)
        broker.offsets.forget_topic(TOPIC)
        await broker.safe()
        broker.offsets.save()

        await broker.restart(clean=clean)

        assert seen(broker.pop()) == [(b"a", 1), (b"b", 1)]
        await broker.stop()

    async def test_a_group_that_begins_with_new_messages_gets_those_of_before(
        self, tmp_path: Path, clean: bool
    ) -> None:
        broker = Popping(tmp_path)
        broker.group(consume_from_min_enable=False)
        broker.send(b"old")
        broker.wait()
        await asyncio.sleep(0)
        broker.purgatory.complete_all()
        broker.answers.clear()
        broker.send(b"new")

        await broker.restart(clean=clean)

        assert bodies(broker.pop()) == [b"new"]
        await broker.stop()

    async def test_a_group_that_was_moved_goes_on_from_there(
        self, tmp_path: Path, clean: bool
    ) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b", b"c")
        broker.ack(*broker.pop())
        broker.pops.move(GROUP, TOPIC, 0, 1)
        await broker.safe()
        broker.offsets.save()

        await broker.restart(clean=clean)

        assert bodies(broker.pop()) == [b"b", b"c"]
        await broker.stop()


async def test_what_is_acknowledged_in_one_turn_is_one_frame(tmp_path: Path) -> None:
    broker = Popping(tmp_path)
    broker.send(b"a", b"b", b"c")
    a, b, c = broker.pop()
    await broker.settle()
    told: list[object] = []
    journal = broker.journal
    before = journal._sequence

    for delivery in (a, b, c):
        broker.ack(delivery)
        broker.pops.when_safe(told.append)

    assert told == [], "none is told before it is written"
    await asyncio.sleep(0)
    assert told == [None] * 3
    assert journal._sequence == before + 1
    await broker.restart(clean=False)
    await broker.clock.advance(INVISIBLE_MS)
    assert broker.pop() == []
    await broker.stop()


@pytest.mark.parametrize("ordered", [False, True])
async def test_messages_that_were_scanned_before_an_error_are_not_redelivered_once_acknowledged(
    tmp_path: Path, ordered: bool
) -> None:
    broker = Popping(tmp_path, queues=2)
    broker.group(consume_message_orderly=ordered)
    broker.send(b"a", b"b", queue=0)
    broker.send(b"c", queue=1)
    read, bad = broker.store.read_queue, {0, 1}

    def read_queue(topic: str, queue: int, *rest: Any) -> Slices:
        if queue in bad:
            raise DiskFailure("an open file too many", reason="EMFILE")
        return read(topic, queue, *rest)

    broker.store.read_queue = read_queue  # type: ignore[method-assign,assignment]
    for failing in ({0}, {1}, {0}):
        bad.clear()
        bad |= failing
        with suppress(DiskFailure):
            broker.pop()
            broker.answers.clear()
    bad.clear()
    await broker.clock.advance(INVISIBLE_MS)
    got = broker.pop()
    assert sorted(bodies(got)) == [b"a", b"b", b"c"]
    broker.ack(*got)
    await broker.safe()

    await broker.restart(clean=False)

    assert broker.pop() == []
    await broker.stop()


class TestBounds:
    async def test_a_long_journal_becomes_a_snapshot(self, tmp_path: Path) -> None:
        broker = Popping(tmp_path, sizes=SMALL)
        held = None
        for number in range(600):
            broker.send(b"%d" % number)
            (one,) = broker.pop(1, invisible_ms=3_600_000)
            if number == 5:
                held = one
            else:
                broker.ack(one)
            await asyncio.sleep(0)
            assert sum(file.stat().st_size for file in files(tmp_path)) < 60_000

        await broker.restart(clean=False)

        assert held is not None
        assert broker.committed() == 5
        broker.ack(held)
        assert broker.committed() == 600
        await broker.stop()

    async def test_a_snapshot_is_made_between_turns(self, tmp_path: Path) -> None:
        broker = Popping(tmp_path, sizes=SMALL)
        broker.send(*(b"%d" % number for number in range(3_000)))
        held = []
        while got := broker.pop(invisible_ms=3_600_000):
            held += got
        broker.ack(*held[::2])
        await asyncio.sleep(0)
        turns = 0
        while broker.journal._snapshots:
            broker.ack(held[2 * turns + 1])
            await asyncio.sleep(0)
            turns += 1

        await broker.restart(clean=False)

        assert turns > 3
        broker.ack(*held[2 * turns + 1 :: 2])
        assert broker.committed() == 3_000
        await broker.stop()

    async def test_a_snapshot_that_a_stop_broke_off_gets_no_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broker = Popping(tmp_path, sizes=SMALL)
        broker.send(*(b"%d" % number for number in range(2_300)))
        for _ in range(16):
            broker.pop(invisible_ms=3_600_000)
        await broker.settle()
        jobs: list[FlushJob] = []
        monkeypatch.setattr(broker.store.flusher, "submit", jobs.append)
        for _ in range(80):
            broker.pop(invisible_ms=3_600_000)
            await asyncio.sleep(0)
        before = files(tmp_path, "snapshot-3-")

        broker.journal.close()
        for job in jobs:
            job.done(sync_all(job.parts))

        assert [file.suffix for file in before] == ["", ".tmp"]
        assert files(tmp_path, "snapshot-3-") == before
        monkeypatch.undo()
        await broker.stop()

    @pytest.mark.parametrize("ordered", [True, False])
    async def test_a_group_that_gets_another_order_during_a_snapshot_loses_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool
    ) -> None:
        monkeypatch.setattr(tables, "STEP_BYTES", 128)
        broker = Popping(tmp_path, queues=2)
        broker.group(consume_message_orderly=not ordered)
        for queue in (0, 1):
            broker.send(*(b"%d/%d" % (queue, number) for number in range(30)), queue=queue)
        while broker.pop():
            pass
        await broker.settle()
        broker.journal._begin_snapshots({broker.tables.deliveries.number})
        deliveries = broker.tables.deliveries
        (snapshot,) = (one for one in broker.journal._snapshots if one.table is deliveries)
        for _ in range(3):
            snapshot.step()

        broker.group(consume_message_orderly=ordered)
        broker.pop(1)

        while broker.journal._snapshots:
            await asyncio.sleep(0.001)
            broker.journal._step()
        await broker.restart(clean=False)
        await broker.clock.advance(INVISIBLE_MS)
        found: set[bytes] = set()
        while got := broker.pop():
            found |= set(bodies(got))
            broker.ack(*got)
        assert len(found) == 60
        await broker.stop()


class TestFailure:
    async def test_changes_stay_in_memory_while_the_journal_cannot_be_written(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        disk = FaultyDisk()
        broker = Popping(tmp_path, disk=disk)
        broker.send(b"a", b"b", b"c")
        a, b, _ = broker.pop()
        disk.run_full("/tables/")
        broker.ack(a)

        assert await broker.safe() is None

        assert "tables not written, changes are in memory" in caplog.text
        await broker.clock.advance(RETRY_MS)
        disk.heal()
        broker.ack(b)
        await broker.clock.advance(2 * RETRY_MS)
        await _snapshot_made(broker)
        await broker.restart(clean=False)
        await broker.clock.advance(INVISIBLE_MS)
        assert seen(broker.pop()) == [(b"c", 2)]
        await broker.stop()

    async def test_what_was_moved_while_there_was_no_journal_is_in_the_next(
        self, tmp_path: Path
    ) -> None:
        disk = FaultyDisk()
        broker = Popping(tmp_path, disk=disk)
        broker.send(b"a", b"b", b"c")
        disk.run_full("/tables/")
        broker.ack(*broker.pop())
        broker.pops.move(GROUP, TOPIC, 0, 0)
        await broker.safe()
        disk.heal()
        await broker.clock.advance(2 * RETRY_MS)
        await _snapshot_made(broker)

        broker.ack(*broker.pop(2))
        await asyncio.sleep(0)
        await broker.restart(clean=False)

        assert seen(broker.pop()) == [(b"c", 1)]
        await broker.stop()

    @pytest.mark.parametrize("what", ["delete the group", "delete the topic", "reset the offset"])
    async def test_what_a_kill_would_bring_back_is_refused_while_there_is_no_journal(
        self, tmp_path: Path, what: str
    ) -> None:
        disk = FaultyDisk()
        broker = Popping(tmp_path, disk=disk)
        broker.send(b"a", b"b", b"c")
        broker.ack(*broker.pop())
        disk.run_full("/tables/")
        broker.send(b"d")
        broker.pop()
        await broker.safe()
        change: Callable[[], None] = {
            "delete the group": lambda: broker.pops.forget_group(GROUP),
            "delete the topic": lambda: broker.pops.forget_topic(TOPIC),
            "reset the offset": lambda: broker.pops.moved(GROUP, TOPIC, 0, 0),
        }[what]

        with pytest.raises(StoreFull, match="state was not written"):
            change()

        disk.heal()
        await broker.clock.advance(2 * RETRY_MS)
        await _snapshot_made(broker)
        change()
        await broker.restart(clean=False)
        if what == "reset the offset":
            assert bodies(broker.pop()) == [b"a", b"b", b"c", b"d"]
        await broker.stop()

    async def test_a_broker_starts_without_a_journal(self, tmp_path: Path) -> None:
        disk = FaultyDisk()
        disk.run_full("/tables/")

        broker = Popping(tmp_path, disk=disk)

        broker.send(b"a")
        broker.ack(*broker.pop())
        assert broker.committed() == 1
        await broker.stop()

    async def test_a_start_that_cannot_keep_anything_says_so(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = FaultyDisk()
        make_folders = disk.make_folders

        def refuse(path: str) -> None:
            if path.endswith("/tables"):
                raise StoreFull("no space left")
            make_folders(path)

        monkeypatch.setattr(disk, "make_folders", refuse)

        broker = Popping(tmp_path, disk=disk)

        assert "tables not written, changes are in memory" in caplog.text
        await broker.stop()


class TestSafety:
    async def test_memory_is_enough_at_once(self, tmp_path: Path) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a")
        before = end_of(newest(tmp_path)) if files(tmp_path, "journal-") else 0
        broker.pop()
        told: list[object] = []

        broker.pops.when_safe(told.append)

        assert told == [None]
        assert end_of(newest(tmp_path)) > before
        await broker.stop()

    async def test_with_flush_sync_it_is_on_the_device(self, tmp_path: Path) -> None:
        disk = FaultyDisk()
        broker = Popping(tmp_path, disk=disk, flush="sync")
        broker.send(b"a")
        broker.ack(*broker.pop())
        disk.break_syncs("/tables/journal")
        told: list[object] = []

        broker.pops.when_safe(told.append)

        assert "cannot sync" in str(told)
        disk.heal()
        await broker.stop()

    async def test_a_file_that_another_follows_is_synced_all_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broker = Popping(tmp_path, sizes=SMALL, flush="sync")
        broker.send(*(b"%d" % number for number in range(200)))
        broker.pop()
        jobs: list[FlushJob] = []
        monkeypatch.setattr(broker.store.flusher, "submit", jobs.append)
        broker.pops.when_safe(lambda error: None)
        first = newest(tmp_path)
        while newest(tmp_path) == first:
            note_forgotten(broker, "a" * 1_000, "b" * 1_000)
            note_forgotten(broker, "a" * 1_000, "b" * 1_000)
            broker.journal.write()
        synced: list[str] = []
        monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(_path_of(fd)))

        sync_all(jobs[0].parts)

        assert str(first) in synced
        await broker.stop()

    async def test_what_was_noted_is_written_at_the_end_of_the_turn(self, tmp_path: Path) -> None:
        broker = Popping(tmp_path)
        await broker.settle()
        note_forgotten(broker)
        before = end_of(newest(tmp_path))

        await asyncio.sleep(0)

        assert end_of(newest(tmp_path)) > before
        await broker.stop()

    async def test_with_flush_sync_the_answer_waits_for_the_log_as_well(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broker = Popping(tmp_path, flush="sync")
        broker.send(b"a")
        (one,) = broker.pop()
        jobs: list[FlushJob] = []
        told: list[object] = []
        monkeypatch.setattr(broker.store.flusher, "submit", jobs.append)
        broker.pops.forward_to_dead_letters(GROUP, TOPIC, one.handle, "asked for")

        broker.pops.when_safe(told.append)

        assert len(jobs) == 2
        for job in jobs:
            assert told == []
            job.done(sync_all(job.parts))
        assert told == [None]
        monkeypatch.undo()
        await broker.stop()

    @pytest.mark.parametrize("flush", ["async", "sync"])
    async def test_nothing_is_written_behind_the_end(
        self, tmp_path: Path, flush: Literal["async", "sync"]
    ) -> None:
        broker = Popping(tmp_path, sizes=SMALL, flush=flush)
        broker.send(*(b"%d" % number for number in range(300)))
        await broker.settle()
        while broker.pop(invisible_ms=3_600_000):
            pass
        assert broker.journal._is_asked
        broker.journal.close()
        written = {file: file.read_bytes() for file in files(tmp_path)}
        told: list[object] = []

        broker.pop(wait_ms=0)
        note_forgotten(broker)
        broker.pops.when_safe(told.append)
        await asyncio.sleep(0.01)

        assert told == [None]
        assert {file: file.read_bytes() for file in files(tmp_path)} == written
        await broker.stop()


async def _snapshot_made(broker: Popping) -> None:
    await broker.settle()
    assert not broker.journal._missing


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")
