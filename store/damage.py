"""Handles damaged records that are found while the store is open.

Such a record becomes what recovery would make of it (log_repair.py), and its queue entry becomes a copy of a neighbour,
as for any lost message (ConsumeQueue.put). Readers skip it from then on. It is reported once: with an error in the log,
and in `count`.

A record whose own head does not say where it begins and ends is not changed. Neither is any record if nothing can be
written: on a full disk, or in a store that was opened for reading. Then readers skip it each time. Not thread-safe: the
store's owner calls it.
owner calls it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from ..proto.errors import DiskFailure, StoreFull
from ..proto.facts import Facts
from ..proto.record import Record, decode_or_none
from ..proto.record_run import RunColumns, is_sound, parse_run
from ..proto.topics import RECORD_SIZE_MAX
from .commit_log import store_time_ms
from .disk import Disk
from .files import MappedFile
from .healing import Piece
from .health import StoreHealth
from .known_damage import KnownDamage
from .log_repair import LogRepair
from .parts import StoreParts
from .recovery.scan import RECORD_SIZE_LEAST, FileDamage, FileScan
from .state_files import BROKEN_FOLDER

logger = logging.getLogger(__name__)
#: Places that could not be written to, and are reported only once; with more, the oldest is forgotten.
_REPORTED_MAX: Final = 10_000


class DamageRepairer:
    """Handles damage in the store of PARTS. `count`: damaged records since it was opened.

    KNOWN: the store belongs to a replica set, and damage is not changed until it is healed (healing.py).
    """

    def __init__(
        self, parts: StoreParts, health: StoreHealth, known: KnownDamage | None = None
    ) -> None:
        self._log, self._queues = parts.log, parts.queues
        self._health = health
        self.known = known
        self._repair = LogRepair(parts.disk, f"{parts.config.own_folder}/broken")
        self._reported: OrderedDict[int, None] = OrderedDict()
        self.count = 0

    def found(self, log_offset: int, size: int) -> bool:
        """Check the record of SIZE bytes at LOG_OFFSET, which seemed damaged to a reader; return whether it is.

        The present bytes decide: a reader in another thread may have seen a record half written. Raises no errors of
        the disk: a failure is reported to StoreHealth, and on a full disk the record is not changed.
        """
        try:
            data = self._log.read(log_offset, size)
        except DiskFailure:
            return False  # The next reader gets the error.
        if data is None or is_sound(data):
            return False
        if self.known is not None:
            self.known.add(log_offset, log_offset + size)
        if log_offset in self._reported:
            return True
        record = decode_or_none(data)
        self._report(log_offset, size, record)
        try:
            if self.known is None and self._health.state in ("open", "full"):
                self._quarantine(log_offset, size, record)
        except StoreFull as error:
            logger.warning("damaged record not replaced %s", Facts(reason=error.message))
        except DiskFailure as error:
            self._health.fail(error)
        return True

    def found_no_records(self, start: int, end: int) -> None:
        """Note that the bytes [START, END) of the log, where a record or a blank should begin, are neither."""
        if self.known is not None:
            self.known.add(start, end)

    def found_at(self, log_offset: int) -> None:
        """Find the end of the damage that begins at LOG_OFFSET of the log, and handle it."""
        file = self._log.files.file_at(log_offset)
        if file is None or log_offset >= self._log.max_offset:
            return
        at = log_offset - file.start
        size = self._log.record_size(log_offset)
        if size is not None and self.found(log_offset, size):
            return
        scan = FileScan(file, at=at, end=file.position, check_crc=True, oldest_ms=0).scan()
        ends = [damage.end for damage in scan.damages if damage.start == at]
        if ends or not len(scan):
            self.found_no_records(log_offset, file.start + (ends[0] if ends else file.position))

    def cover(self, start: int) -> None:
        """Replace the bytes at START, which no replica has, by a record that is never delivered, unless they are valid.

        The log can be read past it. Raises StoreFull or DiskFailure.
        """
        known, file = self.known, self._log.files.file_at(start)
        assert known is not None, "only a replica knows of damage"
        end = known.places.get(start)
        if file is None or end is None or self._log.record_size(start) == end - start:
            return
        at, until = start - file.start, end - file.start
        if until >= file.size:
            self._repair.close_file(file, at)
        elif until - at >= RECORD_SIZE_LEAST:
            newest_ms = store_time_ms(self._log, end) or store_time_ms(
                self._log, self._log.min_offset
            )
            damage = FileDamage(at, until, "no replica has the record")
            self._repair.replace(file, damage, newest_ms or 0)
        else:
            return
        known.shrink(start, end)
        logger.error(
            "lost records replaced by a blank: no replica has them %s",
            Facts(log_offset=start, size_bytes=end - start),
        )

    def heal(self, log_offset: int, piece: Piece) -> tuple[MappedFile, RunColumns]:
        """Write PIECE, the bytes of another replica from LOG_OFFSET on, to a place that is known to be damaged.

        Return the file, and the columns of the records there, which are on disk. Raises StoreFull or DiskFailure.
        """
        known, file = self.known, self._log.files.file_at(log_offset)
        assert known is not None, "only a replica is healed"
        assert file is not None, "damage outside the log is forgotten"
        at = log_offset - file.start
        file.put(at, piece.data)
        is_blank = not len(piece.columns)
        if is_blank:
            behind = at + len(piece.data)
            file.mapping.zero(behind, known.places[log_offset] - file.start - behind)
        file.mapping.sync()
        if known.shrink(
            log_offset, known.places[log_offset] if is_blank else log_offset + len(piece.data)
        ):
            logger.warning(
                "damage in the log repaired from another replica %s",
                Facts(log_offset=log_offset, size_bytes=len(piece.data)),
            )
        self._reported.pop(log_offset, None)
        return file, parse_run(file.view, piece.columns.starts + at)

    def _report(self, log_offset: int, size: int, record: Record | None) -> None:
        self.count += 1
        self._reported[log_offset] = None
        if len(self._reported) > _REPORTED_MAX:
            self._reported.popitem(last=False)
        logger.error(
            "damaged record found: it will be requested from another replica %s"
            if self.known is not None
            else "damaged record found: readers skip it, its bytes are kept in pocketmq/broken %s",
            Facts(
                topic=record.topic if record is not None else "unknown",
                queue=record.queue_id if record is not None else -1,
                queue_offset=record.queue_offset if record is not None else -1,
                log_offset=log_offset,
                size_bytes=size,
            ),
        )

    def _quarantine(self, log_offset: int, size: int, record: Record | None) -> None:
        file = self._log.files.file_at(log_offset)
        assert file is not None, "the record was read from it"
        at = log_offset - file.start
        if record is None or record.log_offset != log_offset:
            self._repair.keep(file, at, at + size)
            return
        wrong = FileDamage(at, at + size, "the body does not fit its CRC", is_framed=True)
        self._repair.replace(file, wrong, record.store_timestamp_ms)
        queue = self._queues.get(record.topic, record.queue_id)
        if queue is not None and queue.log_offset(record.queue_offset) == log_offset:
            self._queues.find_or_make(record.topic, record.queue_id).repeat_neighbour(
                record.queue_offset
            )


class SetAside(NamedTuple):
    """Bytes that were quarantined: SIZE bytes of LOG_OFFSET, kept at PATH; RECORD: decoded, if they are one record."""

    log_offset: int
    size: int
    path: str
    record: Record | None


def set_aside(disk: Disk, root: str) -> Iterator[SetAside]:
    """Yield the quarantined parts of the log of the store in ROOT, in order, including those of recovery."""
    folder = f"{root}/{BROKEN_FOLDER}"
    for entry in disk.list(folder):
        offset = entry.name.removeprefix("log-")
        if entry.is_folder or not entry.name.startswith("log-") or not offset.isdecimal():
            continue
        path = f"{folder}/{entry.name}"
        data = disk.read(path) if entry.size <= RECORD_SIZE_MAX else b""
        record = decode_or_none(data)
        whole = record is not None and record.total_size == len(data)
        yield SetAside(int(offset), entry.size, path, record if whole else None)
