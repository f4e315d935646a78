"""Received messages: light handles on a batch of fetched records, whose fields are decoded on access.

The reply to a fetch contains records one after the other. `FetchedRun` finds and parses all of them at once with numpy
(record_run.py). A `ReceivedMessage` consists of that batch and an index. A column of the batch becomes a Python list at
the first access. So fields that you do not read cost nothing, and a field that you read costs a list access.

Cost per message: 0.4 µs to find, parse and create it, 0.3 µs to check the CRC of 128 bytes, 0.2 µs to read a body. A
message keeps the whole batch in memory. Its properties are decoded once, in 1 µs. After that, tag, keys and id cost
0.1 µs each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import CorruptRecord
from ..proto.message_id import offset_message_id
from ..proto.properties import (
    DEAD_LETTER_ORIGIN_TOPIC,
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    PRIORITY,
    RETRY_TOPIC,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
    decode_properties,
    whole_number,
)
from ..proto.record import BODY_BYTES_MAX, SYS_COMPRESSED, Record, decode_record, decompress_body
from ..proto.record_run import crc_mismatches, parse_run, walk
from .delivery_time import INSTANT_MAX_MS
from .message import PRIORITY_MAX

#: The default precision of RocketMQ's timer wheel, which is its coarsest one.
_SLOT_MS: Final = 1_000
_DIGITS_MAX: Final = 19


def _number(text: str | None) -> int:
    """Return TEXT as a number; 0 if it is not a number or too large, because senders may write any property."""
    if not text or len(text) > _DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return 0
    return min(int(text), INSTANT_MAX_MS)


#: Makes a value from a topic and a body.
Decode: TypeAlias = Callable[[str, bytes], Any]


def _as_is(topic: str, body: bytes) -> bytes:
    return body


def _ints(column: NDArray[np.int32] | NDArray[np.int64]) -> list[int]:
    values: list[int] = column.tolist()
    return values


class FetchedRun:
    """The records of one fetch or lookup from BROKER, one after the other in DATA. DECODE: (topic, body) to a value.

    Raises CorruptRecord if DATA does not parse as records, and with CHECK_CRCS if a body does not match its CRC. Its
    detail `sound_bytes` is the size of the valid records before the first damaged one.
    """

    def __init__(
        self,
        broker: str,
        data: bytes,
        decode: Decode = _as_is,
        *,
        check_crcs: bool = True,
        body_max_bytes: int = BODY_BYTES_MAX,
    ) -> None:
        self.broker = broker
        self.data = data
        self.decode = decode
        self.body_max_bytes = body_max_bytes
        starts, end = walk(data)
        self.columns = columns = parse_run(data, starts)
        good = columns.well_formed
        if end != len(data) or not good.all():
            sound = end if good.all() else int(starts[int(good.argmin())])
            raise CorruptRecord(
                f"broker {broker} sent damaged records: {len(data)} bytes, which do not parse after byte {sound}",
                field="records",
                broker=broker,
                sound_bytes=sound,
            )
        if check_crcs and len(columns):
            wrong = crc_mismatches(data, columns)
            if wrong.any():
                raise self._wrong(int(wrong.argmax()))

    def _wrong(self, index: int) -> CorruptRecord:
        message = ReceivedMessage(self, index)
        return CorruptRecord(
            f"the body of message {message.queue_offset:,} of {message.stored_topic}, queue {message.queue} of broker"
            f" {self.broker}, does not fit its CRC: read it again, or skip it with seek",
            field="bodyCRC",
            topic=message.stored_topic,
            queue=message.queue,
            broker=self.broker,
            queue_offset=message.queue_offset,
            sound_bytes=self.starts[index],
        )

    def __len__(self) -> int:
        return len(self.columns)

    def body(self, index: int) -> bytes:
        """Return the body of message INDEX.

        Raises CorruptRecord or Unsupported if it cannot be decompressed, MessageTooLarge above body_max_bytes.
        """
        begin, end = self.body_ranges[index]
        if not self.any_compressed:
            return self.data[begin:end]
        return decompress_body(self.data[begin:end], self.sys_flags[index], self.body_max_bytes)

    def messages(self, begin: int = 0, end: int | None = None) -> list[ReceivedMessage]:
        """Return the messages with index BEGIN up to END."""
        make = ReceivedMessage
        return [make(self, index) for index in range(begin, len(self) if end is None else end)]

    def first_at_or_after(self, queue_offset: int) -> int:
        """Return the index of the first message whose queue offset is at least QUEUE_OFFSET."""
        return int(self.columns.queue_offset.searchsorted(queue_offset))

    @cached_property
    def starts(self) -> list[int]:
        return _ints(self.columns.starts)

    @cached_property
    def body_ranges(self) -> list[tuple[int, int]]:
        begins = self.columns.body_start
        return list(zip(begins.tolist(), (begins + self.columns.body_size).tolist(), strict=True))

    @property
    def topic(self) -> str:
        """The topic of the first record."""
        begin = int(self.columns.topic_start[0])
        return self.data[begin : begin + int(self.columns.topic_size[0])].decode(errors="replace")

    @cached_property
    def topic_ranges(self) -> list[tuple[int, int]]:
        begins = self.columns.topic_start
        return list(zip(begins.tolist(), (begins + self.columns.topic_size).tolist(), strict=True))

    @cached_property
    def property_ranges(self) -> list[tuple[int, int]]:
        begins = self.columns.properties_start
        ends = begins + self.columns.properties_size
        return list(zip(begins.tolist(), ends.tolist(), strict=True))

    @cached_property
    def sys_flags(self) -> list[int]:
        return _ints(self.columns.sys_flag)

    @cached_property
    def any_compressed(self) -> bool:
        return bool((self.columns.sys_flag & SYS_COMPRESSED).any())

    @cached_property
    def queues(self) -> list[int]:
        return _ints(self.columns.queue_id)

    @cached_property
    def queue_offsets(self) -> list[int]:
        return _ints(self.columns.queue_offset)

    @cached_property
    def log_offsets(self) -> list[int]:
        return _ints(self.columns.log_offset)

    @cached_property
    def born_ms(self) -> list[int]:
        return _ints(self.columns.born_ms)

    @cached_property
    def store_ms(self) -> list[int]:
        return _ints(self.columns.store_ms)

    @cached_property
    def reconsume_times(self) -> list[int]:
        return _ints(self.columns.reconsume_times)


class ReceivedMessage:
    """A message from a broker. Fields are decoded on access, the properties only once."""

    __slots__ = ("_index", "_known", "_run")

    def __init__(self, run: FetchedRun, index: int) -> None:
        self._run = run
        self._index = index
        self._known: dict[str, str] | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether OTHER is the same message of the same fetch."""
        if not isinstance(other, ReceivedMessage):
            return NotImplemented
        return self._run is other._run and self._index == other._index

    def __hash__(self) -> int:
        return hash((id(self._run), self._index))

    @property
    def stored_topic(self) -> str:
        """The topic from which it was fetched: for a retry, the retry topic."""
        begin, end = self._run.topic_ranges[self._index]
        return self._run.data[begin:end].decode("utf-8", "replace")

    @property
    def topic(self) -> str:
        return self.stored_topic

    @property
    def body(self) -> bytes:
        """The body as sent. Raises CorruptRecord, Unsupported or MessageTooLarge if it cannot be decompressed."""
        run = self._run
        if run.any_compressed:
            return run.body(self._index)
        begin, end = run.body_ranges[self._index]
        return run.data[begin:end]

    @property
    def stored_body(self) -> bytes:
        """The body as it is stored: compressed if the sender has compressed it. Never raises."""
        begin, end = self._run.body_ranges[self._index]
        return self._run.data[begin:end]

    @property
    def value(self) -> Any:
        """The body, converted by the consumer's `value_deserializer` at each access.

        Raises SerializationFailed, and the errors of `body`.
        """
        return self._run.decode(self.topic, self.body)

    @property
    def properties(self) -> dict[str, str]:
        """A copy of all properties, including those of the system."""
        return (self._known or self._decoded()).copy()

    def _decoded(self) -> dict[str, str]:
        """Return the properties, decoded at the first access. Do not change the result."""
        if self._known is None:
            begin, end = self._run.property_ranges[self._index]
            self._known = decode_properties(self._run.data[begin:end])
        return self._known

    @property
    def keys(self) -> tuple[str, ...]:
        text = (self._known or self._decoded()).get(KEYS)
        if text is None:
            return ()
        if KEY_SEPARATOR not in text:
            return (text,)
        return tuple([word for word in text.split(KEY_SEPARATOR) if word])

    @property
    def key(self) -> str | None:
        """The first key."""
        keys = self.keys
        return keys[0] if keys else None

    @property
    def tag(self) -> str | None:
        return (self._known or self._decoded()).get(TAGS)

    @property
    def sharding_key(self) -> str | None:
        """The sharding key, by which the sender chose the queue; None: none."""
        return (self._known or self._decoded()).get(SHARDING_KEY)

    @property
    def priority(self) -> int | None:
        """The priority that the sender set; None: none."""
        number = whole_number((self._known or self._decoded()).get(PRIORITY, ""))
        return number if number is not None and number <= PRIORITY_MAX else None

    @property
    def broker(self) -> str:
        """The name of its broker."""
        return self._run.broker

    @property
    def queue(self) -> int:
        """The number of its queue on that broker."""
        return self._run.queues[self._index]

    @property
    def queue_offset(self) -> int:
        return self._run.queue_offsets[self._index]

    @property
    def log_offset(self) -> int:
        return self._run.log_offsets[self._index]

    @property
    def message_id(self) -> str:
        """The id that the producer set, or else the offset message id."""
        return (self._known or self._decoded()).get(UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id that contains the address of the message: the broker's address and the log offset."""
        host = self.record().store_host
        return offset_message_id(host.address, host.port, self.log_offset)

    @property
    def born_timestamp_ms(self) -> int:
        """When the client sent it, by the client's clock."""
        return self._run.born_ms[self._index]

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored it, by the broker's clock. A scheduled message: when it was delivered."""
        return self._run.store_ms[self._index]

    @property
    def reconsume_times(self) -> int:
        """Number of earlier deliveries that failed."""
        return self._run.reconsume_times[self._index]

    @property
    def due_ms(self) -> int:
        """The delivery time in Unix milliseconds; 0: none. Messages with a delay level have none."""
        properties = self._known or self._decoded()
        out_ms = _number(properties.get(TIMER_OUT_MS))
        if not out_ms:
            return 0
        # The slot of a scheduled message is (out, out + 1 s]. A delivery time outside it was not used.
        deliver_ms = _number(properties.get(TIMER_DELIVER_MS))
        end_ms = min(out_ms + _SLOT_MS, INSTANT_MAX_MS)
        return deliver_ms if out_ms < deliver_ms <= end_ms else end_ms

    @property
    def delay_level(self) -> int:
        """The delay level after which it was delivered or redelivered; 0: none."""
        return _number((self._known or self._decoded()).get(DELAY))

    @property
    def origin_topic(self) -> str:
        """The topic that it was sent to. Of a retry or a dead letter, `topic` may be another one."""
        properties = self._known or self._decoded()
        named = properties.get(DEAD_LETTER_ORIGIN_TOPIC) or properties.get(RETRY_TOPIC)
        return named or self.stored_topic

    def record(self) -> Record:
        """Return the complete record, with every field that RocketMQ stores."""
        return decode_record(self._run.data, self._run.starts[self._index])

    def __repr__(self) -> str:
        begin, end = self._run.body_ranges[self._index]
        place = f"{self.topic}[{self.broker}:{self.queue}]@{self.queue_offset}"
        return f"<ReceivedMessage {place}, {end - begin} bytes>"


class RetriedMessage(ReceivedMessage):
    """A message from the retry topic, as a listener gets it: `topic` is the topic that it was sent to."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        return self.origin_topic
