"""`Producer`, generated from client/producer.py by `make sync`. Edit that file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Unpack, overload

from ...message import NO_VALUE, ManyParts, Message, MessageParts
from ...metrics import ProducerMetrics
from ...producer import CLOSE_TIMEOUT_MS
from ...producing.receipt import Receipt, Receipts
from ...producing.transaction import Verdict
from ..thread_producer import ThreadProducer
from .atomic_commit import AtomicCommit
from .transaction import Transaction

if TYPE_CHECKING:
    from .pull_consumer import PullConsumer


class Producer(ThreadProducer):
    """Sends messages. Any number of threads may share one producer. Settings are those of ProducerConfig."""

    @overload
    def send(self, message: Message, /) -> Receipt: ...

    @overload
    def send(self, topic: str, value: Any, /, **parts: Unpack[MessageParts]) -> Receipt: ...

    def send(
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
        return self._sender.send(message, value, parts)

    @overload
    def send_nowait(self, message: Message, /) -> Future[Receipt]: ...

    @overload
    def send_nowait(
        self, topic: str, value: Any, /, **parts: Unpack[MessageParts]
    ) -> Future[Receipt]: ...

    def send_nowait(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> Future[Receipt]:
        """Accept MESSAGE, or VALUE for a topic, and return the future of its receipt.

        If the buffer is full, it waits up to max_block_ms. The future cannot be cancelled. Its callbacks run in the
        client's own thread, so keep them short.
        """
        return self._sender.send_nowait(message, value, parts)

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
        """Send MESSAGES, or VALUES to a topic, in batches; return their receipts in order.

        This is the fastest way to send. A topic with VALUES is faster than MESSAGES, because no Message is created per
        value. All values share PARTS, except for their keys. A batch for one queue is stored as a whole or not at all.
        The queue is chosen once per batch (see queue_selector.py). If some messages cannot be delivered, the first
        error is raised after all others have ended. Then some messages may be stored.
        """
        return self._sender.send_many(messages, values, parts)

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
        """Start to send MESSAGES, or VALUES to a topic, and return the future of their receipts.

        The messages that do not fit into the buffer are sent when there is memory for them.
        """
        return self._sender.send_many_nowait(messages, values, parts)

    def recall(self, handle: str | Receipt) -> str:
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
        return self._sender.recall(handle)

    @overload
    def transaction(self, message: Message, /) -> Transaction: ...

    @overload
    def transaction(
        self, topic: str, value: Any, /, **parts: Unpack[MessageParts]
    ) -> Transaction: ...

    def transaction(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> Transaction:
        """Return a transaction, to use in a `with` block, which sends a half message.

        The end of the block commits, so that consumers get the message. An exception in the block rolls back. Raises
        ConfigError without a `group`.
        """
        return self._sender.transaction(message, value, parts)

    def atomic_commit(self, consumer: PullConsumer) -> AtomicCommit:
        """Return an atomic commit, to use in a `with` block: it consumes and produces in one step.

        The end of the block commits the offsets of the messages that CONSUMER delivered, and sends the messages of the
        block: both or neither. CONSUMER must have auto_commit=False, and run on the same event loop. See
        atomic_commit.py.
        """
        return self._sender.atomic_commit(consumer.atomic_reading())

    def send_in_transaction(
        self, message: Message, local: Callable[[Message], Verdict]
    ) -> Transaction:
        """Send MESSAGE as a half message, call LOCAL with it, and commit or roll back; return the transaction.

        LOCAL returns True to commit, False to roll back, or None to leave the transaction open: then the broker asks a
        checker. If LOCAL raises, the transaction is rolled back, and the exception is raised.
        """
        with self.transaction(message) as transaction:
            transaction.decide(local(message))
        return transaction

    def metrics(self) -> ProducerMetrics:
        """Return a snapshot of the metrics of this producer."""
        return self._sender.metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics in the Prometheus text format (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    def flush(self) -> None:
        """Return when everything that was sent before is acknowledged or has failed."""
        self._sender.flush()

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Wait up to TIMEOUT_MS for acknowledgements, fail the other messages with ClientClosed, and disconnect."""
        return self._close(timeout_ms)
