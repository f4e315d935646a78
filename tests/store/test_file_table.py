"""A table whose changes the journal has until its file is written: what a change costs, and what any end leaves."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketmq.proto.errors import CorruptState, DiskFailure, StoreError, StoreFull
from pocketmq.store.disk import Buffer, Disk
from pocketmq.store.file_changes import WRITTEN, change_table, stored_changes
from pocketmq.store.file_table import FileTable
from pocketmq.store.flush import Flusher
from pocketmq.store.format.state_tables import (
    GROUPS,
    TOPICS,
    DataVersion,
    GroupConfig,
    GroupTable,
    TopicConfig,
    TopicTable,
    parse_topics,
    render_groups,
    render_topics,
)
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.store.table_journal import JournalSizes

from ..fakes import Crash, FaultyDisk, RecordingDisk
from ..runs import Device
from .table_worlds import SMALL, Turns, opened_journal


class CountingDisk(OsDisk):
    """Counts the bytes of whole files, and fails to write them if told."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.fails = False

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        if self.fails:
            raise DiskFailure(f"cannot write {path}: no", path=path, reason="no")
        self.bytes += len(data)
        super().write_atomically(path, data, backup=backup)


class Room:
    """A table of topics in FOLDER, as the broker starts it; its thread's work is done when `tick` says so."""

    def __init__(
        self,
        folder: Path,
        disk: Disk | None = None,
        *,
        started: bool = True,
        flusher: Flusher | None = None,
        sizes: JournalSizes = SMALL,
    ) -> None:
        self.disk = disk or OsDisk()
        self.file = StateFile(self.disk, str(folder), "topics.json")
        self.now_ms = 1_000
        self.changes = change_table(TOPICS)
        self.journal = opened_journal(
            folder, self.changes, sizes=sizes, disk=self.disk, flusher=flusher
        )
        self.turns = Turns()
        self.journal.start(self.turns.soon)
        self.table = FileTable(self.file, TOPICS, self._now, changes=self.changes)
        if started:
            self.table.start(Flusher("at once"), lambda function: function())

    def _now(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def put(self, name: str, queues: int = 4) -> None:
        self.table.put(name, TopicConfig(name=name, read_queues=queues, write_queues=queues))


def names(table: FileTable[TopicConfig]) -> dict[str, int]:
    return {name: topic.read_queues for name, topic in table.entries.items()}


def in_file(folder: Path) -> dict[str, int]:
    loaded = StateFile(OsDisk(), str(folder), "topics.json").load(parse_topics)
    return {
        name: topic.read_queues for name, topic in (loaded.value or TopicTable()).topics.items()
    }


def change_rows(folder: Path) -> dict[str, list[str]]:
    """Return the names in each scope of the changes in the journal."""
    table = stored_changes(OsDisk(), str(folder), TOPICS)
    return {scope: list(table.of_scope(scope)) for scope in table.scopes() if scope != WRITTEN}


def journal_files(folder: Path) -> list[Path]:
    return sorted((folder / "pocketmq/tables").glob("*"))


@pytest.mark.long
def test_a_change_costs_a_record_however_many_entries_there_are(tmp_path: Path) -> None:
    disk = CountingDisk()
    room = Room(tmp_path, disk)
    for number in range(2_000):
        room.put(f"T{number}")
    assert disk.bytes == 0
    assert room.journal._written < 2_000 * 600


def test_what_was_put_and_dropped_is_there_after_a_kill(tmp_path: Path) -> None:
    room = Room(tmp_path)
    for number in range(50):
        room.put(f"T{number}")
    room.table.drop("T7")
    room.put("T8", 9)
    again = Room(tmp_path)
    assert names(again.table) == names(room.table)
    assert again.table.version == room.table.version
    again.put("more")
    assert names(Room(tmp_path).table) == names(again.table)


def test_a_tick_writes_apaches_file_and_deletes_the_changes_that_its_backup_has(
    tmp_path: Path,
) -> None:
    room = Room(tmp_path)
    room.put("A")
    assert in_file(tmp_path) == {}
    room.table.tick()
    assert in_file(tmp_path) == {"A": 4}
    assert list(change_rows(tmp_path).values()) == [["A"]]
    for turn in range(2, 5):
        room.put("A", turn)
        room.put(f"B{turn}")
        room.table.tick()
        assert list(change_rows(tmp_path).values()) == [["A", f"B{turn}"]]
    assert names(Room(tmp_path).table) == {"A": 4, "B2": 4, "B3": 4, "B4": 4}


def test_the_file_has_the_bytes_of_a_whole_rendering(tmp_path: Path) -> None:
    room = Room(tmp_path, started=False)
    for name in ("A", "%RETRY%g", "Ünder_“quote”"):
        room.put(name)
    room.table.close()
    table = TopicTable(room.table.version, room.table.entries)
    assert (tmp_path / "config/topics.json").read_text() == render_topics(table)
    room.table.drop("A")
    for name in list(room.table.entries):
        room.table.drop(name)
    room.table.close()
    assert (tmp_path / "config/topics.json").read_text() == render_topics(
        TopicTable(room.table.version)
    )


def test_groups_keep_what_is_forbidden_to_them(tmp_path: Path) -> None:
    file = StateFile(OsDisk(), str(tmp_path), "subscriptionGroup.json")
    before = GroupTable(DataVersion(3, 0, 9), {"g": GroupConfig(name="g")}, {"g": {"T": 1}})
    file.save(render_groups(before))
    table = FileTable(file, GROUPS, lambda: 77)
    table.put("h", GroupConfig(name="h", attributes={"a": "b"}))
    table.close()
    after = GroupTable(DataVersion(4, 0, 77), table.entries, {"g": {"T": 1}})
    assert (tmp_path / "config/subscriptionGroup.json").read_text() == render_groups(after)


def test_a_stop_leaves_the_whole_table(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.put("A")
    room.table.close()
    assert in_file(tmp_path) == {"A": 4}
    again = Room(tmp_path)
    (tmp_path / "config/topics.json").unlink()
    again.table.tick()
    assert in_file(tmp_path) == {}, "there is nothing to write"


def test_the_thread_that_writes_makes_the_text_of_the_moment_it_was_asked(tmp_path: Path) -> None:
    before = Room(tmp_path, started=False)
    topics = {f"T{n}": TopicConfig(name=f"T{n}") for n in range(1_200)}
    before.file.save(render_topics(TopicTable(DataVersion(1, 0, 1), topics)))
    room, saver = Room(tmp_path, started=False), Device()
    room.table.start(saver, lambda function: function())
    expected = []
    for dropped, put, queues in ((None, "new", 4), ("T7", "T8", 9), ("new", "new", 2)):
        if dropped is not None:
            room.table.drop(dropped)
        room.put(put, queues)
        expected.append(TopicTable(room.table.version, dict(room.table.entries)))
        room.table.tick()
        room.put("meanwhile", len(expected))
        saver.do_next()
        assert saver.jobs == []

        text = (tmp_path / "config/topics.json").read_text()
        assert text == render_topics(expected[-1])


def test_the_answer_waits_for_the_sync_of_its_change(tmp_path: Path) -> None:
    device = Device()
    room = Room(tmp_path, flusher=device)
    told: list[StoreError | None] = []
    room.put("A")
    room.table.when_safe(told.append)
    assert told == []
    device.do_next()
    assert told == [None]
    room.table.when_safe(told.append)
    assert told == [None, None], "nothing is to be synced"


def test_a_full_writing_that_fails_keeps_the_changes_and_is_tried_again(tmp_path: Path) -> None:
    disk = CountingDisk()
    room = Room(tmp_path, disk)
    room.put("A")
    disk.fails = True
    room.table.tick()
    assert names(Room(tmp_path).table) == {"A": 4}
    disk.fails = False
    room.table.tick()
    assert in_file(tmp_path) == {"A": 4}


def test_a_change_that_is_not_written_does_not_count(tmp_path: Path) -> None:
    disk = FaultyDisk()
    room = Room(tmp_path, disk)
    room.put("A")
    disk.run_full("tables")
    tries: list[Callable[[], None]] = [
        lambda: room.put("B"),
        lambda: room.put("A", 9),
        lambda: room.table.drop("A"),
        lambda: room.table.put_all({"C": TopicConfig(name="C"), "A": None}),
    ]
    room.journal._leave_file()  # The present file has space.
    for change in tries:
        version = room.table.version
        with pytest.raises(StoreFull):
            change()
        assert names(room.table) == {"A": 4}
        assert room.table.version == version
    disk.heal()
    assert names(Room(tmp_path).table) == {"A": 4}


def test_what_is_put_late_is_in_the_next_file(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.put("A")
    room.table.tick()
    room.table.put_late("L", TopicConfig(name="L", read_queues=7))
    assert names(Room(tmp_path).table) == {"A": 4}
    room.table.tick()
    assert in_file(tmp_path) == {"A": 4, "L": 7}
    room.put("L", 8)
    room.table.tick()
    assert in_file(tmp_path) == names(Room(tmp_path).table) == {"A": 4, "L": 8}


def test_of_a_file_that_another_broker_wrote_everything_counts_and_new_names_are_added(
    tmp_path: Path,
) -> None:
    room = Room(tmp_path)
    for name in ("A", "B", "C"):
        room.put(name)
    room.table.drop("B")
    java = {"A": TopicConfig(name="A", read_queues=7), "J": TopicConfig(name="J")}
    room.file.save(render_topics(TopicTable(DataVersion(1, 0, 99_999), java)))
    assert names(Room(tmp_path).table) == {"A": 7, "J": 16, "C": 4}


def test_a_file_that_another_broker_wrote_after_a_clean_stop_is_used_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room = Room(tmp_path)
    for name in "AB":
        room.put(name)
        room.table.tick()
    room.table.close()
    topics = {"B": TopicConfig(name="B", read_queues=7)}
    room.file.save(render_topics(TopicTable(DataVersion(9, 0, 1_234), topics)))

    again = Room(tmp_path)

    assert names(again.table) == {"B": 7}
    assert again.table.version == DataVersion(9, 0, 1_234)
    assert "another broker" not in caplog.text
    again.put("C")
    assert names(Room(tmp_path).table) == {"B": 7, "C": 4}


def test_without_the_journal_the_file_counts(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.put("A")
    room.table.tick()
    room.put("B")
    for path in journal_files(tmp_path):
        path.unlink()
    assert names(Room(tmp_path).table) == {"A": 4}


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_changes_writings_cuts_and_kills_loses_nothing_that_was_written(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    room = Room(tmp_path)
    for _ in range(60):
        match chance.randrange(9):
            case 0:
                room.table.tick()
            case 1:
                room.table.drop(f"T{chance.randrange(9)}")
            case 2:  # A kill, which tears what was not answered.
                assert room.journal._file is not None
                room.journal._file.write(room.journal._at, chance.randbytes(20))
                expected = names(room.table)
                room = Room(tmp_path)
                assert names(room.table) == expected
            case 3:
                room.table.close()
                room = Room(tmp_path)
            case 4:
                room.turns.run()
            case _:
                room.put(f"T{chance.randrange(9)}", chance.randrange(1, 100))
    expected, version = names(room.table), room.table.version
    again = Room(tmp_path)
    assert (names(again.table), again.table.version) == (expected, version)


@pytest.mark.parametrize("seed", range(20))
def test_power_cuts_lose_nothing_that_was_answered(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    home = tmp_path / "0"
    home.mkdir()
    expected: dict[str, int] = {}
    for round_ in range(1, 8):
        disk = RecordingDisk(str(home), seed)
        disk.crash_after = chance.randrange(1, 150)
        tried = expected
        try:
            room = Room(home, disk)
            assert names(room.table) == expected
            while True:
                match chance.randrange(9):
                    case 0:
                        room.table.tick()
                    case 1 | 2:
                        room.turns.run()
                    case 3:
                        name = f"T{chance.randrange(9)}"
                        tried = {one: n for one, n in expected.items() if one != name}
                        room.table.drop(name)
                    case _:
                        name, queues = f"T{chance.randrange(9)}", chance.randrange(1, 100)
                        tried = {**expected, name: queues}
                        room.put(name, queues)
                expected = tried
        except Crash:
            home = tmp_path / f"{round_}"
            disk.rebuild(str(home))
        found = names(Room(home).table)
        assert found in (expected, tried)
        expected = found


@pytest.mark.long
def test_many_changes_are_written_at_once_and_in_their_order(tmp_path: Path) -> None:
    room = Room(tmp_path, sizes=JournalSizes())
    room.put("A")
    room.put("B")
    told: list[str] = []
    room.table.on_change.append(told.append)
    many = {f"T{number}": TopicConfig(name=f"T{number}") for number in range(2_000)}
    room.table.put_all({**many, "A": None, "B": room.table.entries["B"], "never": None})
    assert told == [*many, "A"]
    assert "T7" not in in_file(tmp_path)
    assert room.journal._sequence == 4, "one frame"

    again = Room(tmp_path, started=False).table
    assert again.entries.keys() == {"B", *many}
    assert again.version == room.table.version


def tear(folder: Path, how: str) -> None:
    path = folder / "config/topics.json"
    match how:
        case "torn":
            path.write_bytes(path.read_bytes()[:-9])
        case "empty":
            path.write_bytes(b"")
        case "missing":
            path.unlink()
        case "restored":
            path.write_bytes(path.with_name("topics.json.bak").read_bytes())


@pytest.mark.parametrize("how", ["torn", "empty", "missing", "restored"])
@pytest.mark.parametrize("end", ["kill", "kill after a change", "stop", "stop after two saves"])
def test_an_older_backup_misses_nothing_that_the_broken_file_had(
    tmp_path: Path, end: str, how: str
) -> None:
    room = Room(tmp_path)
    for name in ("A", "B", "C"):
        room.put(name)
    room.table.tick()
    room.put("D")
    room.put("B", 9)
    room.table.drop("C")
    if end == "stop after two saves":
        room.table.tick()
        room.put("A", 5)
    if end.startswith("stop"):
        room.table.close()
    else:
        room.table.tick()
    if end == "kill after a change":
        room.put("E")
        room.table.drop("D")
    expected, version = names(room.table), room.table.version
    tear(tmp_path, how)

    again = Room(tmp_path)

    assert (names(again.table), again.table.version) == (expected, version)
    again.table.tick()
    assert in_file(tmp_path) == expected, "the next save makes it whole"
    again.put("F")
    assert names(Room(tmp_path).table) == {**expected, "F": 4}


def test_a_table_without_a_backup_is_made_again_once_its_broken_file_is_moved_away(
    tmp_path: Path,
) -> None:
    room = Room(tmp_path)
    room.put("A")
    room.put("B", 9)
    room.table.close()
    tear(tmp_path, "torn")
    with pytest.raises(CorruptState, match="move both away"):
        Room(tmp_path)

    (tmp_path / "config/topics.json").rename(tmp_path / "moved")

    assert names(Room(tmp_path).table) == {"A": 4, "B": 9}


def test_a_backup_of_another_broker_takes_nothing_from_the_changes_before_ours(
    tmp_path: Path,
) -> None:
    room = Room(tmp_path)
    room.put("A")
    room.table.tick()
    room.put("B")
    room.table.close()
    for counter in (50, 51):
        topics = {"J": TopicConfig(name="J"), f"J{counter}": TopicConfig(name="K")}
        room.file.save(render_topics(TopicTable(DataVersion(counter, 0, 99_999), topics)))
    assert names(Room(tmp_path).table) == {"J": 16, "J51": 16}
    tear(tmp_path, "torn")
    assert names(Room(tmp_path).table) == {"J": 16, "J50": 16}


@pytest.mark.parametrize("seed", range(20))
def test_a_broken_file_costs_nothing_after_any_order_of_changes_and_writings(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    room = Room(tmp_path)
    for name in ("A", "B"):
        room.put(name)
        room.table.tick()
    for _ in range(60):
        match chance.randrange(9):
            case 0 | 1:
                room.table.tick()
            case 2:
                room.table.drop(f"T{chance.randrange(9)}")
            case 3:
                room.table.close()
                room = Room(tmp_path)
            case 4:
                files = [tmp_path / "config" / name for name in ("topics.json", "topics.json.bak")]
                if all(file.exists() for file in files):
                    expected, version = names(room.table), room.table.version
                    tear(tmp_path, chance.choice(["torn", "empty", "missing", "restored"]))
                    room = Room(tmp_path)
                    assert names(room.table) == expected
                    assert room.table.version == version
            case _:
                room.put(f"T{chance.randrange(9)}", chance.randrange(1, 100))
