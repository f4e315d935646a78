"""The API of the store: one directory of files that is a message store.

Opening takes the lock, loads the files, recovers, and creates the file `abort`, which exists until a clean stop.
Synchronous, no network, no asyncio; one thread, the owner's, calls everything. Background threads wait for the disk
(flush_scheduler.py, scrubber.py, retention.py); without `start` the calling thread does their work.

    store = MessageStore.open(StoreConfig(path=…), disk=OsDisk(), now_ms=clock.unix_ms)
    store.start(loop.call_soon_threadsafe)
    appended = store.append(run)                       # readers and look-ups see it when this returns
    store.request_sync(appended.end_offset, waiter)    # waiter(None) once it is on disk
    store.tick()                                       # every flush interval
    store.close()
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from ..proto import errors
from ..proto.facts import Facts
from ..proto.record import Host
from ..proto.run import Run
from .commit_log import store_time_ms
from .config import StoreConfig
from .disk import Buffer, Disk, Lock
from .events import StoreEvents
from .flush import CallOwner, Flusher, Waiter
from .flush_scheduler import FlushScheduler
from .follower_log import FollowerLog
from .format.log import is_blank
from .healing import Piece, checked_piece, whole_piece
from .health import StoreHealth
from .known_damage import KnownDamage
from .log_writer import Appended, LogWriter
from .overlay_disk import OverlayDisk
from .parts import StoreParts
from .reader import Reader
from .recovery.recover import LogCut, recover
from .recovery.report import RecoveryReport
from .recovery.verified import VerifiedSnapshot
from .retention import Cleaned, Cleaner
from .scrubber import Scrubber
from .table_files import FOLDER as TABLES_FOLDER
from .table_loss import note_loss
from .timers.recovery import open_timers
from .timers.store import TimerStore

logger = logging.getLogger(__name__)


class MessageStore(Reader):
    """An open store. Its reading half is in reader.py.

    `recovery` is the report of the recovery; `health.state` is whether it accepts writes.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        lock: Lock,
        now_ms: Callable[[], int],
        health: StoreHealth,
        *,
        replica: bool = False,
    ) -> None:
        """Load and recover the files. Call `open` instead."""
        self.parts = parts = StoreParts.load(config, disk, now_ms)
        if replica:
            parts.queues.follow()
        known = KnownDamage(disk, config.own_folder) if replica else None
        super().__init__(parts, health, known)
        self.disk = disk
        self._lock = lock
        self._now_ms = now_ms
        clean = not disk.exists(config.abort_path)
        self._log_cut = LogCut(disk, config.own_folder)
        cut_at = self._log_cut.offset
        tables = f"{config.own_folder}/{TABLES_FOLDER}"
        self.recovery: RecoveryReport = recover(
            parts,
            clean=clean,
            replica=replica,
            cut_at=cut_at,
            before_repair=partial(note_loss, disk, tables),
        )
        if known is not None:
            for start, end in self.recovery.damaged:
                known.add(start, end)
        newest_ms = store_time_ms(self.log, parts.checkpoint.values.confirm_offset) or 0
        cut_ms = None if cut_at is None else newest_ms
        self.timers: TimerStore = open_timers(parts, health, now_ms, clean=clean, cut_ms=cut_ms)
        self._forget_pages()
        self.events = StoreEvents()
        self._writer = LogWriter(parts, health, now_ms, self._caught_up)
        self._following = (
            FollowerLog(parts, health, self._writer, self.damages, self.events.followed)
            if replica
            else None
        )
        self._followed = False
        self._warned_of_next_file = False
        self._cleaner = Cleaner(parts, health, self.timers)
        self.scrubber = Scrubber(parts, health, self.damages, self.lost_entries, now_ms)
        self._background = FlushScheduler(
            parts, health, self._writer, self._verified, self.timers, self.events.flushed
        )
        self._relied_on: Callable[[Waiter], None] = lambda done: done(None)

    def _forget_pages(self) -> None:
        """Release pages that recovery read: they would count as memory of this process for as long as it runs."""
        for row in (self.log.files, *(queue.files for queue in self.queues)):
            for file in row.files:
                file.mapping.forget(0, file.size)

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        *,
        disk: Disk,
        now_ms: Callable[[], int],
        read_only: bool = False,
        replica: bool = False,
    ) -> Self:
        """Open the store at `config.path`; create an empty one if there is none.

        READ_ONLY shows the store as it would be after recovery (live, stopped, copied or damaged) without writing a
        byte or taking the lock. REPLICA: the store belongs to a replica set; its recovery keeps only the part of a
        damaged log that the others have as well, and it can follow. Raises StoreLocked, StoreMismatch, StoreFull,
        DiskFailure.
        """
        if read_only:
            if not disk.is_folder(config.path):
                raise errors.StoreMismatch(
                    f"there is no store at {config.path}: check the path", path=config.path
                )
            disk = OverlayDisk(disk)
        health = StoreHealth(config.path)
        disk.make_folders(config.path)
        lock = _locked(disk, config)
        try:
            store = cls(config, disk, lock, now_ms, health, replica=replica)
            store._mark_running()
        except BaseException:
            lock.release()
            raise
        health.read_only = read_only
        return store

    def _mark_running(self) -> None:
        """Create `abort`, on disk, before anything is appended.

        After a clean stop, recovery changed little, which is synced now. After a kill, gigabytes may be only in the
        page cache: they are synced by the first flush, and a start does not wait for it.
        """
        was_cut = self._log_cut.offset is not None
        if self.recovery.clean or was_cut:
            self._flush_and_remember()
            self.disk.write_atomically(self.config.abort_path, _process_id())
            if was_cut:
                self._log_cut.remove()
        else:
            self._mark_all_dirty()
            self.disk.write_file(self.config.abort_path, _process_id())

    def _mark_all_dirty(self) -> None:
        self.log.files.mark_dirty(self.config.path)
        self.queues.mark_all_dirty()
        for file in self.index.files if self.index is not None else []:
            file.dirty = True
        self.timers.mark_all_dirty()
        self._background.expect_flush(self._verified())

    def _flush_and_remember(self) -> None:
        """Flush everything, and save that as verified: the next recovery reads only newer data."""
        self._background.flush_everything()
        self.parts.checkpoint.write()
        self.parts.checkpoint.sync()
        if self.queues.lacks_lite_entries:
            return  # The next recovery reads more, and derives them.
        try:
            self.queues.update_sums()
            self._verified().save(self.disk, self.config.own_folder)
        except (
            errors.StoreFull,
            OSError,
        ) as error:  # Then the next recovery reads more; the stop is clean all the same.
            logger.warning("verified snapshot not saved %s", Facts(reason=str(error)))

    def _verified(self) -> VerifiedSnapshot:
        """Return the present state, on which the next recovery may rely once it is on disk."""
        last = self._writer.last_log_offset
        confirmed = self.parts.checkpoint.values.confirm_offset
        return VerifiedSnapshot(
            self.parts,
            last_offset=confirmed if last is None else last,
            newest_ms=self._writer.last_store_ms,
        )

    def start(self, call_owner: CallOwner) -> None:
        """Start the flushing threads. CALL_OWNER runs a function soon in the owner's thread; it is thread-safe."""
        self._background.start(call_owner)
        self.parts.dispatcher.start(call_owner, self.health.fail)
        self.scrubber.start(call_owner)

    @property
    def flusher(self) -> Flusher:
        """The thread that syncs data that answers wait for: the log, and files of the broker next to it."""
        return self._background.log_flusher

    @property
    def call_owner(self) -> CallOwner:
        """Runs a function soon in the owner's thread; it is thread-safe. Before `start`: runs it at once."""
        return self._background.group.call_owner

    def close(self) -> None:
        """Stop cleanly: dispatch everything, flush it to disk, then delete `abort`. Idempotent.

        If the store has failed, or the last flush fails here, `abort` stays: the next opening recovers the store. The
        error is raised after everything is closed.
        """
        if self.health.closed:
            return
        self.scrubber.stop()
        self._background.stop()
        self.health.close()
        try:
            if self.health.failure is None:
                self._settle()
        finally:
            self._close_files()

    def _settle(self) -> None:
        self._writer.catch_up()
        self._note_damage()
        self.parts.dispatcher.stop()
        self.log.files.discard_spare()
        self._flush_and_remember()
        self.disk.delete(self.config.abort_path)
        self.disk.sync_folder(self.config.path)

    def _close_files(self) -> None:
        for part in (self.log, self.queues, self.index, self.timers, self.parts.checkpoint):
            if part is not None:
                part.close()
        self._lock.release()

    @property
    def host(self) -> Host:
        """The store host of new records: the broker's address (IPv4) and port."""
        return self._writer.host

    @host.setter
    def host(self, host: Host) -> None:
        self._writer.write_as(host)

    def append(self, run: Run) -> Appended:
        """Append RUN at the end of its queue. Unless the disk is full, readers see it when this returns.

        Look-ups see it, too: of a run with very many keys, most are entered later, but before the next look-up.

        A run is appended completely or not at all. Raises InvalidRecord, MessageTooLarge, InvalidArgument (a topic with
        batch queues), StoreFull, DiskFailure, StoreClosed: then nothing of it is stored, as far as the disk reports.
        If the log has it but queues or index could not take it, readers see it late, see `check_readable`.
        """
        return self._writer.append([run])[0]

    def append_many(self, runs: Sequence[Run]) -> list[Appended | errors.PocketMQError]:
        """Append RUNS in their order, and return the result of each. For small runs this is much faster."""
        return self._writer.append_each(runs)

    def append_together(self, runs: Sequence[Run]) -> list[Appended]:
        """Append all of RUNS in their order, or none of them. Raises the errors of `append`."""
        return self._writer.append(runs)

    def follow(self) -> None:
        """Accept only bytes of a master's log, `append_raw`, from now on, and no other records (StoreMismatch)."""
        self._replica.start()
        self._followed = True

    def lead(self) -> None:
        """Accept records again. The bytes of an incomplete record are dropped."""
        self._replica.stop()

    @property
    def last_stop_was_clean(self) -> bool:
        """Was the last stop clean, and did no master's log follow it? Then the log ends with complete records."""
        return self.recovery.clean and not self._followed

    @property
    def raw_end(self) -> int:
        """The log offset of the next byte for `append_raw`. Inside a record it is after `max_log_offset`."""
        return self._replica.end

    def append_raw(self, data: Buffer, offset: int, crc32: int | None = None) -> None:
        """Append DATA, bytes of a master's log from OFFSET on, unchanged. They may end inside a record.

        Complete records are in the log, its queues and the index when this returns. OFFSET must be `raw_end`, or the
        start of any file if the log is empty. CRC32 is that of DATA, which is inside one file (None: it was compared).
        Raises InvalidArgument, CorruptRecord (damaged in transfer, or not records), StoreClosed: nothing was appended;
        StoreFull, DiskFailure: `raw_end` shows whether DATA was. Then call it with no bytes at `raw_end` to try again.
        """
        self._replica.append(data, offset, crc32)

    def piece_at(self, offset: int, size_max: int) -> Piece | None:
        """Return complete records of the log from OFFSET on, up to SIZE_MAX bytes or one record; or the blank there.

        None: it does not have them. Raises CorruptRecord if they are damaged here, which is noted.
        """
        try:
            return whole_piece(self.log, offset, size_max)
        except errors.CorruptRecord:
            self.damages.found_at(offset)
            raise

    def heal(self, offset: int, data: bytes) -> None:
        """Write DATA, which `piece_at` of another replica returned, over the known damage at OFFSET.

        Raises CorruptRecord if DATA is damaged, StoreFull and DiskFailure.
        """
        self.health.check_changeable()
        file = self.log.files.file_at(offset)
        if file is None or offset + len(data) > self.max_log_offset:
            raise errors.CorruptRecord(
                f"{len(data):,} bytes at {offset:,} exceed the log, which ends at {self.max_log_offset:,}",
                offset=offset,
            )
        piece = checked_piece(data, offset, file.end - offset)
        try:
            queues = self.lost_entries.enter_again(*self.damages.heal(offset, piece))
        except errors.DiskFailure as error:
            self.health.fail(error)
            raise
        self._caught_up(queues)

    def cover(self, offset: int) -> None:
        """Replace the damage at OFFSET by a tombstone, because no replica has the record.

        Raises StoreFull and DiskFailure.
        """
        self.health.check_changeable()
        try:
            self.damages.cover(offset)
        except errors.DiskFailure as error:
            self.health.fail(error)
            raise

    def truncate_to(self, offset: int) -> None:
        """Close the store, and let its next opening end the log at OFFSET, where a record or a blank begins.

        Queues, index, timers and epochs are then cut there, too: the store has the state of the time when its log ended
        there. One difference: scheduled messages that were delivered since are delivered again. Whatever happens
        meanwhile, the log is unchanged, or cut at OFFSET. Raises InvalidArgument if OFFSET is another place.
        """
        self._replica.stop()
        if not self._may_end_at(offset):
            raise errors.InvalidArgument(
                f"the log, {self.min_log_offset:,} to {self.max_log_offset:,}, cannot be cut at {offset:,}: no record"
                " begins there",
                field="offset",
                limit=self.max_log_offset,
                value=offset,
            )
        self._log_cut.set(offset)
        self.close()

    def _may_end_at(self, offset: int) -> bool:
        if offset == self.max_log_offset:
            return True
        file = self.log.files.file_at(offset)
        if file is None or self.log.record_size(offset) is not None:
            return file is not None
        at = offset - file.start
        return at < file.position and is_blank(file.view, at, file.size - at)

    @property
    def _replica(self) -> FollowerLog:
        if self._following is None:
            raise errors.StoreMismatch(
                f"the store {self.config.path} was not opened as part of a replica set",
                path=self.config.path,
            )
        return self._following

    @property
    def min_log_offset(self) -> int:
        return self.log.min_offset

    @property
    def max_log_offset(self) -> int:
        return self.log.max_offset

    @property
    def newest_record(self) -> tuple[int, bytes] | None:
        """The start and the bytes of the last record of the log; None: there is none."""
        at = self._writer.last_log_offset
        record = None if at is None else self.log.record(at)
        return None if at is None or record is None else (at, record)

    @property
    def flushed_offset(self) -> int:
        """Everything in the log before it is on disk."""
        return self._background.group.flushed_offset

    @property
    def dispatched_offset(self) -> int:
        """Everything in the log before it is in the queues, and in the index unless very many keys wait."""
        return self._writer.dispatched_offset

    def check_readable(self) -> None:
        """Raise StoreFull while the log has messages that their queue could not take yet: they cannot be read."""
        if self.dispatched_offset < self.max_log_offset:
            self._writer.catch_up_if_possible()
        if self.dispatched_offset < self.max_log_offset:
            raise errors.StoreFull(
                "stored, but not in its queue yet, because the disk was full or no file could be opened: free some"
                " space, then try again",
                path=self.config.path,
            )

    def _caught_up(self, queues: list[tuple[str, int]]) -> None:
        for hear in self.events.caught_up:
            self.call_owner(partial(hear, queues))

    def tick(self, now_ms: int | None = None) -> None:
        """Start due flushes. Call this every `config.flush_interval_ms`, in the owner's thread.

        NOW_MS is the instant of a clock that is never set back (`Clock.now_ms`); None: the wall clock, for tools.
        """
        self._writer.catch_up_if_possible()
        self._writer.roll_by_age()
        self.parts.dispatcher.go_on()
        now_ms = self._now_ms() if now_ms is None else now_ms
        self._background.tick(now_ms)
        self.scrubber.tick(now_ms)
        self._note_damage()
        self._preallocate()

    def _note_damage(self) -> None:
        """Save the known damage inside the log, so that it survives a restart."""
        if (known := self.damages.known) is not None:
            known.forget(self.min_log_offset, self.max_log_offset)
            known.save()

    def _preallocate(self) -> None:
        """Create the next log file ahead of time, once the current one is half full."""
        last = self.log.files.last
        if last is not None and last.room * 2 < last.size and self.health.state == "open":
            try:
                self.log.files.preallocate()
                self._warned_of_next_file = False
            except (
                errors.StoreFull
            ) as error:  # No data is lost: the append that needs the file will report the error.
                if not self._warned_of_next_file:
                    logger.warning("next log file not created %s", Facts(reason=error.message))
                self._warned_of_next_file = True
            except errors.DiskFailure as error:
                self.health.fail(error)

    def flush_soon(self) -> None:
        """Start flushing the log, if a part of it is not on disk yet."""
        self._background.group.flush_up_to(self.log.max_offset)

    def request_sync(self, end_offset: int, waiter: Waiter) -> None:
        """Call WAITER in the owner's thread: with None once all before END_OFFSET is on disk, or with the error.

        The data that the records depend on (`sync_before_log`) is on disk first. One sync serves all callers before its
        start. After a failed sync all calls fail, and all writes.
        """

        def reliable(error: errors.StoreError | None) -> None:
            if error is None:
                self._background.group.wait_for(end_offset, waiter)
            else:
                waiter(error)

        self._relied_on(reliable)

    def sync_before_log(self, when_safe: Callable[[Waiter], None]) -> None:
        """Sync data that records depend on with each sync of the log. WHEN_SAFE calls back when it is on disk.

        A message is of no use without its topic, which is stored next to the log.
        """
        self._relied_on = when_safe

    def flush(self) -> None:
        """Flush everything to disk now, in this thread; for tools and tests."""
        self._background.flush_everything()

    def clean(self, needed_from: Callable[[], int | None] = lambda: None) -> Cleaned:
        """Do one round of retention. Call this every `config.clean_interval_ms`.

        NEEDED_FROM returns the lowest log offset of a message that is still needed, apart from timers: its file and
        later ones stay, unless the disk is too full.
        """

        def needed() -> int | None:
            found = (self.timers.oldest_log_offset(), needed_from())
            return min((offset for offset in found if offset is not None), default=None)

        return self._cleaner.clean(self._now_ms(), needed)

    def delete_before(self, offset: int) -> int:
        """Delete the log files before OFFSET, as the master did; return how many. Raises StoreError."""
        return self._cleaner.delete_before(offset)

    def delete_topic(self, topic: str, before: int | None = None) -> None:
        """Delete the queues of TOPIC. Its records stay in the log until their files are deleted.

        With BEFORE, queues with a record after it in the log stay: they started again since.
        """
        self.health.check_changeable()
        self.queues.delete_topic(topic, before)
        self._background.forget()


def _process_id() -> bytes:
    return str(os.getpid()).encode()


def _locked(disk: Disk, config: StoreConfig) -> Lock:
    try:
        return disk.lock(config.lock_path)
    except errors.StoreLocked as error:
        owner = (
            disk.read(config.abort_path).decode("ascii", "replace")
            if disk.exists(config.abort_path)
            else ""
        )
        if not owner:
            raise
        raise errors.StoreLocked(
            f"{config.lock_path} is locked by another broker, process {owner}: stop it, or use another"
            " store",
            path=config.lock_path,
            process=owner,
        ) from error
