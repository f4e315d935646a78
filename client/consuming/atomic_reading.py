"""The consumer's part of an atomic commit: what it has read, with which leases, and where it continues after a failure.

While the atomic commit is open, it notes the queues whose messages the application gets. At the commit the consumer
must hold all of them. If a queue has moved, another member gets its messages again, so their results must not be
stored. Not thread-safe: the consumer's event loop owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ...proto.errors import ConfigError, InvalidArgument, LeaseLost, PocketMQError
from ..queue import Queue
from .held_queue import Batch, Cursor, HeldQueue, ReadPosition, ReadSpan
from .reading import PullReading
from .unshared_queues import committed_offsets


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The offsets of a queue that an atomic commit covers.

    From `begin`, the committed offset of the group (−1: none), up to `end`.
    """

    held: HeldQueue
    begin: int
    end: int


class AtomicReading:
    """Notes what a consumer reads during one atomic commit. The API class writes the cursor."""

    def __init__(self, reading: PullReading, cursor: Cursor) -> None:
        self._reading = reading
        self._cursor = cursor
        #: By queue: the stretches whose messages were delivered, and the offset of the first message.
        self._seen: dict[Queue, tuple[set[ReadSpan], int]] = {}
        #: The application's position when the atomic commit started: a batch, and the cursor in it.
        self._at_begin: tuple[Batch, int, int] | None = None

    @property
    def group(self) -> str:
        """The group whose offsets are committed."""
        return self._reading.parts.group

    def begin(self) -> None:
        """Start to note what the application gets. Its current message is included.

        Raises:
            ConfigError: The consumer commits by itself, or does not share a group.
            InvalidArgument: The consumer has no group, or is in another atomic commit.
        """
        reading, config = self._reading, self._reading.config
        reading.check_open()
        reading.parts.need_group("take part in an atomic commit")
        if config.auto_commit or config.broadcasting or config.delivery != "at_least_once":
            raise ConfigError(
                "an atomic commit needs a consumer that does not commit by itself: write"
                ' PullConsumer(…, auto_commit=False), without broadcasting=True and delivery="at_most_once"',
                field="auto_commit",
                value=config.auto_commit,
            )
        if reading.is_observed:
            raise InvalidArgument(
                "the consumer is in another atomic commit: end that one first", field="consumer"
            )
        cursor = self._cursor
        batch, is_at_some = cursor.batch, cursor.begin < cursor.end
        if batch is not None and (is_at_some or len(cursor.rest())):
            self._at_begin = batch, cursor.begin, cursor.end
        reading.observe(self._on_batch)

    def _on_batch(self, batch: Batch) -> None:
        self._note_read(batch, batch.offset_at(0))

    def _note_read(self, batch: Batch, offset: int) -> None:
        stretches, first = self._seen.get(batch.stretch.queue, (set(), offset))
        self._seen[batch.stretch.queue] = stretches | {batch.stretch}, min(first, offset)

    def _note_current(self) -> None:
        """Note the batch that was current at the start, if the application got messages of it."""
        if self._at_begin is None:
            return
        batch, begin, end = self._at_begin
        self._at_begin = None
        if begin < end or self._cursor.batch is not batch or self._cursor.end > end:
            self._note_read(batch, batch.offset_at(begin))

    def ranges(self) -> list[ReadRange]:
        """Mark everything delivered as finished; return the ranges that are not committed yet.

        Queues on brokers from which nothing was delivered are omitted. Raises LeaseLost.
        """
        reading = self._reading
        reading.check_open()
        assert reading.supply is not None, "begin was called"
        self._note_current()
        reading.positions.finish(self._cursor.finish())
        source, keeper = reading.supply.source, reading.supply.keeper
        for queue, (stretches, _) in self._seen.items():
            if any(one.void or source.held(queue) != one.held for one in stretches):
                raise LeaseLost(
                    f"queue {queue} was reassigned, or its offset was changed, after its messages were read: the atomic"
                    " commit is refused, and the messages are redelivered",
                    topic=queue.topic,
                    queue=queue.number,
                    group=self.group,
                )
        found = []
        for queue, end in reading.positions.finished().items():
            committed = keeper.committed(queue)
            begin = -1 if committed is None else committed
            held = source.held(queue)
            if end != begin and held is not None:
                found.append(ReadRange(held, begin, end))
        # Messages that a filter skipped on other brokers are committed after something is read there.
        brokers = {queue.broker for queue in self._seen}
        return [one for one in found if one.held.queue.broker in brokers]

    def committed(self, ranges: Iterable[ReadRange]) -> None:
        """End the atomic commit: the broker has committed RANGES."""
        assert self._reading.supply is not None, "begin was called"
        for one in ranges:
            self._reading.supply.keeper.learn(one.held.queue, one.end)
            self._reading.counts.commits += 1
        self._end()

    async def give_up(self, *, ask: bool) -> None:
        """End the atomic commit without success: the messages that were read are redelivered.

        ASK: the brokers may have committed nevertheless, so continue at the offsets that they have.
        """
        self._note_current()
        queues = list(self._seen)
        known: dict[Queue, int] = {}
        try:
            if ask and queues:
                with suppress(
                    PocketMQError
                ):  # If the offset is wrong then, the next commit is refused.
                    known = await committed_offsets(self._reading.parts, queues)
        finally:
            self._go_back_to(known)

    def _go_back_to(self, known: Mapping[Queue, int]) -> None:
        """Let each queue continue at its KNOWN committed offset, or else at the first message of this atomic commit."""
        for queue, (stretches, first) in self._seen.items():
            for stretch in stretches:
                stretch.annul()
            self._go_back(queue, first, known.get(queue, -1))
        self._cursor.finish()  # The messages are void, so this commits nothing.
        self._end()

    def _go_back(self, queue: Queue, first: int, committed: int) -> None:
        reading = self._reading
        offset = first if committed < 0 else committed
        reading.positions.go_back(queue, offset)
        active = reading.active.get(queue)
        if active is None:
            return
        if committed >= 0 and reading.supply is not None:
            reading.supply.keeper.learn(queue, committed)
        reading.restart_at(active, offset)
        reading.positions.finish(ReadPosition(active.stretch, offset))

    def _end(self) -> None:
        self._reading.observe(None)
        self._seen = {}
        self._reading.return_if_ended()
