"""The files of a store, in a new folder: closed ones by hard link, those that a broker writes to as sparse copies.

What a broker changes in place: the last file of the log, of each queue, of the index and of the timer log, the wheel,
the checkpoints, the tables in config/. Every other file of a row is closed: it is read, and one day deleted, which
leaves the other name alone. Files of no use to a copy stay behind: `abort`, `lock`, the notes of a running broker.

The source may be live: a file that goes meanwhile is left out, and small files that claim something about others
(checkpoints, verified.json) are copied before what they tell of.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...proto.errors import InvalidArgument
from ...store.copies import copy_file, link_or_copy
from ...store.os_disk import OsDisk

#: Folders whose files are rows: all but the last of each are closed.
ROWS: Final = (
    "commitlog",
    "consumequeue",
    "batchconsumequeue",
    "consumequeue_ext",
    "index",
    "timerlog",
)
#: What a copy begins without; brokers make it again, or it tells of the running broker only.
_LEFT_OUT: Final = frozenset(
    {"abort", "abort.bak", "lock", "rocksdbstore", "pocketmq/delivered", "pocketmq/leases.json"}
)
#: The unit of `st_blocks`.
_BLOCK: Final = 512
#: What is never changed once it was written.
_SAVED: Final = "pocketmq/broken"


@dataclass(slots=True)
class Copied:
    """What a skeleton took over: numbers of files, and how many bytes they have on the device, without holes."""

    linked_files: int = 0
    linked_bytes: int = 0
    copied_files: int = 0
    copied_bytes: int = 0

    def link(self, source: str, target: str) -> None:
        """Take over the closed file SOURCE."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            size = _on_device(source)
            linked = link_or_copy(source, target)
        except FileNotFoundError:
            return  # A live broker's retention deleted it.
        if linked:
            self.linked_files += 1
            self.linked_bytes += size
        else:
            self.copied_files += 1
            self.copied_bytes += size

    def copy(self, source: str, target: str, size: int | None = None) -> None:
        """Take over the file SOURCE, or its first SIZE bytes, as a copy."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            copy_file(source, target, size, sync=False)
        except FileNotFoundError:
            return
        self.copied_files += 1
        self.copied_bytes += _on_device(target)


def _on_device(path: str) -> int:
    return os.stat(path).st_blocks * _BLOCK


def require_new_folder(path: str, source: str) -> None:
    """Raise InvalidArgument unless PATH can become a store: not there, or an empty folder, and not inside SOURCE."""
    inside = os.path.commonpath([os.path.realpath(path), os.path.realpath(source)])
    if inside == os.path.realpath(source):
        raise InvalidArgument(
            f"--to {path}: it lies inside the store {source}: name a folder outside of it",
            field="to",
            value=path,
        )
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path) or os.listdir(path):
        raise InvalidArgument(
            f"--to {path}: it is there already and not an empty folder: name a new one",
            field="to",
            value=path,
        )


def copy_small_files(
    source: str, target: str, copied: Copied, *, without: Sequence[str] = ()
) -> None:
    """Copy everything that is no row, but WITHOUT some: tables, checkpoints, the wheel, our own notes."""
    for path in sorted(_files(source, ""), key=lambda path: (path != "checkpoint", path)):
        if path in _LEFT_OUT or path.split("/")[0] in _LEFT_OUT or path.endswith(".tmp"):
            continue
        if path in without:
            continue
        origin, place = os.path.join(source, path), os.path.join(target, path)
        if path.startswith(_SAVED):
            copied.link(origin, place)
        else:
            copied.copy(origin, place)


def copy_rows(source: str, target: str, copied: Copied, only: Sequence[str] = ROWS) -> None:
    """Take over all rows, or ONLY some: closed files by link, the last file of each as a copy."""
    for row in only:
        for folder, names in row_folders(os.path.join(source, row)):
            place = os.path.join(target, os.path.relpath(folder, source))
            for name in names[:-1]:
                copied.link(os.path.join(folder, name), os.path.join(place, name))
            for name in names[-1:]:
                copied.copy(os.path.join(folder, name), os.path.join(place, name))


def row_folders(root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every folder under ROOT that holds files, with their names in order."""
    disk = OsDisk()
    folders = [root]
    while folders:
        folder = folders.pop()
        names = []
        for entry in disk.list(folder):
            if entry.is_folder:
                folders.append(os.path.join(folder, entry.name))
            else:
                names.append(entry.name)
        if names:
            yield folder, names


def _files(root: str, folder: str) -> Iterator[str]:
    """Yield the path, from ROOT on, of every file that is in no row."""
    for entry in OsDisk().list(os.path.join(root, folder) if folder else root):
        path = f"{folder}/{entry.name}" if folder else entry.name
        if not entry.is_folder:
            yield path
        elif path not in ROWS and path not in _LEFT_OUT:
            yield from _files(root, path)
