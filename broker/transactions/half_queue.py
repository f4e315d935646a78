"""The half queue and the op queue: which transactions are open, found at start, followed afterwards.

At start the queues are read from the offsets that were committed last; what op messages from there on tell is
resolved. A half message whose committed copy lies in the log although no op message tells of it (a kill came between
the two; a Java broker writes them seconds apart) is resolved as well, so it cannot be committed twice. And after a
power cut the log may have the op message of a copy that it lost: a half message whose promised copy is not there is
open again, and stored again. The broker does not start if the store cannot take that.

Afterwards whatever is appended to the half queue arrives here, who appended it does not matter.
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
from ..appends import Appends
from ..lookup import at_once
from ..offsets import Offsets
from .copies import find_copies, slices_from
from .half_messages import COPIED, HalfCopies, op_parts, op_run, resolved_offsets
from .open_halves import Key, OpenHalf, OpenHalves, halves_in
from .outcomes import Outcome, Outcomes
from .progress import Progress

logger = logging.getLogger(__name__)

_REMOVE_TAG = "d"


#: Offsets of the half queue that are marked as resolved, and where in the log the op message lies that says so.
_Marks: TypeAlias = dict[int, int]


def _is_marked(half: OpenHalf, marks: _Marks) -> bool:
    """Do MARKS tell of HALF? An op message that is older tells of one that a power cut took, whose place it has."""
    return marks.get(half.queue_offset, -1) > half.log_offset


class HalfQueue:
    """The half messages of STORE. The event loop owns it."""

    def __init__(
        self,
        store: MessageStore,
        appends: Appends,
        offsets: Offsets,
        outcomes: Outcomes,
        clock: Clock,
    ) -> None:
        self.store = store
        self.appends = appends
        self._outcomes = outcomes
        self._clock = clock
        self._progress = Progress(store, offsets, appends)
        self._next = 0
        #: Half messages that have an outcome and could not be marked yet.
        self._owed: list[int] = []
        self.open = OpenHalves()
        #: Told of every half message that becomes open.
        self.on_open: list[Callable[[OpenHalf], None]] = []

    def start(self) -> None:
        """Find what is open, and follow the queue from here on; `on_open` hears of all."""
        begin, op_offset = self._progress.beginnings()
        self._progress.begin(begin, op_offset)
        resolved, copied = self._read_ops(op_offset)
        copies: dict[Key, Outcome] | None = None
        lost: set[int] = set()
        if not self.store.ended_cleanly:
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
            self._tell(half)
        self.reached()
        logger.info("transactions found open=%d", self.open.transactions)

    def _read_ops(self, offset: int) -> tuple[_Marks, _Marks]:
        """Return what the op messages from OFFSET on tell of: as such, and with the promise of a copy."""
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
        """Return the outcomes that the log has of the half messages from BEGIN on which are not RESOLVED for sure.

        And which of those that are said to be COPIED have no copy.
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
        """Store HALVES again, whose copies were lost: the marks that are there do not tell of the new ones."""
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
        """Take HALF in, unless it is RESOLVED; then an older one of its transaction, which was not marked, is too."""
        if not _is_marked(half, resolved) and half.moved not in resolved:
            self.open.add(half)
            return
        older = self.open.get(half.group, half.transaction_id)
        if older is not None:
            self._forget(older)

    def _settle_durable(self, copies: dict[Key, Outcome] | None) -> None:
        """Resolve what the log itself says the outcome of: COPIES, or what the index finds."""
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
        """How many half messages are stored and not confirmed."""
        queue = self.store.queues.get(HALF_TOPIC, 0)
        return 0 if queue is None else queue.max_offset - self._next

    def read_new(self) -> None:
        """Take in what was appended to the half queue."""
        try:
            for slices in slices_from(self.store, HALF_TOPIC, 0, self._next):
                self._next = slices.next_offset
                for half in halves_in(slices):
                    self.open.add(half)
                    self._tell(half)
        except PocketMQError as error:  # The next append tries again.
            logger.error("half messages cannot be read reason=%s", error.message)

    def _tell(self, half: OpenHalf) -> None:
        # From here on an instant for waits, which nobody can set.
        half.stored_ms = past_instant(self._clock, half.stored_ms)
        for listener in self.on_open:
            listener(half)

    # --- outcomes

    def settle(self, halves: Sequence[OpenHalf]) -> None:
        """Note that HALVES have an outcome of which the log has the copy; the next `mark` marks them."""
        for half in halves:
            self._forget(half)

    def settle_older(self, half: OpenHalf) -> None:
        """Note that HALF stands for the older half messages of its transaction; the next `mark` marks them."""
        self._owed += half.also
        self.open.remove_older(half)

    def mark(self, offsets: Sequence[int]) -> int | PocketMQError:
        """Mark the half messages at OFFSETS, and what was settled, as resolved; return the end of the log that says so.

        Or the error: then nothing is said of OFFSETS, and what was settled is marked the next time.
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
                logger.error("outcomes cannot be marked reason=%s", outcome.message)
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
        """Note how far the queue is done."""
        self._progress.reached(self.open.lowest(self._next))

    def close(self) -> None:
        """Mark what is owed, and commit how far the queues are done."""
        if self._owed:
            self.mark([])
        self.reached()
        self._progress.close()
