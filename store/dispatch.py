"""Dispatch: derives queue entries and index entries from records in the log.

Each record gets a queue entry, except prepared and rolled-back transactions. A record of a topic with batch queues gets
one only if it is an inner batch (properties INNER_NUM and INNER_BASE). message_index.py describes the index entries.
Dispatch can be repeated: entries that exist already are recognised and left out.

Batches that the C core has read, small ones, uniform ones and all others have their own methods, because they differ
much in cost. If a batch has
very many keys, `DeferredIndexing` enters them later.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from ..proto.byte_ranges import decimal_numbers
from ..proto.errors import DiskFailure
from ..proto.properties import MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from ..proto.property_ranges import PropertyRanges, tags_codes
from ..proto.record import SYS_ROLLBACK, SYS_TRANSACTION, Buffer
from ..proto.record_run import QUEUE_ID_MAX, Longs, RunColumns, as_bytes
from ..proto.run import Run, tags_code
from ..proto.topics import SCHEDULE_TOPIC
from .consume_queue import Placed
from .consume_queues import ConsumeQueues
from .deferred_indexing import DeferredIndexing, keys_at_most
from .flush import CallOwner
from .format.agreement import is_served, set_delivery_times
from .lite_queues import LiteEntry
from .message_index import MessageIndex
from .message_keys import has_keys, keys_of_alike, keys_of_few
from .rows_by_queue import Bytes, Rows, by_queue

#: Records processed at a time. Columns that are read more than once stay in the processor's cache.
ROWS_MAX: Final = 1 << 13
#: Bytes of property strings processed at a time. They may contain half a million keys.
PROPERTIES_MAX: Final = 1 << 20
#: Batches with longer keys use the general method, because it is faster then.
_KEYS_OF_FEW_MAX: Final = 1024
_NAME_SIZE_MAX: Final = 255  # of a folder
#: Keys of one batch that are entered at once: about 20 ms for single letters, 5 ms for ordinary keys.
INDEXED_AT_ONCE: Final = 1 << 17


#: The bytes of several batches, and the columns of all their records.
Joined: TypeAlias = tuple[memoryview, RunColumns]


#: Topic, values of the two properties, and entry of a record of a lite topic.
_LiteRecord: TypeAlias = tuple[str, bytes, bytes, LiteEntry]
_DISPATCH: Final = MULTI_DISPATCH.encode()
_NUMBER: Final = MULTI_QUEUE_OFFSET.encode()


class _Entries(NamedTuple):
    """New entries of one queue, from queue offset FIRST."""

    topic: str
    queue: int
    first: int
    log_offsets: list[int]
    sizes: list[int]
    codes: list[int]


class Dispatcher:
    """Derives QUEUES and INDEX (None: disabled). NOW_MS names index files.

    DELAY_LEVELS_MS are the delays of the levels 1, 2, …: entries of SCHEDULE_TOPIC contain the delivery time.
    """

    def __init__(
        self,
        queues: ConsumeQueues,
        index: MessageIndex | None,
        now_ms: Callable[[], int],
        delay_levels_ms: Sequence[int],
    ) -> None:
        self._queues = queues
        self._index = index
        self.now_ms = now_ms
        self._delays_ms = np.array((0, *delay_levels_ms), np.int64)
        self._deferred = None if index is None else DeferredIndexing(index, now_ms)
        #: Keys of the current batch that may still be entered at once.
        self._room = 0

    def enter(self, runs: Sequence[Run], joined: Joined | None = None) -> None:
        """Enter the records of RUNS: new records of plain queues, which continue at the ends of these.

        JOINED describes all records at once, if the store has read them so. Raises StoreFull or DiskFailure, as
        `dispatch` does.
        """
        if joined is not None:
            self.dispatch(*joined)
            return
        for is_small, group in groupby(runs, attrgetter("is_small")):
            alike = list(group)
            if is_small and self._enter_few(alike):
                continue
            for run in alike:
                if not (
                    self._enter_scanned(run) or self._enter_few((run,)) or self._enter_alike(run)
                ):
                    self._enter_columns(run)

    def _enter_columns(self, run: Run) -> None:
        """Enter RUN with the general method."""
        self._room = INDEXED_AT_ONCE
        array, columns = as_bytes(run.records), run.columns
        for part in _parts(columns):
            properties = run.properties if part is columns else PropertyRanges(array, part)
            codes = self.tags_codes(array, part, run.topic, properties)
            row = self._queues.find_or_make(run.topic, run.queue)
            row.append(int(part.queue_offset[0]), part.log_offset, part.sizes, codes)
            self._enter_lite(array, part, properties, codes)
            self._enter_keys(array, part, run.topic, properties)

    def _enter_few(self, runs: Sequence[Run]) -> bool:
        """Enter RUNS if each is small and needs no feature of the general method; return whether they were entered."""
        if self.index_lags:
            return False
        index = self._index
        entries: list[_Entries] = []
        parsed: list[Sequence[Mapping[bytes, bytes]]] = []
        keys: list[tuple[int, int]] = []
        for run in runs:
            values = run.properties_if_small()
            if values is None or run.topic == SCHEDULE_TOPIC:
                return False
            if any([len(each.get(b"KEYS", b"")) > _KEYS_OF_FEW_MAX for each in values]):
                return False
            offsets = run.log_offsets.tolist()
            if index is not None:
                keys += [
                    (key_hash, offsets[row]) for key_hash, row in keys_of_few(values, run.topic)
                ]
            last = entries[-1] if entries else None
            if last is None or (last.topic, last.queue) != (run.topic, run.queue):
                last = _Entries(run.topic, run.queue, run.first, [], [], [])
                entries.append(last)
            last.log_offsets.extend(offsets)
            last.sizes.extend(run.sizes_if_small)
            last.codes.extend(map(tags_code, values))
            parsed.append(values)
        if index is not None and not index.takes_few(int(runs[0].log_offsets[0]), len(keys)):
            return False
        for topic, queue, first, log_offsets, sizes, codes in entries:
            self._queues.find_or_make(topic, queue).append(first, log_offsets, sizes, codes)
        self._enter_lite_few(runs, parsed)
        if index is not None and keys:
            index.put_few(keys, runs[0].store_ms)
        return True

    def _enter_scanned(self, run: Run) -> bool:
        """Enter RUN if the C core has read it, and if it needs no feature of the general method; return whether."""
        scanned, index = run.scanned, self._index
        if scanned is None or run.topic == SCHEDULE_TOPIC or self.index_lags:
            return False
        if scanned.may_have((_DISPATCH,)) and _DISPATCH in run.records:
            return False
        begin = run.end_offset - len(run.records)
        if index is not None and not index.takes_few(begin, scanned.key_count):
            return False
        row = self._queues.find_or_make(run.topic, run.queue)
        row.append_encoded(run.first, scanned.queue_entries(begin), run.end_offset)
        if index is not None and scanned.key_count:
            index.put_scanned(scanned, begin, run.store_ms)
        return True

    def _enter_alike(self, run: Run) -> bool:
        """Enter RUN if its records are uniform and need no feature of the general method; return whether."""
        alike, index = run.alike, self._index
        if alike is None or run.topic == SCHEDULE_TOPIC or self.index_lags:
            return False
        if _DISPATCH in alike.second or _DISPATCH in alike.first:
            return False
        if len(alike.first.get(b"KEYS", b"")) > _KEYS_OF_FEW_MAX:
            return False
        log_offsets, keys = run.log_offsets, keys_of_alike(alike, run.topic)
        if index is not None and not index.takes_few(int(log_offsets[0]), len(keys.rows)):
            return False
        codes = np.full(len(log_offsets), tags_code(alike.second), np.int64)
        codes[0] = tags_code(alike.first)
        row = self._queues.find_or_make(run.topic, run.queue)
        row.append(run.first, log_offsets, run.sizes, codes)
        if index is not None and len(keys.rows):
            index.put_new(keys, log_offsets, run.store_ms)
        return True

    def enter_stored(self, runs: Sequence[Run]) -> bool:
        """Enter RUNS, read from the end of the log, if each continues its queue.

        False: call `dispatch`, because some entries may exist already. Raises StoreFull or DiskFailure.
        """
        for run in runs:
            is_plain = _can_be_queue(run.topic, run.queue) and not self._queues.is_batch(run.topic)
            if not is_plain or run.first != self._queues.next_offset(run.topic, run.queue):
                return False
            if not self._enter_few((run,)):
                return False
        return True

    def dispatch(self, data: Buffer | Bytes, columns: RunColumns) -> Placed:
        """Enter the records that COLUMNS describe, in order of the log; return the counts of their queue entries.

        The records may belong to any queues and may be entered already. The columns contain the final log offsets,
        queue offsets and times. Raises StoreFull or DiskFailure: dispatch again to enter the rest.
        """
        placed = Placed()
        self._room = INDEXED_AT_ONCE
        array = as_bytes(data)
        for part in _parts(columns):
            properties = PropertyRanges(array, part)
            placed.add(self._put(array, part, properties))
            self._enter_lite(array, part, properties)
            self._enter_keys(array, part, None, properties)
        return placed

    def _enter_keys(
        self, array: Bytes, columns: RunColumns, topic: str | None, properties: PropertyRanges
    ) -> None:
        if self._index is not None and not self._put_off(array, columns, topic, properties):
            self._index.put_run(
                array, columns, now_ms=self.now_ms(), topic=topic, properties=properties
            )

    def _put_off(
        self, array: Bytes, columns: RunColumns, topic: str | None, properties: PropertyRanges
    ) -> bool:
        """Defer the keys of the records if there are too many or others wait; return whether they are deferred."""
        late = self._deferred
        if late is None or not late.allowed:
            return False
        if not late.lag:
            self._room -= keys_at_most(columns, properties)
            if self._room >= 0:
                return False
        late.make_room()
        late.put(array, columns, topic)
        return True

    @property
    def index_lags(self) -> bool:
        """Do records have queue entries while their keys still wait?"""
        return self._deferred is not None and self._deferred.lag

    def start(self, call_owner: CallOwner, on_failure: Callable[[DiskFailure], object]) -> None:
        """Defer keys from now on. CALL_OWNER runs a function in a later turn."""
        if self._deferred is not None:
            self._deferred.start(call_owner, on_failure)

    def stop(self) -> None:
        """Enter all waiting keys and defer no more. Raises StoreFull or DiskFailure."""
        if self._deferred is not None:
            self._deferred.stop()

    def index_some(self) -> None:
        """Enter some of the waiting keys. Raises StoreFull or DiskFailure."""
        if self._deferred is not None:
            self._deferred.enter_some()

    def index_all(self) -> None:
        """Enter all waiting keys. Raises StoreFull or DiskFailure."""
        if self._deferred is not None:
            self._deferred.enter_all()

    def go_on(self) -> None:
        """Continue with waiting keys after a full disk."""
        if self._deferred is not None:
            self._deferred.go_on()

    def tags_codes(
        self,
        data: Buffer | Bytes,
        columns: RunColumns,
        topic: str,
        properties: PropertyRanges | None = None,
    ) -> Longs:
        """Return the tags code of each record of plain queues of TOPIC; for SCHEDULE_TOPIC its delivery time."""
        array = as_bytes(data)
        properties = properties or PropertyRanges(array, columns)
        codes = tags_codes(array, properties)
        if topic == SCHEDULE_TOPIC:
            set_delivery_times(array, columns, properties, slice(None), codes, self._delays_ms)
        return codes

    def has_keys(self, data: Buffer | Bytes, columns: RunColumns) -> bool:
        """Does any of the records have a key for the index?"""
        kept = columns.take(np.flatnonzero((columns.sys_flag & SYS_TRANSACTION) != SYS_ROLLBACK))
        return bool(len(kept)) and has_keys(data, kept)

    def _enter_lite_few(
        self, runs: Sequence[Run], parsed: Sequence[Sequence[Mapping[bytes, bytes]]]
    ) -> None:
        """Enter those records of the small RUNS that belong to lite topics; PARSED are their properties."""
        enter = self._queues.lite.enter
        for run, values in zip(runs, parsed, strict=True):
            if any([_DISPATCH in each for each in values]):
                places = run.log_offsets.tolist(), run.sizes_if_small
                for each, log_offset, size in zip(values, *places, strict=True):
                    if _DISPATCH in each:
                        entry = log_offset, size, tags_code(each)
                        enter(run.topic, each[_DISPATCH], each.get(_NUMBER, b""), entry)

    def _enter_lite(
        self,
        array: Bytes,
        columns: RunColumns,
        properties: PropertyRanges,
        codes: Longs | None = None,
    ) -> None:
        """Enter those of the records that belong to lite topics in their queues."""
        if not properties.has(MULTI_DISPATCH):
            return
        codes = tags_codes(array, properties) if codes is None else codes
        for record in lite_records(array, columns, properties, codes):
            self._queues.lite.enter(*record)

    def _put(self, array: Bytes, columns: RunColumns, properties: PropertyRanges) -> Placed:
        """Enter records of any queues."""
        codes = tags_codes(array, properties)
        placed = Placed()
        for topic, queue, rows in by_queue(array, columns, _queued(columns)):
            if not _can_be_queue(topic, queue):
                placed.misplaced += len(rows)
                continue
            if topic == SCHEDULE_TOPIC:
                set_delivery_times(array, columns, properties, rows, codes, self._delays_ms)
            offsets, sizes = columns.log_offset[rows], columns.sizes[rows]
            if self._queues.is_batch(topic):
                batches = _batches(array, properties, rows)
                found = self._queues.find_or_make_batch(topic, queue).put(
                    offsets, sizes, codes[rows], columns.store_ms[rows], batches
                )
            else:
                found = self._queues.find_or_make(topic, queue).put(
                    columns.queue_offset[rows], offsets, sizes, codes[rows]
                )
            placed.add(found)
        return placed


def _parts(columns: RunColumns) -> Iterator[RunColumns]:
    """Divide COLUMNS into pieces that are processed one at a time."""
    if not len(columns):
        return
    if len(columns) <= ROWS_MAX and int(columns.properties_size.sum()) <= PROPERTIES_MAX:
        yield columns
        return
    ends = np.cumsum(columns.properties_size)
    at, before = 0, 0
    while at < len(columns):
        fit = int(np.searchsorted(ends, before + PROPERTIES_MAX, "right"))
        end = min(max(fit, at + 1), at + ROWS_MAX)
        yield columns.take(slice(at, end))
        at, before = end, int(ends[end - 1])


def _queued(columns: RunColumns) -> Rows | None:
    """Return the rows that get a queue entry; None for all."""
    served = is_served(columns.sys_flag)
    return None if served.all() else np.flatnonzero(served)


def _can_be_queue(topic: str, queue: int) -> bool:
    """Is TOPIC a valid folder name? In damaged records it may not be: the CRC does not cover it."""
    named = topic not in ("", ".", "..") and not {"/", "\0"} & set(topic)
    return named and len(topic.encode()) <= _NAME_SIZE_MAX and 0 <= queue <= QUEUE_ID_MAX


def lite_records(
    array: Bytes, columns: RunColumns, properties: PropertyRanges, codes: Longs
) -> Iterator[_LiteRecord]:
    """Yield those records that belong to lite topics, with topic, the values of the two properties, and the entry."""
    served = is_served(columns.sys_flag)
    starts, sizes = properties.find(MULTI_DISPATCH)
    numbers = properties.find(MULTI_QUEUE_OFFSET)
    for row in np.flatnonzero(served & (sizes > 0)).tolist():
        texts = [
            array[int(at[row]) : int(at[row]) + max(0, int(length[row]))].tobytes()
            for at, length in ((starts, sizes), numbers, (columns.topic_start, columns.topic_size))
        ]
        entry = int(columns.log_offset[row]), int(columns.sizes[row]), int(codes[row])
        yield texts[2].decode("utf-8", "replace"), texts[0], texts[1], entry


def _batches(array: Bytes, properties: PropertyRanges, rows: Rows) -> tuple[Longs, Longs]:
    """Return the first queue offset and the message count of each inner batch; −1 if missing."""
    found = [properties.find(name) for name in ("INNER_BASE", "INNER_NUM")]
    bases, counts = (decimal_numbers(array, starts[rows], sizes[rows]) for starts, sizes in found)
    return bases, counts
