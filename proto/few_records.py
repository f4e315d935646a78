"""Runs of a few records, read one by one: for so few, each of the many calls of numpy costs more than its work.

What such a run usually is, is read here: V1 records between IPv4 hosts, no part of a transaction, no inner batch. All
else, and whatever is wrong, is left to the code that reads many records; both find the same. Pure.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from .record import (
    CRC_MASK,
    MAGIC_V1,
    SYS_BORN_V6,
    SYS_INNER_BATCH,
    SYS_NEEDS_UNWRAP,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    topic_field,
)
from .record_run import LEAST_SIZE, RunColumns, parse_run
from .topics import MESSAGE_SIZE_MAX, RECORD_SIZE_MAX

#: More records are cheaper to read all at once.
FEW_MAX: Final = 16

_UNUSUAL: Final = SYS_TRANSACTION | SYS_BORN_V6 | SYS_STORE_V6 | SYS_NEEDS_UNWRAP | SYS_INNER_BATCH
#: Total size, magic, body CRC, queue id, sysFlag, body length.
_HEAD: Final = struct.Struct(">iiii20xi44xi")
_SHORT: Final = struct.Struct(">h")


class RecordPlace(NamedTuple):
    """Where a record begins in its run, and its property string: positions and sizes, bytes."""

    start: int
    size: int
    properties_start: int
    properties_size: int


class FewColumns(RunColumns):
    """The columns of the records at PLACES of DATA; other arrays than starts and sizes are made when one is asked for.

    The records are well formed, and of the usual kind (see above), until `has_arrays`: then these say what they are.
    """

    __slots__ = ("_data", "has_arrays", "places")

    def __init__(self, data: bytes, places: Sequence[RecordPlace]) -> None:
        self._data = data
        self.places = places
        self.has_arrays = False
        self.starts = np.array([place.start for place in places], np.int64)
        self.sizes = np.array([place.size for place in places], np.int64)

    def __getattr__(self, name: str) -> Any:
        """Make all columns that nobody has set: NAME is one of them."""
        parsed = parse_run(self._data, self.starts)
        self.has_arrays = True
        for column in RunColumns.__slots__:
            try:
                object.__getattribute__(self, column)
            except AttributeError:
                setattr(self, column, getattr(parsed, column))
        return object.__getattribute__(self, name)

    def __len__(self) -> int:
        return len(self.places)

    def properties_place(self, row: int) -> tuple[int, int]:
        place = self.places[row]
        return place.properties_start, place.properties_size

    def property_strings(self) -> list[bytes]:
        """Return the property string of each record."""
        return [self._data[at : at + size] for _, _, at, size in self.places]


def as_few(columns: RunColumns) -> FewColumns | None:
    """Return COLUMNS if they are of a few records of the usual kind, and nobody asked for their arrays."""
    return columns if isinstance(columns, FewColumns) and not columns.has_arrays else None


def read_few(data: bytes, sizes: Sequence[int], topic: str, queue: int) -> FewColumns | None:
    """Return the columns of DATA, records of SIZES for TOPIC and QUEUE.

    None: they are none or many, or something about them is wrong or unusual.
    """
    if not 0 < len(sizes) <= FEW_MAX or min(sizes) < LEAST_SIZE or sum(sizes) != len(data):
        return None
    magic, topic_part = topic_field(topic)
    if magic != MAGIC_V1:
        return None
    places = []
    start = 0
    for size in sizes:
        place = _read(data, start, size, topic_part, queue)
        if place is None:
            return None
        places.append(place)
        start += size
    return FewColumns(data, places)


def _read(data: bytes, start: int, size: int, topic_part: bytes, queue: int) -> RecordPlace | None:
    """Return the record of SIZE bytes at START, inside DATA, if it is sound and of the usual kind."""
    total_size, magic, crc, queue_id, sys_flag, body_size = _HEAD.unpack_from(data, start)
    if (total_size, magic, queue_id) != (size, MAGIC_V1, queue) or sys_flag & _UNUSUAL:
        return None
    if not 0 < body_size <= MESSAGE_SIZE_MAX or size > RECORD_SIZE_MAX:
        return None
    body_start, end = start + _HEAD.size, start + size
    topic_start = body_start + body_size
    properties_start = topic_start + len(topic_part) + _SHORT.size
    if properties_start > end or not data.startswith(topic_part, topic_start):
        return None
    (properties_size,) = _SHORT.unpack_from(data, properties_start - _SHORT.size)
    if properties_start + properties_size != end:
        return None
    if zlib.crc32(memoryview(data)[body_start:topic_start]) & CRC_MASK != crc:
        return None
    return RecordPlace(start, size, properties_start, properties_size)
