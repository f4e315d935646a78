"""Damage in the log, made harmless without throwing away what follows it: by recovery, and while the store is open.

Apache ends the log at the first record that it cannot read. So a damaged record between sound ones must become one
that it can read and does not deliver: a *void*, a record with the transaction type "rolled back", which gets no queue
entry and no key in either broker.

    a record with a wrong body   stays where it is; its type becomes "rolled back", its CRC that of the body
    other bytes                  are covered by voids of topic `VOID`, whose bodies they are
    from there to the file's end a blank closes the file

Covered bytes may hold heads of records whose bodies are torn, and queue entries that an Apache broker goes by may point
to them: no magic is left in them, so that nobody takes them for records. What is overwritten is saved first:
`<root>/pocketmq/broken/log-<offset>` holds the bytes as they were.

What is found damaged while the store is open becomes what recovery would make of it, and its queue entry repeats a
neighbour, as in front of any message that is lost (ConsumeQueue.put). Readers step over it from then on. It is told
once: with an error in the log, and in `count`. One whose own head does not say where it begins and ends stays in its
place, as does any where nothing can be written (a full disk, a store that was opened for reading): then each reading
leaves it out.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ..proto.errors import DiskFailure, InvalidRecord, StoreFull
from ..proto.record import (
    CRC_AT,
    FIXED_SIZE_V4,
    SYS_FLAG_AT,
    SYS_ROLLBACK,
    Record,
    body_crc,
    decode_record,
    encode_record,
)
from ..proto.record_run import HEAD_SIZE, is_sound, parse_run
from ..proto.topics import RECORD_SIZE_MAX
from .disk import Disk
from .files import MappedFile
from .format.log_file import MAGIC_PATTERN, blank
from .parts import StoreHealth, StoreParts
from .recovery.scan import FileDamage
from .state_files import BROKEN_FOLDER

logger = logging.getLogger(__name__)

VOID_TOPIC: Final = "VOID"
#: No reader should have to hold a void of a gigabyte.
_VOID_SIZE_MAX: Final = 1 << 20
#: More than this is not copied aside; it stays readable in the log.
_SAVED_SIZE_MAX: Final = 64 << 20
#: Places that could not be written to, and are told only once; beyond it the oldest is forgotten.
_TOLD_MAX: Final = 10_000


class LogRepair:
    """Repairs log files; what is overwritten goes to FOLDER on DISK."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder

    def void(self, file: MappedFile, damage: FileDamage, store_ms: int) -> None:
        """Make DAMAGE in FILE harmless; STORE_MS is the store time of the record before it."""
        self.keep(file, damage.start, damage.end)
        if damage.is_framed:
            self._roll_back(file, damage.start)
            return
        _unmake_heads(file, damage.start, damage.end)
        for start, end in _pieces(damage.start, damage.end):
            self._cover(file, start, end, store_ms)

    def close_file(self, file: MappedFile, at: int) -> None:
        """End FILE at AT with a blank."""
        end = file.mapping.data_end(at, file.size)
        self.keep(file, at, end)
        _unmake_heads(file, at, end)
        file.put(at, blank(file.size - at))

    def keep(self, file: MappedFile, start: int, end: int) -> None:
        """Save the bytes [START, END) of FILE aside, unless what was there is kept already."""
        data = file.mapping.read(start, min(max(0, end - start), _SAVED_SIZE_MAX))
        if any(data):
            self._disk.make_folders(self._folder)
            path = os.path.join(self._folder, f"log-{file.start + start:020d}")
            if not self._disk.exists(path):
                self._disk.write_file(path, data)

    def _roll_back(self, file: MappedFile, at: int) -> None:
        head = parse_run(file.view, np.array([at], np.int64))
        body_at, flags = int(head.body_start[0]), int(head.sys_flag[0]) | SYS_ROLLBACK
        crc = body_crc(file.view[body_at : body_at + int(head.body_size[0])])
        file.put(at + SYS_FLAG_AT, flags.to_bytes(4, "big", signed=True))
        file.put(at + CRC_AT, crc.to_bytes(4, "big"))

    def _cover(self, file: MappedFile, start: int, end: int, store_ms: int) -> None:
        """Make a void of [START, END): its tail is put first, its head last, the body is there."""
        topic = VOID_TOPIC[: end - start - FIXED_SIZE_V4]
        body_start, body_end = start + HEAD_SIZE, end - len(topic) - (FIXED_SIZE_V4 - HEAD_SIZE)
        record = encode_record(
            Record(
                topic=topic,
                body=bytes(file.view[body_start:body_end]),
                sys_flag=SYS_ROLLBACK,
                log_offset=file.start + start,
                born_timestamp_ms=store_ms,
                store_timestamp_ms=store_ms,
            )
        )
        file.put(body_end, record[body_end - start :])
        file.put(start, record[:HEAD_SIZE])


def _unmake_heads(file: MappedFile, start: int, end: int) -> None:
    """Overwrite every magic of a record in [START, END) of FILE."""
    for match in list(MAGIC_PATTERN.finditer(file.view, start, end)):
        file.put(match.start(), VOID_TOPIC.encode())


def _pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > 2 * _VOID_SIZE_MAX:
        yield start, start + _VOID_SIZE_MAX
        start += _VOID_SIZE_MAX
    yield start, end


# ---------------------------------------------------------------- while the store is open


class Damages:
    """Takes in what is found damaged in the store of PARTS. `count`: records since it was opened."""

    def __init__(self, parts: StoreParts, health: StoreHealth) -> None:
        self._log, self._queues = parts.log, parts.queues
        self._health = health
        self._repair = LogRepair(parts.disk, f"{parts.config.own_folder}/broken")
        self._told: OrderedDict[int, None] = OrderedDict()
        self.count = 0

    def found(self, log_offset: int, size: int) -> bool:
        """Look at the record of SIZE bytes at LOG_OFFSET, which a reader took for damaged; return whether it is.

        What is there now counts: a reader in another thread may have seen a record half written. Raises nothing of
        the disk's: a failure is the store's (StoreHealth), a full disk leaves the record as it is.
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
        wrong = FileDamage(at, at + size, "the body does not fit its CRC", is_framed=True)
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
