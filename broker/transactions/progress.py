"""Progress of the half queue and the op queue: where the next start begins to read them.

The offsets are those of the group CID_RMQ_SYS_TRANS in consumerOffset.json, as in Apache RocketMQ:

    half queue   everything below the offset is resolved, or was stored again later
    op queue     everything below the offset names only half messages below that of the half queue

They are committed only once the log is on disk up to there. A kill loses some seconds of progress, never half messages.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ...proto.topics import HALF_TOPIC, OP_HALF_TOPIC
from ...store.message_store import MessageStore
from ..messages.appender import Appender
from ..offsets import Offsets

GROUP: Final = "CID_RMQ_SYS_TRANS"
_OPS_MAX: Final = 20_000


class Progress:
    """Progress in STORE, kept in OFFSETS. The event loop owns it."""

    def __init__(self, store: MessageStore, offsets: Offsets, appends: Appender) -> None:
        self._store = store
        self._appends = appends
        self._offsets = offsets
        #: Needed op messages: queue offset, and the highest half message that each names.
        self._ops: deque[tuple[int, int]] = deque()
        self._op_end = 0
        self._half = 0
        #: Progress that is committed once the log is flushed up to the first number.
        self._waiting: tuple[int, int, int] | None = None
        self._dirty = False
        store.events.flushed.append(self._flushed)

    def beginnings(self) -> tuple[int, int]:
        """Return the offsets in the half and the op queue from which a start must read."""
        return self._beginning(HALF_TOPIC), self._beginning(OP_HALF_TOPIC)

    def _beginning(self, topic: str) -> int:
        low, high = self._store.queue_bounds(topic, 0)
        committed = self._offsets.committed(topic, GROUP, 0)
        return low if committed is None else min(max(committed, low), high)

    def begin(self, half: int, op: int) -> None:
        """Start with everything below HALF and OP done, as from `beginnings`."""
        self._half, self._op_end = half, op

    def wrote_op(self, op_offset: int, halves: list[int]) -> None:
        """Record the op message at OP_OFFSET of its queue, which names HALVES."""
        self._op_end = op_offset + 1
        self._ops.append((op_offset, max(halves, default=-1)))
        if len(self._ops) > _OPS_MAX:
            self._coarsen()

    def _coarsen(self) -> None:
        ops = list(self._ops)
        odd = ops[len(ops) & ~1 :]
        pairs = zip(ops[::2], ops[1::2], strict=False)
        self._ops = deque((first, max(high, other)) for (first, high), (_, other) in pairs)
        self._ops.extend(odd)

    def reached(self, lowest_open: int) -> None:
        """Record that everything below LOWEST_OPEN of the half queue is done, and commit that when it is safe."""
        self._half = lowest_open
        while self._ops and self._ops[0][1] < lowest_open:
            self._ops.popleft()
        self._dirty = True
        if self._waiting is None:
            self._wait()

    def _wait(self) -> None:
        self._dirty = False
        op = self._ops[0][0] if self._ops else self._op_end
        self._waiting = (self._store.max_log_offset, self._half, op)
        self._flushed(self._store.flushed_offset)

    def _flushed(self, offset: int) -> None:
        if self._waiting is None or min(offset, self._appends.flushed_offset) < self._waiting[0]:
            return
        _, half, op = self._waiting
        self._waiting = None
        self._commit(HALF_TOPIC, half)
        self._commit(OP_HALF_TOPIC, op)
        if self._dirty:
            self._wait()

    def _commit(self, topic: str, offset: int) -> None:
        # Commit nothing if there was never a transaction.
        if self._beginning(topic) != offset:
            self._offsets.commit(topic, GROUP, 0, offset)

    def close(self) -> None:
        """Commit the exact progress. The log is flushed to disk first."""
        if self._waiting is not None:
            self._store.flush()
            self._flushed(self._store.flushed_offset)
