"""A batch queue finds the batch that holds a message, and is cut at both ends like any queue."""

import struct
from pathlib import Path

import numpy as np

from pocketmq.store.consume_queue import BatchConsumeQueue, Placed
from pocketmq.store.os_disk import OsDisk

FILE_SIZE = 46 * 4
ENTRY = struct.Struct(">qiqqqhii")


def opened(folder: Path) -> BatchConsumeQueue:
    return BatchConsumeQueue.load(OsDisk(), str(folder), FILE_SIZE, "B", 1)


def put(queue: BatchConsumeQueue, rows: list[tuple[int, int, int]]) -> Placed:
    """Enter batches of (log offset, first queue offset, number of messages)."""
    offsets, bases, counts = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return queue.put(offsets, np.full(len(rows), 50), offsets * 3, offsets + 7, (bases, counts))


#: Ten batches of 1, 2, 3, 1, 2, 3, … messages.
BATCHES = [(row * 100, sum(1 + i % 3 for i in range(row)), 1 + row % 3) for row in range(10)]


def test_entries_have_apaches_bytes(tmp_path: Path) -> None:
    queue = opened(tmp_path)

    put(queue, [(100, 5, 3), (200, 8, 1)])

    data = (tmp_path / "B" / "1" / "00000000000000000000").read_bytes()
    assert ENTRY.unpack_from(data, 0) == (100, 50, 300, 107, 5, 3, -1, 0)
    assert ENTRY.unpack_from(data, 46) == (200, 50, 600, 207, 8, 1, -1, 0)
    assert len(data) == FILE_SIZE
    assert (queue.min_offset, queue.max_offset) == (5, 9)


def test_every_message_is_found_in_its_batch(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    put(queue, BATCHES)

    assert queue.max_offset == 19
    for log_offset, base, count in BATCHES:
        for offset in range(base, base + count):
            offsets, sizes, codes, bases, counts = queue.entries(offset, 1)
            assert offsets.tolist() == [log_offset]
            assert (bases.tolist(), counts.tolist()) == ([base], [count])
            assert (sizes.tolist(), codes.tolist()) == ([50], [log_offset * 3])
    assert len(queue.entries(19, 1)[0]) == 0
    assert len(queue.entries(0, 99)[0]) == 4


def test_known_batches_are_left_out_and_impossible_ones_have_no_place(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    put(queue, BATCHES[:4])

    assert put(queue, BATCHES) == Placed(added=6, known=4)
    assert put(queue, [(2000, -1, 3), (2100, 19, 0), (2200, 19, 1 << 15)]) == Placed(misplaced=3)


def test_recovery_and_truncation_find_the_bounds(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    put(queue, BATCHES)
    queue.files.close()

    found = opened(tmp_path)
    found.recover()
    assert (found.min_offset, found.max_offset, found.max_log_end) == (0, 19, 950)

    assert found.truncate(700) == 3
    assert (found.max_offset, found.max_log_end) == (13, 650)
    found.correct_min_offset(250)
    assert found.min_offset == BATCHES[3][1]
    assert found.delete_expired(450) == 1
    assert found.min_offset == BATCHES[5][1]
    found.correct_min_offset(10**6)
    assert found.min_offset == found.max_offset == 13

    found.destroy()
    assert (found.min_offset, found.max_offset, found.max_log_end) == (0, 0, -1)
    assert not (tmp_path / "B" / "1").exists()


def test_recovery_ends_at_an_entry_without_messages(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    put(queue, BATCHES)
    queue.files.files[1].mapping.write(46 + 36, bytes(2))
    queue.files.close()

    found = opened(tmp_path)
    found.recover()

    assert (found.max_offset, found.max_log_end) == (BATCHES[5][1], 450)
