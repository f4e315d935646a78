"""Keys that are entered in the index later: those of a run that has too many for one turn of the loop.

A record may have 16,000 keys, and a run of 16 MiB eight million: entering them takes over a second. So once a run has
more than INDEXED_AT_ONCE, the rest wait here, and all that come after them, in order of the log; PIECE_BYTES of
property strings are entered at a time. As with Apache's broker the index is then behind the queues: what looks for keys
has it completed first, and so has a stop; neither checkpoint nor verified.json says more than the index has; and after
a kill recovery enters from the log what the index lacks.

At most WAITING_BYTES_MAX of records wait: what comes then has as much entered first. Without `start` nothing waits.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure, StoreFull
from ..proto.property_ranges import PropertyRanges
from ..proto.record_run import RunColumns
from .flush import CallOwner
from .message_index import MessageIndex

Bytes = NDArray[np.uint8]

#: So many keys at most of a run are entered at once: some 20 ms if they are single letters, 5 ms of ordinary ones.
INDEXED_AT_ONCE: Final = 1 << 17
#: What is entered at a time of those that wait: 32,000 keys at most, 6 ms.
PIECE_BYTES: Final = 1 << 16
_PIECE_ROWS: Final = 1 << 12
WAITING_BYTES_MAX: Final = 64 << 20


@dataclass(slots=True)
class _Waiting:
    """The records of COLUMNS in DATA, of which those before NEXT_ROW are entered; TOPIC, if given, is that of all."""

    data: Bytes
    columns: RunColumns
    topic: str | None
    next_row: int = 0


class LateKeys:
    """Keys that are to be entered in INDEX; NOW_MS names its files."""

    def __init__(self, index: MessageIndex, now_ms: Callable[[], int]) -> None:
        self._index = index
        self._now_ms = now_ms
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._call_owner: CallOwner | None = None
        self._on_failure: Callable[[DiskFailure], object] = lambda error: None
        self._is_due = False

    @property
    def lag(self) -> bool:
        """Are there keys that wait?"""
        return bool(self._waiting)

    @property
    def allowed(self) -> bool:
        """May keys wait, for there will be turns in which they are entered?"""
        return self._call_owner is not None

    def start(self, call_owner: CallOwner, on_failure: Callable[[DiskFailure], object]) -> None:
        """From now on let keys wait for the turns that CALL_OWNER gives; tell ON_FAILURE of a device that fails."""
        self._call_owner = call_owner
        self._on_failure = on_failure

    def stop(self) -> None:
        """Enter what waits, and let nothing wait from now on. Raises StoreFull or DiskFailure."""
        self._call_owner = None
        self.enter_all()

    def make_room(self) -> None:
        """Enter what has to be before more may wait. Raises StoreFull or DiskFailure."""
        while self._bytes > WAITING_BYTES_MAX:
            self.enter_some()

    def put(self, data: Bytes, columns: RunColumns, topic: str | None) -> None:
        """Let the keys of COLUMNS wait, behind those that do; there is room."""
        self._waiting.append(_Waiting(data, columns, topic))
        self._bytes += int(columns.sizes.sum())
        self.go_on()

    def go_on(self) -> None:
        """Have what waits entered in the next turns; call it every now and then, for a full disk ends that."""
        if self._waiting and self._call_owner is not None and not self._is_due:
            self._is_due = True
            self._call_owner(self._in_turn)

    def _in_turn(self) -> None:
        self._is_due = False
        try:
            self.enter_some()
        except StoreFull:
            return  # The next tick tries again.
        except DiskFailure as error:
            self._on_failure(error)
            return
        self.go_on()

    def enter_all(self) -> None:
        """Enter all that waits now. Raises StoreFull or DiskFailure."""
        while self._waiting:
            self.enter_some()

    def enter_some(self) -> None:
        """Enter a piece of what waits, if anything does. Raises StoreFull or DiskFailure: then it waits still."""
        if not self._waiting:
            return
        first = self._waiting[0]
        columns, row = first.columns, first.next_row
        ends = np.cumsum(columns.properties_size[row : row + _PIECE_ROWS])
        count = max(1, int(np.searchsorted(ends, PIECE_BYTES, "right")))
        piece = columns.take(slice(row, row + count))
        properties = PropertyRanges(first.data, piece)
        self._index.put_run(
            first.data, piece, now_ms=self._now_ms(), topic=first.topic, properties=properties
        )
        first.next_row = row + len(piece)
        self._bytes -= int(piece.sizes.sum())
        if first.next_row == len(columns):
            self._waiting.popleft()


def keys_at_most(columns: RunColumns, properties: PropertyRanges) -> int:
    """Return a number that the keys of the records do not exceed."""
    words = int(np.maximum(properties.find("KEYS")[1], 0).sum()) // 2
    return words + 3 * len(columns)
