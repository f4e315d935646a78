"""The files of a store as rows: what kind each is, how long, how much of it is in use, and from when to when.

used_bytes and the times are given where a few small reads find them, else they are null: a log file is used up to its
end but for the last one, and begins with its first record; an index file has both in its header; for a queue file the
end of its entries is known.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ....store.disk import Disk
from ....store.format.index import ENTRY, HEADER_SIZE, IndexHeader
from ....store.listing import queue_folders, row_files
from ....store.log_range import log_in_use
from .entry_columns import QueuePart, live_part
from .log_scan import store_ms_at

Row = dict[str, Any]
#: Kind of the files in each folder of a store; queues and the log are looked at more closely.
_FOLDERS: Final = {
    "config": "config",
    "timerlog": "timerlog",
    "rocksdbstore": "rocksdb",
    "compaction": "compaction",
    "pocketmq": "pocketmq",
}
_FOLDERS_DEEP: Final = 4


@dataclass(frozen=True, slots=True)
class FilePart:
    """All files of one store."""

    root: str
    size: int = 0


def file_rows(disk: Disk, root: str) -> Iterator[Row]:
    """Yield a row for each file of the store at ROOT, without the broker's name."""
    yield from _log_rows(disk, posixpath.join(root, "commitlog"))
    for kind, is_batch in (("consumequeue", False), ("batchconsumequeue", True)):
        for topic, queue_id, folder in queue_folders(disk, posixpath.join(root, kind)):
            yield from _queue_rows(disk, kind, folder, topic, queue_id, is_batch=is_batch)
    yield from _index_rows(disk, posixpath.join(root, "index"))
    for folder, kind in _FOLDERS.items():
        for path, size in _walk(disk, posixpath.join(root, folder), _FOLDERS_DEEP):
            yield _row(kind, path, size, size)
    for entry in disk.list(root):
        if not entry.is_folder:
            yield _row(entry.name, posixpath.join(root, entry.name), entry.size, entry.size)


def _walk(disk: Disk, folder: str, deep: int) -> Iterator[tuple[str, int]]:
    for entry in disk.list(folder):
        path = posixpath.join(folder, entry.name)
        if not entry.is_folder:
            yield path, entry.size
        elif deep:
            yield from _walk(disk, path, deep - 1)


def _log_rows(disk: Disk, folder: str) -> Iterator[Row]:
    files = row_files(disk, folder)
    firsts = [store_ms_at(disk, file, file.start) for file in files]
    _, end = log_in_use(disk, files)
    for file, first, following in zip(files, firsts, [*firsts[1:], None], strict=False):
        used = max(0, min(end, file.end) - file.start)
        yield _row("commitlog", file.path, file.size, used, file.start, (first, following))
    known = {file.path for file in files}
    for path, size in _walk(disk, folder, 0):
        if path not in known:
            yield _row("commitlog", path, size, None)


def _queue_rows(
    disk: Disk, kind: str, folder: str, topic: str, queue_id: int, *, is_batch: bool
) -> Iterator[Row]:
    files = row_files(disk, folder)
    for file in files:
        used = file.size
        if file is files[-1]:
            whole = QueuePart(topic, queue_id, is_batch, file, file.start, file.end)
            used = live_part(disk, whole, 0, is_first=False).end - file.start
        yield _row(kind, file.path, file.size, used, file.start)


def _index_rows(disk: Disk, folder: str) -> Iterator[Row]:
    for path, size in _walk(disk, folder, 0):
        data = disk.read_at(path, 0, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            yield _row("index", path, size, None)
            continue
        header = IndexHeader.parse(data)
        keys = max(0, header.next_entry - 1)
        times = (header.begin_ms or None, header.end_ms or None)
        used = min(size, HEADER_SIZE + keys * ENTRY.size)
        yield _row("index", path, size, used, header.begin_log_offset, times)


def _row(
    kind: str,
    path: str,
    size: int,
    used: int | None,
    base: int | None = None,
    times_ms: tuple[int | None, int | None] = (None, None),
) -> Row:
    return {
        "kind": kind,
        "path": path,
        "base_offset": base,
        "size_bytes": size,
        "used_bytes": used,
        "first_timestamp": _instant(times_ms[0]),
        "last_timestamp": _instant(times_ms[1]),
    }


def _instant(time_ms: int | None) -> datetime | None:
    """Return TIME_MS as a time of day; None for what no calendar has."""
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
