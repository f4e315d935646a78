"""A run: messages for one queue on their way together, and those who wait for their acknowledgement.

A run is open while messages join it, and sealed once its records are encoded. The ids are given when it is sealed
first, and stay over retries, so that a duplicate can be told by its id. A run of an idempotent producer has numbers
(sequences.py) while it is on its way; its first record says them as well, or, if any of its messages waits for its time
or its transaction, every record: the broker stores those in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...proto.body_run import BodyOrigin, encode_bodies
from ...proto.clock import Readings, ahead_ms
from ...proto.errors import PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import UniqueIdRow, UniqueIds
from ...proto.properties import PRODUCER_SEQUENCE, encode_pair
from ...proto.record import Host, encode_run
from ..message import UNIQUE_KEY_SIZE, Message
from ..queue import Queue
from .bodies import Bodies
from .outcome import Many, One, Outcome, Row, SendFuture, Waiter
from .receipt import RunReceipts
from .sequences import Numbers

_UNIQ_KEY = b"UNIQ_KEY\x01%s\x02%s"
_NUMBERED = b"UNIQ_KEY\x01%s\x02%s%s"
#: What a record has besides topic, body and the message's own properties.
RECORD_OVERHEAD = 91 + UNIQUE_KEY_SIZE
#: So many records are encoded sooner by the column, if they share their properties.
_COLUMN_MIN: Final = 128
#: In the properties of every message that does not simply go to its queue.
_WAITING: Final = (b"DELAY\x01", b"TIMER_", b"TRAN_MSG\x01")


def record_size(message: Message) -> int:
    """Return the bytes of the record of MESSAGE."""
    own = len(message.topic) + len(message.body) + len(message.property_string)
    return own + RECORD_OVERHEAD


class Origin(NamedTuple):
    """What records say of the client that made them."""

    host: Host
    ids: UniqueIds
    clock: Readings
    producer_id: int = 0


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
        "pinned",
        "queue",
        "records",
        "scattered",
        "size_bytes",
        "sizes",
        "waiters",
    )

    def __init__(self, queue: Queue, born_ms: int, on_done: Callable[[Run], None]) -> None:
        self.queue = queue
        self.born_ms = born_ms
        self.on_done = on_done
        self.messages: list[Message] | Bodies = []
        self.ids: Sequence[bytes] = ()
        self.waiters: list[Waiter] = []
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

    def add_one(self, message: Message, size_bytes: int, outcome: Outcome) -> None:
        """Take MESSAGE of SIZE_BYTES in; OUTCOME gets its receipt."""
        assert isinstance(self.messages, list)
        self.waiters.append(One(outcome))
        self.messages.append(message)
        self.size_bytes += size_bytes

    def add_many(self, messages: Sequence[Message], size_bytes: int, outcome: Outcome) -> None:
        """Take MESSAGES of together SIZE_BYTES in; OUTCOME gets their receipts. Bodies have a run to themselves."""
        self.waiters.append(Many(len(messages), outcome))
        if isinstance(messages, Bodies):
            assert not self.messages
            self.messages = messages
        else:
            assert isinstance(self.messages, list)
            self.messages += messages
        self.size_bytes += size_bytes

    def add_row(
        self, messages: Sequence[Message], size_bytes: int, futures: Sequence[SendFuture]
    ) -> None:
        """Take MESSAGES of together SIZE_BYTES in; each of FUTURES gets the receipt of one."""
        assert isinstance(self.messages, list)
        self.waiters.append(Row(futures))
        self.messages += messages
        self.size_bytes += size_bytes

    # --- records

    def seal(self, origin: Origin) -> None:
        """Encode the records, for the queue and with the numbers that it has now; it is closed."""
        self.open = False
        if self._sealed_as == (self.queue, self.numbers):
            return
        if isinstance(self.messages, Bodies):
            self._encode_bodies(self.messages, origin)
        else:
            self._encode_messages(self.messages, origin)
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
            joined = b"".join(strings)
            self.scattered = any(name in joined for name in _WAITING)
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
        return sum(waiter.senders for waiter in self.waiters)

    def middle(self, *, within_a_sender: bool) -> int:
        """Return before which message to cut it in halves, between two senders unless WITHIN_A_SENDER; 0: nowhere."""
        count = len(self.messages)
        if within_a_sender:
            return count // 2
        cuts: list[int] = []
        begin = 0
        for waiter in self.waiters:
            if begin:
                cuts.append(begin)
            if waiter.senders > 1 and begin < count // 2 < begin + waiter.count:
                cuts.append(count // 2)
            begin += waiter.count
        return min(cuts, key=lambda at: abs(count - 2 * at), default=0)

    def split(self, at: int) -> tuple[Run, Run]:
        """Return two runs, of the messages before AT and from there on; numbers stay."""
        first = self._part(0, at, sum(map(record_size, self.messages[:at])))
        second = self._part(at, len(self.messages), self.size_bytes - first.size_bytes)
        begin = 0
        for waiter in self.waiters:
            end = begin + waiter.count
            if end <= at:
                first.waiters.append(waiter)
            elif begin >= at:
                second.waiters.append(waiter)
            else:
                before, after = waiter.cut(at - begin)
                first.waiters.append(before)
                second.waiters.append(after)
            begin = end
        return first, second

    def _part(self, begin: int, end: int, size_bytes: int) -> Run:
        part = Run(self.queue, self.born_ms, self.on_done)
        part.open = False
        part.messages = self.messages[begin:end]
        part.ids = self.ids[begin:end]
        part.size_bytes = size_bytes
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
        for waiter in self.waiters:
            waiter.acknowledge(receipts, first)
            first += waiter.count
        self._end()

    def fail(self, error: PocketMQError) -> None:
        """Tell all who wait that there will be no acknowledgement, because of ERROR."""
        self.records = b""
        for waiter in self.waiters:
            waiter.refuse(error)
        self._end()

    def _end(self) -> None:
        self.done = True
        self.on_done(self)
