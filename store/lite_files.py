"""Writes new entries of lite queues to their files, in a flushing thread.

A job contains copies of the new entries of all queues that have some. Files have their full length from the start,
because a RocketMQ broker refuses others, and no descriptor is kept. The owner notes what a finished job has written.
A full disk fails nothing: the entries stay in memory, and the next job tries again.
"""

from __future__ import annotations

import logging
import os
from typing import Final, NamedTuple

from ..proto.errors import StoreFull
from ..proto.facts import Facts
from .disk import Disk, Mapping
from .files import SYNCED_ONE_BY_ONE
from .format.queues import ENTRY, PRE_BLANK_SIZE
from .lite_queues import LiteEntry, LiteQueue, LiteQueues

logger = logging.getLogger(__name__)
_BLANK: Final = ENTRY.pack(0, PRE_BLANK_SIZE, 0)


class _NewEntries(NamedTuple):
    """ENTRIES of QUEUE from number FIRST on, as of ERA."""

    queue: LiteQueue
    era: int
    first: int
    entries: list[LiteEntry]
    #: Files may contain old entries up to this number.
    used_to: int
    #: New files come first, with the messages from this number on; None: the files stay.
    new_from: int | None


class LiteFlush:
    """One job: the entries of all queues of LITE that are not in files yet."""

    def __init__(self, disk: Disk, lite: LiteQueues) -> None:
        self._disk = disk
        self._lite = lite
        self._parts = [_new_entries(queue) for queue in lite.touched]
        lite.touched.clear()
        self._is_done = False
        self._folders: dict[str, None] = {}

    def sync(self) -> None:
        """Write all entries, and sync the files."""
        try:
            self._write()
        except (StoreFull, FileNotFoundError) as error:  # A folder may be deleted meanwhile.
            logger.warning("entries of lite queues not written %s", Facts(reason=str(error)))
        else:
            self._is_done = True

    @property
    def is_done(self) -> bool:
        """Is everything on disk?"""
        return self._is_done

    def note(self) -> None:
        """Note in the queues what is in their files, or that it still has to be written."""
        lite = self._lite
        for part in self._parts:
            if not lite.is_current(part.queue):
                if self._is_done:  # It was deleted while the job wrote its file.
                    self._disk.delete_folder(os.path.dirname(lite.folder_of(part.queue.topic)))
            elif self._is_done:
                part.queue.note_written(part.era, len(part.entries))
            else:
                lite.touch(part.queue)

    def _write(self) -> None:
        is_many = len(self._parts) > SYNCED_ONE_BY_ONE
        for part in self._parts:
            self._write_part(part, syncs=not is_many)
        if is_many and not self._disk.sync_everything(self._lite.folder):
            for part in self._parts:
                self._write_part(part, syncs=True)
        elif is_many:
            return
        for folder in self._folders:
            self._disk.sync_folder(folder)

    def _write_part(self, part: _NewEntries, *, syncs: bool) -> None:
        lite, size = self._lite, self._lite.file_size
        data = b"".join([ENTRY.pack(*entry) for entry in part.entries])
        first = part.first
        if part.new_from is not None:
            self._disk.delete_folder(lite.folder_of(part.queue.topic))
            blanks = part.new_from % (size // ENTRY.size)
            first, data = part.new_from - blanks, _BLANK * blanks + data
        data += bytes(max(0, part.used_to * ENTRY.size - first * ENTRY.size - len(data)))
        at = first * ENTRY.size
        while data:
            start = at // size * size
            piece = data[: start + size - at]
            mapping = self._open(part.queue.topic, start)
            try:
                mapping.write(at - start, piece)
                if syncs:
                    mapping.sync()
            finally:
                mapping.close()
            at, data = at + len(piece), data[len(piece) :]

    def _open(self, topic: str, start: int) -> Mapping:
        disk, lite = self._disk, self._lite
        path = lite.path_of(topic, start)
        if not disk.exists(path):
            folder = lite.folder_of(topic)
            disk.make_folders(folder, durable=False)
            parents = (folder, os.path.dirname(folder), lite.folder, os.path.dirname(lite.folder))
            self._folders.update(dict.fromkeys(parents))
        return disk.open_map(path, size=lite.file_size, create=True)


def _new_entries(queue: LiteQueue) -> _NewEntries:
    return _NewEntries(
        queue,
        queue.era,
        queue.written,
        list(queue.tail),
        queue.used_to,
        queue.written if queue.is_rewritten else None,
    )
