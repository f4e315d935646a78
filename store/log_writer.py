"""Appending runs: place them in the log, fill in the store's fields, write once, derive queues and index.

A run, or runs that belong together, go into the log as a whole or not at all: if any of it cannot be written, the log
is cut back to where it was. What the log took is stored, whatever else fails, and that is what is answered: a refusal
would be sent again, and stored twice. If queues or index could not take it (a full disk, no descriptor left), readers
see it late: it is derived before anything else is appended, or with the next tick that can. Until then every append is
refused. So queues never miss a record that is followed by another.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure, InvalidArgument, PocketMQError, StoreFull
from ..proto.few_records import FewColumns, as_few
from ..proto.property_ranges import PropertyRanges
from ..proto.record import Buffer, Host, head_store_time_ms
from ..proto.record_run import LEAST_SIZE, RunColumns, parse_run, walk
from .commit_log import CommitLog
from .disk import write_error
from .files import MappedFile
from .format.log_file import BLANK_SIZE
from .parts import Health, StoreParts
from .run import Appended, Run, check_appendable, joined, patch, patch_few, stamp

logger = logging.getLogger(__name__)

#: From so many runs on it is cheaper to treat their records all at once, though each run has but a few.
_JOINED_LEAST: Final = 20


class LogAge:
    """How old the newest file of LOG is, and whether that is old enough to close it (`store.log_roll_ms`; 0: never).

    The age counts from the store time of the file's first record, in wall time. If the wall clock was set back behind
    that, it counts from the first look since then: nothing is closed for the step, and the file stays open for one
    ROLL_MS more, not until the clock comes to where it was.
    """

    def __init__(self, log: CommitLog, roll_ms: int) -> None:
        self._log = log
        self._roll_ms = roll_ms
        self._file: MappedFile | None = None
        self._since_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Is the newest file to be closed at NOW_MS? An empty one never is, nor one that is closed already."""
        file = self._log.files.last if self._roll_ms else None
        if file is None or file.position == 0 or file.room < BLANK_SIZE:
            self._file = None
            return False
        if file is not self._file:
            self._file = file
            self._since_ms = _first_store_ms(self._log, file) or now_ms
        self._since_ms = min(self._since_ms, now_ms)
        return now_ms - self._since_ms >= self._roll_ms


def _first_store_ms(log: CommitLog, file: MappedFile) -> int | None:
    """Return the store time of the first record of FILE; None if none can be read there."""
    try:
        return store_time_ms(log, file.start)
    except DiskFailure:  # Who reads the record is told; for writing behind it, it is not needed.
        return None


class LogWriter:
    """The writing half of a store. `host` stands in every record as its store host; set it once the port is known.

    dispatched_offset: everything before it is in the queues, and in the index but for keys that wait (dispatch.py);
    last_store_ms: store time of the newest record, below which none is ever stamped;
    last_log_offset: where that record begins (None in an empty log);
    on_caught_up: told the queues of what was stored, but can be read only from now on.
    """

    def __init__(self, parts: StoreParts, health: Health, now_ms: Callable[[], int]) -> None:
        self._log = parts.log
        self._queues = parts.queues
        self._dispatcher = parts.dispatcher
        self._health = health
        self._now_ms = now_ms
        self._age = LogAge(parts.log, parts.config.log_roll_ms)
        self._warned_of_age = False
        self._late: list[tuple[str, int]] = []
        self.on_caught_up: Callable[[list[tuple[str, int]]], object] = lambda queues: None
        self.host = Host(bytes((127, 0, 0, 1)), 8081)
        self.dispatched_offset = parts.log.max_offset
        self.last_store_ms = 0
        self.last_log_offset: int | None = None

    def append(self, run: Run) -> Appended:
        """Append RUN at the end of its queue.

        Raises InvalidRecord, MessageTooLarge, InvalidArgument (a batch topic), StoreFull, DiskFailure, StoreClosed.
        """
        (appended,) = self.append_together([run])
        return appended

    def append_together(self, runs: Sequence[Run]) -> list[Appended]:
        """Append all of RUNS in their order, or nothing of them; raises what `append` raises."""
        self._health.check_writable()
        for run in runs:
            self._check(run)
        try:
            self.catch_up()
            self._roll_by_age()
            at_once = self._append_at_once(runs) if len(runs) > 1 else []
            return at_once or self._append_together(runs)
        except DiskFailure as error:
            self._health.fail(error)
            raise

    def append_many(self, runs: Sequence[Run]) -> list[Appended | PocketMQError]:
        """Append RUNS in their order; return what became of each: the same as one by one, for less work.

        One write and one pass over queues and index serve all runs, if what is left of the log file takes them.
        """
        outcomes: list[Appended | PocketMQError | None] = [self._refusal(run) for run in runs]
        good = [run for run, refusal in zip(runs, outcomes, strict=True) if refusal is None]
        done = iter(self._append_good(good))
        return [next(done) if outcome is None else outcome for outcome in outcomes]

    def _append_good(self, runs: list[Run]) -> list[Appended | PocketMQError]:
        try:
            self._health.check_writable()
            self.catch_up()
            self._roll_by_age()
            if appended := self._append_at_once(runs):
                return list[Appended | PocketMQError](appended)
        except DiskFailure as error:
            self._health.fail(error)
            return [error] * len(runs)
        except PocketMQError as error:
            return [error] * len(runs)
        return [self._outcome(run) for run in runs]

    def roll_by_age(self) -> None:
        """Close the newest log file if it is old enough, so that retention can take it though nothing is appended.

        Not as long as something of it is missing in its queue, nor in a store that takes no change.
        """
        changeable = self._health.failure is None and not self._health.read_only
        if changeable and self.dispatched_offset == self._log.max_offset:
            try:
                self._roll_by_age()
            except DiskFailure as error:
                self._health.fail(error)

    def _roll_by_age(self) -> None:
        """Do that; everything is in its queue. Without room for another file the present one goes on."""
        if not self._age.is_due(self._now_ms()):
            return
        try:
            self._log.roll()
        except StoreFull as error:
            if not self._warned_of_age:
                logger.warning("log file not closed by age", extra={"reason": error.message})
            self._warned_of_age = True
            return
        self._warned_of_age = False
        self.dispatched_offset = self._log.max_offset

    def _append_at_once(self, runs: Sequence[Run]) -> list[Appended]:
        """Append RUNS by one write. An empty list: they do not fit the file, or it is one run of many records."""
        if runs and sum([len(run.records) for run in runs]) <= self._log.room():
            few = [as_few(run.columns) for run in runs] if len(runs) < _JOINED_LEAST else [None]
            if None not in few:
                return self._append_few(runs, few)
            if len(runs) > 1:
                return self._append_joined(runs)
        return []

    def _outcome(self, run: Run) -> Appended | PocketMQError:
        try:
            return self.append(run)
        except PocketMQError as error:
            return error

    def _refusal(self, run: Run) -> PocketMQError | None:
        try:
            self._check(run)
        except PocketMQError as error:
            return error
        return None

    def _check(self, run: Run) -> None:
        check_appendable(run.columns)
        if self._queues.is_batch(run.topic):
            raise InvalidArgument(
                f'topic "{run.topic}" has batch queues (queue.type=BatchCQ), which are read but not written: use a'
                " topic with plain queues",
                field="topic",
                value=run.topic,
            )

    def _append_together(self, runs: Sequence[Run]) -> list[Appended]:
        self.last_store_ms = max(self._now_ms(), self.last_store_ms)
        begin = self._log.max_offset
        firsts = self._first_offsets(runs)
        written = []
        try:
            for run, first in zip(runs, firsts, strict=True):
                data = np.frombuffer(run.records, np.uint8).copy()
                written.append((run, first, data, self._write(run, data, first)))
        except PocketMQError:
            if self._log.max_offset != begin:
                self._log.truncate(begin)
            raise
        self.last_log_offset = int(written[-1][3][-1].log_offset[-1])
        return [self._entered(*each) for each in written]

    def _entered(
        self, run: Run, first: int, data: NDArray[np.uint8], parts: list[RunColumns]
    ) -> Appended:
        """Enter RUN, which begins with queue offset FIRST and was written as PARTS of DATA; return where it is."""
        end = 0
        for columns in parts:
            properties = run.properties if columns is run.columns else None
            end = int(columns.log_offset[-1] + columns.sizes[-1])
            self._enter([run], data, columns, end, run.topic, run.queue, properties)
        offsets = [columns.log_offset for columns in parts]
        log_offsets = offsets[0] if len(offsets) == 1 else np.concatenate(offsets)
        return Appended(first, log_offsets, end, self.last_store_ms)

    def _append_few(self, runs: Sequence[Run], few: Sequence[FewColumns | None]) -> list[Appended]:
        """Append RUNS, whose columns are FEW and which fit the current file together, by one write."""
        self.last_store_ms = now = max(self._now_ms(), self.last_store_ms)
        stamped = stamp(now, self.host)
        data = bytearray().join([run.records for run in runs])
        view = memoryview(data)
        at = begin = self._log.place(len(data))
        parts = []
        for run, columns, first in zip(runs, few, self._first_offsets(runs), strict=True):
            assert columns is not None, "the caller has looked"
            end = at + len(run.records)
            part = view[at - begin : end - begin]
            patch_few(part, columns, first, at, stamped)
            parts.append((run, columns, first, part, end))
            at = end
        self._log.append(view)
        self.last_log_offset = int(parts[-1][1].log_offset[-1])
        appended = []
        for run, columns, first, part, end in parts:
            self._enter([run], part, columns, end, run.topic, run.queue, run.properties)
            appended.append(Appended(first, columns.log_offset, end, now))
        return appended

    def _append_joined(self, runs: Sequence[Run]) -> list[Appended]:
        """Append RUNS, which fit the current file together, as one."""
        self.last_store_ms = now = max(self._now_ms(), self.last_store_ms)
        data, columns = joined(runs)
        firsts = self._first_offsets(runs)
        numbers = [
            np.arange(first, first + len(run.columns))
            for first, run in zip(firsts, runs, strict=True)
        ]
        begin = self._log.place(len(data))
        patch(data, columns, np.concatenate(numbers), begin, stamp(now, self.host))
        self._log.append(data.data)
        self.last_log_offset = int(columns.log_offset[-1])
        self._enter(runs, data, columns, self._log.max_offset)
        appended = []
        row, end = 0, begin
        for first, run in zip(firsts, runs, strict=True):
            offsets = columns.log_offset[row : row + len(run.columns)]
            row, end = row + len(run.columns), end + len(run.records)
            appended.append(Appended(first, offsets, end, now))
        return appended

    def _first_offsets(self, runs: Sequence[Run]) -> list[int]:
        """Return the queue offset with which each of RUNS begins."""
        following: dict[tuple[str, int], int] = {}
        firsts = []
        for run in runs:
            name = (run.topic, run.queue)
            first = following.get(name)
            first = self._queues.next_offset(*name) if first is None else first
            firsts.append(first)
            following[name] = first + len(run.columns)
        return firsts

    def _write(self, run: Run, data: NDArray[np.uint8], first: int) -> list[RunColumns]:
        """Write the run to the log, a part for each file that it touches; what was written stays there on an error."""
        stamped = stamp(self.last_store_ms, self.host)
        parts = []
        for columns in self._parts(run):
            whole = columns is run.columns
            start = int(columns.starts[0])
            size = len(data) if whole else int(columns.sizes.sum())
            offset = self._log.place(size)
            numbers = np.arange(first, first + len(columns))
            patch(data, columns, numbers, offset, stamped)
            self._log.append(data[start : start + size].data)
            first += len(columns)
            parts.append(columns)
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

    # --- queues and index ----------------------------------------------------------------------------------------

    def _enter(
        self,
        runs: Sequence[Run],
        data: Buffer | NDArray[np.uint8],
        columns: RunColumns,
        end: int,
        topic: str | None = None,
        queue: int | None = None,
        properties: PropertyRanges | None = None,
    ) -> None:
        """Enter records of RUNS, which the log took up to END; what fails here makes them late, and no less stored."""
        if not self._late:
            try:
                self._derive(data, columns, topic, queue, properties)
            except Exception as error:  # Also a bug: who sent them must not send them again.
                self._note_late(error, end)
            else:
                self.dispatched_offset = end
                return
        self._late += [(run.topic, run.queue) for run in runs]

    def _note_late(self, error: Exception, end: int) -> None:
        told = isinstance(error, PocketMQError)
        logger.error(
            "messages are in the log, but not in their queues yet",
            extra={"end": end, "reason": str(error)},
            exc_info=None if told else error,
        )
        if isinstance(error, DiskFailure):
            self._health.fail(error)

    def _derive(
        self,
        data: Buffer | NDArray[np.uint8],
        columns: RunColumns,
        topic: str | None = None,
        queue: int | None = None,
        properties: PropertyRanges | None = None,
    ) -> None:
        try:
            self._dispatcher.dispatch(
                data, columns, topic=topic, queue=queue, properties=properties
            )
        except OSError as error:
            folder = self._log.files.folder
            raise write_error(error, "derive queues from", folder) from error

    def catch_up(self) -> None:
        """Derive queues and index for what the log took and they could not, if there is anything."""
        while self.dispatched_offset < self._log.max_offset:
            file = self._log.files.file_at(self.dispatched_offset)
            assert file is not None, "the log has no holes behind what was dispatched"
            at = self.dispatched_offset - file.start
            view = file.view[: file.position]
            starts, _ = walk(view, at)
            columns = parse_run(view, starts)
            self._derive(view, columns)
            self.dispatched_offset = min(file.end, self._log.max_offset)
        if self._late:
            late, self._late = self._late, []
            self.on_caught_up(late)

    def catch_up_if_possible(self) -> None:
        """Do what `catch_up` does, unless it still fails: then the next append says why, or the next call tries."""
        if self.dispatched_offset < self._log.max_offset and self._health.failure is None:
            try:
                self.catch_up()
            except DiskFailure as error:
                self._health.fail(error)
            except StoreFull:
                return


def store_time_ms(log: CommitLog, log_offset: int) -> int | None:
    """Return the store time of the record at LOG_OFFSET; None if none is there."""
    head = log.record(log_offset, LEAST_SIZE)
    return None if head is None else head_store_time_ms(head)
