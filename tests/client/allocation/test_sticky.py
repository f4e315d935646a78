"""Sticky: as even as can be, over all topics, with as few moves as can be."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given

from pocketmq.client import Queue
from pocketmq.client.allocation import Member, moves, ordered_members
from pocketmq.client.sticky_allocation import Sticky

from .groups import groups, holding, members_of, queues_of


def first_claims(members: list[Member], queues: list[Queue]) -> dict[Queue, str]:
    """Return who holds what by right: the first that says so and subscribes to it."""
    claims: dict[Queue, str] = {}
    for member in ordered_members(members):
        for queue in member.held:
            if queue in queues and queue.topic in member.topics:
                claims.setdefault(queue, member.member_id)
    return claims


@given(groups(alike=True))
def test_with_one_subscription_it_is_even_within_one_and_keeps_the_most_that_can_be_kept(
    group: tuple[list[Member], list[Queue]],
) -> None:
    members, queues = group

    shares = Sticky().allocate(members, queues)

    numbers = [len(share) for share in shares.values()]
    assert max(numbers) - min(numbers) <= 1
    claims = first_claims(members, queues)
    held = [sum(one.member_id == owner for owner in claims.values()) for one in members]
    least, longer = divmod(len(queues), len(members))
    # An even division has room for `least` queues everywhere, and for one more with `longer` members.
    bound = sum(min(number, least) for number in held)
    bound += min(longer, sum(number > least for number in held))
    kept = sum(queue in shares[owner] for queue, owner in claims.items())
    assert kept == bound


@pytest.mark.long
@given(groups())
def test_with_several_subscriptions_no_chain_of_members_leads_to_one_with_two_fewer(
    group: tuple[list[Member], list[Queue]],
) -> None:
    members, queues = group

    shares = Sticky().allocate(members, queues)

    hands_to = {
        giver.member_id: {
            taker.member_id
            for taker in members
            if any(queue.topic in taker.topics for queue in shares[giver.member_id])
        }
        for giver in members
    }
    for giver in hands_to:
        reached = {giver}
        while more := set().union(*(hands_to[one] for one in reached)) - reached:
            reached |= more
        assert all(len(shares[giver]) - len(shares[one]) < 2 for one in reached)


@given(groups())
def test_what_is_settled_does_not_move(group: tuple[list[Member], list[Queue]]) -> None:
    members, queues = group
    shares = Sticky().allocate(members, queues)

    again = Sticky().allocate(holding(members, shares), queues)

    assert again == shares


def test_a_member_that_comes_gets_its_part_and_nothing_else_moves() -> None:
    queues = queues_of("orders", 4, 4) + queues_of("payments", 4)
    before = Sticky().allocate(members_of("abc", "orders", "payments"), queues)
    members = holding(members_of("abc", "orders", "payments"), before)

    after = Sticky().allocate([*members, *members_of("d", "orders", "payments")], queues)

    assert [move.target for move in moves(before, after)] == ["d"] * 3


def test_a_member_that_goes_leaves_only_its_own_to_the_others() -> None:
    queues = queues_of("orders", 4, 4) + queues_of("payments", 4)
    before = Sticky().allocate(members_of("abcd", "orders", "payments"), queues)
    members = holding(members_of("abc", "orders", "payments"), before)

    after = Sticky().allocate(members, queues)

    assert [move.source for move in moves(before, after)] == ["d"] * 3


def test_topics_of_one_queue_are_spread_where_averages_pile_them_up() -> None:
    queues = [Queue(f"topic-{number}", "b", 0) for number in range(9)]
    members = members_of("abc", *(queue.topic for queue in queues))

    shares = Sticky().allocate(members, queues)

    assert [len(share) for share in shares.values()] == [3, 3, 3]


def test_two_that_claim_one_queue_are_settled_by_name() -> None:
    queue = Queue("orders", "b", 0)
    claimants = [Member(name, held=(queue,), topics=frozenset({"orders"})) for name in "ba"]

    assert Sticky().allocate(claimants, [queue]) == {"a": [queue], "b": []}


def test_small_cases_with_several_subscriptions_move_at_most_one_more_than_the_fewest() -> None:
    """Held against every balanced division of four queues among three members."""
    queues = queues_of("orders", 2) + queues_of("payments", 2)
    topics = {"a": {"orders"}, "b": {"orders", "payments"}, "c": {"payments"}}
    surplus = []
    for owners in product("abc", repeat=4):
        held = {
            name: tuple(q for q, o in zip(queues, owners, strict=True) if o == name)
            for name in "abc"
        }
        members = [Member(n, held=held[n], topics=frozenset(topics[n])) for n in "abc"]
        rights = first_claims(members, queues)
        shares = Sticky().allocate(members, queues)
        spread = sorted(map(len, shares.values()))
        fewest = min(
            sum(
                rights.get(queue) not in (owner, None)
                for queue, owner in zip(queues, other, strict=True)
            )
            for other in product("abc", repeat=4)
            if all(q.topic in topics[owner] for q, owner in zip(queues, other, strict=True))
            and sorted(map(other.count, "abc")) == spread
        )
        moved = sum(queue not in shares[owner] for queue, owner in rights.items())
        surplus.append(moved - fewest)

    assert max(surplus) <= 1
    assert sum(surplus) < len(surplus) / 10
