"""Replicated deliveries: the table of messages in flight (pop).

Each frame begins with what the master's clocks show: i64 instant, i64 Unix ms. A full frame then has all entries of the
table, a diff the changes since, encoded as in the journal (pop/deliveries.py). The follower stores them in its own
table. So a new master finds them as it finds its own after a kill: it redelivers what it does not know. After DIFFS_MIN
bytes, or DIFFS_RATIO times the last full frame, a full frame is sent again.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ...proto.clock import Readings
from ...store.format.table_frames import ClockReading
from ...store.table_files import clock_shift
from ..callbacks import Safe
from ..pop.deliveries import DeliveryChange, DeliveryTable, shifted

DELIVERIES_FILE: Final = "tables/deliveries"
DIFFS_MIN: Final = 8 << 20
DIFFS_RATIO: Final = 4
_CLOCK: Final = struct.Struct(">qq")


class DeliveriesPart:
    """TABLE of a master, for followers; CLOCK is that of its instants."""

    file = DELIVERIES_FILE
    is_kept = False

    def __init__(self, table: DeliveryTable, clock: Readings) -> None:
        self._table = table
        self._clock = clock
        self.on_change: list[Callable[[], None]] = []
        self.count = 1
        #: What changed, with the count that it came with; what came with _FLOOR or before is gone.
        self._diffs: deque[tuple[int, bytes]] = deque()
        self._diffs_size = self._whole_size = 0
        self._floor = 1
        table.take_watched()

    def look(self) -> None:
        changes = self._table.take_watched()
        if not changes:
            return
        self.count += 1
        diff = self._table.encode_valid(changes)
        self._diffs.append((self.count, diff))
        self._diffs_size += len(diff)
        if self._diffs_size > max(DIFFS_MIN, DIFFS_RATIO * self._whole_size):
            self._diffs.clear()
            self._diffs_size = 0
            self._floor = self.count

    def behind(self, base: int) -> bytes | None:
        if base < self._floor:
            return None
        return self._content([diff for count, diff in self._diffs if count > base])

    def whole(self) -> bytes:
        content = self._content(self._table.pieces())
        self._whole_size = len(content)
        return content

    def _content(self, parts: Iterable[bytes]) -> bytes:
        return b"".join((_CLOCK.pack(self._clock.now_ms(), self._clock.unix_ms()), *parts))


class DeliveriesSink:
    """TABLE of a follower, whose own CLOCK its instants are of."""

    file = DELIVERIES_FILE
    is_kept = False

    def __init__(self, table: DeliveryTable, clock: Readings) -> None:
        self._table = table
        self._clock = clock

    def read(self, content: bytes) -> tuple[ClockReading, list[DeliveryChange]]:
        if len(content) < _CLOCK.size:
            raise ValueError("there is no clock")
        reading = ClockReading(*_CLOCK.unpack_from(content))
        return reading, self._table.decode(content[_CLOCK.size :])

    def apply(
        self, said: tuple[ClockReading, list[DeliveryChange]], *, whole: bool, log_offset: int
    ) -> None:
        reading, changes = said
        own = ClockReading(self._clock.now_ms(), self._clock.unix_ms())
        ms = clock_shift(reading, own)
        if whole:
            self._table.clear_all()
        self._table.change_all([shifted(change, ms) for change in changes])

    def when_safe(self, done: Safe) -> None:
        self._table.when_durable(done)

    def close(self) -> None:
        """The journal is closed after all parts."""
