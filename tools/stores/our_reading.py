"""A store after our own recovery, in the form in which Apache's model shows one: the same readers serve both."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from ...store.apache.batch_queue import BatchQueue
from ...store.apache.config import ConfigLoader, JavaConfig
from ...store.apache.files import Refused
from ...store.apache.queue import ENTRY_SIZE, SimpleQueue
from ...store.apache.settings import ApacheSettings
from ...store.apache.store import ApacheStore, queue_type_of
from ...store.apache.timers import JavaTimers
from ...store.config import StoreConfig
from ...store.disk import Disk
from ...store.kept_table import Changes
from ...store.message_store import MessageStore
from ...store.state_tables import GROUPS, TOPICS


@dataclass(frozen=True, slots=True)
class OurReading:
    """A store after our recovery: STORE, opened read-only; the tables of its config folder; READING, its files as
    Apache's readers see them; its timed messages, None without a timer store.
    """

    store: MessageStore
    config: JavaConfig
    reading: ApacheStore
    timers: JavaTimers | None


def open_ours(disk: Disk, root: str, settings: ApacheSettings, now_ms: int) -> OurReading:
    """Open the store ROOT as our broker would at NOW_MS; DISK keeps its changes to itself.

    Raises Refused for a table that cannot be read, StoreError where our broker would not start.
    """
    loader, config = our_tables(disk, root, settings, now_ms)
    store = MessageStore.open(store_config(root, settings), disk=disk, now_ms=lambda: now_ms)
    reading = reading_of(disk, store, settings, config, now_ms)
    timers = _timers(reading, loader, config, now_ms)
    disk.delete(store.config.abort_path)  # it says that a broker is running, and none is
    return OurReading(store, config, reading, timers)


def our_tables(
    disk: Disk, root: str, settings: ApacheSettings, now_ms: int
) -> tuple[ConfigLoader, JavaConfig]:
    """Return what our broker knows before it opens the store ROOT, and what loads the other tables.

    A Java broker would know what stands in config/ only; ours knows the changes beside that, too (kept_table.py).
    Raises Refused for a table that cannot be read.
    """
    topics = Changes(disk, root, "topics.json", TOPICS)
    groups = Changes(disk, root, "subscriptionGroup.json", GROUPS)
    aside = posixpath.join(root, "pocketmq/broken")
    loader = ConfigLoader(disk, root, settings, now_ms, aside=aside)
    config = loader.metadata()
    config.topics = topics.applied(config.topics_version, config.topics)
    config.groups = groups.applied(config.groups_version, config.groups)
    return loader, config


def _timers(
    reading: ApacheStore, loader: ConfigLoader, config: JavaConfig, now_ms: int
) -> JavaTimers | None:
    loader.timers(config)
    loader.delays(config)
    loader.request_modes(config)
    timers = JavaTimers(reading)
    try:
        timers.open()
        timers.start(now_ms, metrics_loaded=True)
    except Refused:
        return None
    return timers


def store_config(root: str, settings: ApacheSettings) -> StoreConfig:
    """Return our settings for the store ROOT."""
    return StoreConfig(
        path=root,
        log_file_size_bytes=settings.log_file_size,
        queue_file_size_bytes=settings.queue_file_size,
        batch_queue_file_size_bytes=settings.batch_queue_file_size,
        timer_log_file_size_bytes=settings.timer_log_file_size,
        index_slots=settings.index_slots,
        index_entries=settings.index_entries,
        lookup_results_max=settings.lookup_results_max,
        index=settings.index_enabled,
        check_crc_on_recover=settings.check_crc,
    )


def reading_of(
    disk: Disk, store: MessageStore, settings: ApacheSettings, config: JavaConfig, now_ms: int
) -> ApacheStore:
    """Return the files of STORE, opened on DISK, as Apache's reader, with the bounds that STORE has."""

    def kind(topic: str) -> str:
        return (
            "BatchCQ"
            if store.queues.is_batch(topic)
            else queue_type_of(config.topic_attributes(topic))
        )

    reading = ApacheStore(disk, store.config.path, settings, kind, now_ms)
    reading.clean = True
    reading.load()
    reading.checkpoint = store.parts.checkpoint.values
    reading.log.truncate(store.max_log_offset)
    for ours in store.queues:
        theirs = reading.queue(ours.topic, ours.queue)
        theirs.files.truncate(ours.files.max_offset)
        theirs.max_log_offset = ours.max_log_end
        if isinstance(theirs, SimpleQueue):
            theirs.min_position = ours.min_offset * ENTRY_SIZE
        elif isinstance(theirs, BatchQueue):
            theirs.min_offset, theirs.max_offset = ours.min_offset, ours.max_offset
    return reading
