"""Counts of what filters stepped over: each message once, however often it is looked at."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pocketmq.broker.filters.counts import Counts
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

KEY = ("g", "T", 0)


def look(
    counts: Counts, begin: int, end: int, wanted: set[int], key: tuple[str, str, int] = KEY
) -> None:
    """Look at the messages [BEGIN, END), of which WANTED are not stepped over."""
    inside = sorted(number for number in wanted if begin <= number < end)
    counts.add(
        key,
        begin,
        end,
        stepped=end - begin - len(inside),
        wanted=np.array(inside, np.int64),
        queue_end=100,
    )


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)),
    st.sets(st.integers(0, 30)),
)
def test_each_message_is_counted_once(ranges: list[list[int]], wanted: set[int]) -> None:
    counts = Counts()
    up_to, counted = 0, set[int]()

    for begin, end in ranges:
        look(counts, begin, end, wanted)
        counted |= {number for number in range(begin, end) if number >= up_to} - wanted
        up_to = max(up_to, end)

    assert sum(one.count for one in counts.of_group("g")) == len(counted)


def test_counts_are_told_by_group_topic_and_queue() -> None:
    counts = Counts()
    look(counts, 0, 5, {1}, ("g", "T", 1))
    look(counts, 0, 3, set(), ("g", "T", 0))
    look(counts, 0, 3, {0, 1, 2}, ("g", "U", 0))
    look(counts, 0, 9, set(), ("h", "T", 0))

    assert counts.of_group("g") == [
        pb.FilteredCount(topic="T", queue=0, group="g", count=3),
        pb.FilteredCount(topic="T", queue=1, group="g", count=4),
    ]
    assert counts.of_group("nobody") == []


def test_a_queue_that_begins_anew_is_counted_anew() -> None:
    counts = Counts()
    look(counts, 0, 50, set())

    counts.add(KEY, 0, 2, stepped=2, wanted=np.zeros(0, np.int64), queue_end=2)

    assert counts.of_group("g")[0].count == 52


def test_beyond_the_bound_the_one_looked_at_longest_ago_is_forgotten() -> None:
    counts = Counts(limit=2)
    for group in ("a", "b", "a", "c"):
        look(counts, 0, 5, set(), (group, "T", 0))

    assert [len(counts.of_group(group)) for group in "abc"] == [1, 0, 1]
