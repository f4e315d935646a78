"""The files of a row (commit log, one queue) as they lie on a disk: where each begins, and what is missing.

A file is named by the offset of its first byte, in twenty digits. Files are read with `Disk.read_at`, so that any disk
will do, a live broker may write meanwhile, and memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ....proto.errors import OffsetOutOfRange
from ....store.disk import Disk


@dataclass(frozen=True, slots=True)
class RowFile:
    """One file of SIZE bytes whose first byte stands at BASE of its row."""

    path: str
    base: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


#: A record, or a row of entries, never holds so many zeros; a file's tail does.
_PROBE_BYTES: Final = 8 << 20


def row_files(disk: Disk, folder: str) -> list[RowFile]:
    """Return the files in FOLDER that are named by an offset, in order; empty ones are left out.

    A listing may leave out a file that is made meanwhile, and have the one after it: where one is missing, the folder
    is listed again, until the same ones are.
    """
    files, missing = _listed(disk, folder), None
    while (now_missing := list(missing_between(files))) and now_missing != missing:
        files, missing = _listed(disk, folder), now_missing
    return files


def _listed(disk: Disk, folder: str) -> list[RowFile]:
    return [
        RowFile(f"{folder}/{entry.name}", int(entry.name), entry.size)
        for entry in disk.list(folder)
        if not entry.is_folder and entry.size and entry.name.isascii() and entry.name.isdigit()
    ]


def hole_from(disk: Disk, file: RowFile) -> int:
    """Return a position of the row from which on FILE is one hole; its end where a file system tells of none."""
    with_data = disk.open_map(file.path, writable=False)
    try:
        return file.base + with_data.data_end(0, file.size)
    finally:
        with_data.close()


def zeros_from(disk: Disk, file: RowFile) -> int:
    """Return a position of the row from which on FILE is surely zero: where its last hole begins, or some MiB behind.

    Where a file system tells of no holes, this is found by halving, with a look at some MiB each time.
    """
    hole = hole_from(disk, file)
    if hole < file.end or file.size <= _PROBE_BYTES:
        return hole
    low, high = 0, -(-file.size // _PROBE_BYTES)
    while low < high:
        middle = (low + high) // 2
        data = disk.read_at(file.path, middle * _PROBE_BYTES, _PROBE_BYTES)
        if data.count(0) == len(data):
            high = middle
        else:
            low = middle + 1
    return file.base + min(file.size, low * _PROBE_BYTES)


def missing_between(files: Sequence[RowFile]) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of each part of the row that lies between files and in none."""
    for before, after in pairwise(files):
        if before.end < after.base:
            yield before.end, after.base


def require_joined(files: Sequence[RowFile], what: str) -> None:
    """Raise OffsetOutOfRange, which names the first gap, unless FILES, of the row WHAT, follow each other."""
    for start, end in missing_between(files):
        raise OffsetOutOfRange(
            f"{what}: bytes {start:,} to {end:,} are missing: no file between the others holds them; "
            "with failOnDataLoss=false what is there is read",
            field="failOnDataLoss",
            start=start,
            end=end,
        )


def queue_folders(
    disk: Disk, root: str, topics: Collection[str] | None = None
) -> Iterator[tuple[str, int, str]]:
    """Yield (topic, queue id, folder) of every queue below ROOT (`consumequeue`, `batchconsumequeue`), of TOPICS alone.

    Queues come in the order of their numbers.
    """
    for topic in disk.list(root):
        if topic.is_folder and (topics is None or topic.name in topics):
            folder = f"{root}/{topic.name}"
            ids = [int(one.name) for one in disk.list(folder) if one.is_folder and _is_id(one.name)]
            for queue_id in sorted(ids):
                yield topic.name, queue_id, f"{folder}/{queue_id}"


def _is_id(name: str) -> bool:
    """Is NAME a number as Java writes it?"""
    return name.isascii() and name.isdigit() and str(int(name)) == name
