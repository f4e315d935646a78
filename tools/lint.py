"""What `pocketmq lint` looks for: facts in, findings out. Pure.

rule               a finding says that
filters            a group read a topic through several filters: what one does not want is skipped for all
never-wanted       messages that every group that came to them stepped over
tag                a tag that no filter can name ("a||b", "*", blanks at an end)
no-key             messages of a FIFO topic without a sharding key (message group): a queue keeps their order, no more
too-many-members   more members share a topic's queues than there are: some get nothing
unreadable         queues with messages that nobody may read: not among the topic's read queues, or no permission
switched-off       a group that must not consume, with messages unread
no-reader          a group with messages unread, and nobody reads for it

The messages of a store's queues, read for what is likely a mistake: tags, keys, and who wanted them.

Columns of a few thousand records at a time: some 12 µs a message, and 3 more where groups skip with tags.

`pocketmq lint`: what in topics, groups and messages is likely a mistake. From the files of stores, or a cluster.

Exit codes: 0 nothing was found, 1 something was, 2 wrong arguments.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import click
import numpy as np

from ..broker.account import EVERY, OTHERS, Account, Filtering, SkippedBy
from ..broker.accounts import AccountKey, accounts_in
from ..broker.messages.filters import Mask, choice_of
from ..client import Admin, GroupReport
from ..client.config import ReadFrom
from ..client.name_server_addresses import DEFAULT_NAME_SERVERS, NAMESERVER_VARIABLE
from ..proto.clock import SystemClock
from ..proto.errors import InvalidFilter, NotAuthorized, TopicNotFound
from ..proto.filters.expressions import parse_tags
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.properties import SHARDING_KEY, TAGS
from ..proto.record_run import LEAST_SIZE, PropertyRanges, parse_run, starts_of
from ..proto.time_text import format_duration, format_instant
from ..proto.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic
from ..store.apache.queue import JavaQueue
from ..store.apache.store import JavaReading
from ..store.format.log_and_queues import begins_record
from ..store.queue_view import QueueEntries, entries_of
from ..store.slices import Slices
from ..store.system import allow_many_files
from ..store.view import OpenedStore
from . import options
from .completion import group_names, topic_names
from .counted import counted
from .hidden_names import HiddenNames
from .lag.cold import store_rows
from .output import print_json, print_table, warn
from .stores import RecoveryName
from .stores.cold_store import open_cold
from .stores.locations import StoreLocation, locate
from .stores.names import KnownNames

Rule = Literal[
    "filters", "never-wanted", "tag", "no-key", "too-many-members", "unreadable", "switched-off", "no-reader"
]  # fmt: skip

_READ: Final = 4
#: Of a list that a sentence tells.
_TOLD_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """What RULE found of a TOPIC and a GROUP (None: it is not about one), on BROKER; None: on several, or all."""

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
    """What a group's filter stepped over of a topic; UNTIL_MS: when last, 0 for never."""

    filter: str
    count: int
    until_ms: int


@dataclass(slots=True, kw_only=True)
class QueueMessages:
    """What was found in the messages of one queue: how many were read, and of what there is too much.

    tags: how many have each tag that no filter can name.  unwanted: how many every group stepped over, the first and
    the last, and their tags.
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
    """A topic of a broker, and how many messages each of its queues holds, as far as that is known."""

    name: str
    broker: str
    permission: int
    read_queues: int
    write_queues: int
    messages: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """A group: by topic what is unread, and how many queues there are; who reads, by topic; None: not known.

    members: those that share queues;  clients: official ones, of which any may have any message.
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
    """Yield that GROUP read TOPIC through more than one filter, as USES tell."""
    found = sorted(summed(uses), key=lambda use: use.until_ms)
    if len(found) < 2:
        return
    told = ", ".join(
        f"{use.filter or 'others'!r} stepped over {use.count:,}"
        + (f" until {format_instant(use.until_ms)}" if use.until_ms else "")
        for use in found[-_TOLD_MAX:]
    )
    yield Mistake(
        rule="filters",
        topic=topic,
        group=group,
        broker=broker,
        count=sum(use.count for use in found),
        text=f"read through {len(found)} filters: {told}; what one does not want is skipped for the whole group",
    )


def of_members(report: GroupReport, has_topic: Callable[[str], bool]) -> Iterator[Mistake]:
    """Yield each topic that members of a group read through different filters at this moment."""
    readers: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for member in (*report.members, *report.clients):
        for subscribed in member.subscriptions:
            topic, _, expression = subscribed.partition(": ")
            readers[topic][expression or "*"].append(member.member_id)
    until = (
        f"; in {format_duration(report.grace_left_ms // 1_000 * 1_000)} the newest alone is served"
        if report.grace_left_ms is not None
        else ""
    )
    for topic, filters in sorted(readers.items()):
        if len(filters) > 1 and has_topic(topic):
            told = ", ".join(
                f"{expression!r} by {len(members)} ({members[0]})"
                for expression, members in sorted(filters.items())[:_TOLD_MAX]
            )
            yield Mistake(
                rule="filters",
                topic=topic,
                group=report.name,
                count=len(filters),
                text=f"members read through {len(filters)} filters now: {told}{until}",
            )


def of_messages(found: QueueMessages, broker: str, *, is_fifo: bool) -> Iterator[Mistake]:
    """Yield what is wrong with the messages that were FOUND in a queue of BROKER."""
    for tag, count in sorted(found.tags.items(), key=lambda item: -item[1])[:_TOLD_MAX]:
        yield Mistake(
            rule="tag",
            topic=found.topic,
            broker=broker,
            count=count,
            text=f"queue {found.queue}: {counted(count, 'message')} with the tag {tag[:64]!r}, which no filter can"
            " name: send"
            " one word, without || and blanks around it",
        )
    if is_fifo and found.without_key:
        yield Mistake(
            rule="no-key",
            topic=found.topic,
            broker=broker,
            count=found.without_key,
            text=f"queue {found.queue}: {found.without_key:,} of {counted(found.read, 'message')} of a FIFO topic have"
            " no"
            " sharding key (message group): give them one, what belongs together is kept in order by it",
        )
    if found.unwanted:
        tags = ", ".join(
            f"{tag!r} {count:,}"
            for tag, count in sorted(found.unwanted_tags.items(), key=lambda item: -item[1])[
                :_TOLD_MAX
            ]
        )
        yield Mistake(
            rule="never-wanted",
            topic=found.topic,
            broker=broker,
            count=found.unwanted,
            text=f"queue {found.queue}: every group stepped over {counted(found.unwanted, 'message')}, from offset"
            f" {found.unwanted_first:,} to {found.unwanted_last:,} (tags: {tags or 'none'}): no filter wants them",
        )


def of_topic(topic: TopicShape) -> Iterator[Mistake]:
    """Yield which queues of TOPIC hold, or get, messages that nobody may read."""
    held = {queue: count for queue, count in topic.messages.items() if count}
    if not topic.permission & _READ:
        hidden, why = held, "the topic is not readable: give it the permission to read"
    else:
        hidden = {queue: count for queue, count in held.items() if queue >= topic.read_queues}
        why = f"it has {counted(topic.read_queues, 'read queue')}: give it more (`pocketmq topic update --read-queues`)"
    if topic.write_queues > topic.read_queues and not hidden:
        yield Mistake(
            rule="unreadable",
            topic=topic.name,
            broker=topic.broker,
            text=f"{topic.write_queues} queues are written to, and {why}",
        )
    if hidden:
        count = sum(hidden.values())
        queues = ", ".join(map(str, sorted(hidden)[:_TOLD_MAX])) + (
            " …" if len(hidden) > _TOLD_MAX else ""
        )
        yield Mistake(
            rule="unreadable",
            topic=topic.name,
            broker=topic.broker,
            count=count,
            text=f"nobody may read the {counted(count, 'message')} of queue {queues}: {why}",
        )


def of_group(group: GroupShape, broker: str | None) -> Iterator[Mistake]:
    """Yield what is wrong with who reads for GROUP."""
    unread = sum(group.unread.values())
    if not group.consume_enable and unread:
        yield Mistake(
            rule="switched-off",
            group=group.name,
            broker=broker,
            count=unread,
            text=f"it must not consume (consumeEnable is false), and has {counted(unread, 'unread message')}",
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
                text=f"{counted(count, 'member')} share {counted(queues, 'queue')}, {count - queues} without any: give"
                " the topic more"
                " queues, or run fewer",
            )
    if unread and not group.members and not group.clients:
        topics: Sequence[str] = [name for name, count in sorted(group.unread.items()) if count]
        more = " …" if len(topics) > _TOLD_MAX else ""
        yield Mistake(
            rule="no-reader",
            group=group.name,
            count=unread,
            text=f"nobody reads for it, and it has {counted(unread, 'unread message')} in"
            f" {', '.join(topics[:_TOLD_MAX])}{more}:"
            " start a consumer, or delete the group",
        )


def is_nameable(tag: str) -> bool:
    """Is there a filter that wants messages with TAG, and no others?"""
    try:
        return parse_tags(tag) == (tag,)
    except InvalidFilter:
        return False


# ---------------------------------------------------------------- the messages of a store's queues


_AT_ONCE: Final = 4_096
#: Different tags that are told of one queue.
_TAGS_MAX: Final = 1_000


def read_messages(
    store: JavaReading,
    place: tuple[str, int],
    accounts: Sequence[Account | None],
    *,
    limit: int,
) -> QueueMessages:
    """Return what is to be said of the newest LIMIT messages of the queue PLACE of STORE.

    ACCOUNTS: of each group that reads it; None: it wanted all that it came to.
    """
    queue = store.queues[place]
    found = QueueMessages(topic=place[0], queue=place[1])
    wanted_by_some = not accounts or any(one is None for one in accounts)
    tags: Counter[str | None] = Counter()
    for seen in _records(store, queue, queue.max_offset - limit):
        ranges = PropertyRanges(seen.records, parse_run(seen.records, starts_of(seen.sizes)))
        texts = ranges.texts(TAGS)
        found.read += len(seen)
        tags.update(texts)
        found.without_key += int((ranges.find(SHARDING_KEY)[1] <= 0).sum())
        if not wanted_by_some:
            unwanted = np.ones(len(seen), np.bool_)
            for account in accounts:
                assert account is not None, "checked before"
                unwanted &= _skipped(account, seen)
            _note_unwanted(found, seen, unwanted, texts)
    found.tags = {
        tag: count
        for tag, count in tags.most_common(_TAGS_MAX)
        if tag is not None and not is_nameable(tag)
    }
    return found


def _note_unwanted(
    found: QueueMessages, seen: Slices, unwanted: Mask, texts: Sequence[str | None]
) -> None:
    (rows,) = unwanted.nonzero()
    if not len(rows):
        return
    offsets = seen.queue_offsets[rows]
    if found.unwanted_first < 0:
        found.unwanted_first = int(offsets[0])
    found.unwanted_last = int(offsets[-1])
    found.unwanted += len(rows)
    for row in rows.tolist():
        tag = texts[row] or ""
        if tag in found.unwanted_tags or len(found.unwanted_tags) < _TAGS_MAX:
            found.unwanted_tags[tag] = found.unwanted_tags.get(tag, 0) + 1


def _skipped(account: Account, seen: Slices) -> Mask:
    """Tell which of the records that were SEEN the group of ACCOUNT came to, and stepped over."""
    offsets = seen.queue_offsets
    found = np.zeros(len(seen), np.bool_)
    begins = np.array([begin for begin, _ in account.looks], np.int64)
    stretch = np.searchsorted(begins, offsets, "right") - 1
    looked = (stretch >= 0) & (offsets < account.looked_to)
    for number, (_, name) in enumerate(account.looks):
        rows = looked & (stretch == number)
        if rows.any() and (wanted := _wanted(name, seen)) is not None:
            found |= rows & ~wanted
    return found


def _wanted(name: Filtering, seen: Slices) -> Mask | None:
    """Tell which of the records that were SEEN the filter NAME wants; None: all, or it cannot be told."""
    kind, expression = name
    if name in (EVERY, OTHERS) or expression.endswith("…"):
        return None
    try:
        choice = choice_of(pb.Filter(kind=kind, expression=expression))
    except (ValueError, InvalidFilter):
        return None
    return None if choice is None else choice.wanted(seen)


def _records(store: JavaReading, queue: JavaQueue, begin: int) -> Iterator[Slices]:
    """Yield the records of QUEUE from offset BEGIN on that the log holds, some thousands at a time."""
    for entries in entries_of(queue, begin, queue.max_offset):
        for at in range(0, len(entries), _AT_ONCE):
            some = entries.take(slice(at, at + _AT_ONCE))
            rows = [row for row in range(len(some)) if some.count[row] == 1]
            pieces = {row: data for row in rows if (data := _record(store, some, row))}
            if pieces:
                kept = np.array(list(pieces), np.int64)
                yield Slices(
                    records=b"".join(pieces.values()),
                    sizes=some.size[kept],
                    queue_offsets=some.queue_offset[kept],
                    tags_codes=some.tags_code[kept],
                    next_offset=0,
                    min_offset=0,
                    max_offset=0,
                )


def _record(store: JavaReading, entries: QueueEntries, row: int) -> bytes | None:
    """Return the record that the entry ROW leads to; None if there is none."""
    place, size = int(entries.physical_offset[row]), int(entries.size[row])
    file = store.log.find(place)
    if file is None or size < LEAST_SIZE or place - file.start + size > file.wrote:
        return None
    data = file.mapping.read(place - file.start, size)
    return data if begins_record(data, size) else None


def accounts_by_queue(
    accounts: Mapping[tuple[str, str, int], Account], readers: Mapping[str, set[str]]
) -> dict[tuple[str, int], list[Account | None]]:
    """Return of each queue with an account those of all groups that read its topic, as READERS says."""
    places = {(topic, queue) for _, topic, queue in accounts}
    return {
        (topic, queue): [
            accounts.get((group, topic, queue)) for group in sorted(readers.get(topic, ()))
        ]
        for topic, queue in places
    }


# ---------------------------------------------------------------- `pocketmq lint`


#: Groups of the broker's own read none of a user's topics by choice.
_OWN_GROUP: Final = "CID_RMQ_SYS_"
_FIFO: Final = "FIFO"
_TYPE: Final = "message.type"
_FOUND: Final = 1


@click.command(cls=options.TakesStores)
@options.stores_argument
@click.option(
    "--nameserver",
    metavar="HOST:PORT[,…]",
    envvar=NAMESERVER_VARIABLE,
    show_envvar=True,
    help=f"Ask the brokers of this cluster.  [default, without a STORE: {DEFAULT_NAME_SERVERS}]",
)
@options.tls_options
@click.option(
    "--topic",
    shell_complete=topic_names,
    metavar="PATTERN",
    default="*",
    help="Only these topics (orders*).",
)
@click.option(
    "--group", shell_complete=group_names, metavar="PATTERN", default="*", help="Only these groups."
)
@click.option(
    "--messages",
    type=options.NUMBER,
    default=100_000,
    show_default=True,
    help="Read the newest so many messages of each queue; 0: none.",
)
@options.read_from_option("look at what groups have not read, and may be a moment behind")
@options.broker_settings_option
@options.recovery_option
@options.json_option("a finding a line")
def lint(
    stores: Sequence[str],
    *,
    nameserver: str | None,
    read_from: ReadFrom | None,
    as_json: bool,
    settings: Sequence[str],
    **given: Any,
) -> None:
    """Find what is likely a mistake: several filters in a group, messages that nobody wants, tags that no filter names.

    And FIFO topics sent to without a key, queues that nobody may read. A cluster tells, in place of what stands in
    messages, of groups without a reader and of more members than queues; a STORE does not know who is connected.
    """
    reading = options.read_from_of(read_from, stores)
    asked = _Asked(**given)
    known = asked.known
    if stores:
        allow_many_files()
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
    """What is asked for, and what was looked at for it."""

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
        """Is NAME a user's topic that is asked for?"""
        own = is_system_topic(name) or name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        return not own and fnmatchcase(name, self.topic)

    def has_group(self, name: str) -> bool:
        """Is NAME a user's group that is asked for?"""
        return not name.startswith(_OWN_GROUP) and fnmatchcase(name, self.group)

    def summary(self, findings: Sequence[Mistake], *, from_files: bool) -> str:
        """Return the last line for people."""
        count = len(findings)
        found = "nothing was found" if not count else f"{count:,} finding{'s' if count > 1 else ''}"
        seen = (
            f"{counted(len(self.topics_seen), 'topic')}, {counted(len(self.groups_seen), 'group')}"
        )
        if from_files:
            return f"{found}: {seen}, {counted(self.messages_seen, 'message')}; who is connected, a cluster tells"
        return f"{found}: {seen}; what stands in messages, a store tells"

    # --- from files

    def of_store(self, place: StoreLocation) -> Iterator[Mistake]:
        """Yield what is found in the store at PLACE."""
        now_ms = SystemClock().unix_ms()
        store = open_cold(place, now_ms=now_ms, recovery=self.recovery, index=False)
        warn(store.warnings)
        self.known.add_store(store)
        broker = store.broker_name
        accounts = accounts_in(store.disk, store.root) or {}
        self.known.groups.update(group for group, _, _ in accounts)
        yield from self._filters_of_store(accounts, broker)
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
        yield from self._messages_of_store(store, accounts)
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
        self, accounts: Mapping[AccountKey, Account], broker: str
    ) -> Iterator[Mistake]:
        uses: dict[tuple[str, str], list[FilterUse]] = defaultdict(list)
        for (group, topic, _), account in accounts.items():
            if not (self.has_group(group) and self.has_topic(topic)):
                continue
            for name in dict.fromkeys(
                [*(name for _, name in account.looks if name[0]), *account.skipped]
            ):
                skipped = account.skipped.get(name, SkippedBy())
                text = "*" if name == EVERY else name[1]
                uses[group, topic].append(
                    FilterUse(filter=text, count=skipped.count, until_ms=skipped.at_ms)
                )
        for (group, topic), found in sorted(uses.items()):
            yield from of_filters(group, topic, found, broker)

    def _messages_of_store(
        self, store: OpenedStore, accounts: Mapping[AccountKey, Account]
    ) -> Iterator[Mistake]:
        if not self.messages:
            return
        readers: dict[str, set[str]] = defaultdict(set)
        for one in store.committed_offsets():
            if not one.group.startswith(_OWN_GROUP):
                readers[one.topic].add(one.group)
        for group, topic, _ in accounts:
            readers[topic].add(group)
        known = accounts_by_queue(accounts, readers)
        for place in sorted(store.reading.queues):
            if self.has_topic(place[0]):
                found = read_messages(
                    store.reading, place, known.get(place, [None]), limit=self.messages
                )
                self.messages_seen += found.read
                is_fifo = store.config.topic_attributes(place[0]).get(_TYPE) == _FIFO
                yield from of_messages(found, store.broker_name, is_fifo=is_fifo)

    # --- from brokers

    def of_cluster(self, admin: Admin, read_from: ReadFrom = "master") -> Iterator[Mistake]:
        """Yield what the brokers that ADMIN reaches tell."""
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

    def _of_group(self, report: GroupReport, *, consume_enable: bool) -> Iterator[Mistake]:
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
