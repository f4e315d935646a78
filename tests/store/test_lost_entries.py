"""Queue entries that were changed on the device: what the log has, readers get."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pocketmq.proto.record import decode_record
from pocketmq.proto.record_run import Longs
from pocketmq.store import queue_repair
from pocketmq.store.message_store import MessageStore

from ..runs import bodies_of, make_run, open_store, records_of

ENTRY_SIZE = 20
COUNT = 12
BODIES = [b"message %04d" % n for n in range(COUNT)]


def filled(path: Path) -> MessageStore:
    """Return a store in which records of A and B, all of one size, take turns."""
    store = open_store(path)
    for body in BODIES:
        store.append(make_run("A", 0, [body], {"TAGS": "red"}))
        store.append(make_run("B", 0, [b"x" * len(body)], {"TAGS": "red"}))
    return store


def flip(path: Path, number: int, bit: int) -> None:
    """Flip BIT of entry NUMBER of the queue file at PATH."""
    with open(path, "r+b") as file:
        file.seek(number * ENTRY_SIZE + bit // 8)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1 << bit % 8]))


def queue_file(home: Path) -> Path:
    return home / "consumequeue" / "A" / "0" / f"{0:020d}"


def entries_of(home: Path) -> bytes:
    return queue_file(home).read_bytes()[: COUNT * ENTRY_SIZE]


def reds(codes: Longs) -> NDArray[np.bool_]:
    chosen: NDArray[np.bool_] = codes == 112785  # The hash of "red".
    return chosen


@pytest.mark.parametrize("number", [0, 5, COUNT - 1])
def test_no_flipped_bit_of_an_entry_costs_a_message_while_serving(
    tmp_path: Path, number: int
) -> None:
    store = filled(tmp_path)
    sound = entries_of(tmp_path)
    for bit in range(12 * 8):
        store.lost_entries._looked_at.clear()
        flip(queue_file(tmp_path), number, bit)

        assert bodies_of(store, "A", 0) == BODIES, f"bit {bit} of entry {number}"
        assert [r.queue_offset for r in records_of(store, "A", 0)] == list(range(COUNT))
        assert entries_of(tmp_path) == sound, "the entry is made again on the device"
    store.close()


def test_what_was_made_again_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = filled(tmp_path)
    flip(queue_file(tmp_path), 5, 60)

    assert bodies_of(store, "A", 0) == BODIES

    assert store.lost_entries.count == 1
    assert "queue entry contradicted the log, repaired" in caplog.text
    store.close()


def test_a_reader_with_a_filter_gets_the_message_of_a_wrong_entry(tmp_path: Path) -> None:
    store = filled(tmp_path)
    flip(queue_file(tmp_path), 5, 60)

    seen = store.read_queue("A", 0, 0, COUNT, 1 << 20, reds)

    assert seen.queue_offsets.tolist() == list(range(COUNT))
    assert seen.lost == 0
    store.close()


def test_several_wrong_entries_in_a_row_are_made_again(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for number in (3, 4, 5, 6):
        flip(queue_file(tmp_path), number, 7 + number)

    assert bodies_of(store, "A", 0) == BODIES
    assert store.lost_entries.count == 4
    store.close()


def test_an_entry_whose_record_is_gone_stays_and_is_looked_for_once(tmp_path: Path) -> None:
    store = filled(tmp_path)
    record = records_of(store, "A", 0)[5]
    file = store.log.files.file_at(record.log_offset)
    assert file is not None
    with open(file.path, "r+b") as raw:
        raw.seek(record.log_offset - file.start)
        raw.write(b"\xff" * 92)
    sound = entries_of(tmp_path)

    seen = store.read_queue("A", 0, 0, COUNT, 1 << 20)

    assert seen.queue_offsets.tolist() == [n for n in range(COUNT) if n != 5]
    assert seen.lost == 1
    assert entries_of(tmp_path) == sound
    store.close()


def test_a_queue_that_apache_numbered_anew_is_read_as_it_is(tmp_path: Path) -> None:
    """Its entries stand two places before the numbers in their records."""
    store = filled(tmp_path)
    moved = entries_of(tmp_path)[2 * ENTRY_SIZE :]
    store.queues.get("A", 0).files.truncate(len(moved))  # type: ignore[union-attr]
    with open(queue_file(tmp_path), "r+b") as raw:
        raw.write(moved)

    seen = store.read_queue("A", 0, 0, COUNT, 1 << 20)

    assert seen.queue_offsets.tolist() == list(range(COUNT - 2))
    assert decode_record(seen.records).body == BODIES[2]
    assert seen.lost == 0
    assert store.lost_entries.count == 0
    store.close()


def test_a_gap_too_wide_to_be_searched_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path)
    monkeypatch.setattr(queue_repair, "SEARCHED_BYTES_MAX", 100)
    flip(queue_file(tmp_path), 5, 60)

    seen = store.read_queue("A", 0, 0, COUNT, 1 << 20)

    assert seen.lost == 1
    assert "too far apart to repair" in caplog.text
    store.close()


def test_every_message_of_a_read_is_the_one_of_its_place(tmp_path: Path) -> None:
    """An entry that points to a sound record of the same queue, elsewhere, is wrong too."""
    store = filled(tmp_path)
    data = bytearray(entries_of(tmp_path))
    data[5 * ENTRY_SIZE : 6 * ENTRY_SIZE] = data[8 * ENTRY_SIZE : 9 * ENTRY_SIZE]
    with open(queue_file(tmp_path), "r+b") as raw:
        raw.write(data)

    seen = store.read_queue("A", 0, 0, COUNT, 1 << 20)

    assert seen.queue_offsets.tolist() == list(range(COUNT))
    at = 0
    for body, size in zip(BODIES, seen.sizes.tolist(), strict=True):
        assert decode_record(seen.records, at).body == body
        at += size
    store.close()


@pytest.mark.parametrize("number", [0, 5, COUNT - 1])
def test_no_flipped_bit_of_an_entry_survives_a_start(tmp_path: Path, number: int) -> None:
    """Also none of a tags code, by which readers with a filter would miss the message."""
    store = filled(tmp_path)
    sound = entries_of(tmp_path)
    store.close()
    for bit in range(number % 5, ENTRY_SIZE * 8, 5):
        flip(queue_file(tmp_path), number, bit)

        store = open_store(tmp_path)

        assert entries_of(tmp_path) == sound, f"bit {bit} of entry {number}"
        [told] = [one.text() for one in store.recovery.findings if "A/0" in one.path]
        assert "rebuilt from the log" in told
        assert bodies_of(store, "A", 0) == BODIES
        store.close()


def test_a_start_believes_the_sums_of_what_was_added_repaired_and_deleted(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.close()
    store = open_store(tmp_path)
    flip(queue_file(tmp_path), 5, 60)
    assert bodies_of(store, "A", 0) == BODIES
    store.append(make_run("A", 0, [b"more"] * 30))
    store.delete_topic("B")
    store.append(make_run("B", 0, [b"again"] * 3))
    store.close()

    store = open_store(tmp_path)

    assert store.recovery.findings == []
    assert store.recovery.scanned_records == 0
    assert len(bodies_of(store, "A", 0)) == COUNT + 30
    store._close_files()
    store = open_store(tmp_path)
    assert store.recovery.findings == []
    store.close()


def test_a_spoilt_last_entry_of_a_file_neither_hides_nor_deletes_those_before_it(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    bodies = [b"%04d" % n for n in range(45)]
    store.append(make_run("A", 0, bodies))
    queue = store.queues.get("A", 0)
    assert queue is not None
    per_file = queue.files.file_size // queue.entry_size
    begin = queue.log_offset(5)
    assert begin is not None
    with open(queue_file(tmp_path), "r+b") as raw:
        raw.seek((per_file - 1) * ENTRY_SIZE)
        raw.write(bytes(ENTRY_SIZE))

    assert queue.delete_expired(begin) == 0
    assert queue.min_offset == 5
    queue.correct_min_offset(0)

    assert bodies_of(store, "A", 0) == bodies
    store.close()
