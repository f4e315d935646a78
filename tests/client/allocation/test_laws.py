"""What every strategy promises, and what some do."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import Queue
from pocketmq.client.allocation import Member, Strategy, allocated, moves
from pocketmq.client.allocation_strategies import (
    Average,
    AverageByCircle,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
)
from pocketmq.client.sticky_allocation import Sticky

from .groups import groups, members_of, queues_of

pytestmark = pytest.mark.slow

#: Those that leave no queue of a subscribed topic to nobody.
COMPLETE: list[Strategy] = [
    Average(),
    AverageByCircle(),
    ConsistentHash(),
    MachineRoomNearby(),
    MachineRoomNearby(Sticky()),
    Sticky(),
]
EVERY: list[Strategy] = [*COMPLETE, MachineRoom(), MachineRoom({"room-a"})]


def each(strategies: list[Strategy]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("strategy", strategies, ids=lambda strategy: strategy.name)


@each(COMPLETE)
@given(group=groups())
def test_every_queue_of_a_subscribed_topic_goes_to_exactly_one_member(
    strategy: Strategy, group: tuple[list[Member], list[Queue]]
) -> None:
    members, queues = group
    wanted = frozenset().union(*(member.topics for member in members))

    shares = allocated(strategy, members, queues)

    given = [queue for share in shares.values() for queue in share]
    assert sorted(given) == sorted(queue for queue in queues if queue.topic in wanted)


@each(EVERY)
@given(group=groups(), seed=st.integers())
def test_the_order_of_the_input_makes_no_difference(
    strategy: Strategy, group: tuple[list[Member], list[Queue]], seed: int
) -> None:
    members, queues = group
    shuffled = Random(seed).sample(members, len(members)), Random(seed).sample(queues, len(queues))

    assert strategy.allocate(*shuffled) == strategy.allocate(members, queues)


@each([Average(), AverageByCircle()])
@given(group=groups())
def test_an_average_strategy_balances_each_topic_within_one(
    strategy: Strategy, group: tuple[list[Member], list[Queue]]
) -> None:
    members, queues = group

    shares = strategy.allocate(members, queues)

    for topic in {queue.topic for queue in queues}:
        numbers = [
            sum(queue.topic == topic for queue in shares[member.member_id])
            for member in members
            if topic in member.topics
        ]
        assert not numbers or max(numbers) - min(numbers) <= 1


@each(EVERY)
def test_members_that_are_too_many_get_nothing(strategy: Strategy) -> None:
    shares = strategy.allocate(members_of("abcdef", "orders"), queues_of("orders", 2))

    assert set(shares) == set("abcdef")
    assert sum(map(len, shares.values())) in (0, 2)


@each(EVERY)
def test_no_members_and_no_queues_are_no_trouble(strategy: Strategy) -> None:
    assert strategy.allocate([], queues_of("orders", 2)) == {}
    assert strategy.allocate(members_of("a", "orders"), []) == {"a": []}


@given(group=groups(least=2))
def test_a_consistent_hash_moves_only_the_queues_of_the_member_that_goes(
    group: tuple[list[Member], list[Queue]],
) -> None:
    members, queues = group
    before = ConsistentHash().allocate(members, queues)

    after = ConsistentHash().allocate(members[1:], queues)

    gone = members[0].member_id
    assert all(move.source == gone for move in moves(before, after))


def test_a_consistent_hash_with_more_points_is_more_even() -> None:
    members, queues = members_of("abcd", "orders"), queues_of("orders", 2000, 2000)

    spread = {
        nodes: max(map(len, ConsistentHash(nodes).allocate(members, queues).values())) - 1000
        for nodes in (10, 1000)
    }

    assert spread[1000] < spread[10] / 2


@each([*COMPLETE[:2], ConsistentHash(), Sticky()])
def test_a_restart_under_an_instance_id_moves_nothing(strategy: Strategy) -> None:
    topics, queues = frozenset({"orders"}), queues_of("orders", 5, 5)
    others = [Member("b", topics=topics), Member("k", topics=topics)]
    before = strategy.allocate([Member("z-old", "c", topics=topics), *others], queues)
    held = tuple(before["z-old"])

    after = strategy.allocate([Member("a-new", "c", held=held, topics=topics), *others], queues)

    assert after["a-new"] == before["z-old"]
    assert after["b"] == before["b"]


def test_queues_stay_in_their_room_while_a_member_lives_there() -> None:
    topics = frozenset({"orders"})
    members = [Member(name, room=f"room-{name}", topics=topics) for name in "ab"]
    queues = [Queue("orders", f"room-{room}@x", number) for room in "abc" for number in range(2)]

    shares = MachineRoomNearby().allocate(members, queues)

    rooms = {name: Counter(queue.broker for queue in share) for name, share in shares.items()}
    assert rooms == {"a": {"room-a@x": 2, "room-c@x": 1}, "b": {"room-b@x": 2, "room-c@x": 1}}


def test_rooms_may_be_told_in_another_way() -> None:
    strategy = MachineRoomNearby(room_of=lambda broker: broker[-1])
    members = [Member("a", room="0", topics=frozenset({"t"})), Member("b", topics=frozenset({"t"}))]

    shares = strategy.allocate(members, queues_of("t", 4))

    assert len(shares["a"]) == 4
