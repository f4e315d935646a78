"""Receipts, which say where each message is stored and how safely, and the futures that return them to senders.

One reply acknowledges a whole batch. `Receipts` creates the receipt of a message on access. The client's event loop
settles futures; any thread may wait for them.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, overload

from ...proto.errors import ConfigError, InvalidArgument
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import offset_message_id
from ...proto.recall_handle import encode_handle
from ...proto.record import Host
from ..message import Message
from ..queue import Queue

#: The logger that `concurrent.futures.Future` uses for callbacks that raise.
_futures_logger: Final = logging.getLogger("concurrent.futures")

#: What a sender waits for: "none": nothing; "memory": the message is in the page cache of the broker and survives
#: kill -9; "disk": it is flushed to disk; "replicas": it is flushed on all in-sync replicas.
Acks = Literal["none", "memory", "disk", "replicas"]
#: How safe a message is, in the same words; "none": unknown.
Durability = Acks

#: None: the setting of the broker applies.
ACKS_CODES: dict[Acks | None, int] = {
    None: pb.DURABILITY_UNSPECIFIED,
    "none": pb.MEMORY,
    "memory": pb.MEMORY,
    "disk": pb.DISK,
    "replicas": pb.REPLICAS,
}
#: Values of `acks` in Kafka, and the same in PocketMQ. Error messages suggest them.
_KAFKA_ACKS: Final[dict[object, Acks]] = {
    0: "none",
    "0": "none",
    1: "memory",
    "1": "memory",
    -1: "replicas",
    "-1": "replicas",
    "all": "replicas",
}


def check_acks(acks: object) -> None:
    """Raise ConfigError unless ACKS is a known value or None."""
    if (acks is None or isinstance(acks, str)) and acks in ACKS_CODES:
        return
    hint = ""
    if (meant := _KAFKA_ACKS.get(acks) if isinstance(acks, Hashable) else None) is not None:
        hint = f". Kafka's acks={acks} is {meant!r} in PocketMQ"
    if meant == "replicas":
        hint += ', which needs a replica set. Use "disk" for a single broker'
    raise ConfigError(
        f'acks is {acks!r}: use "none", "memory", "disk", "replicas" or None{hint}',
        field="acks",
        value=acks,
    )


_DURABILITY_NAMES: dict[int, Durability] = {
    pb.MEMORY: "memory",
    pb.DISK: "disk",
    pb.REPLICAS: "replicas",
}


_NO_REPLY: Final = pb.ProduceReply()


class Receipt(NamedTuple):
    """The acknowledgement of one message: where it is stored and how safely.

    A scheduled message gets its place in the queue when it is delivered. Until then it is stored in a topic of the
    broker, and queue_offset, log_offset and offset_message_id are its place there. With acks="none" only the queue and
    the id are known: the offsets are -1 and durability is "none".
    """

    topic: str
    """Topic of the message."""
    broker: str
    """Name of the broker."""
    queue: int
    """Number of the queue."""
    queue_offset: int
    """Offset in the queue. Until a scheduled message is delivered: its offset in a topic of the broker."""
    log_offset: int
    """Offset in the broker's commit log."""
    message_id: str
    """Id that the producer gave the message (property UNIQ_KEY)."""
    durability: Durability
    """How safe the message is: at least what `acks` requested."""
    store_timestamp_ms: int
    """When the broker stored it, in Unix milliseconds."""
    store_host: str
    """"address:port" of the broker as the record has it; empty if the broker did not send it."""
    due_ms: int = 0
    """When it is delivered, in Unix milliseconds of the broker's clock; 0: at once."""
    recall_handle: str = ""
    """Handle for `recall`, to cancel the message before it is delivered. Empty for messages that
    are not scheduled, and for delay levels.
    """
    repeated: bool = False
    """True: an earlier try was stored, but its acknowledgement was lost. The broker dropped this duplicate."""
    replicas: int = 0
    """With acks="replicas": number of replicas that stored it, the master included."""

    @property
    def offset_message_id(self) -> str:
        """The id that contains the address of the message. Use it to look up a message without its topic."""
        address, _, port = self.store_host.rpartition(":")
        host = Host.parse(address.strip("[]"), int(port))
        return offset_message_id(host.address, host.port, self.log_offset)


def recall_handle_of(handle: str | Receipt) -> str:
    """Return HANDLE as text. Raises InvalidArgument for a receipt without a recall handle, and for other types."""
    if isinstance(handle, str):
        return handle
    if not isinstance(handle, Receipt):
        raise InvalidArgument(
            f"recall takes a Receipt, or its recall_handle, not {type(handle).__name__}",
            field="handle",
        )
    if handle.recall_handle:
        return handle.recall_handle
    why = "has a delay level" if handle.due_ms else "was delivered at once"
    raise InvalidArgument(
        f"message {handle.message_id} {why}: you can recall only messages sent with delay=… or deliver_at=…",
        field="handle",
        value=handle.message_id,
    )


class BatchReceipts:
    """The acknowledgement of a batch: the broker's reply, and the ids and sizes of the messages."""

    __slots__ = (
        "_has_own_places",
        "_ids",
        "_log_offsets",
        "_queue",
        "_reply",
        "_sizes",
        "_store_host",
        "_timed",
    )

    def __init__(
        self,
        queue: Queue,
        ids: Sequence[bytes],
        sizes: Sequence[int],
        reply: pb.ProduceReply | None,
        store_host: str,
        timed: Sequence[bool] = (),
    ) -> None:
        """REPLY: None with acks="none". TIMED: whether each message has a delivery time, if REPLY has due times."""
        self._queue = queue
        self._ids = ids
        self._sizes = sizes
        self._reply = reply or _NO_REPLY
        self._store_host = store_host
        self._log_offsets: Sequence[int] = self._reply.log_offsets
        self._timed = timed
        #: Whether the messages have delivery times, or offsets that do not follow each other.
        self._has_own_places = bool(self._reply.queue_offsets or self._reply.due_ms)

    def receipt(self, index: int) -> Receipt:
        """Return the receipt of the message at INDEX of the batch."""
        reply, (topic, broker, number) = self._reply, self._queue
        message_id = self._ids[index].decode()
        if reply is _NO_REPLY:
            return Receipt(topic, broker, number, -1, -1, message_id, "none", 0, "")
        due_ms, handle = 0, ""
        queue_offset = reply.first_queue_offset + index
        if self._has_own_places:
            due_ms = reply.due_ms[index] if reply.due_ms else 0
            if due_ms and self._timed[index]:
                handle = encode_handle(topic, broker, due_ms, message_id)
            if reply.queue_offsets:
                queue_offset = reply.queue_offsets[index]
        return Receipt(
            topic,
            broker,
            number,
            queue_offset,
            self._log_offset(index),
            message_id,
            _DURABILITY_NAMES.get(reply.durability, "memory"),
            reply.store_timestamp_ms,
            self._store_host,
            due_ms,
            handle,
            index < reply.repeated_count,
            reply.replicas,
        )

    def _log_offset(self, index: int) -> int:
        if not self._log_offsets:
            if index == 0:
                return self._reply.first_log_offset
            ends = accumulate(self._sizes[:-1], initial=self._reply.first_log_offset)
            self._log_offsets = list(ends)
        return self._log_offsets[index]


class Receipts(Sequence[Receipt]):
    """The receipts of `send_many`, in the order of its messages."""

    def __init__(self, parts: Sequence[tuple[BatchReceipts, int, int]]) -> None:
        """PARTS are (batch, index of the first message in it, number of messages)."""
        self._parts = parts
        self._begins = list(accumulate((count for _, _, count in parts), initial=0))

    @classmethod
    def joined(cls, parts: Iterable[tuple[Sequence[int] | None, Receipts | None]]) -> Receipts:
        """Return the receipts of PARTS as one sequence.

        The receipts of a part are placed at its indexes. Parts without indexes follow each other.
        """
        row: list[tuple[BatchReceipts, int, int]] = []
        placed: dict[int, tuple[BatchReceipts, int, int]] = {}
        for indexes, receipts in parts:
            if receipts is None:
                continue
            if indexes is None:
                row += receipts._parts
            else:
                placed.update(zip(indexes, receipts._singles(), strict=True))
        return cls(row + [placed[index] for index in sorted(placed)])

    def _singles(self) -> Iterator[tuple[BatchReceipts, int, int]]:
        """Yield one part per message, in order."""
        for batch, first, count in self._parts:
            for index in range(first, first + count):
                yield batch, index, 1

    def __len__(self) -> int:
        return self._begins[-1]

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(
                f"receipt index {index} is out of range: there are {len(self)} receipts"
            )
        part = bisect_right(self._begins, position) - 1
        batch, first, _ = self._parts[part]
        return batch.receipt(first + position - self._begins[part])

    def __iter__(self) -> Iterator[Receipt]:
        for batch, first, count in self._parts:
            for index in range(first, first + count):
                yield batch.receipt(index)

    def __repr__(self) -> str:
        return f"<Receipts of {len(self)} messages in {len(self._parts)} batches>"


_FINISHED: Final = "FINISHED"
#: Held while a lazy attribute of a future is created, because two threads may need it at the same time.
_lazy_lock = threading.Lock()


def _replace_lazy_lock() -> None:
    """Replace the lock in a forked process: a thread that does not exist there may hold it."""
    global _lazy_lock
    _lazy_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_replace_lazy_lock)


class _Watch:
    """The attributes of a future that `concurrent.futures.wait` and `as_completed` need."""

    __slots__ = ("condition", "waiters")

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.waiters: list[Any] = []


class SendFuture(Future[Receipt]):
    """The future receipt of one message. It cannot be cancelled.

    It works with `concurrent.futures.wait` and `asyncio.wrap_future`. Its lock and its list of callbacks are created
    when they are first needed. So a future that no thread waits for costs a quarter of a microsecond.

    It settles without a lock. A thread that waits appends to `_callbacks` and then reads `_state`. The thread that
    settles sets `_state` and then takes callbacks from `_callbacks`. So at least one of the two sees the other. A
    callback is removed from the list before it is called, so only one thread calls it. Waiting threads are at the front
    of the list, so that no callback delays them.
    """

    # The methods of Future use these. All but _state are created when they are needed.
    _state = "RUNNING"
    _exception: BaseException | None = None
    _watch: _Watch | None = None
    _callbacks: list[partial[Any]] | None = None
    _receipts: BatchReceipts
    _index: int
    #: The message that was sent, until the future is settled, and its size. They are attributes of the future, so that
    #: the garbage collector has no third object per message to visit.
    message: Message | None = None
    size_bytes: int = 0

    __init__ = object.__init__  # The one of Future would create a lock.

    def _lazy_watch(self) -> _Watch:
        watch = self._watch
        if watch is None:
            with _lazy_lock:
                watch = self._watch
                if watch is None:
                    watch = self._watch = _Watch()
        return watch

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._lazy_watch().condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._lazy_watch().waiters

    @property
    def _result(self) -> Receipt:  # type: ignore[override]
        return self._receipts.receipt(self._index)

    def done(self) -> bool:
        return self._state is _FINISHED

    def result(self, timeout: float | None = None) -> Receipt:
        error = self.exception(timeout)
        if error is None:
            return self._receipts.receipt(self._index)
        try:
            raise error
        finally:
            del (
                self,
                error,
            )  # As in Future: otherwise the error and the frame would reference each other.

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state is not _FINISHED:
            self._wait(timeout)
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        """Return when it is settled. Raises TimeoutError after TIMEOUT seconds."""
        waiting = threading.Lock()
        waiting.acquire()
        entry: partial[Any] = partial(_wake, waiting)
        callbacks = self._lazy_callbacks()
        try:
            callbacks.insert(0, entry)
            while self._state is not _FINISHED:
                if timeout is None:
                    waiting.acquire()
                elif (
                    not waiting.acquire(timeout > 0, timeout if timeout > 0 else -1)
                    and self._state is not _FINISHED
                ):
                    raise TimeoutError
        finally:
            _remove(callbacks, entry)

    def _lazy_callbacks(self) -> list[partial[Any]]:
        """Return the list of callbacks, the same one to all threads."""
        callbacks = self._callbacks
        if callbacks is None:
            with _lazy_lock:
                callbacks = self._callbacks
                if callbacks is None:
                    callbacks = self._callbacks = []
        return callbacks

    def add_done_callback(self, fn: Callable[[Future[Receipt]], object]) -> None:
        """Call FN with this future when it is settled, in the client's thread; at once if it is settled already."""
        # A partial is compared by identity, so that FN need not define a usable `==`.
        entry: partial[Any] = partial(fn)
        if self._state is not _FINISHED:
            callbacks = self._lazy_callbacks()
            callbacks.append(entry)
            if self._state is not _FINISHED or not _remove(callbacks, entry):
                return
        self._call(entry)

    def _call(self, entry: partial[Any]) -> None:
        try:
            entry(self)
        except Exception:
            # The application's callback may raise anything. Future logs it in the same way.
            _futures_logger.exception("exception calling callback for %r", self)

    def cancel(self) -> bool:
        """Return False: a message that was accepted is sent."""
        return False

    def acknowledge(self, receipts: BatchReceipts, index: int) -> None:
        """Settle the future with the receipt at INDEX of RECEIPTS."""
        acknowledge_all((self,), receipts, index)

    def fail(self, error: BaseException) -> None:
        """Settle the future with ERROR."""
        self._exception = error
        self.message = None
        # Callers that look at the state from here on see the end. Earlier callers have a callback.
        self._state = _FINISHED
        self._call_all()

    def set_result(self, result: Receipt) -> None:
        raise AssertionError("a SendFuture is settled by acknowledge or fail")

    def set_exception(self, exception: BaseException | None) -> None:
        assert exception is not None
        self.fail(exception)

    def _call_all(self) -> None:
        """Wake `concurrent.futures.wait`, then call and remove all callbacks."""
        if (watch := self._watch) is not None:
            with watch.condition:
                for waiter in watch.waiters:
                    if self._exception is None:
                        waiter.add_result(self)
                    else:
                        waiter.add_exception(self)
                watch.condition.notify_all()
        callbacks = self._callbacks
        while callbacks:
            try:
                entry = callbacks.pop(0)
            except IndexError:  # The thread that added it saw the end, and has removed it.
                return
            self._call(entry)


def _wake(waiting: threading.Lock, _: object) -> None:
    waiting.release()


def _remove(callbacks: list[partial[Any]], entry: partial[Any]) -> bool:
    """Remove ENTRY from CALLBACKS; return False if another thread has removed it."""
    try:
        callbacks.remove(entry)
    except ValueError:
        return False
    return True


def message_of(future: SendFuture) -> Message:
    """Return the message of FUTURE, which must not be settled yet."""
    message = future.message
    assert message is not None, "the future is settled"
    return message


def acknowledge_all(futures: Sequence[SendFuture], receipts: BatchReceipts, first: int) -> None:
    """Settle FUTURES with their receipts: those of RECEIPTS from index FIRST on."""
    for index, future in enumerate(futures, first):
        future._receipts = receipts
        future._index = index
        future.message = None
        future._state = _FINISHED
        if future._callbacks or future._watch is not None:
            future._call_all()


class SendOutcome(Protocol):
    """Gets an acknowledgement or an error: an asyncio or concurrent future, or a part of a CombinedResult."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


#: Called with FIRST, END and a result. Returns a result that notifies others about the messages from FIRST up to END,
#: then settles the given one.
Watch: TypeAlias = Callable[[int, int, SendOutcome], SendOutcome]


class CombinedResult:
    """One result for messages in several batches: their receipts in order, or the first error.

    It is settled when all batches have ended.
    """

    def __init__(self, outcome: SendOutcome) -> None:
        self._outcome = outcome
        #: The indexes of the messages of each part (None: those after the part before), and their receipts.
        self._parts: list[tuple[Sequence[int] | None, Receipts | None]] = []
        self._missing = 0
        self._complete = False
        self._error: BaseException | None = None

    def part(self, indexes: Sequence[int] | None = None) -> SendOutcome:
        """Return the result for the next batch.

        INDEXES: the indexes of its messages among all messages. Either all parts have indexes, or none.
        """
        self._parts.append((indexes, None))
        self._missing += 1
        return _Part(self, len(self._parts) - 1)

    def no_more_parts(self, error: BaseException | None = None) -> None:
        """Note that there are no more batches. ERROR: why the remaining messages are not sent."""
        self._complete = True
        self._error = self._error or error
        self._settle_if_complete()

    def settle(self, index: int, receipts: Receipts | None, error: BaseException | None) -> None:
        """Note the RECEIPTS of part INDEX, or its ERROR."""
        self._parts[index] = self._parts[index][0], receipts
        self._error = self._error or error
        self._missing -= 1
        self._settle_if_complete()

    def _settle_if_complete(self) -> None:
        if self._missing or not self._complete or self._outcome.done():
            return
        if self._error is not None:
            self._outcome.set_exception(self._error)
        else:
            self._outcome.set_result(Receipts.joined(self._parts))


class _Part:
    """The result of one batch in a CombinedResult."""

    __slots__ = ("_done", "_index", "_whole")

    def __init__(self, whole: CombinedResult, index: int) -> None:
        self._whole = whole
        self._index = index
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Receipts, /) -> None:
        self._done = True
        self._whole.settle(self._index, result, None)

    def set_exception(self, exception: BaseException, /) -> None:
        self._done = True
        self._whole.settle(self._index, None, exception)
