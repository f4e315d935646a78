"""Prepares what an application passes to `send`: interceptors, the wait for the route, serializers, compression.

They run in this order. A producer waits for the route of the topic before it serializes, so that nothing is serialized
for a topic that does not exist. A Message that is small needs none of these steps if there are no interceptors.
`Preparation.plain_bytes` is the limit, so the check costs one comparison.
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


class Preparation:
    """Prepares the messages of one producer. Thread-safe, if the interceptors and serializers are."""

    def __init__(self, config: ProducerConfig, session: Session) -> None:
        self.interceptors = Interceptors(config.interceptors)
        self.gate = RouteWaiter(session, min(config.route_timeout_ms, config.max_block_ms))
        self._encode_value = value_encoder(config.value_serializer)
        self._encode_key = key_encoder(config.key_serializer)
        self._encodes_values = config.value_serializer != "bytes"
        self._encodes_keys = config.key_serializer != "str"
        self._compressor = Compressor(config.compression, config.compress_above_bytes)
        #: A Message whose body is not larger than this needs no preparation.
        self.plain_bytes: float = -1 if self.interceptors else self._compressor.above_bytes

    def intercepted(self, message: object, value: Any, parts: MessageParts) -> Sending:
        """Return what the interceptors make of the arguments of `send`: (message), or (topic, value, …)."""
        return self.interceptors.on_send(_parsed(message, value, parts))

    def prepare(self, topic: str, value: Any, parts: MessageParts) -> Message:
        """Return the final message with VALUE for TOPIC, and with PARTS. Calls no interceptors.

        Raises SerializationFailed, and the errors of Message.
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

    def _intercepted_message(self, message: Message) -> Message:
        """Return what the interceptors make of MESSAGE, serialized if it is a draft."""
        sending = self.interceptors.on_send(message)
        return self._serialized(sending) if isinstance(sending, UnserializedMessage) else sending

    def final(self, sending: Sending) -> Message:
        """Return the message to send for SENDING. Raises SerializationFailed, and the errors of Message."""
        message = self._serialized(sending) if isinstance(sending, UnserializedMessage) else sending
        return self._compressor.compressed(message)

    def _serialized(self, draft: UnserializedMessage) -> Message:
        body = self._encode_value(draft.topic, draft.value)
        key = None if draft.key is None else self._encode_key(draft.topic, draft.key)
        return draft.message(body, key)

    def prepare_many(
        self, messages: object, values: Any, parts: ManyParts
    ) -> tuple[Sequence[Message], Watch | None]:
        """Return the final messages for the arguments of `send_many`, and what reports their results to interceptors.

        Raises InvalidArgument for wrong arguments, SerializationFailed, and the errors of Message.
        """
        intercepted, final = self._prepare_many(messages, values, parts)
        return final, self.interceptors.watch(intercepted)

    def _prepare_many(
        self, messages: object, values: Any, parts: ManyParts
    ) -> tuple[Sequence[Sending], Sequence[Message]]:
        """Return the messages as interceptors returned them, and the final messages: often the same object."""
        if isinstance(messages, str):
            return self._many_values(messages, values, parts)
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            raise InvalidArgument(
                "send_many takes a list of messages: write send_many([message]) or send(message)",
                field="messages",
            )
        if values is not NO_VALUE or parts:
            raise InvalidArgument(
                "send_many(messages) takes no other arguments: set them in the messages, or write"
                " send_many(topic, values, …)",
                field="messages",
            )
        row = list(messages)  # A copy, because the caller may change its list while it is sent.
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
                f"send_many({topic!r}, …) takes a list of values: write send(topic, value) for one value",
                field="values",
            )
        if not self.interceptors:
            bodies = self._bodies(topic, values, parts)
            return bodies, bodies
        drafts = self._drafts(topic, values, parts)
        return drafts, [self.final(draft) for draft in drafts]

    def _many_singly(self, row: list[Message]) -> tuple[Sequence[Sending], Sequence[Message]]:
        for message in row:
            if not isinstance(message, Message):
                raise InvalidArgument(
                    f"send_many takes Messages, not {type(message).__name__}: write Message(topic, body)",
                    field="messages",
                )
        intercepted = [self._intercepted_message(message) for message in row]
        return intercepted, [self.final(message) for message in intercepted]

    def _bodies(self, topic: str, values: Iterable[Any], parts: ManyParts) -> Bodies:
        """Return the final messages with VALUES for TOPIC. Raises SerializationFailed, and the errors of Message."""
        keys, rest = _without_keys(parts)
        pattern = Message(topic, b"-", **rest)
        bodies = list(values)  # A copy, because the caller may change its list while it is sent.
        if self._encodes_values or set(map(type, bodies)) - {bytes}:
            bodies = [self._encode_value(topic, value) for value in bodies]
        words = None if keys is None else [self._encode_key(topic, key) for key in keys]
        return checked_bodies(pattern, bodies, words).compressed(self._compressor)

    def _drafts(self, topic: str, values: Iterable[Any], parts: ManyParts) -> list[Sending]:
        """Return what the interceptors make of VALUES for TOPIC."""
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
    def reporting_errors(self, sending: Sending) -> Iterator[None]:
        """Report an error in the block to the interceptors: SENDING was not sent."""
        try:
            yield
        except BaseException as error:
            self.interceptors.on_acknowledgement(None, error, sending)
            raise

    def observed(self, sending: Sending, outcome: SendOutcome) -> SendOutcome:
        """Return a result that notifies the interceptors about SENDING, then settles `outcome`."""
        return self.interceptors.observed((sending,), outcome)


def check_parts(parts: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise InvalidArgument if the name of one of PARTS is not in KNOWN."""
    for name in parts.keys() - known.keys():
        raise InvalidArgument(f"a message has no part {name!r}{nearest(name, known)}", field=name)


def _without_keys(parts: ManyParts) -> tuple[Iterable[Any] | None, dict[str, Any]]:
    """Return the keys in PARTS, and the rest."""
    rest: dict[str, Any] = {name: part for name, part in parts.items() if name != "keys"}
    return parts.get("keys"), rest


def _parsed(message: object, value: Any, parts: MessageParts) -> Sending:
    """Return the message or draft for the arguments of `send`."""
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
            "send(message) takes no other arguments: set them in the Message, or write send(topic, value, …)",
            field="message",
        )
    return message


class RouteWaiter:
    """Lets senders wait until the route of their topic is known, up to TIMEOUT_MS.

    Waiting senders continue in the order in which they called `wait`, and later senders do not overtake them. A topic
    whose route was found once never waits here again: if the route is lost later, `Sender` waits for it.

    Any thread may call `is_open`. Waiting is for the client's event loop. Limit: one name per topic that was sent to.
    """

    def __init__(self, session: Session, timeout_ms: int) -> None:
        self._session = session
        self._timeout_ms = timeout_ms
        self._found: set[str] = set()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def is_open(self, topic: str) -> bool:
        """Return whether the route to TOPIC was found and no sender waits for it any more."""
        return topic in self._found

    async def wait(self, topic: str) -> None:
        """Return when the route to TOPIC is known. Raises RouteNotFound."""
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
        """Let the waiting senders continue, and repeat after they have run. If none waits, open TOPIC for all."""
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
