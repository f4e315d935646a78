"""The core of both producers: takes messages, finds their queue, and hands them to the accumulator.

Messages for a topic whose route is not known yet wait for it together, in order. Not thread-safe, but for `budget`: the
producer's event loop owns it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

from ...proto.errors import ClientClosed, InvalidArgument, PocketMQError
from ...proto.message_id import UniqueIds
from ..config import ProducerConfig
from ..message import Message
from ..queue import Queue
from ..routes import Route
from ..session import Session, local_host
from .accumulator import Accumulator
from .budget import Budget
from .delivery import Delivery
from .queue_choice import QueueChoice, RoundRobin, queue_for
from .recall import recall
from .receipt import Receipt
from .run import Gathered, Origin, Outcome, record_size

_PLACE = attrgetter("topic", "queue", "sharding_key")


class _Parcel(NamedTuple):
    """Messages of one topic, all for the same queue or all for any, that wait for a route."""

    messages: Sequence[Message]
    size_bytes: int
    outcome: Outcome
    single: bool


class Sender:
    """Sends what the faces bring; see producer.py for what they promise."""

    def __init__(
        self, config: ProducerConfig, session: Session, choice: QueueChoice | None = None
    ) -> None:
        self.config = config
        self.budget = Budget(config.buffer_bytes_max)
        self._session = session
        self._choice = choice or RoundRobin(session.random)
        self._tell_added = getattr(choice, "on_added", None)
        self._unrouted: dict[str, list[_Parcel]] = {}
        #: Tasks that will bring more to the accumulator: routes being found, long sendings under way.
        self._bringing: set[asyncio.Task[object]] = set()
        self._accumulator: Accumulator | None = None
        self._closed = False
        self._disconnected = False

    async def start(self) -> None:
        """Get ready to send; nothing is connected yet."""
        session = self._session
        host = await local_host(session.name_servers.addresses[0])
        origin = Origin(host, UniqueIds(session.clock.now_ms, os.getpid(), session.random))
        delivery = Delivery(
            self.config,
            session.routes,
            session.connections,
            clock=session.clock,
            random=session.random,
            origin=origin,
        )
        self._accumulator = Accumulator(
            self.config,
            delivery.deliver,
            self.budget.give,
            clock=session.clock,
            tasks=session.tasks,
            origin=origin,
        )

    @property
    def closed(self) -> bool:
        """Was it closed, or is it being closed?"""
        return self._closed

    def check_open(self) -> None:
        """Raise ClientClosed unless messages are taken."""
        if self._closed:
            raise ClientClosed("the producer was closed; make a new one to go on sending")
        if self._accumulator is None:
            raise ClientClosed("the producer was not started: use it in a `with` block")

    async def send(self, message: Message) -> Receipt:
        """Send MESSAGE, waiting for room; return its receipt once it is acknowledged."""
        self.check_open()
        size_bytes = record_size(checked_message(message))
        await self.budget.take_within(size_bytes, self.config.max_block_ms)
        outcome: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.accept(message, size_bytes, outcome)
        return await outcome

    def accept(self, message: Message, size_bytes: int, outcome: Outcome) -> None:
        """Send MESSAGE, for which SIZE_BYTES were taken from the budget; OUTCOME gets its Receipt."""
        self._take_in(_Parcel((message,), size_bytes, outcome, single=True))

    def accept_many(self, messages: list[Message], outcome: Outcome) -> None:
        """Send MESSAGES as the budget allows; OUTCOME gets Receipts."""
        if self._disconnected:
            outcome.set_exception(_closed_before())
        else:
            self._bring(self._feed(messages, Gathered(outcome)))

    def _bring(self, work: Coroutine[object, object, None]) -> None:
        task = self._session.tasks.spawn(work)
        self._bringing.add(task)
        task.add_done_callback(self._bringing.discard)

    async def _feed(self, messages: list[Message], gathered: Gathered) -> None:
        try:
            for part, size_bytes in self._parts(messages):
                await self.budget.take_within(size_bytes, self.config.max_block_ms)
                self._take_in(_Parcel(part, size_bytes, gathered.part(), single=False))
                await asyncio.sleep(0)  # Lets the run leave before the next one is encoded.
        except PocketMQError as error:
            gathered.no_more_parts(error)
        except asyncio.CancelledError:
            gathered.no_more_parts(ClientClosed("the producer was closed while sending"))
            raise
        else:
            gathered.no_more_parts()

    def _parts(self, messages: list[Message]) -> Iterator[tuple[list[Message], int]]:
        """Cut MESSAGES into parts for one topic and queue that fit a run; yield them with their sizes."""
        if not self._choice.for_a_run:
            for message in messages:
                yield [message], record_size(message)
            return
        limit = self.config.run_bytes_max
        for _, group in groupby(messages, _PLACE):
            count = self.config.run_messages_max
            while part := list(islice(group, count)):
                size_bytes = sum(map(record_size, part))
                yield from self._sized(part, size_bytes)
                # The next part fits at once if its messages are like these.
                count = max(
                    1, min(self.config.run_messages_max, limit * len(part) // size_bytes - 1)
                )

    def _sized(
        self, messages: list[Message], size_bytes: int
    ) -> Iterator[tuple[list[Message], int]]:
        """Halve MESSAGES, of together SIZE_BYTES, until the parts fit a run."""
        if size_bytes < self.config.run_bytes_max or len(messages) == 1:
            yield messages, size_bytes
            return
        middle = len(messages) // 2
        first_bytes = sum(map(record_size, messages[:middle]))
        yield from self._sized(messages[:middle], first_bytes)
        yield from self._sized(messages[middle:], size_bytes - first_bytes)

    def _take_in(self, parcel: _Parcel) -> None:
        if self._disconnected:
            return self._fail(parcel, _closed_before())
        topic = parcel.messages[0].topic
        route = self._session.routes.known(topic)
        if route is None or topic in self._unrouted:
            self._wait_for_route(topic, parcel)
        else:
            self._place(parcel, route)

    def _place(self, parcel: _Parcel, route: Route) -> None:
        try:
            self._add(parcel, route)
        except (
            Exception
        ) as error:  # The application's queue choice may raise anything: its sender hears of it.
            self._fail(parcel, error)

    def _add(self, parcel: _Parcel, route: Route) -> None:
        accumulator = self._accumulator
        assert accumulator is not None
        messages, size_bytes = parcel.messages, parcel.size_bytes
        first = messages[0]
        queue: Queue | None = None
        if self._choice.for_a_run and not first.placed:
            queue = accumulator.open_queue(route.topic, len(messages), size_bytes)
        if queue is None:
            queue = queue_for(first, route, self._choice)
        if parcel.single:
            accumulator.add_one(queue, first, size_bytes, parcel.outcome)
        else:
            accumulator.add_many(queue, messages, size_bytes, parcel.outcome)
        if self._tell_added is not None:
            self._tell_added(queue, size_bytes)

    def _fail(self, parcel: _Parcel, error: Exception) -> None:
        self.budget.give(parcel.size_bytes)
        if not parcel.outcome.done():
            parcel.outcome.set_exception(error)

    def _wait_for_route(self, topic: str, parcel: _Parcel) -> None:
        waiting = self._unrouted.get(topic)
        if waiting is None:
            self._unrouted[topic] = [parcel]
            self._bring(self._find_route(topic))
        else:
            waiting.append(parcel)

    async def _find_route(self, topic: str) -> None:
        try:
            route = await self._session.find_route(topic, self.config.route_timeout_ms)
        except PocketMQError as error:
            for parcel in self._unrouted.pop(topic, ()):
                self._fail(parcel, error)
            return
        for parcel in self._unrouted.pop(topic, ()):
            self._place(parcel, route)

    async def recall(self, handle: str | Receipt) -> str:
        """Take back the delayed message of HANDLE; return its id."""
        self.check_open()
        return await recall(self._session, handle, self.config.request_timeout_ms)

    async def flush(self) -> None:
        """Return once what was accepted before has been acknowledged or has failed."""
        if self._bringing:
            await asyncio.wait(set(self._bringing))
        if self._accumulator is not None:
            await self._accumulator.flush()

    async def close(self, timeout_ms: int) -> None:
        """Take no more messages, wait up to TIMEOUT_MS for acknowledgements, fail the rest, and disconnect."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.flush()
        except TimeoutError:
            self._give_up(timeout_ms)
        finally:
            self._disconnected = True
            await self._session.close()

    def _give_up(self, timeout_ms: int) -> None:
        assert self._accumulator is not None
        waiting = [parcel for parcels in self._unrouted.values() for parcel in parcels]
        self._unrouted.clear()
        count = self._accumulator.message_count + sum(len(p.messages) for p in waiting)
        error = ClientClosed(
            f"the producer was closed; {count} messages were not acknowledged within {timeout_ms} ms",
            messages=count,
        )
        for parcel in waiting:
            self._fail(parcel, error)
        self._accumulator.fail_all(error)


def _closed_before() -> ClientClosed:
    return ClientClosed("the producer was closed before it could take the message")


def checked_message(message: object) -> Message:
    """Return MESSAGE; raise InvalidArgument if it is something else."""
    if isinstance(message, Message):
        return message
    raise InvalidArgument(
        f"send takes a Message, not {type(message).__name__}: write Message(topic, body)",
        field="message",
    )
