"""The half queue and the op queue: which transactions are open, found at start, followed afterwards.

At start the queues are read from the offsets that were committed last; what op messages from there on tell is
resolved. A half message whose committed copy lies in the log although no op message tells of it (a kill came between
the two; a Java broker writes them seconds apart) is resolved as well, so it cannot be committed twice.

Afterwards whatever is appended to the half queue arrives here, who appended it does not matter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from ...proto.errors import PocketMQError
from ...proto.properties import TAGS
from ...proto.record import decode_record
from ...proto.record_run import parse_run, starts_of
from ...proto.topics import HALF_TOPIC, OP_HALF_TOPIC
from ...store.message_store import MessageStore
from ...store.slices import Slices
from ..appends import Appends
from ..offsets import Offsets
from .half_messages import op_parts, op_run, resolved_offsets
from .open_halves import OpenHalf, OpenHalves, halves_in
from .outcomes import Outcomes
from .progress import Progress

logger = logging.getLogger(__name__)

_READ_MESSAGES = 1_000
_READ_BYTES = 4 * 1024 * 1024
_REMOVE_TAG = "d"


class HalfQueue:
    """The half messages of STORE. The event loop owns it."""

    def __init__(
        self,
        store: MessageStore,
        appends: Appends,
        offsets: Offsets,
        outcomes: Outcomes,
        now_ms: Callable[[], int],
    ) -> None:
        self.store = store
        self.appends = appends
        self._outcomes = outcomes
        self._now_ms = now_ms
        self._progress = Progress(store, offsets)
        self._next = 0
        #: Half messages that have an outcome and could not be marked yet.
        self._owed: list[int] = []
        self.open = OpenHalves()
        #: Told of every half message that becomes open.
        self.on_open: list[Callable[[OpenHalf], None]] = []

    def start(self) -> None:
        """Find what is open, and follow the queue from here on; `on_open` hears of all."""
        self._next, op_offset = self._progress.beginnings()
        self._progress.begin(self._next, op_offset)
        resolved = self._read_ops(op_offset)
        for slices in self._slices(HALF_TOPIC, self._next):
            for half in halves_in(slices):
                self._found(half, resolved)
            self._next = slices.next_offset
        self._settle_durable()
        if self._owed:
            self.mark([])
        self.appends.listen(HALF_TOPIC, 0, self.read_new)
        for half in self.open:
            self._tell(half)
        self.reached()
        logger.info("transactions found open=%d", self.open.transactions)

    def _read_ops(self, offset: int) -> set[int]:
        """Return the offsets that the op messages from OFFSET on tell of."""
        resolved: set[int] = set()
        for slices in self._slices(OP_HALF_TOPIC, offset):
            starts = parse_run(slices.records, starts_of(slices.sizes)).starts.tolist()
            for at, number in zip(starts, slices.queue_offsets.tolist(), strict=True):
                op = decode_record(slices.records, at)
                halves = resolved_offsets(op.body) if op.properties.get(TAGS) == _REMOVE_TAG else []
                resolved.update(halves)
                self._progress.wrote_op(number, halves)
        return resolved

    def _found(self, half: OpenHalf, resolved: set[int]) -> None:
        """Take HALF in, unless it is RESOLVED; then an older one of its transaction, which was not marked, is too."""
        if half.queue_offset not in resolved and half.moved not in resolved:
            self.open.add(half)
            return
        older = self.open.get(half.group, half.transaction_id)
        if older is not None:
            self._forget(older)

    def _settle_durable(self) -> None:
        """Resolve what the log itself says the outcome of."""
        for half in self.open:
            outcome = self._outcomes.durable(half.group, half.transaction_id, half.topic)
            if outcome is not None:
                self._outcomes.remember(half.key, outcome)
                self._forget(half)

    def _forget(self, half: OpenHalf) -> None:
        self._owed += [half.queue_offset, *half.also]
        self.open.remove(half)

    def _slices(self, topic: str, offset: int) -> Iterator[Slices]:
        """Yield what queue 0 of TOPIC holds from OFFSET on."""
        while offset < self.store.queue_bounds(topic, 0)[1]:
            offset = max(offset, self.store.queue_bounds(topic, 0)[0])
            slices = self.store.read_queue(topic, 0, offset, _READ_MESSAGES, _READ_BYTES)
            if slices.next_offset == offset:
                return
            yield slices
            offset = slices.next_offset

    def read_new(self) -> None:
        """Take in what was appended to the half queue."""
        try:
            for slices in self._slices(HALF_TOPIC, self._next):
                self._next = slices.next_offset
                for half in halves_in(slices):
                    self.open.add(half)
                    self._tell(half)
        except PocketMQError as error:  # The next append tries again.
            logger.error("half messages cannot be read reason=%s", error.message)

    def _tell(self, half: OpenHalf) -> None:
        for listener in self.on_open:
            listener(half)

    # --- outcomes

    def settle(self, halves: Sequence[OpenHalf]) -> None:
        """Note that HALVES have an outcome that the log itself tells; the next `mark` marks them."""
        for half in halves:
            self._forget(half)

    def mark(self, offsets: Sequence[int]) -> int | PocketMQError:
        """Mark the half messages at OFFSETS, and what was settled, as resolved; return the end of the log that says so.

        Or the error: then nothing is said of OFFSETS, and what was settled is marked the next time.
        """
        offsets = [*self._owed, *offsets]
        end_offset: int | PocketMQError = 0
        if offsets:
            parts = op_parts(offsets)
            (outcome,) = self.appends.append([op_run(parts, self._now_ms(), self.store.host)])
            if isinstance(outcome, PocketMQError):
                logger.error("outcomes cannot be marked reason=%s", outcome.message)
                end_offset = outcome
            else:
                self._owed = []
                end_offset = outcome.end_offset
                for number, part in enumerate(parts, outcome.first_queue_offset):
                    self._progress.wrote_op(number, part)
        self.reached()
        return end_offset

    def reached(self) -> None:
        """Note how far the queue is done."""
        self._progress.reached(self.open.lowest(self._next))

    def close(self) -> None:
        """Mark what is owed, and commit how far the queues are done."""
        if self._owed:
            self.mark([])
        self._progress.close()
