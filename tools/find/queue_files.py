"""The queues of a store as their files have them, read at any place, without recovery, however damaged.

One look-up costs one listing and a few pages: one page by queue offset, one per halving by time.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from ...store.disk import Disk
from ...store.format.queues import PRE_BLANK_SIZE, entry_format
from ...store.listing import PagedRow
from ...store.queue_extension import QueueExtension
from .files import LogFiles


class QueueEntry(NamedTuple):
    """One entry: queue offset of its (first) message, place and size of the record, tags code, number of messages."""

    queue_offset: int
    log_offset: int
    size: int
    tags_code: int
    messages: int = 1


class QueueFiles(PagedRow):
    """Queue QUEUE of TOPIC in the files of FOLDER. Reads only."""

    def __init__(
        self, disk: Disk, folder: str, topic: str, queue: int, *, is_batch: bool, mapped: bool
    ) -> None:
        super().__init__(disk, folder, mapped=mapped)
        self.topic = topic
        self.queue = queue
        self.is_batch = is_batch
        self._format = entry_format(is_batch=is_batch)
        self._entry_size = self._format.size
        self._extension = QueueExtension(disk, folder)

    def _at(self, place: int) -> QueueEntry | None:
        """Return entry PLACE of the row; None where none was written, or its file is missing."""
        byte = place * self._entry_size
        file = self.file_at(byte) if byte >= 0 else None
        if file is None:
            return None
        fields = self._format.read(file.read(byte - file.start, self._entry_size))
        if self.is_batch:
            log_offset, size, code, _, base, count, _, _ = fields
            found = QueueEntry(base, log_offset, size, code, count)
        else:
            found = QueueEntry(place, *fields)
        return found if found.size > 0 and found.log_offset >= 0 else None

    @property
    def _first_place(self) -> int:
        return self.begin // self._entry_size

    @cached_property
    def _end_place(self) -> int:
        """The place after the last entry: the end of the newest file that has any."""
        for file in reversed(self.files):
            first, last = file.start // self._entry_size, file.end // self._entry_size
            if self._at(first) is not None:
                return bisect_left(range(last), True, lo=first, key=lambda at: self._at(at) is None)
        return self._first_place

    def _first_from(self, wanted: Callable[[QueueEntry], bool]) -> int:
        """Return the first place whose entry is WANTED, which once it is stays so; the end if there is none."""

        def there(place: int) -> bool:
            entry = self._at(place)
            return entry is not None and wanted(entry)

        return bisect_left(range(self._end_place), True, lo=self._first_place, key=there)

    def min_offset(self, log: LogFiles) -> int:
        """Return the queue offset of the first message that LOG still has; the end if there is none."""
        entry = self._at(self._first_from(lambda entry: _is_in(entry, log)))
        return self.max_offset if entry is None else entry.queue_offset

    @property
    def max_offset(self) -> int:
        """The queue offset of the next message to come."""
        last = self._at(self._end_place - 1)
        if last is not None:
            return last.queue_offset + last.messages
        return 0 if self.is_batch else self._end_place

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return the entry that holds QUEUE_OFFSET; None if the files have none."""
        if not self.is_batch:
            found = self._at(queue_offset) if queue_offset >= 0 else None
            if found is not None:
                (code,) = self._extension.resolved(np.array([found.tags_code], np.int64)).tolist()
                found = found._replace(tags_code=code)
            return found
        behind = self._first_from(lambda entry: entry.queue_offset > queue_offset)
        found = self._at(behind - 1)
        if found is None or not 0 <= queue_offset - found.queue_offset < found.messages:
            return None
        return found

    def entries_from(self, queue_offset: int) -> Iterator[QueueEntry]:
        """Yield the entries from QUEUE_OFFSET on."""
        place = queue_offset
        if self.is_batch:
            place = self._first_from(lambda one: one.queue_offset + one.messages > queue_offset)
        for at in range(max(place, self._first_place), self._end_place):
            entry = self._at(at)
            if entry is not None and entry.size != PRE_BLANK_SIZE:
                yield entry

    def offset_at_time(self, time_ms: int, log: LogFiles) -> int:
        """Return the queue offset of the first message stored at TIME_MS or later; the end if there is none."""

        def late(entry: QueueEntry) -> bool:
            if not _is_in(entry, log):
                return False
            stored_ms = log.store_time_ms(entry.log_offset)
            return stored_ms is None or stored_ms >= time_ms

        entry = self._at(self._first_from(late))
        return self.max_offset if entry is None else entry.queue_offset


def _is_in(entry: QueueEntry, log: LogFiles) -> bool:
    return entry.size != PRE_BLANK_SIZE and entry.log_offset >= log.begin


class Queues:
    """All queues in the store at ROOT, found by listing folders."""

    def __init__(self, disk: Disk, root: str, *, mapped: bool = True) -> None:
        self._disk = disk
        self._root = root
        self._mapped = mapped

    @cached_property
    def topics(self) -> list[str]:
        """The names of all topics that have queues."""
        return sorted(
            {
                entry.name
                for kind in _FOLDERS
                for entry in self._disk.list(posixpath.join(self._root, kind))
                if entry.is_folder
            }
        )

    def of_topic(self, topic: str) -> list[QueueFiles]:
        """Return the queues of TOPIC by number; none for a topic without."""
        found = []
        for kind, is_batch in _FOLDERS.items():
            folder = posixpath.join(self._root, kind, topic)
            for entry in self._disk.list(folder) if _is_plain(topic) else []:
                if entry.is_folder and entry.name.isascii() and entry.name.isdigit():
                    path = posixpath.join(folder, entry.name)
                    number, mapped = int(entry.name), self._mapped
                    found.append(
                        QueueFiles(
                            self._disk, path, topic, number, is_batch=is_batch, mapped=mapped
                        )
                    )
        return sorted(found, key=lambda queue: queue.queue)

    def get(self, topic: str, number: int) -> QueueFiles | None:
        """Return queue NUMBER of TOPIC; None if the store has none."""
        return next((queue for queue in self.of_topic(topic) if queue.queue == number), None)


_FOLDERS: Final = {"consumequeue": False, "batchconsumequeue": True}


def _is_plain(topic: str) -> bool:
    """Is TOPIC one name, and no way to another folder?"""
    return bool(topic) and "/" not in topic and topic not in (".", "..")
