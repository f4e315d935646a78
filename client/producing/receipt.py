"""What a producer gets back: where each message lies, and how safe it is.

One reply acknowledges a whole run; `Receipts` makes the receipt of a message when it is looked at, so that a
sender of a hundred thousand messages does not pay for a hundred thousand receipts that it never reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, Literal, NamedTuple, overload

from ...proto.errors import ConfigError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import offset_message_id
from ...proto.recall_handle import encode_handle
from ...proto.record import Host
from ..queue import Queue

#: What a sender waits for: nothing, the log's pages (survives kill -9), the device, the device here and the replicas.
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
        hint += ', which needs replication: "disk" is the safest that one broker gives'
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
    broker: str
    queue: int
    queue_offset: int
    log_offset: int
    #: The id that the producer gave the message (property UNIQ_KEY).
    message_id: str
    #: What was reached; never less than what was asked for.
    durability: Durability
    store_timestamp_ms: int
    #: "address:port" of the broker as the record has it; empty if the broker did not say.
    store_host: str
    #: When it will be delivered, in Unix milliseconds of the broker's clock; 0: it was delivered at once.
    due_ms: int = 0
    #: What `recall` takes to have it back before it is due; empty unless it has a time of its own (not a level's).
    recall_handle: str = ""
    #: An earlier try had been stored, whose acknowledgement was lost: the broker dropped this one.
    repeated: bool = False

    @property
    def offset_message_id(self) -> str:
        """The id that tells where the message lies, which look-ups without a topic understand."""
        address, _, port = self.store_host.rpartition(":")
        host = Host.parse(address.strip("[]"), int(port))
        return offset_message_id(host.address, host.port, self.log_offset)


class RunReceipts:
    """The acknowledgement of a run: the broker's reply, and what the client knows of its messages."""

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
        """Return the receipt of the message with INDEX in the run."""
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

    def __init__(self, parts: Sequence[tuple[RunReceipts, int, int]]) -> None:
        """PARTS are (run, index of the first message in it, number of messages)."""
        self._parts = parts
        self._begins = list(accumulate((count for _, _, count in parts), initial=0))

    @classmethod
    def joined(cls, several: Iterable[Receipts]) -> Receipts:
        """Return the receipts of SEVERAL in one row."""
        return cls([part for receipts in several for part in receipts._parts])

    def singles(self) -> Iterator[tuple[RunReceipts, int, int]]:
        """Yield each message as a part of its own, in order."""
        for run, first, count in self._parts:
            for index in range(first, first + count):
                yield run, index, 1

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
        run, first, _ = self._parts[part]
        return run.receipt(first + position - self._begins[part])

    def __iter__(self) -> Iterator[Receipt]:
        for run, first, count in self._parts:
            for index in range(first, first + count):
                yield run.receipt(index)

    def __repr__(self) -> str:
        return f"<Receipts of {len(self)} messages in {len(self._parts)} runs>"
