"""Appending runs: place them in the log, fill in the store's fields, write once, derive queues and index.

A run goes into the log as a whole or not at all: if any of it cannot be written, the log is cut back to where it
was. If the log took it but the queues or the index could not (a full disk), it stays, its sender is told, and what
is missing is derived before anything else is appended. So queues never miss a record that is followed by another.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure, InvalidArgument, PocketMQError
from ..proto.record import HOST_V6_EXTRA, STORE_TIMESTAMP_AT, SYS_BORN_V6, SYS_FLAG_AT, Host
from ..proto.record_run import RunColumns, parse_run, walk
from .commit_log import CommitLog
from .health import Health
from .parts import StoreParts
from .run import Appended, Run, check_appendable, patch, stamp

_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")


class LogWriter:
    """The writing half of a store. `host` stands in every record as its store host; set it once the port is known.

    dispatched_offset: everything before it is in the queues and the index;  last_store_ms: store time of the newest
    record, below which none is ever stamped;  last_log_offset: where the last appended record begins (None before any).
    """

    def __init__(self, parts: StoreParts, health: Health, now_ms: Callable[[], int]) -> None:
        self._log = parts.log
        self._queues = parts.queues
        self._dispatcher = parts.dispatcher
        self._health = health
        self._now_ms = now_ms
        self.host = Host(bytes((127, 0, 0, 1)), 8081)
        self.dispatched_offset = parts.log.max_offset
        self.last_store_ms = 0
        self.last_log_offset: int | None = None

    def append(self, run: Run) -> Appended:
        """Append RUN at the end of its queue.

        Raises InvalidRecord, MessageTooLarge, InvalidArgument (a batch topic), StoreFull, DiskFailure, StoreClosed.
        """
        self._health.check_writable()
        check_appendable(run.columns)
        if self._queues.is_batch(run.topic):
            raise InvalidArgument(
                f'topic "{run.topic}" has batch queues (queue.type=BatchCQ), which are read but not written: use a'
                " topic with plain queues",
                field="topic",
                value=run.topic,
            )
        try:
            self.catch_up()
            return self._append(run)
        except DiskFailure as error:
            self._health.fail(error)
            raise

    def _append(self, run: Run) -> Appended:
        first = self._queues.next_offset(run.topic, run.queue)
        self.last_store_ms = max(self._now_ms(), self.last_store_ms)
        data = np.frombuffer(run.records, np.uint8).copy()
        parts = self._write(run, data, first)
        for columns in parts:
            self._dispatcher.dispatch(data, columns, topic=run.topic, queue=run.queue)
        self.dispatched_offset = end = self._log.max_offset
        offsets = [columns.log_offset for columns in parts]
        self.last_log_offset = int(offsets[-1][-1])
        log_offsets = offsets[0] if len(offsets) == 1 else np.concatenate(offsets)
        return Appended(first, log_offsets, end, self.last_store_ms)

    def _write(self, run: Run, data: NDArray[np.uint8], first: int) -> list[RunColumns]:
        """Write the run to the log, a part for each file that it touches; or cut the log back and raise."""
        stamped = stamp(self.last_store_ms, self.host)
        begin = self._log.max_offset
        parts = []
        try:
            for columns in self._parts(run):
                start, size = int(columns.starts[0]), int(columns.sizes.sum())
                offset = self._log.place(size)
                patch(data, columns, first, offset, stamped)
                self._log.append(data[start : start + size].data)
                first += len(columns)
                parts.append(columns)
        except PocketMQError:
            if self._log.max_offset != begin:
                self._log.truncate(begin)
            raise
        return parts

    def _parts(self, run: Run) -> Iterator[RunColumns]:
        """Divide RUN into parts that each fit what is left of a file, at the moment when it is asked for."""
        columns = run.columns
        if run.whole or len(run.records) <= self._log.room():
            yield columns
            return
        ends = np.cumsum(columns.sizes)
        at = written = 0
        while at < len(columns):
            room = self._log.room()
            fit = int(np.searchsorted(ends, written + room, "right"))
            if (
                fit <= at
            ):  # Not even the next record: it goes to a new file, with as many more as fit there.
                room = self._log.record_size_max
                fit = max(int(np.searchsorted(ends, written + room, "right")), at + 1)
            yield columns.take(slice(at, fit))
            at, written = fit, int(ends[fit - 1])

    def catch_up(self) -> None:
        """Derive queues and index for what the log took and they could not, if there is anything."""
        while self.dispatched_offset < self._log.max_offset:
            file = self._log.files.file_at(self.dispatched_offset)
            assert file is not None, "the log has no holes behind what was dispatched"
            at = self.dispatched_offset - file.start
            view = file.view[: file.position]
            starts, _ = walk(view, at)
            columns = parse_run(view, starts)
            self._dispatcher.dispatch(view, columns)
            self.dispatched_offset = min(file.end, self._log.max_offset)


def store_time_ms(log: CommitLog, log_offset: int) -> int | None:
    """Return the store time of the record at LOG_OFFSET; None if none is there."""
    size = log.record_size(log_offset)
    record = None if size is None else log.read(log_offset, size)
    if record is None or len(record) < STORE_TIMESTAMP_AT + HOST_V6_EXTRA + _LONG.size:
        return None
    (sys_flag,) = _INT.unpack_from(record, SYS_FLAG_AT)
    extra = HOST_V6_EXTRA if sys_flag & SYS_BORN_V6 else 0
    return int(_LONG.unpack_from(record, STORE_TIMESTAMP_AT + extra)[0])
