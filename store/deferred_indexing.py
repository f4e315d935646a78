"""Deferred indexing: very many keys are entered in later turns of the owner's loop.

A record may have 16,000 keys and a batch of 16 MiB eight million. Entering them takes over a second, so `Dispatcher`
defers the keys beyond `INDEXED_AT_ONCE`, and then all later ones, to keep the order of the log.

The index is then incomplete, as it can be in RocketMQ's broker. A search by key and a stop complete it first. The
checkpoint and verified.json never claim more than the index has. After a kill, recovery enters the missing keys from
the log.

If more than `WAITING_BYTES_MAX` of records wait, older ones are entered before a new one waits. Before `start`, and
after `stop`, nothing waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..proto.errors import DiskFailure, StoreFull
from ..proto.property_ranges import PropertyRanges
from ..proto.record_run import RunColumns
from .flush import CallOwner
from .message_index import MessageIndex
from .rows_by_queue import Bytes

#: Bytes of property strings entered per turn: up to 32,000 keys, about 6 ms.
PIECE_BYTES: Final = 1 << 16
_PIECE_ROWS: Final = 1 << 12
WAITING_BYTES_MAX: Final = 64 << 20


@dataclass(slots=True)
class _Waiting:
    """Records whose keys wait, from NEXT_ROW on. TOPIC, if given, is the topic of all of them."""

    data: Bytes
    columns: RunColumns
    topic: str | None
    next_row: int = 0


class DeferredIndexing:
    """Keys that wait to be entered in INDEX. Its files are named by NOW_MS."""

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
        """Do keys wait?"""
        return bool(self._waiting)

    @property
    def allowed(self) -> bool:
        """May keys wait?"""
        return self._call_owner is not None

    def start(self, call_owner: CallOwner, on_failure: Callable[[DiskFailure], object]) -> None:
        """Let keys wait for the turns of CALL_OWNER. ON_FAILURE is called when the disk fails."""
        self._call_owner = call_owner
        self._on_failure = on_failure

    def stop(self) -> None:
        """Enter all waiting keys; from now on no keys wait. Raises StoreFull or DiskFailure."""
        self._call_owner = None
        self.enter_all()

    def make_room(self) -> None:
        """Enter waiting keys until more may wait. Raises StoreFull or DiskFailure."""
        while self._bytes > WAITING_BYTES_MAX:
            self.enter_some()

    def put(self, data: Bytes, columns: RunColumns, topic: str | None) -> None:
        """Add the keys of COLUMNS to the end. Call `make_room` first."""
        self._waiting.append(_Waiting(data, columns, topic))
        self._bytes += int(columns.sizes.sum())
        self.go_on()

    def go_on(self) -> None:
        """Schedule the next turn. Call it again after a full disk, which ends the turns."""
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
        """Enter all waiting keys now. Raises StoreFull or DiskFailure."""
        while self._waiting:
            self.enter_some()

    def enter_some(self) -> None:
        """Enter the next piece. Raises StoreFull or DiskFailure: the piece still waits then."""
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
    """Return an upper limit of the number of keys of the records."""
    words = int(np.maximum(properties.find("KEYS")[1], 0).sum()) // 2
    return words + 3 * len(columns)
