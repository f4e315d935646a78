"""Extensions of queue entries: the tags codes of a store whose RocketMQ broker had enableConsumeQueueExt.

There, a queue entry has the address of a unit instead of the tags code (format/queues.py). Addresses and tags codes may
be mixed: RocketMQ writes the code itself if it cannot write a unit, and PocketMQ always does. So units are read here
and never written.

If a unit cannot be read, its address stays in place: callers that need the code read the record.
"""

from __future__ import annotations

import posixpath

import numpy as np
from numpy.typing import NDArray

from ..proto.record_run import Longs, as_bytes
from .disk import Disk
from .files import NAME_DIGITS
from .format.queues import ADDRESS_LEAST, ADDRESS_MAX, EXTENSION_UNIT
from .format.rows import Rows


class QueueExtension:
    """The units of the queue whose entries are in QUEUE_FOLDER, …/consumequeue/<topic>/<queue>."""

    def __init__(self, disk: Disk, queue_folder: str) -> None:
        topic_folder, queue = posixpath.split(queue_folder)
        root, topic = posixpath.split(topic_folder)
        self._disk = disk
        self._folder = posixpath.join(f"{root}_ext", topic, queue)
        self._starts: list[int] = []
        self._end = 0

    @property
    def exists(self) -> bool:
        """Does the queue have an extension?"""
        return self._disk.is_folder(self._folder)

    def resolved(self, codes: Longs) -> Longs:
        """Return CODES, those of entries in their order; addresses are replaced by the tags codes there."""
        if not len(codes) or int(codes.min()) > ADDRESS_MAX:
            return codes
        found = codes.copy()
        rows = np.flatnonzero(codes <= ADDRESS_MAX)
        # Subtracted, not negated: −2^63 has no positive counterpart.
        offsets = codes[rows] - ADDRESS_LEAST
        self._look(int(offsets.max()))
        files = np.searchsorted(self._starts, offsets, "right") - 1
        for file in np.unique(files[files >= 0]).tolist():
            inside = files == file
            self._read(self._starts[file], rows[inside], offsets[inside], found)
        return found

    def resolve(self, entries: Rows) -> Rows:
        """Return plain queue ENTRIES with addresses replaced by tags codes; unchanged if there are none."""
        codes = entries["tags_code"].astype(np.int64)
        found = self.resolved(codes)
        if found is not codes:
            entries = entries.copy()
            entries["tags_code"] = found
        return entries

    def _look(self, highest: int) -> None:
        """List the files if HIGHEST is after the known ones; a RocketMQ broker may be writing new ones."""
        if highest < self._end:
            return
        try:
            listed = [
                entry
                for entry in self._disk.list(self._folder)
                if not entry.is_folder and entry.name.isdigit() and len(entry.name) == NAME_DIGITS
            ]
        except OSError:
            return
        self._starts = [int(entry.name) for entry in listed]
        self._end = self._starts[-1] + listed[-1].size if listed else 0

    def _read(self, start: int, rows: NDArray[np.intp], offsets: Longs, found: Longs) -> None:
        """Put the tags codes of the units at OFFSETS, all in the file that begins at START, into ROWS of FOUND."""
        low, high = int(offsets.min()), int(offsets.max()) + EXTENSION_UNIT.size
        path = posixpath.join(self._folder, f"{start:0{NAME_DIGITS}d}")
        try:
            data = as_bytes(self._disk.read_at(path, low - start, high - low))
        except OSError:
            return
        places = offsets - low
        size = EXTENSION_UNIT.size
        there = places + size <= len(data)
        rows, places = rows[there], places[there]
        units = data[places[:, None] + np.arange(size)].reshape(-1).view(EXTENSION_UNIT.dtype)
        sound = units["size"].astype(np.int64) == units["map_size"].astype(np.int64) + size
        sound &= units["map_size"] >= 0
        found[rows[sound]] = units["tags_code"][sound]
