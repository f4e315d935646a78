"""What happens to a message before it is sent: interceptors, serializers, compression, in this order.

Between interceptors and serializers a producer waits for the route of the topic (route_gate.py), so that nothing is
serialized for a topic that is not there. A plain message, small and without interceptors, needs none of this:
`plain_bytes` tells, so that it costs one comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...proto.configuration import nearest
from ...proto.errors import InvalidArgument
from ..config import ProducerConfig
from ..draft import NO_VALUE, Draft
from ..message import ManyParts, Message, MessageParts
from ..serialization import key_encoder, value_encoder
from .bodies import Bodies, check_count, checked_bodies
from .compression import Compressor
from .interceptors import Interceptors, Sending
from .outcome import Outcome


class Intake:
    """The way into one producer. Any number of threads may use it, if its interceptors and serializers allow that."""

    def __init__(self, config: ProducerConfig) -> None:
        self.interceptors = Interceptors(config.interceptors)
        self._encode_value = value_encoder(config.value_serializer)
        self._encode_key = key_encoder(config.key_serializer)
        self._encodes_values = config.value_serializer != "bytes"
        self._encodes_keys = config.key_serializer != "str"
        self._compressor = Compressor(config.compression, config.compress_above_bytes)
        #: A Message with a body up to this size is sent as it is.
        self.plain_bytes: float = -1 if self.interceptors else self._compressor.above_bytes

    def offered(self, message: object, value: Any, parts: MessageParts) -> Sending:
        """Return what is to be sent after the interceptors: of `send(message)`, or of `send(topic, value, …)`."""
        return self.interceptors.on_send(_asked(message, value, parts))

    def made(self, topic: str, value: Any, parts: MessageParts) -> Message:
        """Return VALUE for TOPIC with PARTS as it goes to the broker, where no interceptor wants to see it before.

        Raises NotSerializable, and what Message does.
        """
        if self._encodes_values or type(value) is not bytes:
            value = self._encode_value(topic, value)
        if (key := parts.get("key")) is not None and (self._encodes_keys or type(key) is not str):
            parts["key"] = self._encode_key(topic, key)
        try:
            message = Message(topic, value, **parts)
        except TypeError:
            check_parts(parts, MessageParts.__annotations__)
            raise
        return message if len(value) <= self.plain_bytes else self._compressor.compressed(message)

    def offered_message(self, message: Message) -> Message:
        """Return what is to be sent instead of MESSAGE after the interceptors, as a Message."""
        sending = self.interceptors.on_send(message)
        return self._serialized(sending) if isinstance(sending, Draft) else sending

    def message(self, sending: Sending) -> Message:
        """Return SENDING as it goes to the broker. Raises NotSerializable, and what Message does."""
        message = self._serialized(sending) if isinstance(sending, Draft) else sending
        return self._compressor.compressed(message)

    def _serialized(self, draft: Draft) -> Message:
        body = self._encode_value(draft.topic, draft.value)
        key = None if draft.key is None else self._encode_key(draft.topic, draft.key)
        return draft.message(body, key)

    def bodies(self, topic: str, values: Iterable[Any], parts: ManyParts) -> Bodies:
        """Return VALUES for TOPIC as they go to the broker. Raises NotSerializable, and what Message does."""
        keys, rest = _without_keys(parts)
        pattern = Message(topic, b"-", **rest)
        bodies = list(values)  # A copy: the caller may go on with his list while it is sent.
        if self._encodes_values or set(map(type, bodies)) - {bytes}:
            bodies = [self._encode_value(topic, value) for value in bodies]
        words = None if keys is None else [self._encode_key(topic, key) for key in keys]
        return checked_bodies(pattern, bodies, words).compressed(self._compressor)

    def drafts(self, topic: str, values: Iterable[Any], parts: ManyParts) -> list[Sending]:
        """Return VALUES for TOPIC after the interceptors."""
        keys, rest = _without_keys(parts)
        row = list(values)
        words = [None] * len(row) if keys is None else list(keys)
        check_count(row, words)
        on_send = self.interceptors.on_send
        return [
            on_send(Draft(topic, value, key=key, **rest))
            for value, key in zip(row, words, strict=True)
        ]

    @contextmanager
    def telling(self, sending: Sending) -> Iterator[None]:
        """Tell the interceptors of an error in the block: SENDING was not sent."""
        try:
            yield
        except BaseException as error:
            self.interceptors.on_acknowledgement(None, error, sending)
            raise

    def watched(self, sending: Sending, outcome: Outcome) -> Outcome:
        """Return an outcome that tells the interceptors, then OUTCOME, what became of SENDING."""
        return self.interceptors.watched((sending,), outcome)


def check_parts(parts: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise InvalidArgument if one of PARTS, by name, is none of those KNOWN."""
    for name in parts.keys() - known.keys():
        raise InvalidArgument(f"a message has no part {name!r}{nearest(name, known)}", field=name)


def _without_keys(parts: ManyParts) -> tuple[Iterable[Any] | None, dict[str, Any]]:
    """Return the keys in PARTS, and the rest."""
    rest: dict[str, Any] = {name: part for name, part in parts.items() if name != "keys"}
    return parts.get("keys"), rest


def _asked(message: object, value: Any, parts: MessageParts) -> Sending:
    """Return the message or draft that the arguments of `send` ask for."""
    if isinstance(message, str):
        if value is NO_VALUE:
            raise InvalidArgument(
                f"send({message!r}) has no value: write send(topic, value, …), or send(Message(…))",
                field="value",
            )
        check_parts(parts, MessageParts.__annotations__)
        return Draft(message, value, **parts)
    if not isinstance(message, Message):
        raise InvalidArgument(
            f"send takes a Message, or a topic and a value, not {type(message).__name__}: write Message(topic, body)",
            field="message",
        )
    if value is not NO_VALUE or parts:
        raise InvalidArgument(
            "send(message, …): what goes along stands in the Message; write send(topic, value, …) or Message(…)",
            field="message",
        )
    return message
