"""The flush scheduler: it flushes log, queues, index and checkpoint to disk, each at its own interval.

It has two threads: one for the log, because group commit waits for it, and one for all other files. Thousands of queue
files never delay an acknowledgement. Results return to the owner's thread through `call_owner`.

The checkpoint follows Apache RocketMQ 5.5.0, whose recovery reads more of the log if the checkpoint has less:

| value | moves with |
|---|---|
| time of the log | each flush of the log |
| time and offset of the queues | the thorough flush every 60 s, but not a stop |
| time of the index | each full index file |
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..proto.errors import StoreError, StoreFull
from ..proto.facts import Facts
from .disk import Mapping
from .files import Syncable
from .flush import CallOwner, Flusher, FlushJob, GroupCommit
from .health import StoreHealth
from .index_file import IndexFile
from .log_writer import LogWriter
from .parts import StoreParts
from .recovery.verified import VerifiedSnapshot
from .timers.store import TimerStore

logger = logging.getLogger(__name__)


class _Saved:
    """Saves the verified snapshot, as the last part of a flush job: after the files that it describes."""

    def __init__(self, verified: VerifiedSnapshot, parts: StoreParts) -> None:
        self._verified = verified
        self._queues = parts.queues
        self._disk = parts.disk
        self._folder = parts.config.own_folder

    def sync(self) -> None:
        if self._queues.lacks_lite_entries:  # The next recovery reads more, and derives them.
            return
        try:
            self._verified.save(self._disk, self._folder)
        except StoreFull as error:  # The next recovery reads more; nothing is lost.
            logger.warning("verified snapshot not saved %s", Facts(reason=error.message))


class _InPlace:
    """Checks after a sync that the path still names the synced file."""

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping

    def sync(self) -> None:
        self._mapping.check()


class FlushScheduler:
    """Flushes the files of one store. `group` is the log's group commit.

    Not thread-safe: the store's owner calls it.
    """

    def __init__(
        self,
        parts: StoreParts,
        health: StoreHealth,
        writer: LogWriter,
        snapshot: Callable[[], VerifiedSnapshot],
        timers: TimerStore,
        on_flushed: list[Callable[[int], None]],
    ) -> None:
        """SNAPSHOT returns what a recovery may rely on once the present state is on disk.

        Each callback in ON_FLUSHED is called with each new flushed offset of the log. The list may change later.
        """
        self._snapshot = snapshot
        self._parts = parts
        self._config = parts.config
        self._health = health
        self._log, self._queues, self._index = parts.log, parts.queues, parts.index
        self._writer = writer
        self._dispatcher = parts.dispatcher
        self._timers = timers
        self._checkpoint = parts.checkpoint
        self._disk = parts.disk
        self.log_flusher = Flusher("pocketmq-flush-log")
        self._rest_flusher = Flusher("pocketmq-flush-queues")
        on_flushed.append(self._note_log)
        self.group = GroupCommit(
            self._collect_log,
            self.log_flusher,
            flushed_offset=self._log.max_offset,
            on_flushed=on_flushed,
            on_failed=health.fail,
        )
        self._collected_ms = 0
        self._verified: VerifiedSnapshot | None = None
        self._remembered_end = -1
        #: Note the present state as verified as soon as queues and index contain all records of the log?
        self._to_remember = False
        self._rest_busy = False
        self._checkpoint_late = False
        self._queues_due_ms = self._thorough_due_ms = self._checkpoint_due_ms = 0

    def expect_flush(self, verified: VerifiedSnapshot | None) -> None:
        """Treat nothing as flushed. Save VERIFIED as soon as the present state is on disk."""
        self.group.doubt(self._log.min_offset)
        self._verified = verified

    def remember(self) -> None:
        """Save the present state as verified once it is on disk, so that recovery need not read it again."""
        end = self._log.max_offset
        is_whole = self._writer.dispatched_offset == end and not self._dispatcher.index_lags
        if self._verified is None and is_whole and end != self._remembered_end:
            self._verified = self._snapshot()
            self._remembered_end = end
        self._to_remember = not is_whole

    def forget(self) -> None:
        """Replace the pending snapshot, because queues were deleted."""
        self._verified = None
        self._remembered_end = -1
        self.remember()

    def start(self, call_owner: CallOwner) -> None:
        """Start both threads; CALL_OWNER runs a function in the owner's thread (`loop.call_soon_threadsafe`)."""
        self.group.start(call_owner)
        self.log_flusher.start()
        self._rest_flusher.start()

    def stop(self) -> None:
        """End both threads after the submitted jobs. A failure counts at once, even if its callback has not run yet."""
        self.log_flusher.stop()
        self._rest_flusher.stop()
        if error := self.log_flusher.error or self._rest_flusher.error:
            self.group.fail(error)

    def tick(self, now_ms: int) -> None:
        """Start the flushes that are due at NOW_MS, the time of a monotonic clock."""
        if self._health.failure is not None:
            return
        try:
            self._check_in_place()
        except StoreError as error:
            self.group.fail(error)
            return
        self.group.flush_up_to(self._log.max_offset)
        if self._rest_busy:
            return
        parts: list[Syncable] = []
        landed: list[Callable[[], None]] = []
        if now_ms >= self._queues_due_ms:
            self._queues_due_ms = now_ms + self._config.flush_queues_interval_ms
            parts += self._queues_due(now_ms, landed)
        if now_ms >= self._checkpoint_due_ms:
            self._checkpoint_due_ms = now_ms + self._config.flush_checkpoint_interval_ms
            parts += self._checkpoint_due()
            parts += self._timers.take_parts(self.group.flushed_offset)
        if parts:
            self._submit_rest(parts, landed)

    def _check_in_place(self) -> None:
        """Raise DiskFailure if another process deleted, replaced or cut the newest log file."""
        last = self._log.files.last
        if last is not None:
            last.mapping.check()

    def _queues_due(self, now_ms: int, landed: list[Callable[[], None]]) -> list[Syncable]:
        """Return the dirty parts of queues and full index files. LANDED gets the functions to call after the sync."""
        parts = self._queues.take_dirty()
        if self._to_remember:
            self.remember()
        if now_ms >= self._thorough_due_ms and not self._dispatcher.index_lags:
            # The first minute has to pass, as in RocketMQ.
            first = self._thorough_due_ms == 0
            self._thorough_due_ms = now_ms + self._config.flush_queues_thorough_interval_ms
            if not first:
                landed.append(self._note_queues())
                self.remember()
        if self._verified is not None and self.group.flushed_offset >= self._verified.log_end:
            parts += self._index.take_dirty() if self._index is not None else []
            parts.append(_Saved(self._verified, self._parts))
            self._verified = None
        for file in self._index.take_full() if self._index is not None else []:
            parts.append(file)
            landed.append(self._note_index(file))
        return parts

    def _checkpoint_due(self) -> list[Syncable]:
        try:
            written = self._checkpoint.write()
        except StoreFull as error:  # An older checkpoint is valid too: recovery begins earlier.
            if not self._checkpoint_late:
                logger.warning("checkpoint not written %s", Facts(reason=error.message))
            self._checkpoint_late = True
            return []
        self._checkpoint_late = False
        return [self._checkpoint] if written else []

    def _note_queues(self) -> Callable[[], None]:
        offset, time_ms = self._writer.last_log_offset, self._writer.last_store_ms
        values = self._checkpoint.values

        def note() -> None:
            if offset is not None:
                values.note_queues(offset, time_ms)

        return note

    def _note_index(self, file: IndexFile) -> Callable[[], None]:
        def note() -> None:
            self._checkpoint.values.note_index(file.header.end_ms)

        return note

    def _submit_rest(self, parts: list[Syncable], landed: list[Callable[[], None]]) -> None:
        self._rest_busy = True

        def finished(error: StoreError | None) -> None:
            self._rest_busy = False
            if error is not None:
                self.group.fail(error)
                return
            for note in landed:
                note()

        def done(error: StoreError | None) -> None:
            self.group.call_owner(lambda: finished(error))

        self._rest_flusher.submit(FlushJob(parts, done))

    def _collect_log(self) -> tuple[int, list[Syncable]]:
        self._collected_ms = self._writer.last_store_ms
        parts, last = self._log.take_dirty(), self._log.files.last
        if last is not None:
            parts.append(_InPlace(last.mapping))
        return self._log.max_offset, parts

    def _note_log(self, flushed_offset: int) -> None:
        """Note the time of the flushed log. Only one sync runs at a time, so it covers the last collection."""
        self._checkpoint.values.note_log(self._collected_ms)

    def flush_everything(self) -> None:
        """Flush log, queues and index now, in this thread. Raises StoreError."""
        end, parts = self._collect_log()
        for part in parts:
            part.sync()
        for part in self._queues.take_dirty():
            part.sync()
        if self._index is not None:
            self._index.sync()
        self.group.reached(end)
        self._timers.flush()
