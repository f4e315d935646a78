"""Damage in the log and in its queues, made harmless without throwing away what follows it: by recovery, and while the
store is open.

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

A queue entry that contradicts the log is made again. Whoever reads a queue and misses messages has the numbers around
them looked at, once, a block at a time. An entry there that points to no record of its queue, or to one with another
number, is looked for in the log: its record can only lie between those of the entries around it. What is found is
written into the queue and told. A record that is not found is damaged, or gone: its entry stays. Repetitions are such,
and so are the entries of queues that an Apache broker numbered anew. Batch queues and light ones are left to a start
that reads the whole log, as is a gap wider than SEARCHED_BYTES_MAX of the log, which is told.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from ..proto.record_run import (
    HEAD_SIZE,
    LEAST_SIZE,
    Longs,
    RunColumns,
    is_sound,
    parse_run,
    topic_is,
)
from ..proto.topics import RECORD_SIZE_MAX, SCHEDULE_TOPIC
from .commit_log import store_time_ms
from .consume_queue import ConsumeQueue
from .disk import Disk
from .files import MappedFile
from .format.agreement import Entries, QueueName, compare, is_served, queue_offsets_at
from .format.log_and_queues import (
    ADDRESS_MAX,
    ENTRY,
    LIGHT_PREFIX,
    MAGIC_PATTERN,
    PRE_BLANK_SIZE,
    blank,
)
from .healing import KnownDamage, Piece
from .health import StoreHealth
from .parts import StoreParts
from .recovery.scan import RECORD_SIZE_LEAST, FileDamage, FileScan
from .rows_by_queue import by_queue
from .state_files import BROKEN_FOLDER

logger = logging.getLogger(__name__)

VOID_TOPIC: Final = "VOID"
#: No reader should have to hold a void of a gigabyte.
_VOID_SIZE_MAX: Final = 1 << 20
#: More than this is not copied aside; it stays readable in the log.
_SAVED_SIZE_MAX: Final = 64 << 20
#: Places that could not be written to, and are told only once; beyond it the oldest is forgotten.
_TOLD_MAX: Final = 10_000
#: At most so much of the log is looked through for the records of a gap.
SEARCHED_BYTES_MAX: Final = 16 << 20
#: Entries that are looked at together, and how many around them may tell where their records can lie.
_BLOCK: Final = 1024
_AROUND: Final = 64
#: So many blocks are known to have been looked at; beyond it all are forgotten.
_BLOCKS_MAX: Final = 10_000


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
    """Takes in what is found damaged in the store of PARTS. `count`: records since it was opened.

    KNOWN: the store is one of a replica set, and what is damaged stays as it is until it is healed (healing.py).
    """

    def __init__(
        self, parts: StoreParts, health: StoreHealth, known: KnownDamage | None = None
    ) -> None:
        self._log, self._queues = parts.log, parts.queues
        self._health = health
        self.known = known
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
        if self.known is not None:
            self.known.add(log_offset, log_offset + size)
        if log_offset in self._told:
            return True
        record = _decoded(data)
        self._tell(log_offset, size, record)
        try:
            if self.known is None and self._health.state in ("open", "full"):
                self._set_aside(log_offset, size, record)
        except StoreFull as error:
            logger.warning("damaged record stays as it is", extra={"reason": error.message})
        except DiskFailure as error:
            self._health.fail(error)
        return True

    def found_no_records(self, start: int, end: int) -> None:
        """The bytes [START, END) of the log, where a record or a blank begins, are none."""
        if self.known is not None:
            self.known.add(start, end)

    def found_at(self, log_offset: int) -> None:
        """What begins at LOG_OFFSET of the log is damaged: find out up to where."""
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
        """Nobody has what stood at START: if it is no record, make it one that nobody is given, so that others follow.

        Raises StoreFull or DiskFailure.
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
            damage = FileDamage(at, until, "nobody has what stood there")
            self._repair.void(file, damage, newest_ms or 0)
        else:
            return
        known.shrink(start, end)
        logger.error(
            "bytes that are no records were covered: no replica has what stood there",
            extra={"log_offset": start, "size_bytes": end - start},
        )

    def heal(self, log_offset: int, piece: Piece) -> tuple[MappedFile, RunColumns]:
        """Put PIECE, what another replica has from LOG_OFFSET on, where the log is known to be damaged.

        Return the file, and where its records are there; all is on the device. Raises StoreFull or DiskFailure.
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
                "damage in the log was replaced from another replica",
                extra={"log_offset": log_offset, "size_bytes": len(piece.data)},
            )
        self._told.pop(log_offset, None)
        return file, parse_run(file.view, piece.columns.starts + at)

    def _tell(self, log_offset: int, size: int, record: Record | None) -> None:
        self.count += 1
        self._told[log_offset] = None
        if len(self._told) > _TOLD_MAX:
            self._told.popitem(last=False)
        logger.error(
            "record is damaged: another replica is asked for it"
            if self.known is not None
            else "record is damaged: kept in pocketmq/broken, readers step over it",
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


# ---------------------------------------------------------------- queue entries that contradict the log


class LostEntries:
    """Makes entries of the store of PARTS again. `count`: those since it was opened."""

    def __init__(self, parts: StoreParts, health: StoreHealth) -> None:
        self._parts = parts
        self._log = parts.log
        self._health = health
        self._looked_at: set[tuple[str, int, int]] = set()
        self.count = 0

    def find(self, queue: ConsumeQueue, first: int, end: int) -> None:
        """Look at the entries [FIRST, END) of QUEUE, from which a message was missed, and make again what can be.

        Raises nothing of the disk's: a failure is the store's, on a full disk the entries stay as they are.
        """
        if queue.topic.startswith(LIGHT_PREFIX):
            return
        for block in range(first // _BLOCK, -(-end // _BLOCK)):
            key = queue.topic, queue.queue, block
            if key in self._looked_at:
                continue
            if (block + 1) * _BLOCK <= queue.max_offset:
                if len(self._looked_at) >= _BLOCKS_MAX:
                    self._looked_at.clear()
                self._looked_at.add(key)
            try:
                self._look_at(queue, block * _BLOCK, (block + 1) * _BLOCK)
            except StoreFull as error:
                logger.warning("queue entries stay as they are", extra={"reason": error.message})
            except DiskFailure as error:
                self._health.fail(error)

    def correct_codes(self, queue: ConsumeQueue, first: int, end: int) -> None:
        """Correct the tags codes of the entries [FIRST, END) of QUEUE that point to their records. Raises nothing."""
        seen = _seen(queue, first, end)
        if seen is None:
            return
        agrees, said = self._judge(seen, QueueName(queue.topic, queue.queue))
        try:
            self._correct_codes(queue, seen, agrees & (said == seen.numbers))
        except StoreFull as error:
            logger.warning("queue entries stay as they are", extra={"reason": error.message})
        except DiskFailure as error:
            self._health.fail(error)

    def enter_again(self, file: MappedFile, found: RunColumns) -> list[tuple[str, int]]:
        """Make the entries of the records FOUND in FILE again, where they say something else; return their queues."""
        served = np.flatnonzero(is_served(found.sys_flag))
        queues = []
        for topic, number, rows in by_queue(file.data, found, served):
            queue = self._parts.queues.get(topic, number)
            if queue is None:
                continue
            own = found.take(rows)
            there = (own.queue_offset >= queue.min_offset) & (own.queue_offset < queue.max_offset)
            self._enter(queue, own.queue_offset[there], file, own)
            queues.append((topic, number))
        return queues

    def _look_at(self, queue: ConsumeQueue, first: int, end: int) -> None:
        seen = _seen(queue, first - _AROUND, end + _AROUND)
        if seen is None:
            return
        agrees, said = self._judge(seen, QueueName(queue.topic, queue.queue))
        good = agrees & (said == seen.numbers)
        wrong = ~good & (seen.sizes != PRE_BLANK_SIZE)
        if wrong.any() and queue.topic != SCHEDULE_TOPIC:
            self._correct_codes(queue, seen, good)
        edges = np.flatnonzero(np.diff(wrong, prepend=False, append=False))
        for begin, stop in edges.reshape(-1, 2).tolist():
            numbers = int(seen.numbers[begin]), int(seen.numbers[stop - 1]) + 1
            before, behind = np.flatnonzero(good[:begin]), np.flatnonzero(good[stop:])
            is_between = len(before) and len(behind)
            # Towards an end of the queue records with other numbers may be those of a broker that numbered anew.
            if not (numbers[0] < end and numbers[1] > first) or (
                not is_between and agrees[begin:stop].any()
            ):
                continue
            low, high = self._log.min_offset, self._log.max_offset
            if len(before):
                low = int(seen.log_offsets[before[-1]] + seen.sizes[before[-1]])
            if len(behind):
                high = int(seen.log_offsets[stop + behind[0]])
            self._search(queue, numbers, low, high)

    def _judge(self, seen: _Seen, name: QueueName) -> tuple[NDArray[np.bool_], Longs]:
        """Tell which entries point to records of the queue, and what numbers these say."""
        agrees = np.zeros(len(seen.numbers), np.bool_)
        said = np.zeros(len(seen.numbers), np.int64)
        for file in self._log.files.files:
            at = seen.log_offsets - file.start
            (rows,) = (
                (at >= 0) & (seen.sizes >= LEAST_SIZE) & (at + seen.sizes <= file.position)
            ).nonzero()
            if len(rows):
                entries = Entries(0, seen.log_offsets[rows], seen.sizes[rows], rows)
                agrees[rows] = compare(file.view, at[rows], entries, name).agrees
                said[rows] = queue_offsets_at(file.view, at[rows])
        return agrees, said

    def _correct_codes(self, queue: ConsumeQueue, seen: _Seen, good: NDArray[np.bool_]) -> None:
        """Correct the tags codes of entries that are GOOD: what hit those beside them may have hit these."""
        # What an extension of the queue did not tell stays an address.
        hashed = (seen.tags_codes > ADDRESS_MAX) | (not queue.has_extension)
        for file in self._log.files.files:
            at = seen.log_offsets - file.start
            (rows,) = (good & hashed & (at >= 0) & (at < file.position)).nonzero()
            if len(rows):
                columns = parse_run(file.data, at[rows])
                columns = columns.take(columns.well_formed)
                self._enter(queue, seen.numbers[rows], file, columns)

    def _search(self, queue: ConsumeQueue, numbers: tuple[int, int], low: int, high: int) -> None:
        """Make the entries NUMBERS, [first, end), again from the records of log offsets [LOW, HIGH)."""
        place = {"topic": queue.topic, "queue": queue.queue, "queue_offset": numbers[0]}
        if high - low > SEARCHED_BYTES_MAX:
            logger.error(
                "queue entries contradict the log, their records are not looked for: delete pocketmq/verified.json"
                " and start again, then all of the log is read",
                extra={**place, "count": numbers[1] - numbers[0], "size_bytes": high - low},
            )
            return
        for file in self._log.files.files:
            if file.start < high and low < file.start + file.position:
                begin = max(low - file.start, 0)
                end = min(high - file.start, file.position)
                self._enter(
                    queue, np.arange(*numbers), file, self._records(queue, file, begin, end)
                )

    def _records(self, queue: ConsumeQueue, file: MappedFile, begin: int, end: int) -> RunColumns:
        """Return the records of QUEUE in [BEGIN, END) of FILE."""
        found = FileScan(file, at=begin, end=end, check_crc=False, oldest_ms=0).scan().columns
        own = (found.queue_id == queue.queue) & is_served(found.sys_flag)
        return found.take(own & topic_is(file.data, found, queue.topic))

    def _enter(
        self,
        queue: ConsumeQueue,
        numbers: Longs,
        file: MappedFile,
        found: RunColumns,
    ) -> None:
        """Write the entries NUMBERS that FOUND in FILE are the records of, where they say something else."""
        found = found.take(np.isin(found.queue_offset, numbers))
        if not len(found) or self._health.state not in ("open", "full", "read-only"):
            return
        entries = ENTRY.zeros(len(found))
        entries["log_offset"], entries["size"] = found.log_offset, found.sizes
        entries["tags_code"] = self._parts.dispatcher.tags_codes(file.data, found, queue.topic)
        for row, number in enumerate(found.queue_offset.tolist()):
            if queue.read(number, 1).tobytes() == entries[row].tobytes():
                continue
            queue.replace(number, entries[row : row + 1])
            self._parts.queues.touch(queue)
            self.count += 1
            logger.warning(
                "queue entry contradicted the log: made again",
                extra={
                    "topic": queue.topic,
                    "queue": queue.queue,
                    "queue_offset": number,
                    "log_offset": int(entries["log_offset"][row]),
                },
            )


class _Seen(NamedTuple):
    """Entries of a queue, one array each, in order; those of missing files are left out."""

    numbers: Longs
    log_offsets: Longs
    sizes: Longs
    tags_codes: Longs


def _seen(queue: ConsumeQueue, first: int, end: int) -> _Seen | None:
    at, end = max(first, queue.min_offset), min(end, queue.max_offset)
    parts: list[_Seen] = []
    while at < end:
        log_offsets, sizes, tags_codes = queue.entries(at, end - at)
        parts.append(_Seen(at + np.arange(len(sizes)), log_offsets, sizes, tags_codes))
        at = at + len(sizes) if len(sizes) else queue.offset_behind_hole(at)
    return _Seen(*map(np.concatenate, zip(*parts, strict=True))) if parts else None
