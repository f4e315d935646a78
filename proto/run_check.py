"""The soundness of records, many at once: do their bodies fit their CRCs, are they whole, of which topic are they?

The CRC of 128-byte bodies costs some 0.3 µs each. What a run from outside has to be: run.py.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .byte_ranges import bytes_at
from .record import (
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_V6,
    SYS_ROLLBACK,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    Buffer,
    hosts_extra,
)
from .record_run import (
    LEAST_SIZE,
    Bytes,
    Longs,
    RunColumns,
    as_bytes,
)

#: Of fewer bodies each is cut out by itself.
_EVEN_LEAST: Final = 64
#: Copying larger bodies costs more than it saves.
_CUT_BYTES_MAX: Final = 1024
#: Total size, magic, body CRC, sysFlag, body length of a record between IPv4 hosts.
_HEAD: Final = struct.Struct(">iii24xi44xi")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")


def body_crcs(data: Buffer | Bytes, starts: Longs, sizes: Longs) -> Longs:
    """Return the CRC that a record stores for each of the bodies of SIZES at STARTS, which lie inside DATA."""
    bodies = _bodies(data, starts, sizes)
    crcs = np.fromiter(map(zlib.crc32, bodies), np.int64, len(starts))  # type: ignore[arg-type]
    crcs &= CRC_MASK
    return crcs


def _bodies(data: Buffer | Bytes, starts: Longs, sizes: Longs) -> Iterable[Buffer | Bytes]:
    """Return the bodies of SIZES at STARTS. Those of one size, evenly spaced but for the first, are cut by one call."""
    if len(starts) > _EVEN_LEAST and _is_even(starts[1:], sizes[1:], len(data)):
        size, step = int(sizes[1]), int(starts[2] - starts[1])
        array, at = as_bytes(data), int(starts[1])
        even = np.ndarray((len(starts) - 1,), f"V{size}", array, offset=at, strides=(step,))
        first = int(starts[0])
        return [array[first : first + int(sizes[0])], *even.tolist()]
    is_cheap_to_cut = isinstance(data, bytes) and len(data) <= _CUT_BYTES_MAX * len(starts)
    view = data if is_cheap_to_cut else memoryview(data)  # type: ignore[arg-type]  # numpy's stubs: no buffers
    ranges = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    return [view[begin:end] for begin, end in ranges]


def _is_even(starts: Longs, sizes: Longs, room: int) -> bool:
    """Do ranges of one size, no large one, stand at equal distances inside ROOM bytes?"""
    size, steps = int(sizes[0]), np.diff(starts)
    even = bool((steps == steps[0]).all()) and bool((sizes == size).all())
    inside = int(starts[0]) >= 0 and int(starts[-1]) + size <= room
    return even and inside and 0 < size <= min(_CUT_BYTES_MAX, int(steps[0]))


def crc_mismatches(data: Buffer | Bytes, columns: RunColumns) -> NDArray[np.bool_]:
    """Tell for each record whether its body contradicts its CRC; an empty body never does, as in Apache's check."""
    crcs = body_crcs(data, columns.body_start, columns.body_size)
    wrong: NDArray[np.bool_] = crcs != columns.body_crc
    return wrong & (columns.body_size > 0)


def torn(data: Buffer | Bytes, columns: RunColumns) -> NDArray[np.bool_]:
    """Tell for each record whether its end was never written: its properties end in a zero, as no broker's do.

    No CRC covers the properties. One that is rolled back is not, for nobody is given it. Records must be well formed.
    """
    ends = as_bytes(data)[columns.properties_start + columns.properties_size - 1]
    unwritten: NDArray[np.bool_] = (ends == 0) & (columns.properties_size > 0)
    unwritten &= (columns.sys_flag & SYS_TRANSACTION) != SYS_ROLLBACK
    return unwritten


def is_sound(record: Buffer) -> bool:
    """Is RECORD one whole record whose lengths agree and whose body fits its CRC? (An empty body always does.)"""
    size = len(record)
    if size < LEAST_SIZE:
        return False
    total, magic, crc, sys_flag, body_size = _HEAD.unpack_from(record)
    if total != size or magic not in (MAGIC_V1, MAGIC_V2):
        return False
    at = _HEAD.size
    if sys_flag & (SYS_BORN_V6 | SYS_STORE_V6):
        at += hosts_extra(sys_flag)
        if at > size:
            return False
        (body_size,) = _INT.unpack_from(record, at - _INT.size)
    topic_at = at + body_size
    if body_size < 0 or topic_at + 2 > size:
        return False
    is_long = magic == MAGIC_V2
    topic_size = _SHORT.unpack_from(record, topic_at)[0] if is_long else record[topic_at]
    properties_at = topic_at + 1 + is_long + topic_size + _SHORT.size
    if topic_size < 0 or properties_at > size:
        return False
    (properties_size,) = _SHORT.unpack_from(record, properties_at - _SHORT.size)
    if properties_size < 0 or properties_at + properties_size != size:
        return False
    return not body_size or zlib.crc32(memoryview(record)[at:topic_at]) & CRC_MASK == crc


def topic_is(data: Buffer | Bytes, columns: RunColumns, topic: str) -> NDArray[np.bool_]:
    """Tell for each record whether it is of TOPIC."""
    wanted = topic.encode()
    same_size: NDArray[np.bool_] = columns.topic_size == len(wanted)
    return bytes_at(as_bytes(data), columns.topic_start, wanted) & same_size
