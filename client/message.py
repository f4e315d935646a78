"""A message to send: checked when it is made, immutable afterwards, so that nothing can fail it later but the broker.

`property_string` is the message's properties as a record stores them (properties.py), but for UNIQ_KEY, which the
producer adds. It is worked out here because a message is made once and may be sent, retried and sent again.

Cost: 0.7 µs a message with topic and body alone, 2 µs with a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from ..proto.errors import InvalidArgument, MessageTooLarge
from ..proto.properties import DELAY, KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY, encode_properties
from ..proto.topics import MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX, check_topic
from .queue import Queue

#: Room that the producer's own property takes: UNIQ_KEY, two separators, 34 digits.
UNIQUE_KEY_SIZE: Final = len(UNIQ_KEY) + 1 + 34 + 1
#: Delay levels of a broker with default settings; a broker may have more.
DELAY_LEVEL_MAX: Final = 18

_OWN_ARGUMENT = {KEYS: "key=… or keys=…", TAGS: "tag=…", DELAY: "delay_level=…"}
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})

_checked_topic = lru_cache(maxsize=4096)(check_topic)


class _Fields(NamedTuple):
    topic: str
    body: bytes
    keys: tuple[str, ...]
    tag: str | None
    properties: Mapping[str, str]
    delay_level: int
    queue: Queue | int | None
    property_string: bytes


class Message(_Fields):
    """BODY for TOPIC, with what may go along:

    KEY or KEYS: words by which the message can be looked up. TAG: one word for consumers to filter by. PROPERTIES:
    text by name, the application's own. DELAY_LEVEL: 1 to 18, delivers later (1 s, 5 s, 10 s, 30 s, 1 m … 10 m,
    20 m, 30 m, 1 h, 2 h); 0 is at once. QUEUE: a queue's number, or a `Queue` where the topic lies on several
    brokers; without it the producer chooses.
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
        queue: Queue | int | None = None,
    ) -> Message:
        if type(body) is not bytes:
            body = _checked_body(body)
        if not 0 < len(body) <= MESSAGE_SIZE_MAX:
            _refuse_body_size(len(body))
        topic = _checked_topic(topic)
        if queue is not None:
            _check_queue(topic, queue)
        if key is None and tag is None and not keys and not properties and not delay_level:
            return tuple.__new__(cls, (topic, body, (), None, _NO_PROPERTIES, 0, queue, b""))
        words = _checked_keys(key, keys)
        own = MappingProxyType(dict(properties)) if properties else _NO_PROPERTIES
        encoded = _property_string(words, tag, own, delay_level)
        return tuple.__new__(cls, (topic, body, words, tag, own, delay_level, queue, encoded))

    @property
    def key(self) -> str | None:
        """The first key."""
        return self.keys[0] if self.keys else None

    def __repr__(self) -> str:
        shown = {"keys": self.keys, "tag": self.tag, "properties": dict(self.properties)}
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
            "body is empty: RocketMQ stores no empty message; send at least one byte", field="body"
        )
    raise MessageTooLarge(
        f"body has {size} bytes, the limit is {MESSAGE_SIZE_MAX}: split it, or store it elsewhere and send its address",
        field="body",
        limit=MESSAGE_SIZE_MAX,
        value=size,
    )


def _check_queue(topic: str, queue: Queue | int) -> None:
    number = queue.number if isinstance(queue, Queue) else queue
    if number < 0:
        raise InvalidArgument(f"queue is {number}, but queues count from 0", field="queue")
    if isinstance(queue, Queue) and queue.topic != topic:
        raise InvalidArgument(
            f"queue {queue} is one of topic {queue.topic!r}, but the message goes to {topic!r}",
            field="queue",
        )


def _checked_keys(key: str | None, keys: Iterable[str]) -> tuple[str, ...]:
    if isinstance(keys, str):
        raise InvalidArgument(f"keys is the text {keys!r}: write key={keys!r}", field="keys")
    words = tuple(keys) if key is None else (key, *keys)
    for word in words:
        if not word or KEY_SEPARATOR in word:
            raise InvalidArgument(
                f"key {word!r}: a key is one word without spaces, which separate keys; give several as keys=[…]",
                field="key",
                value=word,
            )
    return words


def _property_string(
    keys: tuple[str, ...], tag: str | None, own: Mapping[str, str], delay_level: int
) -> bytes:
    pairs: list[tuple[str, str]] = []
    if keys:
        pairs.append((KEYS, KEY_SEPARATOR.join(keys)))
    if tag is not None:
        pairs.append((TAGS, tag))
    if delay_level:
        pairs.append((DELAY, str(_checked_delay_level(delay_level))))
    if own:
        _check_names(own)
        pairs += own.items()
    encoded = encode_properties(pairs)
    if len(encoded) > PROPERTIES_SIZE_MAX - UNIQUE_KEY_SIZE:
        _refuse_properties_size(len(encoded))
    return encoded


def _checked_delay_level(level: int) -> int:
    if not 0 <= level <= DELAY_LEVEL_MAX:
        raise InvalidArgument(
            f"delay_level is {level}, but levels are 1 to {DELAY_LEVEL_MAX} (0: no delay)",
            field="delay_level",
            limit=DELAY_LEVEL_MAX,
            value=level,
        )
    return level


def _check_names(own: Mapping[str, str]) -> None:
    for name, value in own.items():
        if name in _OWN_ARGUMENT:
            raise InvalidArgument(
                f"property {name!r} has an argument of its own: write {_OWN_ARGUMENT[name]}",
                field="properties",
                value=name,
            )
        if name == UNIQ_KEY:
            raise InvalidArgument(
                f"property {name!r} is the message id, which the producer makes; use a key for an id of your own",
                field="properties",
                value=name,
            )
        if not isinstance(value, str):
            raise InvalidArgument(
                f"property {name!r} is {type(value).__name__}, but must be text: write str(…)",
                field="properties",
                value=name,
            )


def _refuse_properties_size(size: int) -> None:
    limit = PROPERTIES_SIZE_MAX - UNIQUE_KEY_SIZE
    raise MessageTooLarge(
        f"keys, tag and properties have {size} bytes together, the limit is {limit}: move data into the body",
        field="properties",
        limit=limit,
        value=size,
    )
