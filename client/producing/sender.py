"""The core of both producers: takes messages, finds their queue, and hands them to the accumulator.

Messages for a topic whose route is not known yet wait for it together, in order. Not thread-safe, but for `budget` and
`size_of`: the producer's event loop owns it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from ...proto.errors import ClientClosed, InvalidArgument, MessageTooLarge, PocketMQError
from ...proto.message_id import UniqueIds
from ..config import ProducerConfig
from ..message import Message
from ..queue import Queue
from ..routes import Route
from ..session import Session, local_host
from .accumulator import Accumulator
from .budget import Budget
from .counters import ProducerCounters
from .cutting import PLACE, parts
from .delivery import Delivery
from .outcome import Gathered, Outcome, SendFuture, Watch, message_of
from .queue_choice import QueueChoice, RoundRobin, queue_for
from .recall import recall
from .receipt import Receipt
from .rows import MessageRow, Place
from .run import Origin, record_size
from .spread import spread

#: A route that is younger is not asked for again because a message names a queue that it does not have.
_ASKED_MS: Final = 200


class _Parcel(NamedTuple):
    """Messages of one topic, all for the same queue or all for any, of one sender: they travel in one run."""

    messages: Sequence[Message]
    size_bytes: int
    outcome: Outcome
    single: bool

    def fail(self, error: Exception) -> int:
        """Tell the sender; return how many bytes are free."""
        if not self.outcome.done():
            self.outcome.set_exception(error)
        return self.size_bytes


class _RowParcel(NamedTuple):
    """Single messages of one topic, each with a future of its own; all of them say where they go, or none."""

    row: MessageRow

    @property
    def messages(self) -> Sequence[Message]:
        return self.row.messages

    def fail(self, error: Exception) -> int:
        """Tell the senders; return how many bytes are free."""
        return self.row.fail(0, error)


class Sender:
    """Sends what the faces bring; see producer.py for what they promise."""

    def __init__(
        self, config: ProducerConfig, session: Session, choice: QueueChoice | None = None
    ) -> None:
        self.config = config
        self.budget = Budget(config.buffer_memory)
        self._counters = ProducerCounters()
        self._session = session
        self._choice = choice or RoundRobin(session.random)
        self._tell_added = getattr(choice, "on_added", None)
        self._unrouted: dict[str, list[_Parcel | _RowParcel]] = {}
        #: Tasks that will bring more to the accumulator: routes being found, long sendings under way.
        self._bringing: set[asyncio.Task[object]] = set()
        self._accumulator = Accumulator(config, self.budget.give, lambda: self.budget.is_short)
        self._delivery: Delivery | None = None
        self._closed = False
        self._disconnected = False
        #: False: `check_open` tells why.
        self.is_open = False

    async def start(self) -> None:
        """Get ready to send; nothing is connected yet."""
        session = self._session
        host = await local_host(session.name_servers.addresses[0])
        ids = UniqueIds(session.clock.unix_ms, os.getpid(), session.random)
        producer_id = session.random.getrandbits(63) or 1
        self._delivery = Delivery(
            self.config,
            session,
            self._accumulator,
            self._counters,
            Origin(host, ids, session.clock, producer_id),
            getattr(self._choice, "on_result", None),
        )
        self._delivery.on_fatal = self._end
        self.budget.on_short = self._delivery.wake
        self.is_open = not self._closed

    def _end(self) -> None:
        self.is_open = False

    @property
    def counters(self) -> ProducerCounters:
        """What was done so far."""
        self._counters.buffer_bytes = self.budget.taken_bytes
        self._counters.buffer_waits = self.budget.wait_count
        return self._counters

    @property
    def closed(self) -> bool:
        """Was it closed, or is it being closed?"""
        return self._closed

    def check_open(self) -> None:
        """Raise ClientClosed unless messages are taken, and ProducerFenced if another took this producer's place."""
        if self._closed:
            raise ClientClosed("the producer was closed; make a new one to go on sending")
        if self._delivery is None:
            raise ClientClosed("the producer was not started: use it in a `with` block")
        if self._delivery.fatal is not None:
            raise self._delivery.fatal

    def size_of(self, message: Message) -> int:
        """Return the bytes that MESSAGE takes; raise InvalidArgument if it is something else, or MessageTooLarge."""
        if type(message) is not Message:
            checked_message(message)
        size_bytes = record_size(message)
        if size_bytes > self.config.max_request_size:
            _refuse_size(size_bytes, self.config.max_request_size)
        return size_bytes

    async def send(self, message: Message) -> Receipt:
        """Send MESSAGE, waiting for room; return its receipt once it is acknowledged."""
        self.check_open()
        size_bytes = self.size_of(message)
        await self.budget.take_within(size_bytes, self.config.max_block_ms)
        outcome: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.accept(message, size_bytes, outcome)
        return await outcome

    def accept(self, message: Message, size_bytes: int, outcome: Outcome) -> None:
        """Send MESSAGE, for which SIZE_BYTES were taken from the budget; OUTCOME gets its Receipt."""
        self._take_in(_Parcel((message,), size_bytes, outcome, single=True))

    def accept_row(self, futures: Sequence[SendFuture]) -> None:
        """Send the messages of FUTURES, whose bytes were taken from the budget; they get the Receipts."""
        messages = [future.message for future in futures]
        if len(set(map(PLACE, messages))) == 1:
            self._accept_alike(futures)
            return
        by_topic: dict[str, list[SendFuture]] = {}
        for future in futures:
            by_topic.setdefault(message_of(future).topic, []).append(future)
        for of_topic in by_topic.values():
            # The order of what goes to one queue holds, also between messages that name it and others.
            for _, group in groupby(of_topic, lambda future: message_of(future).placed):
                self._accept_alike(list(group))

    def _accept_alike(self, futures: Sequence[SendFuture]) -> None:
        """Send the messages of FUTURES, of one topic, all of which say where they go, or none."""
        self._take_in(_RowParcel(MessageRow.of(futures)))

    def accept_many(
        self, messages: Sequence[Message], outcome: Outcome, watch: Watch | None = None
    ) -> None:
        """Send MESSAGES as the budget allows; OUTCOME gets Receipts. WATCH hears of each part before."""
        gathered = Gathered(outcome)
        if not self._disconnected:
            self._bring(self._feed(messages, gathered, watch))
        else:
            _refuse_rest(messages, 0, gathered, watch, _closed_before())

    def _bring(self, work: Coroutine[object, object, None]) -> None:
        task = self._session.tasks.spawn(work)
        self._bringing.add(task)
        task.add_done_callback(self._bringing.discard)

    async def _feed(
        self, messages: Sequence[Message], gathered: Gathered, watch: Watch | None
    ) -> None:
        begin = 0
        try:
            for part, size_bytes in parts(messages, self.config, self.size_of):
                await self.budget.take_within(size_bytes, self.config.max_block_ms)
                outcome: Outcome = gathered.part()
                if watch is not None:
                    outcome = watch(begin, begin + len(part), outcome)
                begin += len(part)
                self._take_in(_Parcel(part, size_bytes, outcome, single=False))
                await asyncio.sleep(0)  # Lets the run leave before the next one is encoded.
        except PocketMQError as error:
            _refuse_rest(messages, begin, gathered, watch, error)
        except asyncio.CancelledError:
            closed = ClientClosed("the producer was closed while sending")
            _refuse_rest(messages, begin, gathered, watch, closed)
            raise
        else:
            gathered.no_more_parts()

    def _take_in(self, parcel: _Parcel | _RowParcel) -> None:
        if self._disconnected:
            return self._fail(parcel, _closed_before())
        topic = parcel.messages[0].topic
        routes = self._session.routes
        route = None if topic in self._unrouted else routes.known(topic)
        if route is None:
            self._wait_for_route(topic, parcel)
        elif parcel.messages[0].placed and self._is_outdated(route, parcel):
            routes.forget(topic)  # Asked for once: the queue that is named may be a new one.
            self._wait_for_route(topic, parcel)
        else:
            self._place(parcel, route)

    def _is_outdated(self, route: Route, parcel: _Parcel | _RowParcel) -> bool:
        """Does PARCEL name a queue that ROUTE does not know, which was not asked for just now?"""
        if self._session.clock.now_ms() - route.fetched_ms < _ASKED_MS:
            return False
        messages = parcel.messages if isinstance(parcel, _RowParcel) else parcel.messages[:1]
        wanted = {message.queue for message in messages} - {None}
        known = route.writable
        return not all(
            one in known if isinstance(one, Queue) else any(one == queue.number for queue in known)
            for one in wanted
        )

    def _place(self, parcel: _Parcel | _RowParcel, route: Route) -> None:
        try:
            if isinstance(parcel, _RowParcel):
                self._add_row(parcel.row, route)
            else:
                self._add(parcel, route)
        except Exception as error:  # The application's queue choice may raise anything.
            self._fail(parcel, error)
        assert self._delivery is not None
        if isinstance(parcel, _RowParcel):
            self._delivery.send_ready()  # A row is what has gathered already.
        else:
            self._delivery.wake()

    def _add(self, parcel: _Parcel, route: Route) -> None:
        messages, size_bytes = parcel.messages, parcel.size_bytes
        now_ms = self._session.clock.now_ms()
        if len(messages) > 1 and not (self._choice.for_a_run or messages[0].placed):
            for queue, share, size, outcome in spread(
                messages, route, self._choice, parcel.outcome
            ):
                self._accumulator.add_many(Place(queue, True), share, size, outcome, now_ms)
                self._tell(Place(queue, True), size)
            return
        place = self._place_for(messages[0], len(messages), size_bytes, route)
        if parcel.single:
            self._accumulator.add_one(place, messages[0], size_bytes, parcel.outcome, now_ms)
        else:
            self._accumulator.add_many(place, messages, size_bytes, parcel.outcome, now_ms)
        self._tell(place, size_bytes)

    def _add_row(self, row: MessageRow, route: Route) -> None:
        """Send ROW in as few runs as it takes; a queue choice that raises fails what it was asked for and the rest."""
        now_ms = self._session.clock.now_ms()
        if not self._choice.for_a_run or row.messages[0].placed:
            return self._add_chosen(row, route, now_ms)
        begin = 0
        while begin < len(row):
            size_bytes = row.ends[begin + 1] - row.ends[begin]
            try:
                place = self._place_for(row.messages[begin], 1, size_bytes, route)
            except Exception as error:  # As in `_place`: what has its place by now keeps it.
                self.budget.give(row.fail(begin, error))
                return
            end = self._accumulator.add_row(place, row, begin, now_ms)
            self._tell(place, row.ends[end] - row.ends[begin])
            begin = end

    def _add_chosen(self, row: MessageRow, route: Route, now_ms: int) -> None:
        """Send each message of ROW to the queue that is chosen for it."""
        rows: dict[Queue, list[int]] = {}
        for index, message in enumerate(row.messages):
            try:
                queue = queue_for(message, route, self._choice)
            except Exception as error:  # As in `_place`: each sender hears of his own message.
                self.budget.give(row.taken([index]).fail(0, error))
            else:
                rows.setdefault(queue, []).append(index)
        for queue, indexes in rows.items():
            taken = row.taken(indexes)
            begin = 0
            while begin < len(taken):
                begin = self._accumulator.add_row(Place(queue, True), taken, begin, now_ms)
            self._tell(Place(queue, True), taken.ends[-1])

    def _place_for(self, first: Message, count: int, size_bytes: int, route: Route) -> Place:
        """Return where COUNT messages of together SIZE_BYTES go, of which FIRST is the first.

        A queue that was chosen for a message by what it is, or by its sender, is kept.
        """
        pinned = first.placed or not self._choice.for_a_run
        queue: Queue | None = None
        if not pinned:
            queue = self._accumulator.open_queue(route.topic, count, size_bytes)
        return Place(queue or queue_for(first, route, self._choice), pinned)

    def _tell(self, place: Place, size_bytes: int) -> None:
        """Tell the queue choice, if it wants to know, that SIZE_BYTES more go to PLACE."""
        if self._tell_added is not None:
            self._tell_added(place.queue, size_bytes)

    def _fail(self, parcel: _Parcel | _RowParcel, error: Exception) -> None:
        self._counters.messages_failed += len(parcel.messages)
        self.budget.give(parcel.fail(error))

    def _wait_for_route(self, topic: str, parcel: _Parcel | _RowParcel) -> None:
        waiting = self._unrouted.get(topic)
        if waiting is None:
            self._unrouted[topic] = [parcel]
            self._bring(self._find_route(topic))
        else:
            waiting.append(parcel)

    async def _find_route(self, topic: str) -> None:
        try:
            timeout_ms = min(self.config.route_timeout_ms, self.config.max_block_ms)
            route = await self._session.find_route(topic, timeout_ms)
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
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accumulator.flush(lambda: None if flushed.done() else flushed.set_result(None))
        if self._delivery is not None:
            self._delivery.wake()
        await flushed

    async def close(self, timeout_ms: int) -> None:
        """Take no more messages, wait up to TIMEOUT_MS for acknowledgements, fail the rest, and disconnect."""
        if self._closed:
            return
        self._closed = True
        self.is_open = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.flush()
        except TimeoutError:
            self._give_up(timeout_ms)
        finally:
            self._disconnected = True
            await self._session.close()

    def _give_up(self, timeout_ms: int) -> None:
        waiting = [parcel for parcels in self._unrouted.values() for parcel in parcels]
        self._unrouted.clear()
        count = self._accumulator.message_count + sum(len(p.messages) for p in waiting)
        error = ClientClosed(
            f"the producer was closed; {count} messages were not acknowledged within {timeout_ms} ms",
            messages=count,
        )
        for parcel in waiting:
            self._fail(parcel, error)
        if self._delivery is not None:
            self._delivery.end(error)


def _refuse_rest(
    messages: Sequence[Message],
    begin: int,
    gathered: Gathered,
    watch: Watch | None,
    error: PocketMQError,
) -> None:
    """Tell the sender of MESSAGES that those from BEGIN on will not be sent, because of ERROR."""
    if watch is not None:
        watch(begin, len(messages), gathered.part()).set_exception(error)
    gathered.no_more_parts(error)


def _closed_before() -> ClientClosed:
    return ClientClosed("the producer was closed before it could take the message")


def _refuse_size(size_bytes: int, limit: int) -> None:
    raise MessageTooLarge(
        f"the message takes {size_bytes} bytes, max_request_size is {limit}: raise that, or send less",
        field="max_request_size",
        limit=limit,
        value=size_bytes,
    )


def checked_message(message: object) -> Message:
    """Return MESSAGE; raise InvalidArgument if it is something else."""
    if isinstance(message, Message):
        return message
    raise InvalidArgument(
        f"send takes a Message, not {type(message).__name__}: write Message(topic, body)",
        field="message",
    )
