"""The timer log: one record for each message that was scheduled, rolled or recalled. Source: store-format.md §7.2.

Files `timerlog/<20 digits>` of 104,857,600 bytes. A record has 52 bytes and is chained by slot (timer_wheel.py).
Records never cross files. Big-endian:

    0   i32  52
    4   i64  position of the previous record of the same slot, −1 for none
    12  i32  bits: 1 ordinary, 2 roll, 4 delete; valid if only the low four are used
    16  i64  write time, floored to the precision, ms
    24  i32  due time − write time, ms
    28  i64  log offset of the message
    36  i32  its size
    40  i32  Java hash of the real topic, 0 for none
    44  i64  0

A file without space for a record and 16 bytes more ends in a blank: i32 the rest of the file, i64 0, i32 CBD43194.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record import MAGIC_BLANK, Buffer
from .rows import RowFormat, Rows

RECORD: Final = RowFormat(
    size="i",
    previous="q",
    magic="i",
    write_ms="q",
    delay_ms="i",
    log_offset="q",
    message_size="i",
    topic_hash="i",
    reserved="q",
)
RECORD_SIZE: Final = RECORD.size
#: Size of a record and position of the previous one.
LINK: Final = RowFormat(size="i", previous="q")
_HEAD: Final = RowFormat(size="i", previous="q", magic="i")
#: Log offset and size of the message, at MESSAGE_AT of a record.
MESSAGE: Final = RowFormat(log_offset="q", size="i")
MESSAGE_AT: Final = 28
BLANK_SIZE: Final = _HEAD.size
BITS: Final = 0xF
ORDINARY: Final = 1
ROLL: Final = 2
DELETE: Final = 4
#: There is no previous record.
NONE: Final = -1


@dataclass(frozen=True, slots=True)
class TimerRecord:
    """One record, at POSITION of the timer log."""

    position: int
    size: int
    previous: int
    magic: int
    write_time_ms: int
    delay_ms: int
    log_offset: int
    message_size: int
    topic_hash: int
    reserved: int

    @property
    def is_sound(self) -> bool:
        """Could a broker have written it?"""
        return self.size == RECORD_SIZE and self.magic | BITS == BITS


@dataclass(frozen=True, slots=True)
class TimerBlank:
    """The blank that closes a file, at POSITION."""

    position: int
    size: int


def records(data: memoryview, start: int) -> Iterator[TimerRecord | TimerBlank]:
    """Yield the records in DATA, the used bytes of the file that begins at START; a blank is the last item."""
    for at in range(0, len(data) - RECORD_SIZE + 1, RECORD_SIZE):
        size, _, magic = _HEAD.read(data, at)
        if magic == MAGIC_BLANK:
            yield TimerBlank(start + at, size)
            return
        yield TimerRecord(start + at, *RECORD.read(data, at))


def sound_rows(rows: Rows) -> NDArray[np.bool_]:
    """Return which of ROWS a broker could have written."""
    sound: NDArray[np.bool_] = (rows["size"] == RECORD_SIZE) & ((rows["magic"] | BITS) == BITS)
    return sound


def blank(left: int) -> bytes:
    """Return the blank that closes a file with LEFT bytes left."""
    return _HEAD.pack(left, 0, MAGIC_BLANK)


def is_blank(data: Buffer, at: int, left: int) -> bool:
    """Is there a blank at AT of DATA, where LEFT bytes are left of the file?"""
    if at + BLANK_SIZE > len(data):
        return False
    size, _, magic = _HEAD.read(data, at)
    return bool(magic == MAGIC_BLANK and size == left)
