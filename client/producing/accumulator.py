"""Gathers messages into runs, one lane a queue, and sends the runs of a lane one after the other.

Batching is natural: a message for an idle queue leaves at once (at the end of the event loop's turn, with whatever
else this turn brought), and what arrives while a run travels gathers in the next one. A run that is full is sealed,
that is encoded, at once, while its predecessor travels. Only one run of a queue is under way at any time, so that order
within a queue holds over retries; runs of different queues travel together.

Not thread-safe: the producer's event loop owns it. Bounded by the producer's budget.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from ...proto.clock import Clock
from ...proto.errors import PocketMQError, SendFailed
from ..config import ProducerConfig
from ..message import Message
from ..queue import Queue
from ..tasks import Tasks
from .run import Origin, Outcome, Run

logger = logging.getLogger(__name__)


class _Lane:
    """The runs of one queue: sealed ones in order, then the open one."""

    __slots__ = ("active", "filled", "open", "queue", "sealed")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.sealed: deque[Run] = deque()
        self.open: Run | None = None
        self.active = False
        #: Set when a run is sealed, which ends a linger.
        self.filled = asyncio.Event()

    def next(self) -> Run | None:
        if self.sealed:
            return self.sealed.popleft()
        run, self.open = self.open, None
        return run


class Accumulator:
    """Takes messages, makes runs, and has DELIVER bring each to its end."""

    def __init__(
        self,
        config: ProducerConfig,
        deliver: Callable[[Run], Awaitable[None]],
        give_back: Callable[[int], None],
        *,
        clock: Clock,
        tasks: Tasks,
        origin: Origin,
    ) -> None:
        self._config = config
        self._deliver = deliver
        self._give_back = give_back
        self._clock = clock
        self._tasks = tasks
        self._origin = origin
        self._lanes: dict[Queue, _Lane] = {}
        #: By topic, the lane that messages for any queue joined last.
        self._last_opened: dict[str, _Lane] = {}
        self._unfinished: set[Run] = set()
        self._flushes: list[tuple[set[Run], asyncio.Future[None]]] = []

    def open_queue(self, topic: str, count: int, size_bytes: int) -> Queue | None:
        """Return the queue whose run COUNT more messages for any queue of TOPIC may join; None: choose one."""
        lane = self._last_opened.get(topic)
        if lane is None or (run := lane.open) is None or not self._fits(run, count, size_bytes):
            return None
        return run.queue

    def add_one(self, queue: Queue, message: Message, size_bytes: int, outcome: Outcome) -> None:
        """Send MESSAGE, of SIZE_BYTES, to QUEUE; OUTCOME gets its receipt, or an error."""
        lane, run = self._open_run(queue, 1, size_bytes)
        run.add_one(message, size_bytes, outcome)
        self._added(lane, run, message)

    def add_many(
        self, queue: Queue, messages: Sequence[Message], size_bytes: int, outcome: Outcome
    ) -> None:
        """Send MESSAGES, of together SIZE_BYTES, to QUEUE; OUTCOME gets their receipts, or an error."""
        lane, run = self._open_run(queue, len(messages), size_bytes)
        run.add_many(messages, size_bytes, outcome)
        self._added(lane, run, messages[0])

    def _open_run(self, queue: Queue, count: int, size_bytes: int) -> tuple[_Lane, Run]:
        """Return the open run of QUEUE, a new one if COUNT more messages do not fit."""
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = _Lane(queue)
        run = lane.open
        if run is not None and not self._fits(run, count, size_bytes):
            self._seal(lane, run)
            run = None
        if run is None:
            run = lane.open = Run(queue, self._clock.now_ms(), self._done)
            self._unfinished.add(run)
        return lane, run

    def _added(self, lane: _Lane, run: Run, message: Message) -> None:
        if not message.placed:
            self._last_opened[message.topic] = lane
        else:
            run.pinned = True
        if not self._fits(run, 1, 0):
            self._seal(lane, run)
        if not lane.active:
            lane.active = True
            self._tasks.spawn(self._send(lane))

    def _fits(self, run: Run, count: int, size_bytes: int) -> bool:
        config = self._config
        return (
            len(run.messages) + count <= config.run_messages_max
            and run.size_bytes + size_bytes < config.run_bytes_max
        )

    def _seal(self, lane: _Lane, run: Run) -> None:
        lane.open = None
        run.seal(self._origin)
        lane.sealed.append(run)
        lane.filled.set()

    async def _send(self, lane: _Lane) -> None:
        if self._config.linger_ms and not lane.sealed:
            await self._linger(lane)
        while (run := lane.next()) is not None:
            try:
                await self._deliver(run)
            except Exception as error:  # The edge: a bug must not leave senders waiting for ever.
                logger.exception("delivery failed")
                run.fail(SendFailed(f"delivery to {run.queue} failed: {error!r}"))
        lane.active = False
        del self._lanes[lane.queue]  # An idle queue keeps nothing.

    async def _linger(self, lane: _Lane) -> None:
        lane.filled.clear()
        until_ms = self._clock.now_ms() + self._config.linger_ms
        waits = {
            asyncio.ensure_future(self._clock.sleep_until(until_ms)),
            asyncio.ensure_future(lane.filled.wait()),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _done(self, run: Run) -> None:
        self._give_back(run.size_bytes)
        self._unfinished.discard(run)
        for runs, flushed in self._flushes:
            runs.discard(run)
            if not runs and not flushed.done():
                flushed.set_result(None)
        if self._flushes:
            self._flushes = [entry for entry in self._flushes if entry[0]]

    async def flush(self) -> None:
        """Return once all that was added before has been acknowledged or has failed."""
        runs = set(self._unfinished)
        if not runs:
            return
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append((runs, flushed))
        await flushed

    @property
    def message_count(self) -> int:
        """Messages without an acknowledgement."""
        return sum(len(run.messages) for run in self._unfinished)

    def fail_all(self, error: PocketMQError) -> None:
        """Give up everything that is not finished."""
        for lane in self._lanes.values():
            lane.sealed.clear()
            lane.open = None
        for run in list(self._unfinished):
            run.fail(error)
