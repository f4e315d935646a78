"""What becomes of messages that a listener failed to handle: one way a kind of consumer.

    SendBack      in any order: back to the broker, which redelivers them or moves them to the dead-letter queue
                  (with `enable_retries` off it moves them at once);
                  what cannot be returned stays unfinished and is handled again after KEPT_MS
    TryInPlace    in order: the queue pauses for suspend_current_queue_ms, then the same message is tried again;
                  after max_reconsume_times it goes to the dead letters, and the queue continues
    LetGo         broadcasting, or at most once: nothing, but a line in the log

A message that failed holds the offset of its queue until one of these is through with it. The log has a line for each
kind of failure at once, then at most one per second, with how many there were. Not thread-safe: the consumer's event
loop owns all of it.
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
from ..tasks import Tasks
from .process_queue import Failure, Portion, QueueIntake
from .push_metrics import PushCounts
from .workers import OrderedBacklog, SharedBacklog

logger = logging.getLogger(__name__)

#: A message that could not be returned is tried again here after so long.
KEPT_MS: Final = 5_000
#: Messages on their way back at once.
_ON_THEIR_WAY_MAX: Final = 16
_DEAD: Final = -1
#: Between two log lines of one kind.
_PAUSE_MS: Final = 1_000

#: The indexes of messages in a portion that failed.
Failed: TypeAlias = Sequence[tuple[Portion, int]]


class Telling:
    """Tells of failed messages of GROUP."""

    def __init__(self, group: str, clock: Clock, tasks: Tasks) -> None:
        self._group = group
        self._clock = clock
        self._tasks = tasks
        #: What was not told yet, by event: how many messages, and what is known of the last.
        self._untold: dict[str, tuple[int, Facts, BaseException | None]] = {}
        self._is_pausing = False

    def tell(
        self,
        event: str,
        queue: Queue,
        message: ReceivedMessage,
        reason: str,
        error: BaseException | None = None,
    ) -> None:
        """Say that EVENT happened to MESSAGE of QUEUE, for REASON, with the traceback of ERROR."""
        count = self._untold[event][0] if event in self._untold else 0
        facts = Facts(
            group=self._group,
            topic=message.topic,
            queue=queue,
            offset=message.queue_offset,
            id=message.message_id,
            reason=reason,
        )
        self._untold[event] = count + 1, facts, error
        if not self._is_pausing:
            self.flush()
            self._is_pausing = True
            self._tasks.spawn(self._pause())

    async def _pause(self) -> None:
        try:
            while True:
                await self._clock.sleep_until(self._clock.now_ms() + _PAUSE_MS)
                if not self._untold:
                    return
                self.flush()
        finally:
            self._is_pausing = False

    def flush(self) -> None:
        """Log what was not logged yet; of several messages the line has the last."""
        for event, (count, facts, error) in self._untold.items():
            many = Facts(count=count) if count > 1 else Facts()
            many.update(facts)
            logger.warning("%s %s", event, many, exc_info=error)
        self._untold.clear()


class Failures(Protocol):
    """Takes care of failed messages."""

    def handle(self, intake: QueueIntake, failed: Failed) -> None:
        """See to the FAILED messages of INTAKE."""
        ...


class Returns:
    """The way back to the broker for GROUP; TELL hears what became of each message."""

    def __init__(
        self,
        session: Session,
        group: str,
        config: PushConfig,
        counts: PushCounts,
        tell: Callable[[ReceivedMessage, SendBackResult], None],
        telling: Telling,
    ) -> None:
        self.tasks = session.tasks
        self.clock = session.clock
        self.config = config
        self.counts = counts
        self._session = session
        self._group = group
        self._tell = tell
        self._telling = telling
        self._room = asyncio.Semaphore(_ON_THEIR_WAY_MAX)

    async def send(
        self, intake: QueueIntake, portion: Portion, index: int, failure: Failure
    ) -> bool:
        """Send a message back as FAILURE says, and resolve it; return False, with a warning, if that did not work."""
        message = _message(intake, portion, index)
        intake.giving_back += 1
        try:
            async with self._room:
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
            event = f"message not sent back, trying again in {KEPT_MS} ms"
            self._telling.tell(event, portion.queue.queue, message, error.message)
            return False
        finally:
            intake.giving_back -= 1
        portion.resolve(index)
        self.counts.sent_back += not sent.dead
        self.counts.dead += sent.dead
        self._tell(message, sent)
        return True


class SendBack:
    """Sends failed messages back, each by itself."""

    def __init__(
        self, returns: Returns, backlog: SharedBacklog, added: Callable[[int], None]
    ) -> None:
        """ADDED hears how many messages were put into BACKLOG."""
        self._returns = returns
        self._backlog = backlog
        self._added = added

    def handle(self, intake: QueueIntake, failed: Failed) -> None:
        for portion, index in failed:
            self._returns.tasks.spawn(self._send_back(intake, portion, index))

    async def _send_back(self, intake: QueueIntake, portion: Portion, index: int) -> None:
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
    """Holds the queue until its first message is handled, or dead."""

    def __init__(
        self, returns: Returns, backlog: OrderedBacklog, added: Callable[[int], None]
    ) -> None:
        """ADDED as in SendBack."""
        self._returns = returns
        self._backlog = backlog
        self._added = added

    def handle(self, intake: QueueIntake, failed: Failed) -> None:
        # A queue is with one worker at a time, who stops at the first failure: one call, one portion.
        portion = failed[0][0]
        indexes = [index for _, index in failed]
        self._returns.tasks.spawn(self._suspend(intake, portion, indexes))

    async def _suspend(self, intake: QueueIntake, portion: Portion, indexes: list[int]) -> None:
        """Let the dead go; try the others again after a pause."""
        gone = await self._bury(intake, portion, indexes)
        again = indexes[gone:]
        if again:
            times = portion.run.reconsume_times
            for index in again:
                times[index] += 1
            clock = self._returns.clock
            await clock.sleep_until(clock.now_ms() + self._returns.config.suspend_current_queue_ms)
        if portion.dropped:
            return
        if gone:
            portion.rewind(again[0] if again else indexes[-1] + 1)
        for index in again:
            del portion.unresolved[index]
        intake.settle()
        self._backlog.resume(intake.messages)
        self._added(0)

    async def _bury(self, intake: QueueIntake, portion: Portion, indexes: list[int]) -> int:
        """Send those of INDEXES to the dead letters that have failed too often; return how many, from the first."""
        for count, index in enumerate(indexes):
            if not self._is_dead(portion, index):
                return count
            failure = Failure(_DEAD, portion.unresolved[index].reason)
            sent = await self._returns.send(intake, portion, index, failure)
            intake.settle()
            if not sent:
                return count
        return len(indexes)

    def _is_dead(self, portion: Portion, index: int) -> bool:
        limit = self._returns.config.max_reconsume_times
        if portion.unresolved[index].delay_level < 0:
            return True
        return limit is not None and portion.run.reconsume_times[index] >= limit


class LetGo:
    """Makes nothing more of failed messages."""

    def __init__(
        self,
        counts: PushCounts,
        backlog: OrderedBacklog | None,
        added: Callable[[int], None],
        telling: Telling,
    ) -> None:
        """BACKLOG: in order, queues pause until they are resumed there. ADDED as in SendBack."""
        self._counts = counts
        self._backlog = backlog
        self._added = added
        self._telling = telling

    def handle(self, intake: QueueIntake, failed: Failed) -> None:
        for portion, index in failed:
            message, reason = _message(intake, portion, index), portion.unresolved[index].reason
            queue = portion.queue.queue
            self._telling.tell("message failed and was dropped", queue, message, reason)
            portion.resolve(index)
            self._counts.dropped += 1
        if self._backlog is not None:
            portion, last = failed[-1]
            portion.rewind(last + 1)
            self._backlog.resume(intake.messages)
            self._added(0)
        intake.settle()


def _message(intake: QueueIntake, portion: Portion, index: int) -> ReceivedMessage:
    return portion.queue.message_type(portion.run, index)
