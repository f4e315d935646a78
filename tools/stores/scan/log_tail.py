"""What is in the log and not yet in the queues: the newest records of a store that runs, or was not stopped cleanly.

A broker appends to the log first, then enters records in their queues, then in the index. So what lies before the end
that the newest index file names is in the queues; from there on the log itself is read, and each record left out that
its queue has already.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ....proto.record_run import RunColumns
from ....store.disk import Disk
from ....store.format.index import HEADER_SIZE, IndexHeader
from ....store.listing import RowFile, row_files
from .conditions import Conditions
from .entry_columns import QueuePart, read_entries
from .log_range import Found, log_in_use
from .log_scan import LogPart, store_ms_at

if TYPE_CHECKING:
    import pyarrow

    from .log_scan import MessageRows


@dataclass(frozen=True, slots=True)
class LogTailPart:
    """The records of LOG that stand behind the last one of their queue; NEWEST: (topic, queue id, its log offset)."""

    log: LogPart
    newest: tuple[tuple[str, int, int], ...]

    @property
    def size(self) -> int:
        return self.log.size

    def is_new(self, found: Found) -> list[bool]:
        """Tell which records of FOUND stand behind the newest one that their queue has."""
        newest = {(topic, queue_id): at for topic, queue_id, at in self.newest}
        return [
            at > newest.get(queue, -1)
            for queue, at in zip(_queues_of(found), found.columns.log_offset.tolist(), strict=True)
        ]

    def rows(self, disk: Disk, rows: MessageRows) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of the part."""
        yield from rows.of_log(disk, self.log, self.is_new)


def _queues_of(found: Found) -> Iterator[tuple[str, int]]:
    columns: RunColumns = found.columns
    ends = (columns.topic_start + columns.topic_size).tolist()
    places = zip(columns.topic_start.tolist(), ends, columns.queue_id.tolist(), strict=True)
    for start, end, queue_id in places:
        yield found.data[start:end].tobytes().decode("utf-8", "replace"), queue_id


def dispatched_until(disk: Disk, root: str) -> int | None:
    """Return a log offset up to which every record is in its queue; None where all are, after a clean stop.

    Ask before the queues are looked at: what a broker dispatches in between is then in the queues or behind this.
    """
    if not disk.exists(posixpath.join(root, "abort")):
        return None
    return _indexed_until(disk, root, row_files(disk, posixpath.join(root, "commitlog")))


def log_tails(
    disk: Disk, root: str, begin: int | None, queues: Sequence[QueuePart], conditions: Conditions
) -> Iterator[LogTailPart]:
    """Yield what of the log at ROOT from BEGIN on (None: nothing) may not be in QUEUES."""
    if begin is None or _ends_below(queues, conditions):
        return
    files, log_ends = log_in_use(disk, row_files(disk, posixpath.join(root, "commitlog")), begin)
    newest = tuple((topic, queue_id, at) for (topic, queue_id), at in _newest(disk, queues).items())
    for file in files:
        if begin < file.end:
            start = max(begin, file.start)
            end = min(log_ends, file.end)
            if start < end:
                yield LogTailPart(LogPart(file, start, end, end), newest)


def _ends_below(queues: Sequence[QueuePart], conditions: Conditions) -> bool:
    """Do QUEUES hold every queue offset that is wanted?"""
    ends: dict[tuple[str, int], int] = {}
    for part in queues:
        end = -1 if part.is_batch else part.end // part.entry_bytes
        ends[part.topic, part.queue_id] = end
    return bool(ends) and all(conditions.queue_offsets.high < end for end in ends.values())


def _newest(disk: Disk, queues: Sequence[QueuePart]) -> Mapping[tuple[str, int], int]:
    """Return the log offset of the last entry of each of QUEUES that has one."""
    newest: dict[tuple[str, int], int] = {}
    for part in queues:
        last = replace(part, begin=part.end - part.format.size)
        if last.begin >= part.begin:
            entries = read_entries(disk, last)
            if len(entries):
                at = int(np.max(entries["log_offset"]))
                newest[part.topic, part.queue_id] = at
    return newest


def _indexed_until(disk: Disk, root: str, files: Sequence[RowFile]) -> int:
    """Return the log offset of the last record in the index; where the last log file begins if that is not told."""
    folder = posixpath.join(root, "index")
    names = [entry.name for entry in disk.list(folder) if not entry.is_folder]
    if not files:
        return 0
    if names:
        data = disk.read_at(posixpath.join(folder, names[-1]), 0, HEADER_SIZE)
        if len(data) == HEADER_SIZE:
            at = IndexHeader.parse(data).end_log_offset
            for file in files:
                if file.start <= at < file.end and store_ms_at(disk, file, at) is not None:
                    return at
    return files[-1].start
