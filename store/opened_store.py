"""A store recovered in memory, as a PocketMQ or an Apache RocketMQ broker would open it, without writing a byte.

`OpenedStore.as_java` recovers it as Apache RocketMQ 5.5.0 does, `OpenedStore.as_ours` as PocketMQ does. Both return the
same view. The store may be live, stopped, copied or damaged, of either broker. An `OverlayDisk` keeps all changes.
Committed offsets are read before the queues, so that a live group is never ahead of its queue.

    opened = OpenedStore.as_java(OverlayDisk(), "store", ApacheSettings(), clock.unix_ms())
    for queue in opened.queues():
        print(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset)

Queue offsets, log offsets and bytes are those of the store format; times are Unix milliseconds. One thread uses it.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ..proto.errors import StoreMismatch
from ..proto.topics import SCHEDULE_TOPIC
from .apache.config import ConfigLoader, JavaConfig
from .apache.files import StartRefused
from .apache.settings import ApacheSettings
from .apache.store import ApacheStore, JavaReading, queue_type_of
from .apache.timers import JavaTimers
from .disk import Disk
from .file_changes import stored_changes, with_changes
from .format.queues import ENTRY
from .format.state_tables import GROUPS, TOPICS, GroupConfig, TopicConfig
from .message_store import MessageStore
from .recovery.report import RecoveryReport

#: Errors of reading or mapping a folder.
_NO_FILE: Final = (errno.EISDIR, errno.ENODEV)


@dataclass(frozen=True, slots=True)
class OpenedQueue:
    """One consume queue with the messages [min_offset, max_offset).

    kind: "SimpleCQ" (one entry per message) or "BatchCQ" (one per batch);  has_files: is it on disk? A queue without
    files is in its topic's configuration, but was never written to.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    kind: str = "SimpleCQ"
    has_files: bool = True


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The progress of GROUP in one queue: the queue offset that it reads next."""

    topic: str
    queue_id: int
    group: str
    offset: int


class OpenedStore:
    """One opened store.

    disk, root, settings: where and how.  config: all tables of the config folder.  reading: log, queues and index
    after recovery, with RocketMQ's readers.  timers: None without a timer store.  clean: did its last owner stop
    cleanly? (While a broker runs, no.)  report: of PocketMQ's recovery; None for RocketMQ's.  broker_name: the name of
    its broker, if the caller knows it.  warnings: unreadable entries of its tables, if requested.
    """

    def __init__(
        self,
        reading: JavaReading,
        config: JavaConfig,
        timers: JavaTimers | None,
        *,
        clean: bool,
        report: RecoveryReport | None = None,
    ) -> None:
        """Call `as_java` or `as_ours` instead."""
        self.reading = reading
        self.config = config
        self.timers = timers
        self.report = report
        self.clean = clean
        self.broker_name = ""
        self.warnings: list[str] = []
        self._committed: Sequence[CommittedOffset] | None = None

    @classmethod
    def as_java(
        cls,
        disk: Disk,
        root: str,
        settings: ApacheSettings,
        now_ms: int,
        warnings: list[str] | None = None,
    ) -> OpenedStore:
        """Open the store ROOT as RocketMQ's broker would at NOW_MS, up to the moment when it starts to serve.

        With WARNINGS, readable entries of tables are used although others of their file cannot be read; WARNINGS gets
        the names of those. Raises `StartRefused` if RocketMQ's broker would not start.
        """
        with _refusing_folders(root):
            return cls._recovered_as_java(disk, root, settings, now_ms, warnings)

    @classmethod
    def _recovered_as_java(
        cls,
        disk: Disk,
        root: str,
        settings: ApacheSettings,
        now_ms: int,
        warnings: list[str] | None,
    ) -> OpenedStore:
        loader = ConfigLoader(disk, root, settings, now_ms, warnings=warnings)
        config = loader.metadata()
        store = ApacheStore(
            disk,
            root,
            settings,
            lambda topic: queue_type_of(config.topic_attributes(topic)),
            now_ms,
        )
        timers = JavaTimers(store) if settings.timer_wheel else None
        if timers is not None:
            timers.open()
        store.open()
        if timers is not None:
            timers.start(now_ms, metrics_loaded=loader.timers(config))
        loader.delays(config)
        _correct_delays(store, config)
        loader.request_modes(config)
        return cls(store, config, timers, clean=store.clean)

    @classmethod
    def as_ours(
        cls,
        disk: Disk,
        root: str,
        settings: ApacheSettings,
        now_ms: int,
        warnings: list[str] | None = None,
    ) -> OpenedStore:
        """Open the store ROOT as PocketMQ's broker would at NOW_MS; raise StoreError if it would not start.

        WARNINGS gets the names of table entries that cannot be read.
        """
        store, config = open_ours(disk, root, settings, lambda: now_ms, warnings)
        with _refusing_as_ours(root):
            reading = _reading(store, disk, settings, config, now_ms)
            timers = _timers(reading, now_ms, store.timers.read_ms)
        disk.delete(store.config.abort_path)  # It means that a broker is running, and none is.
        report = store.recovery
        return cls(reading, config, timers, clean=report.clean, report=report)

    @property
    def disk(self) -> Disk:
        return self.reading.disk

    @property
    def root(self) -> str:
        return self.reading.root

    @property
    def settings(self) -> ApacheSettings:
        return self.reading.settings

    @property
    def log_begin(self) -> int:
        """The log's first offset; −1 without log files."""
        return self.reading.log_begin

    @property
    def log_end(self) -> int:
        return self.reading.log_end

    def queues(self) -> list[OpenedQueue]:
        """Return each queue that has files or was opened by recovery, by topic and queue."""
        return [self._bounds(topic, queue_id) for topic, queue_id in sorted(self.reading.queues)]

    def queue(self, topic: str, queue_id: int) -> OpenedQueue | None:
        """Return one queue; None if it has no files and is not in the topic's configuration.

        A queue that is only in the configuration is [0, 0): a broker creates it on its first use.
        """
        if (topic, queue_id) in self.reading.queues:
            return self._bounds(topic, queue_id)
        if 0 <= queue_id < self.configured_queues(topic):
            return OpenedQueue(topic, queue_id, 0, 0, self.reading.queue_type(topic), False)
        return None

    def _bounds(self, topic: str, queue_id: int) -> OpenedQueue:
        queue = self.reading.queues[topic, queue_id]
        return OpenedQueue(
            topic, queue_id, queue.min_offset, queue.max_offset, queue.kind, bool(queue.files.files)
        )

    def configured_queues(self, topic: str) -> int:
        """Return how many queues the configuration of TOPIC has, to read or to write; 0 for an unknown topic."""
        config = self.topics.get(topic)
        return 0 if config is None else max(config.read_queues, config.write_queues)

    @property
    def topics(self) -> dict[str, TopicConfig]:
        """All topics of the configuration, including the broker's own."""
        return self.config.topics

    @property
    def groups(self) -> dict[str, GroupConfig]:
        """All groups of the configuration, including the built-in ones."""
        return self.config.groups

    def replace_committed(self, offsets: Sequence[CommittedOffset]) -> None:
        """Use OFFSETS as the committed offsets instead of those in consumerOffset.json."""
        self._committed = offsets

    def committed_offsets(self) -> Iterator[CommittedOffset]:
        """Yield all committed offsets of consumerOffset.json (of its `.bak` if it is truncated), in its order.

        The group of broadcast progress is "group@broadcast". Keys without "@" belong to no group and are left out.
        """
        if self._committed is not None:
            yield from self._committed
            return
        for key, queues in self.config.consumer_offsets.items():
            topic, at, group = key.partition("@")
            if not at:
                continue
            for queue_id, offset in queues.items():
                yield CommittedOffset(topic, queue_id, group, offset)


def _correct_delays(store: ApacheStore, config: JavaConfig) -> None:
    """Move each delay level's progress into the range of its queue, which is created if it is missing."""
    for level in store.settings.delay_table():
        queue = store.queue(SCHEDULE_TOPIC, level - 1)
        offset = config.delay_offsets.get(level)
        if offset is not None:
            within = max(offset, queue.min_offset)
            config.delay_offsets[level] = min(within, queue.max_offset)


@contextmanager
def _refusing_folders(root: str) -> Iterator[None]:
    """Raise StartRefused for a folder of the store ROOT in the place of a file."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        place = error.filename or root
        reason = f"{place} is, or contains, a folder where a file should be: move it away"
        raise StartRefused(reason=reason) from None


@contextmanager
def _refusing_as_ours(root: str) -> Iterator[None]:
    """Raise StoreMismatch for errors that RocketMQ's readers find in the store ROOT."""
    try:
        with _refusing_folders(root):
            yield
    except StartRefused as refusal:
        raise StoreMismatch(refusal.reason or refusal.text, path=root) from None


def open_ours(
    disk: Disk,
    root: str,
    settings: ApacheSettings,
    now_ms: Callable[[], int],
    warnings: list[str] | None = None,
) -> tuple[MessageStore, JavaConfig]:
    """Return the store ROOT opened as by PocketMQ's broker, and the tables of its config folder; DISK keeps changes.

    RocketMQ would use only config/; PocketMQ also uses the changes in the journal (file_changes.py).
    Raises StoreError if PocketMQ's broker would not start.
    """
    with _refusing_as_ours(root):
        config = _our_tables(disk, root, settings, now_ms(), warnings)
        return MessageStore.open(settings.store_config(root), disk=disk, now_ms=now_ms), config


def _our_tables(
    disk: Disk, root: str, settings: ApacheSettings, now_ms: int, warnings: list[str] | None
) -> JavaConfig:
    topics = stored_changes(disk, root, TOPICS)
    groups = stored_changes(disk, root, GROUPS)
    aside = posixpath.join(root, "pocketmq/broken")
    loader = ConfigLoader(disk, root, settings, now_ms, aside=aside, warnings=warnings)
    config = loader.metadata()
    config.topics = with_changes(topics, TOPICS, config.topics_version, config.topics)
    config.groups = with_changes(groups, GROUPS, config.groups_version, config.groups)
    loader.timers(config)
    loader.delays(config)
    loader.request_modes(config)
    return config


def _reading(
    store: MessageStore, disk: Disk, settings: ApacheSettings, config: JavaConfig, now_ms: int
) -> JavaReading:
    """Return the files of STORE, opened on DISK, with the limits that STORE has."""

    def kind(topic: str) -> str:
        return (
            "BatchCQ"
            if store.queues.is_batch(topic)
            else queue_type_of(config.topic_attributes(topic))
        )

    store.queues.write_lite_entries()
    reading = JavaReading(disk, store.config.path, settings, kind, now_ms)
    reading.load(keep_index=True)
    reading.end_at(store.max_log_offset, store.parts.checkpoint.values)
    for ours in store.queues:
        reading.queue(ours.topic, ours.queue).bound(
            ours.min_offset,
            ours.max_offset,
            files_end=ours.files.max_offset,
            log_end=ours.max_log_end,
        )
    for lite in store.queues.lite:
        reading.queue(lite.topic, lite.queue).bound(
            lite.min_offset,
            lite.max_offset,
            files_end=lite.max_offset * ENTRY.size,
            log_end=lite.max_log_end,
        )
    return reading


def _timers(reading: JavaReading, now_ms: int, read_ms: int) -> JavaTimers | None:
    """Return the timers of READING, whose slots before READ_MS have passed; None if they cannot be read."""
    timers = JavaTimers(reading)
    try:
        timers.open()
        timers.start(now_ms, metrics_loaded=True, read_ms=read_ms)
    except StartRefused:
        return None
    return timers
