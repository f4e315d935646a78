"""The timer wheel: the messages that are due at each time. Source: store-format.md §7.2.

File `timerwheel`: one slot for each unit of precision (seconds by default) of two weeks, 2 × 7 × 86,400 slots of 32
bytes, 38,707,200 bytes whatever the precision. Slot number = (due time / precision) mod 1,209,600. Big-endian:

    0   i64  due time / precision; the slot is valid only if this equals the time asked for
    8   i64  position in the timer log of the slot's first record
    16  i64  position of its newest record
    24  i32  pending records
    28  i32  unused, 0

A slot that was never used is zeros. Slots keep their content after they fired; the next round overwrites it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .rows import RowFormat, Rows

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
    """The used slots of a wheel, by number; in memory. Changes are never written back."""

    def __init__(self, slots: dict[int, Slot] | None = None) -> None:
        self.slots = {} if slots is None else slots

    @classmethod
    def parse(cls, data: memoryview) -> TimerWheel:
        """Return the wheel in DATA, which must have WHEEL_SIZE bytes; takes about 20 ms."""
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
        """Make POSITION the newest record of the slot of TIME; a slot of another round starts again with it."""
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
