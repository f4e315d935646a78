"""Strategies are found by name, class, object and entry point; what is none is refused with what is known."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from pocketmq.client import Queue
from pocketmq.client.allocation import Member
from pocketmq.client.allocation_strategies import (
    Average,
    ConsistentHash,
    known_strategies,
    strategy_named,
)
from pocketmq.client.sticky_allocation import Sticky
from pocketmq.proto.errors import ConfigError


class FirstTakesAll:
    """Somebody's own."""

    name = "first-takes-all"

    def allocate(
        self, members: Sequence[Member], queues: Sequence[Queue]
    ) -> dict[str, list[Queue]]:
        return {min(member.member_id for member in members): list(queues)}


@pytest.mark.parametrize("name", [name for name in known_strategies() if name != "configured"])
def test_a_strategy_bears_the_name_by_which_it_is_found(name: str) -> None:
    assert strategy_named(name).name == name


def test_a_room_is_divided_by_the_strategy_behind_the_dash() -> None:
    assert strategy_named("machine-room-nearby-sticky").name == "machine-room-nearby-sticky"


def test_an_object_is_taken_as_it_is_and_a_class_is_made() -> None:
    own = ConsistentHash(500)

    assert strategy_named(own) is own
    assert isinstance(strategy_named(Sticky), Sticky)


def test_a_class_is_found_by_its_module() -> None:
    found = strategy_named("pocketmq.client.allocation_strategies:Average")

    assert isinstance(found, Average)


def test_a_package_announces_its_own_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("ours", "pocketmq.client.sticky_allocation:Sticky", "pocketmq.allocation")

    def entry_points(*, group: str) -> EntryPoints:
        return EntryPoints((point,) if group == "pocketmq.allocation" else ())

    monkeypatch.setattr(metadata, "entry_points", entry_points)

    assert isinstance(strategy_named("ours"), Sticky)
    assert known_strategies()[-1] == "ours"


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("avrage", "'avrage' is unknown: use average, average-by-circle, consistent-hash"),
        ("configured", "needs arguments"),
        ("no.such.module:Thing", "cannot be loaded"),
        ("pocketmq.client.allocation:Nothing", "cannot be loaded"),
        (":", "cannot be loaded"),
        ("random:Random", "has no `name` or no `allocate"),
        (Queue, "needs arguments"),
        (object(), "has no `name` or no `allocate"),
    ],
)
def test_what_is_no_strategy_is_refused(wanted: object, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        strategy_named(wanted)  # type: ignore[arg-type]

    assert sentence in caught.value.message
    assert caught.value.details["field"] == "strategy"


def test_an_own_strategy_needs_nothing_but_a_name_and_a_method() -> None:
    own = strategy_named(FirstTakesAll)

    assert own.allocate([Member("b"), Member("a")], [Queue("t", "b", 0)]) == {
        "a": [Queue("t", "b", 0)]
    }


def test_a_ring_without_points_is_refused() -> None:
    with pytest.raises(ConfigError, match="virtual_nodes is 0: it must be 1 to 100000"):
        ConsistentHash(0)
