"""Subscriptions of the members of a group, and how those of two members differ, in words.

Members share the queues of a group. If their subscriptions differ, a member skips messages that another one needs. So
all must subscribe to the same topics with the same filters, and use the same allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...proto.errors import InvalidArgument, SubscriptionMismatch
from ...proto.filters.normal_form import normalised
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import check_topic
from .field_checks import check_name, check_range

SUBSCRIPTIONS_MAX: Final = 1_000
#: Limits of topics that are listed, and of the characters of an expression.
_TOLD_MAX: Final = 5
_EXPRESSION_TOLD_MAX: Final = 60


#: Topics with their filters; strategy; whether each member allocates for itself.
SubscriptionsKey: TypeAlias = tuple[tuple[tuple[str, tuple[int, str]], ...], str, bool]


@dataclass(frozen=True, slots=True)
class MemberSubscriptions:
    """The subscription and allocation of a member. All members have the same, except during a grace period."""

    #: Filter kind and expression by topic, in canonical form.
    topics: dict[str, tuple[int, str]]
    strategy: str
    each_for_itself: bool

    @property
    def key(self) -> SubscriptionsKey:
        """All of it as a key that can be compared and looked up."""
        return tuple(sorted(self.topics.items())), self.strategy, self.each_for_itself

    @classmethod
    def of(cls, join: pb.Join) -> MemberSubscriptions:
        """Return the subscriptions in JOIN. Raises InvalidArgument, InvalidName or InvalidFilter."""
        check_range("subscriptions", len(join.subscriptions), 0, SUBSCRIPTIONS_MAX)
        topics: dict[str, tuple[int, str]] = {}
        for one in join.subscriptions:
            if check_topic(one.topic) in topics:
                raise InvalidArgument(
                    f"subscriptions: topic {one.topic!r} is listed twice: list it once, with one filter",
                    field="subscriptions",
                    value=one.topic,
                )
            plain = normalised(one.filter)
            topics[one.topic] = (plain.kind, plain.expression)
        return cls(topics, check_name("strategy", join.strategy), join.each_for_itself)


def differences(
    mine: MemberSubscriptions,
    others: MemberSubscriptions,
    sees: Callable[[str], bool] = lambda topic: True,
) -> list[str]:
    """Return how MINE differ from OTHERS in words, one topic each; empty if they are the same.

    SEES returns whether the reader of the words may see a topic. Hidden topics are only counted.
    """
    found = []
    hidden = 0
    for topic in sorted(mine.topics.keys() | others.topics.keys()):
        here, there = mine.topics.get(topic), others.topics.get(topic)
        if here != there and not sees(topic):
            hidden += 1
        elif here != there:
            found.append(
                f"topic {topic!r}: {want_in_words(here)} here, {want_in_words(there)} there"
            )
    if hidden:
        found.append(
            f"{hidden} topic{'s' if hidden > 1 else ''} that one of their users may not see"
        )
    if mine.strategy != others.strategy:
        found.append(f"strategy: {mine.strategy!r} here, {others.strategy!r} there")
    if mine.each_for_itself != others.each_for_itself:
        who = ("by the leader", "each for itself")
        found.append(
            f"allocated {who[mine.each_for_itself]} here, {who[others.each_for_itself]} there"
        )
    return found


def mismatch(
    group: str, mine: pb.Member, other: pb.Member, found: Sequence[str], advice: str
) -> SubscriptionMismatch:
    """Return the error with the differences FOUND between two members of GROUP."""
    told = "; ".join(found[:_TOLD_MAX])
    more = f"; and {len(found) - _TOLD_MAX} more" if len(found) > _TOLD_MAX else ""
    return SubscriptionMismatch(
        f"member {mine.member_id!r} ({mine.peer}) and member {other.member_id!r} ({other.peer}) of group {group!r}"
        f" have different subscriptions: {told}{more}: {advice}",
        group=group,
        member=mine.member_id,
        member_peer=mine.peer,
        other=other.member_id,
        other_peer=other.peer,
        difference=told + more,
    )


def want_in_words(want: tuple[int, str] | None) -> str:
    """Return WANT, kind and expression of a filter, in words; None: no subscription."""
    if want is None:
        return "not subscribed"
    kind, expression = want
    if kind == pb.Filter.ALL:
        return "every message"
    short = expression[:_EXPRESSION_TOLD_MAX]
    short += "…" if len(expression) > _EXPRESSION_TOLD_MAX else ""
    return f"{'tags' if kind == pb.Filter.TAG else 'SQL'} {short!r}"
