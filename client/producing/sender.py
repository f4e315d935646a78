"""The core of both producers: it takes a message from `send` to its receipt.

The docstring of `Producer.send` lists the steps. Messages for a topic whose route is unknown wait for the route, in
order. Not thread-safe, except `budget`, `size_of`, `intake` and `transaction`: the producer's event loop owns it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final

from ...proto.errors import (
    ClientClosed,
    InvalidArgument,
    MessageTooLarge,
    PocketMQError,
    RouteNotFound,
)
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import UniqueIds
from ...proto.recall_handle import decode_handle
from ..config import ProducerConfig
from ..message import NO_VALUE, ManyParts, Message, MessageParts, UnserializedMessage, record_size
from ..metrics import ProducerCounters, ProducerMetrics
from ..queue import Queue
from ..routes import Route
from ..session import Session, local_host
from .accumulator import Accumulator, Budget
from .atomic_commit import AsyncAtomicCommit
from .batch import ProducerIdentity
from .batch_parts import JointPart, Part, SinglesPart
from .bodies import PLACE, parts_of
from .delivery import Delivery
from .interceptors import Sending
from .preparation import Preparation
from .queue_selector import queue_for, queue_selector
from .receipt import (
    CombinedResult,
    Receipt,
    Receipts,
    SendFuture,
    SendOutcome,
    Watch,
    message_of,
    recall_handle_of,
)
from .transaction import AsyncTransaction
from .transaction_checks import Checker, Transacting

if TYPE_CHECKING:
    from ..consuming.atomic_reading import AtomicReading

#: If a message names an unknown queue, the route is looked up again, unless it is younger than this.
_FRESH_ROUTE_MS: Final = 200


class Sender:
    """Sends the messages of one producer, `Producer` or `AsyncProducer`."""

    def __init__(self, config: ProducerConfig, session: Session, checker: Checker | None) -> None:
        self.config = config
        self.intake = Preparation(config, session)
        self.budget = Budget(config.buffer_memory, self._wake)
        self._counters = ProducerCounters()
        self._session = session
        self._choice = queue_selector(
            config.queue_selector,
            clock=session.clock,
            random=session.random,
            run_bytes=config.batch_max_bytes,
        )
        self._on_added = getattr(self._choice, "on_added", None)
        #: By topic, the parts that wait for its route, in order.
        self._unrouted: dict[str, list[Part]] = {}
        #: Tasks that will add to the accumulator: they find a route, or wait for memory for a large `send_many`.
        self._adding: set[asyncio.Task[object]] = set()
        self._accumulator = Accumulator(config, self.budget)
        self._delivery: Delivery | None = None
        self._identity: ProducerIdentity | None = None
        self._transacting = Transacting(config, session, checker)
        self._closed = False
        self._disconnected = False
        #: If False, `check_open` raises the reason.
        self.is_open = False

    async def start(self) -> None:
        """Prepare to send. This opens no connection."""
        session = self._session
        host = await local_host(session.name_servers.addresses[0])
        ids = UniqueIds(session.clock.unix_ms, os.getpid(), session.random)
        producer_id = session.random.getrandbits(63) or 1
        self._identity = ProducerIdentity(host, ids, session.clock, producer_id)
        self._delivery = Delivery(
            self.config,
            session,
            self._accumulator,
            self._counters,
            self._identity,
            getattr(self._choice, "on_result", None),
            self._end,
        )
        self.is_open = not self._closed
        self._transacting.start()

    def _end(self) -> None:
        self.is_open = False

    def _wake(self) -> None:
        if self._delivery is not None:
            self._delivery.wake()

    def metrics(self) -> ProducerMetrics:
        """Return the metrics of this producer."""
        return ProducerMetrics.of(self._counters, self.budget)

    def check_open(self) -> None:
        """Raise ClientClosed if the producer is not open, or ProducerFenced if another one has replaced it."""
        if self._closed:
            raise ClientClosed("the producer is closed: create a new one to send more")
        if self._delivery is None:
            raise ClientClosed("the producer is not started: use it in a `with` block")
        if self._delivery.fatal is not None:
            raise self._delivery.fatal

    async def send(self, message: object, value: Any, parts: MessageParts) -> Receipt:
        """Send the message for the arguments of `Producer.send`; return its receipt when it is acknowledged."""
        self.check_open()
        intake = self.intake
        if (
            type(message) is Message
            and len(message.body) <= intake.plain_bytes
            and value is NO_VALUE
            and not parts
        ):
            return await self._send_final(message)
        if type(message) is str and value is not NO_VALUE and not intake.interceptors:
            await intake.gate.wait(message)
            return await self._send_final(intake.prepare(message, value, parts))
        sending = intake.intercepted(message, value, parts)
        with intake.reporting_errors(sending):
            if isinstance(sending, UnserializedMessage):
                await intake.gate.wait(sending.topic)
            final = intake.final(sending)
            size_bytes = await self._reserve(final)
        return await self._accept_observed(sending, final, size_bytes)

    def send_nowait(
        self, message: object, value: Any, parts: MessageParts
    ) -> asyncio.Future[Receipt]:
        """Accept the message for the arguments of `Producer.send` without waiting; return the future of its receipt."""
        self.check_open()
        intake = self.intake
        if type(message) is str and value is not NO_VALUE and not intake.interceptors:
            message, value, parts = intake.prepare(message, value, parts), NO_VALUE, {}
        sending = intake.intercepted(message, value, parts)
        with intake.reporting_errors(sending):
            final = intake.final(sending)
            size_bytes = self.size_of(final)
            if not self.budget.take(size_bytes):
                raise self.budget.full_error("when the message was sent")
        return self._accept_observed(sending, final, size_bytes)

    async def send_many(
        self, messages: Iterable[Message] | str, values: Iterable[Any], parts: ManyParts
    ) -> Receipts:
        """Send the messages for the arguments of `Producer.send_many`. Return the receipts."""
        return await self.send_many_nowait(messages, values, parts)

    def send_many_nowait(
        self, messages: Iterable[Message] | str, values: Iterable[Any], parts: ManyParts
    ) -> asyncio.Future[Receipts]:
        """Start to send the messages for the arguments of `send_many`. Return the future of the receipts."""
        self.check_open()
        outcome: asyncio.Future[Receipts] = asyncio.get_running_loop().create_future()
        final, watch = self.intake.prepare_many(messages, values, parts)
        self.accept_many(final, outcome, watch)
        return outcome

    async def _send_final(self, message: Message) -> Receipt:
        size_bytes = await self._reserve(message)
        outcome: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.accept(message, size_bytes, outcome)
        return await outcome

    async def _reserve(self, message: Message) -> int:
        """Wait until the budget has memory for MESSAGE, and take it; return the size."""
        size_bytes = self.size_of(message)
        await self.budget.take_within(size_bytes, self.config.max_block_ms)
        return size_bytes

    def _accept_observed(
        self, sending: Sending, final: Message, size_bytes: int
    ) -> asyncio.Future[Receipt]:
        """Send FINAL; return the future of its receipt. The interceptors are notified first, with SENDING."""
        outcome: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.accept(final, size_bytes, self.intake.observed(sending, outcome))
        return outcome

    def size_of(self, message: Message) -> int:
        """Return the size of MESSAGE in bytes. Raises InvalidArgument if it is no Message, or MessageTooLarge."""
        if not isinstance(message, Message):
            raise InvalidArgument(
                f"send takes a Message, not {type(message).__name__}: write Message(topic, body)",
                field="message",
            )
        size_bytes, limit = record_size(message), self.config.max_request_size
        if size_bytes > limit:
            raise MessageTooLarge(
                f"the message takes {size_bytes} bytes: the limit is {limit} (max_request_size). Raise the limit, or"
                " send a smaller message.",
                field="max_request_size",
                limit=limit,
                value=size_bytes,
            )
        return size_bytes

    def transaction(self, message: object, value: Any, parts: MessageParts) -> AsyncTransaction:
        """Return a transaction, not started yet, of the message for the arguments."""
        sending = self.intake.intercepted(message, value, parts)
        with self.intake.reporting_errors(sending):
            final = self.intake.final(sending)
            return self._transacting.transaction(final, partial(self._send_half, sending))

    def atomic_commit(self, reading: AtomicReading) -> AsyncAtomicCommit:
        """Return an atomic commit, not started yet, for the messages that READING reads."""
        self.check_open()
        assert self._identity is not None, "the producer was started"
        return AsyncAtomicCommit(
            self.config, self._session, self.intake, self._choice, self._identity, reading
        )

    async def _send_half(self, sending: Sending, half: Message) -> Receipt:
        with self.intake.reporting_errors(sending):
            self.check_open()
            size_bytes = await self._reserve(half)
        return await self._accept_observed(sending, half, size_bytes)

    def accept(self, message: Message, size_bytes: int, outcome: SendOutcome) -> None:
        """Send MESSAGE, for which SIZE_BYTES were taken from the budget; `outcome` gets its Receipt."""
        self._accept_part(JointPart((message,), size_bytes, outcome, single=True))

    def accept_row(self, futures: Sequence[SendFuture]) -> None:
        """Send the messages of FUTURES, whose bytes were taken from the budget; they get the Receipts."""
        messages = [future.message for future in futures]
        if len(set(map(PLACE, messages))) == 1:
            self._accept_part(SinglesPart.of(futures))
            return
        by_topic: dict[str, list[SendFuture]] = {}
        for future in futures:
            by_topic.setdefault(message_of(future).topic, []).append(future)
        for of_topic in by_topic.values():
            # Keeps the order within a queue, also between messages that name the queue and messages that do not.
            for _, group in groupby(of_topic, lambda future: message_of(future).placed):
                self._accept_part(SinglesPart.of(list(group)))

    def accept_many(
        self, messages: Sequence[Message], outcome: SendOutcome, watch: Watch | None = None
    ) -> None:
        """Send MESSAGES when the budget has memory for them; `outcome` gets Receipts. WATCH observes each part."""
        combined = CombinedResult(outcome)
        if self._disconnected:
            return _fail_rest(messages, 0, combined, watch, _closed_before())
        parts = parts_of(messages, self.config, self.size_of)
        try:
            first = next(parts, None)
        except PocketMQError as error:
            return _fail_rest(messages, 0, combined, watch, error)
        if first is None:
            combined.no_more_parts()
        elif len(first[0]) == len(messages) and self.budget.take(first[1]):
            self._accept_next(first, 0, combined, watch)  # A list for one batch needs no task.
            combined.no_more_parts()
        else:
            self._spawn_adding(self._feed(messages, chain((first,), parts), combined, watch))

    def _accept_next(
        self,
        part: tuple[Sequence[Message], int],
        begin: int,
        combined: CombinedResult,
        watch: Watch | None,
    ) -> None:
        """Send PART, the messages from index BEGIN on that fit into one batch. Its bytes were taken from the budget."""
        messages, size_bytes = part
        outcome = combined.part()
        if watch is not None:
            outcome = watch(begin, begin + len(messages), outcome)
        self._accept_part(JointPart(messages, size_bytes, outcome))

    async def _feed(
        self,
        messages: Sequence[Message],
        parts: Iterable[tuple[Sequence[Message], int]],
        combined: CombinedResult,
        watch: Watch | None,
    ) -> None:
        begin = 0
        try:
            for part in parts:
                await self.budget.take_within(part[1], self.config.max_block_ms)
                self._accept_next(part, begin, combined, watch)
                begin += len(part[0])
                await asyncio.sleep(0)  # So that the batch is sent before the next one is encoded.
        except PocketMQError as error:
            _fail_rest(messages, begin, combined, watch, error)
        except asyncio.CancelledError:
            closed = ClientClosed("the producer was closed while sending")
            _fail_rest(messages, begin, combined, watch, closed)
            raise
        else:
            combined.no_more_parts()

    def _spawn_adding(self, work: Coroutine[object, object, None]) -> None:
        task = self._session.tasks.spawn(work)
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)

    def _accept_part(self, part: Part) -> None:
        """Pass PART to the accumulator, or let it wait for its route."""
        if self._disconnected:
            return self._fail(part, _closed_before())
        topic = part.messages[0].topic
        routes = self._session.routes
        route = None if topic in self._unrouted else routes.known(topic)
        if route is None:
            self._wait_for_route(topic, part)
        elif part.messages[0].placed and self._is_outdated(route, part):
            routes.forget(topic)  # The queue that the message names may be new.
            self._wait_for_route(topic, part)
        else:
            self._place(part, route)

    def _is_outdated(self, route: Route, part: Part) -> bool:
        """Return whether PART names a queue that ROUTE does not have, and ROUTE is not fresh."""
        if self._session.clock.now_ms() - route.fetched_ms < _FRESH_ROUTE_MS:
            return False
        messages = part.messages if isinstance(part, SinglesPart) else part.messages[:1]
        wanted = {message.queue for message in messages} - {None}
        known = route.writable
        return not all(
            one in known if isinstance(one, Queue) else any(one == queue.number for queue in known)
            for one in wanted
        )

    def _wait_for_route(self, topic: str, part: Part) -> None:
        waiting = self._unrouted.get(topic)
        if waiting is None:
            self._unrouted[topic] = [part]
            self._spawn_adding(self._find_route(topic))
        else:
            waiting.append(part)

    async def _find_route(self, topic: str) -> None:
        try:
            timeout_ms = min(self.config.route_timeout_ms, self.config.max_block_ms)
            route = await self._session.find_route(topic, timeout_ms)
        except PocketMQError as error:
            for part in self._unrouted.pop(topic, ()):
                self._fail(part, error)
            return
        for part in self._unrouted.pop(topic, ()):
            self._place(part, route)

    def _place(self, part: Part, route: Route) -> None:
        """Choose the queue of PART, and pass PART to the accumulator."""
        assert self._delivery is not None
        try:
            if isinstance(part, SinglesPart):
                self._place_singles(part, route)
            else:
                self._place_joint(part, route)
        except Exception as error:  # The application's queue selector may raise anything.
            self._fail(part, error)
        if isinstance(part, SinglesPart):
            self._delivery.send_ready()  # These messages have gathered already, so do not wait for more.
        else:
            self._delivery.wake()

    def _place_joint(self, part: JointPart, route: Route) -> None:
        messages = part.messages
        now_ms = self._session.clock.now_ms()
        if len(messages) > 1 and not (self._choice.for_a_run or messages[0].placed):
            by_queue: dict[Queue, list[int]] = {}
            for index, message in enumerate(messages):
                by_queue.setdefault(queue_for(message, route, self._choice), []).append(index)
            shares = part.shares(list(by_queue.values()))
            for queue, share in zip(by_queue, shares, strict=True):
                self._accumulator.add(queue, share, now_ms, pinned=True)
                self._note_added(queue, share.size_bytes)
            return
        queue, pinned = self._queue_for(messages[0], len(messages), part.size_bytes, route)
        self._accumulator.add(queue, part, now_ms, pinned=pinned)
        self._note_added(queue, part.size_bytes)

    def _place_singles(self, singles: SinglesPart, route: Route) -> None:
        """Send SINGLES in as few batches as possible.

        If the queue selector raises, the message that it was called for fails, and so do all messages after it.
        """
        now_ms = self._session.clock.now_ms()
        if not self._choice.for_a_run or singles.messages[0].placed:
            return self._place_singly(singles, route, now_ms)
        begin, ends = 0, singles.ends
        while begin < len(singles.messages):
            size_bytes = ends[begin + 1] - ends[begin]
            try:
                queue, pinned = self._queue_for(singles.messages[begin], 1, size_bytes, route)
            except Exception as error:  # As in `_place`. Messages before this one are sent.
                return self._fail(singles.part(begin, len(singles.messages)), error)
            end = self._accumulator.add_singles(queue, singles, begin, now_ms, pinned=pinned)
            self._note_added(queue, ends[end] - ends[begin])
            begin = end

    def _place_singly(self, singles: SinglesPart, route: Route, now_ms: int) -> None:
        """Send each message of SINGLES to the queue that is chosen for it."""
        by_queue: dict[Queue, list[int]] = {}
        for index, message in enumerate(singles.messages):
            try:
                queue = queue_for(message, route, self._choice)
            except Exception as error:
                # As in `_place`. Only the sender of this message gets the error.
                self._fail(singles.part(index, index + 1), error)
            else:
                by_queue.setdefault(queue, []).append(index)
        for queue, indexes in by_queue.items():
            share = singles.select(indexes)
            begin = 0
            while begin < len(indexes):
                begin = self._accumulator.add_singles(queue, share, begin, now_ms, pinned=True)
            self._note_added(queue, share.size_bytes)

    def _queue_for(
        self, first: Message, count: int, size_bytes: int, route: Route
    ) -> tuple[Queue, bool]:
        """Return the queue for COUNT messages, and whether it is pinned. FIRST is the first of them.

        SIZE_BYTES is their total size. A queue is pinned if the message names it, or if it was chosen for this message.
        """
        pinned = first.placed or not self._choice.for_a_run
        queue: Queue | None = None
        if not pinned:
            queue = self._accumulator.open_queue(route.topic, count, size_bytes)
        return queue or queue_for(first, route, self._choice), pinned

    def _note_added(self, queue: Queue, size_bytes: int) -> None:
        """Call `on_added` of the queue selector, if it has this method: SIZE_BYTES more are sent to QUEUE."""
        if self._on_added is not None:
            self._on_added(queue, size_bytes)

    def _fail(self, part: Part, error: Exception) -> None:
        self._counters.messages_failed += len(part.messages)
        part.fail(error)
        self.budget.give(part.size_bytes)

    async def recall(self, handle: str | Receipt) -> str:
        """Cancel the scheduled message of HANDLE; return its id. Raises the errors of `Producer.recall`.

        It does not retry: after a lost reply, a second try may raise MessageNotFound although the first one succeeded.
        """
        self.check_open()
        session, text = self._session, recall_handle_of(handle)
        named = decode_handle(text)
        if named.broker not in await session.routes.brokers():
            raise RouteNotFound(
                f"broker {named.broker!r}, which stores the message, is not registered at {session.name_servers}: start"
                " the broker, or check the addresses of the name servers",
                broker=named.broker,
                nameservers=session.name_servers,
            )
        request = pb.RecallRequest(topic=named.topic, handle=text)
        timeout_ms = self.config.request_timeout_ms
        reply = await session.ask(
            named.broker, "Recall", request, pb.RecallReply, timeout_ms, repeatable=False
        )
        return reply.message_id

    async def flush(self) -> None:
        """Return when all messages accepted so far are acknowledged or have failed."""
        if self._adding:
            await asyncio.wait(set(self._adding))
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accumulator.flush(lambda: None if flushed.done() else flushed.set_result(None))
        self._wake()
        await flushed

    async def close(self, timeout_ms: int) -> None:
        """Stop accepting messages, wait up to TIMEOUT_MS for acknowledgements, and fail the other messages.

        Then disconnect, and close the interceptors.
        """
        self._transacting.close()
        if self._closed:
            return
        self._closed = True
        self.is_open = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.flush()
                while self._adding or self._accumulator.message_count:
                    await self.flush()  # Other threads may have sent more before they saw the end.
        except TimeoutError:
            self._give_up(timeout_ms)
        finally:
            self._disconnected = True
            await self._session.close()
        self.intake.interceptors.close()

    def _give_up(self, timeout_ms: int) -> None:
        waiting = [part for parts in self._unrouted.values() for part in parts]
        self._unrouted.clear()
        count = self._accumulator.message_count + sum(len(p.messages) for p in waiting)
        error = ClientClosed(
            f"the producer was closed before {count} messages were acknowledged: it waited {timeout_ms} ms. Pass a"
            " longer timeout to close, or call flush before.",
            messages=count,
        )
        for part in waiting:
            self._fail(part, error)
        if self._delivery is not None:
            self._delivery.fail_all(error)


def _fail_rest(
    messages: Sequence[Message],
    begin: int,
    combined: CombinedResult,
    watch: Watch | None,
    error: PocketMQError,
) -> None:
    """Fail those of MESSAGES that are not sent yet, from index BEGIN on, with ERROR."""
    if watch is not None:
        watch(begin, len(messages), combined.part()).set_exception(error)
    combined.no_more_parts(error)


def _closed_before() -> ClientClosed:
    return ClientClosed("the producer was closed before it accepted the message")
