"""Brings runs to their end: to the right broker, again after an error that passes, elsewhere if there is elsewhere.

A run is in one of these states; of its numbers run.py tells.

    state       where it is                        event                            next
    open        last of its deque                  ready (accumulator.py)           numbered, under way
    waiting     in its deque                       ready, route known               numbered, under way
                                                   delivery_timeout_ms is over      expired
    under way   with the broker, its queue muted   acknowledged                     done
                                                   definitely refused, will pass    waiting in front, or elsewhere;
                                                                                    its numbers are given back
                                                   no answer, may have been stored  waiting in front, numbers kept
                                                   refused, can be cut              two waiting in front
                                                   the broker does not know the     new epoch; waiting in front
                                                   producer, or misses something
                                                   an error that stays, or retries  failed
                                                   or delivery_timeout_ms are over  expired
    failed,     with its senders                   it had numbers that cannot be    its queue begins a new epoch
    expired                                        given back

An idempotent producer sends a run that may have been stored to no other queue: there the broker could not tell that it
is a repeat. Others do: at least once, with the same message ids.

After a new epoch a run that may have been stored is sent again all the same, and may then be there twice: that is
logged, and counted as possible repeats. It happens when a broker has lost what it knew of the producer.

What an error says of a run: whether it may have been stored, and what is to be done with it.

    error                                     stored?      then
    nothing left (ConnectFailed), no route      no           wait, ask for the route, send again, also elsewhere
    Overloaded StoreFull NotEnoughReplicas …  no           the same
    TopicNotFound QueueNotFound NotWritable   no           once: ask for the route, send again, also elsewhere
    no answer (RequestTimeout ConnectionLost)   perhaps      wait, send again to the same queue
    NotEnoughReplicasAfterAppend              yes          the same
    FlushTimeout                              yes          the same: the broker answers once the device has it
    MasterFenced, which tells of the master   perhaps      send again there at once
    MessageTooLarge, of several messages      no           cut it in two, send both in order
    InvalidArgument, of several senders       no           cut it between them, so that only the culprit hears of it
    UnknownProducer OutOfOrderSequence            (as before)  begin a new epoch, send again
    ProducerFenced, in the newest epoch       no           the producer is at its end
    BadReply, which acknowledges wrongly      perhaps      the senders get the error
    any other                                 (see below)  the senders get the error

"Perhaps" holds on: what one try may have stored, a later refusal does not undo, unless it is for what the run is: then
every try was refused, heard or not (but not for its size or its time: limits and clocks change). Of other errors,
DiskFailure and those without a class of their own leave it open whether the run was stored; and a run that the broker
stores in parts, because some of its messages wait, may have been stored in part by any error of the store.

Only what travels has a task. Not thread-safe: the producer's event loop owns it.
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
from .receipt import ACKS_CODES
from .run import Numbering, Origin, Run

logger = logging.getLogger(__name__)

_STALE_ROUTE: Final = (errors.TopicNotFound, errors.QueueNotFound, errors.NotWritable)
#: Leave it open whether a run was stored.
_OPEN: Final = (
    errors.RequestTimeout,
    errors.ConnectionLost,
    errors.BadReply,
    errors.FlushTimeout,
    errors.DiskFailure,
    errors.ClientClosed,
    errors.MasterFenced,  # It may have been stored before the epoch ended, and be known to the next master.
    errors.NotEnoughReplicasAfterAppend,
)


class _Remedy(enum.Enum):
    """What is done with a run that was not acknowledged."""

    #: Send it again after a pause, elsewhere if it may be.
    RETRY = "retry"
    #: Send it again at once, where it is known now that the master is.
    FOLLOW = "follow"
    #: Send it again at once, by a new route.
    REROUTE = "reroute"
    #: Cut it in two.
    SPLIT = "split"
    #: Begin a new epoch in its queue, and send it again.
    RENUMBER = "renumber"
    #: Give it up.
    FAIL = "fail"
    #: Give everything up.
    END = "end"


class Observer(Protocol):
    """Hears how requests end: a queue choice that learns from it."""

    def __call__(
        self, queue: Queue, latency_ms: float, error: errors.PocketMQError | None, /
    ) -> None: ...


#: One warning about retries at a broker, for one kind of error, in so long.
_RETRIES_TOLD_EVERY_MS: Final = 10_000
_TROUBLES_MAX: Final = 1_000


class RetryLog:
    """Logs that batches are retried: the first time, then a summary every ten seconds, and that it is over.

    A broker that is away for a minute costs six lines, however many batches wait for it.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        #: By broker and kind of error: when that was told, and the retries since.
        self._told: dict[tuple[str, type[errors.PocketMQError]], tuple[int, int]] = {}
        #: Brokers of which a warning was logged, and no success since.
        self._failing: set[str] = set()

    def retried(self, run: Run, error: errors.PocketMQError, *, quiet: bool) -> None:
        """Note that RUN is tried again after ERROR; QUIET: it was expected."""
        broker, now_ms = run.queue.broker, self._now_ms()
        told_ms, retries = self._told.get((broker, type(error)), (None, 0))
        is_due = told_ms is None or now_ms - told_ms >= _RETRIES_TOLD_EVERY_MS
        retries += 1
        if not quiet:
            if len(self._told) >= _TROUBLES_MAX:
                self._told.clear()
            self._told[broker, type(error)] = (now_ms, 0) if is_due else (told_ms or 0, retries)
            if is_due:
                self._failing.add(broker)
        logger.log(
            logging.WARNING if is_due and not quiet else logging.DEBUG,
            "batch not acknowledged, retrying %s",
            Facts(
                queue=run.queue,
                messages=len(run.messages),
                attempt=run.attempts,
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
    """Sends what the accumulator hands out."""

    def __init__(
        self,
        config: ProducerConfig,
        session: Session,
        accumulator: Accumulator,
        counters: ProducerCounters,
        origin: Origin,
        observer: Observer | None,
        on_fatal: Callable[[], None],
    ) -> None:
        """ON_FATAL is called when nothing more can be sent at all: `fatal` tells why."""
        self._config = config
        self._session = session
        self._clock = session.clock
        self._accumulator = accumulator
        self._counters = counters
        self._retry_log = RetryLog(session.clock.now_ms)
        self._origin = origin
        self._observer = observer
        self._durability = ACKS_CODES[config.acks]
        self._silent = config.acks == "none"
        self._numbering = Numbering(origin.producer_id) if config.idempotent else None
        #: Whether a pump is scheduled for the end of this turn of the loop.
        self._woken = False
        self._alarm: asyncio.Task[object] | None = None
        self._alarm_ms = 0
        #: Why nothing more can be sent at all.
        self.fatal: errors.PocketMQError | None = None
        self._on_fatal = on_fatal

    # --- which run, and when

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
        for run in self._accumulator.drain(now_ms):
            if self._numbering is not None and run.numbers is None:
                run.numbers = self._numbering.give(run.queue, len(run.messages))
            self._session.tasks.spawn(self._try(run))
        # An alarm that is set already is early enough for what was added since, but for a linger.
        if self._alarm is None or self._config.linger_ms:
            next_ms = self._accumulator.next_ms(now_ms)
            if next_ms is not None:
                self._set_alarm(next_ms)

    def _set_alarm(self, instant_ms: int) -> None:
        """Look again at INSTANT_MS, or earlier."""
        if self._alarm is not None:
            if self._alarm_ms <= instant_ms:
                return
            self._alarm.cancel()
        self._alarm_ms = instant_ms
        self._alarm = self._session.tasks.spawn(self._sleep(instant_ms))

    async def _sleep(self, until_ms: int) -> None:
        await self._clock.sleep_until(until_ms)
        self._alarm = None
        for run in self._accumulator.expired(self._clock.now_ms()):
            self._expire(run)
        self._pump()

    # --- one try

    async def _try(self, run: Run) -> None:
        began_ms = self._clock.now_ms()
        reply: pb.ProduceReply | None = None
        error: errors.PocketMQError | None = None
        address, moved = "", False
        try:
            run.seal(self._origin)
            address = self._session.routes.address(run.queue.broker)
            reply = await self._ask(run, address)
        except errors.PocketMQError as failure:
            error = failure
            moved = self._session.routes.astray(run.queue.broker, address, failure)
        except Exception as bug:  # The edge: a bug must not leave senders waiting for ever.
            logger.exception("delivery failed %s", Facts(queue=run.queue, reason=repr(bug)))
            error = errors.SendFailed(f"delivery to {run.queue} failed: {bug!r}")
        self._note(run, began_ms, error)
        if run.done:  # Given up when the producer was closed.
            self._accumulator.finished(run)
        elif error is None:
            self._succeed(run, reply)
            if not self._accumulator.has_waiting:
                return
        else:
            self._refused(run, error, moved=moved)
        self.wake()

    async def _ask(self, run: Run, address: str) -> pb.ProduceReply | None:
        connection = self._session.connections.to(address)
        timeout_ms = min(self._config.request_timeout_ms, max(1, self._left_ms(run)))
        request = run.request(self._durability, self._origin.producer_id, no_reply=self._silent)
        if not self._silent:
            asked = connection.produce(request, timeout_ms)
            reply = await self._session.of_master(run.queue.broker, address, asked)
            check_produced(request, reply, f"broker {run.queue.broker} at {address}")
            return reply
        await connection.post(request, timeout_ms, partial(self._unheard, run))
        return None

    def _left_ms(self, run: Run) -> int:
        """Return the milliseconds until RUN is given up."""
        return run.born_ms + self._config.delivery_timeout_ms - self._clock.now_ms()

    def _note(self, run: Run, began_ms: int, error: errors.PocketMQError | None) -> None:
        """Count the try of RUN that began at BEGAN_MS and ended in ERROR, or well."""
        counters = self._counters
        latency_ms = self._clock.now_ms() - began_ms
        counters.requests += 1
        counters.request_latency_ms.add(latency_ms)
        if not run.attempts:
            counters.queue_time_ms.add(began_ms - run.born_ms)
            counters.batch_messages.add(len(run.messages))
            counters.batch_bytes.add(run.size_bytes)
        if self._observer is not None:
            try:
                self._observer(run.queue, latency_ms, error)
            except Exception as bug:  # The edge: the application's queue choice may raise anything.
                logger.exception(
                    "queue choice failed to hear of a result %s",
                    Facts(queue=run.queue, reason=repr(bug)),
                )

    def _unheard(self, run: Run, error: errors.PocketMQError) -> None:
        """Note that RUN was refused for which nobody waits."""
        self._counters.refused_unheard += 1
        logger.warning(
            "run refused that nobody waits for %s",
            Facts(queue=run.queue, messages=len(run.messages), reason=error.message),
        )

    # --- its end

    def _succeed(self, run: Run, reply: pb.ProduceReply | None) -> None:
        self._accumulator.finished(run)
        if reply is not None:
            self._retry_log.acknowledged(run.queue.broker)
        self._counters.messages_sent += len(run.messages)
        self._counters.bytes_sent += run.size_bytes
        if reply is None:
            run.leave()
        else:
            self._counters.repeats_dropped += reply.repeated_count
            run.succeed(reply)

    def _refused(self, run: Run, error: errors.PocketMQError, *, moved: bool) -> None:
        """Do what the ERROR that ended a try of RUN asks for. MOVED: now it is known where the master is."""
        run.attempts += 1
        run.last_error = error
        if _was_never_stored(error):
            run.maybe_stored = False
        elif _may_have_stored(run, error):
            run.maybe_stored = True
        latest_epoch = self._numbering.latest_epoch if self._numbering is not None else 0
        remedy = _Remedy.FOLLOW if moved else _remedy_for(run, error, latest_epoch)
        if not run.maybe_stored:
            self._take_numbers_back(run)
        if remedy is _Remedy.SPLIT:
            self._counters.splits += 1
            self._accumulator.back_in_parts(run, run.split(_split_point(run, error)))
        elif remedy is _Remedy.END:
            self.fatal = error
            self._on_fatal()
            self._accumulator.finished(run)
            self.end(error)
        elif (final := self._final(run, error, remedy)) is not None:
            self._accumulator.finished(run)
            self._give_up(run, final)
        else:
            self._again(run, error, remedy)

    def _final(
        self, run: Run, error: errors.PocketMQError, remedy: _Remedy
    ) -> errors.PocketMQError | None:
        """Return what the senders of RUN get after ERROR; None: there is another try, and from when on is noted."""
        if remedy is _Remedy.FAIL:
            return error
        if run.attempts > self._config.retries:
            return self._failed(run, errors.SendFailed)
        run.not_before_ms = 0
        if remedy is _Remedy.RETRY or (remedy is not _Remedy.FOLLOW and run.attempts > 1):
            # A hand-over takes some tenth of a second: longer and longer pauses would only be waited too long.
            tries = min(run.attempts, 2) if isinstance(error, errors.MasterFenced) else run.attempts
            pause_ms = self._pause_ms(tries)
            if pause_ms >= self._left_ms(run):
                self._counters.expired += 1
                return self._failed(run, errors.DeliveryTimeout)
            run.not_before_ms = self._clock.now_ms() + pause_ms
        return None

    def _pause_ms(self, attempts: int) -> int:
        longest = self._config.retry_backoff_max_ms
        pause_ms = min(longest, self._config.retry_backoff_ms << min(attempts - 1, 20))
        return round(pause_ms * (0.5 + self._session.random.random() / 2))

    def _again(self, run: Run, error: errors.PocketMQError, remedy: _Remedy) -> None:
        """Put RUN in front again, after ERROR, and look where it goes."""
        self._counters.retries += 1
        self._retry_log.retried(run, error, quiet=remedy in (_Remedy.REROUTE, _Remedy.FOLLOW))
        self._accumulator.back(run)
        if remedy is _Remedy.RENUMBER:
            self._begin_anew(run.queue)
        elif remedy is not _Remedy.FOLLOW:
            run.finding = True
            self._session.routes.forget(run.queue.topic)
            self._session.tasks.spawn(self._find(run, error))
        if run.not_before_ms:
            self._set_alarm(run.not_before_ms)

    async def _find(self, run: Run, error: errors.PocketMQError) -> None:
        """Ask for the route of RUN, which waits after ERROR, and choose where it goes now."""
        route: Route | None = None
        try:
            route = await self._session.routes.find(run.queue.topic, provisional=True)
        except errors.PocketMQError as failure:
            logger.debug("no route for a run %s", Facts(queue=run.queue, reason=failure.message))
        if run.done:  # Expired meanwhile, or closed.
            return
        run.finding = False
        if route is not None and self._may_move(run):
            queue = self._elsewhere(run.queue, route)
            if queue != run.queue:
                self._counters.moves += 1
                self._accumulator.move(run, queue)
        if error.retriable or (route is not None and run.queue in route.writable):
            self.wake()
        else:
            self._accumulator.drop(run)
            self._give_up(run, error)

    def _may_move(self, run: Run) -> bool:
        """Tell whether another queue will do for RUN. With numbers it may have been stored where it has them."""
        return not run.pinned and run.numbers is None

    def _elsewhere(self, queue: Queue, route: Route) -> Queue:
        """Return a queue of another broker; failing that the same, or any if it is not there any more."""
        others = [other for other in route.writable if other.broker != queue.broker]
        if others:
            return self._session.random.choice(others)
        if queue in route.writable or not route.writable:
            return queue
        return self._session.random.choice(route.writable)

    def _expire(self, run: Run) -> None:
        self._counters.expired += 1
        self._give_up(run, self._failed(run, errors.DeliveryTimeout))

    def end(self, error: errors.PocketMQError) -> None:
        """Give up everything that is not acknowledged, because of ERROR."""
        self._counters.messages_failed += self._accumulator.message_count
        self._accumulator.fail_all(error)

    def _give_up(self, run: Run, error: errors.PocketMQError) -> None:
        """Tell the senders of RUN, which neither waits nor travels any more; leave no gap in its queue's numbers."""
        self._counters.messages_failed += len(run.messages)
        if not run.maybe_stored:
            self._take_numbers_back(run)
        numbering, numbers = self._numbering, run.numbers
        if numbering is not None and numbers is not None:
            lost = numbering.is_current(run.queue, numbers)
            if lost:
                self._begin_anew(run.queue)
        run.fail(error)

    def _failed(self, run: Run, kind: type[errors.SendFailed]) -> errors.SendFailed:
        """Return the error of a run that will not be tried again."""
        elapsed_ms = self._clock.now_ms() - run.born_ms
        last = run.last_error
        why = f"the last: {last.message}" if last else "its broker takes less than is sent"
        failed = kind(
            f"not acknowledged by {run.queue} in {run.attempts} tries over {elapsed_ms} ms; {why}",
            topic=run.queue.topic,
            attempts=run.attempts,
            last_error=type(last).__name__ if last else "",
        )
        failed.__cause__ = last
        return failed

    # --- numbers

    def _take_numbers_back(self, run: Run) -> None:
        """Give back the numbers of RUN, which was not stored, if none were given after them."""
        if self._numbering is None or run.numbers is None:
            return
        if self._numbering.give_back(run.queue, run.numbers, len(run.messages)):
            run.numbers = None

    def _begin_anew(self, queue: Queue) -> None:
        """Begin a new epoch in QUEUE: what waits there to be sent again gets new numbers."""
        assert self._numbering is not None
        self._numbering.begin_anew(queue)
        self._counters.epochs += 1
        for run in self._accumulator.waiting_for(queue):
            if run.numbers is not None and run.maybe_stored:
                self._counters.possible_repeats += len(run.messages)
                logger.warning(
                    "a broker cannot tell repeats any more: messages may be there twice %s",
                    Facts(queue=queue, messages=len(run.messages), reason=run.last_error),
                )
                run.maybe_stored = False
            run.numbers = None


# --- what an error means


def _may_have_stored(run: Run, error: errors.PocketMQError) -> bool:
    """Tell whether the try of RUN that ended in ERROR may have stored it."""
    if isinstance(error, errors.ConnectFailed):
        return False
    if isinstance(error, _OPEN) or type(error) is errors.PocketMQError:
        return True
    return run.scattered and isinstance(error, errors.StoreError)


def _was_never_stored(error: errors.PocketMQError) -> bool:
    """Tell whether ERROR says that no try of the same run can have been stored."""
    if isinstance(error, errors.MessageTooLarge | errors.InvalidDelay):
        return False
    return isinstance(error, errors.InvalidArgument)


def _split_point(run: Run, error: errors.PocketMQError) -> int:
    """Return before which message RUN is to be cut because of ERROR; 0: it is not."""
    if isinstance(error, errors.MessageTooLarge):
        return run.middle(within_a_sender=True)
    if isinstance(error, errors.InvalidArgument):
        return run.middle(within_a_sender=False)
    return 0


def _remedy_for(run: Run, error: errors.PocketMQError, latest_epoch: int) -> _Remedy:
    """Return what is to be done about ERROR, which ended a try of RUN. LATEST_EPOCH: of any queue of the producer."""
    if _split_point(run, error):
        return _Remedy.SPLIT
    if run.numbers is not None:
        if isinstance(error, errors.UnknownProducer | errors.OutOfOrderSequence):
            return _Remedy.RENUMBER
        if isinstance(error, errors.ProducerFenced):
            # A newer epoch of our own in another queue, or somebody else with our id?
            own = run.numbers.epoch < latest_epoch
            return _Remedy.RENUMBER if own else _Remedy.END
    if error.retriable:
        return _Remedy.RETRY
    if isinstance(error, _STALE_ROUTE) and run.attempts <= 1:
        return _Remedy.REROUTE
    return _Remedy.FAIL
