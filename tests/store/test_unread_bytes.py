"""How many bytes lie unread in a queue, added up from its entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..runs import make_run, open_store


def test_bytes_are_those_of_the_records_behind_the_offset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    run = make_run("T", 0, [b"x" * size for size in range(1, 61)])
    sizes = run.columns.sizes.tolist()
    store.append(run)

    for offset in (0, 1, 19, 20, 21, 59, 60):
        assert store.unread_bytes("T", 0, offset, 1_000) == (sum(sizes[offset:]), 60 - offset)
    assert store.unread_bytes("T", 0, -1, 1_000) == (sum(sizes), 60)
    assert store.unread_bytes("T", 0, 99, 1_000) == (0, 0)
    assert store.unread_bytes("T", 1, 0, 1_000) == (0, 0)
    store.close()


@pytest.mark.parametrize(("most", "is_known"), [(59, False), (60, True), (0, False)])
def test_too_many_entries_are_not_added_up(most: int, is_known: bool, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("T", 0, [b"x"] * 60))

    size, count = store.unread_bytes("T", 0, 0, most)

    assert (size is not None) is is_known
    assert count == min(most, 60)
    store.close()


def test_a_hole_in_the_queue_holds_no_bytes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    run = make_run("T", 0, [b"x"] * 60)
    size = run.columns.sizes.tolist()[0]
    store.append(run)
    queue = store.queues.find_or_make("T", 0)
    middle = queue.files.files[1]
    queue.files.files.remove(middle)
    queue.files._starts.remove(middle.start)

    assert store.unread_bytes("T", 0, 0, 1_000)[0] == 40 * size
    store.close()
