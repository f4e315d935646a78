"""Groups for allocation tests: drawn by Hypothesis, and by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hypothesis import strategies as st

from pocketmq.client import Queue
from pocketmq.client.allocation import Member

TOPICS = ("orders", "payments", "refunds")


def queues_of(topic: str, *counts: int) -> list[Queue]:
    """Return COUNTS[i] queues of TOPIC on broker i."""
    return [
        Queue(topic, f"broker-{broker}", number)
        for broker, count in enumerate(counts)
        for number in range(count)
    ]


def members_of(names: str, *topics: str) -> list[Member]:
    """Return a member for each letter of NAMES, subscribed to TOPICS."""
    return [Member(name, topics=frozenset(topics)) for name in names]


def holding(members: Iterable[Member], shares: Mapping[str, Sequence[Queue]]) -> list[Member]:
    """Return MEMBERS as they say that they hold SHARES."""
    return [
        Member(one.member_id, one.instance_id, one.room, tuple(shares[one.member_id]), one.topics)
        for one in members
    ]


@st.composite
def queues(draw: st.DrawFn) -> list[Queue]:
    brokers = ["room-a@one", "room-b@two", "room-c@three", "plain"]
    return [
        Queue(topic, broker, number)
        for topic in TOPICS
        for broker in draw(st.lists(st.sampled_from(brokers), unique=True, max_size=3))
        for number in range(draw(st.integers(0, 5)))
    ]


@st.composite
def groups(
    draw: st.DrawFn, *, alike: bool = False, least: int = 1
) -> tuple[list[Member], list[Queue]]:
    """Draw members, who hold some of the queues or of others, and queues; ALIKE: all with one subscription."""
    there = draw(queues())
    names = draw(
        st.lists(
            st.text("abc.é𐀀@", min_size=1, max_size=3), unique=True, min_size=least, max_size=6
        )
    )
    claims = st.lists(st.sampled_from([*there, Queue("gone", "plain", 0)]), unique=True, max_size=8)
    members = [
        Member(
            name,
            room=draw(st.sampled_from(["", "room-a", "room-b"])),
            held=tuple(draw(claims)),
            topics=frozenset(
                TOPICS if alike else draw(st.sets(st.sampled_from(TOPICS), min_size=1))
            ),
        )
        for name in names
    ]
    return members, there
