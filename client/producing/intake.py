"""The way from what an application gives to the messages that are sent: interceptors, the gate, serializers,
compression, in this order.

At the gate a producer waits for the route of the topic, so that nothing is serialized for a topic that is not there. A
plain message, small and without interceptors, needs none of this: `plain_bytes` tells, so that it costs one comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...proto.configuration import nearest
from ...proto.errors import ClientClosed, InvalidArgument, PocketMQError
from ..compression import Compressor
from ..config import ProducerConfig
from ..message import NO_VALUE, ManyParts, Message, MessageParts, UnserializedMessage
from ..serialization import key_encoder, value_encoder
from ..session import Session
from .bodies import Bodies, check_count, checked_bodies
from .interceptors import Interceptors, Sending
from .receipt import SendOutcome, Watch


class Intake:
    """The way into one producer. Any number of threads may use it, if its interceptors and serializers allow that."""

    def __init__(self, config: ProducerConfig, session: Session) -> None:
        self.interceptors = Interceptors(config.interceptors)
        self.gate = RouteGate(session, min(config.route_timeout_ms, config.max_block_ms))
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

        Raises SerializationFailed, and what Message does.
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

    def _offered_message(self, message: Message) -> Message:
        """Return what is to be sent instead of MESSAGE after the interceptors, as a Message."""
        sending = self.interceptors.on_send(message)
        return self._serialized(sending) if isinstance(sending, UnserializedMessage) else sending

    def message(self, sending: Sending) -> Message:
        """Return SENDING as it goes to the broker. Raises SerializationFailed, and what Message does."""
        message = self._serialized(sending) if isinstance(sending, UnserializedMessage) else sending
        return self._compressor.compressed(message)

    def _serialized(self, draft: UnserializedMessage) -> Message:
        body = self._encode_value(draft.topic, draft.value)
        key = None if draft.key is None else self._encode_key(draft.topic, draft.key)
        return draft.message(body, key)

    def many(
        self, messages: object, values: Any, parts: ManyParts
    ) -> tuple[Sequence[Message], Watch | None]:
        """Return what the arguments of a face's `send_many` ask for, as it goes to the broker, and what tells the
        interceptors of it. Raises InvalidArgument for what is no message.
        """
        offered, taken = self._many(messages, values, parts)
        return taken, self.interceptors.watch(offered)

    def _many(
        self, messages: object, values: Any, parts: ManyParts
    ) -> tuple[Sequence[Sending], Sequence[Message]]:
        """Return them after the interceptors, and as they go to the broker: mostly one object."""
        if isinstance(messages, str):
            return self._many_values(messages, values, parts)
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            raise InvalidArgument(
                "send_many takes several messages: write send_many([message]) or send(message)",
                field="messages",
            )
        if values is not NO_VALUE or parts:
            raise InvalidArgument(
                "send_many(messages, …): what goes along stands in the messages; write send_many(topic, values, …)",
                field="messages",
            )
        row = list(messages)  # A copy: the caller may continue with its list while it is sent.
        plain = self.plain_bytes
        for message in row:
            if type(message) is not Message or len(message.body) > plain:
                return self._many_singly(row)
        return row, row

    def _many_values(
        self, topic: str, values: Any, parts: ManyParts
    ) -> tuple[Sequence[Sending], Sequence[Message]]:
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise InvalidArgument(
                f"send_many({topic!r}, …) takes a list of values: write send(topic, value) for a single one",
                field="values",
            )
        if not self.interceptors:
            bodies = self._bodies(topic, values, parts)
            return bodies, bodies
        drafts = self._drafts(topic, values, parts)
        return drafts, [self.message(draft) for draft in drafts]

    def _many_singly(self, row: list[Message]) -> tuple[Sequence[Sending], Sequence[Message]]:
        for message in row:
            if not isinstance(message, Message):
                raise InvalidArgument(
                    f"send_many takes Messages, not {type(message).__name__}: write Message(topic, body)",
                    field="messages",
                )
        offered = [self._offered_message(message) for message in row]
        return offered, [self.message(message) for message in offered]

    def _bodies(self, topic: str, values: Iterable[Any], parts: ManyParts) -> Bodies:
        """Return VALUES for TOPIC as they go to the broker. Raises SerializationFailed, and what Message does."""
        keys, rest = _without_keys(parts)
        pattern = Message(topic, b"-", **rest)
        bodies = list(values)  # A copy: the caller may continue with its list while it is sent.
        if self._encodes_values or set(map(type, bodies)) - {bytes}:
            bodies = [self._encode_value(topic, value) for value in bodies]
        words = None if keys is None else [self._encode_key(topic, key) for key in keys]
        return checked_bodies(pattern, bodies, words).compressed(self._compressor)

    def _drafts(self, topic: str, values: Iterable[Any], parts: ManyParts) -> list[Sending]:
        """Return VALUES for TOPIC after the interceptors."""
        keys, rest = _without_keys(parts)
        row = list(values)
        words = [None] * len(row) if keys is None else list(keys)
        check_count(row, words)
        on_send = self.interceptors.on_send
        return [
            on_send(UnserializedMessage(topic, value, key=key, **rest))
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

    def watched(self, sending: Sending, outcome: SendOutcome) -> SendOutcome:
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
        return UnserializedMessage(message, value, **parts)
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


class RouteGate:
    """Where those who send to a topic wait for its route, up to TIMEOUT_MS.

    They pass in the order in which they came, and who comes later does not overtake them. Once a route was found the
    gate stands open: that it is lost later is the sender's affair.

    Any thread may ask `is_open`; waiting is for the client's event loop. Bounds: a name for each topic ever written.
    """

    def __init__(self, session: Session, timeout_ms: int) -> None:
        self._session = session
        self._timeout_ms = timeout_ms
        self._found: set[str] = set()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def is_open(self, topic: str) -> bool:
        """Was a route to TOPIC found, and nobody waits for it any more?"""
        return topic in self._found

    async def wait(self, topic: str) -> None:
        """Return once there is a route to TOPIC. Raises RouteNotFound."""
        if topic in self._found:
            return
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(topic)
        if waiting is None:
            self._waiting[topic] = [passed]
            self._session.tasks.spawn(self._find(topic))
        else:
            waiting.append(passed)
        await passed

    async def _find(self, topic: str) -> None:
        try:
            await self._session.find_route(topic, self._timeout_ms)
        except BaseException as error:  # Also a cancellation: the producer is closed.
            closed = ClientClosed("the producer was closed before it could take the message")
            for passed in self._waiting.pop(topic):
                if not passed.done():
                    passed.set_exception(error if isinstance(error, PocketMQError) else closed)
            if not isinstance(error, PocketMQError):
                raise
        else:
            self._let_pass(topic)

    def _let_pass(self, topic: str) -> None:
        """Let those pass who wait, and open the gate when nobody does: they run before what is called next."""
        waiting = self._waiting[topic]
        if not waiting:
            del self._waiting[topic]
            self._found.add(topic)
            return
        self._waiting[topic] = []
        for passed in waiting:
            if not passed.done():
                passed.set_result(None)
        asyncio.get_running_loop().call_soon(self._let_pass, topic)
