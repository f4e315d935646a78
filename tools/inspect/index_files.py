"""The index files of a store as they lie: header, slots and entries. Format: store/index_file.py.

The length of a file tells slots and entries together only; see `sizes.index_shape`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...store.apache.settings import ApacheSettings
from ...store.config import INDEX_ENTRY_SIZE, INDEX_HEADER_SIZE, INDEX_SLOT_SIZE
from ...store.index_file import ENTRIES, HEADER, IndexHeader
from ...store.listing import RowFile
from ...store.view import StoreView
from ..stores.sizes import index_shape


@dataclass(frozen=True, slots=True)
class IndexName:
    """A file in the index folder; NAME is the local time of its creation, yyyyMMddHHmmssSSS."""

    name: str
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """One opened file. ENTRIES are the places of all entries, COUNT is the number of the next; entry 0 is never used.

    IS_WHOLE: has it the length that its slots and entries need?
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
        """The number of the next entry, as far as the file reaches."""
        return max(1, min(self.header.next_entry, len(self.entries)))

    def first_from(self, offset: int, low: int = 1) -> int:
        """Return the number of the first entry from LOW on whose record stands at log OFFSET or behind it."""
        offsets = self.entries["log_offset"]
        return bisect_left(range(self.count), offset, low, key=lambda at: int(offsets[at]))


def index_names(files: StoreView) -> Iterator[IndexName]:
    """Yield the index files, the oldest first."""
    folder = files.path("index")
    for entry in files.disk.list(folder):
        if not entry.is_folder and entry.name.isdecimal():
            yield IndexName(entry.name, f"{folder}/{entry.name}", entry.size)


def shape_of(files: StoreView) -> tuple[int, int]:
    """Return the numbers of slots and entries of the store's index files."""
    shape = index_shape(files.disk, files.root, files.given)
    settings = ApacheSettings.of(files.given, **shape)
    return settings.index_slots, settings.index_entries


def open_index(files: StoreView, name: IndexName) -> IndexEntries | None:
    """Return the index file NAME; None if it is too short for a header."""
    view = files.view(RowFile(name.path, 0, name.size))
    if len(view) < INDEX_HEADER_SIZE:
        return None
    slot_count, entry_count = shape_of(files)
    header = IndexHeader(*HEADER.unpack_from(view))
    header.next_entry = max(1, header.next_entry)
    entries_at = INDEX_HEADER_SIZE + slot_count * INDEX_SLOT_SIZE
    slots_there = min(slot_count, (len(view) - INDEX_HEADER_SIZE) // INDEX_SLOT_SIZE)
    entries_there = max(0, min(entry_count, (len(view) - entries_at) // INDEX_ENTRY_SIZE))
    return IndexEntries(
        name=name,
        header=header,
        slot_count=slot_count,
        entry_count=entry_count,
        slots=np.frombuffer(view, ">i4", slots_there, INDEX_HEADER_SIZE),
        entries=np.frombuffer(view, ENTRIES, entries_there, min(entries_at, len(view))),
        is_whole=len(view) == entries_at + entry_count * INDEX_ENTRY_SIZE,
    )
