"""The file that keeps the table of producers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pocketmq.broker.producers.sequences import Sequence, StoredRun
from pocketmq.broker.producers.snapshots import decoded, encoded, log_tail, rows_of

from ...runs import make_run, open_store


def sequence() -> Sequence:
    one = Sequence(3, 1_234)
    one.known_from, one.next, one.end_offset = 5, 20, 9_000
    one.missing = ((6, 8), (10, 11))
    one.runs = (
        StoredRun(5, 10, 100, 1_100, 1_000, 7),
        StoredRun(15, 5, 1_100, 9_000, 1_001, -1, np.array([1, -1, 3, 4, 5], np.int64)),
    )
    return one


def test_what_was_written_is_read_again() -> None:
    there = [((7, "T", 3), sequence()), (((1 << 63) - 1, "ü", 0), Sequence(0, 1))]
    data = encoded(9_000, 77, rows_of(there))

    snapshot = decoded(data)

    assert snapshot is not None
    assert (snapshot.log_end, snapshot.tail) == (9_000, 77)
    (key, found), (other, _) = snapshot.sequences
    assert (key, other) == ((7, "T", 3), ((1 << 63) - 1, "ü", 0))
    wanted = sequence()
    for name in ("epoch", "known_from", "next", "missing", "end_offset", "used_ms"):
        assert getattr(found, name) == getattr(wanted, name)
    assert found.runs[0] == wanted.runs[0]
    assert found.runs[1].intervals() == wanted.runs[1].intervals()
    assert encoded(9_000, 77, rows_of(snapshot.sequences)) == data


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_a_cut_file_is_not_believed(cut: int) -> None:
    assert decoded(encoded(1, 2, rows_of([((7, "T", 3), sequence())]))[:cut]) is None


def test_a_changed_file_is_not_believed() -> None:
    data = bytearray(encoded(1, 2, rows_of([((7, "T", 3), sequence())])))
    data[-30] ^= 1

    assert decoded(bytes(data)) is None


def test_other_files_are_not_believed() -> None:
    assert decoded(b"") is None
    assert decoded(b'{"version": 99}\n[]') is None
    assert decoded(b"[]\n[]") is None


def test_the_tail_tells_the_log_from_another(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert log_tail(store.log, 0) == 0
    store.append(make_run("T", 0, [b"one"]))
    end = store.max_log_offset
    tail = log_tail(store.log, end)
    store.append(make_run("T", 0, [b"two"] * 60))

    assert log_tail(store.log, end) == tail
    assert log_tail(store.log, store.max_log_offset) not in (None, tail)
    assert log_tail(store.log, store.max_log_offset + 1) is None
    store.close()
