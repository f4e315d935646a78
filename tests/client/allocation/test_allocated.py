"""Faults of a strategy are told, and never reach a group; a table says who reads what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pocketmq.client import Queue
from pocketmq.client.allocation import Member, allocated, moves
from pocketmq.client.allocation_strategies import Average, Configured
from pocketmq.proto.errors import ConfigError

from .groups import members_of, queues_of

ONE, TWO = queues_of("orders", 2)
OTHER = Queue("payments", "broker-0", 0)


class Fixed:
    """Gives what it was told to give."""

    name = "fixed"

    def __init__(self, shares: dict[str, list[Queue]]) -> None:
        self._shares = shares

    def allocate(
        self, members: Sequence[Member], queues: Sequence[Queue]
    ) -> dict[str, list[Queue]]:
        return self._shares


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ({"a": [ONE], "b": [ONE]}, "to 'a' and to 'b'"),
        ({"a": [ONE, ONE]}, "to 'a' and to 'a'"),
        ({"x": [ONE]}, "to 'x', which is not a member"),
        ({"a": [Queue("orders", "broker-0", 9)]}, "but the queue does not exist"),
        ({"a": [OTHER]}, "which does not subscribe to its topic"),
    ],
)
def test_a_fault_names_the_strategy_and_the_queue(
    shares: dict[str, list[Queue]], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        allocated(Fixed(shares), members_of("ab", "orders"), [ONE, TWO, OTHER])

    assert sentence in caught.value.message
    assert caught.value.message.startswith("allocation strategy 'fixed' assigned queue ")


def test_who_gets_nothing_has_an_empty_entry() -> None:
    assert allocated(Fixed({"a": [ONE]}), members_of("ab", "orders"), [ONE]) == {
        "a": [ONE],
        "b": [],
    }


def test_a_table_gives_what_it_says_by_instance_and_passes_over_what_is_not_there() -> None:
    table = Configured({"first": [TWO, Queue("orders", "gone", 0), OTHER], "b": [ONE]})
    topics = frozenset({"orders"})
    members = [
        Member("a", "first", topics=topics),
        Member("b", topics=topics),
        Member("c", topics=topics),
    ]

    shares = allocated(table, members, [ONE, TWO, OTHER])

    assert shares == {"a": [TWO], "b": [ONE], "c": []}


def test_a_table_that_gives_a_queue_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="configured for 'a' and for 'b'"):
        Configured({"a": [ONE], "b": [ONE]})


def test_moves_tell_what_changed_hands() -> None:
    before = Average().allocate(members_of("ab", "orders"), [ONE, TWO])

    changed = moves(before, {"b": [ONE, OTHER]})

    assert changed == [(ONE, "a", "b"), (TWO, "b", ""), (OTHER, "", "b")]
