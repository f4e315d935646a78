"""A batch: messages for one queue that are sent together. It consists of parts, one per call of a sender.

A batch is open while messages may join it. `seal` encodes its records and closes it. The first `seal` assigns the
message ids, which retries keep. The sequence number (sequences.py) is in the first record. It is in every record if
the broker stores the batch in parts because it has scheduled messages or half messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...proto.body_run import BodyOrigin, encode_bodies, encode_in_core
from ...proto.clock import Readings, ahead_ms
from ...proto.errors import PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import UniqueIdRow, UniqueIds
from ...proto.properties import PRODUCER_SEQUENCE, encode_pair
from ...proto.record import Host, encode_run
from ..message import Message
from ..queue import Queue
from .batch_parts import Part
from .bodies import Bodies
from .receipt import BatchReceipts
from .sequences import BatchSequence

_UNIQ_KEY = b"UNIQ_KEY\x01%s\x02%s"
_NUMBERED = b"UNIQ_KEY\x01%s\x02%s%s"
#: From this many records on, encoding column by column is faster, if the records share their properties.
_COLUMN_MIN: Final = 128
#: One of these is in the properties of each message that is not stored in its queue at once.
_WAITING: Final = (b"DELAY\x01", b"TIMER_", b"TRAN_MSG\x01")


def unique_property(unique: bytes, string: bytes) -> bytes:
    """Return the property STRING of a message with its id, UNIQUE."""
    return _UNIQ_KEY % (unique, string)


def _waits(properties: bytes) -> bool:
    """Return whether PROPERTIES are those of a scheduled message or a half message."""
    return any(name in properties for name in _WAITING)


class ProducerIdentity(NamedTuple):
    """What the records of a producer contain about the producer."""

    host: Host
    ids: UniqueIds
    clock: Readings
    producer_id: int = 0


class ProducerBatch:
    """Messages for one queue. Not thread-safe: the producer's event loop owns it."""

    __slots__ = (
        "_sealed_as",
        "attempts",
        "born_ms",
        "done",
        "flush_requested",
        "ids",
        "last_error",
        "maybe_stored",
        "messages",
        "not_before_ms",
        "on_done",
        "open",
        "parts",
        "pinned",
        "queue",
        "records",
        "route_pending",
        "sequence",
        "size_bytes",
        "sizes",
        "split_by_broker",
    )

    def __init__(
        self, queue: Queue, born_ms: int, on_done: Callable[[ProducerBatch], None]
    ) -> None:
        self.queue = queue
        self.born_ms = born_ms
        self.on_done = on_done
        self.messages: list[Message] | Bodies = []
        self.ids: Sequence[bytes] = ()
        #: The parts that it consists of, in order.
        self.parts: list[Part] = []
        self.size_bytes = 0
        #: Whether messages may join it.
        self.open = True
        #: Whether `flush` was called, so that it does not linger.
        self.flush_requested = False
        self.done = False
        #: Number of tries that failed.
        self.attempts = 0
        self.last_error: PocketMQError | None = None
        #: It is not sent again before this time.
        self.not_before_ms = 0
        #: Whether it waits until its route is known.
        self.route_pending = False
        #: Whether a message must go to this queue, because it names the queue or has a sharding key.
        self.pinned = False
        self.sequence: BatchSequence | None = None
        #: Whether the broker may have stored an earlier try.
        self.maybe_stored = False
        #: Whether the broker stores it in parts, because it has scheduled messages or half messages.
        self.split_by_broker = False
        self.records = b""
        self.sizes: list[int] = []
        self._sealed_as: tuple[Queue, BatchSequence | None] | None = None

    def add(self, part: Part) -> None:
        """Add PART. A part of Bodies is alone in its batch."""
        self.parts.append(part)
        if isinstance(part.messages, Bodies):
            assert not self.messages
            self.messages = part.messages
        else:
            assert isinstance(self.messages, list)
            self.messages += part.messages
        self.size_bytes += part.size_bytes

    def seal(self, identity: ProducerIdentity) -> None:
        """Close the batch and encode its records for its present queue and sequence."""
        self.open = False
        if self._sealed_as == (self.queue, self.sequence):
            return
        messages = self.messages
        if isinstance(messages, list):
            self._encode_messages(messages, identity)
        elif _waits(messages.pattern.property_string):
            self._encode_messages(list(messages), identity)
        else:
            self._encode_bodies(messages, identity)
        self._sealed_as = self.queue, self.sequence

    def _encode_bodies(self, bodies: Bodies, identity: ProducerIdentity) -> None:
        if not isinstance(self.ids, UniqueIdRow):
            self.ids = identity.ids.row(len(bodies))
        sequence = self._sequence_property(identity.producer_id, 0, len(bodies))
        born = self._born_unix_ms(identity), identity.host
        self.records, self.sizes = bodies.encode(self.queue.number, born, self.ids, sequence)

    def _encode_messages(self, messages: list[Message], identity: ProducerIdentity) -> None:
        born_ms = self._born_unix_ms(identity)
        strings = [message.property_string for message in messages]
        if not self.ids:
            self.ids = identity.ids.row(len(messages))
            self.split_by_broker = _waits(b"".join(strings))
        bodies = [message.body for message in messages]
        flags = [message.sys_flag for message in messages]
        if not self.split_by_broker and isinstance(self.ids, UniqueIdRow):
            topic, _, number = self.queue
            found = encode_in_core(
                BodyOrigin(topic, number, born_ms, identity.host),
                bodies,
                self.ids,
                strings=strings,
                first_extra=self._sequence_property(identity.producer_id, 0, len(bodies)),
                sys_flags=flags if any(flags) else None,
            )
            if found is not None:
                self.records, self.sizes = found
                return
        alike = len(messages) >= _COLUMN_MIN and not self.split_by_broker and len(set(strings)) == 1
        if alike and isinstance(self.ids, UniqueIdRow):
            topic, _, number = self.queue
            self.records, self.sizes = encode_bodies(
                BodyOrigin(topic, number, born_ms, identity.host, strings[0]),
                bodies,
                self.ids,
                first_extra=self._sequence_property(identity.producer_id, 0, len(bodies)),
                sys_flags=flags if any(flags) else None,
            )
        else:
            self.records, self.sizes = encode_run(
                self.queue.topic,
                self.queue.number,
                zip(bodies, self._properties(identity.producer_id), strict=True),
                born_timestamp_ms=born_ms,
                born_host=identity.host,
                sys_flag=flags,
            )

    def _born_unix_ms(self, identity: ProducerIdentity) -> int:
        """Return when the batch was opened, in Unix milliseconds by the present wall clock."""
        return self.born_ms + ahead_ms(identity.clock)

    def _properties(self, producer_id: int) -> list[bytes]:
        """Return the property string of each record."""
        strings = [
            _UNIQ_KEY % (unique, message.property_string)
            for unique, message in zip(self.ids, self.messages, strict=True)
        ]
        if self.sequence is not None:
            count = len(strings)
            rows = range(count) if self.split_by_broker else (0,)
            size = 1 if self.split_by_broker else count
            for row in rows:
                sequence = self._sequence_property(producer_id, row, size)
                strings[row] = _NUMBERED % (
                    self.ids[row],
                    sequence,
                    self.messages[row].property_string,
                )
        return strings

    def _sequence_property(self, producer_id: int, row: int, count: int) -> bytes:
        """Return the sequence property for COUNT records from index ROW on; empty if the batch has no sequence."""
        if self.sequence is None:
            return b""
        epoch, first = self.sequence
        return encode_pair(PRODUCER_SEQUENCE, f"{producer_id:x}:{epoch}:{first + row}:{count}")

    def request(
        self, durability: int, producer_id: int, *, no_reply: bool = False
    ) -> pb.ProduceRun:
        """Return the request to the broker. NO_REPLY: the broker sends no acknowledgement."""
        request = pb.ProduceRun(
            topic=self.queue.topic,
            queue=self.queue.number,
            records=self.records,
            sizes=self.sizes,
            durability=durability,  # type: ignore[arg-type]  # the stub wants the enum's wrapper
            no_reply=no_reply,
        )
        if self.sequence is not None:
            request.producer_id = producer_id
            request.producer_epoch, request.first_sequence = self.sequence
        return request

    @property
    def senders(self) -> int:
        """Number of senders that wait for its result."""
        return sum(part.senders for part in self.parts)

    def middle(self, *, within_a_sender: bool) -> int:
        """Return the index of the message before which to cut the batch into halves; 0: it cannot be cut.

        The cut is between messages of two senders, unless WITHIN_A_SENDER.
        """
        count = len(self.messages)
        if within_a_sender:
            return count // 2
        cuts: list[int] = []
        begin = 0
        for part in self.parts:
            end = begin + len(part.messages)
            if begin:
                cuts.append(begin)
            if part.senders > 1 and begin < count // 2 < end:
                cuts.append(count // 2)
            begin = end
        return min(cuts, key=lambda at: abs(count - 2 * at), default=0)

    def split(self, at: int) -> tuple[ProducerBatch, ProducerBatch]:
        """Return two batches: the messages before index AT, and the others. Their sequence numbers do not change."""
        first, second = self._part(0, at), self._part(at, len(self.messages))
        begin = 0
        for part in self.parts:
            end = begin + len(part.messages)
            if end <= at:
                first.add(part)
            elif begin >= at:
                second.add(part)
            else:
                before, after = part.cut(at - begin)
                first.add(before)
                second.add(after)
            begin = end
        return first, second

    def _part(self, begin: int, end: int) -> ProducerBatch:
        """Return a batch without messages, with the ids and the sequence of the messages from BEGIN up to END."""
        part = ProducerBatch(self.queue, self.born_ms, self.on_done)
        part.open = False
        part.ids = self.ids[begin:end]
        part.flush_requested, part.pinned = self.flush_requested, self.pinned
        part.maybe_stored, part.split_by_broker = self.maybe_stored, self.split_by_broker
        if self.sequence is not None:
            part.sequence = BatchSequence(self.sequence.epoch, self.sequence.first + begin)
        return part

    def succeed(self, reply: pb.ProduceReply) -> None:
        """Give all senders their receipts, as REPLY has them."""
        timed = [message.timed for message in self.messages] if reply.due_ms else ()
        self._acknowledge(
            BatchReceipts(self.queue, self.ids, self.sizes, reply, reply.store_host, timed)
        )

    def leave(self) -> None:
        """Give all senders receipts without offsets: the batch was sent, and the broker does not acknowledge it."""
        self._acknowledge(BatchReceipts(self.queue, self.ids, self.sizes, None, ""))

    def _acknowledge(self, receipts: BatchReceipts) -> None:
        self.records = b""
        first = 0
        for part in self.parts:
            part.acknowledge(receipts, first)
            first += len(part.messages)
        self._end()

    def fail(self, error: PocketMQError) -> None:
        """Raise ERROR to all senders."""
        self.records = b""
        for part in self.parts:
            part.fail(error)
        self._end()

    def _end(self) -> None:
        self.done = True
        self.on_done(self)
