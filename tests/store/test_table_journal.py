"""Tables come back from their journal: after a stop, a kill, damage, and a log that was cut."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import DiskFailure, StoreError, StoreFull
from pocketmq.store.disk import Entry
from pocketmq.store.flush import Flusher, FlushJob, sync_all
from pocketmq.store.format.table_frames import (
    CLEAR,
    DROP,
    PUT,
    TableVersion,
    entry,
    frame,
    head,
    section,
)
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.table_files import TableFiles, journal_path, read_entries, read_tables
from pocketmq.store.table_journal import LAZY_MS, RETRY_MS, JournalParts, JournalSizes, TableJournal
from pocketmq.store.table_loss import note_loss
from pocketmq.store.tables import (
    AnyChange,
    Durability,
    JournalTable,
    JsonCodec,
    TableChange,
    raw_table,
)

from ..fakes import FaultyDisk
from .table_worlds import SMALL, FakeLog, JsonTable, Turns, World, opened_journal

Damage = Callable[[list[Path]], None]
LARGE = JournalSizes(file=1 << 16)


def new_log(seed: int = 1) -> FakeLog:
    log = FakeLog(random.Random(seed))
    for _ in range(20):
        log.grow()
    return log


def journals(path: Path) -> list[Path]:
    return sorted((path / "tables").glob("journal-*"))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_tables_are_what_they_were_after_kills_and_stops(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    path, rng = tmp_path_factory.mktemp("store"), random.Random(seed)
    log = FakeLog(rng)
    world = World(path, log)
    model: list[dict[tuple[str, str], Any]] = [{}, {}, {}, {}]
    for _ in range(rng.randrange(30, 250)):
        for _ in range(rng.randrange(6)):
            change_in_both(world, model, rng)
        assert world.rows() == model
        log.grow()
        world.turns.run()
        if rng.random() < 0.2:
            world.journal.write(everything=True)
        if rng.random() < 0.1:
            world.journal.tick()
        if rng.random() < 0.04:
            world.journal.write(everything=True)
            if rng.random() < 0.5:
                world.journal.close()
            world = World(path, log)
            assert world.rows() == model
            assert not world.found.gaps
            assert not world.found.incomplete


def change_in_both(
    world: World, model: list[dict[tuple[str, str], Any]], rng: random.Random
) -> None:
    """TableChange a table and a plain dict alike."""
    number = rng.randrange(4)
    table, rows = world.tables[number], model[number]
    scope, key = f"scope {rng.randrange(3)}", f"key {rng.randrange(9)}"
    kind = rng.random()
    if kind < 0.6:
        value = {"n": rng.randrange(99), "text": "x" * rng.randrange(60)}
        table.put(scope, key, value)
        rows[scope, key] = value
    elif kind < 0.93:
        table.drop(scope, key)
        rows.pop((scope, key), None)
    elif kind < 0.98:
        table.clear(scope)
        for where in [where for where in rows if where[0] == scope]:
            del rows[where]
    else:
        table.clear_all()
        rows.clear()


def filled(path: Path, log: FakeLog, **options: Any) -> World:
    """Return a world with a hundred entries in each table, each written by itself."""
    world = World(path, log, **options)
    for number in range(100):
        for table in world.tables:
            table.put("scope", f"{number}", number)
        world.journal.write(everything=True)
    return world


@pytest.mark.long
def test_a_torn_end_loses_what_is_torn_and_nothing_else(tmp_path: Path) -> None:
    log = new_log()
    world = filled(tmp_path, log, sizes=LARGE)
    (path,) = journals(tmp_path)
    good = path.read_bytes()
    end = len(good.rstrip(b"\0"))
    for cut in range(end - 400, end):
        path.write_bytes(good[:cut] + bytes(len(good) - cut))
        again = World(tmp_path, log, sizes=LARGE)
        rows = again.rows()
        assert rows[1] == rows[2] == rows[3]
        assert 97 <= len(rows[1]) < 100
        assert len(rows[0]) - len(rows[1]) in (0, 1)  # Of a frame of its own, before that.
        assert all(gap.is_torn for gap in again.found.gaps)
        assert not again.found.incomplete
        for other in journals(tmp_path)[1:]:
            other.unlink()
    assert len(world.topics) == 100


def test_damage_in_the_middle_stops_ordered_tables_and_no_others(tmp_path: Path) -> None:
    log = new_log()
    filled(tmp_path, log, sizes=LARGE)
    (path,) = journals(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 255
    path.write_bytes(data)

    again = World(tmp_path, log, sizes=LARGE)

    assert len(again.topics) + len(again.offsets) == 199
    assert 30 < len(again.deliveries) < 70
    assert [gap.is_torn for gap in again.found.gaps] == [False]
    # New snapshots are made at once: the next start misses nothing.
    again.turns.run_all()
    assert again.rows() == World(tmp_path, log, sizes=LARGE).rows()
    assert {int(one.name.split("-")[1]) for one in (tmp_path / "tables").glob("snapshot-*")} == {
        1, 2, 3, 4,
    }  # fmt: skip


def test_a_damaged_snapshot_counts_for_nothing(tmp_path: Path) -> None:
    log = new_log()
    world = filled(tmp_path, log)
    world.turns.run_all()
    (path,) = (tmp_path / "tables").glob("snapshot-3-*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)

    again = World(tmp_path, log)

    assert len(again.topics) == 100
    assert len(again.deliveries) == 0
    assert 3 in again.found.incomplete


def test_what_is_about_records_that_the_log_lost_does_not_count(tmp_path: Path) -> None:
    log = new_log()
    world = World(tmp_path, log)
    world.offsets.put("group", "queue", 5)
    world.journal.write(everything=True)
    known = log.end
    log.grow()
    world.offsets.put("group", "queue", 9)
    world.topics.put("", "new", {})
    world.journal.write(everything=True)
    log.data = log.data[:known]

    again = World(tmp_path, log)

    assert again.offsets.get("group", "queue") == 5
    assert again.topics.get("", "new") == {}
    # The log grows beyond the lost records with others, before a kill.
    for _ in range(9):
        log.grow()
    assert World(tmp_path, log).offsets.get("group", "queue") == 5


def test_a_table_of_a_process_counts_until_the_machine_restarts(tmp_path: Path) -> None:
    log = new_log()
    first = World(tmp_path, log)
    first.progress.put("slot", "1", 1)
    first.turns.run_all()
    second = World(tmp_path, log)
    assert second.progress.get("slot", "1") == 1
    second.progress.put("slot", "2", 2)
    second.turns.run_all()

    third = World(tmp_path, log, boot_id=b"B" * 16)
    assert len(third.progress) == 0
    third.progress.put("slot", "3", 3)
    third.turns.run_all()

    assert World(tmp_path, log, boot_id=b"B" * 16).rows()[3] == {("slot", "3"): 3}


def test_a_journal_of_another_log_counts_for_nothing(tmp_path: Path) -> None:
    filled(tmp_path, new_log(1))

    again = World(tmp_path, new_log(2))

    assert again.found.is_foreign
    assert again.rows() == [{}, {}, {}, {}]
    again.topics.put("", "own", 1)
    assert World(tmp_path, again.log).rows()[0] == {("", "own"): 1}


def test_changes_together_are_one_frame_or_none(tmp_path: Path) -> None:
    log, disk = new_log(), FaultyDisk()
    world = World(tmp_path, log, disk=disk)
    world.topics.put("", "T", 1, version=TableVersion(1, 0, 5))
    world.offsets.put("T", "0", 7)
    gone: AnyChange = TableChange(DROP, "", "T", None, TableVersion(2, 0, 6))
    world.journal.change_now([(world.topics, gone), (world.offsets, TableChange(CLEAR, "T"))])
    assert world.topics.get("", "T") is None
    assert World(tmp_path, log).rows() == [{}, {}, {}, {}]

    world = World(tmp_path, log, disk=disk)
    disk.run_full("tables")
    with pytest.raises(StoreFull):
        put_together(world)
    assert world.rows() == [{}, {}, {}, {}]
    assert world.topics.version == TableVersion(2, 0, 6)
    disk.heal()
    world.topics.put("", "V", 1)
    assert World(tmp_path, log).rows()[0] == {("", "V"): 1}
    assert World(tmp_path, log).topics.version == TableVersion(2, 0, 6)


def put_together(world: World) -> None:
    made: AnyChange = TableChange(PUT, "", "U", 1, TableVersion(3, 0, 7))
    world.journal.change_now([(world.topics, made), (world.offsets, TableChange(PUT, "U", "0", 7))])


def test_a_full_disk_refuses_some_changes_and_keeps_others_in_memory(tmp_path: Path) -> None:
    log, disk = new_log(), FaultyDisk()
    world = World(tmp_path, log, disk=disk)
    world.deliveries.put("queue", "1", "in flight")
    world.turns.run_all()
    disk.run_full("tables")
    with pytest.raises(StoreFull):
        world.topics.put("", "T", 1)
    world.deliveries.put("queue", "2", "in flight")
    world.turns.run_all()
    told: list[StoreError | None] = []
    world.journal.when_durable(told.append)
    assert isinstance(told[0], StoreFull)
    disk.heal()
    world.deliveries.drop("queue", "1")
    world.turns.run_all()

    # Nothing of what came behind the loss counts before there is a new snapshot.
    assert World(tmp_path, log).rows()[2] == {("queue", "1"): "in flight"}


async def test_a_journal_that_could_not_be_written_begins_again(tmp_path: Path) -> None:
    log, disk = new_log(), FaultyDisk()
    world = World(tmp_path, log, disk=disk)
    world.deliveries.put("queue", "1", "in flight")
    disk.run_full("tables")
    world.turns.run_all()
    world.offsets.put("group", "0", 5)
    disk.heal()
    await world.clock.advance(RETRY_MS)
    world.journal.tick()
    world.turns.run_all()
    world.deliveries.put("queue", "2", "in flight")
    world.turns.run_all()

    await world.clock.advance(LAZY_MS)
    world.journal.tick()
    told: list[StoreError | None] = []
    world.journal.when_durable(told.append)
    assert told == [None]
    again = World(tmp_path, log)
    assert again.rows() == world.rows()
    assert not again.found.incomplete


def lazy_table(codec: Any = None) -> JsonTable:
    return JournalTable(2, "offsets", codec or JsonCodec(), Durability.LAZY)


class Lost:
    """A journal of one table with an entry that a full disk did not take; the disk has room again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk, self.clock, self.turns = FaultyDisk(), VirtualClock(), Turns()
        self.table = lazy_table()
        self.journal = opened_journal(path, self.table, disk=self.disk, clock=self.clock)
        self.journal.start(self.turns.soon)
        self.turns.run_all()
        self.disk.run_full("tables")
        self.table.put("group", "0", 5, is_urgent=True)
        self.turns.run_all()
        self.disk.heal()
        self.told: list[StoreError | None] = []

    async def retry(self) -> None:
        """Begin the snapshot that has the entry, and wait for it."""
        await self.clock.advance(RETRY_MS)
        self.journal.tick()
        self.table.when_durable(self.told.append)
        assert self.on_disk() is None

    def on_disk(self) -> Any:
        found = lazy_table()
        read_entries(OsDisk(), str(self.path / "pocketmq" / "tables"), [found])
        return found.get("group", "0")


async def test_after_a_full_disk_entries_are_durable_once_a_snapshot_has_them(
    tmp_path: Path,
) -> None:
    lost = Lost(tmp_path)
    await lost.retry()
    assert lost.told == []
    lost.turns.run_all()
    assert lost.told == [None]
    assert lost.on_disk() == 5


async def test_who_waits_for_a_snapshot_is_told_that_it_failed(tmp_path: Path) -> None:
    lost = Lost(tmp_path)
    await lost.retry()
    lost.disk.run_full("tables")
    lost.turns.run_all()
    assert len(lost.told) == 1
    assert isinstance(lost.told[0], StoreFull)


async def test_changes_while_the_journal_cannot_be_written_wait_for_the_snapshot_as_well(
    tmp_path: Path,
) -> None:
    lost = Lost(tmp_path)
    lost.table.put("group", "1", 6, is_urgent=True)
    lost.turns.run_all()
    await lost.retry()
    lost.turns.run_all()
    assert lost.told == [None]
    assert opened_entries(tmp_path) == {("group", "0"): 5, ("group", "1"): 6}


async def test_a_stop_without_the_snapshot_is_no_clean_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = Lost(tmp_path)
    await lost.retry()
    lost.journal.close()
    assert isinstance(lost.told[0], StoreFull)
    assert "tables=offsets" in caplog.text
    found = read_tables(
        OsDisk(), str(tmp_path / "pocketmq" / "tables"), [lazy_table()], new_log(), b""
    )
    assert not found.ended


@pytest.mark.parametrize("value", ["\ud800", object()])
async def test_an_entry_that_cannot_be_encoded_is_left_out_alone(
    tmp_path: Path, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log()
    world = World(tmp_path, log)
    world.offsets.put("group", "0", 1)
    world.offsets.put("group", "1", value)
    world.offsets.put("group", "k" * 70_000, 2)
    world.deliveries.put("queue", "1", "in flight")
    told: list[StoreError | None] = []
    world.journal.when_durable(told.append)
    assert told == [None]
    for number in range(200):  # Until all tables have snapshots.
        world.offsets.put("group", "2", "x" * 100 + str(number))
        world.deliveries.put("queue", "2", "x" * 100 + str(number))
        world.journal.write(everything=True)
        world.journal.tick()
        world.turns.run_all()
    assert list((tmp_path / "tables").glob("snapshot-2-*"))
    again = World(tmp_path, log)
    assert set(again.offsets.of_scope("group")) == {"0", "2"}
    assert again.rows()[2] == world.rows()[2]
    assert "entry of a table not written table=offsets" in caplog.text


def test_changes_together_that_cannot_be_encoded_change_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, new_log())
    world.offsets.put("group", "0", 1)
    with pytest.raises(UnicodeEncodeError):
        put_topics(world, 1, "\ud800")
    assert world.rows()[0] == {}
    assert world.offsets.get("group", "0") == 1


def put_topics(world: World, *values: object) -> None:
    world.topics.change_all(
        [TableChange(PUT, "", f"T{number}", value) for number, value in enumerate(values)]
    )


def opened_entries(path: Path) -> dict[tuple[str, str], Any]:
    table = lazy_table()
    opened_journal(path, table)
    return {(scope, key): value for scope, key, value in table.items()}


def test_a_sync_that_fails_fails_the_store(tmp_path: Path) -> None:
    disk = FaultyDisk()
    world = World(tmp_path, new_log(), disk=disk)
    world.topics.put("", "T", 1)
    disk.break_syncs("journal")
    told: list[StoreError | None] = []
    world.journal.when_durable(told.append)
    assert isinstance(told[0], DiskFailure)
    assert world.failure is told[0]
    disk.heal()
    with pytest.raises(DiskFailure):
        world.topics.put("", "U", 1)


async def test_a_lazy_table_writes_one_entry_for_all_changes_of_a_key(tmp_path: Path) -> None:
    log = new_log()
    world = World(tmp_path, log, sizes=LARGE)
    for number in range(5_000):
        world.offsets.put("group", f"{number % 3_000}", number)
    world.turns.run_all()
    assert World(tmp_path, log).rows()[1] == {}
    await world.clock.advance(LAZY_MS)
    world.journal.tick()
    assert len(World(tmp_path, log, sizes=LARGE).offsets) == 2_000
    world.turns.run_all()
    assert World(tmp_path, log).rows()[1] == world.rows()[1]
    # Going back does not wait.
    world.offsets.put("group", "0", 1, is_urgent=True)
    world.turns.run_all()
    assert World(tmp_path, log).offsets.get("group", "0") == 1


def test_a_clean_stop_writes_lazy_tables_as_well(tmp_path: Path) -> None:
    log = new_log()
    world = World(tmp_path, log)
    world.offsets.put("group", "0", 5)
    world.turns.run_all()
    world.journal.close()

    assert World(tmp_path, log).offsets.get("group", "0") == 5


def test_a_table_kept_elsewhere_is_snapshotted_from_there(tmp_path: Path) -> None:
    log = new_log()
    world = World(tmp_path, log)
    elsewhere = {"k": 0}
    world.deliveries.keep_elsewhere(lambda: [("s", key, n) for key, n in elsewhere.items()])
    for number in range(1, 600):
        elsewhere["k"] = number
        world.deliveries.put("s", "k", number)
        world.turns.run()
    world.turns.run_all()
    assert len(world.deliveries) == 0
    assert list((tmp_path / "tables").glob("snapshot-3-*"))
    assert World(tmp_path, log).rows()[2] == {("s", "k"): 599}


def test_a_file_that_is_full_while_it_is_synced_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, FakeLog(random.Random(1)))
    jobs: list[FlushJob] = []
    monkeypatch.setattr(Flusher, "submit", lambda self, job: jobs.append(job))
    world.topics.put("", "T", 1)
    world.journal.when_durable(lambda error: None)
    first = journal_path(world.folder, world.journal._number)
    world.topics.put("", "long", "x" * world.journal._file.size)  # type: ignore[union-attr]
    assert journal_path(world.folder, world.journal._number) != first
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}"))
    )

    sync_all(jobs[0].parts)

    assert first in synced


def test_a_busy_table_does_not_keep_the_files_of_others(tmp_path: Path) -> None:
    log = new_log()
    world = World(tmp_path, log)
    for table in world.tables:
        table.put("s", "k", "quiet")
    for number in range(5_000):
        world.deliveries.put("s", f"{number % 50}", number)
        world.turns.run()
    world.turns.run_all()
    files = TableFiles.of(OsDisk(), world.folder)
    assert len(files.journals) * 2_048 <= 3 * 16_384
    assert World(tmp_path, log).rows() == world.rows()


def test_every_journal_has_the_names_of_its_tables(tmp_path: Path) -> None:
    log = new_log()
    world = World(tmp_path, log)
    for number in range(500):
        world.topics.put("s", f"{number % 20}", number)
        world.turns.run()
    world.turns.run_all()
    assert World(tmp_path, log).found.names[3] == "deliveries"


def test_tools_read_tables_that_they_do_not_know(tmp_path: Path) -> None:
    world = World(tmp_path, new_log())
    world.topics.put("scope", "key", "value", version=TableVersion(3, 1, 9))
    world.journal.close()
    table = raw_table(1, "topics")
    found = read_tables(OsDisk(), world.folder, [table])
    assert found.ended
    assert table.get(b"scope", b"key") == b'"value"'
    assert table.version == TableVersion(3, 1, 9)
    assert found.clock is not None


@pytest.mark.parametrize("times", [1, 2])
def test_older_files_that_cannot_be_listed_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    log = new_log()
    World(tmp_path, log).topics.put("", "T", 1)
    disk = OsDisk()
    listed: list[str] = []

    def failing(folder: str) -> list[Entry]:
        listed.append(folder)
        if len(listed) == times:
            raise OSError(errno.EIO, "Input/output error", folder)
        return OsDisk().list(folder)

    monkeypatch.setattr(disk, "list", failing)

    World(tmp_path, log, disk=disk)

    assert len(listed) >= times
    assert "Input/output error" in caplog.text


class ListedBefore(OsDisk):
    """A disk whose first TIMES lists of a folder are older than HAPPENS, which changes the folder."""

    def __init__(self, happens: Callable[[], None], times: int) -> None:
        super().__init__()
        self._happens = happens
        self.left = times

    def list(self, folder: str) -> list[Entry]:
        found = super().list(folder)
        if self.left:
            self.left -= 1
            self._happens()
        return found


@pytest.mark.parametrize("times", [1, 2, 3])
def test_tools_read_again_when_a_broker_deletes_files_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    world = World(tmp_path, new_log())

    def replace_files() -> None:
        for number in range(300):
            world.topics.put("", f"T{number % 7}", number)
            world.turns.run_all()

    replace_files()
    table: JsonTable = JournalTable(1, "topics", JsonCodec(), Durability.BEFORE_REPLY)
    disk = ListedBefore(replace_files, times)

    read_entries(disk, world.folder, [table])

    assert disk.left == 0
    is_given_up = times == 3
    assert ("tables may lack entries" in caplog.text) == is_given_up
    if not is_given_up:
        assert list(table.items()) == list(world.topics.items())


def test_bytes_that_no_broker_wrote_are_damage_and_no_crash(tmp_path: Path) -> None:
    log = new_log()
    filled(tmp_path, log)
    wrong = [
        frame(1, b"\1"),
        frame(1, section(1, b"\1\2\3")),
        frame(1, section(1, entry(1, b"k", b"not json"))),
        frame(1, section(1, entry(1, b"\xff", b"1"))),
        frame(1, section(0, entry(10, b"", b"short"))),
        b"garbage",
    ]
    for number, data in enumerate(wrong, start=500):
        (tmp_path / "tables" / f"journal-{number:08d}").write_bytes(head(1, number) + data)
    (tmp_path / "tables" / "journal-00000900").write_bytes(b"no head")
    (tmp_path / "tables" / "snapshot-1-00000901").write_bytes(b"no head")
    again = World(tmp_path, log)
    assert 1 in again.found.incomplete


@pytest.mark.parametrize("seed", range(3))
def test_any_damage_is_survived(tmp_path: Path, seed: int) -> None:
    rng, log = random.Random(seed), new_log()
    world = filled(tmp_path, log)
    world.turns.run_all()
    for _ in range(40):
        path = rng.choice(sorted((tmp_path / "tables").iterdir()))
        data = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)
        world = World(tmp_path, log)
        world.topics.put("s", "k", 1)
        world.turns.run_all()
        assert world.topics.get("s", "k") == 1


def test_names_that_no_broker_gave_are_left_alone(tmp_path: Path) -> None:
    log = new_log()
    filled(tmp_path, log).journal.close()
    folder = tmp_path / "tables"
    (folder / "journal-00000099").mkdir()
    (folder / "snapshot-1-00000001.tmp").mkdir()
    for name in (f"journal-{1 << 64}", f"snapshot-1-{'9' * 30}", f"snapshot-{'9' * 30}-1"):
        (folder / name).write_bytes(b"")

    again = World(tmp_path, log)
    again.topics.put("s", "k", 1)
    again.journal.close()

    assert World(tmp_path, log).topics.get("s", "k") == 1


def snapshotted(path: Path, log: FakeLog) -> World:
    """Return a filled world that has snapshots, and journals behind them."""
    world = filled(path, log)
    world.turns.run_all()
    for number in range(20):
        for table in world.tables:
            table.put("scope", f"{number}", -number)
        world.journal.write(everything=True)
    return world


def empty_files(files: list[Path]) -> None:
    for path in files:
        path.write_bytes(b"")


def delete_first(files: list[Path]) -> None:
    files[0].unlink()


def swap(files: list[Path]) -> None:
    first, last = files[0].read_bytes(), files[-1].read_bytes()
    files[0].write_bytes(last)
    files[-1].write_bytes(first)


def damage_first_frame(files: list[Path]) -> None:
    data = bytearray(files[0].read_bytes())
    data[40] ^= 1
    files[0].write_bytes(data)


@pytest.mark.parametrize("kind", ["journal", "snapshot"])
@pytest.mark.parametrize("damage", [empty_files, delete_first, swap, damage_first_frame])
def test_a_start_names_the_tables_that_lack_something(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, damage: Damage
) -> None:
    log = new_log()
    snapshotted(tmp_path, log).journal.close()
    damage(sorted((tmp_path / "tables").glob(f"{kind}-*")))

    again = World(tmp_path, log)

    assert again.found.incomplete
    assert "tables incomplete" in caplog.text


def test_a_copy_of_an_older_file_changes_nothing(tmp_path: Path) -> None:
    log = new_log()
    world = filled(tmp_path, log)
    world.journal.close()
    first, last = journals(tmp_path)[0], journals(tmp_path)[-1]
    number = int(last.name.rpartition("-")[2])
    last.with_name(f"journal-{number + 1:08d}").write_bytes(first.read_bytes())

    again = World(tmp_path, log)

    assert again.rows() == world.rows()
    assert [gap.problem for gap in again.found.gaps] == [
        f"copy of journal {int(first.name.rpartition('-')[2])}"
    ]


class UnreadableDisk(FaultyDisk):
    """A disk on which nobody may read PART."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part

    def read(self, path: str) -> bytes:
        if self.part in path:
            raise PermissionError(13, "Permission denied", path)
        return super().read(path)

    def list(self, folder: str) -> list[Entry]:
        if self.part in f"{folder}/":
            raise PermissionError(13, "Permission denied", folder)
        return super().list(folder)


@pytest.mark.parametrize("part", ["journal-", "snapshot-", "tables/"])
def test_files_that_cannot_be_read_do_not_end_a_start(tmp_path: Path, part: str) -> None:
    log = new_log()
    snapshotted(tmp_path, log).journal.close()

    again = World(tmp_path, log, disk=UnreadableDisk(part))

    assert "Permission denied" in again.found.gaps[0].problem


def test_a_table_of_a_later_version_lacks_nothing(tmp_path: Path) -> None:
    log = new_log()
    snapshotted(tmp_path, log).journal.close()
    assert int(journals(tmp_path)[0].name.rpartition("-")[2]) > 1
    later = World(tmp_path, log, open_now=False)
    later.journal.add(JournalTable(9, "later", JsonCodec(), Durability.LAZY, ordered=True))
    later.open()
    assert later.found.incomplete == set()


# --- instants, and changes of one turn


@dataclass
class TwoClocks:
    """A process with a table of instants, whose own clock begins at START_MS when the wall clock shows UNIX_MS."""

    path: Path
    start_ms: int
    unix_at_start_ms: int
    later_ms: int = 0
    turns: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        self.table: JournalTable[str, str, int] = JournalTable(
            3,
            "instants",
            JsonCodec(),
            Durability.WITH_LOG,
            ordered=True,
            shifted=lambda value, ms: value + ms,
        )
        self.quiet: JsonTable = JournalTable(1, "quiet", JsonCodec(), Durability.WITH_LOG)
        self.disk = FaultyDisk()
        parts = JournalParts(
            disk=self.disk,
            folder=f"{self.path}/tables",
            log=new_log(),
            flusher=Flusher("not started: syncs at once"),
            clock=VirtualClock(),
            entry_clock=self,
            call_owner=lambda function: function(),
            failed=lambda error: None,
        )
        self.journal = TableJournal(parts, SMALL)
        self.journal.add(self.table)
        self.journal.add(self.quiet)
        self.journal.open()
        self.journal.start(self.turns.soon)

    def now_ms(self) -> int:
        return self.start_ms + self.later_ms

    def unix_ms(self) -> int:
        return self.unix_at_start_ms + self.later_ms


class TestInstants:
    @pytest.mark.parametrize("clean", [True, False])
    @pytest.mark.parametrize("settled", [True, False], ids=["snapshot", "no snapshot"])
    def test_instants_become_those_of_the_process_that_reads_them(
        self, tmp_path: Path, clean: bool, settled: bool
    ) -> None:
        unix_ms = 1_000_000
        due_unix_ms = unix_ms + 60_000
        process = TwoClocks(tmp_path, 500, unix_ms)
        process.table.put("s", "first", process.start_ms + 60_000)
        for start_ms in (90_000, 3, 7_000):
            (process.turns.run_all if settled else process.turns.run)()
            process.later_ms = 1_000
            process.journal.tick()
            if clean:
                process.journal.close()
            unix_ms += 5_000
            process = TwoClocks(tmp_path, start_ms, unix_ms)
            assert process.table.get("s", "first") == start_ms + due_unix_ms - unix_ms
            process.table.put("s", f"{start_ms}", start_ms + 1)
        assert process.table.of_scope("s").keys() == {"first", "90000", "3", "7000"}

    def test_no_time_has_passed_if_the_wall_clock_was_set_back(self, tmp_path: Path) -> None:
        process = TwoClocks(tmp_path, 500, 1_000_000)
        process.table.put("s", "k", 800)
        process.journal.close()
        assert TwoClocks(tmp_path, 70_000, 400_000).table.get("s", "k") == 70_300

    def test_tables_without_instants_stay_as_they_are(self, tmp_path: Path) -> None:
        process = TwoClocks(tmp_path, 500, 1_000_000)
        process.quiet.put("s", "k", 800)
        process.journal.close()
        assert TwoClocks(tmp_path, 70_000, 1_000_000).quiet.get("s", "k") == 800

    def test_instants_are_right_if_the_snapshot_of_the_start_fails(self, tmp_path: Path) -> None:
        process = TwoClocks(tmp_path, 500, 1_000_000)
        process.table.put("s", "k", 800)
        process.turns.run_all()
        process.journal.close()
        process = TwoClocks(tmp_path, 70_000, 1_000_000)
        process.disk.run_full("snapshot-3")
        process.turns.run_all()
        assert TwoClocks(tmp_path, 9_000, 1_000_000).table.get("s", "k") == 9_300


class TestOneTurn:
    def test_changes_together_are_one_frame_in_their_order(self, tmp_path: Path) -> None:
        world = World(tmp_path, new_log())
        world.turns.run_all()
        before = world.journal._sequence
        changes: list[AnyChange] = [TableChange(PUT, "s", f"{n}", n) for n in range(3)]
        world.deliveries.change_all([*changes, TableChange(DROP, "s", "1")])
        assert world.rows()[2] == {("s", "0"): 0, ("s", "2"): 2}
        world.turns.run()
        assert world.journal._sequence == before + 1
        assert World(tmp_path, world.log).rows()[2] == world.rows()[2]

    def test_who_waits_for_the_write_is_called_at_the_end_of_the_turn(self, tmp_path: Path) -> None:
        world = World(tmp_path, new_log())
        world.turns.run_all()
        told: list[object] = []
        world.journal.when_written(world.deliveries, told.append)
        assert told == [None], "nothing is to be written"
        world.deliveries.put("s", "k", 1)
        world.journal.when_written(world.deliveries, told.append)
        world.journal.when_written(world.deliveries, told.append)
        assert told == [None]
        world.turns.run()
        assert told == [None] * 3
        assert World(tmp_path, world.log).deliveries.get("s", "k") == 1

    def test_who_waits_for_the_device_does_not_wait_for_lazy_tables(self, tmp_path: Path) -> None:
        world = World(tmp_path, new_log())
        world.turns.run_all()
        world.log.grow()
        world.deliveries.put("s", "k", 1)
        world.offsets.put("s", "k", 1)
        told: list[object] = []
        world.journal.when_synced(told.append)
        assert told == [None]
        assert world.log.flushed == world.log.end
        again = World(tmp_path, world.log)
        assert (again.deliveries.get("s", "k"), again.offsets.get("s", "k")) == (1, None)

    async def test_who_waits_is_told_while_the_journal_cannot_be_written(
        self, tmp_path: Path
    ) -> None:
        disk = FaultyDisk()
        world = World(tmp_path, new_log(), disk=disk)
        world.turns.run_all()
        disk.run_full("/tables/")
        told: list[object] = []
        world.deliveries.put("s", "k", 1)
        world.journal.when_synced(told.append)
        world.deliveries.put("s", "k", 2)
        world.journal.when_written(world.deliveries, told.append)
        world.turns.run_all()
        assert told == [None, None]
        # Then the next snapshot makes it durable, and that is waited for.
        disk.heal()
        await world.clock.advance(RETRY_MS)
        world.journal.tick()
        world.journal.when_synced(told.append)
        assert told == [None, None]
        world.turns.run_all()
        assert told == [None] * 3
        assert World(tmp_path, world.log).deliveries.get("s", "k") == 2

    def test_nothing_follows_the_end(self, tmp_path: Path) -> None:
        world = World(tmp_path, new_log())
        world.turns.run_all()
        world.deliveries.change_all([TableChange(PUT, "s", f"{n}", n) for n in range(300)])
        world.journal.close()
        files = TableFiles.of(OsDisk(), world.folder).all()
        world.deliveries.put("s", "k", 1)
        world.journal.sync()
        world.turns.run_all()
        world.journal.tick()
        assert TableFiles.of(OsDisk(), world.folder).all() == files
        assert World(tmp_path, world.log).found.ended


def test_what_was_written_with_a_part_of_the_log_that_is_damaged_never_counts(
    tmp_path: Path,
) -> None:
    log = new_log()
    world = World(tmp_path, log)
    world.deliveries.put("s", "before", 1)
    world.turns.run()
    damaged_at = log.end
    log.grow()
    world.deliveries.put("s", "behind", 1)
    world.turns.run()

    # The log continues behind the damage, whose bytes are others now.
    note_loss(OsDisk(), world.folder, damaged_at)
    log.data = log.data[:damaged_at] + bytes(log.end - damaged_at)
    assert World(tmp_path, log).rows()[2] == {("s", "before"): 1}
    assert World(tmp_path, log).rows()[2] == {("s", "before"): 1}


@pytest.mark.parametrize("clean", [True, False])
def test_a_loss_is_noted_twice_and_the_kind_of_stop_stays_known(
    tmp_path: Path, clean: bool
) -> None:
    log = new_log()
    world = World(tmp_path, log)
    world.topics.put("", "T", 1)
    if clean:
        world.journal.close()
    note_loss(OsDisk(), world.folder, log.end)
    note_loss(OsDisk(), world.folder, log.end - 1)

    again = World(tmp_path, log)
    assert again.found.ended == clean
    assert not again.found.gaps
    assert not again.found.incomplete
    assert again.rows()[0] == {("", "T"): 1}


def test_a_loss_is_noted_only_where_there_are_tables(tmp_path: Path) -> None:
    note_loss(OsDisk(), str(tmp_path / "tables"), 7)
    assert not (tmp_path / "tables").exists()
