"""The producers, for ordinary threads and for coroutines, over the same core.

    with Producer() as producer:
        receipt = producer.send(Message("orders", b"...", key="order-1"))

`send` returns when the broker has acknowledged the message with the safety that was asked for (`acks`). After a lost
acknowledgement the message is sent again, and the broker drops the repeat (`idempotence`); without, it may be there
twice, with one message id. Messages of one queue keep the order in which they were given (`ordered`). What cannot be
delivered raises: the broker's own error, or DeliveryTimeout when delivery_timeout_ms is over, or BufferFull when the
brokers take less than is sent for max_block_ms.

A message with delay=… or deliver_at=… is delivered later; its receipt says when, and `recall` takes it back until then.
A message of a transaction becomes visible when its outcome is told (transaction.py).

The producer for coroutines; producer.py says what both promise, and has the one for ordinary threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING, Any, Final, Unpack, cast, overload

from ..proto.clock import Clock, SystemClock
from ..proto.facts import Facts
from .config import ProducerConfig, ProducerSettings, settled
from .connections import Connections
from .lifecycle import AsyncSignalledClient, SignalledClient
from .loop_thread import LoopThread
from .message import NO_VALUE, Draft, ManyParts, Message, MessageParts, record_size
from .metrics import ProducerMetrics
from .producing.atomic_commit import AsyncAtomicCommit, AtomicCommit
from .producing.receipt import Receipt, Receipts, SendFuture, SendOutcome
from .producing.sender import Sender
from .producing.transaction import AsyncTransaction, Checker, Transaction, Verdict, check_checker
from .session import Session
from .signals import Signals

if TYPE_CHECKING:
    from .pull_consumer import AsyncPullConsumer, PullConsumer

CLOSE_TIMEOUT_MS: Final = 30_000


class AsyncProducer(AsyncSignalledClient):
    """Sends messages, from coroutines. Settings are those of ProducerConfig.

    Not thread-safe: it belongs to the event loop on which it was started.
    """

    def __init__(
        self,
        nameservers: str | None = None,
        *,
        checker: Checker | None = None,
        clock: Clock | None = None,
        connections: Connections | None = None,
        random: Random | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        """NAMESERVERS: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.

        CHECKER says what became of a transaction (see producing/transaction.py).

        CLOCK, CONNECTIONS and RANDOM are for tests.
        """
        self.config = settled(ProducerConfig, nameservers, settings)
        session = Session(
            self.config,
            connections,
            clock or SystemClock(),
            random or Random(),
        )
        self._sender = Sender(self.config, session, checker)
        self._signals = Signals()

    async def start(self) -> None:
        """Get ready to send; `async with` does so."""
        await self._sender.start()

    @overload
    async def send(self, message: Message, /) -> Receipt: ...
    @overload
    async def send(self, topic: str, value: Any, /, **parts: Unpack[MessageParts]) -> Receipt: ...
    async def send(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> Receipt:
        """Send MESSAGE, or VALUE to a topic, and return its receipt once it is acknowledged.

        A cancelled `send` may still be delivered.
        """
        return await self._sender.send(message, value, parts)

    @overload
    def send_nowait(self, message: Message, /) -> asyncio.Future[Receipt]: ...
    @overload
    def send_nowait(
        self, topic: str, value: Any, /, **parts: Unpack[MessageParts]
    ) -> asyncio.Future[Receipt]: ...
    def send_nowait(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> asyncio.Future[Receipt]:
        """Take MESSAGE, or VALUE for a topic, and return a future of its receipt.

        Raises BufferFull at once if there is no room. It does not wait for a route either before it serializes VALUE.
        """
        return self._sender.send_nowait(message, value, parts)

    @overload
    async def send_many(self, messages: Iterable[Message], /) -> Receipts: ...
    @overload
    async def send_many(
        self, topic: str, values: Iterable[Any], /, **parts: Unpack[ManyParts]
    ) -> Receipts: ...
    async def send_many(
        self,
        messages: Iterable[Message] | str,
        values: Iterable[Any] = NO_VALUE,
        /,
        **parts: Unpack[ManyParts],
    ) -> Receipts:
        """Send MESSAGES, or VALUES to a topic, in runs, and return their receipts in order: the fastest way.

        VALUES are the fastest: no message is made for each. They share all PARTS but their keys, and what goes to one
        queue in one run is stored as a whole or not at all. The queue is chosen once for each run (see
        queue_choice.py). If some messages cannot be delivered the first error is raised once all others have been dealt
        with: some may have been stored.
        """
        return await self._send_many(messages, values, parts)

    @overload
    def send_many_nowait(self, messages: Iterable[Message], /) -> asyncio.Future[Receipts]: ...
    @overload
    def send_many_nowait(
        self, topic: str, values: Iterable[Any], /, **parts: Unpack[ManyParts]
    ) -> asyncio.Future[Receipts]: ...
    def send_many_nowait(
        self,
        messages: Iterable[Message] | str,
        values: Iterable[Any] = NO_VALUE,
        /,
        **parts: Unpack[ManyParts],
    ) -> asyncio.Future[Receipts]:
        """Start to send MESSAGES, or VALUES to a topic, as the buffer allows; return a future of their receipts."""
        return self._send_many(messages, values, parts)

    def _send_many(
        self, messages: Iterable[Message] | str, values: Iterable[Any], parts: ManyParts
    ) -> asyncio.Future[Receipts]:
        self._sender.check_open()
        outcome: asyncio.Future[Receipts] = asyncio.get_running_loop().create_future()
        taken, watch = self._sender.intake.many(messages, values, parts)
        self._sender.accept_many(taken, outcome, watch)
        return outcome

    async def recall(self, handle: str | Receipt) -> str:
        """Take back a message that waits for its time, by its receipt or the receipt's recall_handle; return its id.

        Any producer of the cluster may. Raises TooLate if it is due, MessageNotFound if none waits there (any more),
        InvalidArgument for what is no handle, RouteNotFound if its broker is not there. Where the answer was lost
        (Disconnected, RequestTimeout) it may be recalled: a second call then raises MessageNotFound.
        """
        return await self._sender.recall(handle)

    @overload
    def transaction(self, message: Message, /) -> AsyncTransaction: ...
    @overload
    def transaction(
        self, topic: str, value: Any, /, **parts: Unpack[MessageParts]
    ) -> AsyncTransaction: ...
    def transaction(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> AsyncTransaction:
        """Return a transaction to be used in an `async with` block: its message becomes visible if the block ends well.

        An exception in the block takes it back. Raises ConfigError without a `group`.
        """
        return self._sender.transaction(message, value, parts)

    def atomic_commit(self, consumer: AsyncPullConsumer) -> AsyncAtomicCommit:
        """Return an atomic commit, for an `async with` block: at its end all that CONSUMER has handed out is finished,
        and the messages sent in it become visible, both or neither.

        CONSUMER commits nothing by itself (auto_commit=False), and runs on this event loop. See atomic_commit.py.
        """
        return self._sender.atomic_commit(consumer.atomic_reading())

    async def send_in_transaction(
        self, message: Message, local: Callable[[Message], Awaitable[Verdict]]
    ) -> AsyncTransaction:
        """Send MESSAGE as a half message, await LOCAL of it, and do as that says: True commits, False rolls back.

        None leaves it open: the broker asks a checker. An exception of LOCAL rolls back, and is raised. Return the
        transaction.
        """
        async with self.transaction(message) as transaction:
            await transaction.decide(await local(message))
        return transaction

    def metrics(self) -> ProducerMetrics:
        """Return what this producer did so far: numbers of this moment."""
        return self._sender.metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics as text for Prometheus (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    async def flush(self) -> None:
        """Return once everything that was sent before has been acknowledged or has failed."""
        await self._sender.flush()

    async def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Deliver what is under way for up to TIMEOUT_MS, fail the rest with ClientClosed, and disconnect."""
        await self._sender.close(timeout_ms)


# ---------------------------------------------------------------- the producer for ordinary threads


logger = logging.getLogger(__name__)


class Producer(SignalledClient):
    """Sends messages, from ordinary threads: any number may share one. Settings are those of ProducerConfig."""

    def __init__(
        self,
        nameservers: str | None = None,
        *,
        checker: Checker | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        """NAMESERVERS: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.

        CHECKER says what became of a transaction (see producing/transaction.py).

        Starts at once; close it, or use it in a `with` block.
        """
        self.config = settled(ProducerConfig, nameservers, settings)
        check_checker(checker, self.config.group)
        self._signals = Signals()
        self._portal = LoopThread.acquire()
        self._closed = False
        self._sender = self._portal.run(self._start(checker))
        self._plain_bytes = self._sender.intake.plain_bytes
        self._handover = _Handover(self._portal, self._sender)
        self._opened()

    async def _start(self, checker: Checker | None) -> Sender:
        session = Session(self.config, None, SystemClock(), Random())
        sender = Sender(self.config, session, checker)
        await sender.start()
        return sender

    @overload
    def send(self, message: Message, /) -> Receipt: ...
    @overload
    def send(self, topic: str, value: Any, /, **parts: Unpack[MessageParts]) -> Receipt: ...
    def send(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> Receipt:
        """Send MESSAGE, or VALUE to a topic, and return its receipt once it is acknowledged."""
        return self.send_nowait(message, value, **parts).result()  # type: ignore[arg-type]

    @overload
    def send_nowait(self, message: Message, /) -> Future[Receipt]: ...
    @overload
    def send_nowait(
        self, topic: str, value: Any, /, **parts: Unpack[MessageParts]
    ) -> Future[Receipt]: ...
    def send_nowait(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> Future[Receipt]:
        """Take MESSAGE, or VALUE for a topic, and return a future of its receipt.

        It waits up to max_block_ms if the buffer is full. The future cannot be cancelled. Its callbacks run on the
        client's own thread: keep them short.
        """
        if (
            type(message) is Message
            and len(message.body) <= self._plain_bytes
            and value is NO_VALUE
            and not parts
        ):
            return self._handover.put(message)
        return self._send_prepared(message, value, parts)

    def _send_prepared(
        self, message: Message | str, value: Any, parts: MessageParts
    ) -> Future[Receipt]:
        """Send what has to be serialized, compressed or shown to interceptors first."""
        self._sender.check_open()
        intake = self._sender.intake
        gate = intake.gate
        if type(message) is str and value is not NO_VALUE and not intake.interceptors:
            if not gate.is_open(message):
                self._portal.run(gate.wait(message))
            return self._handover.put(intake.made(message, value, parts))
        self._portal.check()
        sending = intake.offered(message, value, parts)
        with intake.telling(sending):
            if isinstance(sending, Draft) and not gate.is_open(sending.topic):
                self._portal.run(gate.wait(sending.topic))
            taken = intake.message(sending)
            size_bytes = self._handover.take(taken)
        outcome: Future[Receipt] = Future()
        outcome.set_running_or_notify_cancel()
        watched = intake.watched(sending, outcome)
        self._handover.put_watched(taken, size_bytes, watched)
        return outcome

    @overload
    def send_many(self, messages: Iterable[Message], /) -> Receipts: ...
    @overload
    def send_many(
        self, topic: str, values: Iterable[Any], /, **parts: Unpack[ManyParts]
    ) -> Receipts: ...
    def send_many(
        self,
        messages: Iterable[Message] | str,
        values: Iterable[Any] = NO_VALUE,
        /,
        **parts: Unpack[ManyParts],
    ) -> Receipts:
        """Send MESSAGES, or VALUES to a topic, in runs, and return their receipts in order: the fastest way.

        VALUES are the fastest: no message is made for each. They share all PARTS but their keys, and what goes to one
        queue in one run is stored as a whole or not at all. The queue is chosen once for each run (see
        queue_choice.py). If some messages cannot be delivered the first error is raised once all others have been dealt
        with: some may have been stored.
        """
        return self._send_many(messages, values, parts).result()

    @overload
    def send_many_nowait(self, messages: Iterable[Message], /) -> Future[Receipts]: ...
    @overload
    def send_many_nowait(
        self, topic: str, values: Iterable[Any], /, **parts: Unpack[ManyParts]
    ) -> Future[Receipts]: ...
    def send_many_nowait(
        self,
        messages: Iterable[Message] | str,
        values: Iterable[Any] = NO_VALUE,
        /,
        **parts: Unpack[ManyParts],
    ) -> Future[Receipts]:
        """Start to send MESSAGES, or VALUES to a topic, as the buffer allows; return a future of their receipts."""
        return self._send_many(messages, values, parts)

    def _send_many(
        self, messages: Iterable[Message] | str, values: Iterable[Any], parts: ManyParts
    ) -> Future[Receipts]:
        self._sender.check_open()
        taken, watch = self._sender.intake.many(messages, values, parts)
        outcome: Future[Receipts] = Future()
        outcome.set_running_or_notify_cancel()
        self._portal.post(self._sender.accept_many, taken, outcome, watch)
        return outcome

    def recall(self, handle: str | Receipt) -> str:
        """Take back a message that waits for its time, by its receipt or the receipt's recall_handle; return its id.

        Any producer of the cluster may. Raises TooLate if it is due, MessageNotFound if none waits there (any more),
        InvalidArgument for what is no handle, RouteNotFound if its broker is not there. Where the answer was lost
        (Disconnected, RequestTimeout) it may be recalled: a second call then raises MessageNotFound.
        """
        return self._portal.run(self._sender.recall(handle))

    @overload
    def transaction(self, message: Message, /) -> Transaction: ...
    @overload
    def transaction(
        self, topic: str, value: Any, /, **parts: Unpack[MessageParts]
    ) -> Transaction: ...
    def transaction(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> Transaction:
        """Return a transaction to be used in a `with` block: its message becomes visible if the block ends well.

        An exception in the block takes it back. Raises ConfigError without a `group`.
        """
        return Transaction(self._sender.transaction(message, value, parts), self._portal)

    def atomic_commit(self, consumer: PullConsumer) -> AtomicCommit:
        """Return an atomic commit, for a `with` block: at its end all that CONSUMER has handed out is finished, and the
        messages sent in it become visible, both or neither.

        CONSUMER commits nothing by itself (auto_commit=False). See atomic_commit.py.
        """
        return AtomicCommit(self._sender.atomic_commit(consumer.atomic_reading()), self._portal)

    def send_in_transaction(
        self, message: Message, local: Callable[[Message], Verdict]
    ) -> Transaction:
        """Send MESSAGE as a half message, call LOCAL with it, and do as that says: True commits, False rolls back.

        None leaves it open: the broker asks a checker. An exception of LOCAL rolls back, and is raised. Return the
        transaction.
        """
        with self.transaction(message) as transaction:
            transaction.decide(local(message))
        return transaction

    def metrics(self) -> ProducerMetrics:
        """Return what this producer did so far: numbers of this moment."""
        return self._sender.metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics as text for Prometheus (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    def flush(self) -> None:
        """Return once everything that was sent before has been acknowledged or has failed."""
        self._portal.run(self._sender.flush())

    def _close_at_exit(self) -> None:
        failed = self.metrics().messages_failed
        super()._close_at_exit()
        if count := self.metrics().messages_failed - failed:
            logger.warning("messages not delivered at exit %s", Facts(count=count))

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Deliver what is under way for up to TIMEOUT_MS, fail the rest with ClientClosed, and disconnect."""
        if self._closed or self._portal.is_inherited:
            return
        self._closed = True
        self._ended()
        try:
            self._portal.run(self._sender.close(timeout_ms))
        finally:
            self._portal.release()


class _Handover:
    """Hands single messages from application threads to SENDER on the loop of PORTAL.

    Messages gather in a row until the loop comes to it, and only the first of a row wakes the loop: so under load the
    loop works on hundreds at a time. Any thread may put; the loop's thread takes, in the order of putting. Bounded by
    the producer's budget, from which the bytes of a message are taken before.
    """

    def __init__(self, portal: LoopThread, sender: Sender) -> None:
        self._portal = portal
        self._sender = sender
        self._take_bytes = sender.budget.take
        self._largest_bytes = sender.config.max_request_size
        #: Futures that have their messages, or messages, their bytes, and what else waits for their receipts.
        self._row: list[SendFuture | tuple[Message, int, SendOutcome]] = []
        #: Something else than a SendFuture may stand in the row; it never ends, for threads put meanwhile.
        self._mixed = False
        self._awake = False

    def put(self, message: Message) -> SendFuture:
        """Take MESSAGE, waiting for room; return the future of its receipt."""
        sender, portal = self._sender, self._portal
        if not sender.is_open or portal.is_inherited:
            sender.check_open()
            portal.check()
        size_bytes = record_size(message)
        if size_bytes > self._largest_bytes or not self._take_bytes(size_bytes):
            self.take(message)
        future: SendFuture = SendFuture()
        future.message = message
        future.size_bytes = size_bytes
        self._row.append(future)
        if not self._awake:
            self._wake()
        return future

    def take(self, message: Message) -> int:
        """Take the bytes of MESSAGE, which may have to wait for them, from the budget; return how many."""
        size_bytes = self._sender.size_of(message)
        if not self._take_bytes(size_bytes):
            budget, config = self._sender.budget, self._sender.config
            self._portal.run(budget.take_within(size_bytes, config.max_block_ms))
        return size_bytes

    def put_watched(self, message: Message, size_bytes: int, outcome: SendOutcome) -> None:
        """Take MESSAGE, whose SIZE_BYTES were taken; OUTCOME gets its receipt."""
        self._mixed = True
        self._row.append((message, size_bytes, outcome))
        if not self._awake:
            self._wake()

    def _wake(self) -> None:
        self._awake = True
        self._portal.post(self._take)

    def _take(self) -> None:
        # Cleared first: who appends from here on either is seen below, or wakes the loop again.
        self._awake = False
        row = self._row[:]
        del self._row[: len(row)]
        if not self._mixed:
            if row:
                self._sender.accept_row(cast("list[SendFuture]", row))
            return
        for plain, entries in groupby(row, lambda entry: type(entry) is SendFuture):
            if plain:
                self._sender.accept_row(cast("list[SendFuture]", list(entries)))
            else:
                for entry in entries:
                    self._sender.accept(*cast("tuple[Message, int, SendOutcome]", entry))
