"""Complete index files as columns. Format: format/index.py."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .format.index import HEADER_SIZE, IndexHeader
from .index_view import shape_of
from .listing import RowFile
from .view import StoreView


@dataclass(frozen=True, slots=True)
class IndexName:
    """A file in the index folder; NAME is the local time of its creation, yyyyMMddHHmmssSSS."""

    name: str
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """One opened file. ENTRIES are the places of all entries, COUNT is the number of the next; entry 0 is never used.

    IS_WHOLE: does it have the length that its slots and entries need?
    """

    name: IndexName
    header: IndexHeader
    slot_count: int
    entry_count: int
    slots: NDArray[Any]
    entries: NDArray[Any]
    is_whole: bool

    @property
    def count(self) -> int:
        """The number of the next entry, limited by the length of the file."""
        return max(1, min(self.header.next_entry, len(self.entries)))

    def first_from(self, offset: int, low: int = 1) -> int:
        """Return the number of the first entry from LOW on whose record is at log OFFSET or after it."""
        offsets = self.entries["log_offset"]
        return bisect_left(range(self.count), offset, low, key=lambda at: int(offsets[at]))


def index_names(files: StoreView) -> Iterator[IndexName]:
    """Yield the index files, the oldest first."""
    folder = files.path("index")
    for entry in files.disk.list(folder):
        if not entry.is_folder and entry.name.isdecimal():
            yield IndexName(entry.name, f"{folder}/{entry.name}", entry.size)


def open_index(files: StoreView, name: IndexName) -> IndexEntries | None:
    """Return the index file NAME; None if it is too short for a header."""
    view = files.view(RowFile(name.path, 0, name.size))
    if len(view) < HEADER_SIZE:
        return None
    shape = shape_of(files.disk, files.root, files.given)
    header = IndexHeader.parse(view)
    header.next_entry = max(1, header.next_entry)
    return IndexEntries(
        name=name,
        header=header,
        slot_count=shape.slots,
        entry_count=shape.entries,
        slots=shape.slots_in(view),
        entries=shape.entries_in(view),
        is_whole=len(view) == shape.file_size,
    )
