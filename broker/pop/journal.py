"""The journal of deliveries: what is in flight outlives the process and, as the store's setting says, the machine.

Files, bytes and what they mean: journal_format.py.

    note          keeps in memory; at the end of the turn, at the latest, all that was noted is written as one frame
    write         now: with write(2), so that it outlives a kill
    when_safe     flush=async: once it is written. flush=sync: once it is on the device, many in one sync
    sync          in any case so often as the store flushes; at once for what says that groups begin anew

A snapshot is made in steps, while the tables change. Each step takes some changes of the tables as they are at that
moment; the journal that the snapshot precedes has begun before the first one, and is replayed over it: every change
says how something stands, so that what the snapshot has already seen of it does no harm. The file is written under
another name, synced, and renamed when it is whole.

Bounds: a journal file has FILE_BYTES; with more than SNAPSHOT_BYTES of them since the last snapshot, and SNAPSHOT_RATIO
times as much as that has, the next snapshot is made, in steps between which the loop turns. What is older is deleted.

A journal that cannot be written (a full disk) is deleted, for an old one must not be taken for a true one; the broker
serves on, and begins a new one RETRY_MS later. A restart meanwhile delivers again what is not finished in
consumerOffset.json. The event loop owns it; the store's flushing thread syncs.

A start reads, purely but for the disk that it is handed:

    <root>/pocketmq/pop/snapshot-N    all tables, as of the beginning of journal N or later (journal_format.py)
    <root>/pocketmq/pop/journal-N     what changed since, in order; then journal-N+1, and so on

What counts is the newest complete snapshot, and the journals from its number on. Losing all of it, or any part, is
no loss of messages: what is not known to be finished comes again.

- A torn end is what a power cut leaves; it says nothing. Damage in the middle costs the changes in it. A queue of which
  a look was lost in it counts as looked at only up to there; what comes behind that is delivered again.
- A snapshot that is damaged or not complete is as none. Then no queue is known from its beginning on.
- A journal that did not end is believed after an unclean stop only, one of another log never: another broker ran on
  the store in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from ...proto.clock import Readings
from ...proto.errors import PocketMQError, StoreError
from ...proto.record import decode_record
from ...proto.topics import DEAD_LETTER_PREFIX
from ...store.disk import Disk, Mapping
from ...store.files import FolderSync, Syncable
from ...store.flush import CallOwner, Flusher, FlushJob, GroupCommit, sync_all
from ...store.message_store import MessageStore
from ..producers.snapshots import log_tail
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from .journal_format import (
    FRAME_SIZE,
    HEAD_SIZE,
    JOURNAL,
    SNAPSHOT,
    Change,
    ClockMark,
    Decoder,
    Encoder,
    Finished,
    Forgotten,
    FoundDeliveries,
    JournalDamage,
    JournalEnd,
    LogMark,
    Looked,
    LookedSpan,
    Moved,
    PopKey,
    Safe,
    Said,
    clock_mark,
    end,
    frame,
    frames,
    head,
    is_meant,
    is_readable,
    log_mark,
)

logger = logging.getLogger(__name__)


FILE_BYTES: Final = 4 << 20
SNAPSHOT_BYTES: Final = 8 << 20
SNAPSHOT_RATIO: Final = 4
RETRY_MS: Final = 10_000
#: What keeps the journal from being written: OSError where somebody took its folder away.
_FAILURES: Final = (StoreError, OSError)
#: Changes that a step takes: about a millisecond.
_STEP_CHANGES: Final = 512
#: Bytes that a step writes.
_STEP_BYTES: Final = 1 << 20


class Journal:
    """The journal of STORE; TIMERS are of the machine's time, CLOCK is the messages'."""

    def __init__(
        self,
        store: MessageStore,
        timers: Timers,
        clock: Readings,
        *,
        file_bytes: int = FILE_BYTES,
        snapshot_bytes: int = SNAPSHOT_BYTES,
    ) -> None:
        self._store = store
        self._disk = store.disk
        self._timers = timers
        self._clock = clock
        self._folder = folder_in(store.config.own_folder)
        self._file_bytes = file_bytes
        self._snapshot_bytes = snapshot_bytes
        self._everything: Callable[[], Iterator[Change]] = lambda: iter(())
        self._encoder = Encoder()
        self._noted: list[Change] = []
        #: Is a write asked for at the end of this turn? And who is told that it was?
        self._asked: asyncio.Handle | None = None
        self._waiting: list[Safe] = []
        self._file: Mapping | None = None
        self._number = 0
        #: Of the next frame, and where it goes.
        self._frame = 1
        self._at = 0
        self._dirty: list[Syncable] = []
        #: Is the present file among them?
        self._is_dirty = False
        #: Bytes that were ever written: what one waits for to be synced.
        self._written = 0
        #: As of the latest snapshot.
        self._snapshot_at = self._snapshot_size = 0
        self._snapshot: PopSnapshot | None = None
        self._step: asyncio.Handle | None = None
        self._tick_timer: Timer | None = None
        self._mark: LogMark | None = None
        #: What was written since the last `take_written`; None: nobody asks.
        self._told: list[bytes] | None = None
        #: Grows with each journal that is begun, or given up.
        self.generation = 0
        self._is_open = False
        self._group = self._new_group()

    def _new_group(self) -> GroupCommit:
        return GroupCommit(
            self._collect,
            self._store.flusher,
            flushed_offset=self._written,
            call_owner=self._store.call_owner,
        )

    # --- beginning and ending

    def replay(self) -> FoundDeliveries:
        """Return what was kept before this start, as far as it can be believed."""
        store = self._store
        kept = read(self._disk, self._folder, store.max_log_offset, self._is_dead_letter)
        return believed(
            kept,
            clean=store.ended_cleanly,
            knows_log=lambda end, tail: log_tail(store.log, end) == tail,
        )

    def _is_dead_letter(self, log_offset: int) -> bool:
        data = self._store.read_at(log_offset)
        if data is None:
            return False
        try:
            return decode_record(data).topic.startswith(DEAD_LETTER_PREFIX)
        except PocketMQError:
            return False

    def start(self, everything: Callable[[], Iterator[Change]]) -> None:
        """Begin to keep: with a snapshot of EVERYTHING, on the device before anything else happens."""
        self._everything = everything
        self._noted.clear()
        self._is_open = True  # Where it cannot begin, that is told.
        try:
            self._open()
            changes = self._encoder.begin_at(everything())
            snapshot = self._begin_snapshot(changes)
            while snapshot.step():
                pass
            snapshot.finish(Flusher("not started: works at once"), lambda function: function())
        except _FAILURES as error:
            self._fail(error)

    def _open(self) -> None:
        self._disk.make_folders(self._folder)
        self._number = Listing.of(self._disk, self._folder).last
        self._group = self._new_group()
        self._is_open = True
        self.generation += 1

    def close(self) -> None:
        """Keep what was noted, on the device, and nothing any more."""
        if self._is_open:
            try:
                self.write()
                self._put(self.clock_mark() + end())
                if (error := sync_all(self._take_dirty())) is not None:
                    raise error
            except _FAILURES as error:
                self._fail(error)
        self._stop()

    def _stop(self) -> None:
        self._is_open = False
        self._pass_over()
        for handle in (self._asked, self._step):
            if handle is not None:
                handle.cancel()
        self._asked = self._step = None
        self._tell_waiting()
        if self._tick_timer is not None:
            self._timers.cancel(self._tick_timer)
            self._tick_timer = None
        if self._snapshot is not None:
            self._snapshot.abandon()
            self._snapshot = None
        if self._file is not None:
            self._file.close()
            self._file = None
        self._take_dirty()

    def _fail(self, error: Exception) -> None:
        """Give up this journal, and try another one later."""
        if self._is_open:
            reason = error.message if isinstance(error, PocketMQError) else error
            logger.error(
                "journal of deliveries not written, a restart delivers more again reason=%s", reason
            )
        self._stop()
        self.generation += 1
        for path in Listing.of(self._disk, self._folder).all():
            try:
                self._disk.delete(path)
            except _FAILURES as also:
                logger.error("journal of deliveries not deleted path=%s reason=%s", path, also)
        self._tick_timer = self._timers.after(RETRY_MS, self._begin_again)
        if isinstance(error, StoreError):
            self._group.fail(error)

    def _begin_again(self) -> None:
        self._tick_timer = None
        self._pass_over()
        try:
            self._open()
            self._begin_snapshot(self._everything())
        except _FAILURES as error:
            self._fail(error)
            return
        self._step = asyncio.get_running_loop().call_soon(self._go_on)

    # --- noting

    def note(self, change: Change) -> None:
        """Keep CHANGE: it is written at the end of this turn of the loop, with all others."""
        if not self._noted and self._asked is None and self._is_open:
            self._asked = asyncio.get_running_loop().call_soon(self._write_soon)
        self._noted.append(change)

    def _write_soon(self) -> None:
        self._asked = None
        self.write()
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Tell who waited for the write of this turn, be it that nothing is kept any more."""
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(None)

    def write(self) -> None:
        """Write what was noted, as one frame."""
        if not self._noted:
            return
        if not self._is_open:
            self._pass_over()
            return
        noted, self._noted = self._noted, []
        try:
            changes = self._encoder.encode(noted)
            self._put(changes)
            if self._told is not None:
                self._told.append(changes)
            if self._is_long:
                self._begin_snapshot(self._everything())
                self._step = asyncio.get_running_loop().call_soon(self._go_on)
        except _FAILURES as error:
            self._fail(error)
            return
        if self._tick_timer is None:
            self._tick_timer = self._timers.after(self._store.config.flush_interval_ms, self._tick)
        if self._encoder.has_begun_anew:
            self._group.flush_up_to(self._written)

    def _pass_over(self) -> None:
        """Keep nothing of what was noted: the next snapshot has it. How far was looked goes on from it all the same."""
        self._encoder.encode(self._noted)
        self._noted.clear()

    def when_safe(self, done: Safe) -> None:
        """Call DONE once what was noted is written, and for a store that flushes synchronously on the device.

        What is noted in one turn of the loop is written at its end, as one frame, before anybody is told.
        """
        if self._noted and self._store.config.flush != "sync" and self._is_open:
            self._waiting.append(done)
            return
        needed = self._store.max_log_offset if self._has_buried else 0
        self.write()
        if self._store.config.flush != "sync" or not self._is_open:
            done(None)
            return

        def on_device(error: StoreError | None) -> None:
            if error is None:
                self._group.wait_for(written, done)
            else:
                done(error)

        written = self._written
        self._store.request_sync(needed, on_device)

    @property
    def _has_buried(self) -> bool:
        """Is something of what was noted true only with its dead letter?"""
        return any(isinstance(change, Finished) and change.copy_at for change in self._noted)

    # --- for followers

    def take_written(self) -> list[bytes]:
        """Return the changes, encoded, of each frame that was written since the last call; the first one begins."""
        told, self._told = self._told, []
        return told or []

    def everything_written(self) -> bytes:
        """Return what the files say, as encoded changes; nothing where they cannot be read."""
        self.write()
        try:
            return changes_in(self._disk, self._folder)
        except _FAILURES as error:
            logger.warning("journal of deliveries not read reason=%s", error)
            return b""

    # --- files

    def _put(self, changes: bytes) -> None:
        """Write CHANGES as the next frame."""
        size = FRAME_SIZE + len(changes)
        if self._file is None or self._at + size > self._file.size:
            self._roll(size)
        assert self._file is not None, "rolled"
        self._file.write(self._at, frame(self._frame, changes))
        self._at += size
        self._frame += 1
        self._written += size
        if not self._is_dirty:
            self._dirty.append(self._file)
            self._is_dirty = True

    def _roll(self, size: int) -> None:
        """Go on with the next file, which has room for a frame of SIZE bytes."""
        self._number += 1
        path = f"{self._folder}/{JOURNAL_PREFIX}{self._number:08d}"
        room = max(self._file_bytes, HEAD_SIZE + size)
        # The old one is not closed: it may be about to be synced, and goes when nobody has it any more.
        self._file = self._disk.open_map(path, size=room, create=True)
        self._is_dirty = False
        self._file.write(0, head(JOURNAL, self._number))
        self._at, self._frame = HEAD_SIZE, 1
        self._dirty.append(FolderSync(self._disk, self._folder))

    def _collect(self) -> tuple[int, list[Syncable]]:
        return self._written, self._take_dirty()

    def _take_dirty(self) -> list[Syncable]:
        dirty, self._dirty, self._is_dirty = self._dirty, [], False
        return dirty

    def _tick(self) -> None:
        """Say what time it is and where the log stands, and sync, some time after something was written."""
        self._tick_timer = None
        try:
            self._put(self.clock_mark())
            self._put_mark()
        except _FAILURES as error:
            self._fail(error)
            return
        self._group.flush_up_to(self._written)

    def clock_mark(self) -> bytes:
        """Return the change that says what time it is."""
        return clock_mark(ClockMark(self._clock.now_ms(), self._clock.unix_ms()))

    def _put_mark(self) -> None:
        # Not beyond what is on the device: a power cut may leave other bytes there, and it is the same log.
        log_end = self._store.flushed_offset
        if self._mark is not None and self._mark.end == log_end:
            return
        tail = log_tail(self._store.log, log_end)
        if tail is not None:
            self._mark = LogMark(log_end, tail)
            self._put(log_mark(self._mark))

    # --- snapshots

    @property
    def _is_long(self) -> bool:
        """Is it time for a snapshot?"""
        least = max(self._snapshot_bytes, SNAPSHOT_RATIO * self._snapshot_size)
        return self._snapshot is None and self._written - self._snapshot_at > least

    def _begin_snapshot(self, changes: Iterator[Change]) -> PopSnapshot:
        """Begin a file of the journal, and a snapshot of what CHANGES say, which it goes on from."""
        self._roll(0)
        self._snapshot_at = self._written

        def done(error: Exception | None) -> None:
            if self._snapshot is snapshot:
                self._end_snapshot(snapshot, error)

        snapshot = PopSnapshot(self._disk, self._folder, self._number, changes, done)
        self._snapshot = snapshot
        return snapshot

    def _go_on(self) -> None:
        self._step = None
        snapshot = self._snapshot
        assert snapshot is not None, "a step of a snapshot"
        try:
            if snapshot.step():
                self._step = asyncio.get_running_loop().call_soon(self._go_on)
            else:
                snapshot.finish(self._store.flusher, self._store.call_owner)
        except _FAILURES as error:
            self._fail(error)

    def _end_snapshot(self, snapshot: PopSnapshot, error: Exception | None) -> None:
        """Delete what SNAPSHOT, which is on the device, stands for."""
        self._snapshot = None
        try:
            if error is not None:
                raise error
            listing = Listing.of(self._disk, self._folder)
            for number, path in (*listing.journals.items(), *listing.snapshots.items()):
                if number < snapshot.number:
                    self._disk.delete(path)
            for path in listing.drafts:
                self._disk.delete(path)
        except _FAILURES as failure:
            self._fail(failure)
            return
        self._snapshot_size = snapshot.size


# --- a snapshot, made in steps


class PopSnapshot:
    """Snapshot NUMBER in FOLDER, of EVERYTHING. DONE is told once it is on the device under its name, or the error."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        number: int,
        everything: Iterator[Change],
        done: Callable[[Exception | None], None],
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{SNAPSHOT_PREFIX}{number:08d}"
        self._everything = everything
        self._done = done
        self._encoder = Encoder()
        self._pieces = [head(SNAPSHOT, number)]
        self._data: memoryview | None = None
        self._file: Mapping | None = None
        self._written = 0
        self._is_abandoned = False
        self.number = number
        self.size = 0

    def step(self) -> bool:
        """Go on; return whether there is more to do in further steps. Raises StoreError."""
        if self._data is None:
            self._take()
            return True
        if self._file is None:
            self._file = self._disk.open_map(self._draft, size=self.size, create=True)
        piece = self._data[self._written : self._written + _STEP_BYTES]
        self._file.write(self._written, piece)
        self._written += len(piece)
        return self._written < self.size

    @property
    def _draft(self) -> str:
        return self._path + DRAFT_SUFFIX

    def _take(self) -> None:
        changes = list(islice(self._everything, _STEP_CHANGES))
        if changes:
            said = self._encoder.encode(changes, absolute=True)
            self._pieces.append(frame(len(self._pieces), said))
            return
        self._pieces.append(frame(len(self._pieces), end()))
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._data, self.size = memoryview(data), len(data)

    def finish(self, flusher: Flusher, call_owner: CallOwner) -> None:
        """Bring it to the device, and give it its name: all steps are done."""
        assert self._file is not None, "written before it is finished"
        self._sync(flusher, call_owner, self._file, self._rename)

    def _rename(self, flusher: Flusher, call_owner: CallOwner) -> None:
        self._close()
        self._disk.rename(self._draft, self._path)
        folder = FolderSync(self._disk, self._folder)
        self._sync(flusher, call_owner, folder, lambda flusher, call_owner: self._done(None))

    def _sync(
        self,
        flusher: Flusher,
        call_owner: CallOwner,
        part: Syncable,
        then: Callable[[Flusher, CallOwner], None],
    ) -> None:
        def synced(error: StoreError | None) -> None:
            if self._is_abandoned:
                return
            if error is not None:
                self._done(error)
                return
            try:
                then(flusher, call_owner)
            except (StoreError, OSError) as failure:
                self._done(failure)

        def done(error: StoreError | None) -> None:
            call_owner(lambda: synced(error))

        flusher.submit(FlushJob([part], done))

    def abandon(self) -> None:
        """Go no further: it does not get its name, and DONE is not told."""
        self._is_abandoned = True
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


FOLDER: Final = "pop"
JOURNAL_PREFIX: Final = "journal-"
SNAPSHOT_PREFIX: Final = "snapshot-"
DRAFT_SUFFIX: Final = ".tmp"

#: Is the log, up to an offset, the one that had this CRC there? Told of offsets that it reaches.
KnowsLog: TypeAlias = Callable[[int, int], bool]
#: Does a dead letter lie at this offset of the log?
HasLetter: TypeAlias = Callable[[int], bool]


def folder_in(own_folder: str) -> str:
    """Return where the journal is in OWN_FOLDER, the broker's own."""
    return f"{own_folder}/{FOLDER}"


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that are there, by number."""

    journals: dict[int, str]
    snapshots: dict[int, str]
    drafts: list[str]

    @classmethod
    def of(cls, disk: Disk, folder: str) -> Listing:
        """Return what is in FOLDER; a name that is none of ours is left alone."""
        listing = cls({}, {}, [])
        for entry in disk.list(folder):
            path = f"{folder}/{entry.name}"
            prefix, _, number = entry.name.rpartition("-")
            if entry.name.endswith(DRAFT_SUFFIX):
                listing.drafts.append(path)
            elif number.isascii() and number.isdigit():
                if f"{prefix}-" == JOURNAL_PREFIX:
                    listing.journals[int(number)] = path
                elif f"{prefix}-" == SNAPSHOT_PREFIX:
                    listing.snapshots[int(number)] = path
        return listing

    @property
    def last(self) -> int:
        """The highest number; 0 for none."""
        return max((*self.journals, *self.snapshots), default=0)

    def all(self) -> list[str]:
        """Return the paths of all of them."""
        return [*self.snapshots.values(), *self.journals.values(), *self.drafts]


class Replay:
    """What frames, in their order, come to. LOG_END: how far the log reaches; HAS: does it have that dead letter?

    ended: the broker stopped cleanly;  mark: where the log stood last, as far as it reaches now.
    """

    def __init__(self, log_end: int, has: HasLetter) -> None:
        self._has = has
        self.found = FoundDeliveries()
        self.ended = False
        self.mark: LogMark | None = None
        self.damages: list[tuple[str, JournalDamage]] = []
        self._log_end = log_end
        self._looked: dict[PopKey, int] = {}
        #: Of which a look was lost: what is said to have been looked at later is not believed.
        self._stuck: set[PopKey] = set()

    def take_snapshot(self, content: Iterable[Said]) -> bool:
        """Take in the CONTENT of a snapshot; return whether it is whole. Where it ends the broker did not stop."""
        for said in content:
            self.take(said)
        is_whole, self.ended = self.ended and not self.damages, False
        return is_whole

    def take(self, said: Said) -> None:
        """Take in SAID, which is later than all before it."""
        self.ended = False
        if isinstance(said, LogMark):
            if said.end <= self._log_end:
                self.mark = said
        elif isinstance(said, ClockMark):
            self.found.apply(said)
        elif isinstance(said, JournalEnd):
            self.ended = True
        elif isinstance(said, LookedSpan):
            self._look(said)
        elif not isinstance(said, Finished) or not said.copy_at or self._has(said.copy_at):
            self._begin_anew(said)
            self.found.apply(said)

    def _look(self, span: LookedSpan) -> None:
        key, start, offset = span
        if start >= 0 and (key in self._stuck or start > self._looked.get(key, -1)):
            self._stuck.add(key)
            return
        self._stuck.discard(key)
        self._looked[key] = offset
        self.found.apply(Looked(key, offset))

    def _begin_anew(self, change: Change) -> None:
        if isinstance(change, Moved):
            self._stuck.discard(change.key)
            self._looked[change.key] = change.offset
        elif isinstance(change, Forgotten):
            for key in [key for key in self._looked if is_meant(change, key)]:
                del self._looked[key]
            self._stuck -= {key for key in self._stuck if is_meant(change, key)}


def read(disk: Disk, folder: str, log_end: int, has: HasLetter = lambda log_offset: True) -> Replay:
    """Return what the files in FOLDER say, of a log that reaches to LOG_END; HAS: is a dead letter there in it?

    Says in the log what it cannot read.
    """
    listing = Listing.of(disk, folder)
    decoder = Decoder()
    number, replay = _newest_snapshot(disk, listing, decoder, partial(Replay, log_end, has))
    for at in sorted(listing.journals):
        if at >= number:
            for said in _said(disk, listing.journals[at], decoder, replay.damages):
                replay.take(said)
    return replay


def changes_in(disk: Disk, folder: str) -> bytes:
    """Return the changes in the files of FOLDER that count, encoded: those of the newest complete snapshot first."""
    listing = Listing.of(disk, folder)
    contents: list[bytes] = []
    begin = 0
    for number in sorted(listing.snapshots, reverse=True):
        damages: list[JournalDamage] = []
        data = disk.read(listing.snapshots[number])
        contents = list(frames(data, damages)) if is_readable(data) else []
        if contents and contents[-1] == end() and not damages:
            begin = number
            break
        contents = []
    for number, path in sorted(listing.journals.items()):
        if number >= begin and is_readable(data := disk.read(path)):
            contents += frames(data, [])
    return b"".join(contents)


def _newest_snapshot(
    disk: Disk, listing: Listing, decoder: Decoder, begin: Callable[[], Replay]
) -> tuple[int, Replay]:
    for number in sorted(listing.snapshots, reverse=True):
        replay = begin()
        path = listing.snapshots[number]
        if replay.take_snapshot(_said(disk, path, decoder, replay.damages)):
            return number, replay
        logger.warning("snapshot of deliveries is damaged: more comes again path=%s", path)
    return 0, begin()


def _said(
    disk: Disk, path: str, decoder: Decoder, damages: list[tuple[str, JournalDamage]]
) -> Iterator[Said]:
    try:
        data = disk.read(path)
    except OSError as error:
        logger.warning("file of deliveries not read path=%s reason=%s", path, error)
        damages.append((path, JournalDamage(0, 0, False, 1)))
        return
    if not is_readable(data):
        if data.strip(b"\0"):
            damages.append((path, JournalDamage(0, len(data), False, 1)))
        return
    found: list[JournalDamage] = []
    for content in frames(data, found):
        try:
            yield from decoder.decode(content)
        except ValueError:
            found.append(JournalDamage(0, len(content), False, 1))
    damages += ((path, one) for one in found)


def believed(kept: Replay, *, clean: bool, knows_log: KnowsLog) -> FoundDeliveries:
    """Return what of KEPT counts for a store whose last stop was CLEAN or not; nothing where it cannot."""
    reason = None
    if clean and not kept.ended and kept.found.queues:
        reason = "another broker ran on the store since"
    elif kept.mark is not None and not knows_log(*kept.mark):
        reason = "it is of another log"
    for path, damage in kept.damages:
        event = (
            "journal of deliveries ends torn" if damage.torn else "journal of deliveries damaged"
        )
        logger.warning(
            "%s: more comes again path=%s at=%s bytes=%s records=%s",
            event,
            path,
            damage.at,
            damage.bytes,
            damage.lost,
        )
    if reason is None:
        return kept.found
    logger.warning(
        "journal of deliveries is not used: what is in flight comes again reason=%s", reason
    )
    return FoundDeliveries()
