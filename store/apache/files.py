"""A sequence of mapped files as in RocketMQ's MappedFileQueue, with its write positions and its rules at loading.

Nothing is zeroed after a cut: stale bytes stay, and later steps of the recovery may read them, as in Java.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from ..disk import Disk, Mapping
from ..files import file_name

_JAVA_LONG = re.compile(r"[+-]?[0-9]+")


class StartRefused(Exception):
    """Apache RocketMQ's broker does not start on this store.

    text: the output of its launcher.  reason: the fault and the remedy, with the file; "" if text is enough.
    """

    def __init__(
        self, text: str = "BrokerController.initialize returned false", *, reason: str = ""
    ) -> None:
        super().__init__(text)
        self.text = text
        self.reason = reason


def java_long(text: str) -> int:
    """Return the result of Long.parseLong; ValueError where it throws."""
    if not _JAVA_LONG.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(f'For input string: "{text}"')
    return int(text)


def remainder(value: int, divisor: int) -> int:
    """Return VALUE % DIVISOR as in Java: its sign is that of VALUE."""
    return value % divisor if value >= 0 else -(-value % divisor)


@dataclass(slots=True)
class JavaFile:
    """One file of the sequence; WROTE is its write position."""

    path: str
    start: int
    size: int
    mapping: Mapping
    wrote: int
    first_in_queue: bool = False

    @property
    def view(self) -> memoryview:
        """The complete file."""
        return self.mapping.view

    def select(self, at: int, size: int | None = None) -> memoryview | None:
        """Return the written bytes from AT on (SIZE of them); None if selectMappedBuffer returns null.

        A SIZE that is negative or overflows a Java int is a ValueError (in Java: IllegalArgumentException).
        """
        if size is None:
            return self.view[at : self.wrote] if 0 <= at < self.wrote else None
        if _int(at + size) > self.wrote:
            return None
        if not (0 <= at <= self.size and 0 <= size <= self.size - at):
            raise ValueError(f"limit {size} at {at}")
        return self.view[at : at + size]

    def append(self, data: bytes) -> bool:
        """Write DATA at the write position; False if it does not fit."""
        if self.wrote + len(data) > self.size:
            return False
        self.mapping.write(self.wrote, data)
        self.wrote += len(data)
        return True


def _int(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


class JavaFiles:
    """The sequence of files in FOLDER."""

    def __init__(self, disk: Disk, folder: str, size: int) -> None:
        self.disk = disk
        self.folder = folder
        self.size = size
        self.files: list[JavaFile] = []

    def load(self) -> bool:
        """Open the files; return False if RocketMQ's load does. A name that is not a number is a ValueError."""
        entries = self.disk.list(self.folder)
        for number, entry in enumerate(entries):
            path = posixpath.join(self.folder, entry.name)
            if entry.is_folder:
                continue
            if entry.size == 0 and number == len(entries) - 1:
                self.disk.delete(path)
                continue
            if entry.size != self.size:
                return False
            self.files.append(self._open(path, java_long(entry.name), wrote=self.size))
        return True

    def _open(self, path: str, start: int, *, wrote: int) -> JavaFile:
        mapping = self.disk.open_map(path, size=self.size, create=True)
        return JavaFile(path, start, self.size, mapping, wrote)

    @property
    def first(self) -> JavaFile | None:
        """The oldest file."""
        return self.files[0] if self.files else None

    @property
    def last(self) -> JavaFile | None:
        """The newest file."""
        return self.files[-1] if self.files else None

    @property
    def max_offset(self) -> int:
        """Return the end of the written part."""
        return self.files[-1].start + self.files[-1].wrote if self.files else 0

    def find(self, offset: int, *, first_if_none: bool = False) -> JavaFile | None:
        """Return the file with OFFSET."""
        if not self.files:
            return None
        for file in self._candidates(offset):
            if file.start <= offset < file.start + self.size:
                return file
        return self.files[0] if first_if_none else None

    def _candidates(self, offset: int) -> list[JavaFile]:
        if not self.files[0].start <= offset < self.files[-1].start + self.size:
            return []
        index = offset // self.size - self.files[0].start // self.size
        guess = self.files[index : index + 1] if index >= 0 else []
        if guess and guess[0].start <= offset < guess[0].start + self.size:
            return guess
        return self.files

    def data(self, offset: int, *, first_if_none: bool = False) -> memoryview | None:
        """Return all written bytes from OFFSET to the end of its file."""
        file = self.find(offset, first_if_none=first_if_none)
        return None if file is None else file.select(remainder(offset, self.size))

    def last_for_write(self, start_offset: int) -> JavaFile:
        """Return the file to append to; create it if needed. An empty sequence starts with the file of START_OFFSET."""
        if self.files and self.files[-1].wrote < self.size:
            return self.files[-1]
        start = start_offset - remainder(start_offset, self.size)
        if self.files:
            start = self.files[-1].start + self.size
        self.disk.make_folders(self.folder)
        file = self._open(posixpath.join(self.folder, file_name(start)), start, wrote=0)
        file.first_in_queue = not self.files
        self.files.append(file)
        return file

    def truncate(self, offset: int) -> None:
        """Make OFFSET the end: later files are deleted, its file is cut, earlier files are not changed."""
        kept = []
        for file in self.files:
            if file.start + self.size > offset and offset < file.start:
                self.disk.delete(file.path)
                continue
            if file.start + self.size > offset:
                file.wrote = remainder(offset, self.size)
            kept.append(file)
        self.files = kept

    def delete_last(self) -> None:
        """Delete the newest file."""
        self.disk.delete(self.files.pop().path)

    def destroy(self) -> None:
        """Delete all files, and the folder if it is empty."""
        for file in self.files:
            self.disk.delete(file.path)
        self.files.clear()
        if self.disk.is_folder(self.folder) and not self.disk.list(self.folder):
            self.disk.delete_folder(self.folder)

    def roll_next(self, offset: int) -> int:
        """Return the start of the next file after that of OFFSET."""
        return offset + self.size - remainder(offset, self.size)
