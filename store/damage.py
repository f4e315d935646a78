"""Damaged records that are found while the store is open, and what becomes of them: what recovery would make of them.

    its bytes        are kept in <root>/pocketmq/broken/log-<offset>: they say topic, queue and offset
    its place        becomes a record that neither broker delivers (recovery/repair.py)
    its queue entry  repeats a neighbour, as in front of any message that is lost (ConsumeQueue.put)

Readers step over it from then on. It is told once: with an error in the log, and in `count`. One whose own head does
not say where it begins and ends stays in its place, as does any where nothing can be written (a full disk, a store that
was opened for reading): then each reading leaves it out.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from ..proto.errors import DiskFailure, InvalidRecord, StoreFull
from ..proto.record import Record, decode_record
from ..proto.run_check import is_sound
from ..proto.topics import RECORD_SIZE_MAX
from .disk import Disk
from .health import Health
from .parts import StoreParts
from .recovery.repair import LogRepair
from .recovery.scan import Damage
from .state_files import BROKEN_FOLDER

logger = logging.getLogger(__name__)

#: Places that could not be written to, and are told only once; beyond it the oldest is forgotten.
_TOLD_MAX: Final = 10_000


class Damages:
    """Takes in what is found damaged in the store of PARTS. `count`: records since it was opened."""

    def __init__(self, parts: StoreParts, health: Health) -> None:
        self._log, self._queues = parts.log, parts.queues
        self._health = health
        self._repair = LogRepair(parts.disk, f"{parts.config.own_folder}/broken")
        self._told: OrderedDict[int, None] = OrderedDict()
        self.count = 0

    def found(self, log_offset: int, size: int) -> bool:
        """Look at the record of SIZE bytes at LOG_OFFSET, which a reader took for damaged; return whether it is.

        What is there now counts: a reader in another thread may have seen a record half written. Raises nothing of
        the disk's: a failure is the store's (Health), a full disk leaves the record as it is.
        """
        try:
            data = self._log.read(log_offset, size)
        except DiskFailure:
            return False  # Whoever reads it next is told.
        if data is None or is_sound(data):
            return False
        if log_offset in self._told:
            return True
        record = _decoded(data)
        self._tell(log_offset, size, record)
        try:
            if self._health.state in ("open", "full"):
                self._set_aside(log_offset, size, record)
        except StoreFull as error:
            logger.warning("damaged record stays as it is", extra={"reason": error.message})
        except DiskFailure as error:
            self._health.fail(error)
        return True

    def _tell(self, log_offset: int, size: int, record: Record | None) -> None:
        self.count += 1
        self._told[log_offset] = None
        if len(self._told) > _TOLD_MAX:
            self._told.popitem(last=False)
        logger.error(
            "record is damaged: kept in pocketmq/broken, readers step over it",
            extra={
                "topic": record.topic if record is not None else "unknown",
                "queue": record.queue_id if record is not None else -1,
                "queue_offset": record.queue_offset if record is not None else -1,
                "log_offset": log_offset,
                "size_bytes": size,
            },
        )

    def _set_aside(self, log_offset: int, size: int, record: Record | None) -> None:
        file = self._log.files.file_at(log_offset)
        assert file is not None, "it was read from there"
        at = log_offset - file.start
        if record is None or record.log_offset != log_offset:
            self._repair.keep(file, at, at + size)
            return
        wrong = Damage(at, at + size, "the body does not fit its CRC", is_framed=True)
        self._repair.void(file, wrong, record.store_timestamp_ms)
        queue = self._queues.get(record.topic, record.queue_id)
        if queue is not None and queue.log_offset(record.queue_offset) == log_offset:
            self._queues.find_or_make(record.topic, record.queue_id).repeat_neighbour(
                record.queue_offset
            )


class SetAside(NamedTuple):
    """What stood at LOG_OFFSET, SIZE bytes, and is kept at PATH; RECORD: what they say if they are one record."""

    log_offset: int
    size: int
    path: str
    record: Record | None


def set_aside(disk: Disk, root: str) -> Iterator[SetAside]:
    """Yield what was set aside of the log of the store in ROOT, in order; what recovery set aside too."""
    folder = f"{root}/{BROKEN_FOLDER}"
    for entry in disk.list(folder):
        offset = entry.name.removeprefix("log-")
        if entry.is_folder or not entry.name.startswith("log-") or not offset.isdecimal():
            continue
        path = f"{folder}/{entry.name}"
        data = disk.read(path) if entry.size <= RECORD_SIZE_MAX else b""
        record = _decoded(data)
        whole = record is not None and record.total_size == len(data)
        yield SetAside(int(offset), entry.size, path, record if whole else None)


def _decoded(data: bytes) -> Record | None:
    try:
        return decode_record(data)
    except InvalidRecord:
        return None
