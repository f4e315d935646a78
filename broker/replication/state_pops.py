"""Replicated deliveries: the journal of messages in flight (pop).

A full frame is the present content of the journal (pop/journal.py). A diff has what was written since, as changes of
pop/journal_format.py. The follower stores them in the same files: a full frame as a snapshot, diffs as frames of a
journal. So a new master finds them like its own after a kill; deliveries that are missing are repeated. After DIFFS_MIN
bytes, or DIFFS_RATIO times the last full frame, a full frame is sent again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from ...proto.errors import PocketMQError
from ...store.disk import Mapping
from ...store.files import FolderSync, Syncable
from ...store.flush import FlushJob, sync_all
from ...store.message_store import MessageStore
from ..offsets import Safe
from ..pop.journal import JOURNAL_PREFIX, SNAPSHOT_PREFIX, Journal, Listing, folder_in
from ..pop.journal_format import FRAME_SIZE, HEAD_SIZE, JOURNAL, SNAPSHOT, Decoder, end, frame, head

logger = logging.getLogger(__name__)

POPS_FILE: Final = "pop"
DIFFS_MIN: Final = 8 << 20
DIFFS_RATIO: Final = 4
_FILE_BYTES: Final = 4 << 20


class PopsPart:
    """The deliveries in JOURNAL, for followers."""

    file = POPS_FILE
    is_kept = False

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.on_change: list[Callable[[], None]] = []
        self.count = 1
        self._generation = journal.generation
        #: Diffs with their counts; those up to _FLOOR were dropped.
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
        #: Whether the folder has exactly what a master sent.
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
        """Replace everything with CONTENT."""
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
