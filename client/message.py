"""A message to send: checked when it is created, and immutable afterwards, so that only the broker can refuse it later.

`property_string` has the properties of the message as a record stores them (properties.py), without UNIQ_KEY, which the
producer adds. It is computed here because a message is created once, but may be sent several times.

An application cannot set properties that control the broker. Most of them have an argument or a method, which the error
names. RocketMQ's list of names that an application may not set (MessageConst) is longer; PocketMQ accepts names that
have no effect. Source: store-format.md sections 2.5 and 7.

An `UnserializedMessage` is a message whose key and value are not serialized yet.

Cost: 0.4 µs for a message with topic and body alone, 1.3 µs with a key, 1 µs with a delivery time.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn, TypedDict, Unpack

from ..proto import properties as names
from ..proto.errors import InvalidArgument, MessageTooLarge
from ..proto.properties import (
    KEY_SEPARATOR,
    KEYS,
    PRODUCER_SEQUENCE,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    encode_properties,
)
from ..proto.topics import MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX, check_topic
from .delivery_time import checked_level, delay_in_ms, instant_in_ms
from .queue import Queue

_BY_BROKER = "the broker sets it"
_TIMED = "write delay=… or deliver_at=…"
_IN_TRANSACTION = "send it with producer.transaction(…)"
_RESERVED: Final = {
    names.KEYS: "write key=… or keys=…",
    names.TAGS: "write tag=…",
    names.DELAY: "write delay_level=…",
    names.UNIQ_KEY: "it is the message id, which the producer sets; write key=… for your own id",
    names.SHARDING_KEY: "write sharding_key=…",
    names.PRIORITY: "write priority=…",
    names.TRANSACTION_PREPARED: _IN_TRANSACTION,
    names.PRODUCER_GROUP: _IN_TRANSACTION,
    names.TRANSACTION_ID: _IN_TRANSACTION,
    names.TRANSACTION_CHECK_TIMES: _BY_BROKER,
    names.TRANSACTION_PREPARED_QUEUE_OFFSET: _BY_BROKER,
    names.REAL_TOPIC: f"{_BY_BROKER} for a scheduled message or a half message",
    names.REAL_QUEUE_ID: f"{_BY_BROKER} for a scheduled message or a half message",
    names.RETRY_TOPIC: f"{_BY_BROKER} for a message that is redelivered",
    names.ORIGIN_MESSAGE_ID: f"{_BY_BROKER} for a message that is redelivered",
    names.DEAD_LETTER_ORIGIN_TOPIC: f"{_BY_BROKER} for a dead letter",
    names.DEAD_LETTER_ORIGIN_MESSAGE_ID: f"{_BY_BROKER} for a dead letter",
    names.DEAD_LETTER_REASON: f"{_BY_BROKER} for a dead letter",
    names.INNER_NUM: _BY_BROKER,
    names.INNER_BASE: _BY_BROKER,
    names.MULTI_DISPATCH: _BY_BROKER,
    names.POP_CHECK_POINT: _BY_BROKER,
    names.PROPERTY_CRC: _BY_BROKER,
    names.PRODUCER_SEQUENCE: "the producer sets it",
}
_TIMER_PREFIX: Final = "TIMER_"


def is_reserved(name: str) -> bool:
    """Return whether an application may not set the property NAME."""
    return name in _RESERVED or name.startswith(_TIMER_PREFIX)


def refuse_reserved(own: Mapping[str, str]) -> None:
    """Raise InvalidArgument for a reserved name in OWN, with a hint, and for a value that is not text."""
    for name, value in own.items():
        if is_reserved(name):
            raise InvalidArgument(
                f"property {name!r} is reserved: {_RESERVED.get(name, _TIMED)}",
                field="properties",
                value=name,
            )
        if not isinstance(value, str):
            raise InvalidArgument(
                f"property {name!r} is {type(value).__name__}, but must be text: write str(…)",
                field="properties",
                value=name,
            )


#: Size of the property UNIQ_KEY: its name, two separators, 34 digits.
UNIQUE_KEY_SIZE: Final = len(UNIQ_KEY) + 1 + 34 + 1
#: The same plus PRODUCER_SEQUENCE with the longest numbers: id, epoch, first, count.
OWN_PROPERTIES_SIZE: Final = (
    UNIQUE_KEY_SIZE + len(PRODUCER_SEQUENCE) + 1 + 16 + 10 + 19 + 10 + 3 + 1
)
#: The default of arguments for which None is a value.
NO_VALUE: Final[Any] = object()
#: Size of a record without topic, body and the message's own properties.
RECORD_OVERHEAD: Final = 91 + UNIQUE_KEY_SIZE
#: A priority is an int32 on the wire of official clients.
PRIORITY_MAX: Final = 2**31 - 1
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})

_new = tuple.__new__
_checked_topic = lru_cache(maxsize=4096)(check_topic)


class MessageParts(TypedDict, total=False):
    """The arguments of Message except topic and body. `key` is text, or what the key serializer accepts."""

    key: Any
    keys: Iterable[str]
    tag: str | None
    properties: Mapping[str, str]
    delay_level: int
    delay: timedelta | str | None
    deliver_at: datetime | int | None
    queue: Queue | int | None
    sharding_key: str | None
    priority: int | None


class ManyParts(TypedDict, total=False):
    """The arguments of `send_many(topic, values, …)`: `keys` has one key per value, the others are for all."""

    keys: Iterable[Any] | None
    tag: str | None
    properties: Mapping[str, str]
    delay_level: int
    delay: timedelta | str | None
    deliver_at: datetime | int | None
    queue: Queue | int | None
    sharding_key: str | None
    priority: int | None


_TIMES: Final = {"delay_level", "delay", "deliver_at"}


class _Fields(NamedTuple):
    topic: str
    """Topic of the message."""
    body: bytes
    """Content."""
    keys: tuple[str, ...]
    """Keys, for lookups."""
    tag: str | None
    """Tag, for filters. None: none."""
    properties: Mapping[str, str]
    """Your own properties by name."""
    delay_level: int
    """Delay level; 0: none."""
    delay_ms: int
    """Milliseconds from the time at which the broker takes the message; 0: none."""
    deliver_at_ms: int
    """Delivery time in Unix milliseconds; 0: none."""
    queue: Queue | int | None
    """Queue, or number of a queue, to send to. None: the producer chooses."""
    sharding_key: str | None
    """Messages with the same sharding key go to the same queue."""
    priority: int | None
    """Priority of the message. None: none."""
    sys_flag: int
    """How the body is stored; 0 unless a producer has compressed it."""
    property_string: bytes
    """All properties as they are stored."""


class Message(_Fields):
    """A message to send. Immutable.

    Use at most one of `delay`, `deliver_at` and `delay_level`. The message is never delivered earlier than that.

    Args:
        topic: Topic of the message.
        body: Content, 1 byte to 4 MiB.
        key: Word by which the message can be looked up.
        keys: More such words.
        tag: Word by which consumers can filter.
        properties: Your own properties: text by name.
        delay_level: A delay level of the broker, from 1 on; by default there are 18 (1 s, 5 s, 10 s, 30 s, 1 m … 10 m,
            20 m, 30 m, 1 h, 2 h). Above the last level: the last. 0: no delay. You cannot recall such a message.
        delay: A timedelta, or text like "90s" or "2h30m", from the time at which the broker accepts the message.
        deliver_at: A datetime with a time zone, or Unix milliseconds. The broker refuses a time in the past.
        queue: Number of a queue, or a `Queue` if the topic is on several brokers. None: the producer chooses.
        sharding_key: Messages of a topic with the same sharding key go to the same queue, in the order of sending (see
            producing/queue_selector.py).
        priority: A number from 0 on, which chooses the queue with this number. Official consumers of a topic of type
            PRIORITY get higher queues first. Not with a sharding key, a delay or a transaction.

    Raises:
        InvalidArgument: An argument has a wrong type or value.
        InvalidName: The topic is not a valid name.
        MessageTooLarge: The body, or all properties together, are too large.
        InvalidDelay: The delay or delivery time is not valid.
    """

    __slots__ = ()

    def __new__(  # noqa: PLR0913  a message has these parts; all but two are named
        cls,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        keys: Iterable[str] = (),
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay: timedelta | str | None = None,
        deliver_at: datetime | int | None = None,
        queue: Queue | int | None = None,
        sharding_key: str | None = None,
        priority: int | None = None,
    ) -> Message:
        if type(body) is not bytes:
            body = _checked_body(body)
        if not 0 < len(body) <= MESSAGE_SIZE_MAX:
            _refuse_body_size(len(body))
        topic = _checked_topic(topic)
        if queue is not None:
            _check_queue(topic, queue)
        if (
            key is None
            and tag is None
            and not keys
            and not properties
            and not delay_level
            and delay is None
            and deliver_at is None
            and sharding_key is None
            and priority is None
        ):
            nothing = (_NO_PROPERTIES, 0, 0, 0, queue, None, None, 0, b"")
            return _new(cls, (topic, body, (), None, *nothing))
        words = _checked_keys(key, keys)
        own = MappingProxyType(dict(properties)) if properties else _NO_PROPERTIES
        encoded = b""
        if words or tag is not None or own or sharding_key is not None:
            encoded = _property_string(words, tag, own, sharding_key)
        level = delay_ms = at_ms = 0
        if delay_level or delay is not None or deliver_at is not None:
            level, delay_ms, at_ms = _checked_times(delay_level, delay, deliver_at)
            encoded += _time_property(level, delay_ms, at_ms)
        if priority is not None:
            _check_priority(priority, sharding_key, level or delay_ms or at_ms)
            encoded += b"%s\x01%d\x02" % (names.PRIORITY.encode(), priority)
        if len(encoded) > PROPERTIES_SIZE_MAX - OWN_PROPERTIES_SIZE:
            _refuse_properties_size(len(encoded))
        times = level, delay_ms, at_ms
        place = queue, sharding_key, priority
        return _new(cls, (topic, body, words, tag, own, *times, *place, 0, encoded))

    @property
    def key(self) -> str | None:
        """The first key."""
        return self.keys[0] if self.keys else None

    @property
    def timed(self) -> bool:
        """Whether it has a delay or a delivery time (not a delay level), so that it can be recalled."""
        return bool(self.delay_ms or self.deliver_at_ms)

    @property
    def placed(self) -> bool:
        """Whether its queue, sharding key or priority determines where it is sent."""
        return self.queue is not None or self.sharding_key is not None or self.priority is not None

    def replace(self, **parts: Unpack[MessageParts]) -> Message:
        """Return a copy with other PARTS. A new key replaces all keys, a new time replaces every other time."""
        have: MessageParts = {
            "keys": self.keys,
            "tag": self.tag,
            "properties": self.properties,
            "queue": self.queue,
            "sharding_key": self.sharding_key,
            "priority": self.priority,
        }
        if "key" in parts:
            have["keys"] = ()
        if _TIMES.isdisjoint(parts):
            have["delay_level"] = self.delay_level
            have["delay"] = timedelta(milliseconds=self.delay_ms) if self.delay_ms else None
            have["deliver_at"] = self.deliver_at_ms or None
        return Message(self.topic, self.body, **(have | parts))

    def __repr__(self) -> str:
        shown = {
            "keys": self.keys,
            "tag": self.tag,
            "properties": dict(self.properties),
            "delay_level": self.delay_level,
            "delay_ms": self.delay_ms,
            "deliver_at_ms": self.deliver_at_ms,
            "sharding_key": self.sharding_key,
        }
        if self.priority is not None:
            shown["priority"] = str(self.priority)
        rest = "".join(f", {name}={value!r}" for name, value in shown.items() if value)
        return f"Message({self.topic!r}, <{len(self.body)} bytes>{rest})"


def _checked_body(body: object) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    hint = ": encode it first, for example text.encode()" if isinstance(body, str) else ""
    raise InvalidArgument(f"body is {type(body).__name__}, but must be bytes{hint}", field="body")


def _refuse_body_size(size: int) -> None:
    if size == 0:
        raise InvalidArgument(
            "body is empty: RocketMQ stores no empty messages. Send at least one byte.",
            field="body",
        )
    raise MessageTooLarge(
        f"body has {size} bytes: the limit is {MESSAGE_SIZE_MAX}. Split it, or store it elsewhere and send its URL.",
        field="body",
        limit=MESSAGE_SIZE_MAX,
        value=size,
    )


def _check_queue(topic: str, queue: Queue | int) -> None:
    number = queue.number if isinstance(queue, Queue) else queue
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidArgument(
            f"queue is {queue!r:.80}, but must be a queue's number, or a Queue", field="queue"
        )
    if number < 0:
        raise InvalidArgument(f"queue is {number}: queue numbers start at 0", field="queue")
    if isinstance(queue, Queue) and queue.topic != topic:
        raise InvalidArgument(
            f"queue {queue} is of topic {queue.topic!r}, but the message is for topic {topic!r}",
            field="queue",
        )


def _checked_keys(key: str | None, keys: Iterable[str]) -> tuple[str, ...]:
    if isinstance(keys, str):
        raise InvalidArgument(f"keys is the text {keys!r}: write key={keys!r}", field="keys")
    words = tuple(keys) if key is None else (key, *keys)
    for word in words:
        if not isinstance(word, str):
            _refuse_type("key", word)
        if not word or KEY_SEPARATOR in word:
            raise InvalidArgument(
                f"key is {word!r}: a key must be one word. Spaces separate keys; pass several keys as keys=[…].",
                field="key",
                value=word,
            )
    return words


def _checked_times(
    level: int, delay: timedelta | str | None, deliver_at: datetime | int | None
) -> tuple[int, int, int]:
    """Return delay level, delay and delivery time. At most one of them is not 0."""
    if delay is None and deliver_at is None:
        return checked_level(level) if level else 0, 0, 0
    if level or (delay is not None and deliver_at is not None):
        raise InvalidArgument(
            "a message can have only one time: pass one of delay_level=…, delay=… and deliver_at=…",
            field="delay",
        )
    if delay is not None:
        return 0, delay_in_ms(delay), 0
    assert deliver_at is not None
    return 0, 0, instant_in_ms(deliver_at)


def _time_property(level: int, delay_ms: int, at_ms: int) -> bytes:
    if at_ms:
        return b"TIMER_DELIVER_MS\x01%d\x02" % at_ms
    if delay_ms:
        return b"TIMER_DELAY_MS\x01%d\x02" % delay_ms
    return b"DELAY\x01%d\x02" % level if level else b""


def _check_priority(priority: int, sharding_key: str | None, time: int) -> None:
    """Raise InvalidArgument unless PRIORITY is valid, and there is neither a sharding key nor a TIME."""
    if type(priority) is not int:
        raise InvalidArgument(
            f"priority is {priority!r:.80} ({type(priority).__name__}), but must be a whole number: write int(…)",
            field="priority",
            value=priority,
        )
    if not 0 <= priority <= PRIORITY_MAX:
        raise InvalidArgument(
            f"priority is {priority}: must be 0 to {PRIORITY_MAX}; the highest is delivered first",
            field="priority",
            limit=PRIORITY_MAX,
            value=priority,
        )
    for other, given in (
        ("sharding_key=…", sharding_key is not None),
        ("delay=…, deliver_at=… or delay_level=…", time),
    ):
        if given:
            raise InvalidArgument(
                f"a message with a priority cannot have {other}: omit one of them",
                field="priority",
                value=priority,
            )


def _property_string(
    keys: tuple[str, ...], tag: str | None, own: Mapping[str, str], sharding_key: str | None
) -> bytes:
    for field, word in (("tag", tag), ("sharding_key", sharding_key)):
        if word is not None and not isinstance(word, str):
            _refuse_type(field, word)
    pairs: list[tuple[str, str]] = []
    if keys:
        pairs.append((KEYS, KEY_SEPARATOR.join(keys)))
    if tag is not None:
        if "|" in tag or tag.isspace() or not tag.isprintable():
            _refuse_tag(tag)
        pairs.append((TAGS, tag))
    if sharding_key is not None:
        pairs.append((SHARDING_KEY, sharding_key))
    if own:
        refuse_reserved(own)
        pairs += own.items()
    return encode_properties(pairs)


def _refuse_type(field: str, value: object) -> NoReturn:
    raise InvalidArgument(
        f"{field} is {value!r:.80} ({type(value).__name__}), but must be text: write str(…)",
        field=field,
        value=value,
    )


def _refuse_tag(tag: str) -> None:
    """Raise InvalidArgument for a TAG that a filter cannot name. Characters without width are allowed."""
    if tag.isspace():
        rule = "is blank: use at least one visible character, or no tag"
    elif "|" in tag:
        rule = (
            "contains '|', which separates tags in a filter: use one tag, and a property for more"
        )
    elif any(unicodedata.category(letter) == "Cc" for letter in tag):
        rule = "contains a control character: remove it"
    else:
        return
    raise InvalidArgument(f"tag {tag[:64]!r} {rule}", field="tag", value=tag[:64])


def _refuse_properties_size(size: int) -> None:
    limit = PROPERTIES_SIZE_MAX - OWN_PROPERTIES_SIZE
    raise MessageTooLarge(
        f"keys, tag and properties have {size} bytes together: the limit is {limit}. Move data into the body.",
        field="properties",
        limit=limit,
        value=size,
    )


def record_size(message: Message) -> int:
    """Return the size of the record of MESSAGE in bytes."""
    own = len(message.topic) + len(message.body) + len(message.property_string)
    return own + RECORD_OVERHEAD


@dataclasses.dataclass(frozen=True, slots=True)
class UnserializedMessage:
    """A message whose key and value are not serialized yet: what interceptors get after `send(topic, value, …)`.

    It is checked when it becomes a Message.
    """

    topic: str
    """Topic to send to."""
    value: Any
    """Value, which the value serializer converts to the body."""
    key: Any = None
    """Key, which the key serializer converts to text."""
    keys: Iterable[str] = ()
    """Further keys, for lookups."""
    tag: str | None = None
    """Tag, for filters."""
    properties: Mapping[str, str] = dataclasses.field(default_factory=lambda: _NO_PROPERTIES)
    """Your own properties by name."""
    delay_level: int = 0
    """Delay level; 0: none."""
    delay: timedelta | str | None = None
    """Delay as a timedelta or text such as "5s"."""
    deliver_at: datetime | int | None = None
    """Delivery time: a datetime, or Unix milliseconds."""
    queue: Queue | int | None = None
    """Queue, or number of a queue, to send to. None: the producer chooses."""
    sharding_key: str | None = None
    """Messages with the same sharding key go to the same queue."""
    priority: int | None = None
    """Priority of the message."""

    def replace(self, **parts: Unpack[MessageParts]) -> UnserializedMessage:
        """Return a draft with other PARTS."""
        return dataclasses.replace(self, **parts)

    def message(self, body: bytes, key: str | None) -> Message:
        """Return the message with BODY and KEY. Raises the errors of Message."""
        return Message(
            self.topic,
            body,
            key=key,
            keys=self.keys,
            tag=self.tag,
            properties=self.properties,
            delay_level=self.delay_level,
            delay=self.delay,
            deliver_at=self.deliver_at,
            queue=self.queue,
            sharding_key=self.sharding_key,
            priority=self.priority,
        )
