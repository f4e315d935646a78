"""The lag rows of a cluster that runs, by asking its brokers.

Offsets, ages and bytes come from the brokers, each group in one call (bytes only up to two million unread
messages per group and broker), and what was popped. What a broker does not report is unknown here: scheduled messages.
The files tell it: give the store instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial

from ...client import Admin, GroupQueue, GroupStatus
from ...client.config import ReadFrom
from ...proto.errors import NotAuthorized, TopicNotFound
from ...proto.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX
from ..hidden_names import HiddenNames
from .rows import LagFacts, LagRow, is_dead_letter_topic, is_retry_topic


def cluster_rows(admin: Admin, hidden: HiddenNames, read_from: ReadFrom = "master") -> list[LagRow]:
    """Return the rows of every group on every broker that ADMIN reaches, by broker, topic, queue and group.

    What the user may not look at is added to HIDDEN, until this is warned of. READ_FROM "any": replicas that follow
    look at the queues; their masters say who reads them, and what was popped.
    """
    found = list(cluster_groups(admin, hidden, read_from=read_from))
    every = [row for _, rows in found for row in rows]
    if not hidden.is_warned and any(report.hidden_topics for report, _ in found):
        hidden.topics.update(_refused_topics(admin, {row.facts.topic for row in every}))
    return sorted(every, key=lambda row: row.key)


def _refused_topics(admin: Admin, seen: Container[str]) -> Iterator[str]:
    """Yield the topics, without SEEN ones and those of groups, that the user may list and not look at."""
    for topic in (one.name for one in admin.topics()):
        if topic in seen or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            continue
        try:
            admin.describe_topic(topic)
        except NotAuthorized:
            yield topic
        except TopicNotFound:
            continue  # It was deleted meanwhile.


def cluster_groups(
    admin: Admin, hidden: HiddenNames, pattern: str = "*", read_from: ReadFrom = "master"
) -> Iterator[tuple[GroupStatus, list[LagRow]]]:
    """Yield each group of the brokers that ADMIN reaches whose name is like PATTERN, and its rows.

    Groups that the user may not look at are added to HIDDEN.
    """
    describe = partial(admin.describe_group, read_from=read_from)
    listed = {topic.name for topic in admin.topics(include_system=True)}
    derived = {name for name in listed if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))}
    for group in (one for one in admin.groups() if fnmatchcase(one.name, pattern)):
        try:
            report = describe(group)
        except NotAuthorized:
            hidden.groups.add(group.name)
            continue
        queues = list(_queues(partial(describe, group), group.name, report.queues, derived))
        yield report, rows_of_group(group.name, queues)


def _queues(
    describe: Callable[..., GroupStatus],
    group: str,
    queues: Sequence[GroupQueue],
    derived: set[str],
) -> Iterator[GroupQueue]:
    """Yield the progress of GROUP in the QUEUES that it reads, and in its retry and dead-letter topics."""
    yield from queues
    known = {one.queue.topic for one in queues}
    for topic in (RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group):
        if topic in derived and topic not in known:
            try:
                more = describe(topic=topic).queues
            except (NotAuthorized, TopicNotFound):
                continue
            yield from (one for one in more if one.max_offset > one.first_offset)


def rows_of_group(group: str, queues: Sequence[GroupQueue]) -> list[LagRow]:
    """Return the rows of GROUP in QUEUES, those of its retries and dead letters among them."""
    retries: dict[str, int] = defaultdict(int)
    dead: dict[str, int] = defaultdict(int)
    for one in queues:
        broker = one.queue.broker
        if is_dead_letter_topic(one.queue.topic, group):
            dead[broker] += max(0, one.max_offset - one.first_offset)
        elif is_retry_topic(one.queue.topic, group):
            retries[broker] += max(0, one.lag)
    return [_row(group, one, retries[one.queue.broker], dead[one.queue.broker]) for one in queues]


def _row(group: str, one: GroupQueue, retries: int, dead: int) -> LagRow:
    topic, broker, number = one.queue
    is_own = is_retry_topic(topic, group) or is_dead_letter_topic(topic, group)
    facts = LagFacts(
        topic=topic,
        queue_id=number,
        group=group,
        committed_offset=one.offset if one.offset >= 0 else None,
        min_offset=one.min_offset,
        max_offset=one.max_offset,
        purged_below=one.purged_below,
        held=one.in_flight_count,
        read_to=one.popped_to,
        skipped=one.filtered_count,
        retries=None if is_own else retries,
        dead_letters=None if is_own else dead,
    )
    is_known = facts.committed_offset is not None
    return LagRow.of(
        broker,
        facts,
        lag_bytes=one.unread_bytes if is_known else None,
        oldest_unread_age_ms=one.oldest_unread_ms if is_known and facts.lag else None,
    )
