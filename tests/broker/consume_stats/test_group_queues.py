"""Queues of groups as keys of tables: every name that a broker can serve is read as it was written."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from pocketmq.broker.group_queues import group_queue_table, number_of
from pocketmq.broker.unusual_entries import is_storable
from pocketmq.proto.topics import check_group, check_topic

#: What separates names, and what is not ASCII, more often than by chance.
NAMES = st.text(st.sampled_from("ab@@[%|_ é\U0001f600") | st.characters(), min_size=1, max_size=40)
TOPICS = NAMES.filter(lambda name: is_storable(name, check_topic))
GROUPS = NAMES.filter(lambda name: is_storable(name, check_group))


@given(GROUPS, TOPICS, st.integers(0, (1 << 31) - 1))
@example("a@b@1", "T", 0)
@example("@", "T", 0)
@example("[", "[", 0)
def test_a_key_is_read_as_it_was_written(group: str, topic: str, queue: int) -> None:
    codec = group_queue_table(9, "test", int, int).codec
    assert codec.read_key(codec.key((group, topic, queue))) == (group, topic, queue)


@pytest.mark.parametrize("number", [0, (1 << 63) - 1, -(1 << 63) + 1])
def test_numbers_of_entries_fit_in_replies(number: int) -> None:
    assert number_of(number) == number
    with pytest.raises(ValueError, match="64 bits"):
        number_of(1 << 63)
