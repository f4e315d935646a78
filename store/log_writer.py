"""Appending runs: place them in the log, fill in the store's fields, write once, derive queues and index.

A run, or runs that belong together, go into the log as a whole or not at all: if any of it cannot be written, the log
is cut back to where it was. What the log took is stored, whatever else fails, and that is what is answered: a refusal
would be sent again, and stored twice. If queues or index could not take it (a full disk, no descriptor left), readers
see it late: it is derived before anything else is appended, or with the next tick that can. Until then every append is
refused. So queues never miss a record that is followed by another.

Not thread-safe: the store's owner calls it.

The log of a follower: bytes of its master's log as they are, and queues and index derived from them.

A frame of such bytes may end anywhere, but never goes across the end of a file. What it holds of a record that is not
whole yet waits in memory for the next frame, and so does the blank that closes a file, until all that lies behind it
has come. So the log itself ends with a record or a file at any moment, and is recovered, led, or opened by Apache's
broker as any other; what waited is asked for again after a stop: nobody was told that it is stored.

What lies behind a blank means nothing, and is zeros but for stale bytes of an Apache master: zeros are not written, so
that a hole there stays one.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from ..proto import errors
from ..proto.record import (
    MAGIC_V1,
    MAGIC_V2,
    SYS_PREPARED,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    Host,
)
from ..proto.record_run import (
    LEAST_SIZE,
    Ints,
    Longs,
    RunColumns,
    as_bytes,
    crc_mismatches,
    is_sound,
    parse_run,
    walk,
)
from ..proto.run import Run, patch_together, stamp, stored_runs
from .config import StoreConfig
from .damage import Damages
from .disk import Buffer, write_error
from .events import HearRecords
from .files import CommitLog, MappedFile, store_time_ms
from .format.log_and_queues import BLANK_SIZE, is_blank, no_record, size_and_magic
from .health import StoreHealth
from .parts import StoreParts

logger = logging.getLogger(__name__)

#: So many records of runs of a few are cheaper to treat all at once.
_JOINED_LEAST: Final = 48
#: Runs that the log took, and what enters them in queues and index.
_Written: TypeAlias = tuple[Sequence[Run], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a run went: its records have the queue offsets from FIRST_QUEUE_OFFSET on and LOG_OFFSETS.

    Everything of it is on the device once the log is flushed up to END_OFFSET.
    """

    first_queue_offset: int
    log_offsets: Longs
    end_offset: int
    store_timestamp_ms: int

    def __len__(self) -> int:
        return len(self.log_offsets)


def _appended(parts: Sequence[Run], store_ms: int) -> Appended:
    """Return where the PARTS of a run are."""
    offsets = [part.log_offsets for part in parts]
    log_offsets = offsets[0] if len(offsets) == 1 else np.concatenate(offsets)
    return Appended(parts[0].first, log_offsets, parts[-1].end_offset, store_ms)


class LogAge:
    """How old the newest file of LOG is, and whether that is old enough to close it (`store.log_roll_ms`; 0: never).

    The age counts from the store time of the file's first record, in wall time. If the wall clock was set back behind
    that, it counts from the first look since then: nothing is closed for the step, and the file stays open for one
    such time more, not until the clock comes to where it was.
    """

    def __init__(self, log: CommitLog, config: StoreConfig) -> None:
        self._log = log
        self._config = config
        self._file: MappedFile | None = None
        self._since_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Is the newest file to be closed at NOW_MS? An empty one never is, nor one that is closed already."""
        roll_ms = self._config.log_roll_ms
        file = self._log.files.last if roll_ms else None
        if file is None or file.position == 0 or file.room < BLANK_SIZE:
            self._file = None
            return False
        if file is not self._file:
            self._file = file
            self._since_ms = _first_store_ms(self._log, file) or now_ms
        self._since_ms = min(self._since_ms, now_ms)
        return now_ms - self._since_ms >= roll_ms


def _first_store_ms(log: CommitLog, file: MappedFile) -> int | None:
    """Return the store time of the first record of FILE; None if none can be read there."""
    try:
        return store_time_ms(log, file.start)
    except (
        errors.DiskFailure
    ):  # Who reads the record is told; for writing behind it, it is not needed.
        return None


class LogWriter:
    """The writing half of a store.

    host: stands in every record as its store host, see `write_as`;
    dispatched_offset: everything before it is in the queues and, except for deferred keys, in the index;
    last_store_ms: store time of the newest record, below which none is ever stamped;
    last_log_offset: where that record begins (None in an empty log).
    ON_CAUGHT_UP is told the queues of what was stored, but can be read only from now on.
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
        """Write records of HOST from now on; StoreMismatch for one that has no room in them."""
        if host.is_v6:
            raise errors.StoreMismatch(
                f"store host {host}: records reserve 4 bytes for it, use an IPv4 address",
                field="host",
            )
        self.host = host

    def begin_at(self, offset: int) -> None:
        """Begin the log, which is empty, at OFFSET."""
        self._log.files.start_at(offset)
        self.dispatched_offset = offset

    def append(self, runs: Sequence[Run]) -> list[Appended]:
        """Append all of RUNS in their order, each at the end of its queue, or nothing of them.

        Raises InvalidRecord, MessageTooLarge, InvalidArgument (a batch topic), StoreFull, DiskFailure, StoreClosed.
        """
        self._health.check_writable()
        for run in runs:
            self._check(run)
        try:
            self.catch_up()
            self._roll_by_age()
            return self._append(runs)
        except errors.DiskFailure as error:
            self._health.fail(error)
            raise

    def append_each(self, runs: Sequence[Run]) -> list[Appended | errors.PocketMQError]:
        """Append RUNS in their order; return what became of each: the same as one by one, for less work.

        One write serves all runs, if what is left of the log file takes them.
        """
        outcomes: list[Appended | errors.PocketMQError | None] = [
            self._refusal(run) for run in runs
        ]
        good = [run for run, refusal in zip(runs, outcomes, strict=True) if refusal is None]
        done = iter(self._append_good(good))
        return [next(done) if outcome is None else outcome for outcome in outcomes]

    def _append_good(self, runs: list[Run]) -> list[Appended | errors.PocketMQError]:
        try:
            self._health.check_writable()
            self.catch_up()
            self._roll_by_age()
            if self._fit(runs):
                return [*self._append(runs)]
        except errors.DiskFailure as error:
            self._health.fail(error)
            return [error] * len(runs)
        except errors.PocketMQError as error:
            return [error] * len(runs)
        return [self._outcome(run) for run in runs]

    def _append(self, runs: Sequence[Run]) -> list[Appended]:
        """Append RUNS, which have a place in their queues, or nothing of them: the act itself."""
        self.last_store_ms = now_ms = max(self._now_ms(), self.last_store_ms)
        stamped = stamp(now_ms, self.host)
        begin, firsts = self._log.max_offset, self._first_offsets(runs)
        parts = [[run] for run in runs]
        written: list[_Written] = []
        try:
            if self._fit(runs):
                written += self._write(runs, firsts, stamped)
            else:
                for own, first in zip(parts, firsts, strict=True):
                    own[:] = self._write_apart(own[0], first, stamped, written)
        except errors.PocketMQError:
            if self._log.max_offset != begin:
                self._log.truncate(begin)
            raise
        self.last_log_offset = int(parts[-1][-1].log_offsets[-1])
        for together, enter in written:
            self._enter(together, enter)
        return [_appended(own, now_ms) for own in parts]

    def _fit(self, runs: Sequence[Run]) -> bool:
        """Are there RUNS, and does what is left of the log file take them all?"""
        return bool(runs) and sum([len(run.records) for run in runs]) <= self._log.room()

    def _write(self, runs: Sequence[Run], firsts: Sequence[int], stamped: bytes) -> list[_Written]:
        """Write RUNS to one file, numbered from FIRSTS on."""
        data = memoryview(bytearray().join([run.records for run in runs]))
        begin = self._log.place(len(data))
        if len(runs) > 1 and _are_joined(runs):
            columns = patch_together(runs, data, firsts, begin, stamped)
            written: list[_Written] = [(runs, partial(self._dispatcher.dispatch, data, columns))]
        else:
            written = [(runs, partial(self._dispatcher.enter_together, runs))]
            at = 0
            for run, first in zip(runs, firsts, strict=True):
                end = at + len(run.records)
                run.patch(data[at:end], first, begin + at, stamped)
                at = end
        self._log.append(data)
        return written

    def _write_apart(
        self, run: Run, first: int, stamped: bytes, written: list[_Written]
    ) -> list[Run]:
        """Write RUN, a part for each file that it touches; add to what was WRITTEN, and return the parts."""
        parts = []
        for part in self._parts(run):
            written += self._write([part], [first], stamped)
            first += len(part)
            parts.append(part)
        return parts

    def _parts(self, run: Run) -> Iterator[Run]:
        """Divide RUN into parts that each fit what is left of a file, at the moment when it is asked for."""
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

    def _first_offsets(self, runs: Sequence[Run]) -> list[int]:
        """Return the queue offset with which each of RUNS begins."""
        following: dict[tuple[str, int], int] = {}
        firsts = []
        for run in runs:
            name = (run.topic, run.queue)
            first = following.get(name)
            first = self._queues.next_offset(*name) if first is None else first
            firsts.append(first)
            following[name] = first + len(run)
        return firsts

    def _outcome(self, run: Run) -> Appended | errors.PocketMQError:
        try:
            return self.append([run])[0]
        except errors.PocketMQError as error:
            return error

    def _refusal(self, run: Run) -> errors.PocketMQError | None:
        try:
            self._check(run)
        except errors.PocketMQError as error:
            return error
        return None

    def _check(self, run: Run) -> None:
        """Refuse RUN if it has no place in its queue."""
        if not run.is_usual:
            _check_kinds(run.columns.sys_flag)
        if self._queues.is_batch(run.topic):
            raise errors.InvalidArgument(
                f'topic "{run.topic}" has batch queues (queue.type=BatchCQ), which are read but not written: use a'
                " topic with plain queues",
                field="topic",
                value=run.topic,
            )

    # --- files that age closes

    def roll_by_age(self) -> None:
        """Close the newest log file if it is old enough, so that retention can take it though nothing is appended.

        Not as long as something of it is missing in its queue, nor in a store that takes no change, or follows a
        master, which closes files.
        """
        health = self._health
        changeable = not (health.failure or health.read_only or health.following)
        if changeable and self.dispatched_offset == self._log.max_offset:
            try:
                self._roll_by_age()
            except errors.DiskFailure as error:
                self._health.fail(error)

    def _roll_by_age(self) -> None:
        """Do that; everything is in its queue. Without room for another file the present one goes on."""
        if not self._age.is_due(self._now_ms()):
            return
        try:
            self._log.roll()
        except errors.StoreFull as error:
            if not self._warned_of_age:
                logger.warning("log file not closed by age", extra={"reason": error.message})
            self._warned_of_age = True
            return
        self._warned_of_age = False
        self.dispatched_offset = self._log.max_offset

    # --- queues and index ----------------------------------------------------------------------------------------

    def _enter(self, runs: Sequence[Run], enter: Callable[[], object]) -> None:
        """ENTER what the log took of RUNS; what fails here makes them late, and no less stored."""
        if not self._late:
            end = runs[-1].end_offset
            try:
                self._derive(enter)
            except Exception as error:  # Also a bug: who sent them must not send them again.
                self._note_late(error, end)
            else:
                self.dispatched_offset = end
                return
        self._late += [(run.topic, run.queue) for run in runs]

    def _note_late(self, error: Exception, end: int) -> None:
        told = isinstance(error, errors.PocketMQError)
        logger.error(
            "messages are in the log, but not in their queues yet",
            extra={"end": end, "reason": str(error)},
            exc_info=None if told else error,
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
        """Derive by ENTER what the log took from BEGIN on, if that is where what is to be derived begins.

        `catch_up`, which is to follow, does so otherwise, or if ENTER returns False. Raises StoreFull or DiskFailure.
        """
        if self.dispatched_offset == begin and self._derive(enter) is not False:
            self.dispatched_offset = self._log.max_offset

    def catch_up(self) -> None:
        """Derive queues and index for what the log took and they could not, if there is anything."""
        while self.dispatched_offset < self._log.max_offset:
            file = self._log.files.file_at(self.dispatched_offset)
            assert file is not None, "the log has no holes behind what was dispatched"
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
        """Do what `catch_up` does, unless it still fails: then the next append says why, or the next call tries."""
        if self.dispatched_offset < self._log.max_offset and self._health.failure is None:
            try:
                self.catch_up()
            except errors.DiskFailure as error:
                self._health.fail(error)
            except errors.StoreFull:
                return


def _are_joined(runs: Sequence[Run]) -> bool:
    """Is it cheaper to treat the records of RUNS all at once?"""
    few = sum([len(run) for run in runs if run.is_few])
    return few >= _JOINED_LEAST or not all([run.is_usual for run in runs])


def _check_kinds(sys_flags: Ints) -> None:
    """Refuse what has no place in a queue: a transaction's PREPARED and ROLLBACK types, and 16-byte store hosts."""
    if not (sys_flags & (SYS_TRANSACTION | SYS_STORE_V6)).any():
        return
    for index, sys_flag in enumerate(sys_flags.tolist()):
        if sys_flag & SYS_STORE_V6:
            problem = "reserves an IPv6 store host, but the broker fills in an IPv4 one"
        elif sys_flag & SYS_PREPARED:
            problem = "says prepared or rolled back; such messages are stored in the half topic, without that type"
        else:
            continue
        raise errors.InvalidRecord(
            f"record {index} of the run: sysFlag {sys_flag:#x} {problem}",
            field="sysFlag",
            index=index,
            value=sys_flag,
        )


# ---------------------------------------------------------------- the log of a follower


_HEAD: Final = 8  # size and magic


class _Records(NamedTuple):
    """Whole records, which end at END of the bytes that they were read from: a few as runs, many by columns."""

    end: int
    what: Sequence[Run] | RunColumns


class Following:
    """Takes the bytes of a master's log into the log of PARTS; WRITER derives queues and index from them.

    ON_RECORDS are told of the whole records among them, as soon as the log has taken them.

    A record whose body does not fit its CRC is taken as the master has it, and noted as damaged: the frame's CRC says
    that it was so at the master, and to refuse it would keep the follower from all that follows.
    """

    def __init__(
        self,
        parts: StoreParts,
        health: StoreHealth,
        writer: LogWriter,
        damages: Damages,
        on_records: Sequence[HearRecords],
    ) -> None:
        self._log: CommitLog = parts.log
        self._damages = damages
        self._dispatcher = parts.dispatcher
        self._health = health
        self._writer = writer
        #: The beginning of a record, or of the blank: what came and is not in the log.
        self._waiting = b""
        #: How much has come of what lies behind the blank, which waits.
        self._behind_blank = 0
        self._on_records = on_records

    @property
    def end(self) -> int:
        """The offset of the next byte that is taken; what lies between the log's end and it waits in memory."""
        return self._log.max_offset + len(self._waiting) + self._behind_blank

    def start(self) -> None:
        """Take the bytes of a master from now on, and no other records."""
        self._health.check_changeable()
        self._health.follow()

    def stop(self) -> None:
        """Let go of what waits; from now on the store takes records again."""
        self._waiting = b""
        self._behind_blank = 0
        self._health.lead()

    def append(self, data: Buffer, offset: int, crc32: int | None) -> None:
        """Take DATA, which stands at OFFSET of the master's log and has CRC32; None: that was compared already."""
        self._health.check_followable()
        if not self._health.following:
            raise errors.StoreMismatch(
                "the store does not follow a master: its own records are appended to it"
            )
        self._check_frame(data, offset, crc32)
        try:
            self._take_in()  # What a full disk kept from it.
            if offset != self.end:  # The first of an empty log.
                self._writer.begin_at(offset)
            view = self._waiting + data
            records = None if self._behind_blank else self._checked(view)
            self._waiting = view
            self._take_in(records)
        except errors.DiskFailure as error:
            self._health.fail(error)
            raise

    # --- what is taken

    def _check_frame(self, data: Buffer, offset: int, crc32: int | None) -> None:
        size, end = len(data), self.end
        file_size = self._log.files.file_size
        begins_log = not self._log.files.files and not end and offset % file_size == 0
        if offset != end and not begins_log:
            raise errors.InvalidArgument(
                f"offset {offset:,} is not the end of the log, {end:,}: send what follows it",
                field="offset",
                limit=end,
                value=offset,
            )
        if offset % file_size + size > file_size:
            raise errors.InvalidArgument(
                f"{size:,} bytes at {offset:,} go across the end of a log file of {file_size:,}: send them in two",
                field="data",
                limit=file_size - offset % file_size,
                value=size,
            )
        if crc32 is not None and (found := zlib.crc32(data)) != crc32:
            raise errors.CorruptRecord(
                f"the CRC of {size:,} bytes at {offset:,} is {found:08x}, not {crc32:08x}: they were damaged on the"
                " way, send them again",
                offset=offset,
            )

    def _checked(self, data: bytes) -> _Records:
        """Return the whole records at the beginning of DATA: what waited, and what came.

        Raises CorruptRecord unless that is records, and perhaps a blank, which stand where they say.
        """
        begin = self._log.max_offset
        if (runs := stored_runs(data, begin)) is not None:
            return _Records(len(data), runs)
        starts, end = walk(data)
        columns = parse_run(data, starts)
        placed = columns.well_formed & (columns.log_offset == starts + begin)
        if not placed.all():
            end = int(starts[int(placed.argmin())])
            raise self._corrupt(
                begin + end, "the record there is not well formed, or says another place"
            )
        room = self._room - end
        if len(data) - end < _HEAD or is_blank(data, end, room):
            return _Records(end, columns)
        size, magic = size_and_magic(data, end)
        if magic not in (MAGIC_V1, MAGIC_V2) or not LEAST_SIZE <= size <= room - BLANK_SIZE:
            raise self._corrupt(begin + end, no_record(size, magic))
        return _Records(end, columns)

    @property
    def _room(self) -> int:
        """Return how many bytes the file has behind the log's end; there, the next one begins."""
        last = self._log.files.last
        return last.room if last is not None and last.room else self._log.files.file_size

    @staticmethod
    def _corrupt(offset: int, why: str) -> errors.CorruptRecord:
        return errors.CorruptRecord(
            f"the master's log cannot be followed at {offset:,}: {why}: see `pocketmq inspect STORE verify` there",
            offset=offset,
        )

    # --- into the log

    def _take_in(self, records: _Records | None = None) -> None:
        """Append what waits as far as it is whole, and derive what follows from it; RECORDS, if they were read."""
        if len(self._waiting) >= _HEAD and not self._behind_blank:
            records = records or self._checked(self._waiting)
            if records.end:
                self._append(records)
        if len(self._waiting) >= BLANK_SIZE and is_blank(self._waiting, 0, self._room):
            self._close_file()
        self._writer.catch_up()

    def _append(self, records: _Records) -> None:
        """Append RECORDS, with which begins what waits."""
        begin, waiting, what = self._log.max_offset, self._waiting, records.what
        data = memoryview(waiting)[: records.end]
        self._log.append(data)
        self._waiting = waiting[records.end :]
        for hear in self._on_records:
            hear(waiting, begin, what if isinstance(what, RunColumns) else None)
        # Nothing is ever stamped as older than these.
        writer, dispatcher = self._writer, self._dispatcher
        enter: Callable[[], object]
        if isinstance(what, RunColumns):
            newest_ms, writer.last_log_offset = int(what.store_ms.max()), int(what.log_offset[-1])
            enter = partial(dispatcher.dispatch, data, what)
        else:
            newest_ms = max(run.store_ms for run in what)
            writer.last_log_offset = int(what[-1].log_offsets[-1])
            enter = partial(dispatcher.enter_stored, what)
        writer.last_store_ms = max(writer.last_store_ms, newest_ms)
        writer.enter_stored(begin, enter)
        for log_offset, size in _damaged(data, begin, what):
            self._damages.found(log_offset, size)

    def _close_file(self) -> None:
        """Take what came of what lies behind the blank; with all of it the file is full."""
        self._log.place(0)  # There is a file with room.
        file = self._log.files.files[-1]
        behind = self._waiting[BLANK_SIZE:]
        if np.any(as_bytes(behind)):
            file.put(file.position + BLANK_SIZE + self._behind_blank, behind)
        self._behind_blank += len(behind)
        self._waiting = self._waiting[:BLANK_SIZE]
        if BLANK_SIZE + self._behind_blank == file.room:
            file.append(self._waiting)
            file.position = file.size
            self._waiting = b""
            self._behind_blank = 0


def _damaged(
    data: memoryview, begin: int, what: Sequence[Run] | RunColumns
) -> Iterator[tuple[int, int]]:
    """Yield log offset and size of those records WHAT of DATA, at BEGIN, whose bodies do not fit their CRCs."""
    if isinstance(what, RunColumns):
        for row in np.flatnonzero(crc_mismatches(data, what)).tolist():
            yield int(what.log_offset[row]), int(what.sizes[row])
        return
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        if not is_sound(data[at : at + size]):
            yield begin + at, size
        at += size
