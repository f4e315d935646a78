"""What happens to messages that a listener failed to process: one class per kind of consumer.

    SendBack      unordered: return the message to the broker, which redelivers it later or moves it to the dead-letter
                  queue (at once if `enable_retries` is off);
                  a message that cannot be returned stays unfinished, and is processed again after KEPT_MS
    TryInPlace    ordered: pause the queue for suspend_current_queue_ms, then process the same message again;
                  after max_reconsume_times move it to the dead-letter queue, and continue with the queue
    Discard         broadcasting, or at most once: only log the failure

The offset of the queue is not committed past a failed message before one of these has finished with it. The first
failure of each kind is logged at once. After that there is up to one line per second, with the number of failures. Not
thread-safe: the consumer's event loop owns all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from ...proto.clock import Clock
from ...proto.errors import PocketMQError
from ...proto.facts import Facts
from ..consuming.sending_back import SendBackResult, send_back
from ..push_config import PushConfig
from ..queue import Queue
from ..received_message import ReceivedMessage
from ..session import Session
from ..tasks import TaskGroup
from .process_queue import Chunk, Failure, QueueIntake
from .push_metrics import PushCounts
from .workers import OrderedBacklog, SharedBacklog

logger = logging.getLogger(__name__)

#: A message that could not be returned to the broker is processed again after this time.
KEPT_MS: Final = 5_000
#: Maximum number of messages that are being returned at the same time.
_RETURNING_MAX: Final = 16
_DEAD: Final = -1
#: Time between two log lines of one kind.
_PAUSE_MS: Final = 1_000

#: The failed messages: portion, and index in it.
Failed: TypeAlias = Sequence[tuple[Chunk, int]]


class FailureReport:
    """Logs failed messages of GROUP, up to one line per second and event."""

    def __init__(self, group: str, clock: Clock, tasks: TaskGroup) -> None:
        self._group = group
        self._clock = clock
        self._tasks = tasks
        #: By event: the number of messages that were not logged yet, and the facts and error of the last.
        self._unlogged: dict[str, tuple[int, Facts, BaseException | None]] = {}
        self._is_pausing = False

    def log(
        self,
        event: str,
        queue: Queue,
        message: ReceivedMessage,
        reason: str,
        error: BaseException | None = None,
    ) -> None:
        """Log that EVENT happened to MESSAGE of QUEUE for REASON, with the traceback of ERROR."""
        count = self._unlogged[event][0] if event in self._unlogged else 0
        facts = Facts(
            group=self._group,
            topic=message.topic,
            queue=queue,
            offset=message.queue_offset,
            id=message.message_id,
            reason=reason,
        )
        self._unlogged[event] = count + 1, facts, error
        if not self._is_pausing:
            self.flush()
            self._is_pausing = True
            self._tasks.spawn(self._pause())

    async def _pause(self) -> None:
        try:
            while True:
                await self._clock.sleep_until(self._clock.now_ms() + _PAUSE_MS)
                if not self._unlogged:
                    return
                self.flush()
        finally:
            self._is_pausing = False

    def flush(self) -> None:
        """Log all events that were not logged yet. The line of several messages describes the last one."""
        for event, (count, facts, error) in self._unlogged.items():
            many = Facts(count=count) if count > 1 else Facts()
            many.update(facts)
            logger.warning("%s %s", event, many, exc_info=error)
        self._unlogged.clear()


class Failures(Protocol):
    """Returns, retries or drops failed messages."""

    def handle(self, intake: QueueIntake, failed: Failed) -> None:
        """Return, retry or drop the FAILED messages of INTAKE."""
        ...


class Returns:
    """Returns failed messages of GROUP to their brokers. ON_RETURNED is called with each message and its result."""

    def __init__(
        self,
        session: Session,
        group: str,
        config: PushConfig,
        counts: PushCounts,
        on_returned: Callable[[ReceivedMessage, SendBackResult], None],
        failure_log: FailureReport,
    ) -> None:
        self.tasks = session.tasks
        self.clock = session.clock
        self.config = config
        self.counts = counts
        self._session = session
        self._group = group
        self._on_returned = on_returned
        self._failure_log = failure_log
        self._slots = asyncio.Semaphore(_RETURNING_MAX)

    async def send(self, intake: QueueIntake, portion: Chunk, index: int, failure: Failure) -> bool:
        """Return a message to its broker as FAILURE says, and resolve it. If this fails, log it and return False."""
        message = _message(intake, portion, index)
        intake.returning += 1
        try:
            async with self._slots:
                sent = await send_back(
                    self._session,
                    self._group,
                    message,
                    delay_level=failure.delay_level if self.config.enable_retries else _DEAD,
                    reason=failure.reason,
                    timeout_ms=self.config.request_timeout_ms,
                    max_times=self.config.max_reconsume_times,
                )
        except PocketMQError as error:
            event = f"message not returned to broker, retrying in {KEPT_MS} ms"
            self._failure_log.log(event, portion.queue.queue, message, error.message)
            return False
        finally:
            intake.returning -= 1
        portion.resolve(index)
        self.counts.sent_back += not sent.dead
        self.counts.dead += sent.dead
        self._on_returned(message, sent)
        return True


class SendBack:
    """Returns failed messages to their brokers, each by itself."""

    def __init__(
        self, returns: Returns, backlog: SharedBacklog, added: Callable[[int], None]
    ) -> None:
        """ADDED is called with the number of messages that were put into BACKLOG."""
        self._returns = returns
        self._backlog = backlog
        self._added = added

    def handle(self, intake: QueueIntake, failed: Failed) -> None:
        for portion, index in failed:
            self._returns.tasks.spawn(self._send_back(intake, portion, index))

    async def _send_back(self, intake: QueueIntake, portion: Chunk, index: int) -> None:
        failure = portion.unresolved[index]
        clock = self._returns.clock
        while not intake.lost:
            sent = await self._returns.send(intake, portion, index, failure)
            intake.settle()
            if sent:
                return
            await clock.sleep_until(clock.now_ms() + KEPT_MS)
            if portion.dropped:
                return
            if not failure.slow:
                portion.run.reconsume_times[index] += 1
                self._backlog.put_again(portion, index)
                self._added(1)
                return


class TryInPlace:
    """Pauses the queue until its first message is processed or moved to the dead-letter queue."""

    def __init__(
        self, returns: Returns, backlog: OrderedBacklog, added: Callable[[int], None]
    ) -> None:
        """ADDED: as in SendBack."""
        self._returns = returns
        self._backlog = backlog
        self._added = added

    def handle(self, intake: QueueIntake, failed: Failed) -> None:
        # One worker at a time processes a queue, and it stops at the first failure. So all messages are of one call.
        portion = failed[0][0]
        indexes = [index for _, index in failed]
        self._returns.tasks.spawn(self._suspend(intake, portion, indexes))

    async def _suspend(self, intake: QueueIntake, portion: Chunk, indexes: list[int]) -> None:
        """Move dead letters to the dead-letter queue; retry the others after a pause."""
        dead_count = await self._move_dead(intake, portion, indexes)
        again = indexes[dead_count:]
        if again:
            times = portion.run.reconsume_times
            for index in again:
                times[index] += 1
            clock = self._returns.clock
            await clock.sleep_until(clock.now_ms() + self._returns.config.suspend_current_queue_ms)
        if portion.dropped:
            return
        if dead_count:
            portion.rewind(again[0] if again else indexes[-1] + 1)
        for index in again:
            del portion.unresolved[index]
        intake.settle()
        self._backlog.resume(intake.messages)
        self._added(0)

    async def _move_dead(self, intake: QueueIntake, portion: Chunk, indexes: list[int]) -> int:
        """Move the first messages of INDEXES that have no retries left to the dead-letter queue; return how many."""
        for count, index in enumerate(indexes):
            if not self._is_dead(portion, index):
                return count
            failure = Failure(_DEAD, portion.unresolved[index].reason)
            sent = await self._returns.send(intake, portion, index, failure)
            intake.settle()
            if not sent:
                return count
        return len(indexes)

    def _is_dead(self, portion: Chunk, index: int) -> bool:
        limit = self._returns.config.max_reconsume_times
        if portion.unresolved[index].delay_level < 0:
            return True
        return limit is not None and portion.run.reconsume_times[index] >= limit


class Discard:
    """Drops failed messages: it logs them and counts them as finished."""

    def __init__(
        self,
        counts: PushCounts,
        backlog: OrderedBacklog | None,
        added: Callable[[int], None],
        failure_log: FailureReport,
    ) -> None:
        """BACKLOG: if ordered, where a queue has to be resumed after a failure. ADDED: as in SendBack."""
        self._counts = counts
        self._backlog = backlog
        self._added = added
        self._failure_log = failure_log

    def handle(self, intake: QueueIntake, failed: Failed) -> None:
        for portion, index in failed:
            message, reason = _message(intake, portion, index), portion.unresolved[index].reason
            queue = portion.queue.queue
            self._failure_log.log("message failed and was dropped", queue, message, reason)
            portion.resolve(index)
            self._counts.dropped += 1
        if self._backlog is not None:
            portion, last = failed[-1]
            portion.rewind(last + 1)
            self._backlog.resume(intake.messages)
            self._added(0)
        intake.settle()


def _message(intake: QueueIntake, portion: Chunk, index: int) -> ReceivedMessage:
    return portion.queue.message_type(portion.run, index)
