"""The road of a send, the same for both faces: interceptors, route, serializers, compression, then the sender.

Thread contract: the client's event loop owns it; `many`, `transaction` and the intake are for any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from ...proto.errors import InvalidArgument
from ..config import ProducerConfig
from ..draft import NO_VALUE, Draft
from ..message import ManyParts, Message, MessageParts
from ..session import Session
from .checking import Checker, Transacting
from .intake import Intake
from .interceptors import Sending
from .metrics import ProducerMetrics
from .outcome import Watch
from .queue_choice import queue_choice
from .receipt import Receipt
from .route_gate import RouteGate
from .sender import Sender
from .transaction import AsyncTransaction


class Road:
    """The parts of one producer between its face and the wire."""

    def __init__(self, config: ProducerConfig, session: Session, checker: Checker | None) -> None:
        choice = queue_choice(
            config.queue_choice,
            clock=session.clock,
            random=session.random,
            run_bytes=config.run_bytes_max,
        )
        self._config = config
        self.intake = Intake(config)
        self.gate = RouteGate(session, min(config.route_timeout_ms, config.max_block_ms))
        self.sender = Sender(config, session, choice)
        self._transacting = Transacting(config, session, checker)

    async def start(self) -> None:
        """Get ready to send."""
        await self.sender.start()
        self._transacting.start()

    async def close(self, timeout_ms: int) -> None:
        """Deliver what is under way for up to TIMEOUT_MS, then disconnect, and close the interceptors."""
        self._transacting.close()
        already = self.sender.closed
        await self.sender.close(timeout_ms)
        if not already:
            self.intake.interceptors.close()

    async def send(self, message: object, value: Any, parts: MessageParts) -> Receipt:
        """Send what the arguments of a face's `send` ask for; return its receipt once it is acknowledged."""
        self.sender.check_open()
        sending = self.intake.offered(message, value, parts)
        with self.intake.telling(sending):
            if isinstance(sending, Draft):
                await self.gate.wait(sending.topic)
            taken = self.intake.message(sending)
            size_bytes = await self._room(taken)
        return await self._accept(sending, taken, size_bytes)

    async def _room(self, message: Message) -> int:
        """Wait for room for MESSAGE; return the bytes that it takes."""
        size_bytes = self.sender.size_of(message)
        await self.sender.budget.take_within(size_bytes, self._config.max_block_ms)
        return size_bytes

    async def _accept(self, sending: Sending, taken: Message, size_bytes: int) -> Receipt:
        outcome: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        watched = self.intake.watched(sending, outcome)
        self.sender.accept(taken, size_bytes, watched)
        return await outcome

    def transaction(self, message: object, value: Any, parts: MessageParts) -> AsyncTransaction:
        """Return a transaction of what the arguments ask for, which has not begun."""
        sending = self.intake.offered(message, value, parts)
        with self.intake.telling(sending):
            taken = self.intake.message(sending)
            return self._transacting.transaction(taken, partial(self._send_half, sending))

    async def _send_half(self, sending: Sending, half: Message) -> Receipt:
        with self.intake.telling(sending):
            self.sender.check_open()
            size_bytes = await self._room(half)
        return await self._accept(sending, half, size_bytes)

    def metrics(self) -> ProducerMetrics:
        """Return what was done so far."""
        return ProducerMetrics.of(self.sender.counters, self._config.buffer_memory)

    def many(
        self, messages: object, values: Any, parts: ManyParts
    ) -> tuple[Sequence[Message], Watch | None]:
        """Return what the arguments of a face's `send_many` ask for, as it goes to the broker, and what tells the
        interceptors of it. Raises InvalidArgument for what is no message.
        """
        offered, taken = self._many(messages, values, parts)
        return taken, self.intake.interceptors.watch(offered)

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
        row = list(messages)  # A copy: the caller may go on with his list while it is sent.
        plain = self.intake.plain_bytes
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
        if not self.intake.interceptors:
            bodies = self.intake.bodies(topic, values, parts)
            return bodies, bodies
        drafts = self.intake.drafts(topic, values, parts)
        return drafts, [self.intake.message(draft) for draft in drafts]

    def _many_singly(self, row: list[Message]) -> tuple[Sequence[Sending], Sequence[Message]]:
        for message in row:
            if not isinstance(message, Message):
                raise InvalidArgument(
                    f"send_many takes Messages, not {type(message).__name__}: write Message(topic, body)",
                    field="messages",
                )
        offered = [self.intake.offered_message(message) for message in row]
        return offered, [self.intake.message(message) for message in offered]
