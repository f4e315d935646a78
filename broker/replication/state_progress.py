"""Replicated progress of deliveries: the journal of in-flight messages (pop), and the timers of scheduled messages.

Pop: a full frame is the current content of the journal (pop/journal.py), a diff what was written since, as changes of
pop/journal_format.py. The follower stores them in the same files: a full frame as a snapshot, diffs as frames of a
journal. So a new master finds them like its own after a kill: deliveries that it does not know are repeated. After
DIFFS_MIN bytes, or DIFFS_RATIO times the last full frame, a full frame is sent again.

Timers: each replica derives the timer wheel and its log from the message log. The master sends its delivery progress,
and how many messages wait:

    {"progress": {"last": [read time in ms, next offset of the timer topic]}, "timingCount": {"topic": 7, …},
     "begun": {"slot's time in ms": [log offset, due time], …}}         as TimerStore.begun; null: the slot is over
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from ...proto.errors import PocketMQError
from ...proto.topics import TIMER_TOPIC
from ...store.disk import Mapping
from ...store.files import FolderSync, Syncable
from ...store.flush import FlushJob, sync_all
from ...store.message_store import MessageStore
from ...store.timers.store import TimerStore
from ..delay.timed_pages import enter_page
from ..offsets import Safe
from ..pop.journal import JOURNAL_PREFIX, SNAPSHOT_PREFIX, Journal, Listing, folder_in
from ..pop.journal_format import (
    FRAME_SIZE,
    HEAD_SIZE,
    JOURNAL,
    SNAPSHOT,
    Decoder,
    end,
    frame,
    head,
)
from .frames import read_state
from .state_source import EntryKey

logger = logging.getLogger(__name__)

POPS_FILE: Final = "pop"
DIFFS_MIN: Final = 8 << 20
DIFFS_RATIO: Final = 4
_FILE_BYTES: Final = 4 << 20


class PopsPart:
    """What JOURNAL says, for followers."""

    file = POPS_FILE
    is_kept = False

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.on_change: list[Callable[[], None]] = []
        self.count = 1
        self._generation = journal.generation
        #: What was written, with the count that it came with; what came with _FLOOR or before is gone.
        self._diffs: deque[tuple[int, bytes]] = deque()
        self._diffs_size = self._whole_size = 0
        self._floor = 1
        journal.take_written()

    def look(self) -> None:
        self._journal.write()
        written = self._journal.take_written()
        is_new = self._journal.generation != self._generation
        if not written and not is_new:
            return
        self.count += 1
        diff = b"".join([*written, self._journal.clock_mark()])
        self._diffs.append((self.count, diff))
        self._diffs_size += len(diff)
        if is_new or self._diffs_size > max(DIFFS_MIN, DIFFS_RATIO * self._whole_size):
            self._generation = self._journal.generation
            self._diffs.clear()
            self._diffs_size = 0
            self._floor = self.count

    def behind(self, base: int) -> bytes | None:
        if base < self._floor:
            return None
        return b"".join([diff for count, diff in self._diffs if count > base])

    def whole(self) -> bytes:
        content = self._journal.everything_written() + self._journal.clock_mark()
        self._whole_size = len(content)
        return content


class PopsSink:
    """The journal of deliveries next to STORE, replicated from a master."""

    file = POPS_FILE
    is_kept = False

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._disk = store.disk
        self._folder = folder_in(store.config.own_folder)
        self._decoder = Decoder()
        self._file: Mapping | None = None
        self._number = self._at = self._frame = 0
        self._dirty: list[Syncable] = []
        #: Does the folder hold exactly what a master sent?
        self._is_told = False

    def read(self, content: bytes) -> bytes:
        self._decoder.decode(content)
        return content

    def apply(self, said: bytes, *, whole: bool, log_offset: int) -> None:
        if whole:
            self._begin(said)
        else:
            self._put(said)

    def _begin(self, content: bytes) -> None:
        """Have CONTENT be all there is."""
        self._disk.make_folders(self._folder)
        listing = Listing.of(self._disk, self._folder)
        number = max(listing.last, self._number) + 1
        data = head(SNAPSHOT, number) + frame(1, content) + frame(2, end())
        self._disk.write_atomically(f"{self._folder}/{SNAPSHOT_PREFIX}{number:08d}", data)
        self._file, self._number, self._dirty = None, number - 1, []
        self._is_told = True
        for path in listing.all():
            self._disk.delete(path)

    def _put(self, changes: bytes) -> None:
        size = FRAME_SIZE + len(changes)
        if self._file is None or self._at + size > self._file.size:
            self._number += 1
            path = f"{self._folder}/{JOURNAL_PREFIX}{self._number:08d}"
            room = max(_FILE_BYTES, HEAD_SIZE + size)
            self._file = self._disk.open_map(path, size=room, create=True)
            self._file.write(0, head(JOURNAL, self._number))
            self._at, self._frame = HEAD_SIZE, 1
            self._dirty += [self._file, FolderSync(self._disk, self._folder)]
        self._file.write(self._at, frame(self._frame, changes))
        self._at += size
        self._frame += 1
        if self._file not in self._dirty:
            self._dirty.append(self._file)

    def when_safe(self, done: Safe) -> None:
        dirty, self._dirty = self._dirty, []

        def synced(error: PocketMQError | None) -> None:
            self._store.call_owner(lambda: done(error))

        self._store.flusher.submit(FlushJob(dirty, synced))

    def close(self) -> None:
        if not self._is_told:
            return
        self._put(end())
        dirty, self._dirty = self._dirty, []
        if (error := sync_all(dirty)) is not None:
            raise error
        if self._file is not None:
            self._file.close()
            self._file = None


# ---------------------------------------------------------------- replicated progress of scheduled messages


TIMERS_FILE: Final = "timercheck"
_COUNTS: Final = "timingCount"
_BEGUN: Final = "begun"
_LAST: Final = EntryKey("progress", "last")


class TimersState:
    """What TIMERS have delivered, for followers."""

    file = TIMERS_FILE

    def __init__(self, timers: TimerStore) -> None:
        self._timers = timers
        self.on_change: list[Callable[[], None]] = []
        self._told: tuple[int, int] | None = None
        self._version = timers.metrics.version
        self._counts = timers.metrics.counts
        self._begun = dict(timers.begun)

    def take_changed(self) -> Iterable[EntryKey]:
        changed = []
        if self._timers.ring.is_open and self._timers.reached != self._told:
            self._told = self._timers.reached
            changed.append(_LAST)
        if self._timers.begun != self._begun:
            earlier, self._begun = self._begun, dict(self._timers.begun)
            changed += [
                EntryKey(_BEGUN, str(slot_ms))
                for slot_ms in earlier.keys() | self._begun.keys()
                if earlier.get(slot_ms) != self._begun.get(slot_ms)
            ]
        if self._timers.metrics.version is not self._version:
            self._version = self._timers.metrics.version
            before, self._counts = self._counts, self._timers.metrics.counts
            changed += [
                EntryKey(_COUNTS, topic)
                for topic in before.keys() | self._counts.keys()
                if before.get(topic) != self._counts.get(topic)
            ]
        return changed

    def keys(self) -> Iterable[EntryKey]:
        last = [] if self._told is None else [_LAST]
        begun = [EntryKey(_BEGUN, str(slot_ms)) for slot_ms in self._timers.begun]
        counts = [EntryKey(_COUNTS, topic) for topic in self._timers.metrics.counts]
        return last + begun + counts

    def entry(self, key: EntryKey) -> Any:
        if key.map == _BEGUN:
            return self._timers.begun.get(int(key.name))
        return self._told if key == _LAST else self._timers.metrics.counts.get(key.name, 0)


class _TimersSaid(NamedTuple):
    """The content of a frame: what to reach, which slots were started, and how many messages wait."""

    goal: tuple[int, int] | None
    begun: dict[int, tuple[int, int] | None]
    counts: dict[str, int]


class TimersSink:
    """The timers of STORE, which follow a master's; UNIX_MS is the wall clock."""

    file = TIMERS_FILE
    is_kept = False

    def __init__(self, store: MessageStore, unix_ms: Callable[[], int]) -> None:
        self._store = store
        self._unix_ms = unix_ms
        #: The read time to reach, and up to where to enter before.
        self._goal: tuple[int, int] | None = None
        self._counts: dict[str, int] = {}
        self._waiting: list[Safe] = []
        self._is_behind = False

    def read(self, content: bytes) -> _TimersSaid:
        document = read_state(content)
        if document.keys() - {"progress", _COUNTS, _BEGUN}:
            raise ValueError("it is no progress of timers")
        goal = None
        if "progress" in document:
            read_ms, queue_offset = document["progress"]["last"]
            goal = int(read_ms), int(queue_offset)
        begun: dict[int, tuple[int, int] | None] = {}
        for slot_ms, found in document.get(_BEGUN, {}).items():
            log_offset, due_ms = found or (0, 0)
            begun[int(slot_ms)] = (int(log_offset), int(due_ms)) if found else None
        counts = document.get(_COUNTS, {}).items()
        return _TimersSaid(goal, begun, {str(topic): int(count) for topic, count in counts})

    def apply(self, said: _TimersSaid, *, whole: bool, log_offset: int) -> None:
        self._goal = said.goal or self._goal
        self._counts |= said.counts
        begun = self._store.timers.begun
        if whole:
            begun.clear()
        for slot_ms, found in said.begun.items():
            if found is None:
                begun.pop(slot_ms, None)
            else:
                begun[slot_ms] = found

    def go_on(self, pages: int | None) -> None:
        """Enter at most so many PAGES (None: all) of what the master had entered, then be as far as it is.

        What the store cannot take is tried again with the next call.
        """
        if self._goal is None and not self._waiting:
            return
        try:
            if not self._reach(pages):
                return
        except PocketMQError as error:
            if not self._is_behind:
                logger.warning("scheduled messages wait to be entered reason=%s", error.message)
            self._is_behind = True
            return
        self._is_behind = False
        self._store.timers.metrics.replace(self._counts)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(None)

    def _reach(self, pages: int | None) -> bool:
        if self._goal is None:
            return True
        timers, (read_ms, queue_offset) = self._store.timers, self._goal
        while timers.queue_offset < queue_offset and pages != 0:
            if enter_page(self._store, self._unix_ms(), queue_offset) is None:
                break
            pages = None if pages is None else pages - 1
        # What retention took from here is not waited for.
        low, _ = self._store.queue_bounds(TIMER_TOPIC, 0)
        if max(timers.queue_offset, low) < queue_offset:
            return False
        timers.delivered_up_to(read_ms)
        self._goal = None
        return True

    def when_safe(self, done: Safe) -> None:
        # What a power cut takes of it is delivered again, as on a broker alone.
        self._waiting.append(done)

    def close(self) -> None:
        self.go_on(None)
