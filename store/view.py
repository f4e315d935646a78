"""Reads the files of a store unchanged: without writing a byte, without recovery, and without checks.

The store may be live, stopped, copied or damaged, of PocketMQ or Apache RocketMQ. opened_store.py shows it as a broker
would recover it. One thread uses a view.
"""

from __future__ import annotations

import posixpath
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from .apache.settings import ApacheSettings
from .checkpoints import Checkpoint, read_checkpoint
from .disk import Disk
from .format.queues import BATCH_ENTRY, ENTRY
from .listing import FileRow, RowFile, queue_folders
from .open_files import OPEN_FILES

#: Files mapped at a time, if the process may open so many. Maps take address space, not memory, because their pages are
#: in the page cache.
MAPS_MAX: Final = 1 << 14
#: Folder of queues, and the size of an entry in its files.
QUEUE_FOLDERS: Final = {"consumequeue": ENTRY.size, "batchconsumequeue": BATCH_ENTRY.size}


@dataclass(frozen=True, slots=True)
class QueueFolder:
    """The files of one queue; ENTRY_SIZE distinguishes plain queues (20) from batch queues (46)."""

    topic: str
    queue_id: int
    path: str
    entry_size: int

    @property
    def is_batch(self) -> bool:
        return self.entry_size != QUEUE_FOLDERS["consumequeue"]


@dataclass(slots=True)
class StoreView:
    """The store in ROOT on DISK with its present files. GIVEN are settings by RocketMQ's names, if the caller has any.

    Nothing is recovered and nothing is checked: files that do not belong to a sequence are listed separately, not
    refused. A file that is deleted while it is read counts as empty. Up to MAPS_MAX files are mapped at a time.
    """

    disk: Disk
    root: str
    given: dict[str, str] = field(default_factory=dict)
    settings: ApacheSettings = field(init=False)
    _maps: OrderedDict[tuple[str, int], memoryview] = field(init=False, default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.settings = ApacheSettings.of(self.given)

    def path(self, *parts: str) -> str:
        """Return the path of PARTS below the root."""
        return posixpath.join(self.root, *parts)

    def has(self, *parts: str) -> bool:
        """Is there a file (not a folder) of that path below the root?"""
        path = self.path(*parts)
        return self.disk.exists(path) and not self.disk.is_folder(path)

    def checkpoint(self) -> Checkpoint:
        """Return the content of the checkpoint; zeros if it is missing."""
        if not self.has("checkpoint"):
            return Checkpoint()
        return read_checkpoint(self.disk, self.path("checkpoint"))

    def row(self, folder: str) -> FileRow:
        """Return the present files of the sequence in FOLDER."""
        return FileRow.listed(self.disk, folder)

    def log(self) -> FileRow:
        """Return the present files of the commit log."""
        return self.row(self.path("commitlog"))

    def queues(self) -> Iterator[QueueFolder]:
        """Yield the folder of each queue, by topic and number."""
        for folder, entry_size in QUEUE_FOLDERS.items():
            for topic, queue_id, path in queue_folders(self.disk, self.path(folder)):
                yield QueueFolder(topic, queue_id, path, entry_size)

    def queue(self, topic: str, queue_id: int) -> QueueFolder | None:
        """Return the folder of queue QUEUE_ID of TOPIC; None if there is none."""
        if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
            return None
        for folder, entry_size in QUEUE_FOLDERS.items():
            path = self.path(folder, topic, str(queue_id))
            if self.disk.is_folder(path):
                return QueueFolder(topic, queue_id, path, entry_size)
        return None

    def view(self, file: RowFile) -> memoryview:
        """Return the bytes of FILE up to its length when it was listed. Later writes are visible."""
        key = (file.path, file.size)
        if key not in self._maps:
            while len(self._maps) >= min(MAPS_MAX, OPEN_FILES.files_max):
                self._maps.popitem(last=False)
            self._maps[key] = self._mapped(file)
        self._maps.move_to_end(key)
        return self._maps[key]

    def _mapped(self, file: RowFile) -> memoryview:
        try:
            mapping = self.disk.open_map(file.path, writable=False)
        except FileNotFoundError:
            return memoryview(b"")  # The retention of a running broker deleted it.
        view = mapping.view[: file.size]
        mapping.close()
        return view

    def data_end(self, file: RowFile) -> int:
        """Return a position in FILE after which it is one hole; its length if the file system does not report holes."""
        try:
            mapping = self.disk.open_map(file.path, writable=False)
        except FileNotFoundError:
            return 0
        size = min(file.size, mapping.size)
        end = mapping.data_end(0, size)
        mapping.close()
        return end
