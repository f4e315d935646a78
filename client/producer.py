"""The producer for coroutines. `make sync` generates the one for ordinary threads from it.

    with Producer() as producer:
        receipt = producer.send(Message("orders", b"...", key="order-1"))

`send` returns when the broker has stored the message as safely as `acks` asks for. After a lost acknowledgement the
producer sends the message again, and the broker drops the duplicate. Without `idempotence` it stores both, with one
message id. Messages of one queue keep the order in which you send them (`ordered`). If the message cannot be delivered,
`send` raises the broker's error, or DeliveryTimeout after delivery_timeout_ms, or BufferFull if the buffer is full for
max_block_ms.

A message with delay=… or deliver_at=… is a scheduled message. Its receipt has the delivery time. Until then `recall`
cancels it. The message of a transaction becomes visible with the commit (producing/transaction.py).
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

        A cancelled `send` may still be delivered. The steps, in client/producing:

            Intake.offered, made, message      call interceptors, serialize, compress
            Budget.take_within                 reserve memory, wait for it if needed
            Sender.accept                      find the route of the topic
            queue_for                          choose a queue
            Accumulator.add, add_singles       join the open batch of the queue
            Accumulator.drain                  take the batches that may leave
            ProducerBatch.seal                 encode the records
            Connection.produce                 send the batch to its broker
            ProducerBatch.succeed, fail        pass the receipts, or the error, to the senders
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
        queue_selector.py). If some messages cannot be delivered the first error is raised once all others have been
        dealt with: some may have been stored.
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
        """Start to send MESSAGES, or VALUES to a topic, as the buffer allows; return a future of their receipts."""
        return self._sender.send_many_nowait(messages, values, parts)

    async def recall(self, handle: str | Receipt) -> str:
        """Recall a scheduled message, by its receipt or the receipt's recall_handle; return its id.

        Any producer of the cluster may. Raises AlreadyDelivered if it is due, MessageNotFound if none waits there (any
        more), InvalidArgument for what is no handle, RouteNotFound if its broker is not there. Where the answer was
        lost (ConnectionLost, RequestTimeout), call it again: a repeated recall succeeds.
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
        """Return an atomic commit, for an `async with` block: at its end all that CONSUMER has delivered is finished,
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
