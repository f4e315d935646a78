"""`pocketmq lint`: likely mistakes in topics, groups and messages, from the files of stores or live brokers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

import click

from ...broker.consume_stats import StatsKey, stats_in
from ...broker.queue_stats import EVERY, QueueStats, SkippedBy
from ...client import Admin, GroupStatus
from ...client.config import ReadFrom
from ...client.name_server_addresses import DEFAULT_NAME_SERVERS
from ...proto.clock import SystemClock
from ...proto.errors import NotAuthorized, TopicNotFound
from ...proto.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic
from ...store.format.queues import LIGHT_PREFIX
from ...store.opened_store import OpenedStore
from .. import options
from ..counted import counted
from ..hidden_names import HiddenNames
from ..lag.cold import store_rows
from ..output import print_json, print_table, warn
from ..stores import RecoveryName
from ..stores.cold_store import open_cold
from ..stores.locations import StoreLocation, locate
from ..stores.names import KnownNames
from .messages import read_messages, stats_by_queue
from .rules import (
    FilterUse,
    GroupShape,
    Mistake,
    TopicShape,
    of_filters,
    of_group,
    of_members,
    of_messages,
    of_topic,
)

#: Prefix of internal groups, which are not checked.
_OWN_GROUP: Final = "CID_RMQ_SYS_"
_FIFO: Final = "FIFO"
_TYPE: Final = "message.type"
_FOUND: Final = 1


@click.command(cls=options.StoreCommand)
@options.stores_argument
@options.cluster_option
@options.pattern_options
@click.option(
    "--messages",
    type=options.NUMBER,
    default=100_000,
    show_default=True,
    help="Number of newest messages to read in each queue of a STORE; 0: none.",
)
@options.read_from_option("report the lag; they may be a moment behind")
@options.broker_settings_option
@options.recovery_option
@options.json_option("one finding per line")
def lint(
    stores: Sequence[str],
    *,
    nameserver: str | None,
    read_from: ReadFrom | None,
    as_json: bool,
    settings: Sequence[str],
    **given: Any,
) -> None:
    """Find likely mistakes in topics, groups and messages.

    Finds different filters in one group, and queues that no client may read. In a STORE also messages that every
    filter left out, tags that no filter can name, and messages without a sharding key in FIFO topics. In a cluster
    also groups without consumers, and topics with more members than queues.

    \b
    Example: pocketmq lint --topic 'orders*'

    Exit code 1: something was found.
    """
    reading = options.read_from_of(read_from, stores)
    asked = _Asked(**given)
    known = asked.known
    if stores:
        findings = [
            one
            for place in locate(stores, settings=options.broker_settings(settings))
            for one in asked.of_store(place)
        ]
    else:
        with Admin(nameserver or DEFAULT_NAME_SERVERS) as admin:
            known.add_cluster(admin)
            findings = list(asked.of_cluster(admin, reading))
            asked.hidden.warn_once(admin)
    known.check(topics=[asked.topic], groups=[asked.group])
    if as_json:
        for finding in findings:
            print_json(finding.document())
    else:
        if findings:
            titles = ["rule", "broker", "topic", "group", "what"]
            print_table(titles, [_row(finding) for finding in findings])
        click.echo(asked.summary(findings, from_files=bool(stores)))
    if findings:
        click.get_current_context().exit(_FOUND)


def _row(finding: Mistake) -> list[object]:
    return [
        finding.rule,
        *(part or "-" for part in (finding.broker, finding.topic, finding.group)),
        finding.text,
    ]


@dataclass(slots=True, kw_only=True)
class _Asked:
    """The arguments, and the topics, groups and messages that were checked."""

    topic: str
    group: str
    messages: int
    recovery: RecoveryName
    topics_seen: set[str] = field(default_factory=set)
    groups_seen: set[str] = field(default_factory=set)
    known: KnownNames = field(default_factory=KnownNames)
    hidden: HiddenNames = field(default_factory=HiddenNames)
    messages_seen: int = 0

    def has_topic(self, name: str) -> bool:
        """Is NAME a topic of users that the arguments select?"""
        own = is_system_topic(name) or name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        return not own and fnmatchcase(name, self.topic)

    def has_group(self, name: str) -> bool:
        """Is NAME a group of users that the arguments select?"""
        return not name.startswith(_OWN_GROUP) and fnmatchcase(name, self.group)

    def summary(self, findings: Sequence[Mistake], *, from_files: bool) -> str:
        """Return the last line for people."""
        count = len(findings)
        found = counted(count, "finding") if count else "no findings"
        seen = (
            f"{counted(len(self.topics_seen), 'topic')}, {counted(len(self.groups_seen), 'group')}"
        )
        if from_files:
            return (
                f"{found} (checked {seen}, {counted(self.messages_seen, 'message')}). To check consumers, run"
                " `pocketmq lint` without a STORE."
            )
        return f"{found} (checked {seen}). To check messages, run `pocketmq lint STORE`."

    def of_store(self, place: StoreLocation) -> Iterator[Mistake]:
        """Yield the mistakes in the store at PLACE."""
        now_ms = SystemClock().unix_ms()
        store = open_cold(place, now_ms=now_ms, recovery=self.recovery, index=False)
        warn(store.warnings)
        self.known.add_store(store)
        broker = store.broker_name
        stats = stats_in(store.disk, store.root) or {}
        self.known.groups.update(group for group, _, _ in stats)
        yield from self._filters_of_store(stats, broker)
        held: dict[str, dict[int, int]] = defaultdict(dict)
        for one in store.queues():
            held[one.topic][one.queue_id] = max(0, one.max_offset - max(0, one.min_offset))
        for name, topic in sorted(store.topics.items()):
            if self.has_topic(name):
                self.topics_seen.add(name)
                yield from of_topic(
                    TopicShape(
                        name=name,
                        broker=broker,
                        permission=topic.permission,
                        read_queues=topic.read_queues,
                        write_queues=topic.write_queues,
                        messages=held[name],
                    )
                )
        yield from self._messages_of_store(store, stats)
        unread: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for row in store_rows(store, now_ms):
            if self.has_topic(row.facts.topic):
                unread[row.facts.group][row.facts.topic] += row.lag or 0
        for name, group in sorted(store.groups.items()):
            if self.has_group(name):
                self.groups_seen.add(name)
                shape = GroupShape(
                    name=name, consume_enable=group.consume_enable, unread=unread[name], queues={}
                )
                yield from of_group(shape, broker)

    def _filters_of_store(
        self, stats: Mapping[StatsKey, QueueStats], broker: str
    ) -> Iterator[Mistake]:
        uses: dict[tuple[str, str], list[FilterUse]] = defaultdict(list)
        for (group, topic, _), one in stats.items():
            if not (self.has_group(group) and self.has_topic(topic)):
                continue
            for name in dict.fromkeys([*(name for _, name in one.looks if name[0]), *one.skipped]):
                skipped = one.skipped.get(name, SkippedBy())
                text = "*" if name == EVERY else name[1]
                uses[group, topic].append(
                    FilterUse(filter=text, count=skipped.count, until_ms=skipped.at_ms)
                )
        for (group, topic), found in sorted(uses.items()):
            yield from of_filters(group, topic, found, broker)

    def _messages_of_store(
        self, store: OpenedStore, stats: Mapping[StatsKey, QueueStats]
    ) -> Iterator[Mistake]:
        if not self.messages:
            return
        readers: dict[str, set[str]] = defaultdict(set)
        for one in store.committed_offsets():
            if not one.group.startswith(_OWN_GROUP):
                readers[one.topic].add(one.group)
        for group, topic, _ in stats:
            readers[topic].add(group)
        known = stats_by_queue(stats, readers)
        for place in sorted(store.reading.queues):
            # Entries of light queues point to messages of other topics.
            if self.has_topic(place[0]) and not place[0].startswith(LIGHT_PREFIX):
                found = read_messages(
                    store.reading, place, known.get(place, [None]), limit=self.messages
                )
                self.messages_seen += found.read
                is_fifo = store.config.topic_attributes(place[0]).get(_TYPE) == _FIFO
                yield from of_messages(found, store.broker_name, is_fifo=is_fifo)

    def of_cluster(self, admin: Admin, read_from: ReadFrom = "master") -> Iterator[Mistake]:
        """Yield the mistakes that the brokers of ADMIN show."""
        for topic in admin.topics():
            if not self.has_topic(topic.name):
                continue
            try:
                described = admin.describe_topic(topic.name)
            except TopicNotFound:
                continue  # It was deleted meanwhile.
            except NotAuthorized:
                self.hidden.topics.add(topic.name)
                continue
            self.topics_seen.add(topic.name)
            for broker in described.brokers:
                held = {
                    one.queue.number: one.message_count
                    for one in described.queues
                    if one.queue.broker == broker
                }
                shape = TopicShape(
                    name=topic.name,
                    broker=broker,
                    permission=described.permission,
                    read_queues=described.read_queues,
                    write_queues=described.write_queues,
                    messages=held,
                )
                yield from of_topic(shape)
        for group in admin.groups():
            if self.has_group(group.name):
                try:
                    report = admin.describe_group(group, read_from=read_from)
                except NotAuthorized:
                    self.hidden.groups.add(group.name)
                    continue
                self.groups_seen.add(group.name)
                yield from self._of_group(report, consume_enable=group.consume_enable)

    def _of_group(self, report: GroupStatus, *, consume_enable: bool) -> Iterator[Mistake]:
        unread: dict[str, int] = defaultdict(int)
        queues: dict[str, int] = defaultdict(int)
        uses: dict[str, list[FilterUse]] = defaultdict(list)
        for one in report.queues:
            topic = one.queue.topic
            if self.has_topic(topic):
                unread[topic] += one.lag
                queues[topic] += 1
                uses[topic] += [
                    FilterUse(filter=by.filter, count=by.count, until_ms=by.at_ms)
                    for by in one.skipped
                ]
        members: dict[str, int] = defaultdict(int)
        for member in report.members:
            for subscribed in member.subscriptions:
                if self.has_topic(name := subscribed.partition(":")[0]):
                    members[name] += 1
        for topic, found in sorted(uses.items()):
            yield from of_filters(report.name, topic, found, None)
        yield from of_members(report, self.has_topic)
        shape = GroupShape(
            name=report.name,
            consume_enable=consume_enable,
            unread=unread,
            queues=queues,
            members=members,
            clients=len(report.clients),
        )
        yield from of_group(shape, None)
