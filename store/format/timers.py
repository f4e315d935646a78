"""The timer wheel and the timer log: which messages are due when. Source: store-format.md §7.2.

File `timerwheel`: one slot for each unit of precision (seconds by default) of two weeks, 2 × 7 × 86,400 slots of 32
bytes, 38,707,200 bytes whatever the precision. Slot number = (due time / precision) mod 1,209,600. Big-endian:

    0   i64  due time / precision; the slot is valid only if this equals the time asked for
    8   i64  position in the timer log of the slot's first record
    16  i64  position of its newest record
    24  i32  pending records
    28  i32  unused, 0

A slot that was never used is zeros. Slots keep their content after they fired; the next round overwrites it.

Files `timerlog/<20 digits>` of 104,857,600 bytes: one record of 52 bytes for each scheduled, rolled or recalled
message, chained by slot; records never cross files. Big-endian:

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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record import MAGIC_BLANK, Buffer
from .log_and_queues import RowFormat, Rows

# ---------------------------------------------------------------- the wheel

SLOT: Final = RowFormat(time="q", first="q", last="q", count="i", magic="i")
SLOT_SIZE: Final = SLOT.size
SLOTS: Final = 2 * 7 * 86_400
WHEEL_SIZE: Final = SLOTS * SLOT_SIZE
_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(slots=True)
class Slot:
    """One slot; TIME is the due time in units of the precision."""

    time: int
    first: int
    last: int
    count: int = 0
    magic: int = 0


class TimerWheel:
    """The used slots of a wheel, by number; in memory, changes are never written back."""

    def __init__(self, slots: dict[int, Slot] | None = None) -> None:
        self.slots = {} if slots is None else slots

    @classmethod
    def parse(cls, data: memoryview) -> TimerWheel:
        """Return the wheel in DATA, which has WHEEL_SIZE bytes; some 20 ms."""
        rows = SLOT.columns(data, SLOTS)
        slots: dict[int, Slot] = {}
        for start in range(0, SLOTS, _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE]
            for index in np.flatnonzero(_used(part)).tolist():
                slots[start + index] = Slot(*(int(value) for value in part[index]))
        return cls(slots)

    def number_of(self, time: int) -> int:
        """Return the slot number of TIME (in units of the precision, not negative)."""
        return time % SLOTS

    def set_last(self, time: int, position: int) -> None:
        """Make POSITION the newest record of the slot of TIME; a slot of another round begins anew with it."""
        number = self.number_of(time)
        slot = self.slots.get(number)
        if slot is None:
            self.slots[number] = Slot(time, position, position)
        elif slot.time != time:
            slot.time, slot.first, slot.last = time, position, position
        else:
            slot.last = position

    def first_beyond(self, start_time: int, end: int) -> int | None:
        """Return the lowest first position of the slots of the round from START_TIME that point beyond END."""
        beyond = [
            slot.first
            for number, slot in self.slots.items()
            if slot.last > end and slot.time == start_time + (number - start_time) % SLOTS
        ]
        return min(beyond, default=None)


def _used(rows: Rows) -> NDArray[np.bool_]:
    used: NDArray[np.bool_] = (
        (rows["time"] != 0)
        | (rows["first"] != 0)
        | (rows["last"] != 0)
        | (rows["count"] != 0)
        | (rows["magic"] != 0)
    )
    return used


# ---------------------------------------------------------------- the log

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
#: Size of a record and position of the one in front of it.
LINK: Final = RowFormat(size="i", previous="q")
_HEAD: Final = RowFormat(size="i", previous="q", magic="i")
#: Log offset and size of the message, from MESSAGE_AT of a record on.
MESSAGE: Final = RowFormat(log_offset="q", size="i")
MESSAGE_AT: Final = 28
BLANK_SIZE: Final = _HEAD.size
BITS: Final = 0xF
ORDINARY: Final = 1
ROLL: Final = 2
DELETE: Final = 4
#: No record in front of it.
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
    """Yield what stands in DATA, the used bytes of the file that begins at START; a blank is the last."""
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


def blank(room: int) -> bytes:
    """Return the blank that closes a file with ROOM bytes left."""
    return _HEAD.pack(room, 0, MAGIC_BLANK)


def is_blank(data: Buffer, at: int, room: int) -> bool:
    """Does the blank stand at AT of DATA, where ROOM bytes are left of the file?"""
    if at + BLANK_SIZE > len(data):
        return False
    size, _, magic = _HEAD.read(data, at)
    return bool(magic == MAGIC_BLANK and size == room)
