"""A run: messages for one queue on their way together, and those who wait for their acknowledgement.

A run is open while messages join it, and sealed once its records are encoded. The ids are given when it is sealed
first, and stay over retries, so that a duplicate, which a lost acknowledgement makes, can be told by its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ...proto.errors import PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import UniqueIds
from ...proto.record import Host
from ...proto.record_run import encode_run
from ..message import UNIQUE_KEY_SIZE, Message
from ..queue import Queue
from .receipt import Receipts, RunReceipts

_UNIQ_KEY = b"UNIQ_KEY\x01%s\x02%s"
_RECORD_OVERHEAD = 91 + UNIQUE_KEY_SIZE


def record_size(message: Message) -> int:
    """Return the bytes of the record of MESSAGE."""
    own = len(message.topic) + len(message.body) + len(message.property_string)
    return own + _RECORD_OVERHEAD


class Origin(NamedTuple):
    """What records say of the client that made them."""

    host: Host
    ids: UniqueIds


class Outcome(Protocol):
    """Where an acknowledgement or an error goes: an asyncio or a concurrent future, or a part of a larger one."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Waiter(NamedTuple):
    """Waits for SIZE messages of a run from FIRST on; a single one wants its receipt, others Receipts."""

    first: int
    size: int
    single: bool
    outcome: Outcome


class Run:
    """Messages for one queue. Not thread-safe: the producer's event loop owns it."""

    __slots__ = (
        "attempts",
        "born_ms",
        "ids",
        "messages",
        "on_done",
        "pinned",
        "queue",
        "records",
        "size_bytes",
        "sizes",
        "waiters",
    )

    def __init__(self, queue: Queue, born_ms: int, on_done: Callable[[Run], None]) -> None:
        self.queue = queue
        self.born_ms = born_ms
        self.on_done = on_done
        self.messages: list[Message] = []
        self.ids: list[bytes] = []
        self.waiters: list[Waiter] = []
        self.size_bytes = 0
        self.attempts = 0
        #: Some message asked for this very queue, by itself or by a sharding key.
        self.pinned = False
        self.records = b""
        self.sizes: list[int] = []

    def add_one(self, message: Message, size_bytes: int, outcome: Outcome) -> None:
        """Take MESSAGE of SIZE_BYTES in; OUTCOME gets its receipt."""
        self.waiters.append(Waiter(len(self.messages), 1, True, outcome))
        self.messages.append(message)
        self.size_bytes += size_bytes

    def add_many(self, messages: Sequence[Message], size_bytes: int, outcome: Outcome) -> None:
        """Take MESSAGES of together SIZE_BYTES in; OUTCOME gets their receipts."""
        self.waiters.append(Waiter(len(self.messages), len(messages), False, outcome))
        self.messages += messages
        self.size_bytes += size_bytes

    @property
    def sealed(self) -> bool:
        return bool(self.sizes)

    def seal(self, origin: Origin) -> None:
        """Encode the records, for the queue as it is now."""
        if not self.ids:
            self.ids = origin.ids.many(len(self.messages))
        properties = [
            _UNIQ_KEY % (unique, message.property_string)
            for unique, message in zip(self.ids, self.messages, strict=True)
        ]
        bodies = [message.body for message in self.messages]
        self.records, self.sizes = encode_run(
            self.queue.topic,
            self.queue.number,
            zip(bodies, properties, strict=True),
            born_timestamp_ms=self.born_ms,
            born_host=origin.host,
            sys_flag=[message.sys_flag for message in self.messages],
        )

    def move(self, queue: Queue) -> None:
        """Send it to QUEUE instead; it must be sealed again."""
        self.queue = queue
        self.records, self.sizes = b"", []

    def request(self, durability: int) -> pb.ProduceRun:
        """Return the message that travels."""
        return pb.ProduceRun(
            topic=self.queue.topic,
            queue=self.queue.number,
            records=self.records,
            sizes=self.sizes,
            durability=durability,  # type: ignore[arg-type]  # the stub wants the enum's wrapper
        )

    def split(self) -> list[Run]:
        """Return a run for each waiter: what the broker refuses together may be one message's fault."""
        parts = []
        for first, count, single, outcome in self.waiters:
            part = Run(self.queue, self.born_ms, self.on_done)
            part.waiters.append(Waiter(0, count, single, outcome))
            part.messages = self.messages[first : first + count]
            part.ids = self.ids[first : first + count]
            part.size_bytes = sum(map(record_size, part.messages))
            part.pinned = self.pinned
            parts.append(part)
        return parts

    def succeed(self, reply: pb.ProduceReply) -> None:
        """Tell all who wait that REPLY acknowledged them."""
        timed = [message.timed for message in self.messages] if reply.due_ms else ()
        receipts = RunReceipts(self.queue, self.ids, self.sizes, reply, reply.store_host, timed)
        self.records = b""
        for first, count, single, outcome in self.waiters:
            if not outcome.done():
                outcome.set_result(
                    receipts.receipt(first) if single else Receipts([(receipts, first, count)])
                )
        self.on_done(self)

    def fail(self, error: PocketMQError) -> None:
        """Tell all who wait that there will be no acknowledgement, because of ERROR."""
        self.records = b""
        for waiter in self.waiters:
            if not waiter.outcome.done():
                waiter.outcome.set_exception(error)
        self.on_done(self)


class Gathered:
    """One outcome for messages that travel in several runs: their receipts in order, or the first error at the end."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._parts: list[Receipts | None] = []
        self._missing = 0
        self._complete = False
        self._error: BaseException | None = None

    def part(self) -> _Part:
        """Return the outcome for the next run."""
        self._parts.append(None)
        self._missing += 1
        return _Part(self, len(self._parts) - 1)

    def no_more_parts(self, error: BaseException | None = None) -> None:
        """All runs are known; ERROR says why messages after them will not be sent."""
        self._complete = True
        self._error = self._error or error
        self._tell()

    def settle(self, index: int, receipts: Receipts | None, error: BaseException | None) -> None:
        """Take what became of part INDEX."""
        self._parts[index] = receipts
        self._error = self._error or error
        self._missing -= 1
        self._tell()

    def _tell(self) -> None:
        if self._missing or not self._complete or self._outcome.done():
            return
        if self._error is not None:
            self._outcome.set_exception(self._error)
        else:
            self._outcome.set_result(Receipts.joined(part for part in self._parts if part))


class _Part:
    """The outcome of one run of a gathered sending."""

    __slots__ = ("_done", "_index", "_whole")

    def __init__(self, whole: Gathered, index: int) -> None:
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
