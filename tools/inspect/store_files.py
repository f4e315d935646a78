"""The files of a store as they lie on the disk: rows, names and lengths, opened for reading only.

Nothing is recovered and nothing is checked here: this is what the views of `pocketmq inspect` read, live stores
included. A row of files (log, queue, timer log) is named by the offset of each file's first byte; files that do not
belong there are told apart, not refused. A file that vanishes while it is looked at counts as empty.

Bounds: MAPS_MAX files are mapped at a time.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ...store.apache.settings import ApacheSettings
from ...store.checkpoint import Checkpoint
from ...store.disk import Disk, Entry
from ...store.mapped_file import NAME_DIGITS
from ..stores.scan.log_files import queue_folders

#: Addresses, not memory: the pages are the page cache's.
MAPS_MAX: Final = 1 << 14

#: Folder of queues, and the size of an entry in its files.
QUEUE_FOLDERS: Final = {"consumequeue": 20, "batchconsumequeue": 46}


@dataclass(frozen=True, slots=True)
class RowFile:
    """One file of a row; START is the offset of its first byte."""

    start: int
    size: int
    path: str

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)


@dataclass(frozen=True, slots=True)
class FileRow:
    """The files in FOLDER, in order; STRANGE are names that are no offsets."""

    folder: str
    files: tuple[RowFile, ...] = ()
    strange: tuple[str, ...] = ()

    @property
    def begin(self) -> int:
        """Offset of the first byte; 0 without files."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """Offset behind the last byte that the files have room for; 0 without files."""
        return self.files[-1].end if self.files else 0

    @property
    def usual_size(self) -> int:
        """The most frequent length; 0 without files."""
        sizes = [file.size for file in self.files]
        return max(sizes, key=sizes.count) if sizes else 0

    def at(self, offset: int) -> RowFile | None:
        """Return the file whose range holds OFFSET; None in a hole or outside."""
        place = bisect_right([file.start for file in self.files], offset) - 1
        return self.files[place] if place >= 0 and offset < self.files[place].end else None

    def holes(self) -> list[tuple[int, int]]:
        """Return the ranges [from, to) between two files that no file covers."""
        pairs = zip(self.files, self.files[1:], strict=False)
        return [(one.end, other.start) for one, other in pairs if one.end < other.start]


@dataclass(frozen=True, slots=True)
class QueueFolder:
    """The files of one queue; ENTRY_SIZE tells plain queues (20) from batch queues (46)."""

    topic: str
    queue_id: int
    path: str
    entry_size: int

    @property
    def is_batch(self) -> bool:
        return self.entry_size != QUEUE_FOLDERS["consumequeue"]


@dataclass(slots=True)
class StoreFiles:
    """The store in ROOT on DISK. GIVEN are settings by Apache's names, where somebody said some."""

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
        """Is there a file of that path below the root? A folder in its place is none."""
        path = self.path(*parts)
        return self.disk.exists(path) and not self.disk.is_folder(path)

    def checkpoint(self) -> Checkpoint:
        """Return what the checkpoint says; zeros if it is missing."""
        if not self.has("checkpoint"):
            return Checkpoint()
        return Checkpoint.read(self.disk, self.path("checkpoint"))

    def row(self, folder: str) -> FileRow:
        """Return the row in FOLDER as it is now."""
        entries = [entry for entry in self.disk.list(folder) if not entry.is_folder]
        named = [entry for entry in entries if _is_offset(entry)]
        files = (
            RowFile(int(entry.name), entry.size, posixpath.join(folder, entry.name))
            for entry in named
        )
        strange = tuple(entry.name for entry in entries if not _is_offset(entry))
        return FileRow(folder, tuple(sorted(files, key=lambda file: file.start)), strange)

    def log(self) -> FileRow:
        """Return the files of the commit log as they are now."""
        return self.row(self.path("commitlog"))

    def queues(self) -> Iterator[QueueFolder]:
        """Yield the folder of every queue, by topic and number."""
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
        """Return the bytes of FILE as far as it was long when it was listed; it shows what is written later."""
        key = (file.path, file.size)
        if key not in self._maps:
            while len(self._maps) >= MAPS_MAX:
                self._maps.popitem(last=False)
            self._maps[key] = self._mapped(file)
        self._maps.move_to_end(key)
        return self._maps[key]

    def _mapped(self, file: RowFile) -> memoryview:
        try:
            mapping = self.disk.open_map(file.path, writable=False)
        except FileNotFoundError:
            return memoryview(b"")  # A live broker's retention deleted it.
        view = mapping.view[: file.size]
        mapping.close()
        return view

    def data_end(self, file: RowFile) -> int:
        """Return a position in FILE behind which it is one hole; its length where the file system cannot tell."""
        try:
            mapping = self.disk.open_map(file.path, writable=False)
        except FileNotFoundError:
            return 0
        size = min(file.size, mapping.size)
        end = mapping.data_end(0, size)
        mapping.close()
        return end


def _is_offset(entry: Entry) -> bool:
    return len(entry.name) == NAME_DIGITS and entry.name.isascii() and entry.name.isdecimal()
