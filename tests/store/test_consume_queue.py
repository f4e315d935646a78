"""A consume queue gives back what was put into it, survives damage, and places what the log tells again."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from pocketmq.proto.errors import StoreFull, StoreMismatch
from pocketmq.store.config import StoreConfig
from pocketmq.store.consume_queue import ConsumeQueue, Placed
from pocketmq.store.consume_queues import ConsumeQueues, batch_topics
from pocketmq.store.disk import Disk
from pocketmq.store.format.state_tables import DataVersion, TopicConfig, TopicTable, render_topics
from pocketmq.store.os_disk import OsDisk

from ..fakes import FaultyDisk

FILE_SIZE = 200  # 10 entries
RECORD_SIZE = 100

Longs = NDArray[np.int64]


def opened(folder: Path, disk: Disk | None = None) -> ConsumeQueue:
    return ConsumeQueue.load(disk or OsDisk(), str(folder), FILE_SIZE, "T", 0)


def again(queue: ConsumeQueue, folder: Path, last_files: int | None = 3) -> ConsumeQueue:
    """Return the queue as the next process finds it."""
    queue.files.close()
    found = opened(folder)
    found.recover(last_files)
    return found


def columns(log_offsets: list[int]) -> tuple[Longs, Longs, Longs]:
    offsets = np.array(log_offsets, np.int64)
    return offsets, np.full(len(offsets), RECORD_SIZE), offsets * 7 - 3


def put(queue: ConsumeQueue, queue_offsets: list[int], log_offsets: list[int]) -> Placed:
    return queue.put(np.array(queue_offsets, np.int64), *columns(log_offsets))


def all_entries(queue: ConsumeQueue) -> dict[int, int]:
    """Return log offsets by queue offset, read as a consumer reads them."""
    found: dict[int, int] = {}
    at = queue.min_offset
    while at < queue.max_offset:
        log_offsets, _, _ = queue.entries(at, 7)
        found |= {at + i: offset for i, offset in enumerate(log_offsets.tolist())}
        at = at + len(log_offsets) if len(log_offsets) else queue.offset_behind_hole(at)
    return found


@dataclass
class Model:
    """A list of log offsets, from queue offset `first` on."""

    first: int = 0
    entries: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.entries)

    def by_offset(self) -> dict[int, int]:
        return {self.first + i: offset for i, offset in enumerate(self.entries)}


@pytest.mark.long
@given(
    first=st.integers(0, 35),
    runs=st.lists(st.integers(1, 25), min_size=1, max_size=5),
    cut=st.integers(0, 90),
    expired=st.integers(0, 90),
    reopen=st.booleans(),
)
def test_a_queue_is_a_list_that_can_be_cut_at_both_ends(
    first: int,
    runs: list[int],
    cut: int,
    expired: int,
    reopen: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("queues")
    queue, model = opened(folder), Model(first)
    for count in runs:
        offsets = [(len(model.entries) + i) * 1000 for i in range(count)]
        queue.append(model.end, *columns(offsets))
        model.entries += offsets
    assert (queue.min_offset, queue.max_offset) == (first, model.end)
    assert all_entries(queue) == model.by_offset()

    if reopen:
        queue = again(queue, folder)
        queue.correct_min_offset(0)
        assert (queue.min_offset, queue.max_offset) == (first, model.end)
        assert queue.max_log_end == model.entries[-1] + RECORD_SIZE

    gone = queue.truncate(cut * 1000)
    kept = [offset for offset in model.entries if offset < cut * 1000]
    if kept:
        assert gone == len(model.entries) - len(kept)
        assert queue.max_log_end == kept[-1] + RECORD_SIZE
    model.entries = kept
    if not kept:
        assert queue.max_log_end == -1
        assert queue.max_offset <= first
        return
    assert all_entries(queue) == model.by_offset()

    queue.delete_expired(expired * 1000)
    alive = {at: offset for at, offset in model.by_offset().items() if offset >= expired * 1000}
    assert all_entries(queue) == alive
    assert queue.min_offset == min(alive, default=model.end)
    assert queue.files.files[0].start // 20 <= queue.min_offset

    queue.append(model.end, *columns([10**6]))
    assert all_entries(queue) == alive | {model.end: 10**6}


def test_the_places_before_the_first_message_are_pre_blank(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.append(13, *columns([5000]))

    path = tmp_path / "T" / "0" / f"{FILE_SIZE:020d}"
    blank = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    assert path.read_bytes()[:60] == 3 * blank
    assert queue.min_offset == 13
    found = again(queue, tmp_path)
    found.correct_min_offset(0)
    assert (found.min_offset, found.max_offset) == (13, 14)


def test_a_queue_that_lost_all_messages_keeps_counting(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.append(0, *columns([row * 1000 for row in range(25)]))
    assert queue.delete_expired(12_000) == 1

    assert queue.truncate(3_000) == 15

    assert (queue.min_offset, queue.max_offset) == (10, 10)
    queue.append(10, *columns([4_000]))
    assert all_entries(queue) == {10: 4_000}


@pytest.mark.parametrize("bad", [bytes(20), b"\xff" * 20, bytes(11) + b"\x64" + bytes(8)])
def test_recovery_ends_the_queue_at_the_first_entry_that_cannot_follow(
    bad: bytes, tmp_path: Path
) -> None:
    queue = opened(tmp_path)
    queue.append(0, *columns([row * 1000 for row in range(25)]))
    queue.files.files[1].mapping.write(60, bad)

    found = again(queue, tmp_path)

    assert found.max_offset == 13
    assert found.max_log_end == 12_100
    assert len(found.files.files) == 2
    assert not any(found.files.files[1].mapping.read(60, 140))


def test_recovery_looks_at_the_last_three_files_or_at_all(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.append(0, *columns([row * 1000 for row in range(45)]))
    queue.files.files[0].mapping.write(60, bytes(20))

    queue = again(queue, tmp_path)
    assert queue.max_offset == 45

    assert again(queue, tmp_path, last_files=None).max_offset == 3


def test_reading_goes_on_behind_a_missing_file(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.append(0, *columns([row * 1000 for row in range(45)]))
    queue.files.close()
    (tmp_path / "T" / "0" / f"{FILE_SIZE:020d}").unlink()
    (tmp_path / "T" / "0" / f"{2 * FILE_SIZE:020d}").unlink()

    found = opened(tmp_path)
    found.recover()

    assert found.holes() == [(10, 30)]
    assert found.entries(12, 5)[0].tolist() == []
    assert found.offset_behind_hole(12) == 30
    assert list(all_entries(found)) == [*range(10), *range(30, 45)]
    found.correct_min_offset(10_500)
    assert found.min_offset == 30


def test_messages_that_are_known_are_left_out(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    put(queue, [0, 1, 2], [0, 1000, 2000])

    placed = put(queue, [0, 1, 2, 3, 4], [0, 1000, 2000, 3000, 4000])

    assert placed == Placed(added=2, known=3)
    assert all_entries(queue) == {row: row * 1000 for row in range(5)}


def test_a_gap_is_filled_so_that_all_others_keep_their_place(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    put(queue, [0, 1], [0, 1000])

    placed = put(queue, [4, 5, 8], [4000, 5000, 8000])

    assert placed == Placed(added=3, filled=4)
    assert all_entries(queue) == {
        0: 0,
        1: 1000,
        2: 4000,
        3: 4000,
        4: 4000,
        5: 5000,
        6: 8000,
        7: 8000,
        8: 8000,
    }
    assert put(queue, [4, 5, 8], [4000, 5000, 8000]) == Placed(known=3)
    assert all_entries(again(queue, tmp_path))[8] == 8000


def test_a_lone_message_with_an_absurd_number_has_no_place(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    put(queue, [0], [0])

    assert put(queue, [1 << 40, 1], [1000, 2000]) == Placed(added=1, misplaced=1)
    assert put(queue, [0], [3000]) == Placed(misplaced=1)
    assert put(queue, [-2], [4000]) == Placed(misplaced=1)

    assert all_entries(queue) == {0: 0, 1: 2000}


@pytest.mark.parametrize("said", [0, 2, 4, 7, 8, 9, 13, 38, 518, 1 << 40, -1 << 60])
@pytest.mark.parametrize("cut", [0, 5, 6, 7, 10])
def test_a_number_that_contradicts_both_neighbours_costs_no_other_message(
    said: int, cut: int, tmp_path: Path
) -> None:
    queue = opened(tmp_path)
    numbers = [*range(6), said, 7, 8, 9]
    log_offsets = [RECORD_SIZE * row for row in range(10)]

    put(queue, numbers[:cut], log_offsets[:cut])
    put(queue, numbers[cut:], log_offsets[cut:])

    found = all_entries(queue)
    assert len(found) == 10
    others = {number: RECORD_SIZE * number for number in range(10) if number != 6}
    assert {number: found[number] for number in others} == others
    # Whether what follows was known makes the difference; then the one has its place, too.
    assert found[6] == 600 or cut == 7
    assert put(queue, numbers, log_offsets).added == 0


def test_a_queue_that_began_anew_replaces_the_old_one(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    put(queue, list(range(25)), [row * 1000 for row in range(25)])

    placed = put(queue, [0, 1, 2, 3], [30_000, 31_000, 32_000, 33_000])

    assert placed == Placed(added=4, restarts=1)
    assert all_entries(queue) == {0: 30_000, 1: 31_000, 2: 32_000, 3: 33_000}


@given(
    numbers=st.lists(st.integers(0, 40), max_size=30),
    steps=st.lists(st.integers(-2, 3), min_size=30, max_size=30),
)
def test_whatever_is_put_log_offsets_never_fall_and_putting_again_adds_nothing(
    numbers: list[int], steps: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    queue = opened(tmp_path_factory.mktemp("queues"))
    offsets = np.maximum(np.cumsum(steps[: len(numbers)]) * RECORD_SIZE, 0).tolist()

    placed = put(queue, numbers, offsets)

    assert placed.added + placed.known + placed.misplaced == len(numbers)
    found = all_entries(queue)
    assert list(found.values()) == sorted(found.values())
    assert put(queue, numbers, offsets).added == 0 or placed.misplaced


@pytest.mark.parametrize("full", ["T/0", f"{FILE_SIZE:020d}", f"{2 * FILE_SIZE:020d}"])
def test_a_full_disk_leaves_the_queue_as_it_was(full: str, tmp_path: Path) -> None:
    disk = FaultyDisk()
    queue = opened(tmp_path, disk)
    queue.append(0, *columns([row * 1000 for row in range(8)]))
    disk.run_full(full)

    with pytest.raises(StoreFull):
        queue.append(8, *columns([8_000 + row * 1000 for row in range(30)]))

    disk.heal()
    assert queue.max_offset == 8
    assert queue.max_log_end == 7_100
    queue.append(8, *columns([8_000]))
    assert all_entries(queue) == {row: row * 1000 for row in range(9)}


def test_a_full_disk_leaves_an_empty_queue_empty(tmp_path: Path) -> None:
    disk = FaultyDisk()
    queue = opened(tmp_path, disk)
    disk.fail_write = lambda path, size: StoreFull("no space left on the device")

    with pytest.raises(StoreFull):
        queue.append(13, *columns([0]))

    disk.heal()
    assert queue.max_offset == 0
    queue.append(13, *columns([0]))
    found = again(queue, tmp_path)
    found.correct_min_offset(0)
    assert all_entries(found) == {13: 0}


def config(tmp_path: Path) -> StoreConfig:
    return StoreConfig(path=str(tmp_path), queue_file_size_bytes=FILE_SIZE)


def test_the_table_finds_the_queues_and_leaves_other_names_alone(tmp_path: Path) -> None:
    table = ConsumeQueues(OsDisk(), config(tmp_path))
    for topic, number in (("%RETRY%g", 0), ("B", 2), ("A", 10)):
        table.find_or_make(topic, number).append(0, *columns([1000 * number]))
    (tmp_path / "consumequeue" / "B" / "notes").mkdir()
    (tmp_path / "consumequeue" / "README").write_text("x")
    table.close()

    found = ConsumeQueues.load(OsDisk(), config(tmp_path))
    found.recover()

    assert found.names() == [("%RETRY%g", 0), ("A", 10), ("B", 2)]
    assert found.next_offset("A", 10) == 1
    assert found.next_offset("A", 11) == 0
    assert found.max_log_end == 10_100
    assert found.truncate(2_000) == 2
    assert found.names() == [("%RETRY%g", 0), ("A", 10), ("B", 2)]
    assert sorted((one.topic, one.max_offset) for one in found) == [
        ("%RETRY%g", 1),
        ("A", 0),
        ("B", 0),
    ]


@pytest.mark.parametrize("topic", ["..", ".", "", "../commitlog", "a/../../commitlog"])
def test_a_topic_that_leads_to_another_folder_deletes_nothing(topic: str, tmp_path: Path) -> None:
    table = ConsumeQueues(OsDisk(), config(tmp_path))
    table.find_or_make("T", 0).append(0, *columns([0, 1000]))
    log = tmp_path / "commitlog" / "00000000000000000000"
    log.parent.mkdir()
    log.write_bytes(b"x")

    table.delete_topic(topic)

    assert log.exists()
    assert list((tmp_path / "consumequeue" / "T" / "0").iterdir())


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_only_topics_that_can_have_folders_are_batch_topics(mark: str, tmp_path: Path) -> None:
    topics = {
        name: TopicConfig(name=name, attributes={"queue.type": "BatchCQ"}) for name in ("..", "B")
    }
    text = render_topics(TopicTable(DataVersion(), topics))
    (tmp_path / "topics.json").write_text(mark + text, encoding="utf-8")

    assert batch_topics(OsDisk(), str(tmp_path)) == {"B"}


def test_a_deleted_topic_is_gone_and_begins_at_zero(tmp_path: Path) -> None:
    table = ConsumeQueues(OsDisk(), config(tmp_path))
    table.find_or_make("T", 0).append(0, *columns([0, 1000]))
    for part in table.take_dirty():
        part.sync()

    table.delete_topic("T")

    assert table.names() == []
    assert not (tmp_path / "consumequeue" / "T").exists()
    for part in table.take_dirty():
        part.sync()
    table.find_or_make("T", 0).append(0, *columns([5000]))
    assert table.next_offset("T", 0) == 1


def test_a_topic_with_queues_of_both_kinds_is_refused(tmp_path: Path) -> None:
    for folder in ("consumequeue", "batchconsumequeue"):
        (tmp_path / folder / "T" / "0").mkdir(parents=True)

    with pytest.raises(StoreMismatch, match="a topic has only one kind"):
        ConsumeQueues.load(OsDisk(), config(tmp_path))


def test_the_kind_of_a_topic_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "batchconsumequeue" / "OnDisk" / "0").mkdir(parents=True)
    (tmp_path / "consumequeue" / "Plain" / "0").mkdir(parents=True)

    kinds_told = {
        name: TopicConfig(name=name, attributes={"queue.type": "BatchCQ"})
        for name in ("Plain", "Told")
    }
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(render_topics(TopicTable(topics=kinds_told)))
    table = ConsumeQueues.load(OsDisk(), config(tmp_path))

    kinds = {topic: table.is_batch(topic) for topic in ("OnDisk", "Plain", "Told", "Other")}
    assert kinds == {"OnDisk": True, "Plain": False, "Told": True, "Other": False}
