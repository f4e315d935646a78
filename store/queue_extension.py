"""Extensions of queue entries: the tags codes of a store whose Java broker had enableConsumeQueueExt.

There a queue entry holds an address in place of the tags code: −2^63 + the offset of a unit in the row of files
consumequeue_ext/<topic>/<queue>/. Every value below the range of an i32 is an address. A unit, big-endian:

    0   2   size of the unit: 20 + that of the bit map
    2   8   tags code (in SCHEDULE_TOPIC_XXXX the delivery time, ms)
    10  8   store time, ms
    18  2   size of the bit map, then the bit map: what Apache's broker found out about its filters

Addresses and tags codes may stand side by side: Apache writes the code itself where no unit can be written, and so do
we, always. So units are read here and never written. Source: store-format.md §3.6, ConsumeQueueExt.java.

A unit that cannot be read leaves its address in place: whoever needs the code asks the record.
"""

from __future__ import annotations

import posixpath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..proto.record_run import Longs
from .disk import Disk
from .mapped_file import NAME_DIGITS

#: The highest address; everything above is a tags code.
ADDRESS_MAX: Final = -(1 << 31) - 1
_LOWEST: Final = -(1 << 63)
_UNIT: Final = np.dtype(
    [("size", ">i2"), ("tags_code", ">i8"), ("store_ms", ">i8"), ("map", ">i2")]
)


class QueueExtension:
    """The units of the queue whose entries lie in QUEUE_FOLDER, …/consumequeue/<topic>/<queue>."""

    def __init__(self, disk: Disk, queue_folder: str) -> None:
        topic_folder, queue = posixpath.split(queue_folder)
        root, topic = posixpath.split(topic_folder)
        self._disk = disk
        self._folder = posixpath.join(f"{root}_ext", topic, queue)
        self._starts: list[int] = []
        self._end = 0

    @property
    def exists(self) -> bool:
        """Has the queue an extension?"""
        return self._disk.is_folder(self._folder)

    def resolved(self, codes: Longs) -> Longs:
        """Return CODES, those of entries in their order, with the tags codes where addresses stand."""
        if not len(codes) or int(codes.min()) > ADDRESS_MAX:
            return codes
        found = codes.copy()
        rows = np.flatnonzero(codes <= ADDRESS_MAX)
        # Not negated: −2^63 has no counterpart.
        offsets = codes[rows] - _LOWEST
        self._look(int(offsets.max()))
        files = np.searchsorted(self._starts, offsets, "right") - 1
        for file in np.unique(files[files >= 0]).tolist():
            inside = files == file
            self._read(self._starts[file], rows[inside], offsets[inside], found)
        return found

    def resolve(self, entries: NDArray[Any]) -> NDArray[Any]:
        """Return plain queue ENTRIES with the tags codes where addresses stand; as they are if there are none."""
        codes = entries["tags_code"].astype(np.int64)
        found = self.resolved(codes)
        if found is not codes:
            entries = entries.copy()
            entries["tags_code"] = found
        return entries

    def _look(self, highest: int) -> None:
        """See which files there are, if HIGHEST lies behind those that are known; a Java broker may write them now."""
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
        low, high = int(offsets.min()), int(offsets.max()) + _UNIT.itemsize
        path = posixpath.join(self._folder, f"{start:0{NAME_DIGITS}d}")
        try:
            data = np.frombuffer(self._disk.read_at(path, low - start, high - low), np.uint8)
        except OSError:
            return
        places = offsets - low
        there = places + _UNIT.itemsize <= len(data)
        rows, places = rows[there], places[there]
        units = data[places[:, None] + np.arange(_UNIT.itemsize)].reshape(-1).view(_UNIT)
        sound = units["size"].astype(np.int64) == units["map"].astype(np.int64) + _UNIT.itemsize
        sound &= units["map"] >= 0
        found[rows[sound]] = units["tags_code"][sound]
