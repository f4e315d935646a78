"""The log writer: appends batches to the commit log, and enters them in their queues and the index.

`LogWriter.append` is the whole append, step by step. What the log accepted is stored, whatever fails afterwards: a
refusal would make the producer send it again, and it would be stored twice.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..proto import errors
from ..proto.facts import Facts
from ..proto.record import SYS_PREPARED, SYS_STORE_V6, SYS_TRANSACTION, Host
from ..proto.record_run import Ints, Longs, parse_run, walk
from ..proto.run import Run, stamp, stamp_all
from .commit_log import store_time_ms
from .disk import write_error
from .dispatch import Joined
from .health import StoreHealth
from .lite_numbers import LiteNumbers
from .log_age import LogAge
from .parts import StoreParts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    """The place of a batch: its records have the queue offsets from FIRST_QUEUE_OFFSET on and LOG_OFFSETS.

    All of it is on disk once the log is flushed up to END_OFFSET.
    """

    first_queue_offset: int
    log_offsets: Longs
    end_offset: int
    store_timestamp_ms: int

    def __len__(self) -> int:
        return len(self.log_offsets)


class LogWriter:
    """The writing half of a store.

    host: the store host in each new record, see `write_as`;
    dispatched_offset: everything before it is in the queues and, except for deferred keys, in the index;
    last_store_ms: store time of the newest record, the minimum for later ones;
    last_log_offset: the start of that record (None in an empty log).
    ON_CAUGHT_UP is called with the queues of messages that were stored earlier, but can be read only from now on.
    """

    def __init__(
        self,
        parts: StoreParts,
        health: StoreHealth,
        now_ms: Callable[[], int],
        on_caught_up: Callable[[list[tuple[str, int]]], object],
    ) -> None:
        self._log = parts.log
        self._queues = parts.queues
        self._dispatcher = parts.dispatcher
        self._health = health
        self._now_ms = now_ms
        self._age = LogAge(parts.log, parts.config)
        self._warned_of_age = False
        self._late: list[tuple[str, int]] = []
        self._on_caught_up = on_caught_up
        self.host = Host(bytes((127, 0, 0, 1)), 8081)
        self.dispatched_offset = parts.log.max_offset
        values = parts.checkpoint.values
        newest_ms = store_time_ms(parts.log, values.confirm_offset)
        self.last_log_offset = None if newest_ms is None else values.confirm_offset
        self.last_store_ms = max(newest_ms or 0, values.log_time_ms)

    def write_as(self, host: Host) -> None:
        """Write records of HOST from now on; StoreMismatch if HOST does not fit into records."""
        if host.is_v6:
            raise errors.StoreMismatch(
                f"store host {host}: records have only 4 bytes for it, use an IPv4 address",
                field="host",
            )
        self.host = host

    def begin_at(self, offset: int) -> None:
        """Begin the empty log at OFFSET."""
        self._log.files.start_at(offset)
        self.dispatched_offset = offset

    def append(self, runs: Sequence[Run]) -> list[Appended]:
        """Append all of RUNS in their order, each at the end of its queue, or none of them.

        If anything fails before all are written, the log is cut back to its old end. If only the queues or the index
        fail, the records are stored and readers see them late: they are entered before the next append, or by the next
        `tick`.

        Raises InvalidRecord, InvalidArgument (a topic with batch queues), MessageTooLarge, StoreFull, DiskFailure,
        StoreClosed.
        """
        # Validate.
        self._health.check_writable()
        for run in runs:
            self._check(run)
        written: list[tuple[Sequence[Run], Joined | None]] = []
        try:
            self.catch_up()
            self._roll_by_age()
            if any([run.is_lite for run in runs]):
                runs = self._with_lite_numbers(runs)
            begin = self._log.max_offset
            self.last_store_ms = store_ms = max(self._now_ms(), self.last_store_ms)
            stamped = stamp(store_ms, self.host)
            next_offsets: dict[tuple[str, int], int] = {}
            try:
                for group in self._groups(runs):
                    # Reserve queue offsets and space in the log; stamp a copy of the records; write it.
                    firsts = self._reserve(group, next_offsets)
                    data = memoryview(bytearray().join([run.records for run in group]))
                    log_offset = self._log.place(len(data))
                    columns = stamp_all(group, data, firsts, log_offset, stamped)
                    self._log.append(data)
                    written.append((group, None if columns is None else (data, columns)))
            except BaseException:  # Even MemoryError: readers must not see a part of RUNS.
                if self._log.max_offset != begin:
                    self._log.truncate(begin)
                raise
        except errors.DiskFailure as error:
            self._health.fail(error)
            raise
        # Enter the records in queues and index.
        if written:
            self.last_log_offset = int(written[-1][0][-1].log_offsets[-1])
        for group, joined in written:
            self._enter(group, joined)
        return _results(runs, (part for group, _ in written for part in group))

    def append_each(self, runs: Sequence[Run]) -> list[Appended | errors.PocketMQError]:
        """Append RUNS in their order, each completely or not at all; return the result or the error of each.

        One write serves all, if the log file has space for them.
        """
        if self._fit(runs):
            try:
                return [*self.append(runs)]
            except (errors.InvalidRecord, errors.InvalidArgument, errors.MessageTooLarge):
                pass  # Nothing was written. The others are valid.
            except errors.PocketMQError as error:
                return [error] * len(runs)
        return [self._append_alone(run) for run in runs]

    def _append_alone(self, run: Run) -> Appended | errors.PocketMQError:
        try:
            return self.append([run])[0]
        except errors.PocketMQError as error:
            return error

    def _groups(self, runs: Sequence[Run]) -> Iterator[Sequence[Run]]:
        """Divide RUNS into groups of one write each: all, if they fit the log file; otherwise each run, by file."""
        if self._fit(runs):
            yield runs
            return
        for run in runs:
            for part in self._parts(run):
                yield [part]

    def _fit(self, runs: Sequence[Run]) -> bool:
        """Are there RUNS, and does the log file have space for all of them?"""
        return bool(runs) and sum([len(run.records) for run in runs]) <= self._log.room()

    def _parts(self, run: Run) -> Iterator[Run]:
        """Divide RUN into parts that each fit the current log file, when the part is asked for."""
        if run.whole or len(run.records) <= self._log.room():
            yield run
            return
        ends = np.cumsum(run.sizes)
        at = written = 0
        while at < len(run):
            fit = int(np.searchsorted(ends, written + self._log.room(), "right"))
            if fit <= at:
                # Not even the next record: it goes to a new file, with as many more as fit there.
                room = self._log.record_size_max
                fit = max(int(np.searchsorted(ends, written + room, "right")), at + 1)
            yield run if fit - at == len(run) else run.part(at, fit)
            at, written = fit, int(ends[fit - 1])

    def _reserve(self, runs: Sequence[Run], next_offsets: dict[tuple[str, int], int]) -> list[int]:
        """Return the first queue offset of each of RUNS; NEXT_OFFSETS: of queues that this append reserved before."""
        firsts = []
        for run in runs:
            name = (run.topic, run.queue)
            first = next_offsets.get(name)
            first = self._queues.next_offset(*name) if first is None else first
            firsts.append(first)
            next_offsets[name] = first + len(run)
        return firsts

    def _with_lite_numbers(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Return RUNS, those of lite topics with their numbers in the lite queues."""
        numbers = LiteNumbers(self._queues.lite)
        return [numbers.numbered(run) if run.is_lite else run for run in runs]

    def _check(self, run: Run) -> None:
        """Refuse RUN if its queue cannot have its records."""
        if not run.is_standard:
            _check_kinds(run.columns.sys_flag)
        if self._queues.is_batch(run.topic):
            raise errors.InvalidArgument(
                f'topic "{run.topic}" has batch queues (queue.type=BatchCQ), which are read but not written: use a'
                " topic with plain queues",
                field="topic",
                value=run.topic,
            )

    def roll_by_age(self) -> None:
        """Close the newest log file if it is old enough, so that retention can delete it even if nothing is appended.

        It is not closed while its queue entries are incomplete, in a read-only or failed store, or in the log of a
        follower, whose master closes files.
        """
        health = self._health
        changeable = not (health.failure or health.read_only or health.following)
        if changeable and self.dispatched_offset == self._log.max_offset:
            try:
                self._roll_by_age()
            except errors.DiskFailure as error:
                self._health.fail(error)

    def _roll_by_age(self) -> None:
        """Close the file. All its records have queue entries. Without space for another file, it stays open."""
        if not self._age.is_due(self._now_ms()):
            return
        try:
            self._log.roll()
        except errors.StoreFull as error:
            if not self._warned_of_age:
                logger.warning("log file not closed by age %s", Facts(reason=error.message))
            self._warned_of_age = True
            return
        self._warned_of_age = False
        self.dispatched_offset = self._log.max_offset

    def _enter(self, runs: Sequence[Run], joined: Joined | None) -> None:
        """Enter RUNS, which are in the log, in queues and index. If that fails, they are late, but stored."""
        if not self._late:
            end = runs[-1].end_offset
            try:
                self._dispatcher.enter(runs, joined)
            except Exception as error:  # Even for a bug: the producer must not send them again.
                self._note_late(error, end)
            else:
                self.dispatched_offset = end
                return
        self._late += [(run.topic, run.queue) for run in runs]

    def _note_late(self, error: Exception, end: int) -> None:
        if isinstance(error, OSError):
            error = write_error(error, "derive queues from", self._log.files.folder)
        known = isinstance(error, errors.PocketMQError)
        logger.error(
            "messages stored in the log, but not in their queues yet %s",
            Facts(end=end, reason=str(error)),
            exc_info=None if known else error,
        )
        if isinstance(error, errors.DiskFailure):
            self._health.fail(error)

    def _derive(self, enter: Callable[[], object]) -> object:
        try:
            return enter()
        except OSError as error:
            folder = self._log.files.folder
            raise write_error(error, "derive queues from", folder) from error

    def enter_stored(self, begin: int, enter: Callable[[], object]) -> None:
        """Derive the records from BEGIN on with ENTER, if all earlier ones are derived.

        Otherwise, or if ENTER returns False, the following `catch_up` does so. Raises StoreFull or DiskFailure.
        """
        if self.dispatched_offset == begin and self._derive(enter) is not False:
            self.dispatched_offset = self._log.max_offset

    def catch_up(self) -> None:
        """Derive queues and index for records that are only in the log, if there are any."""
        while self.dispatched_offset < self._log.max_offset:
            file = self._log.files.file_at(self.dispatched_offset)
            assert file is not None, "the log has no holes after the dispatched part"
            at = self.dispatched_offset - file.start
            view = file.view[: file.position]
            starts, _ = walk(view, at)
            columns = parse_run(view, starts)
            self._derive(partial(self._dispatcher.dispatch, view, columns))
            self.dispatched_offset = min(file.end, self._log.max_offset)
        if self._late:
            late, self._late = self._late, []
            self._on_caught_up(late)

    def catch_up_if_possible(self) -> None:
        """Do the same as `catch_up`; if it still fails, the next append reports why, or the next call tries again."""
        if self.dispatched_offset < self._log.max_offset and self._health.failure is None:
            try:
                self.catch_up()
            except errors.DiskFailure as error:
                self._health.fail(error)
            except errors.StoreFull:
                return


def _results(runs: Sequence[Run], parts: Iterator[Run]) -> list[Appended]:
    """Return the place of each of RUNS. PARTS were written, in order: each run, or its parts."""
    results = []
    for run in runs:
        part = next(parts)
        first, log_offsets = part.first, part.log_offsets
        while len(log_offsets) < len(run):
            part = next(parts)
            log_offsets = np.concatenate((log_offsets, part.log_offsets))
        results.append(Appended(first, log_offsets, part.end_offset, part.store_ms))
    return results


def _check_kinds(sys_flags: Ints) -> None:
    """Refuse records that queues cannot contain: PREPARED and ROLLBACK types, and 16-byte store hosts."""
    if not (sys_flags & (SYS_TRANSACTION | SYS_STORE_V6)).any():
        return
    for index, sys_flag in enumerate(sys_flags.tolist()):
        if sys_flag & SYS_STORE_V6:
            problem = "reserves an IPv6 store host, but the broker has an IPv4 address"
        elif sys_flag & SYS_PREPARED:
            problem = "has the type prepared or rolled back; store it in the half topic, without that type"
        else:
            continue
        raise errors.InvalidRecord(
            f"record {index} of the run: sysFlag {sys_flag:#x} {problem}",
            field="sysFlag",
            index=index,
            value=sys_flag,
        )
