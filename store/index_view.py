"""Look-ups of single keys in the index files, without changing them: `IndexFiles`.

The result for a key is a sequence of candidates, newest first, and the time range that the files do not cover. A file
is mapped, not read: a look-up touches one slot and the entries of its chain, one page each or less. Entries have a hash
of 31 bits and a time in seconds, so the caller compares candidates with the records. A chain runs from newer to older
entries. A link that does not lead to an older entry is damage, and ends the chain.

The length of a file does not determine slots and entries; see `index_shape`. Format: format/index.py.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from .apache.settings import ApacheSettings
from .disk import Disk
from .file_sizes import index_shape
from .format.index import ENTRY, HEADER_SIZE, SLOT, IndexHeader, IndexShape, key_hash
from .listing import FilePages


class Candidate(NamedTuple):
    """A record that may have the key: its log offset, its store time (rounded down to a second), and the file."""

    log_offset: int
    time_ms: int
    file: str


class PagedIndex:
    """One index file of SHAPE, for look-ups of single keys."""

    def __init__(self, pages: FilePages, shape: IndexShape) -> None:
        self.path = pages.path
        self.header = IndexHeader.parse(pages.read(0, HEADER_SIZE))
        self._pages = pages
        self._shape = shape

    @property
    def used(self) -> int:
        """The number of keys in the file."""
        return max(0, min(self.header.next_entry, self._shape.entries) - 1)

    @property
    def is_short(self) -> bool:
        return self._pages.size < self._shape.file_size

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        """Return key hash, log offset, seconds and previous entry of entry NUMBER."""
        key, log_offset, seconds, previous = ENTRY.read(
            self._pages.read(self._shape.entry_at(number), ENTRY.size)
        )
        return key, log_offset, seconds, previous

    @cached_property
    def contradiction(self) -> str | None:
        """The fault of the file; None if a check of three places finds none."""
        header = self.header
        if self.is_short:
            return "is truncated"
        if header.next_entry > self._shape.entries:
            return f"has {header.next_entry - 1:,} keys, but space for {self._shape.entries - 1:,}"
        if not 0 <= header.begin_ms <= header.end_ms:
            return "ends before it begins"
        if self.used and self._entry(self.used)[1] != header.end_log_offset:
            return (
                "has another end than its newest key (or other sizes: give them with --broker-conf)"
            )
        return None

    def follow(self, wanted: int, begin_ms: int, end_ms: int) -> Iterator[Candidate]:
        """Yield the entries with the hash WANTED in the time range, newest first."""
        (number,) = SLOT.read(self._pages.read(self._shape.slot_at(wanted), SLOT.size))
        newer, first_ms = self._shape.entries, self.header.begin_ms
        while 0 < number < newer:
            entry_hash, log_offset, seconds, previous = self._entry(number)
            time_ms = first_ms + seconds * 1000
            if seconds < 0 or time_ms < begin_ms:
                return
            if entry_hash == wanted and time_ms <= end_ms:
                yield Candidate(log_offset, time_ms, self.path)
            number, newer = previous, number


class IndexFiles:
    """The index files of the store in ROOT; GIVEN settings, or their lengths, determine their shape. Reads only."""

    def __init__(
        self, disk: Disk, root: str, given: Mapping[str, str], *, mapped: bool = True
    ) -> None:
        self.folder = posixpath.join(root, "index")
        self._root = root
        self._disk = disk
        self._given = given
        self._mapped = mapped

    @cached_property
    def files(self) -> list[PagedIndex]:
        """The files, newest first."""
        listed = [
            entry
            for entry in self._disk.list(self.folder)
            if not entry.is_folder and entry.name.isascii() and entry.name.isdigit()
        ]
        shape = shape_of(self._disk, self._root, self._given)
        return [
            PagedIndex(
                FilePages(
                    self._disk,
                    posixpath.join(self.folder, entry.name),
                    entry.size,
                    mapped=self._mapped,
                ),
                shape,
            )
            for entry in reversed(listed)
        ]

    @property
    def problems(self) -> list[str]:
        """Faults of single files, one sentence each."""
        return [
            f"{file.path} {file.contradiction}: its keys are not found"
            for file in self.files
            if file.contradiction is not None
        ]

    def candidates(self, text: str, begin_ms: int, end_ms: int) -> Iterator[Candidate]:
        """Yield the candidates for TEXT (see `index_key`) stored from BEGIN_MS to END_MS, some more, newest first."""
        wanted = key_hash(text)
        for place, file in enumerate(self.files):
            header = file.header
            # The first entry of a file counts its seconds from the end of the previous file.
            before = self.files[place + 1].header.end_ms if place + 1 < len(self.files) else 0
            slack_ms = max(0, header.begin_ms - before) if before else 0
            apart = header.begin_ms > end_ms or header.end_ms + slack_ms < begin_ms
            if not apart or file.contradiction is not None:
                yield from file.follow(wanted, begin_ms - 1000, end_ms + slack_ms)

    @property
    def end_log_offset(self) -> int:
        """Log offset of the newest record in the index; 0 for an empty one."""
        return next((file.header.end_log_offset for file in self._sound), 0)

    @property
    def begin(self) -> tuple[int, int] | None:
        """Log offset and store time of the oldest record in the index; None for an empty one."""
        sound = self._sound
        return (sound[-1].header.begin_log_offset, sound[-1].header.begin_ms) if sound else None

    @property
    def _sound(self) -> list[PagedIndex]:
        return [file for file in self.files if file.used and file.contradiction is None]


def shape_of(disk: Disk, root: str, given: Mapping[str, str]) -> IndexShape:
    settings = ApacheSettings.of(given, **index_shape(disk, root, given))
    return IndexShape(settings.index_slots, settings.index_entries)
