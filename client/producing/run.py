"""A run: messages for one queue on their way together, in the parcels in which their senders gave them.

A run is open while messages join it, and sealed once its records are encoded. The ids are given when it is sealed
first, and stay over retries, so that a duplicate can be told by its id.

A run of an idempotent producer has numbers while it is on its way; its first record says them as well, or, if any of
its messages waits for its time or its transaction, every record: the broker stores those in parts. The broker keeps,
for each queue, what a producer sent last. It takes a run whose first number is the one that it expects, answers a
repeat as it answered the first time, and refuses a gap. So numbers are given in the order in which runs leave, are kept
over retries, and must leave no gap:

    a run was definitely not stored, and its numbers are the last that were given     they are given back
    it will not be sent again, and may have been stored, or later numbers are given   the queue begins a new epoch

A new epoch begins at 0, and what the broker still hears of an old one it drops. Epochs rise over the whole producer,
but a queue begins a new one only when it has to: what is under way to other queues is not disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from ...proto.body_run import BodyOrigin, encode_bodies
from ...proto.clock import Readings, ahead_ms
from ...proto.errors import PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import UniqueIdRow, UniqueIds
from ...proto.properties import PRODUCER_SEQUENCE, encode_pair
from ...proto.record import Host, encode_run
from ..message import Message
from ..queue import Queue
from .bodies import Bodies, records_size
from .receipt import (
    Gathered,
    Receipts,
    RunReceipts,
    SendFuture,
    SendOutcome,
    acknowledge_all,
    message_of,
)

_UNIQ_KEY = b"UNIQ_KEY\x01%s\x02%s"
_NUMBERED = b"UNIQ_KEY\x01%s\x02%s%s"
#: So many records are encoded sooner by the column, if they share their properties.
_COLUMN_MIN: Final = 128
#: In the properties of every message that does not simply go to its queue.
_WAITING: Final = (b"DELAY\x01", b"TIMER_", b"TRAN_MSG\x01")


def unique_property(unique: bytes, string: bytes) -> bytes:
    """Return the property STRING of a message with its id, UNIQUE."""
    return _UNIQ_KEY % (unique, string)


def _waits(properties: bytes) -> bool:
    """Do PROPERTIES say that a message waits for its time or its transaction?"""
    return any(name in properties for name in _WAITING)


class Origin(NamedTuple):
    """What records say of the client that made them."""

    host: Host
    ids: UniqueIds
    clock: Readings
    producer_id: int = 0


class Numbers(NamedTuple):
    """The EPOCH of a run, and the number of its FIRST message."""

    epoch: int
    first: int


class Numbering:
    """Gives numbers for the producer PRODUCER_ID. Bounds: one entry for each queue that was ever written."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self._latest_epoch = 0
        #: Where the next run of each queue begins.
        self._next: dict[Queue, Numbers] = {}

    def give(self, queue: Queue, count: int) -> Numbers:
        """Return the numbers of the next COUNT messages of QUEUE."""
        numbers = self._next.get(queue, Numbers(self._latest_epoch, 0))
        self._next[queue] = Numbers(numbers.epoch, numbers.first + count)
        return numbers

    def give_back(self, queue: Queue, numbers: Numbers, count: int) -> bool:
        """Take back the NUMBERS of COUNT messages, if they are the last that were given in QUEUE."""
        if self._next.get(queue) != Numbers(numbers.epoch, numbers.first + count):
            return False
        self._next[queue] = numbers
        return True

    def begin_anew(self, queue: Queue) -> None:
        """Begin a new epoch in QUEUE."""
        self._latest_epoch += 1
        self._next[queue] = Numbers(self._latest_epoch, 0)

    def is_current(self, queue: Queue, numbers: Numbers) -> bool:
        """Tell whether NUMBERS are of the epoch in which QUEUE is now."""
        return self._next[queue].epoch == numbers.epoch

    @property
    def latest_epoch(self) -> int:
        """The newest epoch of any queue."""
        return self._latest_epoch


class Parcel:
    """Messages of one topic, all for the same queue or all for any, of one sender: they travel in one run."""

    __slots__ = ("_outcome", "_single", "messages", "size_bytes")
    senders = 1

    def __init__(
        self,
        messages: Sequence[Message],
        size_bytes: int,
        outcome: SendOutcome,
        *,
        single: bool = False,
    ) -> None:
        """OUTCOME gets the Receipts of MESSAGES, of together SIZE_BYTES; the Receipt, if it is a SINGLE one."""
        self.messages = messages
        self.size_bytes = size_bytes
        self._outcome = outcome
        self._single = single

    def acknowledge(self, receipts: RunReceipts, first: int) -> None:
        """Tell the sender that his messages have the RECEIPTS from FIRST on."""
        if self._outcome.done():
            return
        if self._single:
            self._outcome.set_result(receipts.receipt(first))
        else:
            self._outcome.set_result(Receipts([(receipts, first, len(self.messages))]))

    def refuse(self, error: BaseException) -> None:
        """Tell the sender that ERROR came."""
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def cut(self, at: int) -> tuple[Parcel, Parcel]:
        """Return two parcels, of the messages before AT and from there on."""
        first, second = self.shares([range(at), range(at, len(self.messages))])
        return first, second

    def shares(self, several: Sequence[Sequence[int]]) -> list[Parcel]:
        """Return a parcel for each of SEVERAL rows of indexes, which together are all messages."""
        assert not self._single
        messages, whole = self.messages, Gathered(self._outcome)
        shares: list[Parcel] = []
        for indexes in several:
            taken = (
                messages.taken(indexes)
                if isinstance(messages, Bodies)
                else [messages[index] for index in indexes]
            )
            shares.append(Parcel(taken, records_size(taken), whole.part(indexes)))
        whole.no_more_parts()
        return shares


class MessageRow:
    """Single messages of one topic, each with a future of its own; all of them say where they go, or none."""

    __slots__ = ("_futures", "ends", "messages")

    def __init__(
        self, messages: Sequence[Message], ends: Sequence[int], futures: Sequence[SendFuture]
    ) -> None:
        """ENDS: where the first begins, then where each ends, in bytes."""
        self.messages = messages
        self.ends = ends
        self._futures = futures

    @classmethod
    def of(cls, futures: Sequence[SendFuture]) -> MessageRow:
        """Return the messages that FUTURES have."""
        messages = [message_of(future) for future in futures]
        sizes = [future.size_bytes for future in futures]
        return cls(messages, list(accumulate(sizes, initial=0)), futures)

    @property
    def size_bytes(self) -> int:
        """The bytes of all."""
        return self.ends[-1] - self.ends[0]

    @property
    def senders(self) -> int:
        """How many hear of it: each message's."""
        return len(self.messages)

    def part(self, begin: int, end: int) -> MessageRow:
        """Return the messages from BEGIN up to END."""
        if begin == 0 and end == len(self.messages):
            return self
        return MessageRow(
            self.messages[begin:end], self.ends[begin : end + 1], self._futures[begin:end]
        )

    def taken(self, indexes: Sequence[int]) -> MessageRow:
        """Return the messages with INDEXES."""
        ends, messages, futures = self.ends, self.messages, self._futures
        sizes = [ends[index + 1] - ends[index] for index in indexes]
        return MessageRow(
            [messages[index] for index in indexes],
            list(accumulate(sizes, initial=0)),
            [futures[index] for index in indexes],
        )

    def acknowledge(self, receipts: RunReceipts, first: int) -> None:
        """Tell the senders that their messages have the RECEIPTS from FIRST on."""
        acknowledge_all(self._futures, receipts, first)

    def refuse(self, error: BaseException) -> None:
        """Tell the senders that ERROR came."""
        for future in self._futures:
            future.refuse(error)

    def cut(self, at: int) -> tuple[MessageRow, MessageRow]:
        """Return two rows, of the messages before AT and from there on."""
        return self.part(0, at), self.part(at, len(self.messages))


class Run:
    """Messages for one queue. Not thread-safe: the producer's event loop owns it."""

    __slots__ = (
        "_sealed_as",
        "attempts",
        "born_ms",
        "done",
        "finding",
        "hurried",
        "ids",
        "last_error",
        "maybe_stored",
        "messages",
        "not_before_ms",
        "numbers",
        "on_done",
        "open",
        "parcels",
        "pinned",
        "queue",
        "records",
        "scattered",
        "size_bytes",
        "sizes",
    )

    def __init__(self, queue: Queue, born_ms: int, on_done: Callable[[Run], None]) -> None:
        self.queue = queue
        self.born_ms = born_ms
        self.on_done = on_done
        self.messages: list[Message] | Bodies = []
        self.ids: Sequence[bytes] = ()
        #: What it is made of, in order.
        self.parcels: list[Parcel | MessageRow] = []
        self.size_bytes = 0
        #: Messages may join it.
        self.open = True
        #: Somebody flushes: it does not linger.
        self.hurried = False
        self.done = False
        #: Tries that failed.
        self.attempts = 0
        self.last_error: PocketMQError | None = None
        #: It is not sent again before this instant.
        self.not_before_ms = 0
        #: It is not sent again before its route is known.
        self.finding = False
        #: Some message asked for this very queue, by itself or by a sharding key.
        self.pinned = False
        self.numbers: Numbers | None = None
        #: A try may have been stored, for all that is known.
        self.maybe_stored = False
        #: Some messages wait for their time or transaction, so that the broker stores it in parts.
        self.scattered = False
        self.records = b""
        self.sizes: list[int] = []
        self._sealed_as: tuple[Queue, Numbers | None] | None = None

    def add(self, parcel: Parcel | MessageRow) -> None:
        """Take PARCEL in. Bodies have a run to themselves."""
        self.parcels.append(parcel)
        if isinstance(parcel.messages, Bodies):
            assert not self.messages
            self.messages = parcel.messages
        else:
            assert isinstance(self.messages, list)
            self.messages += parcel.messages
        self.size_bytes += parcel.size_bytes

    # --- records

    def seal(self, origin: Origin) -> None:
        """Encode the records, for the queue and with the numbers that it has now; it is closed."""
        self.open = False
        if self._sealed_as == (self.queue, self.numbers):
            return
        messages = self.messages
        if isinstance(messages, list):
            self._encode_messages(messages, origin)
        elif _waits(messages.pattern.property_string):
            self._encode_messages(list(messages), origin)
        else:
            self._encode_bodies(messages, origin)
        self._sealed_as = self.queue, self.numbers

    def _encode_bodies(self, bodies: Bodies, origin: Origin) -> None:
        if not isinstance(self.ids, UniqueIdRow):
            self.ids = origin.ids.row(len(bodies))
        numbers = self._sequence(origin.producer_id, 0, len(bodies))
        born = self._born_unix_ms(origin), origin.host
        self.records, self.sizes = bodies.encode(self.queue.number, born, self.ids, numbers)

    def _encode_messages(self, messages: list[Message], origin: Origin) -> None:
        born_ms = self._born_unix_ms(origin)
        strings = [message.property_string for message in messages]
        if not self.ids:
            self.ids = origin.ids.row(len(messages))
            self.scattered = _waits(b"".join(strings))
        bodies = [message.body for message in messages]
        flags = [message.sys_flag for message in messages]
        alike = len(messages) >= _COLUMN_MIN and not self.scattered and len(set(strings)) == 1
        if alike and isinstance(self.ids, UniqueIdRow):
            topic, _, number = self.queue
            self.records, self.sizes = encode_bodies(
                BodyOrigin(topic, number, born_ms, origin.host, strings[0]),
                bodies,
                self.ids,
                first_extra=self._sequence(origin.producer_id, 0, len(bodies)),
                sys_flags=flags if any(flags) else None,
            )
        else:
            self.records, self.sizes = encode_run(
                self.queue.topic,
                self.queue.number,
                zip(bodies, self._properties(origin.producer_id), strict=True),
                born_timestamp_ms=born_ms,
                born_host=origin.host,
                sys_flag=flags,
            )

    def _born_unix_ms(self, origin: Origin) -> int:
        """Return when it was born, as the wall clock tells now."""
        return self.born_ms + ahead_ms(origin.clock)

    def _properties(self, producer_id: int) -> list[bytes]:
        """Return the property string of each record."""
        strings = [
            _UNIQ_KEY % (unique, message.property_string)
            for unique, message in zip(self.ids, self.messages, strict=True)
        ]
        if self.numbers is not None:
            count = len(strings)
            rows = range(count) if self.scattered else (0,)
            size = 1 if self.scattered else count
            for row in rows:
                numbers = self._sequence(producer_id, row, size)
                strings[row] = _NUMBERED % (
                    self.ids[row],
                    numbers,
                    self.messages[row].property_string,
                )
        return strings

    def _sequence(self, producer_id: int, row: int, count: int) -> bytes:
        """Return the property that numbers COUNT records from ROW on; nothing if the run has no numbers."""
        if self.numbers is None:
            return b""
        epoch, first = self.numbers
        return encode_pair(PRODUCER_SEQUENCE, f"{producer_id:x}:{epoch}:{first + row}:{count}")

    def request(
        self, durability: int, producer_id: int, *, no_reply: bool = False
    ) -> pb.ProduceRun:
        """Return the message that travels."""
        run = pb.ProduceRun(
            topic=self.queue.topic,
            queue=self.queue.number,
            records=self.records,
            sizes=self.sizes,
            durability=durability,  # type: ignore[arg-type]  # the stub wants the enum's wrapper
            no_reply=no_reply,
        )
        if self.numbers is not None:
            run.producer_id = producer_id
            run.producer_epoch, run.first_sequence = self.numbers
        return run

    # --- parts

    @property
    def senders(self) -> int:
        """How many senders hear of it."""
        return sum(parcel.senders for parcel in self.parcels)

    def middle(self, *, within_a_sender: bool) -> int:
        """Return before which message to cut it in halves, between two senders unless WITHIN_A_SENDER; 0: nowhere."""
        count = len(self.messages)
        if within_a_sender:
            return count // 2
        cuts: list[int] = []
        begin = 0
        for parcel in self.parcels:
            end = begin + len(parcel.messages)
            if begin:
                cuts.append(begin)
            if parcel.senders > 1 and begin < count // 2 < end:
                cuts.append(count // 2)
            begin = end
        return min(cuts, key=lambda at: abs(count - 2 * at), default=0)

    def split(self, at: int) -> tuple[Run, Run]:
        """Return two runs, of the messages before AT and from there on; numbers stay."""
        first, second = self._part(0, at), self._part(at, len(self.messages))
        begin = 0
        for parcel in self.parcels:
            end = begin + len(parcel.messages)
            if end <= at:
                first.add(parcel)
            elif begin >= at:
                second.add(parcel)
            else:
                before, after = parcel.cut(at - begin)
                first.add(before)
                second.add(after)
            begin = end
        return first, second

    def _part(self, begin: int, end: int) -> Run:
        """Return a run without messages yet, which is to have those from BEGIN up to END."""
        part = Run(self.queue, self.born_ms, self.on_done)
        part.open = False
        part.ids = self.ids[begin:end]
        part.hurried, part.pinned = self.hurried, self.pinned
        part.maybe_stored, part.scattered = self.maybe_stored, self.scattered
        if self.numbers is not None:
            part.numbers = Numbers(self.numbers.epoch, self.numbers.first + begin)
        return part

    # --- the end

    def succeed(self, reply: pb.ProduceReply) -> None:
        """Tell all who wait that REPLY acknowledged them."""
        timed = [message.timed for message in self.messages] if reply.due_ms else ()
        self._acknowledge(
            RunReceipts(self.queue, self.ids, self.sizes, reply, reply.store_host, timed)
        )

    def leave(self) -> None:
        """Tell all who wait that it has left, and that nobody will hear more."""
        self._acknowledge(RunReceipts(self.queue, self.ids, self.sizes, None, ""))

    def _acknowledge(self, receipts: RunReceipts) -> None:
        self.records = b""
        first = 0
        for parcel in self.parcels:
            parcel.acknowledge(receipts, first)
            first += len(parcel.messages)
        self._end()

    def fail(self, error: PocketMQError) -> None:
        """Tell all who wait that there will be no acknowledgement, because of ERROR."""
        self.records = b""
        for parcel in self.parcels:
            parcel.refuse(error)
        self._end()

    def _end(self) -> None:
        self.done = True
        self.on_done(self)
