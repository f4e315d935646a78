"""Finds in the log what producers have stored, by the property of numbered records.

A record with count n describes itself and the n − 1 records after it in the log that are of the same queue, follow it
there, and were stored at the same time. There may be fewer: a torn append may have lost the tail, or recovery may have
replaced damaged records. A record with count 1 may be in another topic while it waits: then REAL_TOPIC and REAL_QID
name its queue. Copies that a broker made later (delivered, committed, retried, dead letters) do not count.

A pass over the log (`RunScan`) reads files, or gets a follower's records. A batch whose last record may still follow is
reported with the next batch that begins, or by `rest`.

Cost: about 0.5 ms per MiB of log to search for the property; about 15 µs per batch, and 20 ns per further record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...proto import properties as names
from ...proto.byte_ranges import bytes_at, hash_ranges
from ...proto.record import SYS_TRANSACTION
from ...proto.record_run import Bytes, Longs, RunColumns, as_bytes, parse_run, walk
from ...proto.topics import (
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from ...store.commit_log import CommitLog
from ...store.files import MappedFile
from .run_numbers import COUNT_MAX, RunNumbers
from .sequences import Key, StoredRun

_HINT: Final = b"PRODUCER_SEQUENCE\x01"
_VALUE: Final = re.compile(rb"[0-9a-f:]{7,50}")
#: Records whose columns are in memory at the same time.
_CHUNK: Final = 1 << 15
_PIECE_BYTES: Final = 1 << 20
_WAITING: Final = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC))
_COPIES: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)


class FoundRun(NamedTuple):
    """The records of one batch that the log contains."""

    key: Key
    epoch: int
    stored: StoredRun


def found_runs(log: CommitLog, begin: int, end: int) -> Iterator[FoundRun]:
    """Yield the numbered batches in LOG whose first record begins in [BEGIN, END), in the order of the log.

    BEGIN is the begin of a record, or of a file.
    """
    scan = RunScan()
    yield from scan.log(log, begin, end)
    yield from scan.rest()


@dataclass(slots=True)
class _Open:
    """A batch of which records may follow: the number of expected records, and the queue of its first one."""

    key: Key
    epoch: int
    numbers: RunNumbers
    topic: bytes
    queue: int
    queue_offset: int
    store_ms: int
    left: int
    #: Log offset of the first record.
    log_offset: int
    end_offset: int
    #: Its records have their own numbers, and may be in several queues.
    scattered: bool = False
    #: It is in another queue than it was sent to.
    waits: bool = False
    #: The rows of its records with numbers, by log offset.
    rows: dict[int, int] = field(default_factory=dict)
    #: The numbers of the records after the first, and their log offsets, as they were found.
    behind: list[tuple[Longs, Longs]] = field(default_factory=list)

    def found(self) -> FoundRun:
        """Return the records that were found."""
        if self.numbers.count == len(self.rows) == 1:
            return self.found_whole(self.end_offset)
        numbers = np.concatenate([[*self.rows], *(one for one, _ in self.behind)])
        places = np.concatenate([[*self.rows.values()], *(one for _, one in self.behind)])
        low, count = int(numbers.min()), int(np.ptp(numbers)) + 1
        offsets: Longs = np.full(count, -1, np.int64)
        offsets[numbers - low] = places
        stored = StoredRun(
            self.numbers.first + low,
            count,
            int(offsets[0]),
            self.end_offset,
            self.store_ms,
            self.queue_offset,
        )
        if self.scattered or int(offsets.min()) < 0:
            stored = replace(stored, queue_offset=-1, log_offsets=offsets)
        return FoundRun(self.key, self.epoch, stored)

    def found_whole(self, end_offset: int) -> FoundRun:
        """Return the batch with all its records, from the first one to END_OFFSET."""
        numbers = self.numbers
        stored = StoredRun(
            numbers.first,
            numbers.count,
            self.log_offset,
            end_offset,
            self.store_ms,
            self.queue_offset,
        )
        if self.waits:
            places = np.array([self.log_offset], np.int64)
            stored = replace(stored, queue_offset=-1, log_offsets=places)
        return FoundRun(self.key, self.epoch, stored)

    def is_joined_by(self, other: _Open) -> bool:
        """Return whether OTHER is a record of the same batch, which is stored in parts."""
        same = (self.key, self.epoch, self.store_ms) == (other.key, other.epoch, other.store_ms)
        if not (same and self.scattered and other.scattered):
            return False
        row = other.numbers.first - self.numbers.first
        return abs(row) < COUNT_MAX and len(self.rows) < COUNT_MAX and row not in self.rows

    def join(self, other: _Open) -> None:
        self.rows[other.numbers.first - self.numbers.first] = other.log_offset
        self.end_offset = other.end_offset


class RunScan:
    """One pass over the log."""

    def __init__(self) -> None:
        self._open: _Open | None = None

    def log(self, log: CommitLog, begin: int, end: int) -> Iterator[FoundRun]:
        """Yield the batches that end in [BEGIN, END) of LOG."""
        for file in list(log.files.files):
            if begin < file.end and file.start < end:
                stop = min(end, file.start + file.position)
                yield from self._file(file, max(begin, file.start), stop)

    def _file(self, file: MappedFile, begin: int, end: int) -> Iterator[FoundRun]:
        """Yield the batches that end in [BEGIN, END) of FILE (log offsets)."""
        at, stop = begin - file.start, end - file.start
        view = file.view[:stop]
        if self._open is None and not _may_hold_any(view, at):
            return
        starts, _ = walk(view, at, stop)
        for row in range(0, len(starts), _CHUNK):
            chunk = starts[row : row + _CHUNK]
            begin = int(chunk[0])
            chunk_end = int(starts[row + _CHUNK]) if row + _CHUNK < len(starts) else stop
            hits = [(begin + at, value) for at, value in _hits(bytes(view[begin:chunk_end]))]
            if hits or self._open is not None:
                yield from self._records(view, parse_run(view, chunk), file.start, hits)

    def records(self, data: bytes, columns: RunColumns, base: int) -> Iterator[FoundRun]:
        """Yield the batches that end with records of COLUMNS in DATA, which has the log offset BASE."""
        hits = _hits(data)
        if hits or self._open is not None:
            yield from self._records(memoryview(data), columns, base, hits)

    @property
    def open_at(self) -> int | None:
        """Log offset of the batch of which records may follow; None: there is none."""
        return None if self._open is None else self._open.log_offset

    def rest(self) -> Iterator[FoundRun]:
        """Yield the last batch as far as it was found, if records of it may follow."""
        if self._open is not None:
            yield self._open.found()

    def _records(
        self, view: memoryview, columns: RunColumns, base: int, hits: list[tuple[int, bytes]]
    ) -> Iterator[FoundRun]:
        """Yield the batches that end with records of COLUMNS. HITS: places of the property and its values."""
        array = as_bytes(view)
        firsts = _firsts(view, base, columns, hits)
        ends = [*(row for row, _ in firsts), len(columns)]
        if self._open is not None:
            self._take(self._open, array, columns, base, 0, ends[0])
        stretches = _stretches(array, columns, [row for row, _ in firsts])
        for (row, one), stretch, behind in zip(firsts, stretches, ends[1:], strict=True):
            if self._open is not None and self._open.is_joined_by(one):
                self._open.join(one)
                continue
            yield from self.rest()
            self._open = None
            last = row + one.left
            if last < min(stretch, behind) and not one.scattered:
                yield one.found_whole(base + int(columns.starts[last] + columns.sizes[last]))
                continue
            self._open = one
            self._take(one, array, columns, base, row + 1, behind)

    @staticmethod
    def _take(
        run: _Open, array: Bytes, columns: RunColumns, base: int, begin: int, end: int
    ) -> None:
        """Add the records of RUN in rows [BEGIN, END) to it. BASE is the log offset of the array."""
        end = min(end, begin + run.left)
        if begin >= end:
            return
        rows = slice(begin, end)
        run.left -= end - begin
        numbers = columns.queue_offset[rows] - run.queue_offset
        good: NDArray[np.bool_] = (
            columns.well_formed[rows]
            & (columns.queue_id[rows] == run.queue)
            & (columns.store_ms[rows] == run.store_ms)
            & (columns.sys_flag[rows] & SYS_TRANSACTION == 0)
            & (numbers > 0)
            & (numbers < run.numbers.count)
            & (columns.topic_size[rows] == len(run.topic))
        )
        good &= bytes_at(array, np.where(good, columns.topic_start[rows], 0), run.topic)
        if not good.any():
            return
        starts = columns.starts[rows][good]
        run.behind.append((numbers[good].astype(np.int64), base + starts))
        run.end_offset = base + int(starts[-1] + columns.sizes[rows][good][-1])


def _stretches(array: Bytes, columns: RunColumns, rows: list[int]) -> list[int]:
    """Return, for each of ROWS, the row after the last record that follows it in its queue with the same store time."""
    if not rows:
        return []
    good = columns.well_formed
    begins = np.where(good, columns.topic_start, 0)
    topics = hash_ranges(array, begins, np.where(good, columns.topic_size, 0))
    follows = (columns.queue_offset[1:] - columns.queue_offset[:-1]) == 1
    for column in (columns.queue_id, columns.store_ms, columns.topic_size, topics):
        follows &= column[1:] == column[:-1]
    follows &= good[1:] & (columns.sys_flag[1:] & SYS_TRANSACTION == 0)
    breaks = np.append(np.flatnonzero(~follows) + 1, len(columns))
    stretches: list[int] = breaks[np.searchsorted(breaks, rows, "right")].tolist()
    return stretches


def _hits(data: bytes) -> list[tuple[int, bytes]]:
    """Return where the name of the property is in DATA, and the value after it."""
    hits = []
    at = data.find(_HINT)
    while at >= 0:
        value_at = at + len(_HINT)
        if (match := _VALUE.match(data, value_at)) is not None:
            hits.append((at, match[0]))
        at = data.find(_HINT, value_at)
    return hits


def _may_hold_any(view: memoryview, at: int) -> bool:
    """Return whether the name of the property is in VIEW from AT on."""
    overlap = len(_HINT) - 1
    for begin in range(at, len(view), _PIECE_BYTES):
        if _HINT in bytes(view[begin : begin + _PIECE_BYTES + overlap]):
            return True
    return False


def _firsts(
    view: memoryview, base: int, columns: RunColumns, hits: list[tuple[int, bytes]]
) -> list[tuple[int, _Open]]:
    """Return the rows with numbers, and the batch that begins at each."""
    if not hits:
        return []
    places = np.array([at for at, _ in hits], np.int64)
    rows = np.searchsorted(columns.starts, places, "right") - 1
    begins = columns.properties_start[rows]
    inside = columns.well_formed[rows] & (places >= begins)
    inside &= places < begins + columns.properties_size[rows]
    found: dict[int, _Open] = {}
    for index in np.flatnonzero(inside).tolist():
        at, value = hits[index]
        row = int(rows[index])
        room = int(begins[index] + columns.properties_size[row]) - at - len(_HINT)
        if at != int(begins[index]) and view[at - 1] != 0x02:
            continue  # It is the end of a longer name.
        run = _first(view, base, columns, row, value[:room])
        found.pop(row, None)  # A later duplicate replaces it.
        if run is not None:
            found[row] = run
    return list(found.items())


def _first(
    view: memoryview, base: int, columns: RunColumns, row: int, value: bytes
) -> _Open | None:
    """Return the batch that begins with record ROW with the property VALUE; None if it does not count."""
    numbers = RunNumbers.parse(value)
    kind = int(columns.sys_flag[row]) & SYS_TRANSACTION
    if numbers is None or kind or int(columns.reconsume_times[row]):
        return None
    start = int(columns.topic_start[row])
    topic = bytes(view[start : start + int(columns.topic_size[row])])
    name = topic.decode("utf-8", "replace")
    target, waits = _target(view, columns, row, name), name in _WAITING
    if target is None:
        return None
    at, size = int(columns.starts[row]), int(columns.sizes[row])
    return _Open(
        key=(numbers.producer_id, *target),
        epoch=numbers.epoch,
        numbers=replace(numbers, count=1) if waits else numbers,
        topic=topic,
        queue=int(columns.queue_id[row]),
        queue_offset=int(columns.queue_offset[row]),
        store_ms=int(columns.store_ms[row]),
        left=0 if waits else numbers.count - 1,
        log_offset=base + at,
        end_offset=base + at + size,
        scattered=waits or numbers.count == 1,
        waits=waits,
        rows={0: base + at},
    )


def _target(view: memoryview, columns: RunColumns, row: int, topic: str) -> tuple[str, int] | None:
    """Return the queue that record ROW was sent to; None for a copy that a broker made."""
    if topic.startswith(_COPIES):
        return None
    start = int(columns.properties_start[row])
    string = bytes(view[start : start + int(columns.properties_size[row])])
    if topic not in _WAITING and b"REAL_TOPIC\x01" not in string:
        return topic, int(columns.queue_id[row])
    properties = names.decode_properties(string)
    if topic not in _WAITING:
        return None if names.REAL_TOPIC in properties else (topic, int(columns.queue_id[row]))
    real, queue = properties.get(names.REAL_TOPIC, ""), properties.get(names.REAL_QUEUE_ID, "")
    again = names.TIMER_ROLL_TIMES in properties or names.TRANSACTION_CHECK_TIMES in properties
    if again or not real or not queue.isdecimal() or real.startswith(_COPIES):
        return None
    return real, int(queue)
