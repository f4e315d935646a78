"""The core of both push consumers: queues are assigned and revoked, workers process messages, offsets are committed.

    source      begin(held), end(queue)     assigns queues (the assignment of a group member, or all queues)
    reader      one per queue               fetches into an intake
    intake      one per queue               holds messages, pauses the reader, removes finished messages
    backlog     one                         the messages to process
    workers     one                         call the listener
    failures    one                         return, retry or drop failed messages
    keeper      one                         stores offsets: on brokers, or in a local file

Not thread-safe: the consumer's event loop owns it; workers on threads reach it by `post` only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ...proto.errors import ClientClosed, PocketMQError
from ...proto.facts import Facts
from ...proto.topics import retry_topic
from ..consuming.commits import RegularCommits
from ..consuming.held_queue import HeldQueue
from ..consuming.parts import ConsumerParts, reach_name_server
from ..consuming.queue_reader import QueueReader
from ..consuming.queue_supply import QueueSupply, broadcast_supply, group_supply
from ..consuming.sending_back import SendBackResult
from ..push_config import PushConfig
from ..queue import Queue
from ..received_message import ReceivedMessage, RetriedMessage
from ..session import Session
from ..subscriptions import Subscriptions
from ..tasks import finished_within
from .failures import Discard, FailureReport, Failures, Returns, SendBack, TryInPlace
from .listening import Calls, Listener, is_async
from .process_queue import Chunk, Failure, ProcessQueue, QueueIntake
from .push_metrics import PushCounts, PushMetrics
from .workers import (
    HISTOGRAM_MS,
    Backlog,
    OrderedBacklog,
    SharedBacklog,
    TaskWorkers,
    ThreadWorkers,
    Workers,
    WorkersParts,
    post,
)

logger = logging.getLogger(__name__)

#: Number of checks for slow listeners per consume_timeout_ms; but there is at least one per _CHECK_MS_MAX.
_CHECKS: Final = 10
_CHECK_MS_MAX: Final = 60_000
#: Ten seconds, as in the clients of RocketMQ.
_SLOW_DELAY_LEVEL: Final = 3


class Pushing:
    """Processes the messages of SUBSCRIPTIONS for GROUP with LISTENER."""

    def __init__(
        self,
        group: str,
        subscriptions: Subscriptions,
        listener: Listener,
        config: PushConfig,
        session: Session,
    ) -> None:
        self._group = group
        self._subscriptions = subscriptions
        if config.broadcasting and config.start == "committed":
            # A broadcasting consumer without offsets starts at the end, as in the clients of RocketMQ.
            config = replace(config, start="committed-or-latest")
        self._config = config
        self._session = session
        self._parts = ConsumerParts(group, config, session)
        self._supply = self._make_supply()
        self._counts = PushCounts()
        self._commits = RegularCommits(self._parts, self._supply.keeper, self._finished)
        self._intakes: dict[Queue, QueueIntake] = {}
        #: Queues that were lost and may be assigned again: the offsets that may be committed, and their messages.
        self._left: dict[Queue, tuple[frozenset[int], ProcessQueue]] = {}
        self._ordered = OrderedBacklog() if config.ordered else None
        self._shared = SharedBacklog()
        self._backlog: Backlog = self._ordered or self._shared
        self._failure_log = FailureReport(group, session.clock, session.tasks)
        self._workers = self._make_workers(listener)
        self._failures = self._make_failures()
        self._closed = False
        #: The error that ended it, because the group refused it.
        self.refusal: PocketMQError | None = None
        self._ended = asyncio.Event()

    def _make_supply(self) -> QueueSupply:
        subscriptions, parts, config = self._subscriptions, self._parts, self._config
        if config.broadcasting:
            return broadcast_supply(subscriptions, self, parts, config.offsets_folder)
        return group_supply(subscriptions, self, parts, "push")

    def _make_workers(self, listener: Listener) -> Workers:
        config, session = self._config, self._session
        parts = WorkersParts(
            limit=config.concurrency,
            backlog=self._backlog,
            clock=session.clock,
            tasks=session.tasks,
            on_progress=self._on_progress,
        )
        if is_async(listener):
            calls = self._calls(listener, self._on_progress)
            return TaskWorkers(parts, calls.async_function())
        loop = asyncio.get_running_loop()
        calls = self._calls(listener, partial(post, loop, self._on_progress))
        return ThreadWorkers(parts, calls.function(), self._group)

    def _calls(self, listener: Listener, on_progress: Callable[[Chunk], object]) -> Calls:
        batch_size, in_order = self._config.listener_batch_size, self._config.ordered
        return Calls(listener, batch_size, in_order=in_order, on_progress=on_progress)

    def _make_failures(self) -> Failures:
        config, added = self._config, self._added
        if config.broadcasting or config.delivery == "at_most_once":
            return Discard(self._counts, self._ordered, added, self._failure_log)
        returns = Returns(
            self._session, self._group, config, self._counts, self._on_returned, self._failure_log
        )
        if self._ordered is not None:
            return TryInPlace(returns, self._ordered, added)
        return SendBack(returns, self._shared, added)

    def _added(self, count: int) -> None:
        self._workers.put(count)

    def start(self) -> None:
        """Start to fetch and to process messages."""
        tasks, config = self._session.tasks, self._config
        self._supply.source.start()
        tasks.spawn(reach_name_server(self._parts, self.fail))
        if config.delivery != "at_most_once":
            self._commits.start()
        if isinstance(self._failures, SendBack):
            tasks.spawn(self._look_for_slow_listeners())

    def _finished(self) -> Mapping[Queue, int]:
        return {
            queue: intake.messages.lowest_unfinished()
            for queue, intake in self._intakes.items()
            if intake.is_started
        }

    async def until_ended(self) -> None:
        """Return when it is closed, or after `stop_waiting`. Raises the error if the group refused it."""
        await self._ended.wait()
        if self.refusal is not None:
            raise self.refusal

    def stop_waiting(self) -> None:
        """Let `until_ended` return."""
        self._ended.set()

    async def close(self) -> None:
        """Stop fetching, wait up to close_timeout_ms for running listeners, commit, and leave the group."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._supply.source.close()
            for intake in self._intakes.values():
                intake.lost = True
            await self._workers.close()
        finally:
            self._failure_log.flush()
            await self._session.close()
            self._ended.set()

    def begin(self, held: HeldQueue) -> None:
        """Start to read a queue that was assigned."""
        queue = held.queue
        retried = queue.topic == retry_topic(self._group)
        intake = QueueIntake(
            held,
            self._config,
            RetriedMessage if retried else ReceivedMessage,
            self._counts,
            take=self._take,
            fail=partial(self._log_fetch_error, queue),
        )
        wanted = self._subscriptions.get(queue.topic)
        intake.reader = QueueReader(held, wanted, intake, self._supply, self._parts)
        self._intakes[queue] = intake
        self._supply.keeper.begin(held)
        offset = self._resume(held)
        if offset is not None:
            intake.started(queue, offset)
            self._commits.resumed(held, offset)
        intake.reader.start(offset)

    def _resume(self, held: HeldQueue) -> int | None:
        """Return where to continue in a queue that was lost and is assigned again; None: at its committed offset.

        If no other member has committed since, messages that were finished then still are. This happens after the
        election of a new master in a replica set.
        """
        kept, messages = self._left.pop(held.queue, (frozenset[int](), None))
        if messages is None or held.committed not in kept:
            return None
        finished = messages.lowest_unfinished()
        return finished if finished >= held.committed else None

    def _remember(self, intake: QueueIntake) -> None:
        """Remember the messages of a lost queue for a while, with those that running listeners still finish."""
        queue, clock = intake.held.queue, self._session.clock
        left = self._left[queue] = self._supply.keeper.kept(queue), intake.messages

        async def forget() -> None:
            await clock.sleep_until(clock.now_ms() + self._config.rebalance_timeout_ms)
            if self._left.get(queue) is left:
                del self._left[queue]

        self._session.tasks.spawn(forget())

    async def end(self, queue: Queue, *, lost: bool) -> None:
        """Stop reading QUEUE. Unless it is LOST, wait for running listeners, and commit."""
        intake = self._intakes[queue]
        intake.reader.stop()
        intake.messages.drop()
        intake.lost = lost
        try:
            if not lost:
                await self._wait_for_listeners(intake)
                await self._commit_last(intake)
            elif intake.is_started and self._config.delivery != "at_most_once":
                self._remember(intake)
        finally:
            intake.lost = True
            self._counts.handled += intake.messages.handled
            if self._ordered is not None:
                self._ordered.forget(intake.messages)
            del self._intakes[queue]
            self._supply.keeper.forget(queue)

    async def _wait_for_listeners(self, intake: QueueIntake) -> None:
        """Wait for the running listeners of INTAKE, but leave enough time to commit what they have finished."""
        config, session = self._config, self._session
        timeout_ms = config.rebalance_timeout_ms
        timeout_ms -= min(config.request_timeout_ms, timeout_ms // 4)
        if self._closed:
            timeout_ms = min(timeout_ms, config.close_timeout_ms)
        idle = intake.until_idle()
        if not await finished_within(idle, timeout_ms, session.clock, session.tasks):
            logger.warning(
                "listeners still running, not waiting any longer %s",
                Facts(group=self._group, queue=intake.held.queue, after_ms=timeout_ms),
            )

    async def _commit_last(self, intake: QueueIntake) -> None:
        if not intake.is_started:
            return
        queue = intake.held.queue
        try:
            await self._supply.keeper.commit({queue: intake.messages.lowest_unfinished()})
        except PocketMQError as error:
            logger.warning(
                "offset not committed, messages will be redelivered %s",
                Facts(group=self._group, queue=queue, reason=error.message),
            )

    def fail(self, error: PocketMQError) -> None:
        """End with ERROR: the group has refused this consumer."""
        logger.error("group refused consumer %s", Facts(group=self._group, reason=error.message))
        self.refusal = error
        self._ended.set()

    def _log_fetch_error(self, queue: Queue, error: PocketMQError) -> None:
        """Log ERROR of a fetch of QUEUE: a push consumer has no call that could raise it. The reader retries."""
        facts = Facts(group=self._group, queue=queue, reason=error.message)
        logger.error("messages not fetched %s", facts)

    def _take(self, intake: QueueIntake, portions: Sequence[Chunk]) -> None:
        """Pass PORTIONS to the workers, with delivery="at_most_once" after a commit."""
        if self._config.delivery == "at_most_once":
            self._session.tasks.spawn(self._commit_first(intake, portions))
        else:
            self._dispatch(portions)

    def _dispatch(self, portions: Sequence[Chunk]) -> None:
        self._backlog.put(portions)
        self._workers.put(portions[-1].end - portions[0].begin)

    async def _commit_first(self, intake: QueueIntake, portions: Sequence[Chunk]) -> None:
        """Commit the offset after PORTIONS, then pass PORTIONS to the workers. Retries until the queue is dropped."""
        clock, keeper = self._session.clock, self._supply.keeper
        queue, offset = intake.held.queue, portions[-1].next_offset
        async with intake.committing:
            while not intake.messages.dropped:
                try:
                    await keeper.commit({queue: offset})
                except PocketMQError as error:
                    logger.warning(
                        "offset not committed, messages wait for it %s",
                        Facts(group=self._group, queue=queue, offset=offset, reason=error.message),
                    )
                if keeper.committed(queue) == offset:
                    self._dispatch(portions)
                    return
                await clock.sleep_until(clock.now_ms() + self._config.retry_backoff_max_ms)

    def _on_progress(self, portion: Chunk) -> None:
        """Remove finished messages and handle failures: a worker has left PORTION, or a message in it failed."""
        messages = portion.queue
        intake = self._intakes.get(messages.queue)
        if intake is None or intake.messages is not messages:
            return
        intake.settle()
        self._handle_failures(intake)

    def _handle_failures(self, intake: QueueIntake) -> None:
        messages = intake.messages
        if not messages.failures:
            return
        failed, messages.failures = messages.failures, []
        if intake.lost:
            return  # They are not committed, so the next owner of the queue gets them.
        self._counts.failed += len(failed)
        for portion, index in failed:
            failure = portion.unresolved[index]
            if failure.error is not None:
                message = messages.message_type(portion.run, index)
                self._failure_log.log(
                    "listener failed", messages.queue, message, failure.reason, failure.error
                )
        self._failures.handle(intake, failed)

    def _on_returned(self, message: ReceivedMessage, sent: SendBackResult) -> None:
        """Look for the retry queue of the broker of MESSAGE, which the broker may have created just now."""
        if sent.dead:
            return
        topic, broker = sent.topic, message.broker
        if not any(queue.topic == topic and queue.broker == broker for queue in self._intakes):
            self._session.routes.forget(topic)
            self._supply.source.look_again()

    async def _look_for_slow_listeners(self) -> None:
        clock, timeout_ms = self._session.clock, self._config.consume_timeout_ms
        pause_ms = max(1, min(timeout_ms // _CHECKS, _CHECK_MS_MAX))
        reason = f"the listener took more than {timeout_ms} ms (consume_timeout_ms)"
        failure = Failure(_SLOW_DELAY_LEVEL, reason, slow=True)
        while True:
            await clock.sleep_until(clock.now_ms() + pause_ms)
            for intake in list(self._intakes.values()):
                for portion, place in intake.messages.slow(clock.now_ms(), timeout_ms):
                    self._counts.slow += place.count
                    portion.abandon(place, failure)
                self._handle_failures(intake)

    def check_open(self) -> None:
        """Raise ClientClosed after `close`."""
        if self._closed:
            raise ClientClosed("the consumer is closed: create a new one to read more")

    def metrics(self) -> PushMetrics:
        """Return a snapshot of the metrics."""
        counts, times = self._counts, self._workers.times
        messages = [intake.messages for intake in self._intakes.values()]
        return PushMetrics(
            handled=counts.handled + sum(one.handled for one in messages),
            failed=counts.failed,
            sent_back=counts.sent_back,
            dead=counts.dead,
            dropped=counts.dropped,
            slow=counts.slow,
            paused_by_messages=counts.paused_by_messages,
            paused_by_bytes=counts.paused_by_bytes,
            paused_by_span=counts.paused_by_span,
            held=sum(one.count for one in messages),
            held_bytes=sum(one.size_bytes for one in messages),
            in_process=sum(one.at_work for one in messages),
            listener_ms_bounds=HISTOGRAM_MS,
            listener_ms_counts=tuple(times.counts),
            listener_ms_sum=times.sum_ms,
            lag={
                queue: max(0, intake.reader.max_offset - intake.messages.lowest_unfinished())
                for queue, intake in self._intakes.items()
                if intake.is_started
            },
            counts=self._parts.counts,
        )
