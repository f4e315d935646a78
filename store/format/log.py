"""A log file as bytes: finding heads of records at any position, and the blank that closes a file.

A file is a sequence of records (proto/record.py). A head begins with i32 total size and i32 magic. No record covers the
last 8 bytes of a file. There, or where the next record does not fit, is a *blank*: i32 the rest of the file, i32
CBD43194; later bytes mean nothing. Zeros end the log. Source: store-format.md §2.

The i64 at byte 28 of a record is its own log offset. A magic with that number is the head of a record: a body would
have to contain the very offset at which it is stored. So a reader can begin anywhere, and can continue after damage.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

import numpy as np

from ...proto.record import LOG_OFFSET_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, Buffer
from ...proto.record_run import Bytes, Longs, RunColumns, parse_run

_PAIR: Final = Struct(">ii")
#: Bytes that stay free after every record, and the size of the blank that closes a file.
BLANK_SIZE: Final = _PAIR.size
#: The bytes that show whether a record begins: up to the end of its own log offset.
HEAD_BYTES: Final = LOG_OFFSET_AT + 8
MAGIC_AT: Final = 4
_FIRST_OF_MAGIC: Final = 0xDA
#: The magic of a record, of either kind.
MAGIC_PATTERN: Final = re.compile(b"\xda\xa3\x20[\xa7\xab]", re.DOTALL)


#: (data, at=0): total size and magic at AT of DATA; `struct.error` if DATA ends there.
size_and_magic: Final = _PAIR.unpack_from
#: (data, at=0): the same, and the log offset field; DATA must have HEAD_BYTES from AT on.
record_head: Final = Struct(">ii20xq").unpack_from


def begins_record(data: Buffer, size: int) -> bool:
    """Does DATA begin with the head of a record of SIZE bytes?"""
    total, magic = size_and_magic(data)
    return total == size and magic in (MAGIC_V1, MAGIC_V2)


def no_record(size: int, magic: int) -> str:
    """Return the error text for bytes that should be a record."""
    return f"not a record: size {size:,}, magic {magic & 0xFFFFFFFF:08X}"


def blank(left: int) -> bytes:
    """Return the blank that closes a file with LEFT bytes left."""
    return _PAIR.pack(left, MAGIC_BLANK)


def is_blank(data: Buffer, at: int, left: int, *, end: int | None = None) -> bool:
    """Is there a blank at AT of DATA, where LEFT bytes are left of the file? Nothing from END on is read."""
    end = len(data) if end is None else end
    return at + BLANK_SIZE <= end and _PAIR.unpack_from(data, at) == (left, MAGIC_BLANK)


def placed_starts(data: Bytes, log_offset: int) -> Longs:
    """Return the positions in DATA, the bytes at LOG_OFFSET of the log, where a record has its own log offset.

    The complete head must be inside DATA; nothing after it is checked.
    """
    count = len(data) - HEAD_BYTES + 1
    if count <= 0:
        return np.empty(0, np.int64)
    (starts,) = (data[MAGIC_AT : MAGIC_AT + count] == _FIRST_OF_MAGIC).nonzero()
    magic = np.ndarray((count,), ">i4", data, offset=MAGIC_AT, strides=(1,))[starts]
    starts = starts[(magic == MAGIC_V1) | (magic == MAGIC_V2)]
    own = np.ndarray((count,), ">i8", data, offset=LOG_OFFSET_AT, strides=(1,))[starts]
    placed: Longs = starts[own == starts + log_offset]
    return placed


def find_run(data: Bytes, log_offset: int) -> RunColumns:
    """Return the columns of all complete, well-formed records in DATA with their own log offsets, in order.

    DATA begins at LOG_OFFSET of the log; starts count from the beginning of DATA. There may be gaps between records.
    """
    columns = parse_run(data, placed_starts(data, log_offset))
    if not columns.well_formed.all():
        columns = columns.take(columns.well_formed)
    ends = columns.starts + columns.sizes
    if (columns.starts[1:] < ends[:-1]).any():
        columns = columns.take(_outermost(columns.starts.tolist(), ends.tolist()))
    return columns


def _outermost(starts: list[int], ends: list[int]) -> Longs:
    """Return the rows that are not inside the record of an earlier row."""
    rows: list[int] = []
    end = 0
    for row, start in enumerate(starts):
        if start >= end:
            rows.append(row)
            end = ends[row]
    return np.array(rows, np.int64)


def placed_record(view: memoryview, at: int, log_offset: int, *, end: int) -> RunColumns | None:
    """Return the columns of the record at AT of VIEW, if its lengths are consistent and its log offset is LOG_OFFSET.

    None if there is no such record. Its head must end before END.
    """
    if at + HEAD_BYTES > end or record_head(view, at)[2] != log_offset:
        return None
    columns = parse_run(view, np.array([at], np.int64))
    return columns if columns.well_formed[0] else None
