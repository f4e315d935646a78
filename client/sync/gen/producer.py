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
        """Send MESSAGE, or VALUE to a topic, and return its receipt once it is acknowledged.

        The steps, in client/producing:

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
        """Send MESSAGES, or VALUES to a topic, in runs, and return their receipts in order: the fastest way.

        VALUES are the fastest: no message is made for each. They share all PARTS but their keys, and what goes to one
        queue in one run is stored as a whole or not at all. The queue is chosen once for each run (see
        queue_selector.py). If some messages cannot be delivered the first error is raised once all others have been
        dealt with: some may have been stored.
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
        """Start to send MESSAGES, or VALUES to a topic, as the buffer allows; return a future of their receipts."""
        return self._sender.send_many_nowait(messages, values, parts)

    def recall(self, handle: str | Receipt) -> str:
        """Recall a scheduled message, by its receipt or the receipt's recall_handle; return its id.

        Any producer of the cluster may. Raises AlreadyDelivered if it is due, MessageNotFound if none waits there (any
        more), InvalidArgument for what is no handle, RouteNotFound if its broker is not there. Where the answer was
        lost (ConnectionLost, RequestTimeout), call it again: a repeated recall succeeds.
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
        """Return a transaction to be used in a `with` block: its message becomes visible if the block ends well.

        An exception in the block takes it back. Raises ConfigError without a `group`.
        """
        return self._sender.transaction(message, value, parts)

    def atomic_commit(self, consumer: PullConsumer) -> AtomicCommit:
        """Return an atomic commit, for a `with` block: at its end all that CONSUMER has delivered is finished,
        and the messages sent in it become visible, both or neither.

        CONSUMER commits nothing by itself (auto_commit=False). See atomic_commit.py.
        """
        return self._sender.atomic_commit(consumer.atomic_reading())

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
        self._sender.flush()

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Deliver what is under way for up to TIMEOUT_MS, fail the rest with ClientClosed, and disconnect."""
        return self._close(timeout_ms)
