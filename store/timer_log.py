"""The timer log: one record for each scheduled, rolled or recalled message, chained by slot. Reading side.

Mapped files `timerlog/<20 digits>` of 104,857,600 bytes, records of 52 bytes that never cross files, big-endian:

    0   i32  52
    4   i64  position of the previous record of the same slot, −1 for none
    12  i32  bits: 1 ordinary, 2 roll, 4 delete; valid if only the low four are used
    16  i64  write time, floored to the precision, ms
    24  i32  due time − write time, ms
    28  i64  log offset of the message
    36  i32  its size
    40  i32  Java hash of the real topic, 0 for none
    44  i64  0

A file without room for a record and 16 bytes more ends in a blank: i32 what is left, i64 0, i32 CBD43194.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..proto.record import MAGIC_BLANK

RECORD_SIZE: Final = 52
#: Where the log offset of the message stands in a record.
MESSAGE_AT: Final = 28
BITS: Final = 0xF
_RECORD = struct.Struct(">iqiqiqiiq")
_HEAD = struct.Struct(">iqi")


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
    """Yield what stands in DATA, the used bytes of the file that begins at START; a blank is the last."""
    for at in range(0, len(data) - RECORD_SIZE + 1, RECORD_SIZE):
        size, _, magic = _HEAD.unpack_from(data, at)
        if magic == MAGIC_BLANK:
            yield TimerBlank(start + at, size)
            return
        yield TimerRecord(start + at, *_RECORD.unpack_from(data, at))
