"""One journal for all tables of a broker: tables survive a kill, and what was synced survives a power cut.

    changed        a table with BEFORE_REPLY: writes now, or raises. Others: writes at the end of the turn of the loop,
                   lazy ones within LAZY_MS, all changes of that time as one frame
    change_now     changes of any tables as one frame, which is written now: all of them, or none
    when_durable   writes everything noted; calls back once the journal, and the log that it needs, are on disk
    when_synced    the same for what is not lazy; when_written: calls back at the end of the turn;
                   when_put_durable: what `change_now` wrote is on disk, and need not wait for the log
    tick           writes changes of lazy tables, notes where the log ends, begins a sync if one is due

A change counts only if the log reaches to where it ended when the change was written: each section has that offset. So
journal and log may reach the disk in any order.

Limits (JournalSizes): a file has `file` bytes. A table gets a new snapshot if its changes since the last one exceed
`snapshot` bytes and `ratio` times that snapshot, or if they keep more than `journal` bytes of files from being deleted.

Failures: a journal that cannot be written is kept. BEFORE_REPLY raises. Other changes stay in memory. RETRY_MS later a
new file begins, with snapshots of these tables, and `when_durable` waits for the snapshots. An entry that cannot be
encoded is left out, with an error in the log. A sync that failed fails the store, like a sync of the log.

Files: table_files.py. The event loop owns it; the store's flushing thread syncs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ..proto.clock import Readings
from ..proto.errors import DiskFailure, PocketMQError, StoreClosed, StoreError, StoreFull
from ..proto.facts import Facts
from .disk import Disk, Mapping
from .files import FolderSync, Syncable
from .flush import CallOwner, Flusher, GroupCommit, Waiter, sync_all
from .format.table_frames import (
    FRAME_HEAD_BYTES,
    HEAD_BYTES,
    JOURNAL,
    NO_BOOT_ID,
    ClockReading,
    EndNote,
    LogNote,
    Note,
    TableName,
    frame,
    head,
    notes,
    section,
)
from .table_files import FoundTables, TableFiles, TableLog, journal_path, read_tables, snapshot_path
from .table_snapshots import SnapshotPlace, TableSnapshot
from .tables import LAZY_ENTRIES_MAX, AnyChange, AnyTable, Durability, Noted

logger = logging.getLogger(__name__)

LAZY_MS: Final = 1_000
RETRY_MS: Final = 10_000
#: Changes of a section, and bytes of a frame; one change may be larger.
_SECTION_CHANGES: Final = 1_024
_FRAME_BYTES: Final = 4 << 20
_FAILURES: Final = (StoreError, OSError)
_BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalSizes:
    """Limits of the files, in bytes."""

    file: int = 4 << 20
    snapshot: int = 8 << 20
    ratio: int = 4
    journal: int = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalParts:
    """What a journal works with. FAILED is called when a sync failed: then it is unknown what is on disk.

    CLOCK is the machine's; ENTRY_CLOCK is that of instants in entries (None: the same).
    """

    disk: Disk
    folder: str
    log: TableLog
    flusher: Flusher
    clock: Readings
    call_owner: CallOwner
    failed: Callable[[StoreError], None]
    boot_id: bytes = NO_BOOT_ID
    entry_clock: Readings | None = None


class TableJournal:
    """The journal of tables: `add` them, `open` it, `start` it on the running loop, `tick` it, `close` it."""

    def __init__(self, parts: JournalParts, sizes: JournalSizes | None = None) -> None:
        self._parts = parts
        self._disk = parts.disk
        self._folder = parts.folder
        self._log = parts.log
        self._sizes = sizes or JournalSizes()
        self._tables: dict[int, AnyTable] = {}
        self._noted: dict[int, Noted] = {}
        #: Runs a function at the end of the turn; None: `start` was not called.
        self._soon: Callable[[Callable[[], None]], object] | None = None
        self._is_asked = False
        self._is_open = False
        # The present file, and where the next frame goes.
        self._file: Mapping | None = None
        self._number = self._at = self._sequence = 0
        # What is not synced yet: files in order; whether the present file is one of them; whether a sync is due.
        self._dirty: list[Syncable] = []
        self._is_dirty = self._is_sync_due = self._is_mark_due = False
        #: Bytes ever written, for which syncs wait; and up to where the log is needed.
        self._written = self._needs = 0
        #: The end of what `change_now` wrote last.
        self._put_end = 0
        #: How much is to be written before the next look whether a snapshot is due.
        self._look_at = 0
        # By table: bytes since its snapshot, bytes and number of that.
        self._since: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self._bases: dict[int, int] = {}
        #: Tables that get the next snapshots: entries were missing at the start, or the last snapshot was not finished.
        self._due: set[int] = set()
        self._snapshots: list[TableSnapshot] = []
        #: Tables with changes that are not durable before the next snapshot: those changes are only in memory, or the
        #: table is ordered, and frames before them are missing.
        self._missing: set[int] = set()
        #: Called once `_missing` is empty, or stays as it is.
        self._waiting: list[Callable[[], None]] = []
        #: Called at the end of the turn, after the write.
        self._after_write: list[Waiter] = []
        self._lazy_at_ms = 0
        #: When a journal that could not be written is tried again; None: it is fine.
        self._retry_at_ms: int | None = None
        self._broken: StoreError | None = None
        self._group = GroupCommit(
            self._collect, parts.flusher, call_owner=self._call_owner, on_failed=self._sync_failed
        )

    def _call_owner(self, function: Callable[[], None]) -> object:
        return self._parts.call_owner(function)

    # --- beginning and ending

    def add(self, table: AnyTable) -> None:
        """Keep TABLE, before `open`."""
        assert table.number not in self._tables, "every table has its own number"
        self._tables[table.number] = table
        self._noted[table.number] = Noted(table)

    def open(self) -> FoundTables:
        """Fill the tables with what the files say, and begin a new file; return what else they say.

        Raises:
            StoreError: What must not count could not be marked so.
        """
        found = self._read()
        if found.is_foreign:
            self._delete_all()
            found = FoundTables(is_foreign=True)
        self._sequence, self._number = found.sequence, found.number
        self._since, self._kept, self._bases = found.since, found.kept, found.bases
        # A snapshot precedes a journal of the process that made it, which its instants are of.
        dated = {n for n, one in self._tables.items() if one.has_instants and len(one)}
        self._due = found.incomplete | dated
        found.shift(self._tables.values(), self._clock_reading())
        self._missing = found.incomplete & self._ordered
        self._needs = self._log.end  # Which a killed process may have left in the page cache.
        self._is_open = True
        for table in self._tables.values():
            table.join(self)
        try:
            self._disk.make_folders(self._folder)
            self._roll(0, is_start=True)
        except _FAILURES as failure:
            if found.skipped:
                raise
            self._lose(failure)
        self._sync_at_start(found)
        self._is_sync_due = False
        return found

    def _sync_at_start(self, found: FoundTables) -> None:
        """Sync everything: what a killed process wrote may be in the page cache only."""
        older = [] if found.ended else self._older_files()
        error = sync_all([*older, *self._take_dirty()])
        for file in older:
            file.close()
        if error is not None:
            raise error
        self._group.reached(self._written)

    def _older_files(self) -> list[Mapping]:
        """Open the older journals to sync them; one that cannot be opened is logged."""
        older: list[Mapping] = []
        try:
            journals = TableFiles.of(self._disk, self._folder).journals
        except _FAILURES as error:
            logger.error("older tables not synced path=%s reason=%s", self._folder, error)
            return older
        for path in (journals[number] for number in sorted(journals) if number < self._number):
            try:
                older.append(self._disk.open_map(path))
            except _FAILURES as error:
                logger.error("older tables not synced path=%s reason=%s", path, error)
        return older

    @property
    def _ordered(self) -> set[int]:
        return {number for number, table in self._tables.items() if table.ordered}

    def _read(self) -> FoundTables:
        tables, boot_id = self._tables.values(), self._parts.boot_id
        found = read_tables(self._disk, self._folder, tables, self._log, boot_id)
        if found.is_foreign:
            logger.warning("tables discarded, the log is another one path=%s", self._folder)
        for gap in found.gaps:
            level = logging.INFO if gap.is_torn else logging.ERROR
            logger.log(level, "bytes of tables not used %s", Facts(**gap._asdict()))
        if found.skipped:
            logger.info("parts of tables skipped, the log ended before them n=%d", found.skipped)
        if names := [one.name for one in tables if one.number in found.incomplete]:
            reason = "parts of the journal are missing"
            logger.error("tables incomplete %s", Facts(tables=",".join(names), reason=reason))
        return found

    def _delete_all(self) -> None:
        paths = TableFiles.of(self._disk, self._folder).all()
        for path in paths:
            self._disk.delete(path)
        if paths:
            self._disk.sync_folder(self._folder)

    def start(self, soon: Callable[[Callable[[], None]], object]) -> None:
        """Write what was noted; SOON runs a function at the end of the present turn of the loop."""
        self._soon = soon
        self._lazy_at_ms = self._parts.clock.now_ms() + LAZY_MS
        self._write_soon()

    def close(self) -> None:
        """Write and sync everything; later changes are refused. A failure is logged."""
        if not self._is_open:
            return
        try:
            self.write(everything=True)
            if names := [self._tables[number].name for number in sorted(self._missing)]:
                logger.error("changes of tables lost %s", Facts(tables=",".join(names)))
            if self._broken is None and self._retry_at_ms is None:
                end = [] if self._missing else [EndNote()]
                self._put(notes([self._mark(), self._clock_reading(), *end]))
                if (error := sync_all(self._take_dirty())) is not None:
                    raise error
        except _FAILURES as error:
            logger.error("tables not closed %s", Facts(path=self._folder, reason=_reason(error)))
        self._is_open = False
        self._abandon_snapshots()
        self._leave_file()
        self._take_dirty()
        self._answer_waiting()
        self._tell_written()

    # --- changes

    def changed(self, table: AnyTable, change: AnyChange, *, is_urgent: bool) -> None:
        """Keep CHANGE of TABLE and apply it. Raises StoreError if it had to be written and was not."""
        if table.durability is Durability.BEFORE_REPLY:
            self.change_now([(table, change)])
        else:
            table.apply(change)
            self._noted[table.number].add(change, is_urgent=is_urgent)
            if table.durability is not Durability.LAZY or is_urgent:
                self._write_soon()

    def all_changed(self, table: AnyTable, changes: list[AnyChange]) -> None:
        """Keep CHANGES of TABLE, which is WITH_LOG, in this order, and apply them."""
        table.apply_all(changes)
        self._noted[table.number].changes += changes
        if not self._is_asked:
            self._write_soon()

    def change_now(self, changes: list[tuple[AnyTable, AnyChange]]) -> None:
        """Write CHANGES as one frame, and apply them. Raises StoreError: then nothing has changed."""
        if not changes:
            return
        if not self._is_open:
            raise StoreClosed(f"the tables in {self._folder} are closed", path=self._folder)
        # Earlier changes must be written first.
        self.write(everything=any(t.durability is Durability.LAZY for t, _ in changes))
        if self._broken is not None:
            raise self._broken
        by_table: dict[int, list[AnyChange]] = {}
        for table, change in changes:
            by_table.setdefault(table.number, []).append(change)
        sections = {
            number: self._section(table := self._tables[number], some, table.encode(some))
            for number, some in by_table.items()
        }
        try:
            parts = [(self._tables[number], data) for number, data in sections.items()]
            self._put(b"".join(sections.values()), parts)
        except _FAILURES as error:
            self._leave_file()  # A part of the frame may be in it.
            raise _store_error(error) from error
        self._put_end = self._written
        for table, change in changes:
            table.apply(change)
        self._begin_snapshots_if_due()

    # --- writing

    def _write_soon(self) -> None:
        if self._soon is not None and not self._is_asked and self._is_open:
            self._is_asked = True
            self._soon(self._turn_ends)

    def _turn_ends(self) -> None:
        self._is_asked = False
        self.write()
        self._tell_written()
        self._begin_snapshots_if_due()
        if self._snapshots:
            self._step()

    def write(self, *, everything: bool = False, lazy: bool = False) -> None:
        """Write what was noted: EVERYTHING, or what is not lazy, and of LAZY tables what a turn has time for."""
        chosen = []
        for noted in self._noted.values():
            if not noted.changes and not noted.latest:
                continue
            is_lazy = noted.table.durability is Durability.LAZY
            if everything or lazy or noted.is_urgent or not is_lazy:
                if is_lazy:
                    changes = noted.take(None if everything else LAZY_ENTRIES_MAX)
                else:
                    changes, noted.changes, noted.is_urgent = noted.changes, [], False
                chosen.append((noted.table, changes))
        if not chosen or not self._is_open:
            return
        if self._retry_at_ms is not None or self._broken is not None:
            self._missing |= {table.number for table, _ in chosen}
            return
        try:
            self._write_frames(chosen)
        except _FAILURES as error:
            self._missing |= {table.number for table, _ in chosen}
            self._lose(error)

    def _write_frames(self, chosen: list[tuple[AnyTable, list[AnyChange]]]) -> None:
        """Write CHOSEN as one frame, or as a few if it is much."""
        if len(chosen) == 1 and len(chosen[0][1]) <= _SECTION_CHANGES:  # As mostly.
            ((table, changes),) = chosen
            data = self._section(table, changes, table.encode_valid(changes))
            self._put(data, [(table, data)])
            return
        parts: list[tuple[AnyTable, bytes]] = []
        for table, changes in chosen:
            for begin in range(0, len(changes), _SECTION_CHANGES):
                some = changes[begin : begin + _SECTION_CHANGES]
                data = self._section(table, some, table.encode_valid(some))
                if parts and sum(len(one) for _, one in parts) + len(data) > _FRAME_BYTES:
                    self._put_sections(parts)
                    parts = []
                parts.append((table, data))
        self._put_sections(parts)

    def _put_sections(self, parts: list[tuple[AnyTable, bytes]]) -> None:
        self._put(b"".join(data for _, data in parts), parts)

    def _section(self, table: AnyTable, changes: list[AnyChange], encoded: bytes) -> bytes:
        """Return the section of CHANGES, which are ENCODED; they are not applied yet or the latest."""
        version = None
        for change in changes:
            version = change.version or version
        needs = self._log.end if table.needs_log else 0
        self._needs = max(self._needs, needs)
        return section(table.number, encoded, needs, version)

    def _put(self, content: bytes, parts: Iterable[tuple[AnyTable, bytes]] = ()) -> None:
        """Write CONTENT as the next frame; PARTS of it are changes of tables."""
        size = FRAME_HEAD_BYTES + len(content)
        if self._file is None or self._at + size > self._file.size:
            self._roll(size)
        assert self._file is not None, "rolled"
        self._file.write(self._at, frame(self._sequence + 1, content))
        self._sequence += 1
        self._at += size
        self._written += size
        if not self._is_dirty:
            self._dirty.append(self._file)
            self._is_dirty = True
        for table, data in parts:
            self._since[table.number] = self._since.get(table.number, 0) + len(data)
            self._is_mark_due = True
            self._is_sync_due = self._is_sync_due or table.durability is not Durability.PROCESS

    def _roll(self, size: int, *, is_start: bool = False) -> None:
        """Begin the next file, with space for SIZE bytes of frames."""
        self._leave_file()
        self._number += 1
        path = journal_path(self._folder, self._number)
        first: list[Note] = [self._mark(is_start=is_start), self._clock_reading()]
        first += [TableName(number, table.name) for number, table in self._tables.items()]
        data = head(JOURNAL, self._number) + frame(self._sequence + 1, notes(first))
        try:
            file = self._disk.open_map(
                path, size=max(self._sizes.file, len(data) + size), create=True
            )
            file.write(0, data)
        except _FAILURES:
            with suppress(*_FAILURES):
                self._disk.delete(path)
            raise
        self._file, self._at = file, len(data)
        self._sequence += 1
        self._written += len(data) - HEAD_BYTES
        self._dirty += [file, FolderSync(self._disk, self._folder)]
        self._is_dirty = self._is_sync_due = True

    def _leave_file(self) -> None:
        """Write no more to the present file. It is not closed, as a sync of it may be under way."""
        self._file, self._is_dirty = None, False

    def _mark(self, *, is_start: bool = False) -> LogNote:
        end = self._log.end
        return LogNote(self._parts.boot_id, end, self._log.tail(end) or 0, is_start)

    def _clock_reading(self) -> ClockReading:
        clock = self._parts.entry_clock or self._parts.clock
        return ClockReading(clock.now_ms(), clock.unix_ms())

    # --- failures

    def _lose(self, error: Exception) -> None:
        """Keep changes in memory only until RETRY_MS from now: the journal cannot be written."""
        reason = _reason(error)
        logger.error(
            "tables not written, changes are in memory %s", Facts(path=self._folder, reason=reason)
        )
        self._sequence += 1  # A gap, which readers see: something is missing.
        self._missing |= self._ordered
        self._retry_at_ms = self._parts.clock.now_ms() + RETRY_MS
        self._abandon_snapshots()
        self._leave_file()
        self._answer_waiting()

    def _retry(self) -> None:
        self._retry_at_ms = None
        try:
            self._begin_snapshots(self._due | self._missing or set(self._tables))
        except _FAILURES as error:
            self._lose(error)
            return
        self._write_soon()

    def _sync_failed(self, error: StoreError) -> None:
        self._broken = error
        self._abandon_snapshots()
        self._answer_waiting()
        self._parts.failed(error)

    # --- syncing

    def when_durable(self, waiter: Waiter) -> None:
        """Write everything noted; call WAITER once that is on disk, with the log that it needs, or with the error."""
        self.write(everything=True)
        if self._retry_at_ms is not None or not self._is_open:
            waiter(self._not_written())
        elif not self._must_wait(partial(self.when_durable, waiter)):
            self._call_on_disk(waiter)

    def when_put_durable(self, waiter: Waiter) -> None:
        """Call WAITER once what `change_now` wrote is on disk, or with the error; for tables that do not need the log.

        The log itself may wait for this.
        """
        self._group.wait_for(self._put_end, waiter)

    def write_all(self) -> None:
        """Write everything noted now. Raises StoreFull if the journal cannot be written."""
        self.write(everything=True)
        if self._retry_at_ms is not None:
            raise self._not_written()

    def _not_written(self) -> StoreFull:
        return StoreFull("state was not written: see the log of the broker", path=self._folder)

    def when_synced(self, waiter: Waiter) -> None:
        """Write what is not lazy; call WAITER once that is on disk, with the log that it needs, or with the error.

        While the journal cannot be written, WAITER is called at once: changes stay in memory.
        """
        self.write()
        if self._retry_at_ms is not None or not self._is_open:
            waiter(None)
        elif not self._must_wait(partial(self.when_synced, waiter)):
            self._call_on_disk(waiter)

    def _must_wait(self, again: Callable[[], None]) -> bool:
        """Return whether changes are durable only with a snapshot; AGAIN is called after it."""
        if not self._missing or self._broken is not None:
            return False
        self._waiting.append(again)
        self._write_soon()
        return True

    def _call_on_disk(self, waiter: Waiter) -> None:
        """Call WAITER once everything written is on disk, with the log that it needs, or with the error."""
        left, failure = 2, None

        def reached(error: StoreError | None) -> None:
            nonlocal left, failure
            left, failure = left - 1, failure or error
            if left == 0:
                waiter(failure)

        self._group.wait_for(self._written, reached)
        self._log.when_flushed(self._needs, reached)

    def _answer_waiting(self) -> None:
        """Try again for those who waited for a snapshot."""
        waiting, self._waiting = self._waiting, []
        for again in waiting:
            again()

    def when_written(self, table: AnyTable, waiter: Waiter) -> None:
        """Call WAITER once the changes of TABLE are written: at the end of the turn, or at once if they are.

        While the journal cannot be written, changes stay in memory.
        """
        if self._is_asked and self._is_open and self._noted[table.number].changes:
            self._after_write.append(waiter)
        else:
            self.write()
            waiter(None)

    def _tell_written(self) -> None:
        waiting, self._after_write = self._after_write, []
        for waiter in waiting:
            waiter(None)

    def sync(self) -> None:
        """Write what is not lazy, and begin a sync."""
        self.write()
        if self._is_open and self._retry_at_ms is None and self._broken is None:
            self._group.flush_up_to(self._written)

    def tick(self) -> None:
        """Do what is due: call this every flush interval."""
        now_ms = self._parts.clock.now_ms()
        if not self._is_open or self._broken is not None:
            return
        if self._retry_at_ms is not None:
            if now_ms >= self._retry_at_ms:
                self._retry()
            return
        if now_ms >= self._lazy_at_ms:
            self._lazy_at_ms = now_ms + LAZY_MS
            self._write_lazy()
        try:
            if self._is_mark_due:
                self._is_mark_due = False
                self._put(notes([self._mark(), self._clock_reading()]))
        except _FAILURES as error:
            self._lose(error)
            return
        self._begin_snapshots_if_due()
        if self._is_sync_due:
            self._is_sync_due = False
            self._group.flush_up_to(self._written)

    def _write_lazy(self) -> None:
        """Write some of what is lazy, and the rest in the next turns."""
        self.write(lazy=True)
        if any(self._noted.values()) and self._soon is not None and self._retry_at_ms is None:
            self._soon(self._write_lazy)

    def _collect(self) -> tuple[int, list[Syncable]]:
        return self._written, self._take_dirty()

    def _take_dirty(self) -> list[Syncable]:
        dirty, self._dirty, self._is_dirty = self._dirty, [], False
        return dirty

    # --- snapshots

    def _begin_snapshots_if_due(self) -> None:
        # Nothing may follow the end: the turn of the loop may end after `close`.
        if not self._is_open or self._snapshots or self._broken is not None:
            return
        if self._retry_at_ms is not None:
            return
        if self._written < self._look_at and not self._due and not self._missing:
            return
        self._look_at = self._written + self._sizes.snapshot // 128
        due = (
            self._due
            | self._missing
            | {
                number
                for number, size in self._since.items()
                if size > max(self._sizes.snapshot, self._sizes.ratio * self._kept.get(number, 0))
            }
        )
        oldest = min((self._bases.get(number, 1) for number in self._tables), default=1)
        if (self._number - oldest) * self._sizes.file > self._sizes.journal:
            due |= {
                n for n in self._tables if self._bases.get(n, 1) == oldest and self._has_news(n)
            }
        if not due & self._tables.keys():
            return
        try:
            self._begin_snapshots(due)
        except _FAILURES as error:
            self._lose(error)
            return
        self._write_soon()

    def _has_news(self, number: int) -> bool:
        """Is something of table NUMBER in the journal, or has it no snapshot yet?"""
        return self._since.get(number, 0) > 0 or number not in self._bases

    def _begin_snapshots(self, due: set[int]) -> None:
        """Begin a file, and the snapshots of the tables DUE that precede it. Raises StoreError and OSError."""
        self._roll(0)
        due = {number for number in self._tables if number in due or number not in self._bases}
        self._due -= due
        mark = self._mark()
        place = SnapshotPlace(
            self._disk,
            self._folder,
            self._log,
            self._parts.flusher,
            self._call_owner,
            lambda waiter: self._group.wait_for(self._written, waiter),
        )
        for number in due:
            self._since[number] = 0
            table = self._tables[number]
            snapshot = TableSnapshot(place, table, self._number, mark, self._snapshot_done)
            self._snapshots.append(snapshot)

    def _step(self) -> None:
        """Do a step of the first snapshot, unless it is being synced."""
        if not self._snapshots or self._snapshots[0].is_finishing:
            return
        snapshot = self._snapshots[0]
        try:
            if not snapshot.step():
                snapshot.finish()
                return
        except _FAILURES as error:
            self._snapshot_done(error)
            return
        self._write_soon()

    def _snapshot_done(self, error: Exception | None) -> None:
        """Delete the files that the first snapshot, which is on disk, replaces; ERROR: it failed."""
        snapshot = self._snapshots.pop(0)
        number = snapshot.table.number
        try:
            if error is not None:
                snapshot.abandon()
                self._due.add(number)
                raise error
            self._bases[number], self._kept[number] = snapshot.number, snapshot.size
            self._missing.discard(number)
            self._move_bases(snapshot.number)
            self._delete_old()
        except _FAILURES as failure:
            self._lose(failure)
            return
        if not self._missing:
            self._answer_waiting()
        self._write_soon()

    def _move_bases(self, number: int) -> None:
        """Rename snapshots of tables without changes in the journal, so that they precede journal NUMBER."""
        running = {one.table.number for one in self._snapshots}
        moved = False
        for table, base in self._bases.items():
            if table in running or base >= number or self._since.get(table, 0):
                continue
            old = snapshot_path(self._folder, table, base)
            self._disk.rename(old, snapshot_path(self._folder, table, number))
            self._bases[table] = number
            moved = True
        if moved:
            self._disk.sync_folder(self._folder)

    def _delete_old(self) -> None:
        files = TableFiles.of(self._disk, self._folder)
        least = min((self._bases.get(table, 0) for table in self._tables), default=0)
        gone = files.drafts + [path for number, path in files.journals.items() if number < least]
        for table, snapshots in files.snapshots.items():
            base = self._bases.get(table, 0)
            gone += [path for number, path in snapshots.items() if number < base]
        for path in gone:
            self._disk.delete(path)

    def _abandon_snapshots(self) -> None:
        for snapshot in self._snapshots:
            snapshot.abandon()
            self._due.add(snapshot.table.number)
        self._snapshots.clear()


def boot_id(disk: Disk) -> bytes:
    """Return the id of the machine since its last start; NO_BOOT_ID if it is unknown."""
    try:
        text = disk.read(_BOOT_ID_PATH)
        found = bytes.fromhex(text.decode("ascii").strip().replace("-", ""))
    except (OSError, ValueError):
        return NO_BOOT_ID
    return found if len(found) == len(NO_BOOT_ID) else NO_BOOT_ID


def _store_error(error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    return DiskFailure(f"state was not written: {error}", reason=str(error))


def _reason(error: Exception) -> Any:
    return error.message if isinstance(error, PocketMQError) else error
