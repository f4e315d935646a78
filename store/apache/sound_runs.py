"""Many records of a log file checked at once, for the model of RocketMQ's recovery (store.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...proto import property_ranges, record_run
from ...proto.byte_ranges import hash_ranges, left_aligned
from ...proto.record import MAGIC_V1, SYS_COMMIT, SYS_TRANSACTION
from ...proto.topics import SCHEDULE_TOPIC
from .queue import JavaQueue, SimpleQueue
from .settings import ApacheSettings

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
#: Returns which valid records of a window may be skipped.
Wanted = Callable[[Bytes, record_run.RunColumns], Bools]

WINDOW_BYTES: Final = 4 << 20
_INNER_NUM: Final = "INNER_NUM"
_JAVA_BYTE_MAX: Final = 127


class Passed(NamedTuple):
    """A batch of records: the start of its last record, and the end of the batch."""

    last: int
    end: int


class SoundRuns:
    """Finds batches of ordinary valid records in one log file.

    Checking and decoding one record takes about 10 µs, and a log file has millions. Nearly all are ordinary: lengths
    are consistent, the CRC matches, and no property affects the check. These are found by columns (record_run.py). All
    others are left to `RecordCheck`: records of the schedule topic, those with INNER_NUM or a topic length that is
    negative in Java, and under forceVerifyPropCRC all.

    DATA is the file, WANTED selects among its records (None: none of them). A selected record must stay selected.
    """

    def __init__(self, data: memoryview, settings: ApacheSettings, wanted: Wanted | None) -> None:
        self._data = data
        self._array = record_run.as_bytes(data)
        self._crc = settings.check_crc
        self._wanted = None if settings.property_crc_required else wanted
        #: The window: the start and the end of each record, and the index of the next record that is not ordinary.
        self._starts = np.zeros(0, np.int64)
        self._ends = self._starts
        self._next_other = self._starts
        self._searched_to = -1

    def run_from(self, at: int) -> Passed | None:
        """Return the batch that begins with the record at AT; None if that is not ordinary, or no record."""
        if self._wanted is None:
            return None
        if at >= self._searched_to:
            self._search(at)
        row = int(np.searchsorted(self._starts, at))
        if row == len(self._starts) or self._starts[row] != at:
            return None
        behind = int(self._next_other[row])
        if behind == row:
            return None
        return Passed(int(self._starts[behind - 1]), int(self._ends[behind - 1]))

    def _search(self, at: int) -> None:
        """Search the window from AT on."""
        stop = min(at + WINDOW_BYTES, len(self._data))
        starts, end = record_run.walk(self._data, at, stop)
        columns = record_run.parse_run(self._array, starts)
        if not columns.well_formed.all():
            columns = columns.take(slice(int(columns.well_formed.argmin())))
        self._starts, self._ends = columns.starts, columns.starts + columns.sizes
        # A record that does not fit a window is checked separately, and the next window begins after it.
        self._searched_to = end if len(columns) else at + 1
        plain = self._plain(columns, bytes(self._data[at:end])) if len(columns) else _NONE
        places = np.where(plain, len(columns), np.arange(len(columns)))
        self._next_other = np.minimum.accumulate(places[::-1])[::-1]

    def _plain(self, columns: record_run.RunColumns, text: bytes) -> Bools:
        plain: Bools = (columns.magic != MAGIC_V1) | (columns.topic_size <= _JAVA_BYTE_MAX)
        if self._crc:
            plain &= ~record_run.crc_mismatches(self._data, columns)
        if _INNER_NUM.encode() in text:
            _, sizes = property_ranges.PropertyRanges(self._array, columns).find(_INNER_NUM)
            plain &= sizes <= 0
        if SCHEDULE_TOPIC.encode() in text:
            plain &= ~record_run.topic_is(self._array, columns, SCHEDULE_TOPIC)
        assert self._wanted is not None
        return plain & self._wanted(self._array, columns)


_NONE: Final = np.zeros(0, np.bool_)


class EnteredRecords:
    """Returns whether records have their entries in QUEUES (by topic and queue), or need none.

    RocketMQ's dispatch does nothing for such records. Only queues with one entry per message are checked; records of
    other queues count as not entered.
    """

    def __init__(self, queues: Mapping[tuple[str, int], JavaQueue]) -> None:
        self._queues = queues

    def __call__(self, array: Bytes, columns: record_run.RunColumns) -> Bools:
        """Return the result for each record of COLUMNS, which are in ARRAY."""
        kind = columns.sys_flag & SYS_TRANSACTION
        has_entry = (kind == 0) | (kind == SYS_COMMIT)
        entered: Bools = columns.log_offset + columns.sizes <= self._ends(array, columns)
        entered |= ~has_entry
        return entered

    def _ends(self, array: Bytes, columns: record_run.RunColumns) -> record_run.Longs:
        """Return for each record the log offset up to which its queue has entries; −1 if that is unknown."""
        hashes = hash_ranges(array, columns.topic_start, columns.topic_size).astype(np.int64)
        codes = hashes << 32 | columns.queue_id.astype(np.int64) & 0xFFFFFFFF
        _, first, group = np.unique(codes, return_index=True, return_inverse=True)
        ends = np.array([self._end(array, columns, row) for row in first.tolist()], np.int64)
        found: record_run.Longs = np.where(
            _same_topic(array, columns, first[group]), ends[group], -1
        )
        return found

    def _end(self, array: Bytes, columns: record_run.RunColumns, row: int) -> int:
        start, size = int(columns.topic_start[row]), int(columns.topic_size[row])
        topic = array[start : start + size].tobytes().decode("utf-8", "replace")
        queue = self._queues.get((topic, int(columns.queue_id[row])))
        return queue.max_log_offset if isinstance(queue, SimpleQueue) else -1


def _same_topic(array: Bytes, columns: record_run.RunColumns, other: NDArray[np.intp]) -> Bools:
    """Return for each record whether its topic equals that of the record OTHER; equal hashes do not prove it."""
    sizes = columns.topic_size
    width = int(sizes.max(initial=0))
    topics = left_aligned(array, columns.topic_start, sizes, width)
    behind = np.arange(width) >= sizes[:, None]
    same: Bools = ((topics == topics[other]) | behind).all(axis=1)
    same &= sizes == sizes[other]
    return same
