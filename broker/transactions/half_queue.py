"""The half queue and the op queue: which transactions are open, and the results of the others (commit or rollback).

At start the queues are read from the last committed offsets (progress.py). Half messages named by later op messages are
resolved. So is a half message whose committed copy is in the log without an op message, so it cannot be committed
twice. If a power cut took a copy but not its op message, the half message is open again, and is stored again.

Later, all appends to the half queue arrive here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ...proto.clock import Clock, past_instant
from ...proto.errors import PocketMQError
from ...proto.properties import TAGS
from ...proto.record import decode_record
from ...proto.record_run import starts_of
from ...proto.run import Run
from ...proto.topics import HALF_TOPIC, OP_HALF_TOPIC
from ...store.message_store import MessageStore
from ..messages.appender import Appender
from ..messages.lookup import at_once
from ..offsets import Offsets
from .half_copies import find_copies, slices_from
from .open_halves import Key, OpenHalf, OpenHalves, halves_in
from .outcomes import Outcome, Outcomes
from .progress import Progress
from .records import COPIED, HalfCopies, op_parts, op_run, resolved_offsets

logger = logging.getLogger(__name__)


_REMOVE_TAG = "d"


#: Offsets of the half queue that are marked as resolved, with the log offset of the op message.
_Marks: TypeAlias = dict[int, int]


def _is_marked(half: OpenHalf, marks: _Marks) -> bool:
    """Return whether MARKS has HALF. An older op message is about a lost half message with the same offset."""
    return marks.get(half.queue_offset, -1) > half.log_offset


class HalfQueue:
    """The half messages of STORE. The event loop owns it."""

    def __init__(
        self,
        store: MessageStore,
        appends: Appender,
        offsets: Offsets,
        outcomes: Outcomes,
        clock: Clock,
        opened: Callable[[OpenHalf], None],
    ) -> None:
        """OPENED is called with each half message that becomes open."""
        self.store = store
        self.appends = appends
        self._outcomes = outcomes
        self._clock = clock
        self._progress = Progress(store, offsets, appends)
        self._next = 0
        #: Half messages that are resolved but not marked yet.
        self._owed: list[int] = []
        self.open = OpenHalves()
        self._opened = opened

    def start(self) -> None:
        """Find open half messages, and process new ones from here on."""
        begin, op_offset = self._progress.beginnings()
        self._progress.begin(begin, op_offset)
        resolved, copied = self._read_ops(op_offset)
        copies: dict[Key, Outcome] | None = None
        lost: set[int] = set()
        if not self.store.last_stop_was_clean:
            copies, lost = self._copies(begin, resolved, copied)
        for offset, op_log_offset in copied.items():
            if offset not in lost:
                resolved[offset] = max(op_log_offset, resolved.get(offset, -1))
        self._next = begin
        for slices in slices_from(self.store, HALF_TOPIC, 0, begin):
            for half in halves_in(slices):
                self._found(half, resolved)
            self._next = slices.next_offset
        self._settle_durable(copies)
        if lost:
            self._store_again([half for half in self.open if half.queue_offset in lost])
        if self._owed:
            self.mark([])
        self.appends.listen(HALF_TOPIC, 0, self.read_new)
        for half in self.open:
            self._open(half)
        self.reached()
        logger.info("transactions found open=%d", self.open.transactions)

    def _read_ops(self, offset: int) -> tuple[_Marks, _Marks]:
        """Return the offsets in op messages from OFFSET on: all of them, and those with a promised copy."""
        resolved: _Marks = {}
        copied: _Marks = {}
        for slices in slices_from(self.store, OP_HALF_TOPIC, 0, offset):
            starts = starts_of(slices.sizes).tolist()
            for at, number in zip(starts, slices.queue_offsets.tolist(), strict=True):
                op = decode_record(slices.records, at)
                halves = resolved_offsets(op.body) if op.properties.get(TAGS) == _REMOVE_TAG else []
                marks = copied if COPIED in op.properties else resolved
                marks.update(dict.fromkeys(halves, op.log_offset))
                self._progress.wrote_op(number, halves)
        return resolved, copied

    def _copies(
        self, begin: int, resolved: _Marks, copied: _Marks
    ) -> tuple[dict[Key, Outcome], set[int]]:
        """Return the results in the log of half messages from BEGIN on that are not surely RESOLVED.

        Also return those of COPIED that have no copy.
        """
        newest: dict[Key, OpenHalf] = {}
        for slices in slices_from(self.store, HALF_TOPIC, 0, begin):
            for half in halves_in(slices):
                if _is_marked(half, resolved):
                    newest.pop(half.key, None)
                else:
                    newest[half.key] = half
        found = find_copies(self.store, newest.values())
        lost = {
            half.queue_offset
            for key, half in newest.items()
            if key not in found and _is_marked(half, copied)
        }
        return found, lost

    def _store_again(self, halves: Sequence[OpenHalf]) -> None:
        """Store HALVES again, whose copies were lost: existing marks do not apply to the new ones."""
        logger.warning("half messages without their promised copy are open count=%d", len(halves))
        records = [self.store.read_at(half.log_offset, half.size) for half in halves]
        there = [record for record in records if record is not None]
        if not there:
            return
        copies = HalfCopies(there)
        again = Run.of(HALF_TOPIC, 0, [copies.again(row) for row in range(len(there))])
        self.appends.append_one(again)
        self.read_new()

    def _found(self, half: OpenHalf, resolved: _Marks) -> None:
        """Add HALF unless it is RESOLVED; then an older one of its transaction without a mark is resolved, too."""
        if not _is_marked(half, resolved) and half.moved not in resolved:
            self.open.add(half)
            return
        older = self.open.get(half.group, half.transaction_id)
        if older is not None:
            self._forget(older)

    def _settle_durable(self, copies: dict[Key, Outcome] | None) -> None:
        """Resolve the half messages whose result is in the log: in COPIES, or found by the index."""
        for half in self.open:
            if copies is None:
                found = self._outcomes.durable(half.group, half.transaction_id, half.topic)
                outcome = at_once(found)
            else:
                outcome = copies.get(half.key)
            if outcome is not None:
                self._outcomes.remember(half.key, outcome)
                self._forget(half)

    def _forget(self, half: OpenHalf) -> None:
        self._owed += [half.queue_offset, *half.also]
        self.open.remove(half)

    @property
    def unread(self) -> int:
        """The number of half messages that are stored and not confirmed."""
        queue = self.store.queues.get(HALF_TOPIC, 0)
        return 0 if queue is None else queue.max_offset - self._next

    def read_new(self) -> None:
        """Process new messages of the half queue."""
        try:
            for slices in slices_from(self.store, HALF_TOPIC, 0, self._next):
                self._next = slices.next_offset
                for half in halves_in(slices):
                    self.open.add(half)
                    self._open(half)
        except PocketMQError as error:  # The next append retries.
            logger.error("half messages cannot be read reason=%s", error.message)

    def _open(self, half: OpenHalf) -> None:
        # From here on it is a timer time, independent of later changes of the wall clock.
        half.stored_ms = past_instant(self._clock, half.stored_ms)
        self._opened(half)

    def settle(self, halves: Sequence[OpenHalf]) -> None:
        """Record that HALVES are resolved and their copies are in the log; the next `mark` marks them."""
        for half in halves:
            self._forget(half)

    def settle_older(self, half: OpenHalf) -> None:
        """Record that HALF replaces the older half messages of its transaction; the next `mark` marks them."""
        self._owed += half.also
        self.open.remove_older(half)

    def mark(self, offsets: Sequence[int]) -> int | PocketMQError:
        """Mark the half messages at OFFSETS, and settled ones, as resolved; return the log offset after the marks.

        After an error, which is returned, OFFSETS are not marked, and settled ones are marked the next time.
        """
        copied, others = op_parts(self._owed), op_parts(offsets)
        runs = []
        for parts, has_copy in ((copied, True), (others, False)):
            if parts:
                runs.append(op_run(parts, self._clock.unix_ms(), self.store.host, copied=has_copy))
        outcomes = self.appends.append(runs) if runs else []
        end_offset: int | PocketMQError = 0
        for parts, outcome in zip(
            [parts for parts in (copied, others) if parts], outcomes, strict=True
        ):
            if isinstance(outcome, PocketMQError):
                logger.error("op messages not written reason=%s", outcome.message)
                end_offset = outcome
                continue
            for number, part in enumerate(parts, outcome.first_queue_offset):
                self._progress.wrote_op(number, part)
            if parts is copied:
                self._owed = []
            end_offset = outcome.end_offset
        self.reached()
        return end_offset

    def reached(self) -> None:
        """Record the progress of the queue."""
        self._progress.reached(self.open.lowest(self._next))

    def close(self) -> None:
        """Mark settled half messages, and commit the progress of the queues."""
        if self._owed:
            self.mark([])
        self.reached()
        self._progress.close()
