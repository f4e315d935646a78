"""Delivery: sends batches to their broker and retries after an error, in another queue if possible.

The docstring of `Delivery` lists the states of a batch. The docstring of `_remedy_for` lists what each error leads to.
A batch has a task only while it is in flight. Not thread-safe: the producer's event loop owns it.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from ...proto import errors
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..claims import check_produced
from ..config import ProducerConfig
from ..metrics import ProducerCounters
from ..queue import Queue
from ..routes import Route
from ..session import Session
from .accumulator import Accumulator
from .batch import ProducerBatch, ProducerIdentity
from .receipt import ACKS_CODES
from .sequences import SequenceAllocator

logger = logging.getLogger(__name__)

_STALE_ROUTE: Final = (errors.TopicNotFound, errors.QueueNotFound, errors.NotWritable)
#: After these errors the broker may have stored the batch.
_MAYBE_STORED: Final = (
    errors.RequestTimeout,
    errors.ConnectionLost,
    errors.BadReply,
    errors.FlushTimeout,
    errors.DiskFailure,
    errors.ClientClosed,
    errors.MasterFenced,  # The batch may have been stored before the epoch ended, and the next master may have it.
    errors.NotEnoughReplicasAfterAppend,
)


class _Remedy(enum.Enum):
    """What to do with a batch that was not acknowledged."""

    #: Send it again after a pause, in another queue if allowed.
    RETRY = "retry"
    #: Send it again at once, to the master that the error named.
    FOLLOW = "follow"
    #: Look up the route and send it again at once.
    REROUTE = "reroute"
    #: Split it into two batches.
    SPLIT = "split"
    #: Start a new epoch in its queue, and send it again.
    RENUMBER = "renumber"
    #: Fail it.
    FAIL = "fail"
    #: Fail all batches and end the producer.
    END = "end"


class Observer(Protocol):
    """Called with the result of each request: the method `on_result` of a queue selector."""

    def __call__(
        self, queue: Queue, latency_ms: float, error: errors.PocketMQError | None, /
    ) -> None: ...


#: For each broker and error class, one warning about retries in this time.
_WARNING_INTERVAL_MS: Final = 10_000
_LAST_WARNINGS_MAX: Final = 1_000


class RetryLog:
    """Logs that batches are retried: at once, then a summary every ten seconds, and when retries have ended.

    A broker that is unavailable for a minute causes six lines, however many batches wait for it.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        #: By broker and error class: the time of the last warning, and the retries since.
        self._last_warnings: dict[tuple[str, type[errors.PocketMQError]], tuple[int, int]] = {}
        #: Brokers with a warning and no success since.
        self._failing: set[str] = set()

    def retried(self, batch: ProducerBatch, error: errors.PocketMQError, *, quiet: bool) -> None:
        """Note that BATCH is retried after ERROR. QUIET: the error was expected, so log it at level debug."""
        broker, now_ms = batch.queue.broker, self._now_ms()
        key = broker, type(error)
        warned_ms, retries = self._last_warnings.get(key, (None, 0))
        is_due = warned_ms is None or now_ms - warned_ms >= _WARNING_INTERVAL_MS
        retries += 1
        if not quiet:
            if len(self._last_warnings) >= _LAST_WARNINGS_MAX:
                self._last_warnings.clear()
            self._last_warnings[key] = (now_ms, 0) if is_due else (warned_ms or 0, retries)
            if is_due:
                self._failing.add(broker)
        logger.log(
            logging.WARNING if is_due and not quiet else logging.DEBUG,
            "batch not acknowledged, retrying %s",
            Facts(
                queue=batch.queue,
                messages=len(batch.messages),
                attempt=batch.attempts,
                retries=retries,
                reason=error.message,
            ),
        )

    def acknowledged(self, broker: str) -> None:
        """Note that BROKER has acknowledged a batch."""
        if broker in self._failing:
            self._failing.discard(broker)
            logger.info("batches acknowledged again %s", Facts(broker=broker))


class Delivery:
    """Sends the batches that are drained from the accumulator. A batch is in one of these states:

    state       where it is                        event                            next
    open        last of its deque                  ready (accumulator.py)           gets a sequence, in flight
    waiting     in its deque                       ready, route known               gets a sequence, in flight
                                                   delivery_timeout_ms is over      expired
    in flight   with the broker                    acknowledged                     done
                                                   refused, retriable, not stored   waiting in front, or in another
                                                                                    queue; its sequence is released
                                                   no answer, may be stored         waiting in front with its sequence
                                                   refused, can be split            two waiting in front
                                                   broker lacks the producer's      new epoch; waiting in front
                                                   state or a batch
                                                   other error, retries used up     failed
                                                   delivery_timeout_ms is over      expired
    failed,     with its senders                   its sequence cannot be           its queue starts a new epoch
    expired                                        released

    If a batch may have been stored, an idempotent producer never sends it to another queue, because the broker there
    could not recognise the duplicate. After a new epoch such a batch is sent again and may be stored twice. The
    producer logs this and counts it in `possible_repeats`.
    """

    def __init__(
        self,
        config: ProducerConfig,
        session: Session,
        accumulator: Accumulator,
        counters: ProducerCounters,
        identity: ProducerIdentity,
        observer: Observer | None,
        on_fatal: Callable[[], None],
    ) -> None:
        """ON_FATAL is called when the producer can send nothing more: `fatal` is the reason."""
        self._config = config
        self._session = session
        self._clock = session.clock
        self._accumulator = accumulator
        self._counters = counters
        self._retry_log = RetryLog(session.clock.now_ms)
        self._identity = identity
        self._observer = observer
        self._durability = ACKS_CODES[config.acks]
        self._silent = config.acks == "none"
        self._sequences = SequenceAllocator(identity.producer_id) if config.idempotent else None
        #: Whether `_pump` is scheduled for the end of this turn of the loop.
        self._woken = False
        self._timer: asyncio.Task[object] | None = None
        self._timer_ms = 0
        #: Why the producer can send nothing more.
        self.fatal: errors.PocketMQError | None = None
        self._on_fatal = on_fatal

    def wake(self) -> None:
        """Send what is ready at the end of this turn of the event loop."""
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._pump)

    def send_ready(self) -> None:
        """Send what is ready now."""
        if not self._woken:
            self._pump()

    def _pump(self) -> None:
        self._woken = False
        now_ms = self._clock.now_ms()
        for batch in self._accumulator.drain(now_ms):
            if self._sequences is not None and batch.sequence is None:
                batch.sequence = self._sequences.allocate(batch.queue, len(batch.messages))
            self._session.tasks.spawn(self._try(batch))
        # A timer that runs is early enough for batches that were added since, unless they linger.
        if self._timer is None or self._config.linger_ms:
            next_ms = self._accumulator.next_ms(now_ms)
            if next_ms is not None:
                self._set_timer(next_ms)

    def _set_timer(self, at_ms: int) -> None:
        """Call `_pump` at AT_MS, or earlier."""
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = self._session.tasks.spawn(self._sleep(at_ms))

    async def _sleep(self, until_ms: int) -> None:
        await self._clock.sleep_until(until_ms)
        self._timer = None
        for batch in self._accumulator.expired(self._clock.now_ms()):
            self._expire(batch)
        self._pump()

    async def _try(self, batch: ProducerBatch) -> None:
        began_ms = self._clock.now_ms()
        reply: pb.ProduceReply | None = None
        error: errors.PocketMQError | None = None
        address, moved = "", False
        try:
            batch.seal(self._identity)
            address = self._session.routes.address(batch.queue.broker)
            reply = await self._send_batch(batch, address)
        except errors.PocketMQError as failure:
            error = failure
            moved = self._session.routes.note_error(batch.queue.broker, address, failure)
        except Exception as bug:  # The edge: a bug must not leave senders waiting for ever.
            logger.exception("delivery failed %s", Facts(queue=batch.queue, reason=repr(bug)))
            error = errors.SendFailed(f"delivery to {batch.queue} failed: {bug!r}")
        self._count_try(batch, began_ms, error)
        if batch.done:  # The producer was closed meanwhile.
            self._accumulator.finished(batch)
        elif error is None:
            self._succeed(batch, reply)
            if not self._accumulator.has_waiting:
                return
        else:
            self._refused(batch, error, moved=moved)
        self.wake()

    async def _send_batch(self, batch: ProducerBatch, address: str) -> pb.ProduceReply | None:
        """Send BATCH to the broker at ADDRESS; return the reply, or None with acks="none"."""
        connection = self._session.connections.to(address)
        timeout_ms = min(self._config.request_timeout_ms, max(1, self._left_ms(batch)))
        request = batch.request(self._durability, self._identity.producer_id, no_reply=self._silent)
        if not self._silent:
            asked = connection.produce(request, timeout_ms)
            reply = await self._session.of_master(batch.queue.broker, address, asked)
            check_produced(request, reply, f"broker {batch.queue.broker} at {address}")
            return reply
        await connection.post(request, timeout_ms, partial(self._refused_without_reply, batch))
        return None

    def _left_ms(self, batch: ProducerBatch) -> int:
        """Return the milliseconds until `delivery_timeout_ms` of BATCH is over."""
        return batch.born_ms + self._config.delivery_timeout_ms - self._clock.now_ms()

    def _count_try(
        self, batch: ProducerBatch, began_ms: int, error: errors.PocketMQError | None
    ) -> None:
        """Count the try of BATCH that began at BEGAN_MS. ERROR: None if it succeeded."""
        counters = self._counters
        latency_ms = self._clock.now_ms() - began_ms
        counters.requests += 1
        counters.request_latency_ms.add(latency_ms)
        if not batch.attempts:
            counters.queue_time_ms.add(began_ms - batch.born_ms)
            counters.batch_messages.add(len(batch.messages))
            counters.batch_bytes.add(batch.size_bytes)
        if self._observer is not None:
            try:
                self._observer(batch.queue, latency_ms, error)
            except Exception as bug:  # The edge: the application's selector may raise anything.
                logger.exception(
                    "on_result of queue selector failed %s",
                    Facts(queue=batch.queue, reason=repr(bug)),
                )

    def _refused_without_reply(self, batch: ProducerBatch, error: errors.PocketMQError) -> None:
        """Note that BATCH, which was sent with acks="none", was refused."""
        self._counters.refused_unheard += 1
        logger.warning(
            'batch sent with acks="none" was refused %s',
            Facts(queue=batch.queue, messages=len(batch.messages), reason=error.message),
        )

    def _succeed(self, batch: ProducerBatch, reply: pb.ProduceReply | None) -> None:
        self._accumulator.finished(batch)
        if reply is not None:
            self._retry_log.acknowledged(batch.queue.broker)
        self._counters.messages_sent += len(batch.messages)
        self._counters.bytes_sent += batch.size_bytes
        if reply is None:
            batch.leave()
        else:
            self._counters.repeats_dropped += reply.repeated_count
            batch.succeed(reply)

    def _refused(self, batch: ProducerBatch, error: errors.PocketMQError, *, moved: bool) -> None:
        """Retry, split or fail BATCH after ERROR. MOVED: the error named the new master of the broker."""
        batch.attempts += 1
        batch.last_error = error
        if _was_never_stored(error):
            batch.maybe_stored = False
        elif _may_have_stored(batch, error):
            batch.maybe_stored = True
        latest_epoch = self._sequences.latest_epoch if self._sequences is not None else 0
        remedy = _Remedy.FOLLOW if moved else _remedy_for(batch, error, latest_epoch)
        if not batch.maybe_stored:
            self._release_sequence(batch)
        if remedy is _Remedy.SPLIT:
            self._counters.splits += 1
            self._accumulator.requeue_in_parts(batch, batch.split(_split_point(batch, error)))
        elif remedy is _Remedy.END:
            self.fatal = error
            self._on_fatal()
            self._accumulator.finished(batch)
            self.fail_all(error)
        elif (final := self._final_error(batch, error, remedy)) is not None:
            self._accumulator.finished(batch)
            self._give_up(batch, final)
        else:
            self._retry(batch, error, remedy)

    def _final_error(
        self, batch: ProducerBatch, error: errors.PocketMQError, remedy: _Remedy
    ) -> errors.PocketMQError | None:
        """Return the error for the senders of BATCH, or None: retry it at `batch.not_before_ms`, which is set then."""
        if remedy is _Remedy.FAIL:
            return error
        if batch.attempts > self._config.retries:
            return self._send_failed(batch, errors.SendFailed)
        batch.not_before_ms = 0
        if remedy is _Remedy.RETRY or (remedy is not _Remedy.FOLLOW and batch.attempts > 1):
            # A planned failover takes a few tenths of a second, so the pauses do not grow after MasterFenced.
            tries = (
                min(batch.attempts, 2) if isinstance(error, errors.MasterFenced) else batch.attempts
            )
            pause_ms = self._pause_ms(tries)
            if pause_ms >= self._left_ms(batch):
                self._counters.expired += 1
                return self._send_failed(batch, errors.DeliveryTimeout)
            batch.not_before_ms = self._clock.now_ms() + pause_ms
        return None

    def _pause_ms(self, attempts: int) -> int:
        longest = self._config.retry_backoff_max_ms
        pause_ms = min(longest, self._config.retry_backoff_ms << min(attempts - 1, 20))
        return round(pause_ms * (0.5 + self._session.random.random() / 2))

    def _retry(self, batch: ProducerBatch, error: errors.PocketMQError, remedy: _Remedy) -> None:
        """Put BATCH in front of its queue after ERROR, and start to look for its route if REMEDY needs it."""
        self._counters.retries += 1
        self._retry_log.retried(batch, error, quiet=remedy in (_Remedy.REROUTE, _Remedy.FOLLOW))
        self._accumulator.requeue(batch)
        if remedy is _Remedy.RENUMBER:
            self._bump_epoch(batch.queue)
        elif remedy is not _Remedy.FOLLOW:
            batch.route_pending = True
            self._session.routes.forget(batch.queue.topic)
            self._session.tasks.spawn(self._reroute(batch, error))
        if batch.not_before_ms:
            self._set_timer(batch.not_before_ms)

    async def _reroute(self, batch: ProducerBatch, error: errors.PocketMQError) -> None:
        """Find the route of BATCH, which waits after ERROR, and choose its queue again."""
        route: Route | None = None
        try:
            route = await self._session.routes.find(batch.queue.topic, provisional=True)
        except errors.PocketMQError as failure:
            logger.debug(
                "no route for a batch %s", Facts(queue=batch.queue, reason=failure.message)
            )
        if batch.done:  # It has expired, or the producer was closed.
            return
        batch.route_pending = False
        if route is not None and self._may_move(batch):
            queue = self._other_queue(batch.queue, route)
            if queue != batch.queue:
                self._counters.moves += 1
                self._accumulator.move(batch, queue)
        if error.retriable or (route is not None and batch.queue in route.writable):
            self.wake()
        else:
            self._accumulator.drop(batch)
            self._give_up(batch, error)

    def _may_move(self, batch: ProducerBatch) -> bool:
        """Return whether BATCH may go to another queue. A batch with a sequence may be stored in its queue already."""
        return not batch.pinned and batch.sequence is None

    def _other_queue(self, queue: Queue, route: Route) -> Queue:
        """Return a queue of another broker. If there is none, return QUEUE, or any queue if QUEUE is gone."""
        others = [other for other in route.writable if other.broker != queue.broker]
        if others:
            return self._session.random.choice(others)
        if queue in route.writable or not route.writable:
            return queue
        return self._session.random.choice(route.writable)

    def _expire(self, batch: ProducerBatch) -> None:
        self._counters.expired += 1
        self._give_up(batch, self._send_failed(batch, errors.DeliveryTimeout))

    def fail_all(self, error: errors.PocketMQError) -> None:
        """Fail everything that is not acknowledged with ERROR."""
        self._counters.messages_failed += self._accumulator.message_count
        self._accumulator.fail_all(error)

    def _give_up(self, batch: ProducerBatch, error: errors.PocketMQError) -> None:
        """Fail BATCH, which neither waits nor is in flight, with ERROR.

        If its sequence cannot be released, its queue starts a new epoch, so that the sequence has no gap.
        """
        self._counters.messages_failed += len(batch.messages)
        if not batch.maybe_stored:
            self._release_sequence(batch)
        sequences, sequence = self._sequences, batch.sequence
        if sequences is not None and sequence is not None:
            lost = sequences.is_current(batch.queue, sequence)
            if lost:
                self._bump_epoch(batch.queue)
        batch.fail(error)

    def _send_failed(
        self, batch: ProducerBatch, kind: type[errors.SendFailed]
    ) -> errors.SendFailed:
        """Return the error of a batch that will not be tried again."""
        elapsed_ms = self._clock.now_ms() - batch.born_ms
        last = batch.last_error
        why = f"last error: {last.message}" if last else "its broker accepts less than you send"
        failed = kind(
            f"not acknowledged by {batch.queue} after {batch.attempts} tries in {elapsed_ms} ms; {why}",
            topic=batch.queue.topic,
            attempts=batch.attempts,
            last_error=type(last).__name__ if last else "",
        )
        failed.__cause__ = last
        return failed

    def _release_sequence(self, batch: ProducerBatch) -> None:
        """Release the sequence of BATCH, which was not stored, if it is the last one of its queue."""
        if self._sequences is None or batch.sequence is None:
            return
        if self._sequences.release(batch.queue, batch.sequence, len(batch.messages)):
            batch.sequence = None

    def _bump_epoch(self, queue: Queue) -> None:
        """Start a new epoch in QUEUE. The batches that wait there for a retry get new sequences."""
        assert self._sequences is not None
        self._sequences.bump_epoch(queue)
        self._counters.epochs += 1
        for batch in self._accumulator.waiting_for(queue):
            if batch.sequence is not None and batch.maybe_stored:
                self._counters.possible_repeats += len(batch.messages)
                logger.warning(
                    "broker lost producer state, messages may be stored twice %s",
                    Facts(queue=queue, messages=len(batch.messages), reason=batch.last_error),
                )
                batch.maybe_stored = False
            batch.sequence = None


def _may_have_stored(batch: ProducerBatch, error: errors.PocketMQError) -> bool:
    """Return whether the try of BATCH that ended with ERROR may have stored it."""
    if isinstance(error, errors.ConnectFailed):
        return False
    if isinstance(error, _MAYBE_STORED) or type(error) is errors.PocketMQError:
        return True
    return batch.split_by_broker and isinstance(error, errors.StoreError)


def _was_never_stored(error: errors.PocketMQError) -> bool:
    """Return whether ERROR means that no try of the same batch can have been stored."""
    if isinstance(error, errors.MessageTooLarge | errors.InvalidDelay):
        return False
    return isinstance(error, errors.InvalidArgument)


def _split_point(batch: ProducerBatch, error: errors.PocketMQError) -> int:
    """Return the index of the message before which BATCH is split because of ERROR; 0: it is not split."""
    if isinstance(error, errors.MessageTooLarge):
        return batch.middle(within_a_sender=True)
    if isinstance(error, errors.InvalidArgument):
        return batch.middle(within_a_sender=False)
    return 0


def _remedy_for(batch: ProducerBatch, error: errors.PocketMQError, latest_epoch: int) -> _Remedy:
    """Return what to do after ERROR ended a try of BATCH. LATEST_EPOCH: the newest epoch of any queue of the producer.

    error                                     stored?     then
    ConnectFailed, no route                   no          wait, find the route, send again, also to another queue
    Overloaded StoreFull NotEnoughReplicas …  no          the same
    TopicNotFound QueueNotFound NotWritable   no          once: find the route, send again, also to another queue
    RequestTimeout ConnectionLost             perhaps     wait, send again to the same queue
    NotEnoughReplicasAfterAppend              yes         the same
    FlushTimeout                              yes         the same: the broker answers after the fsync
    MasterFenced, which names the master      perhaps     send there at once
    MessageTooLarge, of several messages      no          split it, send both halves in order
    InvalidArgument, of several senders       no          split it between them, so that only the culprit fails
    UnknownProducer OutOfOrderSequence        as before   start a new epoch, send again
    ProducerFenced, in the newest epoch       no          the producer ends
    BadReply, a wrong acknowledgement         perhaps     fail
    any other                                 see below   fail

    "Perhaps" also holds for later tries: a refusal does not undo what an earlier try may have stored. The exception is
    an error that refuses the content of the batch, because then every try was refused. After DiskFailure, and after an
    error without its own class, the batch may be stored. If the broker stores the batch in parts, this is so after
    every error of the store.
    """
    if _split_point(batch, error):
        return _Remedy.SPLIT
    if batch.sequence is not None:
        if isinstance(error, errors.UnknownProducer | errors.OutOfOrderSequence):
            return _Remedy.RENUMBER
        if isinstance(error, errors.ProducerFenced):
            # Either this producer has a newer epoch in another queue, or another producer has the same id.
            own = batch.sequence.epoch < latest_epoch
            return _Remedy.RENUMBER if own else _Remedy.END
    if error.retriable:
        return _Remedy.RETRY
    if isinstance(error, _STALE_ROUTE) and batch.attempts <= 1:
        return _Remedy.REROUTE
    return _Remedy.FAIL
