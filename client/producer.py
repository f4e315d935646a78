"""Producers: the asyncio face and the synchronous one over the same core (sender.py).

    with Producer() as producer:
        receipt = producer.send(Message("orders", b"...", key="order-1"))

At least once: `send` returns when the broker has acknowledged the message with the durability that was asked for; after
a lost acknowledgement the message is sent again and may be there twice, with one message id. Messages of one queue keep
the order in which they were given. What cannot be delivered raises: the broker's own error, or SendFailed when
delivery_timeout_ms is over, or BufferFull when the brokers take less than is sent for max_block_ms.

A message with delay=… or deliver_at=… is delivered later; its receipt says when, and `recall` takes it back until then.
A message of a transaction becomes visible when its outcome is told (transaction.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from random import Random
from types import TracebackType
from typing import Self, Unpack

from ..proto.clock import Clock, SystemClock
from ..proto.errors import InvalidArgument
from .config import ProducerConfig, ProducerSettings
from .connections import Connections, GrpcConnections
from .message import Message
from .name_servers import DEFAULT_NAME_SERVERS
from .portal import Portal
from .producing.checking import Checker, Transacting, check_checker
from .producing.queue_choice import queue_choice
from .producing.receipt import Receipt, Receipts
from .producing.run import record_size
from .producing.sender import Sender, checked_message
from .producing.transaction import AsyncTransaction, Transaction, Verdict
from .session import Session

CLOSE_TIMEOUT_MS = 30_000


class AsyncProducer:
    """Sends messages, from coroutines. Settings are those of ProducerConfig.

    Not thread-safe: it belongs to the event loop on which it was started.
    """

    def __init__(
        self,
        nameservers: str = DEFAULT_NAME_SERVERS,
        *,
        checker: Checker | None = None,
        clock: Clock | None = None,
        connections: Connections | None = None,
        random: Random | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        """NAMESERVERS: host:port, separated by commas. CHECKER says what became of a transaction (see checking.py).

        CLOCK, CONNECTIONS and RANDOM are for tests.
        """
        self.config = ProducerConfig(nameservers=nameservers, **settings)
        session = Session(
            self.config,
            connections or GrpcConnections(),
            clock or SystemClock(),
            random or Random(),
        )
        self._sender = sender_of(self.config, session)
        self._transacting = Transacting(self.config, session, self._sender, checker)

    async def start(self) -> None:
        """Get ready to send; `async with` does so."""
        await self._sender.start()
        self._transacting.start()

    async def send(self, message: Message) -> Receipt:
        """Send MESSAGE and return its receipt once it is acknowledged.

        A cancelled `send` may still be delivered.
        """
        return await self._sender.send(message)

    def send_nowait(self, message: Message) -> asyncio.Future[Receipt]:
        """Take MESSAGE and return a future of its receipt; raise BufferFull at once if there is no room."""
        self._sender.check_open()
        size_bytes = record_size(checked_message(message))
        if not self._sender.budget.take(size_bytes):
            raise self._sender.budget.full("now")
        outcome: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._sender.accept(message, size_bytes, outcome)
        return outcome

    async def send_many(self, messages: Iterable[Message]) -> Receipts:
        """Send MESSAGES, in runs, and return their receipts in order: the fastest way.

        The queue is chosen once for each run (see queue_choice.py). If some messages cannot be delivered the first
        error is raised once all others have been dealt with: some may have been stored.
        """
        return await self.send_many_nowait(messages)

    def send_many_nowait(self, messages: Iterable[Message]) -> asyncio.Future[Receipts]:
        """Start to send MESSAGES, as the buffer allows, and return a future of their receipts."""
        self._sender.check_open()
        outcome: asyncio.Future[Receipts] = asyncio.get_running_loop().create_future()
        self._sender.accept_many(checked_messages(messages), outcome)
        return outcome

    async def recall(self, handle: str | Receipt) -> str:
        """Take back a message that waits for its time, by its receipt or the receipt's recall_handle; return its id.

        Any producer of the cluster may. Raises TooLate if it is due, MessageNotFound if none waits there (any more),
        InvalidArgument for what is no handle, RouteNotFound if its broker is not there. Where the answer was lost
        (Disconnected, RequestTimeout) it may be recalled: a second call then raises MessageNotFound.
        """
        return await self._sender.recall(handle)

    def transaction(self, message: Message) -> AsyncTransaction:
        """Return a transaction to be used in an `async with` block: MESSAGE becomes visible if the block ends well.

        An exception in the block takes it back. Raises ConfigError without a `group`.
        """
        return self._transacting.transaction(message)

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

    async def flush(self) -> None:
        """Return once everything that was sent before has been acknowledged or has failed."""
        await self._sender.flush()

    async def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Deliver what is under way for up to TIMEOUT_MS, fail the rest with ClientClosed, and disconnect."""
        self._transacting.close()
        await self._sender.close(timeout_ms)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Producer:
    """Sends messages, from ordinary threads: any number may share one. Settings are those of ProducerConfig."""

    def __init__(
        self,
        nameservers: str = DEFAULT_NAME_SERVERS,
        *,
        checker: Checker | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        """NAMESERVERS: host:port, separated by commas. CHECKER says what became of a transaction (see checking.py).

        Starts at once; close it, or use it in a `with` block.
        """
        self.config = ProducerConfig(nameservers=nameservers, **settings)
        check_checker(checker, self.config.group)
        self._portal = Portal.hold()
        self._closed = False
        self._sender, self._transacting = self._portal.run(self._start(checker))

    async def _start(self, checker: Checker | None) -> tuple[Sender, Transacting]:
        session = Session(self.config, GrpcConnections(), SystemClock(), Random())
        sender = sender_of(self.config, session)
        await sender.start()
        transacting = Transacting(self.config, session, sender, checker)
        transacting.start()
        return sender, transacting

    def send(self, message: Message) -> Receipt:
        """Send MESSAGE and return its receipt once it is acknowledged."""
        return self.send_nowait(message).result()

    def send_nowait(self, message: Message) -> Future[Receipt]:
        """Take MESSAGE and return a future of its receipt; wait up to max_block_ms if the buffer is full.

        The future cannot be cancelled. Its callbacks run on the client's own thread: keep them short.
        """
        sender = self._sender
        sender.check_open()
        size_bytes = record_size(checked_message(message))
        if not sender.budget.take(size_bytes):
            self._portal.run(sender.budget.take_within(size_bytes, self.config.max_block_ms))
        outcome: Future[Receipt] = Future()
        outcome.set_running_or_notify_cancel()
        self._portal.post(sender.accept, message, size_bytes, outcome)
        return outcome

    def send_many(self, messages: Iterable[Message]) -> Receipts:
        """Send MESSAGES, in runs, and return their receipts in order: the fastest way.

        The queue is chosen once for each run (see queue_choice.py). If some messages cannot be delivered the first
        error is raised once all others have been dealt with: some may have been stored.
        """
        return self.send_many_nowait(messages).result()

    def send_many_nowait(self, messages: Iterable[Message]) -> Future[Receipts]:
        """Start to send MESSAGES, as the buffer allows, and return a future of their receipts."""
        self._sender.check_open()
        checked = checked_messages(messages)
        outcome: Future[Receipts] = Future()
        outcome.set_running_or_notify_cancel()
        self._portal.post(self._sender.accept_many, checked, outcome)
        return outcome

    def recall(self, handle: str | Receipt) -> str:
        """Take back a message that waits for its time, by its receipt or the receipt's recall_handle; return its id.

        Any producer of the cluster may. Raises TooLate if it is due, MessageNotFound if none waits there (any more),
        InvalidArgument for what is no handle, RouteNotFound if its broker is not there. Where the answer was lost
        (Disconnected, RequestTimeout) it may be recalled: a second call then raises MessageNotFound.
        """
        return self._portal.run(self._sender.recall(handle))

    def transaction(self, message: Message) -> Transaction:
        """Return a transaction to be used in a `with` block: MESSAGE becomes visible if the block ends well.

        An exception in the block takes it back. Raises ConfigError without a `group`.
        """
        return Transaction(self._transacting.transaction(message), self._portal)

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

    def flush(self) -> None:
        """Return once everything that was sent before has been acknowledged or has failed."""
        self._portal.run(self._sender.flush())

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Deliver what is under way for up to TIMEOUT_MS, fail the rest with ClientClosed, and disconnect."""
        if self._closed:
            return
        self._closed = True
        try:
            self._portal.post(self._transacting.close)
            self._portal.run(self._sender.close(timeout_ms))
        finally:
            self._portal.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def sender_of(config: ProducerConfig, session: Session) -> Sender:
    """Return the sender of a producer with CONFIG."""
    choice = queue_choice(
        config.queue_choice,
        clock=session.clock,
        random=session.random,
        run_bytes=config.run_bytes_max,
    )
    return Sender(config, session, choice)


def checked_messages(messages: Iterable[Message]) -> list[Message]:
    """Return MESSAGES as a list; raise InvalidArgument if something else is among them."""
    if isinstance(messages, Message):
        raise InvalidArgument(
            "send_many takes several messages: write send_many([message]) or send(message)",
            field="messages",
        )
    row = list(messages)  # A copy: the caller may go on with his list while it is sent.
    for message in row:
        if type(message) is not Message:
            checked_message(message)
    return row
