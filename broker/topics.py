"""The topics of one broker: `config/topics.json` in memory, with RocketMQ's rules for creating them.

System topics always exist; what the file says of them has priority. Every change is saved at once, before the broker
answers, and reported as the event `topic_changed`. `unusual` lists entries of the file that could not be created now.

Not thread-safe: the event loop owns it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ..proto import errors
from ..proto.topics import (
    AUTO_CREATE_TOPIC,
    DEAD_LETTER_PREFIX,
    NOT_SENDABLE_TOPICS,
    PERMISSION_ALL,
    PERMISSION_INHERIT,
    PERMISSION_READ,
    PERMISSION_WRITE,
    RETRY_PREFIX,
    check_new_topic,
    check_topic,
    is_system_topic,
    system_topic_queues,
)
from ..store.file_changes import ChangeTable
from ..store.file_table import FileTable
from ..store.format.state_tables import TOPICS, TopicConfig
from ..store.state_files import StateFile
from .config import BrokerConfig
from .events import BrokerEvents
from .unusual_entries import (
    PERMISSION_MAX,
    QUEUES_SERVED_MAX,
    in_range,
    is_storable,
    unusual_topics,
)

logger = logging.getLogger(__name__)

#: Attribute with the type of messages that a topic accepts.
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
#: Attribute: how many replicas must be in sync for acks="replicas", if more than the replica set
#: itself requires.
MIN_IN_SYNC_ATTRIBUTE: Final = "min_in_sync"
#: All attributes that topics may have, with their values. Others of RocketMQ (`queue.type` BatchCQ,
#: `cleanup.policy` COMPACTION, `reserve.time`) require features that this broker does not have.
ATTRIBUTES: Final = {
    TYPE_ATTRIBUTE: TYPES,
    QUEUE_TYPE_ATTRIBUTE: ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
    MIN_IN_SYNC_ATTRIBUTE: tuple(map(str, range(1, 10))),
}
#: Number of changes that are remembered, so that name servers get only these.
_CHANGES_KEPT: Final = 10_000


class Topics:
    """Topics by name, stored in FILE and, what changed last, in CHANGES."""

    def __init__(
        self,
        file: StateFile,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        events: BrokerEvents | None = None,
        changes: ChangeTable | None = None,
    ) -> None:
        self._config = config
        self._events = events or BrokerEvents()
        #: Stores the entries: start it, and call its tick.
        self.table = FileTable(file, TOPICS, now_ms, self._serve, changes)
        system = system_topic_queues(config.cluster, config.name)
        self._system = {name for name, _, _ in system}
        for name, queues, permission in system:
            topic = TopicConfig(
                name=name, read_queues=queues, write_queues=queues, permission=permission
            )
            self.table.entries.setdefault(name, topic)
        #: The valid topics of the entries.
        self._topics: dict[str, TopicConfig] = {}
        for name in self.table.entries:
            self._serve(name)
        self._queues = sum(map(_queues_of, self._topics.values()))
        #: The latest changes: the version before each, and its topic.
        self._changes: deque[tuple[int, str]] = deque(maxlen=_CHANGES_KEPT)

    def _serve(self, name: str) -> None:
        """Update what is served of topic NAME after a change of its entry."""
        entry = self.table.entries.get(name)
        if entry is None or not is_storable(name):
            self._topics.pop(name, None)
        else:
            self._topics[name] = in_range(entry)

    def unusual(self) -> list[str]:
        """Return a sentence about each topic that is not served, or whose settings the broker would refuse today."""
        return list(unusual_topics(self.table.entries, self.table.unread))

    @property
    def version(self) -> int:
        """A number that grows with every change, also over restarts and if the clock is set back."""
        version = self.table.version
        return version.timestamp_ms << 16 | version.counter & 0xFFFF

    def changed_since(self, version: int) -> set[str] | None:
        """Return the names of topics that were changed or deleted since VERSION; None if it is too old to know."""
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
        """Return all topics, sorted by name."""
        return [
            topic
            for name, topic in sorted(self._topics.items())
            if include_system or not self.is_system(name)
        ]

    def is_system(self, name: str) -> bool:
        """Return whether topic NAME is one of the broker's own."""
        return name in self._system or is_system_topic(name)

    def has_queue(self, name: str, queue: int) -> bool:
        """Return whether topic NAME exists and its QUEUE can be read."""
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
        """Return how many replicas topic NAME itself requires in sync; 0: as many as the replica set does."""
        topic = self._topics.get(name)
        said = "" if topic is None else topic.attributes.get(MIN_IN_SYNC_ATTRIBUTE, "")
        return int(said) if said.isdecimal() else 0

    def check_sendable(self, name: str) -> None:
        """Raise InvalidName or NotWritable if no client may send to topic NAME, whether it exists or not."""
        if name not in self._topics:
            check_new_topic(name)
        if name in NOT_SENDABLE_TOPICS:
            raise errors.NotWritable(
                f"topic {name!r} is the broker's own: choose another", topic=name
            )

    def for_writing(self, name: str, queue: int) -> TopicConfig:
        """Return topic NAME if QUEUE of it may be written; create the topic if settings allow.

        Raises InvalidName, TopicNotFound, NotWritable or QueueNotFound.
        """
        self.check_sendable(name)
        topic = self._topics.get(name)
        if topic is None:
            topic = self._auto_create(name, queue)
        _check_writable(topic)
        if topic.attributes.get(QUEUE_TYPE_ATTRIBUTE) == "BatchCQ":
            raise errors.Unsupported(
                f"topic {name!r} has batch queues ({QUEUE_TYPE_ATTRIBUTE}=BatchCQ), which are read only:"
                " use a topic with plain queues",
                topic=name,
            )
        _check_queue(name, queue, topic.write_queues, "written")
        return topic

    def _auto_create(self, name: str, queue: int) -> TopicConfig:
        check_new_topic(name)
        template = self.get(AUTO_CREATE_TOPIC)
        derived = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) or self.is_system(name)
        allowed = self._config.auto_create_topics and template.permission & PERMISSION_INHERIT
        if derived or not allowed:
            raise errors.TopicNotFound(
                f"topic {name!r} does not exist, and sending to it does not create it: create it first",
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
        """Return topic NAME, a group's retry or dead-letter topic; create it if there is none.

        If it has fewer read or write queues than QUEUES, it gets as many: the group's retry queues may have grown.
        Raises InvalidName, Overloaded, or NotWritable if its permission does not include writing.
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
        """Create TOPIC, or change it if it exists and UPDATE is set; return its new state.

        Raises InvalidName, InvalidArgument, TopicExists, TopicNotFound (no topic to update) or Overloaded.
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
        """Check that the values of TOPIC are in range. Attributes that are already KNOWN may stay."""
        most = self._config.topic_queues_max
        for field in ("read_queues", "write_queues"):
            check_range(f"topic {topic.name!r}", field, getattr(topic, field), 1, most)
        check_range(f"topic {topic.name!r}", "permission", topic.permission, 0, PERMISSION_MAX)
        for name, value in topic.attributes.items() - known.items():
            _check_attribute(topic.name, name, value)

    def _put(self, topic: TopicConfig) -> None:
        limit = self._config.topics_max
        if topic.name not in self._topics and len(self._topics) >= limit:
            raise errors.Overloaded(
                f"the broker has {len(self._topics)} topics, the limit is {limit} (broker.topics_max): delete topics,"
                " or raise the limit",
                field="topics",
                limit=limit,
            )
        more = self._more_queues(topic)
        before = self.version
        self.table.put(topic.name, topic)
        self._queues += more
        self._tell(before, topic.name)
        logger.info("topic stored topic=%s queues=%d", topic.name, topic.write_queues)

    def _more_queues(self, topic: TopicConfig) -> int:
        """Return how many queues TOPIC adds; raise Overloaded if they exceed broker.queues_max."""
        known = self._topics.get(topic.name)
        more = _queues_of(topic) - (0 if known is None else _queues_of(known))
        limit = self._config.queues_max
        if more > 0 and self._queues + more > limit:
            raise errors.Overloaded(
                f"topic {topic.name!r} needs {more:,} more queues, the broker has {self._queues:,} and the limit is"
                f" {limit:,} (broker.queues_max): use fewer queues, delete topics,"
                " or raise the limit (2 KB of memory per queue)",
                field="queues",
                value=self._queues + more,
                limit=limit,
            )
        return more

    def check_deletable(self, name: str) -> None:
        """Raise TopicNotFound, or NotWritable for a system topic."""
        self.get(name)
        if self.is_system(name):
            raise errors.NotWritable(
                f"topic {name!r} is the broker's own and cannot be deleted", topic=name
            )

    def delete(self, name: str) -> None:
        """Delete topic NAME; raise TopicNotFound, or NotWritable for a system topic."""
        self.check_deletable(name)
        before, queues = self.version, _queues_of(self._topics[name])
        self.table.drop(name)
        self._queues -= queues
        self._tell(before, name)
        logger.info("topic deleted topic=%s", name)

    def _tell(self, before: int, name: str) -> None:
        self._changes.append((before, name))
        for callback in self._events.topic_changed:
            callback(name)


def _queues_of(topic: TopicConfig) -> int:
    """Return how many queues TOPIC counts against the broker's limit: none for an impossible number."""
    count = max(topic.read_queues, topic.write_queues)
    return 0 if count >= QUEUES_SERVED_MAX else count


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


def check_range(what: str, field: str, value: int, least: int, most: int) -> None:
    """Raise InvalidArgument unless VALUE, the FIELD of WHAT, is between LEAST and MOST."""
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
            f"topic {topic!r}: unknown attribute {name[:64]!r}; use {', '.join(ATTRIBUTES)}",
            field="attributes",
            value=name,
        )
    if value not in choices:
        raise errors.InvalidArgument(
            f"topic {topic!r}: {name} is {value[:64]!r}, must be {' or '.join(choices)}",
            field="type" if name == TYPE_ATTRIBUTE else name,
            value=value,
        )
