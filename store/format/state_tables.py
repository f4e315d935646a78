"""The tables in a store's configuration files: topics, groups, consumer offsets, delivery progress of delays.

Plain values with a `parse_…(text)` (ValueError names the wrong field) and a `render_…(table)` that returns the bytes of
RocketMQ 5.5.0: objects alphabetical, maps in the order of the table. Names, defaults and meaning of the fields are
RocketMQ's (store-format §6). Counters of a `DataVersion` stay below 2**31, which RocketMQ 5.4.0 needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar, cast

from .beans import (
    INT_MAX,
    Object,
    bean_of,
    bool_field,
    document_of,
    int_field,
    int_map,
    long_field,
    object_field,
    str_field,
    strings_field,
    whole,
)
from .java_json import Json, render

COUNTER_MAX: Final = INT_MAX
#: Milliseconds of the year 4199. Times in files are limited to it, because they are sent with 16 more bits.
_INSTANT_MAX_MS: Final = 1 << 46


@dataclass(frozen=True, slots=True)
class DataVersion:
    """How often and when a table changed; equal versions mean equal tables."""

    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """Return the version after a change at NOW_MS. Its time is later, even if the clock was set back."""
        counter = (self.counter + 1) & COUNTER_MAX
        least_ms = self.timestamp_ms + (counter & 0xFFFF == 0)
        return replace(self, counter=counter, timestamp_ms=max(now_ms, least_ms))

    @classmethod
    def of(cls, document: Object) -> DataVersion:
        """Return the version in DOCUMENT; a file without one (4.x) has version 0."""
        found = object_field(document, "dataVersion")
        return cls(
            long_field(found, "counter", 0),
            long_field(found, "stateVersion", 0),
            min(max(long_field(found, "timestamp", 0), 0), _INSTANT_MAX_MS),
        )

    def to_json(self) -> Json:
        """Return the object that RocketMQ writes."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One topic: numbers of queues, permission (4 read, 2 write, 1 inherit) and attributes (`message.type`, …)."""

    name: str
    read_queues: int = 16
    write_queues: int = 16
    permission: int = 6
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> Json:
        """Return the object that RocketMQ writes."""
        return {
            "attributes": cast(Json, self.attributes),
            "order": self.order,
            "perm": self.permission,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """One subscription group; RETRY_POLICY and SUBSCRIPTIONS are stored as RocketMQ's own objects."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minutes: int = 15
    retry_queues: int = 1
    retry_times_max: int = 16
    retry_policy: Object = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    broker_when_slow: int = 1
    notify_members_changed: bool = True
    sys_flag: int = 0
    subscriptions: list[Json] | None = None
    attributes: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> Json:
        """Return the object that RocketMQ writes."""
        bean: Object = {
            "attributes": cast(Json, self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.name,
            "groupRetryPolicy": dict(self.retry_policy),
            "groupSysFlag": self.sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_members_changed,
            "retryMaxTimes": self.retry_times_max,
            "retryQueueNums": self.retry_queues,
        }
        if self.subscriptions is not None:
            bean["subscriptionDataSet"] = list(self.subscriptions)
        bean["whichBrokerWhenConsumeSlowly"] = self.broker_when_slow
        return bean


@dataclass(frozen=True, slots=True)
class UnreadEntry:
    """An entry that cannot be read: its BEAN as in the file, and the reason. Other entries are not affected."""

    bean: Json
    reason: str


@dataclass(frozen=True, slots=True)
class TopicTable:
    """topics.json: all topics by name."""

    version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    unread: dict[str, UnreadEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupTable:
    """subscriptionGroup.json: all groups by name, and FORBIDDEN bits by group and topic."""

    version: DataVersion = field(default_factory=DataVersion)
    groups: dict[str, GroupConfig] = field(default_factory=dict)
    forbidden: dict[str, dict[str, int]] = field(default_factory=dict)
    unread: dict[str, UnreadEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """consumerOffset.json: by `topic@group`, the next queue offset to consume (and last pulled) of each queue."""

    version: DataVersion = field(default_factory=DataVersion)
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    pull_offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    unread: dict[str, UnreadEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DelayOffsets:
    """delayOffset.json: by delay level, the next queue offset to deliver of SCHEDULE_TOPIC_XXXX queue level - 1."""

    version: DataVersion = field(default_factory=DataVersion)
    offsets: dict[int, int] = field(default_factory=dict)


E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class TableEntries(Generic[E]):
    """A file of many entries: its version, the entries by name, the unreadable ones, and its other maps."""

    version: DataVersion
    entries: dict[str, E]
    unread: dict[str, UnreadEntry]
    others: Object


@dataclass(frozen=True, slots=True)
class TableForm(Generic[E]):
    """The form of FILE, which has many entries: its map MEMBERS, and what creates an entry from a name and its object.

    NUMBER and CHANGES: number and name of the journal's table for changes of the file.
    """

    file: str
    members: str
    entry: Callable[[str, Object], E]
    number: int
    changes: str
    #: The other maps in it, which are not changed.
    others: tuple[str, ...] = ()

    def parse(self, text: str) -> TableEntries[E]:
        """Return the entries in TEXT."""
        return self.read(document_of(text))

    def read(self, document: Object) -> TableEntries[E]:
        """Return the entries in DOCUMENT, which may be empty. An unreadable entry does not affect others."""
        entries: dict[str, E] = {}
        unread: dict[str, UnreadEntry] = {}
        for name, bean in object_field(document, self.members).items():
            try:
                entries[str(name)] = self.entry(str(name), bean_of(bean, name))
            except ValueError as error:
                unread[str(name)] = UnreadEntry(bean, str(error))
        others: Object = {name: object_field(document, name) for name in self.others}
        return TableEntries(DataVersion.of(document), entries, unread, others)


def parse_topics(text: str) -> TopicTable:
    """Return the topics in TEXT."""
    table = TOPICS.parse(text)
    return TopicTable(table.version, table.entries, table.unread)


def render_topics(table: TopicTable) -> str:
    """Return TABLE as 5.5.0 writes it."""
    topics: Object = {name: topic.to_json() for name, topic in table.topics.items()}
    return render({"dataVersion": table.version.to_json(), "topicConfigTable": topics})


def parse_groups(text: str) -> GroupTable:
    """Return the groups in TEXT."""
    table = GROUPS.parse(text)
    forbidden: dict[str, dict[str, int]] = {}
    unread = dict(table.unread)
    for group, topics in cast(Object, table.others["forbiddenTable"]).items():
        try:
            bits = bean_of(topics, group)
            forbidden[str(group)] = {str(topic): whole(one, topic) for topic, one in bits.items()}
        except ValueError as error:
            unread[f"{group} in forbiddenTable"] = UnreadEntry(topics, str(error))
    return GroupTable(table.version, table.entries, forbidden, unread)


def render_groups(table: GroupTable) -> str:
    """Return TABLE as 5.5.0 writes it."""
    return render(
        {
            "dataVersion": table.version.to_json(),
            "forbiddenTable": {
                g: {t: b for t, b in bits.items()} for g, bits in table.forbidden.items()
            },
            "subscriptionGroupTable": {
                name: group.to_json() for name, group in table.groups.items()
            },
        }
    )


def parse_consumer_offsets(text: str) -> ConsumerOffsets:
    """Return the consumer offsets in TEXT; integer keys may be quoted."""
    document = document_of(text)
    unread: dict[str, UnreadEntry] = {}
    return ConsumerOffsets(
        DataVersion.of(document),
        _offset_table(document, "offsetTable", unread),
        _offset_table(document, "pullOffsetTable", unread),
        unread,
    )


def render_consumer_offsets(table: ConsumerOffsets) -> str:
    """Return TABLE as 5.5.0 writes it, with the topics of each group, which RocketMQ ignores when it reads them."""
    return render(
        {
            "dataVersion": table.version.to_json(),
            "groupTopicMap": cast(Json, topics_of_groups(table.offsets)),
            "offsetTable": cast(Json, table.offsets),
            "pullOffsetTable": cast(Json, table.pull_offsets),
        }
    )


def topics_of_groups(keys: Iterable[str]) -> dict[str, list[str]]:
    """Return the topics of each group, from the KEYS of its offsets."""
    topics: dict[str, list[str]] = {}
    for key in keys:
        topic, at, group = key.partition("@")
        if at and "@" not in group:
            topics.setdefault(group, []).append(topic)
    return topics


def parse_delay_offsets(text: str) -> DelayOffsets:
    """Return the delivery progress in TEXT; integer keys may be quoted."""
    document = document_of(text)
    return DelayOffsets(DataVersion.of(document), int_map(object_field(document, "offsetTable")))


def render_delay_offsets(table: DelayOffsets) -> str:
    """Return TABLE as 5.5.0 writes it."""
    offsets = cast(Json, table.offsets)
    return render({"dataVersion": table.version.to_json(), "offsetTable": offsets})


@dataclass(slots=True)
class TimedCount:
    """The number of scheduled messages of one topic, and the time of its last change."""

    count: int
    changed_ms: int


def parse_timer_metrics(text: str) -> tuple[DataVersion, dict[str, TimedCount]]:
    """Return version and counts by topic in TEXT of config/timermetrics; ValueError for any other text."""
    document = document_of(text)
    counts = {
        str(topic): TimedCount(
            long_field(bean_of(bean, topic), "count", 0),
            long_field(bean_of(bean, topic), "timeStamp", 0),
        )
        for topic, bean in object_field(document, "timingCount").items()
    }
    return DataVersion.of(document), counts


def render_timer_metrics(version: DataVersion, counts: dict[str, TimedCount]) -> str:
    """Return the one line of config/timermetrics, with all but ASCII as \\uXXXX:

    {"dataVersion":{"counter":39,"stateVersion":0,"timestamp":…},"timingCount":{"T":{"count":9,"timeStamp":…}}}

    A count below 0 results from a kill that lost the changes of the last second. It is written as 0, the value that
    RocketMQ keeps for a topic without scheduled messages.
    """
    beans: Object = {
        topic: {"count": min(max(found.count, 0), COUNTER_MAX), "timeStamp": found.changed_ms}
        for topic, found in counts.items()
    }
    document: Json = {"dataVersion": version.to_json(), "timingCount": beans}
    return render(document, pretty=False, ascii_only=True)


def _offset_table(
    document: Object, name: str, unread: dict[str, UnreadEntry]
) -> dict[str, dict[int, int]]:
    """Return the map NAME of DOCUMENT; keys that cannot be read go to UNREAD."""
    table: dict[str, dict[int, int]] = {}
    for key, queues in object_field(document, name).items():
        try:
            table[str(key)] = _offsets(bean_of(queues, key))
        except ValueError as error:
            unread[str(key)] = UnreadEntry(queues, str(error))
    return table


def _offsets(bean: Object) -> dict[int, int]:
    offsets = int_map(bean)
    for queue in offsets:
        if not 0 <= queue < 1 << 31:
            raise ValueError(f"queue {queue} is impossible")
    return offsets


def _topic(name: str, bean: Object) -> TopicConfig:
    return TopicConfig(
        name=name,  # The broker uses the key, whatever `topicName` contains.
        read_queues=int_field(bean, "readQueueNums", 16),
        write_queues=int_field(bean, "writeQueueNums", 16),
        permission=int_field(bean, "perm", 6),
        filter_type=str_field(bean, "topicFilterType", "SINGLE_TAG"),
        sys_flag=int_field(bean, "topicSysFlag", 0),
        order=bool_field(bean, "order", False),
        attributes=strings_field(bean, "attributes"),
    )


def _group(name: str, bean: Object) -> GroupConfig:
    subscriptions = bean.get("subscriptionDataSet")
    return GroupConfig(
        name=name,
        consume_enable=bool_field(bean, "consumeEnable", True),
        consume_from_min_enable=bool_field(bean, "consumeFromMinEnable", True),
        consume_broadcast_enable=bool_field(bean, "consumeBroadcastEnable", True),
        consume_message_orderly=bool_field(bean, "consumeMessageOrderly", False),
        consume_timeout_minutes=int_field(bean, "consumeTimeoutMinute", 15),
        retry_queues=int_field(bean, "retryQueueNums", 1),
        retry_times_max=int_field(bean, "retryMaxTimes", 16),
        retry_policy=object_field(bean, "groupRetryPolicy") or {"type": "CUSTOMIZED"},
        broker_id=int_field(bean, "brokerId", 0),
        broker_when_slow=int_field(bean, "whichBrokerWhenConsumeSlowly", 1),
        notify_members_changed=bool_field(bean, "notifyConsumerIdsChangedEnable", True),
        sys_flag=int_field(bean, "groupSysFlag", 0),
        subscriptions=subscriptions if isinstance(subscriptions, list) else None,
        attributes=strings_field(bean, "attributes"),
    )


#: `topics.json` and `subscriptionGroup.json`.
TOPICS: Final = TableForm("topics.json", "topicConfigTable", _topic, 6, "topic_changes")
GROUPS: Final = TableForm(
    "subscriptionGroup.json",
    "subscriptionGroupTable",
    _group,
    7,
    "group_changes",
    ("forbiddenTable",),
)
