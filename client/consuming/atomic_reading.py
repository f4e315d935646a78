"""The consumer's part of an atomic commit: how far it has read, with which leases, and where it continues if it fails.

From its beginning on, it records from which queues messages are delivered to the application. The consumer must hold
all of them at the commit: messages of a queue that moved to another member are redelivered there, so their results must
not be stored. Not thread-safe: the consumer's event loop owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ...proto.errors import ConfigError, InvalidArgument, LeaseLost, PocketMQError
from ..queue import Queue
from .held_queue import Batch, Cursor, HeldQueue, ReadPosition, ReadStretch
from .reading import PullReading
from .unshared_queues import committed_offsets


@dataclass(frozen=True, slots=True)
class ReadRange:
    """What was read of a queue: from what the group has committed, −1 for nothing, to END."""

    held: HeldQueue
    begin: int
    end: int


class AtomicReading:
    """What READING reads for one atomic commit. The API class writes CURSOR."""

    def __init__(self, reading: PullReading, cursor: Cursor) -> None:
        self._reading = reading
        self._cursor = cursor
        #: What the application was handed messages of, and the first of them, by queue.
        self._seen: dict[Queue, tuple[set[ReadStretch], int]] = {}
        #: The application's position at the beginning: a batch, and the cursor in it.
        self._at_begin: tuple[Batch, int, int] | None = None

    @property
    def group(self) -> str:
        """The group whose offsets are committed."""
        return self._reading.parts.group

    def begin(self) -> None:
        """Note what the application gets from now on; its current message counts.

        Raises ConfigError for a consumer that commits by itself, InvalidArgument for one in another atomic commit.
        """
        reading, config = self._reading, self._reading.config
        reading.check_open()
        reading.parts.need_group("take part in an atomic commit")
        if config.auto_commit or config.broadcasting or config.delivery != "at_least_once":
            raise ConfigError(
                "an atomic commit needs a consumer that commits nothing by itself, and that shares a group: write"
                " PullConsumer(…, auto_commit=False), without broadcasting and at_most_once",
                field="auto_commit",
                value=config.auto_commit,
            )
        if reading.is_watched:
            raise InvalidArgument(
                "the consumer is in another atomic commit, which has to end first", field="consumer"
            )
        cursor = self._cursor
        batch, is_at_some = cursor.batch, cursor.begin < cursor.end
        if batch is not None and (is_at_some or len(cursor.rest())):
            self._at_begin = batch, cursor.begin, cursor.end
        reading.watch(self._handed)

    def _handed(self, batch: Batch) -> None:
        self._see(batch, batch.offset_at(0))

    def _see(self, batch: Batch, offset: int) -> None:
        stretches, first = self._seen.get(batch.stretch.queue, (set(), offset))
        self._seen[batch.stretch.queue] = stretches | {batch.stretch}, min(first, offset)

    def _look_back(self) -> None:
        """Count the batch at which the application was at the beginning if it got some of it."""
        if self._at_begin is None:
            return
        batch, begin, end = self._at_begin
        self._at_begin = None
        if begin < end or self._cursor.batch is not batch or self._cursor.end > end:
            self._see(batch, batch.offset_at(begin))

    def ranges(self) -> list[ReadRange]:
        """Finish all that was delivered; return what is not committed of it. Raises LeaseLost.

        Queues of brokers from which nothing was delivered are left out.
        """
        reading = self._reading
        reading.check_open()
        assert reading.supply is not None, "it was begun"
        self._look_back()
        reading.positions.finish(self._cursor.finish())
        source, keeper = reading.supply.source, reading.supply.keeper
        for queue, (stretches, _) in self._seen.items():
            if any(one.void or source.held(queue) != one.held for one in stretches):
                raise LeaseLost(
                    f"queue {queue} moved to another member, or to another offset, since its messages were read: their"
                    " results are not committed, and the messages are redelivered",
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
        # What a filter passed over at other brokers waits until something is read there.
        brokers = {queue.broker for queue in self._seen}
        return [one for one in found if one.held.queue.broker in brokers]

    def committed(self, ranges: Iterable[ReadRange]) -> None:
        """End it: the broker has committed RANGES."""
        assert self._reading.supply is not None, "it was begun"
        for one in ranges:
            self._reading.supply.keeper.learn(one.held.queue, one.end)
            self._reading.counts.commits += 1
        self._end()

    async def give_up(self, *, ask: bool) -> None:
        """End it without a commit: what was read is redelivered; with ASK from the offsets that the brokers have."""
        self._look_back()
        queues = list(self._seen)
        known: dict[Queue, int] = {}
        try:
            if ask and queues:
                with suppress(PocketMQError):  # The next commit is refused if it does not fit.
                    known = await committed_offsets(self._reading.parts, queues)
        finally:
            self._go_back_to(known)

    def _go_back_to(self, known: Mapping[Queue, int]) -> None:
        """End it; every queue continues at its KNOWN committed offset, or else where this commit began to read it."""
        for queue, (stretches, first) in self._seen.items():
            for stretch in stretches:
                stretch.annul()
            self._go_back(queue, first, known.get(queue, -1))
        self._cursor.finish()  # Of what is void.
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
        reading.go(active, offset)
        reading.positions.finish(ReadPosition(active.stretch, offset))

    def _end(self) -> None:
        self._reading.watch(None)
        self._seen = {}
        self._reading.let_go_of_ended()
