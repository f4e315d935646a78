"""The producer. `make sync` generates the class for threads from the one for coroutines.

    with Producer() as producer:
        receipt = producer.send(Message("orders", b"...", key="order-1"))

`send` returns when the broker has stored the message as safely as `acks` requires. If the acknowledgement is lost, the
producer sends the message again, and the broker drops the duplicate. Without `idempotence` the broker stores both, with
the same message id. Messages of one queue keep the order in which you send them (`ordered`). If the message cannot be
delivered, `send` raises the broker's error, DeliveryTimeout after delivery_timeout_ms, or BufferFull if the buffer is
full for max_block_ms.

A message with delay=… or deliver_at=… is a scheduled message. Its receipt has the delivery time. Until then you can
cancel it with `recall`. Consumers get the message of a transaction after its commit (producing/transaction.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final, Unpack, overload

from ..proto.clock import Clock, SystemClock
from .config import ProducerConfig, ProducerSettings, settled
from .connections import Connections
from .lifecycle import AsyncSignalledClient
from .message import NO_VALUE, ManyParts, Message, MessageParts
from .metrics import ProducerMetrics
from .producing.atomic_commit import AsyncAtomicCommit
from .producing.receipt import Receipt, Receipts
from .producing.sender import Sender
from .producing.transaction import AsyncTransaction, Verdict
from .producing.transaction_checks import Checker
from .session import Session
from .signals import Signals

if TYPE_CHECKING:
    from .pull_consumer import AsyncPullConsumer

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
        """Create a producer; it starts with `async with`, or with `start`.

        Args:
            nameservers: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.
            checker: Called with a half message; returns whether its transaction was committed.
            clock: For tests.
            connections: For tests.
            random: For tests.
            settings: Fields of ProducerConfig.
        """
        self.config = settled(ProducerConfig, nameservers, settings)
        clock, random = clock or SystemClock(), random or Random()
        session = Session(self.config, connections, clock, random)
        self._sender = Sender(self.config, session, checker)
        self._signals = Signals()

    async def start(self) -> None:
        """Prepare to send. `async with` calls it."""
        await self._sender.start()

    @overload
    async def send(self, message: Message, /) -> Receipt: ...
    @overload
    async def send(self, topic: str, value: Any, /, **parts: Unpack[MessageParts]) -> Receipt: ...
    async def send(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> Receipt:
        """Send MESSAGE, or VALUE to a topic, and return its receipt when it is acknowledged.

        The message of a cancelled `send` may still be delivered. The steps, in client/producing:

            Intake.intercepted, prepare, final  call interceptors, serialize, compress
            Budget.take_within                  reserve memory, wait for it if needed
            Sender.accept                       find the route of the topic
            queue_for                           choose a queue
            Accumulator.add, add_singles        join the open batch of the queue
            Accumulator.drain                   take the batches that may be sent
            ProducerBatch.seal                  encode the records
            Connection.produce                  send the batch to its broker
            ProducerBatch.succeed, fail         pass the receipts, or the error, to the senders
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
        """Accept MESSAGE, or VALUE for a topic, without waiting; return the future of its receipt.

        VALUE is serialized before the route of the topic is known. Raises BufferFull at once if the buffer is full.
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
        """Send MESSAGES, or VALUES to a topic, in batches; return their receipts in order.

        This is the fastest way to send. A topic with VALUES is faster than MESSAGES, because no Message is created per
        value. All values share PARTS, except for their keys. A batch for one queue is stored as a whole or not at all.
        The queue is chosen once per batch (see queue_selector.py). If some messages cannot be delivered, the first
        error is raised after all others have ended. Then some messages may be stored.
        """
        return await self._sender.send_many(messages, values, parts)

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
        """Start to send MESSAGES, or VALUES to a topic, and return the future of their receipts.

        The messages that do not fit into the buffer are sent when there is memory for them.
        """
        return self._sender.send_many_nowait(messages, values, parts)

    async def recall(self, handle: str | Receipt) -> str:
        """Cancel a scheduled message that is not delivered yet. Any producer of the cluster can do this.

        If the reply is lost (ConnectionLost, RequestTimeout), call it again: a repeated recall succeeds.

        Args:
            handle: The receipt of the message, or its `recall_handle`.

        Returns:
            The message id.

        Raises:
            AlreadyDelivered: The message is due or was delivered.
            MessageNotFound: There is no such scheduled message (any more).
            InvalidArgument: This is not a recall handle.
            RouteNotFound: The broker of the message is not registered.
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
        """Return a transaction, to use in an `async with` block, which sends a half message.

        The end of the block commits, so that consumers get the message. An exception in the block rolls back. Raises
        ConfigError without a `group`.
        """
        return self._sender.transaction(message, value, parts)

    def atomic_commit(self, consumer: AsyncPullConsumer) -> AsyncAtomicCommit:
        """Return an atomic commit, to use in an `async with` block: it consumes and produces in one step.

        The end of the block commits the offsets of the messages that CONSUMER delivered, and sends the messages of the
        block: both or neither. CONSUMER must have auto_commit=False, and run on the same event loop. See
        atomic_commit.py.
        """
        return self._sender.atomic_commit(consumer.atomic_reading())

    async def send_in_transaction(
        self, message: Message, local: Callable[[Message], Awaitable[Verdict]]
    ) -> AsyncTransaction:
        """Send MESSAGE as a half message, call LOCAL with it, and commit or roll back; return the transaction.

        LOCAL returns True to commit, False to roll back, or None to leave the transaction open: then the broker asks a
        checker. If LOCAL raises, the transaction is rolled back, and the exception is raised.
        """
        async with self.transaction(message) as transaction:
            await transaction.decide(await local(message))
        return transaction

    def metrics(self) -> ProducerMetrics:
        """Return a snapshot of the metrics of this producer."""
        return self._sender.metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics in the Prometheus text format (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    async def flush(self) -> None:
        """Return when everything that was sent before is acknowledged or has failed."""
        await self._sender.flush()

    async def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Wait up to TIMEOUT_MS for acknowledgements, fail the other messages with ClientClosed, and disconnect."""
        await self._sender.close(timeout_ms)
