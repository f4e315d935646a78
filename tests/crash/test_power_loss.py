"""Power fails at any moment: what was acknowledged as synced is there afterwards, and nothing that was never sent.

The store runs on a disk that knows which bytes and names surely survive (tests/fakes.py). A seed decides
the traffic, the moment, and which of the unsynced sectors and names survive. A failing case is replayed by its seed:
`pytest "tests/crash/test_power_loss.py::test_…[seed]"`.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.record import decode_record
from pocketmq.proto.record_run import starts_of
from pocketmq.store.message_store import MessageStore

from ..fakes import Crash, RecordingDisk
from ..runs import Hand, bodies_of, make_run, open_store, records_of

QUEUES = [("A", 0), ("A", 1), ("B", 0)]


class Traffic:
    """Seeded appends, syncs and ticks; remembers what was sent, and how much of it was acknowledged as synced."""

    def __init__(self, rng: random.Random, clock: Hand, pace_ms: int = 900) -> None:
        self.rng = rng
        self.clock = clock
        self.pace_ms = pace_ms
        self.sent: dict[tuple[str, int], list[bytes]] = {name: [] for name in QUEUES}
        self.synced: dict[tuple[str, int], int] = dict.fromkeys(QUEUES, 0)

    def step(self, store: MessageStore) -> None:
        choice = self.rng.random()
        self.clock.now_ms += self.rng.randint(0, self.pace_ms)
        if choice < 0.7:
            self.append(store)
        elif choice < 0.9:
            store.tick()
        else:
            self.sync(store)

    def append(self, store: MessageStore) -> None:
        name = self.rng.choice(QUEUES)
        known = self.sent[name]
        count = self.rng.choice([1, 1, 3, 12])
        bodies = [
            b"%d of %s %d " % (len(known) + number, name[0].encode(), name[1])
            + self.rng.randbytes(self.rng.choice([0, 10, 200]))
            for number in range(count)
        ]
        known += bodies  # Before the call: a crash inside it may leave them all the same.
        keys = [{"KEYS": f"k{len(known) - count + number}", "TAGS": "t"} for number in range(count)]
        appended = store.append(make_run(*name, bodies, keys))
        assert appended.first_queue_offset == len(known) - count
        if self.rng.random() < 0.3:
            self.sync(store, appended.end_offset)

    def sync(self, store: MessageStore, end_offset: int | None = None) -> None:
        counts = {name: store.queue_bounds(*name)[1] for name in QUEUES}
        results: list[object] = []
        store.request_sync(end_offset or store.max_log_offset, results.append)
        assert results == [None]
        self.synced = counts

    def check(self, store: MessageStore) -> None:
        """Everything synced is there, in its place; everything else was sent, with that number."""
        for name, sent in self.sent.items():
            found = records_of(store, *name)
            synced = self.synced[name]
            assert [record.body for record in found[:synced]] == sent[:synced]
            for record in found:
                assert record.crc_ok
                assert record.body == sent[record.queue_offset]


def check_finding(store: MessageStore) -> None:
    """Each record of a queue is read once, at its number, with its tags code, and found by its key.

    One whose properties the power cut damaged, which no checksum guards, has those that it has.
    """
    for name in QUEUES:
        found: Counter[int] = Counter()
        offset, end = store.queue_bounds(*name)
        while offset < end:
            slices = store.read_queue(*name, offset, 5, 2_000)
            starts = starts_of(slices.sizes).tolist()
            for index, start in enumerate(starts):
                record = decode_record(slices.records, start)
                found[record.log_offset] += 1
                assert record.queue_offset == slices.queue_offsets[index]
                if (key := record.properties.get("KEYS")) is not None:
                    assert record.log_offset in store.lookup(name[0], key)
                if record.properties.get("TAGS") == "t":
                    assert slices.tags_codes[index] == ord("t")
            assert slices.next_offset > offset
            offset = slices.next_offset
        assert set(found.values()) <= {1}


def power_cut(
    seed: int, tmp_path: Path, *, pace_ms: int = 900, **changes: Any
) -> tuple[Traffic, Path, Hand]:
    """Run traffic until the power fails; return it with a folder that the crash could have left.

    PACE_MS is how far the clock goes at most between two steps; CHANGES are settings of the store.
    """
    rng = random.Random(seed)
    clock = Hand()
    home = tmp_path / "before"
    home.mkdir()
    disk = RecordingDisk(str(home), seed)
    traffic = Traffic(rng, clock, pace_ms)
    disk.crash_after = rng.randint(1, 400)
    try:
        store = open_store(home, disk=disk, now_ms=clock, **changes)
        while True:
            traffic.step(store)
            if rng.random() < 0.02:
                store.close()
                traffic.synced = {name: len(sent) for name, sent in traffic.sent.items()}
                store = open_store(home, disk=disk, now_ms=clock, **changes)
    except Crash:
        disk.rebuild(str(tmp_path / "after"))
    return traffic, tmp_path / "after", clock


@pytest.mark.parametrize("seed", range(30))
def test_synced_messages_survive_a_power_cut(seed: int, tmp_path: Path) -> None:
    traffic, left, clock = power_cut(seed, tmp_path)

    store = open_store(left, now_ms=clock)

    traffic.check(store)
    check_finding(store)
    more = store.append(make_run("A", 0, [b"after"]))
    assert store.read_queue("A", 0, more.first_queue_offset, 1, 1000).records.find(b"after") > 0
    before = {name: bodies_of(store, *name) for name in store.queue_names()}
    store.close()

    again = open_store(left, now_ms=clock)
    assert again.recovery.clean
    assert {name: bodies_of(again, *name) for name in again.queue_names()} == before
    again.close()


#: Every few steps a file of the log is closed by age: the clock goes on by some ten seconds a step.
BY_AGE: dict[str, Any] = {"log_roll_ms": 60_000, "retention_ms": 3_600_000}


@pytest.mark.parametrize("seed", range(200, 230))
def test_synced_messages_survive_a_power_cut_where_files_are_closed_by_age(
    seed: int, tmp_path: Path
) -> None:
    traffic, left, clock = power_cut(seed, tmp_path, pace_ms=20_000, **BY_AGE)

    store = open_store(left, now_ms=clock, **BY_AGE)

    traffic.check(store)
    check_finding(store)
    store.close()
    again = open_store(left, now_ms=clock, **BY_AGE)
    assert again.recovery.findings == []
    traffic.check(again)


#: What was verified is noted every second; index files of some pages, and queue files of some sectors.
OFTEN_VERIFIED: dict[str, Any] = {
    "flush_queues_thorough_interval_ms": 1_000,
    "log_file_size_bytes": 65_536,
    "queue_file_size_bytes": 6_000,
    "index_slots": 997,
    "index_entries": 600,
}


@pytest.mark.parametrize("seed", range(100, 160))
def test_what_is_in_the_log_is_found_after_a_power_cut(seed: int, tmp_path: Path) -> None:
    traffic, left, clock = power_cut(seed, tmp_path, **OFTEN_VERIFIED)

    store = open_store(left, now_ms=clock, **OFTEN_VERIFIED)

    traffic.check(store)
    check_finding(store)
    store.close()


@pytest.mark.parametrize("seed", range(160, 180))
def test_it_is_found_if_power_fails_again_during_recovery(seed: int, tmp_path: Path) -> None:
    _traffic, left, clock = power_cut(seed, tmp_path, **OFTEN_VERIFIED)
    rng = random.Random(seed)
    for attempt in range(3):
        disk = RecordingDisk(str(left), seed + attempt)
        disk.crash_after = rng.randint(0, 80)
        with contextlib.suppress(Crash):
            store = open_store(left, disk=disk, now_ms=clock, **OFTEN_VERIFIED)
            for number in range(30):
                clock.now_ms += rng.randint(0, 900)
                key = {"KEYS": f"more-{attempt}-{number}", "TAGS": "t"}
                store.append(make_run(*rng.choice(QUEUES), [b"more"], key))
                store.tick()
            store._close_files()
        left = tmp_path / f"after {attempt}"
        disk.rebuild(str(left))

    store = open_store(left, now_ms=clock, **OFTEN_VERIFIED)

    check_finding(store)
    store.close()


@pytest.mark.parametrize("seed", range(30, 45))
def test_power_may_fail_again_during_recovery(seed: int, tmp_path: Path) -> None:
    traffic, left, clock = power_cut(seed, tmp_path)
    rng = random.Random(seed)
    for attempt in range(3):
        disk = RecordingDisk(str(left), seed + attempt)
        disk.crash_after = rng.randint(0, 40)
        with contextlib.suppress(Crash):
            open_store(left, disk=disk, now_ms=clock)._close_files()
        left = tmp_path / f"after {attempt}"
        disk.rebuild(str(left))

    store = open_store(left, now_ms=clock)

    traffic.check(store)
    store.close()


@pytest.mark.parametrize("seed", range(45, 55))
def test_a_second_recovery_changes_nothing(seed: int, tmp_path: Path) -> None:
    _traffic, left, clock = power_cut(seed, tmp_path)
    first = open_store(left, now_ms=clock)
    before = {name: records_of(first, *name) for name in first.queue_names()}
    end = first.max_log_offset
    first._close_files()

    second = open_store(left, now_ms=clock)

    assert second.max_log_offset == end
    assert {name: records_of(second, *name) for name in second.queue_names()} == before
    second.close()
