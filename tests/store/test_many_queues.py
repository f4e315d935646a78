"""Stores of many queues: a start that syncs nothing, many files synced at once, the ends of all queues in pieces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pocketmq.store.disk import Mapping
from pocketmq.store.files import SYNCED_ONE_BY_ONE
from pocketmq.store.recovery.verified import Verified, VerifiedSnapshot

from ..fakes import ForwardingDisk, ForwardingMapping
from ..runs import Hand, bodies_of, make_run, open_store

QUEUES = SYNCED_ONE_BY_ONE + 50
_MINUTE_MS = 60_000


class Counting(ForwardingDisk):
    """Counts what is synced, by path; TOGETHER: whether all can be at once."""

    def __init__(self, *, together: bool = False) -> None:
        super().__init__()
        self.together = together
        self.synced: Counter[str] = Counter()

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        inner = self.inner.open_map(path, size=size, writable=writable, create=create)
        return _Counted(inner, self.synced)

    def sync_everything(self, path: str) -> bool:
        self.synced["everything"] += 1
        return self.together

    def queue_files(self) -> int:
        return sum("/consumequeue/" in path for path in self.synced)


class _Counted(ForwardingMapping):
    def __init__(self, inner: Mapping, synced: Counter[str]) -> None:
        super().__init__(inner)
        self._synced = synced

    def sync(self) -> None:
        self._synced[self.path] += 1
        self.inner.sync()


def fill(path: Path, disk: Counting) -> None:
    store = open_store(path, disk=disk, log_file_size_bytes=1 << 20)
    for number in range(QUEUES):
        store.append(make_run("T", number, [b"%d" % number]))
    store.close()


def test_a_start_after_a_clean_stop_syncs_no_queue_file(tmp_path: Path) -> None:
    fill(tmp_path, Counting())
    disk = Counting()

    store = open_store(tmp_path, disk=disk, log_file_size_bytes=1 << 20)

    assert store.recovery.scanned_records == 0
    assert disk.queue_files() == 0
    assert disk.synced["everything"] == 0
    assert [bodies_of(store, "T", number) for number in range(QUEUES)] == [
        [b"%d" % number] for number in range(QUEUES)
    ]
    store.close()


def test_many_queue_files_are_synced_by_one_call(tmp_path: Path) -> None:
    disk = Counting(together=True)

    fill(tmp_path, disk)

    assert disk.synced["everything"] == 1
    assert disk.queue_files() == 0


def test_each_file_is_synced_where_one_call_cannot(tmp_path: Path) -> None:
    disk = Counting(together=False)

    fill(tmp_path, disk)

    assert disk.synced["everything"] == 1
    assert disk.queue_files() == QUEUES


def test_after_a_kill_all_queue_files_are_synced_by_one_call(tmp_path: Path) -> None:
    fill(tmp_path, Counting())
    (tmp_path / "abort").write_text("1")
    disk = Counting(together=True)

    store = open_store(tmp_path, disk=disk, log_file_size_bytes=1 << 20)
    assert not store.recovery.clean
    assert disk.synced["everything"] == 0
    store.tick()

    assert disk.synced["everything"] == 1
    assert disk.queue_files() == 0
    store.close()


def test_a_snapshot_tells_the_ends_of_all_queues_as_of_its_moment(tmp_path: Path) -> None:
    clock = Hand()
    store = open_store(tmp_path, now_ms=clock, log_file_size_bytes=1 << 20)
    for number in range(QUEUES):
        store.append(make_run("T", number, [b"x"] * (1 + number % 3)))
    store.append(make_run("Gone", 0, [b"x"]))
    store.delete_topic("Gone")
    taken = VerifiedSnapshot(store.parts, last_offset=0, newest_ms=0)
    store.append(make_run("T", 7, [b"later"]))

    taken.save(store.disk, str(tmp_path / "own"))

    found = Verified.load(store.disk, str(tmp_path / "own"))
    assert found is not None
    assert found.queues == {f"T/{number}": 1 + number % 3 for number in range(QUEUES)}
    assert found.log_end == taken.log_end < store.max_log_offset
    store.close()


def test_the_minute_notes_the_queues_that_others_wrote_to_before(tmp_path: Path) -> None:
    clock = Hand()
    fill(tmp_path, Counting())
    store = open_store(tmp_path, now_ms=clock, log_file_size_bytes=1 << 20)
    store.append(make_run("T", 3, [b"new"]))
    for step_ms in (0, _MINUTE_MS, 1_000):
        clock.now_ms += step_ms
        store.tick()

    found = Verified.load(store.disk, store.config.own_folder)

    assert found is not None
    assert found.queues == {f"T/{number}": 1 + (number == 3) for number in range(QUEUES)}
    assert len(found.sums) == QUEUES
    store.close()
