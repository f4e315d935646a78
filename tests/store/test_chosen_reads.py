"""Reads that choose by tags codes: the chosen ones of a plain read, and how many were turned down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.java_hash import java_hash
from pocketmq.store.reader import Choose

from ..runs import make_run, open_store

TAGS = ["", "a", "b", "c"]


def choosing(wanted: set[str]) -> Choose:
    return lambda codes: np.isin(codes, [java_hash(tag) for tag in wanted])


@pytest.mark.long
@given(
    tags=st.lists(st.sampled_from(TAGS), min_size=1, max_size=60),
    wanted=st.sets(st.sampled_from(TAGS)),
    max_messages=st.integers(1, 9),
    max_bytes=st.integers(1, 900),
)
def test_chosen_reads_are_the_chosen_of_a_plain_read(
    tmp_path_factory: pytest.TempPathFactory,
    tags: list[str],
    wanted: set[str],
    max_messages: int,
    max_bytes: int,
) -> None:
    store = open_store(tmp_path_factory.mktemp("store"))
    for tag in tags:
        store.append(make_run("T", 0, [tag.encode() or b"-"], {"TAGS": tag} if tag else {}))
    # One message at a time: a read ends where a queue's file does.
    pieces = [store.read_queue("T", 0, offset, 1, 1 << 20).records for offset in range(len(tags))]

    records, offset, turned_down = b"", 0, 0
    while offset < len(tags):
        slices = store.read_queue("T", 0, offset, max_messages, max_bytes, choosing(wanted))
        assert len(slices) <= max_messages
        assert len(slices) <= 1 or len(slices.records) <= max_bytes
        assert len(slices) + slices.turned_down == slices.next_offset - offset
        records += slices.records
        turned_down += slices.turned_down
        offset = slices.next_offset

    chosen = np.flatnonzero([tag in wanted for tag in tags])
    assert records == b"".join(pieces[row] for row in chosen)
    assert turned_down == len(tags) - len(chosen)
    store.close()
