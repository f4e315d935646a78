"""The description of a store after our own recovery, in the form of document.py.

The store is opened read-only with policy OURS; then the files of that overlay are read as Apache's broker reads them,
with the bounds that our recovery found. So the document shows what our broker would serve. Differences in form:
`oracle` is "PocketMQ"; `recovery` is the report; a record that recovery skipped stands among `records` as it was,
with `crcOk` false, or among `broken` where no record can be made of it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Final

from ...proto.errors import StoreError
from ...proto.record import SYS_ROLLBACK, SYS_TRANSACTION
from ...store.apache.batch_queue import BatchQueue
from ...store.apache.config import ConfigLoader, JavaConfig
from ...store.apache.files import Refused
from ...store.apache.queue import ENTRY_SIZE, SimpleQueue
from ...store.apache.records import decode
from ...store.apache.settings import ApacheSettings
from ...store.apache.store import ApacheStore, queue_type_of
from ...store.apache.timers import JavaTimers
from ...store.config import StoreConfig
from ...store.disk import Disk
from ...store.message_store import MessageStore
from ...store.overlay_disk import OverlayDisk
from .document import (
    NO_FILE,
    Description,
    Document,
    checkpoint_before,
    files,
    head,
    record_document,
    side_tables,
)

OURS: Final = "PocketMQ"


def describe_ours(
    root: str,
    given: Mapping[str, str],
    settings: ApacheSettings,
    now_ms: int,
    *,
    lookups: bool = True,
) -> Document:
    """Return the description of the store ROOT after our recovery; GIVEN are the settings by Apache's names.

    Without LOOKUPS, half of the work in a large store, that key is an empty list.
    """
    disk = OverlayDisk()
    document = head(disk, root, given, OURS)
    loader = ConfigLoader(
        disk, root, settings, now_ms, aside=posixpath.join(root, "pocketmq/broken")
    )
    try:
        before = checkpoint_before(disk, root)
        config = loader.metadata()
        store = MessageStore.open(store_config(root, settings), disk=disk, now_ms=lambda: now_ms)
        reading = _reading(disk, store, settings, config, now_ms)
        timers = _timers(reading, loader, config, now_ms)
    except Refused:
        text = f"a file in {root}/config and its .bak cannot be read: repair one of them"
        return document | {"accepted": False, "refusal": text}
    except StoreError as error:
        return document | {"accepted": False, "refusal": error.message}
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        text = (
            f"{error.filename or root} is, or holds, a folder where a file should be: move it away"
        )
        return document | {"accepted": False, "refusal": text}
    disk.delete(store.config.abort_path)  # it says that a broker is running, and none is
    document |= {"filesAfter": files(disk, root), "checkpointBefore": before}
    document |= _OurDescription(reading, disk).parts(lookups=lookups)
    document |= side_tables(config, timers)
    return document | {"recovery": store.recovery.to_json()}


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


def _reading(
    disk: Disk, store: MessageStore, settings: ApacheSettings, config: JavaConfig, now_ms: int
) -> ApacheStore:
    """Return the files of STORE as Apache's reader, with the bounds that STORE has."""

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


def _timers(
    store: ApacheStore, loader: ConfigLoader, config: JavaConfig, now_ms: int
) -> JavaTimers | None:
    loader.timers(config)
    loader.delays(config)
    loader.request_modes(config)
    timers = JavaTimers(store)
    try:
        timers.open()
        timers.start(now_ms, metrics_loaded=True)
    except Refused:
        return None
    return timers


class _OurDescription(Description):
    """Shows what recovery skipped as it was before."""

    def __init__(self, store: ApacheStore, disk: Disk) -> None:
        super().__init__(store)
        self._disk = disk
        self._broken = posixpath.join(store.root, "pocketmq/broken")

    def record(self, data: memoryview, at: int, crc_ok: bool) -> Document:
        now = decode(data)
        path = posixpath.join(self._broken, f"log-{at:020d}")
        if (
            now is None
            or now.sys_flag & SYS_TRANSACTION != SYS_ROLLBACK
            or not self._disk.exists(path)
        ):
            return super().record(data, at, crc_ok)
        saved = decode(memoryview(self._disk.read(path)))
        if saved is None:
            return {
                "offset": at,
                "why": f"{len(data)} bytes were damaged; they are in pocketmq/broken",
            }
        return record_document(saved, at, crc_ok=False)
