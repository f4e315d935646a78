"""Brings one run to its end: to the right broker, again after an error that passes, elsewhere if there is elsewhere.

    error                                   what happens
    retriable (connection lost, no answer   pause (doubling, with chance), ask for the route anew, send again; to a
    in time, broker overloaded or full …)   queue of another broker if there is one and no message named its queue
    topic or queue not there, not writable  once: ask for the route anew and choose a queue from it
    a bad record, of several senders        each sender's messages alone, so that only the culprit hears of it
    any other                               the senders get the broker's error
    delivery_timeout_ms is over             the senders get SendFailed, caused by the last error

At least once: an acknowledgement may be lost after the broker has stored the run, and a second try stores it again,
with the same message ids.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random

from ...proto.clock import Clock
from ...proto.errors import (
    InvalidArgument,
    NotWritable,
    PocketMQError,
    QueueNotFound,
    RouteNotFound,
    SendFailed,
    TopicNotFound,
)
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..config import ProducerConfig
from ..connections import Connections
from ..queue import Queue
from ..routes import Route, Routes
from .receipt import DURABILITY_CODES
from .run import Origin, Run

logger = logging.getLogger(__name__)

_STALE_ROUTE = (TopicNotFound, QueueNotFound, NotWritable)


class Delivery:
    """Delivers runs. Not thread-safe: the producer's event loop owns it."""

    def __init__(
        self,
        config: ProducerConfig,
        routes: Routes,
        connections: Connections,
        *,
        clock: Clock,
        random: Random,
        origin: Origin,
    ) -> None:
        self._config = config
        self._routes = routes
        self._connections = connections
        self._clock = clock
        self._random = random
        self._origin = origin
        self._durability = DURABILITY_CODES[config.durability]
        self._in_flight: dict[str, asyncio.Semaphore] = {}

    async def deliver(self, run: Run) -> None:
        """Send RUN until it is acknowledged or fails; those who wait for it hear of it."""
        while True:
            try:
                reply = await self._attempt(run)
            except InvalidArgument as error:
                return await self._refused(run, error)
            except PocketMQError as error:
                run.attempts += 1
                if not await self._may_retry(run, error):
                    return run.fail(self._final(run, error))
            else:
                return run.succeed(reply)

    async def _attempt(self, run: Run) -> pb.ProduceReply:
        broker = run.queue.broker
        in_flight = self._in_flight.get(broker)
        if in_flight is None:
            in_flight = self._in_flight[broker] = asyncio.Semaphore(self._config.in_flight_runs_max)
        if not run.sealed:
            run.seal(self._origin)
        async with in_flight:
            connection = self._connections.to(self._routes.address(broker))
            timeout_ms = min(self._config.request_timeout_ms, self._left_ms(run))
            return await connection.produce(run.request(self._durability), timeout_ms)

    def _left_ms(self, run: Run) -> int:
        """Return the milliseconds until RUN is given up; a first try gets at least one."""
        deadline_ms = run.born_ms + self._config.delivery_timeout_ms
        return max(1, deadline_ms - self._clock.now_ms())

    async def _refused(self, run: Run, error: InvalidArgument) -> None:
        if len(run.waiters) == 1:
            return run.fail(error)
        for part in run.split():
            await self.deliver(part)
        run.size_bytes = 0  # The parts have given it back.
        run.on_done(run)

    async def _may_retry(self, run: Run, error: PocketMQError) -> bool:
        """Prepare the next try and return True, or return False if there is none."""
        first_of_stale_route = isinstance(error, _STALE_ROUTE) and run.attempts == 1
        if not error.retriable and not first_of_stale_route:
            return False
        pause_ms = 0 if first_of_stale_route else self._pause_ms(run.attempts)
        if pause_ms >= self._left_ms(run):
            return False
        logger.log(
            logging.DEBUG if first_of_stale_route else logging.WARNING,
            "run not acknowledged, trying again",
            extra={"queue": str(run.queue), "attempt": run.attempts, "error": str(error)},
        )
        self._routes.forget(run.queue.topic)
        await self._clock.sleep_until(self._clock.now_ms() + pause_ms)
        return await self._reroute(run, error)

    def _pause_ms(self, attempts: int) -> int:
        longest = self._config.retry_backoff_max_ms
        pause_ms = min(longest, self._config.retry_backoff_ms << min(attempts - 1, 20))
        return round(pause_ms * (0.5 + self._random.random() / 2))

    async def _reroute(self, run: Run, error: PocketMQError) -> bool:
        try:
            route = await self._routes.find(run.queue.topic, provisional=True)
        except RouteNotFound:
            return error.retriable
        if not run.pinned:
            run.move(self._elsewhere(run.queue, route))
        return run.queue in route.writable or error.retriable

    def _elsewhere(self, queue: Queue, route: Route) -> Queue:
        """Return a queue of another broker; failing that the same, or any if it is not there any more."""
        others = [other for other in route.writable if other.broker != queue.broker]
        if others:
            return self._random.choice(others)
        if queue in route.writable or not route.writable:
            return queue
        return self._random.choice(route.writable)

    def _final(self, run: Run, error: PocketMQError) -> PocketMQError:
        """Return the error that the senders get: what no repetition heals as it is, else that time is over."""
        if not error.retriable:
            return error
        elapsed_ms = self._clock.now_ms() - run.born_ms
        failed = SendFailed(
            f"not acknowledged by {run.queue} in {run.attempts} tries over {elapsed_ms} ms; the last: {error.message}",
            topic=run.queue.topic,
            attempts=run.attempts,
            last_error=type(error).__name__,
        )
        failed.__cause__ = error
        return failed
