"""Idempotent producers at the broker: the table of their sequences, and how a start restores it.

The records in the log have their sequence numbers (run_numbers.py). A snapshot only saves reading: it covers the log up
to an offset that is on disk, and a start reads the log from there (found_runs.py). It is written at a clean stop, and
while running after SAVE_BYTES, or after SAVE_INTERVAL_MS with changes.

    kill -9                 nothing is missing
    power cut               what recovery finds is known; lost messages count as not stored, and can be sent again
    a Java broker between   the same, unless it cut the log before the end of the snapshot, which is then ignored
    no snapshot, a damaged  the contents of the last SCAN_BYTES of the log are known. Older producers get
    one, another log's      UnknownProducer; a first batch (number 0) from before that is sent again is stored twice. A
                            warning shows since when

A follower maintains the table from the records of its log (`followed`), so a new master has nothing to read. It writes
a snapshot only when what it covers is confirmed. Not thread-safe: the event loop owns it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from ...proto.clock import Clock, ahead_ms, past_instant
from ...proto.errors import PocketMQError, StoreFull
from ...proto.properties import TIMER_DELIVER_MS, TIMER_OUT_MS
from ...proto.record import Record, decode_or_none
from ...proto.record_run import Longs, RunColumns, parse_run, walk
from ...proto.run import Run
from ...proto.time_text import format_instant
from ...proto.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from ...store.commit_log import store_time_ms
from ...store.disk import Disk
from ...store.flush import Flusher, FlushJob
from ...store.log_writer import Appended
from ...store.message_store import MessageStore
from ..delay_rules import Part
from .found_runs import FoundRun, RunScan, found_runs
from .run_numbers import RunNumbers, each_has_its_own
from .sequences import Numbered, ProducerSequences, StoredRun
from .snapshots import ProducerSnapshot, decoded, encoded, log_tail, rows_of

logger = logging.getLogger(__name__)

#: How often the owner of the table checks whether to save it.
PRODUCERS_TICK_MS: Final = 5_000
SAVE_BYTES: Final = 64 << 20
SAVE_INTERVAL_MS: Final = 60_000
SCAN_BYTES: Final = 1 << 30
#: Limit of bytes that a follower collects before it reads them.
_UNREAD_BYTES_MAX: Final = 1 << 18
_NAME: Final = "producers.json"


class Producers:
    """The sequences of producers in STORE. Call `start` before the first batch. CLOCK is the time of messages."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        *,
        producers_max: int,
        expiry_ms: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._path = f"{store.config.own_folder}/{_NAME}"
        #: The log offset up to which it was read or followed, and the scan that continues there.
        self._end = -1
        self._scan = RunScan()
        self._follows = False
        #: Whether the log has any records.
        self._is_begun = False
        #: Small pieces of the log, contiguous from `_end` on.
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self.sequences = ProducerSequences(producers_max, expiry_ms)
        #: Log offset and store time before which duplicates cannot be detected; None: all can.
        self.unknown_before: tuple[int, int] | None = None
        self._saved_end = -1
        self._saved_version = -1
        self._saved_ms = 0
        self._saving = False
        #: A snapshot to save once the log before an offset is confirmed.
        self._unconfirmed: tuple[int, Callable[[], None]] | None = None
        self._saver = Flusher("not started: works at once")
        self._crowded_out = 0
        self._scanned_bytes = 0

    def follows(self, numbers: RunNumbers, run: Run) -> bool:
        """Return whether RUN with NUMBERS can be judged before the batches of this turn are appended."""
        key = numbers.producer_id, run.topic, run.queue
        return self.sequences.follows(key, numbers)

    def judge(self, numbers: RunNumbers, run: Run) -> tuple[Numbered, bool]:
        """Return which records of RUN with NUMBERS are to be stored, and whether each has its own number.

        Raises InvalidArgument, UnknownProducer, ProducerFenced, OutOfOrderSequence.
        """
        each = each_has_its_own(numbers, run)
        key = numbers.producer_id, run.topic, run.queue
        return self.sequences.judge(key, numbers, self._clock.now_ms()), each

    def reserve(self, run: Numbered) -> None:
        """Record that RUN will be appended at the end of this turn of the event loop."""
        self.sequences.reserve(run, self._clock.now_ms())

    def note(
        self,
        runs: Sequence[tuple[Numbered, Sequence[Part], Sequence[Appended | PocketMQError]]],
        begin: int,
    ) -> None:
        """Record the results of the parts of RUNS, which were appended after log offset BEGIN."""
        failed = False
        for run, parts, outcomes in runs:
            error = next((one for one in outcomes if isinstance(one, PocketMQError)), None)
            if error is None:
                appended = [one for one in outcomes if isinstance(one, Appended)]
                self.sequences.stored(run, _stored(run, parts, appended))
            else:
                self.sequences.failed(run, error)
                failed = True
        end = self._store.max_log_offset
        if failed and begin < end:  # A part may still be in the log.
            for found in found_runs(self._store.log, begin, end):
                self.sequences.note(*found, used_ms=self._clock.now_ms())

    def places(self, run: Numbered) -> Places:
        """Return the places of the records of RUN that are stored already.

        Raises DiskFailure for a failed store, StoreFull if they are not in their queues yet.
        """
        store = self._store
        store.health.check_changeable()
        places = places_of(store, run)
        if store.dispatched_offset < places.end_offset:
            store.check_readable()
            places = places_of(store, run)
        return places

    def start(self, saver: Flusher | None = None) -> None:
        """Restore the table, to judge batches. SAVER writes snapshots until it has stopped (None: they are written at
        once).

        If `follow` was called before, the table is complete already.
        """
        self._saver = saver or self._saver
        if self._end < 0:
            self._find()
        self._read_followed()
        self._note_found(self._scan.rest())
        self._follows = False
        self.sequences.settle()
        self.forget_idle()

    def follow(self, saver: Flusher) -> None:
        """From now on maintain the table with `followed` from the master's records, until `start`. SAVER writes
        snapshots.
        """
        self._saver = saver
        self._read_followed()
        end = self._store.max_log_offset
        if self._end < 0:
            self._find()
        elif self._end != end:  # It was master: records of an earlier batch cannot follow.
            self._scan, self._end = RunScan(), end
        self._follows = True

    def _find(self) -> None:
        """Load the snapshot, and read the log after it."""
        store = self._store
        begin, complete = 0, store.min_log_offset == 0
        snapshot = self._load()
        if snapshot is not None:
            begin, complete = snapshot.log_end, True
            for key, sequence in snapshot.sequences:
                self.sequences.put(key, sequence)
            self.sequences.rebase(partial(past_instant, self._clock))
        else:
            begin = self._scan_begin()
            complete = begin == 0 and complete
        if not complete:
            self._warn_of_unknown(begin)
        self._end = end = store.max_log_offset
        self._is_begun = end > 0
        self._note_found(self._scan.log(store.log, begin, end))
        self._scanned_bytes = end - begin
        logger.info(
            "producers found again sequences=%d from_log_offset=%d to=%d",
            len(self.sequences),
            begin,
            end,
        )

    def followed(self, data: bytes, base: int, columns: RunColumns | None) -> None:
        """Add the records of COLUMNS in DATA, which were appended to the log at offset BASE.

        Without COLUMNS, DATA has few records, which are collected and read later.
        """
        if columns is not None or base != self._end + self._unread_bytes:
            self._read_followed()
        if columns is not None:
            self._read(data, base, columns)
            return
        if not self._unread:
            self._end = base
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _UNREAD_BYTES_MAX:
            self._read_followed()

    def _read_followed(self) -> None:
        """Read the collected records."""
        if self._unread:
            data = b"".join(self._unread)
            self._unread, self._unread_bytes = [], 0
            self._read(data, self._end, parse_run(data, walk(data)[0]))

    def _read(self, data: bytes, base: int, columns: RunColumns) -> None:
        assert self._follows, "only for a follower"
        if not self._is_begun and base:  # The log of the master begins at this offset.
            self._warn_of_unknown(base)
        self._is_begun = True
        self._note_found(self._scan.records(data, columns, base))
        self._end = base + int(columns.starts[-1] + columns.sizes[-1])

    def _note_found(self, runs: Iterable[FoundRun]) -> None:
        complete = self.unknown_before is None
        for found in runs:
            # Stored times are wall-clock times; timer times of another process have no meaning
            # here.
            used_ms = past_instant(self._clock, found.stored.store_ms)
            self.sequences.note(*found, complete=complete, used_ms=used_ms)

    def _load(self) -> ProducerSnapshot | None:
        """Return the snapshot if it exists and belongs to this log."""
        disk = self._store.disk
        if not disk.exists(self._path):
            return None
        snapshot = decoded(disk.read(self._path))
        if snapshot is None:
            logger.warning("producers file is damaged path=%s", self._path)
        elif not snapshot.is_of(self._store.log):
            logger.warning(
                "producers file is of another log path=%s its_end=%d log_end=%d",
                self._path,
                snapshot.log_end,
                self._store.max_log_offset,
            )
            return None
        return snapshot

    def _scan_begin(self) -> int:
        """Return where reading begins without a snapshot: at the begin of a file."""
        starts = [file.start for file in self._store.log.files.files]
        oldest = self._store.max_log_offset - SCAN_BYTES
        return next((start for start in starts if start >= oldest), starts[-1] if starts else 0)

    def _warn_of_unknown(self, begin: int) -> None:
        since_ms = store_time_ms(self._store.log, begin) or self._clock.unix_ms()
        self.unknown_before = begin, since_ms
        logger.warning(
            "duplicates of earlier batches cannot be detected log_offset=%d since=%s",
            begin,
            format_instant(since_ms),
        )

    def tick(self) -> None:
        """Save if it is worth it, and forget idle producers. Call this every few seconds."""
        self._save_confirmed()
        self.forget_idle()
        if self.sequences.crowded_out != self._crowded_out:
            logger.warning(
                "producers forgotten early count=%d limit=%d: raise broker.producers_max",
                self.sequences.crowded_out - self._crowded_out,
                len(self.sequences),
            )
            self._crowded_out = self.sequences.crowded_out
        grown = self._store.max_log_offset - max(self._saved_end, 0)
        news = self.sequences.version != self._saved_version
        late = self._clock.now_ms() - self._saved_ms >= SAVE_INTERVAL_MS
        if grown >= SAVE_BYTES or (news and late):
            self.save()

    def forget_idle(self) -> None:
        """Forget producers that sent nothing for too long."""
        self.sequences.forget_idle(self._clock.now_ms())

    def save(self) -> None:
        """Write the snapshot as soon as the log that it covers is on disk and confirmed."""
        if self._saving or self._store.health.failure is not None:
            return
        self._saving = True
        version, end, snapshot = self._taken()

        def flushed(error: PocketMQError | None) -> None:
            if error is None:
                self._unconfirmed = end, submit
                self._save_confirmed()
            else:
                self._saving = False

        def submit() -> None:
            self._saver.submit(FlushJob([snapshot], written))

        def written(error: PocketMQError | None) -> None:
            self._store.call_owner(lambda: saved(error))

        def saved(error: PocketMQError | None) -> None:
            self._saving = False
            if error is None:
                self._saved_version, self._saved_end = version, end
            else:  # The next start reads more of the log.
                logger.warning("producers not saved reason=%s", error.message)

        self._store.request_sync(end, flushed)

    def _save_confirmed(self) -> None:
        """Write the waiting snapshot if the log that it covers is confirmed by now."""
        if self._unconfirmed is not None and self._store.confirmed_offset >= self._unconfirmed[0]:
            (_, submit), self._unconfirmed = self._unconfirmed, None
            submit()

    def _taken(self) -> tuple[int, int, _Saving]:
        """Return the version of the state, the log offset up to which it is complete, and the job that saves it."""
        self._read_followed()
        end = self._store.max_log_offset
        if self._follows:
            end = self._end if self._scan.open_at is None else self._scan.open_at
        tail = log_tail(self._store.log, end) or 0
        self._saved_ms = self._clock.now_ms()
        rows = rows_of(self.sequences.items(), ahead_ms(self._clock))
        text = partial(encoded, end, tail, rows)
        return self.sequences.version, end, _Saving(self._store.disk, self._path, text)

    async def close(self, synced: Callable[[MessageStore, int], Awaitable[None]]) -> None:
        """Save at a clean stop, once SYNCED reports that all appends are on disk. Raises its error."""
        if self._store.health.failure is None and self._is_news:
            version, end, snapshot = self._taken()
            await synced(self._store, end)
            if end <= self._store.confirmed_offset and self._keep(snapshot):
                self._saved_version, self._saved_end = version, end

    def about_to_close(self) -> Callable[[], bool]:
        """Return a thread-safe function that saves the table, if necessary, after the store has closed cleanly."""
        if self._store.health.failure is None and self._is_news:
            _, end, snapshot = self._taken()
            if end <= self._store.confirmed_offset:
                return partial(self._keep, snapshot)
        return lambda: True

    @staticmethod
    def _keep(snapshot: _Saving) -> bool:
        """Write SNAPSHOT; return whether the disk had space."""
        try:
            snapshot.sync()
        except StoreFull as error:  # The next start reads more of the log.
            logger.warning("producers not saved reason=%s", error.message)
            return False
        return True

    @property
    def _is_news(self) -> bool:
        at_end = self._saved_end == self._store.max_log_offset
        return not at_end or self.sequences.version != self._saved_version

    def to_json(self) -> dict[str, object]:
        """Return the state as JSON values, for the broker's status."""
        unknown = self.unknown_before
        return {
            "sequences": len(self.sequences),
            "crowded_out": self.sequences.crowded_out,
            "scanned_bytes": self._scanned_bytes,
            "unknown_before": None
            if unknown is None
            else {"log_offset": unknown[0], "time": format_instant(unknown[1])},
        }


@dataclass(frozen=True, slots=True)
class _Saving:
    """Writes a snapshot to PATH, as a job of a flusher."""

    disk: Disk
    path: str
    text: Callable[[], bytes]

    def sync(self) -> None:
        self.disk.make_folders(os.path.dirname(self.path))
        self.disk.write_atomically(self.path, self.text())


def _stored(run: Numbered, parts: Sequence[Part], appended: Sequence[Appended]) -> StoredRun:
    """Return the entry of the table for RUN, whose PARTS were APPENDED."""
    numbers, one = run.numbers, appended[0]
    end_offset = max(each.end_offset for each in appended)
    store_ms = max(each.store_timestamp_ms for each in appended)
    part = parts[0]
    whole = len(parts) == 1 and run.rows is None and part.due_ms is None
    log_offset = int(one.log_offsets[0])
    if whole and part.run.topic == run.key[1]:
        return StoredRun(
            numbers.first, numbers.count, log_offset, end_offset, store_ms, one.first_queue_offset
        )
    offsets: Longs = np.full(numbers.count, -1, np.int64)
    for part, each in zip(parts, appended, strict=True):
        rows = part.rows if run.rows is None else run.rows[part.rows]
        offsets[rows] = each.log_offsets
    return StoredRun(numbers.first, numbers.count, log_offset, end_offset, store_ms, -1, offsets)


@dataclass(frozen=True, slots=True)
class Places:
    """One value per record; −1: not known, or not stored. All stored records are in the log before END_OFFSET.

    due_ms: when each is due, 0: at once;  store_ms: when the newest of them was stored, 0: not known.
    """

    queue_offsets: Longs
    log_offsets: Longs
    due_ms: Longs
    store_ms: int
    end_offset: int


def places_of(store: MessageStore, run: Numbered) -> Places:
    """Return the places of the records of RUN that are stored already."""
    numbers, sequence = run.numbers, run.sequence
    assert sequence is not None, "a part of it is stored"
    queue_offsets: Longs = np.full(numbers.count, -1, np.int64)
    log_offsets = queue_offsets.copy()
    due_ms: Longs = np.zeros(numbers.count, np.int64)
    store_ms = 0
    for stored in sequence.runs:
        begin, end = max(stored.first, numbers.first), min(stored.end, numbers.end)
        if begin >= end:
            continue
        store_ms = max(store_ms, stored.store_ms)
        rows = slice(begin - numbers.first, end - numbers.first)
        chosen = slice(begin - stored.first, end - stored.first)
        if stored.log_offsets is None:
            found = _in_queue(store, run.key[1], run.key[2], stored, chosen)
            if found is not None:
                queue_offsets[rows], log_offsets[rows] = found
        else:
            for row, log_offset in enumerate(stored.log_offsets[chosen].tolist(), rows.start):
                if log_offset >= 0 and (record := _record(store, log_offset)) is not None:
                    queue_offsets[row], log_offsets[row] = record.queue_offset, log_offset
                    due_ms[row] = _due_ms(store, record)
    return Places(queue_offsets, log_offsets, due_ms, store_ms, sequence.end_offset)


def _in_queue(
    store: MessageStore, topic: str, queue: int, stored: StoredRun, rows: slice
) -> tuple[Longs, Longs] | None:
    """Return queue and log offsets of ROWS of a batch whose records are contiguous in their queue."""
    entries = store.queues.get(topic, queue)
    if entries is None or entries.log_offset(stored.queue_offset) != stored.log_offset:
        return None  # It was deleted, or the queue was created again.
    first, end = stored.queue_offset + rows.start, stored.queue_offset + rows.stop
    found: list[Longs] = []
    at = first
    while at < end:  # A read ends at the end of a file.
        found.append(entries.entries(at, end - at)[0])
        if not len(found[-1]):
            return None
        at += len(found[-1])
    return np.arange(first, end), np.concatenate(found)


def _record(store: MessageStore, log_offset: int) -> Record | None:
    return decode_or_none(store.read_at(log_offset, confirmed=False))


def _due_ms(store: MessageStore, record: Record) -> int:
    """Return when RECORD is due; 0: it is not delayed."""
    if record.topic == SCHEDULE_TOPIC:
        levels_ms = store.config.delay_levels_ms
        return record.store_timestamp_ms + levels_ms[min(record.queue_id, len(levels_ms) - 1)]
    if record.topic != TIMER_TOPIC:
        return 0
    out_ms = record.properties.get(TIMER_OUT_MS, "")
    deliver_ms = record.properties.get(TIMER_DELIVER_MS, "")
    return int(deliver_ms if deliver_ms.isdecimal() else out_ms if out_ms.isdecimal() else 0)
