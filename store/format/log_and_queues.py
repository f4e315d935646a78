"""A log file as bytes: heads of records, found at any place, and the blank that closes a file.

A file holds records end to end (proto/record.py); a head begins with i32 total size and i32 magic. No record touches
the last 8 bytes of a file: there, or wherever the next record does not fit, a *blank* stands (i32 what is left of the
file, i32 CBD43194; what is behind it means nothing). Zeros end the log. Source: store-format.md §2.

The i64 at byte 28 of a record is its own log offset. A magic with that number behind it is a record's head: a body
would have to hold the very offset that it was stored at to look like one. So reading can begin anywhere, and goes on
behind damage, without a walk from the beginning. `placed_starts` and `find_run` look at all of a window at once: some
0.1 µs for a record of 200 bytes, less for each byte of larger ones (a walk of records of many sizes takes 0.25 µs
each).

The entries of consume queues, and the units that extend them. Source: store-format.md §3, Apache 5.5.0's
ConsumeQueue, BatchConsumeQueue and ConsumeQueueExt.

Plain queue, consumequeue/<topic>/<queue>/: an entry of 20 bytes for each message; entry N of the queue, N being the
message's queue offset, stands at byte 20·N:

    0   8   log offset of the record
    8   4   size of the record
    12  8   tags code: Java's hash of TAGS, sign-extended, 0 without tags; in SCHEDULE_TOPIC_XXXX the delivery time, ms
            (or the address of both, see below)

An entry is *valid* if its log offset is not negative and its size positive; a reader stops at the first that is not
(unused places are zero). In front of the first entry of a row that begins above 0 stand *pre-blank* entries (log offset
0, size 2147483647, the rest 0), from the start of the file on.

Batch queue, batchconsumequeue/<topic>/<queue>/ (only topics with the attribute queue.type=BatchCQ): an entry of 46
bytes for each *inner batch*, a record that holds many messages of one topic and queue; one behind the other, so that
its place says nothing about queue offsets:

    0   20  as in a plain queue
    20  8   store time, ms
    28  8   queue offset of the first message in it (property INNER_BASE)
    36  2   number of messages in it (property INNER_NUM)
    38  4   compacted offset, −1
    42  4   0

Extension, consumequeue_ext/<topic>/<queue>/ (a Java broker with enableConsumeQueueExt): there an entry may hold an
address in place of the tags code: −2^63 + the offset of a unit in that row of files. Every value below the range of an
i32 is an address. A unit:

    0   2   size of the unit: 20 + that of the bit map
    2   8   tags code (in SCHEDULE_TOPIC_XXXX the delivery time, ms)
    10  8   store time, ms
    18  2   size of the bit map, then the bit map: what Apache's broker found out about its filters

Rows of fixed fields end to end, big-endian: read one by one as tuples, or many at once as columns.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record import (
    LOG_OFFSET_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Buffer,
)
from ...proto.record_run import Bytes, Longs, RunColumns, parse_run

_PAIR: Final = Struct(">ii")
#: Bytes that stay free behind every record, and the size of the blank that closes a file.
BLANK_SIZE: Final = _PAIR.size
#: Bytes that tell whether a record begins: up to the end of its own log offset.
HEAD_BYTES: Final = LOG_OFFSET_AT + 8
MAGIC_AT: Final = 4
_FIRST_OF_MAGIC: Final = 0xDA
#: The magic of a record, of either kind.
MAGIC_PATTERN: Final = re.compile(b"\xda\xa3\x20[\xa7\xab]", re.DOTALL)


# ---------------------------------------------------------------- heads


#: (data, at=0): total size and magic of what stands at AT of DATA; `struct.error` if DATA ends there.
size_and_magic: Final = _PAIR.unpack_from
#: (data, at=0): the same, and the log offset that it says of itself; HEAD_BYTES must be there.
record_head: Final = Struct(">ii20xq").unpack_from


def begins_record(data: Buffer, size: int) -> bool:
    """Does DATA begin with the head of a record of SIZE bytes?"""
    total, magic = size_and_magic(data)
    return total == size and magic in (MAGIC_V1, MAGIC_V2)


def no_record(size: int, magic: int) -> str:
    """Return the sentence that says what stands where no record does."""
    return f"no record: size {size:,}, magic {magic & 0xFFFFFFFF:08X}"


# ---------------------------------------------------------------- the blank


def blank(room: int) -> bytes:
    """Return the blank that closes a file with ROOM bytes left."""
    return _PAIR.pack(room, MAGIC_BLANK)


def is_blank(data: Buffer, at: int, room: int, *, end: int | None = None) -> bool:
    """Does the blank stand at AT of DATA, where ROOM bytes are left of the file? Nothing from END on is looked at."""
    end = len(data) if end is None else end
    return at + BLANK_SIZE <= end and _PAIR.unpack_from(data, at) == (room, MAGIC_BLANK)


# ---------------------------------------------------------------- at any place


def placed_starts(data: Bytes, log_offset: int) -> Longs:
    """Return the positions in DATA, whose first byte stands at LOG_OFFSET, at which a record says that it stands.

    The whole head must be inside; nothing behind it is looked at.
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
    """Return the columns of all whole, well-formed records in DATA that stand where they say, in order.

    DATA begins at LOG_OFFSET of the log; starts count from the beginning of DATA. Between two records may be a gap.
    """
    columns = parse_run(data, placed_starts(data, log_offset))
    if not columns.well_formed.all():
        columns = columns.take(columns.well_formed)
    ends = columns.starts + columns.sizes
    if (columns.starts[1:] < ends[:-1]).any():
        columns = columns.take(_outermost(columns.starts.tolist(), ends.tolist()))
    return columns


def _outermost(starts: list[int], ends: list[int]) -> Longs:
    """Return the rows that do not lie inside the record of a row before them."""
    rows: list[int] = []
    end = 0
    for row, start in enumerate(starts):
        if start >= end:
            rows.append(row)
            end = ends[row]
    return np.array(rows, np.int64)


def placed_record(view: memoryview, at: int, log_offset: int, *, end: int) -> RunColumns | None:
    """Return the columns of the record at AT of VIEW whose lengths agree, and that says that it stands at LOG_OFFSET.

    None if there is no such record. Its head must lie before END.
    """
    if at + HEAD_BYTES > end or record_head(view, at)[2] != log_offset:
        return None
    columns = parse_run(view, np.array([at], np.int64))
    return columns if columns.well_formed[0] else None


# ---------------------------------------------------------------- the entries of consume queues


#: Rows as numpy holds them, by field; over the bytes that they were read from.
Rows = NDArray[Any]

_TYPES: Final = {"h": ">i2", "i": ">i4", "q": ">i8"}


class RowFormat:
    """A row of FIELDS in their order, each "h", "i" or "q": a signed integer of 2, 4 or 8 bytes.

    size: bytes of a row;  dtype: what numpy calls it.
    pack(*values): return the row of VALUES;  write(buffer, at, *values): put it at AT of BUFFER;
    read(buffer, at=0): return the values of the row at AT of BUFFER. All raise `struct.error` for what does not fit.
    """

    __slots__ = ("dtype", "pack", "read", "size", "write")

    def __init__(self, **fields: str) -> None:
        one = Struct(">" + "".join(fields.values()))
        self.dtype: np.dtype[np.void] = np.dtype(
            [(name, _TYPES[kind]) for name, kind in fields.items()]
        )
        self.size = one.size
        self.pack = one.pack
        self.read = one.unpack_from
        self.write = one.pack_into

    def columns(self, data: Buffer, count: int | None = None, *, at: int = 0) -> Rows:
        """Return COUNT rows from position AT of DATA (None: all that are whole there), without a copy."""
        count = (len(data) - at) // self.size if count is None else count
        rows: Rows = np.frombuffer(data, self.dtype, count, at)
        return rows

    def none(self) -> Rows:
        """Return no rows."""
        return np.empty(0, self.dtype)

    def zeros(self, count: int) -> Rows:
        """Return COUNT new rows of zeros, to be filled in."""
        return np.zeros(count, self.dtype)


# ---------------------------------------------------------------- the entries of consume queues


ENTRY: Final = RowFormat(log_offset="q", size="i", tags_code="q")
BATCH_ENTRY: Final = RowFormat(
    log_offset="q",
    size="i",
    tags_code="q",
    store_ms="q",
    base="q",
    count="h",
    compacted="i",
    reserved="i",
)
EXTENSION_UNIT: Final = RowFormat(size="h", tags_code="q", store_ms="q", map_size="h")

#: Topics of light queues begin so. Their entries point to records of other topics.
LIGHT_PREFIX: Final = "%LMQ%"
#: Size that a pre-blank entry has; no record is that large.
PRE_BLANK_SIZE: Final = (1 << 31) - 1
#: Of a batch entry whose queue is not compacted.
NOT_COMPACTED: Final = -1
#: The highest address of an extension unit; everything above is a tags code.
ADDRESS_MAX: Final = -(1 << 31) - 1
#: The address of the unit at offset 0.
ADDRESS_LEAST: Final = -(1 << 63)


def entry_format(*, is_batch: bool) -> RowFormat:
    """Return the format of the entries of a batch queue, or of a plain one."""
    return BATCH_ENTRY if is_batch else ENTRY


def names_record(entries: Rows) -> NDArray[np.bool_]:
    """Tell which of ENTRIES, of either kind, name a record: not those that are unused or pre-blank."""
    sizes = entries["size"]
    named: NDArray[np.bool_] = (
        (entries["log_offset"] >= 0) & (sizes > 0) & (sizes != PRE_BLANK_SIZE)
    )
    return named


def leading(good: NDArray[np.bool_]) -> int:
    """Return how many entries at the beginning are GOOD."""
    return len(good) if good.all() else int(good.argmin())
