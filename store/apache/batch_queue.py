"""Batch queues: how RocketMQ recovers, fills, cuts and reads them (BatchConsumeQueue of 5.5.0)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..disk import Disk
from ..format.queues import BATCH_ENTRY, NOT_COMPACTED, leading
from .files import JavaFile, JavaFiles
from .queue import FILES_RECOVERED, Unit
from .records import Checked


class BatchQueue:
    """One queue of 46-byte entries without gaps. The position of an entry does not depend on its queue offset."""

    kind = "BatchCQ"

    def __init__(self, disk: Disk, folder: str, file_size: int, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = JavaFiles(disk, folder, file_size)
        self.max_log_offset = -1
        self.min_offset = -1
        self.max_offset = 0

    def bound(self, min_offset: int, max_offset: int, *, files_end: int, log_end: int) -> None:
        """Set the limits found by another recovery: its files end at FILES_END, its newest record at LOG_END."""
        self.files.truncate(files_end)
        self.max_log_offset = log_end
        self.min_offset, self.max_offset = min_offset, max_offset

    def recover(self) -> None:
        """Find the end: the first invalid entry from the third-last file on."""
        files = self.files.files
        if not files:
            return
        end = 0
        for file in files[max(0, len(files) - FILES_RECOVERED) :]:
            valid = _valid(_entries(file))
            count = leading(valid)
            if count:
                self.max_log_offset = int(_entries(file)["log_offset"][count - 1])
            end = file.start + count * BATCH_ENTRY.size
            if count < len(valid):
                break
        self.files.truncate(end)
        self._revise()

    def truncate_dirty(self, log_end: int) -> None:
        """Drop the entries of records at or after LOG_END."""
        self.max_log_offset = log_end - 1
        while (file := self.files.last) is not None:
            entries = _entries(file)
            file.wrote = 0
            if entries["log_offset"][0] >= log_end:
                self.files.delete_last()
                continue
            inside = _valid(entries) & (entries["log_offset"] < log_end)
            inside[0] = True
            count = leading(inside)
            file.wrote = count * BATCH_ENTRY.size
            self.max_log_offset = int(entries["log_offset"][count - 1])
            break
        self._revise()

    def _revise(self) -> None:
        self._revise_min()
        self.max_offset = 0
        for file in reversed(self.files.files[-2:]):
            if file.wrote >= BATCH_ENTRY.size:
                newest = _entries(file)[file.wrote // BATCH_ENTRY.size - 1]
                self.max_offset = int(newest["base"]) + int(newest["count"])
                return

    def _revise_min(self) -> None:
        first = self.files.first
        if first is None:
            self.max_offset = 0
        known = first is not None and first.wrote >= BATCH_ENTRY.size
        self.min_offset = int(_entries(first)["base"][0]) if known and first is not None else -1

    def put(self, record: Checked) -> None:
        """Append the entry of RECORD, unless it exists."""
        if (
            record.batch_base < 0
            or record.batch_size < 0
            or record.log_offset <= self.max_log_offset
        ):
            return
        file = self.files.last_for_write(self.files.max_offset)
        entry = BATCH_ENTRY.pack(
            record.log_offset,
            record.size,
            record.tags_code,
            record.store_timestamp_ms,
            record.batch_base,
            record.batch_size,
            NOT_COMPACTED,
            0,
        )
        if file.append(entry):
            self.max_log_offset = record.log_offset
            self.max_offset = record.batch_base + record.batch_size
            if file.first_in_queue and self.min_offset == -1:
                self._revise_min()

    def correct_min_offset(self, log_begin: int) -> None:
        """Move the minimum past the first entries of the first file whose records are deleted."""
        self._revise_min()
        first = self.files.first
        if first is None:
            return
        for entry in _entries(first)[: first.wrote // BATCH_ENTRY.size]:
            if entry["log_offset"] >= log_begin:
                return
            self.min_offset = int(entry["base"]) + int(entry["count"])

    def destroy(self) -> None:
        """Delete all files and forget everything."""
        self.max_log_offset = -1
        self.min_offset = -1
        self.max_offset = 0
        self.files.destroy()

    def units(self, at: int) -> Iterator[Unit]:
        """Yield what RocketMQ's iterator from queue offset AT yields: from the batch with AT to the file's end."""
        file = self._file_of(at)
        if at >= self.max_offset or file is None:
            return
        entries = _entries(file)[: file.wrote // BATCH_ENTRY.size]
        index = _search_bases(entries["base"], at)
        for entry in entries[index:] if index >= 0 else ():
            yield tuple(
                int(entry[name]) for name in ("base", "log_offset", "size", "tags_code", "count")
            )

    def _file_of(self, at: int) -> JavaFile | None:
        for file in reversed(self.files.files):
            if file.wrote >= BATCH_ENTRY.size and _entries(file)["base"][0] <= at:
                return file
        return None

    def behind_hole(self, at: int) -> int:
        """Return the end: RocketMQ does not know where the next batch begins."""
        return self.max_offset


def _entries(file: JavaFile) -> NDArray[np.void]:
    return BATCH_ENTRY.columns(file.view, file.size // BATCH_ENTRY.size)


def _valid(entries: NDArray[np.void]) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = (
        (entries["log_offset"] >= 0)
        & (entries["size"] > 0)
        & (entries["base"] >= 0)
        & (entries["count"] > 0)
    )
    return valid


def _search_bases(bases: NDArray[np.int64], wanted: int) -> int:
    """Return the index at which RocketMQ's binary search ends, −1 if it finds none; BASES need not be sorted."""
    left, right = 0, len(bases) - 1
    last = right
    while left <= right:
        middle = (left + right) // 2
        found = bases[middle]
        if found == wanted:
            return middle
        if found > wanted:
            right = middle - 1
        elif middle == left:
            return middle + 1 if middle < last and bases[middle + 1] <= wanted else middle
        else:
            left = middle
    return -1
