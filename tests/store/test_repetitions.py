"""Entries that repeat a neighbour, in the place of lost messages: each record is read once, at its own number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pocketmq.proto.record import SYS_FLAG_AT, SYS_ROLLBACK, decode_record
from pocketmq.store.consume_queue import ConsumeQueue
from pocketmq.store.message_store import MessageStore

from ..runs import make_run, open_store


def store_of(path: Path, entries: list[int], shift: int = 0) -> MessageStore:
    """Return a store whose queue T/0 has, as its entry n, that of record ENTRIES[n]; it says the number n + SHIFT.

    Records that no entry points to are lost.
    """
    store = open_store(path)
    store.append(make_run("Before", 0, [b"x"]))
    count = max(entries) + 1 + shift
    store.append(make_run("T", 0, [b"%d" % number for number in range(count)]))
    queue = store.queues.get("T", 0)
    assert queue is not None
    for number, log_offset in enumerate(queue.entries(0, count)[0].tolist()):
        file = store.log.files.file_at(log_offset)
        if file is not None and number - shift not in entries:
            file.put(log_offset - file.start + SYS_FLAG_AT, SYS_ROLLBACK.to_bytes(4))
    columns = [column[shift:] for column in queue.entries(0, count)]
    queue.destroy()
    queue.append(0, *(column[np.array(entries)] for column in columns))
    return store


def read(
    store: MessageStore, offset: int, messages: int, size: int
) -> tuple[list[int], list[int], int]:
    """Return queue offsets, what the records say, and where to read on."""
    slices = store.read_queue("T", 0, offset, messages, size)
    starts = np.cumsum(slices.sizes) - slices.sizes
    said = [decode_record(slices.records, start).queue_offset for start in starts.tolist()]
    return slices.queue_offsets.tolist(), said, slices.next_offset


@pytest.mark.parametrize(
    "entries",
    [
        [0, 1, 4, 4, 4, 5],  # filled in front of 4
        [2, 2, 2, 3],  # from the beginning on
        [0, 1, 2, 2, 2],  # at the end, behind 2
        [3, 3, 3, 3],
        [0, 0],
        [0, 2, 2, 3, 5, 5, 6, 6],
    ],
)
@pytest.mark.parametrize(("messages", "size"), [(1, 1), (2, 1000), (3, 1), (100, 1 << 20)])
def test_every_record_is_read_once_at_its_number(
    tmp_path: Path, entries: list[int], messages: int, size: int
) -> None:
    store = store_of(tmp_path, entries)
    for begin in range(len(entries) + 1):
        found: list[int] = []
        offset = begin
        while offset < len(entries):
            numbers, said, behind = read(store, offset, messages, size)
            assert numbers == said
            assert behind > offset
            assert all(offset <= number < behind for number in numbers)
            found += numbers
            offset = behind
        assert offset == len(entries)
        assert found == sorted({n for n in entries if begin <= n and entries[n] == n})
    store._close_files()


@pytest.mark.parametrize(
    "entries", [[0, 1, 4, 4, 4, 5], [2, 2, 2, 3], [0, 1, 2, 2, 2], [0, 2, 2, 3]]
)
@pytest.mark.parametrize("wanted", [True, False])
def test_repetitions_are_neither_chosen_nor_turned_down(
    tmp_path: Path, entries: list[int], wanted: bool
) -> None:
    store = store_of(tmp_path, entries)
    own = [number for number, entry in enumerate(entries) if number == entry]

    slices = store.read_queue("T", 0, 0, 100, 1 << 20, lambda codes: np.full(len(codes), wanted))

    assert slices.queue_offsets.tolist() == (own if wanted else [])
    assert slices.turned_down == (0 if wanted else len(own))
    assert slices.next_offset == len(entries)
    store._close_files()


def test_numbers_that_apache_shifted_stay_readable(tmp_path: Path) -> None:
    """Apache closes gaps: then records say higher numbers than where they stand."""
    store = store_of(tmp_path, [0, 1, 2, 3, 4], shift=7)

    assert read(store, 0, 100, 1 << 20) == ([0, 1, 2, 3, 4], [7, 8, 9, 10, 11], 5)
    store._close_files()


def test_a_record_that_says_a_number_far_off_is_read_at_the_first_of_its_entries(
    tmp_path: Path,
) -> None:
    store = store_of(tmp_path, [0, 1, 1, 1, 2], shift=7)

    assert read(store, 0, 100, 1 << 20) == ([0, 1, 4], [7, 8, 9], 5)
    assert read(store, 2, 100, 1 << 20) == ([4], [9], 5)
    store._close_files()


def test_only_repetitions_to_the_end_are_passed_over(tmp_path: Path) -> None:
    store = store_of(tmp_path, [0, 1, 1, 1])
    assert isinstance(store.queues.get("T", 0), ConsumeQueue)

    assert read(store, 2, 1, 1) == ([], [], 4)
    store._close_files()
