"""Restores the length of files that were cut short, before the store opens them.

The restored part contains zeros. Recovery finds what is lost and derives it again from the log, if possible. RocketMQ's
broker refuses to start instead.

A file counts as cut if it is shorter than the file size in the settings. The store may have been written with smaller
files, so one of these must hold: the store has PocketMQ's own folder, another file in the same folder has the size of
the settings, or the file is empty.

A power cut leaves new files empty: their names are on disk, their lengths are not. Loading deletes empty files at the
end of a folder.
"""

from __future__ import annotations

import logging

from ..proto.facts import Facts
from .config import StoreConfig
from .consume_queues import queue_folders
from .disk import Disk, Entry

logger = logging.getLogger(__name__)


def restore_cut_files(
    disk: Disk, config: StoreConfig, folder: str, size: int
) -> list[tuple[str, int]]:
    """Restore cut files of FOLDER to SIZE; return path and found length of each."""
    entries = _row_of(disk, folder)
    return _lengthen(
        disk, folder, entries, size, is_size_known=_is_known(disk, config, entries, size)
    )


def _row_of(disk: Disk, folder: str) -> list[Entry]:
    return [entry for entry in disk.list(folder) if entry.name.isdecimal() and not entry.is_folder]


def _is_known(disk: Disk, config: StoreConfig, entries: list[Entry], size: int) -> bool:
    """Is SIZE certainly the size of the files ENTRIES?"""
    return disk.is_folder(config.own_folder) or any(entry.size == size for entry in entries)


def _lengthen(
    disk: Disk, folder: str, entries: list[Entry], size: int, *, is_size_known: bool
) -> list[tuple[str, int]]:
    """Lengthen each of ENTRIES, the files of FOLDER, to SIZE; return path and found length of each.

    It skips empty files at the end, except a first file that does not begin at 0: its name is needed.
    """
    starts = [int(entry.name) for entry in entries]
    ends = [*starts[1:], starts[-1] + size] if starts else []
    found = []
    for index, (entry, start, end) in enumerate(zip(entries, starts, ends, strict=True)):
        is_new = not any(one.size for one in entries[index:]) and (index > 0 or start == 0)
        is_short = entry.size < size and (is_size_known or entry.size == 0)
        if is_short and not is_new and start % size == 0 and end >= start + size:
            path = f"{folder}/{entry.name}"
            logger.warning("file was cut %s", Facts(path=path, size=entry.size))
            disk.truncate(path, size)
            found.append((path, entry.size))
    return found


def restore_cut_queues(disk: Disk, config: StoreConfig) -> list[tuple[str, int]]:
    kinds = (
        (config.queue_folder, config.queue_file_size_bytes),
        (config.batch_queue_folder, config.batch_queue_file_size_bytes),
    )
    found = []
    for root, size in kinds:
        folders = [f"{root}/{topic}/{queue}" for topic, queue in queue_folders(disk, root)]
        rows = {folder: _row_of(disk, folder) for folder in folders}
        entries = [entry for row in rows.values() for entry in row]
        is_known = _is_known(disk, config, entries, size)
        for folder, row in rows.items():
            found += _lengthen(disk, folder, row, size, is_size_known=is_known)
    return found
