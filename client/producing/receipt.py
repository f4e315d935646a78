"""Receipts: where each message is stored and how durably; and the futures through which senders get them.

One reply acknowledges a whole batch. `Receipts` makes the receipt of a message when it is looked at. Thread contract:
the client's event loop settles; any thread may ask.
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

#: Where all futures tell of callbacks that fail.
_futures_logger: Final = logging.getLogger("concurrent.futures")

#: What a sender waits for: nothing, the log's pages (survives kill -9), the device, the devices of all in sync.
Acks = Literal["none", "memory", "disk", "replicas"]
#: How safe a message is, in the words of `acks`; "none": nobody knows.
Durability = Acks

#: None: as the broker is configured.
ACKS_CODES: dict[Acks | None, int] = {
    None: pb.DURABILITY_UNSPECIFIED,
    "none": pb.MEMORY,
    "memory": pb.MEMORY,
    "disk": pb.DISK,
    "replicas": pb.REPLICAS,
}
#: What Kafka's programs write, and its name here.
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
    """Raise ConfigError unless ACKS is one of those there are, or None."""
    if (acks is None or isinstance(acks, str)) and acks in ACKS_CODES:
        return
    hint = ""
    if (meant := _KAFKA_ACKS.get(acks) if isinstance(acks, Hashable) else None) is not None:
        hint = f"; Kafka's acks={acks} is {meant!r} here"
    if meant == "replicas":
        hint += ', which needs a replica set: "disk" is the safest that one broker gives'
    raise ConfigError(
        f'acks is {acks!r}, but must be "none", "memory", "disk", "replicas" or None{hint}',
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
    """An acknowledgement of one message.

    A delayed message gets its place in QUEUE when it is delivered: until then queue_offset and log_offset tell where
    it waits, in a topic of the broker's own, and so does offset_message_id. With acks="none" nobody knows more than
    the queue and the id: offsets are -1 and durability is "none".
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
    """How safe the message is; never less than `acks` asked for."""
    store_timestamp_ms: int
    """When the broker stored it, in Unix milliseconds."""
    store_host: str
    """"address:port" of the broker as the record has it; empty if the broker did not send it."""
    due_ms: int = 0
    """When it will be delivered, in Unix milliseconds of the broker's clock; 0: it was delivered
    immediately.
    """
    recall_handle: str = ""
    """Handle for `recall`, to cancel the message before it is delivered. Empty for messages that
    are not scheduled, and for delay levels.
    """
    repeated: bool = False
    """An earlier try had been stored and its acknowledgement was lost: the broker dropped this one."""
    replicas: int = 0
    """With acks="replicas": how many replicas have it, the master included."""

    @property
    def offset_message_id(self) -> str:
        """The id that tells where the message lies, which look-ups without a topic understand."""
        address, _, port = self.store_host.rpartition(":")
        host = Host.parse(address.strip("[]"), int(port))
        return offset_message_id(host.address, host.port, self.log_offset)


def recall_handle_of(handle: str | Receipt) -> str:
    """Return the text of HANDLE; raise InvalidArgument for a receipt that has none, and for other things."""
    if isinstance(handle, str):
        return handle
    if not isinstance(handle, Receipt):
        raise InvalidArgument(
            f"recall takes a recall handle or a Receipt, not {type(handle).__name__}",
            field="handle",
        )
    if handle.recall_handle:
        return handle.recall_handle
    why = "waits for a delay level" if handle.due_ms else "was delivered at once"
    raise InvalidArgument(
        f"message {handle.message_id} {why}: only one sent with delay=… or deliver_at=… can be recalled",
        field="handle",
        value=handle.message_id,
    )


class BatchReceipts:
    """The acknowledgement of a batch: the broker's reply, and what the client knows of its messages."""

    __slots__ = (
        "_ids",
        "_log_offsets",
        "_queue",
        "_reply",
        "_scattered",
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
        """REPLY: None: nobody waits for one. TIMED: whether each message has a time of its own; only where REPLY says
        when they are due.
        """
        self._queue = queue
        self._ids = ids
        self._sizes = sizes
        self._reply = reply or _NO_REPLY
        self._store_host = store_host
        self._log_offsets: Sequence[int] = self._reply.log_offsets
        self._timed = timed
        self._scattered = bool(self._reply.queue_offsets or self._reply.due_ms)

    def receipt(self, index: int) -> Receipt:
        """Return the receipt of the message with INDEX in the batch."""
        reply, (topic, broker, number) = self._reply, self._queue
        message_id = self._ids[index].decode()
        if reply is _NO_REPLY:
            return Receipt(topic, broker, number, -1, -1, message_id, "none", 0, "")
        due_ms, handle = 0, ""
        queue_offset = reply.first_queue_offset + index
        if self._scattered:  # Some are delayed, or do not follow each other.
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
        """Return the receipts of PARTS in one row: those of each at its indexes, if it has some, else one part after
        the other.
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
        """Yield each message as a part of its own, in order."""
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
            raise IndexError(f"receipt {index} of {len(self)}")
        part = bisect_right(self._begins, position) - 1
        batch, first, _ = self._parts[part]
        return batch.receipt(first + position - self._begins[part])

    def __iter__(self) -> Iterator[Receipt]:
        for batch, first, count in self._parts:
            for index in range(first, first + count):
                yield batch.receipt(index)

    def __repr__(self) -> str:
        return f"<Receipts of {len(self)} messages in {len(self._parts)} runs>"


# --- futures

_FINISHED: Final = "FINISHED"
#: Makes what futures have on demand: two threads may ask for one's at once.
_making = threading.Lock()


def _make_lock_anew() -> None:
    """In a process that was forked just now: a thread that is not there may hold it."""
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has neither.
    os.register_at_fork(after_in_child=_make_lock_anew)


class _Watch:
    """What `concurrent.futures.wait` and `as_completed` need of a future."""

    __slots__ = ("condition", "waiters")

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.waiters: list[Any] = []


class SendFuture(Future[Receipt]):
    """The receipt of one message, or why there is none. It cannot be cancelled.

    It works with `concurrent.futures.wait` and `asyncio.wrap_future`. What callbacks and waiting threads need is made
    when they first ask for it, so that a message that nobody waits for costs a quarter of a microsecond here.

    Without a lock: a caller that waits for the end appends to `_hearing` and then looks at `_state`; who settles sets
    `_state` and then takes from `_hearing`. So one of the two sees the other, and because an entry is taken out before
    it is called once, by any thread. Threads that wait are in front: no callback keeps them waiting.
    """

    # These are what Future's own methods work with; all but _state are made on demand.
    _state = "RUNNING"
    _exception: BaseException | None = None
    _watch: _Watch | None = None
    _hearing: list[partial[Any]] | None = None
    _receipts: BatchReceipts
    _index: int
    #: What was sent, until it is settled, and its bytes: so that a row of messages is a row of these, and the collector
    #: of garbage has no third object per message to look at.
    message: Message | None = None
    size_bytes: int = 0

    __init__ = object.__init__  # Future's would make the lock

    def _watched(self) -> _Watch:
        watch = self._watch
        if watch is None:
            with _making:
                watch = self._watch
                if watch is None:
                    watch = self._watch = _Watch()
        return watch

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._watched().condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._watched().waiters

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
            del self, error  # As Future does: else error and frame would hold each other.

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state is not _FINISHED:
            self._wait(timeout)
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        """Return once it is settled; raise TimeoutError after TIMEOUT seconds."""
        waiting = threading.Lock()
        waiting.acquire()
        entry: partial[Any] = partial(_wake, waiting)
        hearing = self._hearing_now()
        try:
            hearing.insert(0, entry)
            while self._state is not _FINISHED:
                if timeout is None:
                    waiting.acquire()
                elif (
                    not waiting.acquire(timeout > 0, timeout if timeout > 0 else -1)
                    and self._state is not _FINISHED
                ):
                    raise TimeoutError
        finally:
            _taken_out(hearing, entry)

    def _hearing_now(self) -> list[partial[Any]]:
        """Return the callbacks for the end: one list, whichever thread asks first."""
        hearing = self._hearing
        if hearing is None:
            with _making:
                hearing = self._hearing
                if hearing is None:
                    hearing = self._hearing = []
        return hearing

    def add_done_callback(self, fn: Callable[[Future[Receipt]], object]) -> None:
        """Have FN called with this future once it is settled, by the client's thread; at once if it is."""
        entry: partial[Any] = partial(
            fn
        )  # Told from others by what it is, whatever FN makes of `==`.
        if self._state is not _FINISHED:
            hearing = self._hearing_now()
            hearing.append(entry)
            if self._state is not _FINISHED or not _taken_out(hearing, entry):
                return
        self._call(entry)

    def _call(self, entry: partial[Any]) -> None:
        try:
            entry(self)
        except (
            Exception
        ):  # The edge: the application's callback may raise anything; Future logs it so.
            _futures_logger.exception("exception calling callback for %r", self)

    def cancel(self) -> bool:
        """Return False: what was taken is sent."""
        return False

    def acknowledge(self, receipts: BatchReceipts, index: int) -> None:
        """Have the receipt with INDEX in RECEIPTS as the result."""
        acknowledge_all((self,), receipts, index)

    def refuse(self, error: BaseException) -> None:
        """Raise ERROR to those who ask."""
        self._exception = error
        self.message = None
        # Who asks from here on sees the end; who asked before is told below.
        self._state = _FINISHED
        self._tell()

    def set_result(self, result: Receipt) -> None:
        raise AssertionError("a SendFuture is settled by acknowledge or refuse")

    def set_exception(self, exception: BaseException | None) -> None:
        assert exception is not None
        self.refuse(exception)

    def _tell(self) -> None:
        """Call all callbacks for the end."""
        if (watch := self._watch) is not None:
            with watch.condition:
                for waiter in watch.waiters:
                    if self._exception is None:
                        waiter.add_result(self)
                    else:
                        waiter.add_exception(self)
                watch.condition.notify_all()
        hearing = self._hearing
        while hearing:
            try:
                entry = hearing.pop(0)
            except IndexError:  # Whoever added it last saw the end, and took it out.
                return
            self._call(entry)


def _wake(waiting: threading.Lock, _: object) -> None:
    waiting.release()


def _taken_out(hearing: list[partial[Any]], entry: partial[Any]) -> bool:
    """Take ENTRY out of HEARING; return False if somebody else has."""
    try:
        hearing.remove(entry)
    except ValueError:
        return False
    return True


def message_of(future: SendFuture) -> Message:
    """Return the message of FUTURE, which is not settled yet."""
    message = future.message
    assert message is not None, "it was settled"
    return message


def acknowledge_all(futures: Sequence[SendFuture], receipts: BatchReceipts, first: int) -> None:
    """Give FUTURES their receipts, which are those of RECEIPTS from FIRST on."""
    for index, future in enumerate(futures, first):
        future._receipts = receipts
        future._index = index
        future.message = None
        future._state = _FINISHED
        if future._hearing or future._watch is not None:
            future._tell()


class SendOutcome(Protocol):
    """Where an acknowledgement or an error goes: an asyncio or a concurrent future, or a part of a larger one."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


#: Returns an outcome for the messages from FIRST up to END of a sending that tells others before the given one.
Watch: TypeAlias = Callable[[int, int, SendOutcome], SendOutcome]


class CombinedResult:
    """One outcome for messages that travel in several runs: their receipts in order, or the first error at the end."""

    def __init__(self, outcome: SendOutcome) -> None:
        self._outcome = outcome
        #: Which messages each part has (None: those that follow the part before), and their receipts.
        self._parts: list[tuple[Sequence[int] | None, Receipts | None]] = []
        self._missing = 0
        self._complete = False
        self._error: BaseException | None = None

    def part(self, indexes: Sequence[int] | None = None) -> SendOutcome:
        """Return the outcome for the next batch; INDEXES, of its messages in the whole: of all parts, or of none."""
        self._parts.append((indexes, None))
        self._missing += 1
        return _Part(self, len(self._parts) - 1)

    def no_more_parts(self, error: BaseException | None = None) -> None:
        """All runs are known; ERROR says why messages after them will not be sent."""
        self._complete = True
        self._error = self._error or error
        self._tell()

    def settle(self, index: int, receipts: Receipts | None, error: BaseException | None) -> None:
        """Take what became of part INDEX."""
        self._parts[index] = self._parts[index][0], receipts
        self._error = self._error or error
        self._missing -= 1
        self._tell()

    def _tell(self) -> None:
        if self._missing or not self._complete or self._outcome.done():
            return
        if self._error is not None:
            self._outcome.set_exception(self._error)
        else:
            self._outcome.set_result(Receipts.joined(self._parts))


class _Part:
    """The outcome of one batch of a combined sending."""

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
