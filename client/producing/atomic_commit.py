"""Atomic commits: commit the offsets of read messages and send new messages in one step, on one broker.

    with PullConsumer("billing", "orders", auto_commit=False) as consumer, Producer() as producer:
        while True:
            with producer.atomic_commit(consumer) as commit:
                for order in consumer.poll():
                    commit.send("invoices", invoice_of(order))

Leaving the block commits: the offsets of all delivered messages are committed and the new messages become visible, in
one step. Both survive a kill or a power cut, or neither. After an exception in the block, or a failed commit, the new
messages are dropped and the consumer returns to its old position. So each message takes effect exactly once, even if it
is delivered more than once.

Limits: the new messages go to queues of the broker that the consumer read from; 10,000 messages and 4 MiB per commit.
The broker refuses the commit if the queue was assigned to another member meanwhile (LeaseLost), or if the committed
offset of the group changed (OffsetMoved). If the reply is lost, the producer retries the request for up to
delivery_timeout_ms; the broker executes it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, overload

from ...proto.errors import InvalidArgument, MessageTooLarge, NotWritable, PocketMQError, SendFailed
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.record import encode_run
from ...proto.topics import MESSAGE_SIZE_MAX
from ..claims import check_commit
from ..config import ProducerConfig
from ..connections import BROKER
from ..lifecycle import AsyncBlock
from ..message import NO_VALUE, Message, MessageParts, record_size
from ..queue import Queue
from ..routes import Route
from ..session import Session
from .batch import ProducerIdentity, unique_property
from .interceptors import Sending
from .preparation import Preparation
from .queue_selector import QueueSelector, queue_for
from .receipt import Receipt
from .transaction import until_answered

if TYPE_CHECKING:
    from ..consuming.atomic_reading import AtomicReading, ReadRange

MESSAGES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class _CommitRun:
    """The messages of a commit for QUEUE: their indexes among all messages of the commit, and their ids."""

    queue: Queue
    rows: list[int]
    ids: list[bytes]


class AsyncAtomicCommit(AsyncBlock):
    """One atomic commit, for coroutines: `async with producer.atomic_commit(consumer) as commit`."""

    def __init__(
        self,
        config: ProducerConfig,
        session: Session,
        intake: Preparation,
        choice: QueueSelector,
        origin: ProducerIdentity,
        reading: AtomicReading,
    ) -> None:
        """Use `producer.atomic_commit` instead."""
        self._config = config
        self._session = session
        self._intake = intake
        self._choice = choice
        self._origin = origin
        self._reading = reading
        self._messages: list[Message] = []
        #: The messages as the interceptors returned them: the interceptors get the same objects again at the end.
        self._sendings: list[Sending] = []
        self._bytes = 0
        self._receipts: list[Receipt] | None = None
        self._is_open = False

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts of the messages, in the order of `send`. Raises InvalidArgument before the commit."""
        if self._receipts is None:
            raise InvalidArgument(
                "no receipts before the commit: leave the `with` block first", field="receipts"
            )
        return self._receipts

    @overload
    def send(self, message: Message, /) -> None: ...
    @overload
    def send(self, topic: str, value: Any, /, **parts: Unpack[MessageParts]) -> None: ...
    def send(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> None:
        """Add a message to the commit: MESSAGE, or VALUE for a topic. It is sent when the block ends.

        Raises:
            InvalidArgument: The message has a delay, or the block has not started or has ended.
            MessageTooLarge: More than 10,000 messages, or more than 4 MiB, in this commit.

        Other errors are those that the producer's `send` raises before it sends.
        """
        if not self._is_open:
            raise InvalidArgument(
                "the atomic commit has not started, or has ended: call send in its `with` block",
                field="commit",
            )
        sending = self._intake.intercepted(message, value, parts)
        with self._intake.reporting_errors(sending):
            final = self._intake.final(sending)
            self._check(final)
        self._messages.append(final)
        self._sendings.append(sending)
        self._bytes += record_size(final)

    def _check(self, message: Message) -> None:
        if message.timed or message.delay_level:
            raise InvalidArgument(
                "a message in an atomic commit cannot be delayed: it is delivered after the commit. Omit delay=…,"
                " deliver_at=… and delay_level=…, or send it outside the commit.",
                field="delay",
            )
        if len(self._messages) == MESSAGES_MAX:
            raise MessageTooLarge(
                f"too many messages in the atomic commit: the limit is {MESSAGES_MAX}. Read fewer messages per commit.",
                field="messages",
                limit=MESSAGES_MAX,
            )
        size = self._bytes + record_size(message)
        if size > MESSAGE_SIZE_MAX:
            raise MessageTooLarge(
                f"the messages of the atomic commit take {size} bytes: the limit is {MESSAGE_SIZE_MAX}. Read fewer"
                " messages per commit.",
                field="messages",
                limit=MESSAGE_SIZE_MAX,
                value=size,
            )

    async def begin(self) -> None:
        """Start to note what the consumer delivers. `async with` calls it."""
        self._reading.begin()
        self._is_open = True

    async def finish(self, error: BaseException | None) -> None:
        """End the block: commit, or after ERROR drop everything."""
        if not self._is_open:
            return
        self._is_open = False
        if error is not None:
            self._notify_interceptors(error)
            await self._reading.give_up(ask=False)
            return
        try:
            ranges = self._reading.ranges()
            self._receipts = await self._commit(ranges)
        except BaseException as failure:
            # The commit may have been executed nevertheless, so ask the broker for the committed offsets.
            self._notify_interceptors(failure)
            await self._reading.give_up(ask=True)
            raise
        self._reading.committed(ranges)
        self._notify_interceptors(None)

    def _notify_interceptors(self, error: BaseException | None) -> None:
        """Call the interceptors with the receipt of each message, or with ERROR."""
        receipts: Sequence[Receipt | None] = self._receipts or [None] * len(self._sendings)
        for sending, receipt in zip(self._sendings, receipts, strict=True):
            self._intake.interceptors.on_acknowledgement(receipt, error, sending)

    async def _commit(self, ranges: Sequence[ReadRange]) -> list[Receipt]:
        if not ranges:
            if self._messages:
                raise InvalidArgument(
                    "the consumer has read nothing since its last commit, so there is nothing to commit together with"
                    " the messages: call consumer.poll in the block, or use producer.send",
                    field="consumer",
                )
            return []
        broker = _only_broker(ranges)
        runs = await self._runs(broker)
        request = pb.AtomicCommitRequest(
            commit_id=self._origin.ids.next(), group=self._reading.group
        )
        for one in ranges:
            request.offsets.add(
                topic=one.held.queue.topic,
                queue=one.held.queue.number,
                begin=one.begin,
                end=one.end,
                lease=one.held.token,
            )
        born_ms = self._session.clock.unix_ms()
        for run in runs:
            messages = [self._messages[row] for row in run.rows]
            strings = (
                unique_property(unique, message.property_string)
                for unique, message in zip(run.ids, messages, strict=True)
            )
            records, sizes = encode_run(
                run.queue.topic,
                run.queue.number,
                zip((message.body for message in messages), strings, strict=True),
                born_timestamp_ms=born_ms,
                born_host=self._origin.host,
                sys_flag=[message.sys_flag for message in messages],
            )
            request.runs.add(
                topic=run.queue.topic, queue=run.queue.number, records=records, sizes=sizes
            )
        reply = await self._send_commit(request, ranges[0].held.queue)
        return self._receipts_of(runs, reply)

    async def _runs(self, broker: str) -> list[_CommitRun]:
        """Choose a queue of BROKER for each message; return the messages of each queue."""
        timeout_ms = min(self._config.route_timeout_ms, self._config.max_block_ms)
        routes: dict[str, Route] = {}
        chosen: dict[str, Queue] = {}
        runs: dict[Queue, _CommitRun] = {}
        for row, message in enumerate(self._messages):
            topic = message.topic
            if topic not in routes:
                routes[topic] = _of_broker(
                    await self._session.find_route(topic, timeout_ms), broker
                )
            if message.placed or not self._choice.for_a_run:
                queue = queue_for(message, routes[topic], self._choice)
            elif topic in chosen:
                queue = chosen[topic]
            else:
                queue = chosen[topic] = queue_for(message, routes[topic], self._choice)
            run = runs.setdefault(queue, _CommitRun(queue, [], []))
            run.rows.append(row)
            run.ids.append(self._origin.ids.many(1)[0])
        if (on_added := getattr(self._choice, "on_added", None)) is not None:
            for run in runs.values():
                on_added(run.queue, sum(record_size(self._messages[row]) for row in run.rows))
        return list(runs.values())

    async def _send_commit(
        self, request: pb.AtomicCommitRequest, queue: Queue
    ) -> pb.AtomicCommitReply:
        async def ask(address: str) -> pb.AtomicCommitReply:
            reply = await self._session.connections.to(address).call(
                BROKER + "CommitAtomically",
                request,
                pb.AtomicCommitReply,
                self._config.request_timeout_ms,
            )
            check_commit([len(run.sizes) for run in request.runs], reply, f"broker {queue.broker}")
            return reply

        def late(elapsed_ms: int, error: PocketMQError) -> SendFailed:
            return SendFailed(
                f"atomic commit {request.commit_id} of group {request.group!r} was not acknowledged by broker"
                f" {queue.broker} within {elapsed_ms} ms: it may have been executed. Last error: {error.message}",
                group=request.group,
                commit_id=request.commit_id,
                last_error=type(error).__name__,
            )

        place = queue.topic, queue.broker
        timeout_ms = self._config.delivery_timeout_ms
        return await until_answered(self._session, place, ask, timeout_ms, late)

    def _receipts_of(
        self, runs: Sequence[_CommitRun], reply: pb.AtomicCommitReply
    ) -> list[Receipt]:
        found: dict[int, Receipt] = {}
        for run, place in zip(runs, reply.places, strict=True):
            for row, unique, queue_offset, log_offset in zip(
                run.rows, run.ids, place.queue_offsets, place.log_offsets, strict=True
            ):
                found[row] = Receipt(
                    topic=run.queue.topic,
                    broker=run.queue.broker,
                    queue=run.queue.number,
                    queue_offset=queue_offset,
                    log_offset=log_offset,
                    message_id=unique.decode(),
                    durability="disk",
                    store_timestamp_ms=reply.store_timestamp_ms,
                    store_host=reply.store_host,
                    repeated=reply.repeated,
                )
        return [found[row] for row in range(len(self._messages))]

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def _leave(self, error: BaseException | None) -> None:
        await self.finish(error)


def _only_broker(ranges: Sequence[ReadRange]) -> str:
    brokers = sorted({one.held.queue.broker for one in ranges})
    if len(brokers) > 1:
        raise InvalidArgument(
            f"the messages were read from several brokers ({', '.join(brokers)}), but an atomic commit is for one: call"
            " poll once per commit, because one poll returns messages of one queue",
            field="consumer",
            value=", ".join(brokers),
        )
    return brokers[0]


def _of_broker(route: Route, broker: str) -> Route:
    """Return ROUTE with the queues of BROKER only."""
    queues = tuple(queue for queue in route.writable if queue.broker == broker)
    if not queues:
        there = ", ".join(sorted({queue.broker for queue in route.writable})) or "none"
        raise NotWritable(
            f"topic {route.topic!r} has no writable queue on broker {broker!r}, from which the messages were read. It"
            f" has queues on: {there}. Create the topic on {broker!r}.",
            topic=route.topic,
            broker=broker,
        )
    return Route(
        route.topic, queues, route.readable, route.addresses, route.fetched_ms, route.provisional
    )
