"""Repairs queue entries that contradict the log while the store is open.

If a reader misses messages in a queue, the entries around them are checked, once per block. If an entry does not point
to a record of its queue, or to one with another queue offset, its record can only be between those of its neighbours.
If it is there, the entry is rewritten and logged. If not, the record is damaged or deleted, and the entry is not
changed. That is also the case for repeated entries, and for entries of queues that RocketMQ numbered from 0 again.

Batch queues, light queues, and gaps wider than `SEARCHED_BYTES_MAX` are repaired by a start that reads the whole log.
Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure, StoreFull
from ..proto.facts import Facts
from ..proto.record_run import LEAST_SIZE, Longs, RunColumns, parse_run, topic_is
from ..proto.topics import SCHEDULE_TOPIC
from .consume_queue import ConsumeQueue
from .files import MappedFile
from .format.agreement import Entries, QueueName, compare, is_served, queue_offsets_at
from .format.queues import ADDRESS_MAX, ENTRY, LIGHT_PREFIX, PRE_BLANK_SIZE
from .health import StoreHealth
from .parts import StoreParts
from .recovery.scan import FileScan
from .rows_by_queue import by_queue

logger = logging.getLogger(__name__)

#: The maximum part of the log that is searched for the records of a gap.
SEARCHED_BYTES_MAX: Final = 16 << 20
#: Entries that are checked together, and how many around them may show where their records can be.
_BLOCK: Final = 1024
_AROUND: Final = 64
#: The maximum number of blocks remembered as checked; with more, all are forgotten.
_BLOCKS_MAX: Final = 10_000


class EntryRepairer:
    """Repairs entries of the store of PARTS. `count`: repaired entries since it was opened."""

    def __init__(self, parts: StoreParts, health: StoreHealth) -> None:
        self._parts = parts
        self._log = parts.log
        self._health = health
        self._looked_at: set[tuple[str, int, int]] = set()
        self.count = 0

    def find(self, queue: ConsumeQueue, first: int, end: int) -> None:
        """Check the entries [FIRST, END) of QUEUE, in which a message was missed, and repair them if possible.

        Raises no errors of the disk: a failure is reported to StoreHealth; on a full disk the entries are not changed.
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
                logger.warning("queue entries not repaired %s", Facts(reason=error.message))
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
            logger.warning("queue entries not repaired %s", Facts(reason=error.message))
        except DiskFailure as error:
            self._health.fail(error)

    def enter_again(self, file: MappedFile, found: RunColumns) -> list[tuple[str, int]]:
        """Rewrite the entries of the records FOUND in FILE if they differ from them; return their queues."""
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
            # Near the ends of the queue, records with other queue offsets may be of a broker that numbered them again.
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
        """Return which entries point to records of the queue, and the queue offsets in these records."""
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
        """Correct the tags codes of GOOD entries: the cause of the damage near them may have changed these as well."""
        # Where an extension of the queue lacks the code, the address stays.
        hashed = (seen.tags_codes > ADDRESS_MAX) | (not queue.has_extension)
        for file in self._log.files.files:
            at = seen.log_offsets - file.start
            (rows,) = (good & hashed & (at >= 0) & (at < file.position)).nonzero()
            if len(rows):
                columns = parse_run(file.data, at[rows])
                columns = columns.take(columns.well_formed)
                self._enter(queue, seen.numbers[rows], file, columns)

    def _search(self, queue: ConsumeQueue, numbers: tuple[int, int], low: int, high: int) -> None:
        """Rewrite the entries NUMBERS, [first, end), from the records at log offsets [LOW, HIGH)."""
        place = {"topic": queue.topic, "queue": queue.queue, "queue_offset": numbers[0]}
        if high - low > SEARCHED_BYTES_MAX:
            logger.error(
                "queue entries contradict the log, too far apart to repair: stop, delete pocketmq/verified.json"
                " and start again, which reads all of the log %s",
                Facts(**place, count=numbers[1] - numbers[0], size_bytes=high - low),
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
        """Write the entries NUMBERS of the records FOUND in FILE, if they differ from them."""
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
                "queue entry contradicted the log, repaired %s",
                Facts(
                    topic=queue.topic,
                    queue=queue.queue,
                    queue_offset=number,
                    log_offset=int(entries["log_offset"][row]),
                ),
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
