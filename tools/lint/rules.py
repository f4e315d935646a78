"""The rules of `pocketmq lint`: they take facts and return findings. Pure.

rule               finding
filters            members of a group have different filters: a message that one filters out is skipped for all
never-wanted       messages that every group filtered out
tag                a tag that no filter can name ("a||b", "*", blanks at an end)
no-key             messages of a FIFO topic without a sharding key (message group): only their queue keeps their order
too-many-members   a topic has fewer queues than members: some members get no messages
unreadable         messages that no client may read: the queue is beyond the read queues, or there is no permission
switched-off       a group with unread messages whose delivery is off
no-reader          a group with unread messages and no consumer
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ...client import GroupStatus
from ...proto.errors import InvalidFilter
from ...proto.filters.expressions import parse_tags
from ...proto.time_text import format_duration, format_instant
from ..counted import counted

Rule = Literal[
    "filters", "never-wanted", "tag", "no-key", "too-many-members", "unreadable", "switched-off", "no-reader"
]  # fmt: skip

_READ: Final = 4
#: Limit of a list in a sentence.
_LISTED_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A finding of RULE about a TOPIC or a GROUP (else None), on BROKER; None: on several or all brokers."""

    rule: Rule
    text: str
    topic: str | None = None
    group: str | None = None
    broker: str | None = None
    count: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the finding as JSON shows it."""
        return {
            name: getattr(self, name)
            for name in ("rule", "broker", "topic", "group", "count", "text")
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterUse:
    """How many messages of a topic a group's filter left out. UNTIL_MS: when it did last; 0: never."""

    filter: str
    count: int
    until_ms: int


@dataclass(slots=True, kw_only=True)
class QueueMessages:
    """Counts of the messages of one queue.

    tags: messages by tag, for tags that no filter can name. unwanted: messages that every group filtered out, with
    the offsets of the first and the last, and their tags.
    """

    topic: str
    queue: int
    read: int = 0
    tags: dict[str, int] = field(default_factory=dict)
    without_key: int = 0
    unwanted: int = 0
    unwanted_first: int = -1
    unwanted_last: int = -1
    unwanted_tags: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """A topic of a broker. MESSAGES: how many each queue holds, as far as known."""

    name: str
    broker: str
    permission: int
    read_queues: int
    write_queues: int
    messages: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """A group, with its unread messages and queues by topic.

    members: number of members that share the queues of a topic. clients: number of official clients, each of which may
    receive any message. None: not known.
    """

    name: str
    consume_enable: bool
    unread: Mapping[str, int]
    queues: Mapping[str, int]
    members: Mapping[str, int] | None = None
    clients: int | None = None


def summed(uses: Iterable[FilterUse]) -> list[FilterUse]:
    """Return USES with one of each filter."""
    found: dict[str, FilterUse] = {}
    for use in uses:
        before = found.get(use.filter, FilterUse(filter=use.filter, count=0, until_ms=0))
        found[use.filter] = FilterUse(
            filter=use.filter,
            count=before.count + use.count,
            until_ms=max(before.until_ms, use.until_ms),
        )
    return list(found.values())


def of_filters(
    group: str, topic: str, uses: Iterable[FilterUse], broker: str | None
) -> Iterator[Mistake]:
    """Yield a finding if GROUP used more than one filter for TOPIC by USES."""
    found = sorted(summed(uses), key=lambda use: use.until_ms)
    if len(found) < 2:
        return
    listed = ", ".join(
        f"{use.filter or 'others'!r} filtered out {use.count:,}"
        + (f" until {format_instant(use.until_ms)}" if use.until_ms else "")
        for use in found[-_LISTED_MAX:]
    )
    yield Mistake(
        rule="filters",
        topic=topic,
        group=group,
        broker=broker,
        count=sum(use.count for use in found),
        text=f"read through {len(found)} filters: {listed}; a message that one filters out"
        " is skipped for the whole group",
    )


def of_members(report: GroupStatus, has_topic: Callable[[str], bool]) -> Iterator[Mistake]:
    """Yield each topic that members of a group read through different filters at this moment."""
    readers: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for member in (*report.members, *report.clients):
        for subscribed in member.subscriptions:
            topic, _, expression = subscribed.partition(": ")
            readers[topic][expression or "*"].append(member.member_id)
    until = (
        f"; in {format_duration(report.grace_left_ms // 1_000 * 1_000)} only the newest is served"
        if report.grace_left_ms is not None
        else ""
    )
    for topic, filters in sorted(readers.items()):
        if len(filters) > 1 and has_topic(topic):
            listed = ", ".join(
                f"{expression!r} by {len(members)} ({members[0]})"
                for expression, members in sorted(filters.items())[:_LISTED_MAX]
            )
            yield Mistake(
                rule="filters",
                topic=topic,
                group=report.name,
                count=len(filters),
                text=f"members read through {len(filters)} filters now: {listed}{until}",
            )


def of_messages(found: QueueMessages, broker: str, *, is_fifo: bool) -> Iterator[Mistake]:
    """Yield the mistakes in the messages FOUND in a queue of BROKER."""
    for tag, count in sorted(found.tags.items(), key=lambda item: -item[1])[:_LISTED_MAX]:
        yield Mistake(
            rule="tag",
            topic=found.topic,
            broker=broker,
            count=count,
            text=f"queue {found.queue}: {counted(count, 'message')} with the tag {tag[:64]!r}, which no filter can"
            " name. Use one word without || and surrounding blanks",
        )
    if is_fifo and found.without_key:
        yield Mistake(
            rule="no-key",
            topic=found.topic,
            broker=broker,
            count=found.without_key,
            text=f"queue {found.queue}: {found.without_key:,} of {counted(found.read, 'message')} of a FIFO topic have"
            " no sharding key (message group). Set one: messages with the same key stay in order",
        )
    if found.unwanted:
        tags = ", ".join(
            f"{tag!r} {count:,}"
            for tag, count in sorted(found.unwanted_tags.items(), key=lambda item: -item[1])[
                :_LISTED_MAX
            ]
        )
        yield Mistake(
            rule="never-wanted",
            topic=found.topic,
            broker=broker,
            count=found.unwanted,
            text=f"queue {found.queue}: every group filtered out {counted(found.unwanted, 'message')}, from offset"
            f" {found.unwanted_first:,} to {found.unwanted_last:,} (tags: {tags or 'none'})",
        )


def of_topic(topic: TopicShape) -> Iterator[Mistake]:
    """Yield the queues of TOPIC with messages that no client may read."""
    held = {queue: count for queue, count in topic.messages.items() if count}
    if not topic.permission & _READ:
        hidden, why = (
            held,
            "the topic has no read permission. Allow it (`pocketmq topic update --permission read-write`)",
        )
    else:
        hidden = {queue: count for queue, count in held.items() if queue >= topic.read_queues}
        queues = counted(topic.read_queues, "read queue")
        why = f"the topic has {queues}. Add some (`pocketmq topic update --read-queues`)"
    if topic.write_queues > topic.read_queues and not hidden:
        yield Mistake(
            rule="unreadable",
            topic=topic.name,
            broker=topic.broker,
            text=f"{topic.write_queues} queues are written, but {why}",
        )
    if hidden:
        count = sum(hidden.values())
        queues = ", ".join(map(str, sorted(hidden)[:_LISTED_MAX])) + (
            " …" if len(hidden) > _LISTED_MAX else ""
        )
        yield Mistake(
            rule="unreadable",
            topic=topic.name,
            broker=topic.broker,
            count=count,
            text=f"no client can read the {counted(count, 'message')} of queue {queues}: {why}",
        )


def of_group(group: GroupShape, broker: str | None) -> Iterator[Mistake]:
    """Yield the mistakes in the consumers of GROUP."""
    unread = sum(group.unread.values())
    if not group.consume_enable and unread:
        yield Mistake(
            rule="switched-off",
            group=group.name,
            broker=broker,
            count=unread,
            text=f"delivery is off (consumeEnable is false), and the group has {counted(unread, 'unread message')}",
        )
    if group.members is None or group.clients is None:
        return
    for topic, count in sorted(group.members.items()):
        queues = group.queues.get(topic, 0)
        if count > queues:
            yield Mistake(
                rule="too-many-members",
                topic=topic,
                group=group.name,
                count=count - queues,
                text=f"{counted(count, 'member')} share {counted(queues, 'queue')}; {count - queues} get none. Add"
                " queues, or run fewer members",
            )
    if unread and not group.members and not group.clients:
        topics: Sequence[str] = [name for name, count in sorted(group.unread.items()) if count]
        more = " …" if len(topics) > _LISTED_MAX else ""
        yield Mistake(
            rule="no-reader",
            group=group.name,
            count=unread,
            text=f"the group has no consumer, and {counted(unread, 'unread message')} in"
            f" {', '.join(topics[:_LISTED_MAX])}{more}. Start a consumer, or delete the group",
        )


def is_nameable(tag: str) -> bool:
    """Is there a filter that selects exactly the messages with TAG?"""
    try:
        return parse_tags(tag) == (tag,)
    except InvalidFilter:
        return False
