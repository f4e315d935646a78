"""The queue between the threads that send and the sender on the clients' event loop: the hot path of `Producer.send`.

Messages gather in a list until the loop takes all of them. Only the first message wakes the loop, so under load the
loop takes hundreds at a time, in the order in which they were put. Any thread may call the methods. The list is limited
by buffer_memory: `send_nowait` reserves the bytes of a message before it puts the message.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from ..loop_thread import LoopThread
from ..message import (
    NO_VALUE,
    RECORD_OVERHEAD,
    ManyParts,
    Message,
    MessageParts,
    UnserializedMessage,
)
from ..metrics import ProducerMetrics
from ..producing.receipt import Receipt, Receipts, SendFuture, SendOutcome
from ..producing.sender import Sender
from .gen.atomic_commit import AtomicCommit
from .gen.transaction import Transaction

if TYPE_CHECKING:
    from ..consuming.atomic_reading import AtomicReading


class SendQueue:
    """Passes messages of threads to SENDER on the loop of PORTAL. It has the methods of Sender, which block here."""

    def __init__(self, portal: LoopThread, sender: Sender) -> None:
        self._portal = portal
        self._sender = sender
        self._plain_bytes = sender.intake.plain_bytes
        self._reserve_now = sender.budget.take
        self._largest_bytes = sender.config.max_request_size
        #: SendFutures, which contain their messages, or (message, size in bytes, result).
        self._waiting: list[SendFuture | tuple[Message, int, SendOutcome]] = []
        #: Whether the list may contain tuples. It stays True, because other threads may put some at any time.
        self._mixed = False
        self._awake = False

    def send(self, message: object, value: Any, parts: MessageParts) -> Receipt:
        """Send the message for the arguments of `Producer.send`. Return its receipt."""
        return self.send_nowait(message, value, parts).result()

    def send_nowait(self, message: object, value: Any, parts: MessageParts) -> Future[Receipt]:
        """Put the message for the arguments, and wait for memory if needed. Return the future of its receipt."""
        if (
            type(message) is Message
            and len(message.body) <= self._plain_bytes
            and value is NO_VALUE
            and not parts
        ):
            plain = message
        else:
            prepared = self._prepared(message, value, parts)
            if not isinstance(prepared, Message):
                return prepared
            plain = prepared
        sender, portal = self._sender, self._portal
        if not sender.is_open or portal.is_inherited:
            sender.check_open()
            portal.check()
        # The same as `record_size`, without a function call.
        own = len(plain.topic) + len(plain.body) + len(plain.property_string)
        size_bytes = own + RECORD_OVERHEAD
        if size_bytes > self._largest_bytes or not self._reserve_now(size_bytes):
            self._reserve(plain)
        future: SendFuture = SendFuture()
        future.message = plain
        future.size_bytes = size_bytes
        self._waiting.append(future)
        if not self._awake:
            self._wake()
        return future

    def _prepared(
        self, message: object, value: Any, parts: MessageParts
    ) -> Message | Future[Receipt]:
        """Return the final message for the arguments. If there are interceptors, put it and return its future."""
        self._sender.check_open()
        intake = self._sender.intake
        gate = intake.gate
        if type(message) is str and value is not NO_VALUE and not intake.interceptors:
            if not gate.is_open(message):
                self._portal.run(gate.wait(message))
            return intake.prepare(message, value, parts)
        self._portal.check()
        sending = intake.intercepted(message, value, parts)
        with intake.reporting_errors(sending):
            if isinstance(sending, UnserializedMessage) and not gate.is_open(sending.topic):
                self._portal.run(gate.wait(sending.topic))
            final = intake.final(sending)
            size_bytes = self._reserve(final)
        outcome: Future[Receipt] = Future()
        outcome.set_running_or_notify_cancel()
        self._mixed = True
        self._waiting.append((final, size_bytes, intake.observed(sending, outcome)))
        if not self._awake:
            self._wake()
        return outcome

    def _reserve(self, message: Message) -> int:
        """Reserve the bytes of MESSAGE in the buffer, and wait for memory if needed. Return their number."""
        size_bytes = self._sender.size_of(message)
        if not self._reserve_now(size_bytes):
            budget, config = self._sender.budget, self._sender.config
            self._portal.run(budget.take_within(size_bytes, config.max_block_ms))
        return size_bytes

    def _wake(self) -> None:
        self._awake = True
        self._portal.post(self._take)

    def _take(self) -> None:
        # Cleared first: messages that are put from here on are either taken below, or they wake the loop again.
        self._awake = False
        taken = self._waiting[:]
        del self._waiting[: len(taken)]
        if not self._mixed:
            if taken:
                self._sender.accept_row(cast("list[SendFuture]", taken))
            return
        for plain, entries in groupby(taken, lambda entry: type(entry) is SendFuture):
            if plain:
                self._sender.accept_row(cast("list[SendFuture]", list(entries)))
            else:
                for entry in entries:
                    self._sender.accept(*cast("tuple[Message, int, SendOutcome]", entry))

    def send_many(
        self, messages: Iterable[Message] | str, values: Iterable[Any], parts: ManyParts
    ) -> Receipts:
        """Send the messages for the arguments of `Producer.send_many`. Return the receipts."""
        return self.send_many_nowait(messages, values, parts).result()

    def send_many_nowait(
        self, messages: Iterable[Message] | str, values: Iterable[Any], parts: ManyParts
    ) -> Future[Receipts]:
        """Start to send the messages for the arguments. Return the future of the receipts."""
        self._sender.check_open()
        final, watch = self._sender.intake.prepare_many(messages, values, parts)
        outcome: Future[Receipts] = Future()
        outcome.set_running_or_notify_cancel()
        self._portal.post(self._sender.accept_many, final, outcome, watch)
        return outcome

    def recall(self, handle: str | Receipt) -> str:
        """Cancel the scheduled message of HANDLE. Return its id."""
        return self._portal.run(self._sender.recall(handle))

    def transaction(self, message: object, value: Any, parts: MessageParts) -> Transaction:
        """Return a transaction of the message for the arguments."""
        return Transaction(self._sender.transaction(message, value, parts), self._portal)

    def atomic_commit(self, reading: AtomicReading) -> AtomicCommit:
        """Return an atomic commit for the messages that READING reads."""
        return AtomicCommit(self._sender.atomic_commit(reading), self._portal)

    def metrics(self) -> ProducerMetrics:
        """Return the metrics of the sender."""
        return self._sender.metrics()

    def flush(self) -> None:
        """Return when everything that was sent before is acknowledged or has failed."""
        self._portal.run(self._sender.flush())

    def close(self, timeout_ms: int) -> None:
        """Close the sender; wait up to TIMEOUT_MS for acknowledgements."""
        self._portal.run(self._sender.close(timeout_ms))
