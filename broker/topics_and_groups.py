"""The topics of one broker: `config/topics.json` in memory, with Apache's rules for making them.

The topics of the system are always there; what the file says of them wins. Every change is saved at once, before
it is answered, and told to whoever registered with `on_change` (the registration with the name servers).

A file may hold names and numbers that nobody could give today: Java's broker and older versions checked less. The
broker serves such a topic, with its numbers brought into range. It leaves out one whose name the store cannot hold, and
keeps its entry in the file as it is. `unusual` says which.

Not thread-safe: the event loop owns it.

The consumer groups of one broker: `config/subscriptionGroup.json` in memory; and how long failed messages wait.

A group is made by an administrator, or the first time that it commits an offset. Every change is kept at once
(kept_table.py). Not thread-safe: the event loop owns it.

A failed message waits before it comes again as its group's `groupRetryPolicy`, Apache's, says. A retry is counted by
the reconsume times that its message had when it failed: 0 for the first retry.

policy in subscriptionGroup.json                        retry with reconsume times r waits
CUSTOMIZED without a list (every group's default)       delay level 3 + r
CUSTOMIZED with `customizedRetryPolicy.next`            next[r + 2], or the last one
EXPONENTIAL                                             initial × multiplier ** r, at most max

That is what Apache's own classes work out of them, including the two leading entries of a list which no retry ever
uses (its list begins with the delay levels 1 and 2). Apache asks the policy for POP consumers alone, and sends messages
of classic ones back by level whatever it says. Here it counts for both: who sets a policy wants it kept. Intervals that
are set here are written with their first one twice in front, so that a Java broker on the same store, and a client
that is handed the bare list, keep the same intervals or longer ones.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..proto import errors
from ..proto.time_text import format_duration
from ..proto.topics import (
    AUTO_CREATE_TOPIC,
    DEAD_LETTER_PREFIX,
    NOT_SENDABLE_TOPICS,
    PERMISSION_ALL,
    PERMISSION_INHERIT,
    PERMISSION_READ,
    PERMISSION_WRITE,
    RETRY_PREFIX,
    check_group,
    check_new_group,
    check_new_topic,
    check_topic,
    is_system_topic,
    system_topic_queues,
)
from ..store.format.java_json import Json
from ..store.format.state_tables import (
    GROUPS,
    TOPICS,
    GroupConfig,
    Object,
    TopicConfig,
    UnreadEntry,
)
from ..store.kept_table import KeptTable
from ..store.state_files import StateFile
from .config import BrokerConfig
from .events import BrokerEvents

logger = logging.getLogger(__name__)

#: The attribute that says what kind of messages a topic takes.
TYPE_ATTRIBUTE: Final = "message.type"
TYPES: Final = (
    "UNSPECIFIED",
    "NORMAL",
    "FIFO",
    "DELAY",
    "TRANSACTION",
    "MIXED",
    "LITE",
    "PRIORITY",
)
QUEUE_TYPE_ATTRIBUTE: Final = "queue.type"
#: How many replicas have to be in sync for acks="replicas", if that is more than what the replica set needs itself.
MIN_IN_SYNC_ATTRIBUTE: Final = "min_in_sync"
#: Every attribute that may be given to a topic, with its values. Apache's others (`queue.type` BatchCQ,
#: `cleanup.policy` COMPACTION, `reserve.time`) ask for what this broker does not do.
ATTRIBUTES: Final = {
    TYPE_ATTRIBUTE: TYPES,
    QUEUE_TYPE_ATTRIBUTE: ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
    MIN_IN_SYNC_ATTRIBUTE: tuple(map(str, range(1, 10))),
}
_PERMISSION_MAX: Final = 7
#: Characters of a name in a sentence.
_SHOWN_MAX: Final = 80
#: Queues of one topic that are served, whatever the file says; name servers take no more.
_QUEUES_SERVED_MAX: Final = 65_536
#: So many changes are remembered, for name servers to be told of nothing else.
_CHANGES_KEPT: Final = 10_000


class Topics:
    """Topics by name, over FILE."""

    def __init__(
        self,
        file: StateFile,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        events: BrokerEvents | None = None,
    ) -> None:
        self._config = config
        self._events = events or BrokerEvents()
        #: Keeps them: start it and have it tick.
        self.kept = KeptTable(file, TOPICS, now_ms, self._serve)
        system = system_topic_queues(config.cluster, config.name)
        self._system = {name for name, _, _ in system}
        for name, queues, permission in system:
            topic = TopicConfig(
                name=name, read_queues=queues, write_queues=queues, permission=permission
            )
            self.kept.entries.setdefault(name, topic)
        #: What is served of the entries.
        self._topics: dict[str, TopicConfig] = {}
        for name in self.kept.entries:
            self._serve(name)
        self._queues = sum(map(_queues_of, self._topics.values()))
        #: The latest changes: the version before, and the topic.
        self._changes: deque[tuple[int, str]] = deque(maxlen=_CHANGES_KEPT)

    def _serve(self, name: str) -> None:
        """Bring what is served of topic NAME up to date with its entry."""
        entry = self.kept.entries.get(name)
        if entry is None or not is_storable(name):
            self._topics.pop(name, None)
        else:
            self._topics[name] = in_range(entry)

    # --- asking

    def unusual(self) -> list[str]:
        """Return a sentence about each topic that is left out, or that nobody could create as it is."""
        return list(unusual_topics(self.kept.entries, self.kept.unread))

    @property
    def version(self) -> int:
        """A number that grows with every change, over restarts too and where the clock is set back."""
        version = self.kept.version
        return version.timestamp_ms << 16 | version.counter & 0xFFFF

    def changed_since(self, version: int) -> set[str] | None:
        """Return the names of the topics that were changed or deleted since VERSION; None if that is not known."""
        names: set[str] = set()
        if version == self.version:
            return names
        for before, name in reversed(self._changes):
            names.add(name)
            if before == version:
                return names
        return None

    def names(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._topics)

    def find(self, name: str) -> TopicConfig | None:
        """Return the topic NAME; None if there is none."""
        return self._topics.get(name)

    def get(self, name: str) -> TopicConfig:
        """Return the topic NAME; raise TopicNotFound."""
        topic = self._topics.get(name)
        if topic is None:
            raise errors.TopicNotFound(
                f"topic {name!r} does not exist: create it, or check the name", topic=name
            )
        return topic

    def all(self, *, include_system: bool) -> list[TopicConfig]:
        """Return the topics, by name."""
        return [
            topic
            for name, topic in sorted(self._topics.items())
            if include_system or not self.is_system(name)
        ]

    def is_system(self, name: str) -> bool:
        """Did the broker make topic NAME for itself?"""
        return name in self._system or is_system_topic(name)

    def has_queue(self, name: str, queue: int) -> bool:
        """Does topic NAME exist, with a QUEUE to read?"""
        topic = self._topics.get(name)
        return topic is not None and 0 <= queue < topic.read_queues

    def for_reading(self, name: str, queue: int) -> TopicConfig:
        """Return topic NAME if QUEUE of it may be read; raise TopicNotFound, NotReadable or QueueNotFound."""
        topic = self.get(name)
        if not topic.permission & PERMISSION_READ:
            raise errors.NotReadable(
                f"topic {name!r}: its permission, {topic.permission}, does not include reading (4)",
                topic=name,
                permission=topic.permission,
            )
        _check_queue(name, queue, topic.read_queues, "read")
        return topic

    def min_in_sync(self, name: str) -> int:
        """Return how many replicas topic NAME itself needs in sync; 0: as many as the set does."""
        topic = self._topics.get(name)
        said = "" if topic is None else topic.attributes.get(MIN_IN_SYNC_ATTRIBUTE, "")
        return int(said) if said.isdecimal() else 0

    def check_sendable(self, name: str) -> None:
        """Raise InvalidName or NotWritable for a topic that nobody can send to, whether it exists or not."""
        if name not in self._topics:
            check_new_topic(name)
        if name in NOT_SENDABLE_TOPICS:
            raise errors.NotWritable(
                f"topic {name!r} is the broker's own: choose another", topic=name
            )

    def for_writing(self, name: str, queue: int) -> TopicConfig:
        """Return topic NAME if QUEUE of it may be written, making the topic if settings allow.

        Raises InvalidName, TopicNotFound, NotWritable or QueueNotFound.
        """
        self.check_sendable(name)
        topic = self._topics.get(name)
        if topic is None:
            topic = self._auto_create(name, queue)
        _check_writable(topic)
        if topic.attributes.get(QUEUE_TYPE_ATTRIBUTE) == "BatchCQ":
            raise errors.Unsupported(
                f"topic {name!r} has batch queues ({QUEUE_TYPE_ATTRIBUTE}=BatchCQ), which are read but not written:"
                " use a topic with plain queues",
                topic=name,
            )
        _check_queue(name, queue, topic.write_queues, "written")
        return topic

    # --- changing

    def _auto_create(self, name: str, queue: int) -> TopicConfig:
        check_new_topic(name)
        template = self.get(AUTO_CREATE_TOPIC)
        derived = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) or self.is_system(name)
        allowed = self._config.auto_create_topics and template.permission & PERMISSION_INHERIT
        if derived or not allowed:
            raise errors.TopicNotFound(
                f"topic {name!r} does not exist, and is not made by sending to it: create it first",
                topic=name,
            )
        queues = min(self._config.default_topic_queues, template.write_queues)
        _check_queue(name, queue, queues, "written")
        made = TopicConfig(
            name=name,
            read_queues=queues,
            write_queues=queues,
            permission=template.permission & ~PERMISSION_INHERIT,
        )
        self._put(made)
        for callback in self._events.topic_auto_created:
            callback(made)
        return made

    def for_group(self, name: str, queues: int) -> TopicConfig:
        """Return topic NAME, a group's retry or dead-letter topic, making it if there is none.

        One with fewer queues than QUEUES, to read or to write, gets as many: a group's retry queues may have become
        more. Raises InvalidName, Overloaded, or NotWritable if its permission does not include writing.
        """
        check_topic(name)
        topic = self._topics.get(name)
        if topic is None:
            topic = TopicConfig(
                name=name, read_queues=queues, write_queues=queues, permission=PERMISSION_ALL
            )
            self._put(topic)
        _check_writable(topic)
        if min(topic.read_queues, topic.write_queues) < queues:
            topic = replace(
                topic,
                read_queues=max(topic.read_queues, queues),
                write_queues=max(topic.write_queues, queues),
            )
            self._put(topic)
        return topic

    def create(self, topic: TopicConfig, *, update: bool) -> TopicConfig:
        """Make TOPIC, or change it if it exists and UPDATE is set; return it as it is now.

        Raises InvalidName, InvalidArgument, TopicExists, TopicNotFound (an update of nothing) or Overloaded.
        """
        existing = self._topics.get(topic.name)
        if existing is None:
            check_new_topic(topic.name)
        if self.is_system(topic.name):
            raise errors.InvalidName(
                f"topic {topic.name!r} is the broker's own: choose another name",
                field="name",
                value=topic.name,
            )
        self._check(topic, existing.attributes if existing is not None else {})
        if existing is not None and not update:
            raise errors.TopicExists(
                f"topic {topic.name!r} exists: update it, or choose another name", topic=topic.name
            )
        if existing is None and update:
            self.get(topic.name)
        if existing is not None:
            topic = replace(
                topic,
                filter_type=existing.filter_type,
                sys_flag=existing.sys_flag,
                attributes={**existing.attributes, **topic.attributes},
            )
        self._put(topic)
        return topic

    def _check(self, topic: TopicConfig, known: Mapping[str, str]) -> None:
        """Refuse what is out of range in TOPIC; attributes that are KNOWN already may stay as they are."""
        most = self._config.topic_queues_max
        for field in ("read_queues", "write_queues"):
            _check_range(f"topic {topic.name!r}", field, getattr(topic, field), 1, most)
        _check_range(f"topic {topic.name!r}", "permission", topic.permission, 0, _PERMISSION_MAX)
        for name, value in topic.attributes.items() - known.items():
            _check_attribute(topic.name, name, value)

    def _put(self, topic: TopicConfig) -> None:
        limit = self._config.topics_max
        if topic.name not in self._topics and len(self._topics) >= limit:
            raise errors.Overloaded(
                f"the broker has {len(self._topics)} topics, the limit is {limit}: delete some,"
                " or raise broker.topics_max",
                field="topics",
                limit=limit,
            )
        more = self._more_queues(topic)
        before = self.version
        self.kept.put(topic.name, topic)
        self._queues += more
        self._tell(before, topic.name)
        logger.info("topic stored topic=%s queues=%d", topic.name, topic.write_queues)

    def _more_queues(self, topic: TopicConfig) -> int:
        """Return how many queues TOPIC adds; raise Overloaded if the broker has no room for them."""
        known = self._topics.get(topic.name)
        more = _queues_of(topic) - (0 if known is None else _queues_of(known))
        limit = self._config.queues_max
        if more > 0 and self._queues + more > limit:
            raise errors.Overloaded(
                f"topic {topic.name!r} needs {more:,} more queues, the broker has {self._queues:,} and the limit is"
                f" {limit:,}: give it fewer, delete topics, or raise broker.queues_max (2 KB of memory a queue)",
                field="queues",
                value=self._queues + more,
                limit=limit,
            )
        return more

    def check_deletable(self, name: str) -> None:
        """Raise TopicNotFound, or NotWritable for a topic of the system."""
        self.get(name)
        if self.is_system(name):
            raise errors.NotWritable(f"topic {name!r} is the broker's own and stays", topic=name)

    def delete(self, name: str) -> None:
        """Forget topic NAME; raise TopicNotFound or NotWritable (a topic of the system)."""
        self.check_deletable(name)
        before, queues = self.version, _queues_of(self._topics[name])
        self.kept.drop(name)
        self._queues -= queues
        self._tell(before, name)
        logger.info("topic deleted topic=%s", name)

    def _tell(self, before: int, name: str) -> None:
        self._changes.append((before, name))
        for callback in self._events.topic_changed:
            callback(name)


def is_storable(name: str, check: Callable[[str], object] = check_topic) -> bool:
    """Can a store hold a topic NAME? Or a group, by CHECK."""
    try:
        check(name)
    except errors.InvalidName:
        return False
    return True


def in_range(topic: TopicConfig) -> TopicConfig:
    """Return TOPIC as it is served: as it is, with the numbers and texts that calls can carry."""
    read_queues, write_queues = (
        min(max(count, 0), _QUEUES_SERVED_MAX) for count in (topic.read_queues, topic.write_queues)
    )
    permission = topic.permission & _PERMISSION_MAX
    attributes = topic.attributes
    if any(map(_is_not_text, [*attributes, *attributes.values()])):
        attributes = {
            name: value
            for name, value in attributes.items()
            if not (_is_not_text(name) or _is_not_text(value))
        }
    found = (read_queues, write_queues, permission, attributes)
    if found == (topic.read_queues, topic.write_queues, topic.permission, topic.attributes):
        return topic
    return replace(
        topic,
        read_queues=read_queues,
        write_queues=write_queues,
        permission=permission,
        attributes=attributes,
    )


def _is_not_text(value: str) -> bool:
    """Does VALUE hold half a surrogate pair, which JSON can say and UTF-8 cannot?"""
    return not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)


def unusual_topics(
    topics: Mapping[str, TopicConfig], unread: Mapping[str, UnreadEntry]
) -> Iterator[str]:
    """Yield a sentence about each of TOPICS that nobody could create as it is, and about each UNREAD one."""
    yield from _unusual("topic", topics, unread, check_topic, check_new_topic)
    for name, topic in topics.items():
        served = in_range(topic)
        if served != topic and is_storable(name):
            says = (topic.read_queues, topic.write_queues, topic.permission)
            yield (
                f"topic {_shown(name)} is served with {served.read_queues} read queues, {served.write_queues} write"
                f" queues and permission {served.permission}: its entry says {says}"
            )


def unusual_groups(
    groups: Mapping[str, GroupConfig], unread: Mapping[str, UnreadEntry]
) -> Iterator[str]:
    """Yield a sentence about each of GROUPS that nobody could create as it is, and about each UNREAD one."""
    yield from _unusual("group", groups, unread, check_group, check_new_group)


def _unusual(
    what: str,
    names: Iterable[str],
    unread: Mapping[str, UnreadEntry],
    check: Callable[[str], object],
    check_new: Callable[[str], object],
) -> Iterator[str]:
    for name in names:
        try:
            check_new(name)
        except errors.InvalidName as error:
            kept = "is served" if is_storable(name, check) else "is left out"
            yield f"{what} {_shown(name)} {kept}, no new one could have its name: {error.message}"
    for name, one in unread.items():
        yield f"{what} {_shown(name)} is left out, its entry cannot be read: {one.reason}"


def _shown(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]!r}…"


def _queues_of(topic: TopicConfig) -> int:
    """Return how many queues TOPIC takes of the broker's limit: none for a number that cannot be meant."""
    count = max(topic.read_queues, topic.write_queues)
    return 0 if count >= _QUEUES_SERVED_MAX else count


def _check_writable(topic: TopicConfig) -> None:
    if not topic.permission & PERMISSION_WRITE:
        raise errors.NotWritable(
            f"topic {topic.name!r}: its permission, {topic.permission}, does not include writing (2)",
            topic=topic.name,
            permission=topic.permission,
        )


def _check_queue(topic: str, queue: int, queues: int, verb: str) -> None:
    if not 0 <= queue < queues:
        raise errors.QueueNotFound(
            f"queue {queue} of topic {topic!r} cannot be {verb}: it has queues 0 to {queues - 1}",
            topic=topic,
            field="queue",
            limit=queues - 1,
            value=queue,
        )


def _check_range(what: str, field: str, value: int, least: int, most: int) -> None:
    """Raise InvalidArgument unless the VALUE of FIELD of WHAT is within LEAST and MOST."""
    if not least <= value <= most:
        raise errors.InvalidArgument(
            f"{what}: {field} is {value}, must be {least} to {most}",
            field=field,
            limit=most,
            value=value,
        )


def _check_attribute(topic: str, name: str, value: str) -> None:
    choices = ATTRIBUTES.get(name)
    if choices is None:
        raise errors.InvalidArgument(
            f"topic {topic!r}: no such attribute: {name[:64]!r}; use {', '.join(ATTRIBUTES)}",
            field="attributes",
            value=name,
        )
    if value not in choices:
        raise errors.InvalidArgument(
            f"topic {topic!r}: {name} is {value[:64]!r}, must be {' or '.join(choices)}",
            field="type" if name == TYPE_ATTRIBUTE else name,
            value=value,
        )


# ---------------------------------------------------------------- the consumer groups of one broker


_RETRIES_MAX = 1_000_000
RETRY_QUEUES_MAX = 1024
#: The attribute, our own, that says what becomes of members that want different things. Apache's brokers keep it.
SUBSCRIPTION_CHECK: Final = "pocketmq.subscription.check"
#: Both are served for subscription_grace_ms, then the newer one (groups/grace.py); that is what a group does by itself.
GRACE: Final = "grace"
REFUSE: Final = "refuse"
WARN: Final = "warn"
SUBSCRIPTION_CHECKS: Final = (GRACE, WARN, REFUSE)
#: The broker's own groups: their offsets say how far transactions and dead letters are done.
_OWN_PREFIX = "CID_RMQ_SYS_"
INTERVALS_MAX: Final = 64
INTERVAL_LEAST_MS: Final = 1_000

#: Entries of Apache's lists before the one of the first retry.
_UNUSED: Final = 2
#: Apache's defaults of an exponential policy.
_INITIAL_MS: Final = 5_000
_LONGEST_MS: Final = 7_200_000
_MULTIPLIER: Final = 2
_EXPONENTIAL_BEAN: Final = "exponentialRetryPolicy"
#: Apache's: the exponent grows no further.
_EXPONENT_MAX: Final = 32
#: Policies in a store may say anything. What is beyond counts as this: retention is over long before, and clients take
#: nanoseconds of 64 bits.
_INTERVAL_MOST_MS: Final = 100 * 365 * 86_400_000
_MULTIPLIER_MOST: Final = 1_000
_LISTED_MOST: Final = 1_024


class Groups:
    """Groups by name, over FILE."""

    def __init__(self, file: StateFile, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        #: Keeps them: start it and have it tick.
        self.kept = KeptTable(file, GROUPS, now_ms, self._serve)
        #: What is served of the entries.
        self._groups: dict[str, GroupConfig] = {}
        for name in self.kept.entries:
            self._serve(name)

    def _serve(self, name: str) -> None:
        """Bring what is served of group NAME up to date with its entry."""
        entry = self.kept.entries.get(name)
        if entry is None or not is_storable(name, check_group):
            self._groups.pop(name, None)
        else:
            self._groups[name] = entry

    def unusual(self) -> list[str]:
        """Return a sentence about each group that is left out, or that nobody could create as it is."""
        return list(unusual_groups(self.kept.entries, self.kept.unread))

    def find(self, name: str) -> GroupConfig | None:
        """Return the group NAME; None if there is none."""
        return self._groups.get(name)

    def get(self, name: str) -> GroupConfig:
        """Return the group NAME; raise GroupNotFound."""
        group = self._groups.get(name)
        if group is None:
            raise errors.GroupNotFound(
                f"group {name!r} does not exist: create it, or check the name", group=name
            )
        return group

    def is_ordered(self, name: str) -> bool:
        """Is there a group NAME, and does it want messages in order?"""
        group = self._groups.get(name)
        return group is not None and group.consume_message_orderly

    def all(self) -> list[GroupConfig]:
        """Return the groups, by name."""
        return [group for _, group in sorted(self._groups.items())]

    def ensure(self, name: str) -> GroupConfig:
        """Return the group NAME, making it with defaults if there is none.

        Where nothing can be written it is there all the same: reading goes on. It is kept once that can be done.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        try:
            return self.create(GroupConfig(name=name), update=False)
        except errors.StoreError as error:
            logger.warning("group is not kept yet group=%s reason=%s", name, error.message)
            self.kept.put_late(name, group := GroupConfig(name=name))
            return group

    def create(
        self, group: GroupConfig, *, update: bool, retry_intervals_ms: Sequence[int] | None = None
    ) -> GroupConfig:
        """Create GROUP, or with UPDATE give an existing group these settings; return it as it is now.

        RETRY_INTERVALS_MS: how long before the first retry, the second …, the last one repeats (empty: by delay
        level); None leaves its retry policy as it is. Of its attributes only SUBSCRIPTION_CHECK is taken. Raises
        GroupExists, or GroupNotFound for an update.
        """
        check_own_choice(group.name)
        _check_range(
            f"group {group.name!r}", "retry_max_times", group.retry_times_max, -1, _RETRIES_MAX
        )
        _check_range(
            f"group {group.name!r}", "retry_queues", group.retry_queues, 1, RETRY_QUEUES_MAX
        )
        existing = self.get(group.name) if update else self._groups.get(group.name)
        if existing is not None and not update:
            raise errors.GroupExists(
                f"group {group.name!r} exists: update it, or choose another name", group=group.name
            )
        if existing is None:
            check_new_group(group.name)
        policy = group.retry_policy if existing is None else existing.retry_policy
        if retry_intervals_ms is not None:
            longest_ms = self._config.delay_max_ms
            policy = changed_policy(group.name, policy, retry_intervals_ms, longest_ms=longest_ms)
        if existing is None and len(self._groups) >= self._config.groups_max:
            raise errors.Overloaded(
                f"the broker has {len(self._groups)} groups, the limit is"
                f" {self._config.groups_max}: delete some, or raise broker.groups_max",
                field="groups",
                limit=self._config.groups_max,
            )
        group = replace(
            group if existing is None else existing,
            retry_times_max=group.retry_times_max,
            retry_queues=group.retry_queues,
            retry_policy=policy,
            consume_message_orderly=group.consume_message_orderly,
            consume_enable=group.consume_enable,
            attributes=_attributes(existing, group),
        )
        self.kept.put(group.name, group)
        return group

    def delete(self, name: str) -> None:
        """Forget group NAME; raise GroupNotFound, or InvalidName for one of the broker's own."""
        self.get(name)
        check_own_choice(name)
        self.kept.drop(name)
        logger.info("group deleted group=%s", name)


def subscription_check(group: GroupConfig) -> str:
    """Return what becomes of members of GROUP that subscribe to different things: one of SUBSCRIPTION_CHECKS."""
    said = group.attributes.get(SUBSCRIPTION_CHECK, "")
    return said if said in SUBSCRIPTION_CHECKS else GRACE


def _attributes(existing: GroupConfig | None, group: GroupConfig) -> dict[str, str]:
    kept = dict(existing.attributes) if existing is not None else {}
    kept.pop(SUBSCRIPTION_CHECK, None)
    check = group.attributes.get(SUBSCRIPTION_CHECK) or GRACE
    if check not in SUBSCRIPTION_CHECKS:
        raise errors.InvalidArgument(
            f"group {group.name!r}: subscription_check is {check[:64]!r}, must be {GRACE!r}, {WARN!r} or {REFUSE!r}",
            field="subscription_check",
            value=check,
        )
    # What every group has needs no word.
    return kept | ({SUBSCRIPTION_CHECK: check} if check != GRACE else {})


def check_own_choice(name: str) -> None:
    """Raise InvalidName for a NAME that no group may have, or only one of the broker's own."""
    check_group(name)
    if name.startswith(_OWN_PREFIX):
        raise errors.InvalidName(
            f"group {name!r} is the broker's own: choose another name", field="group", value=name
        )


# --- retry policies, pure


def intervals_of(policy: Object) -> tuple[int, ...]:
    """Return the milliseconds before the first retry, the second …; the last one repeats. None: by delay level.

    A policy that is not one of Apache's, or not well formed, counts as none.
    """
    if policy.get("type", "CUSTOMIZED") == "CUSTOMIZED":
        return _customized(policy.get("customizedRetryPolicy"))
    growing = exponential_of(policy) if isinstance(policy.get(_EXPONENTIAL_BEAN), dict) else None
    return () if growing is None else _grown(*growing)


def announced_intervals_of(policy: Object) -> tuple[int, ...]:
    """Return what clients of `apache.rocketmq.v2` make of POLICY.

    As `intervals_of`, but they use all of a list, and an exponential policy that says nothing is one to them.
    """
    if policy.get("type", "CUSTOMIZED") == "CUSTOMIZED":
        return _listed(policy.get("customizedRetryPolicy"))
    growing = exponential_of(policy)
    return () if growing is None else _grown(*growing)


def _customized(bean: object) -> tuple[int, ...]:
    intervals = _listed(bean)
    return intervals[_UNUSED:] or intervals[-1:]


def _listed(bean: object) -> tuple[int, ...]:
    listed = bean.get("next") if isinstance(bean, dict) else None
    if not isinstance(listed, list):
        return ()
    intervals = tuple(_natural(value, -1, _INTERVAL_MOST_MS) for value in listed[:_LISTED_MOST])
    return () if -1 in intervals else intervals


def exponential_of(policy: Object) -> tuple[int, int, int] | None:
    """Return the first and the longest interval of an exponential POLICY, ms, and its multiplier; None for another.

    What it does not say is Apache's default.
    """
    if policy.get("type") != "EXPONENTIAL":
        return None
    said = policy.get(_EXPONENTIAL_BEAN)
    bean = said if isinstance(said, dict) else {}
    initial = _natural(bean.get("initial"), _INITIAL_MS, _INTERVAL_MOST_MS)
    longest = _natural(bean.get("max"), _LONGEST_MS, _INTERVAL_MOST_MS)
    return initial, longest, _natural(bean.get("multiplier"), _MULTIPLIER, _MULTIPLIER_MOST)


def _grown(initial: int, longest: int, multiplier: int) -> tuple[int, ...]:
    intervals: list[int] = []
    for exponent in range(_EXPONENT_MAX + 1):
        interval = min(longest, initial * multiplier**exponent)
        if intervals and (interval == intervals[-1] == longest or multiplier == 1):
            break
        intervals.append(interval)
    return tuple(intervals)


def _natural(value: object, default: int, most: int) -> int:
    """Return VALUE if it is a whole number, not negative, but MOST for a larger one; or else DEFAULT."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return default
    return min(value, most)


def policy_of(intervals_ms: Sequence[int]) -> Object:
    """Return the policy that keeps INTERVALS_MS; none: the default, by delay level."""
    if not intervals_ms:
        return {"type": "CUSTOMIZED"}
    listed: list[Json] = [*[intervals_ms[0]] * _UNUSED, *intervals_ms]
    return {"customizedRetryPolicy": {"next": listed}, "type": "CUSTOMIZED"}


def changed_policy(
    group: str, existing: Object, intervals_ms: Sequence[int], *, longest_ms: int
) -> Object:
    """Return the policy of GROUP once it is to keep INTERVALS_MS: the EXISTING one if it does so already.

    Raises InvalidArgument for more than INTERVALS_MAX, or one outside INTERVAL_LEAST_MS to LONGEST_MS.
    """
    if tuple(intervals_ms) == intervals_of(existing):
        return existing
    if len(intervals_ms) > INTERVALS_MAX:
        raise errors.InvalidArgument(
            f"group {group!r}: {len(intervals_ms)} retry intervals, the limit is {INTERVALS_MAX}:"
            " the last one repeats, so list the different ones",
            field="retry_intervals_ms",
            limit=INTERVALS_MAX,
            value=len(intervals_ms),
        )
    for interval_ms in intervals_ms:
        if not INTERVAL_LEAST_MS <= interval_ms <= longest_ms:
            raise errors.InvalidArgument(
                f"group {group!r}: a retry interval is {interval_ms} ms, must be"
                f" {format_duration(INTERVAL_LEAST_MS)} to {format_duration(longest_ms)}",
                field="retry_intervals_ms",
                limit=longest_ms,
                value=interval_ms,
            )
    return policy_of(intervals_ms)
