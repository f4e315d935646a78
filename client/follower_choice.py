"""The choice of a replica where reads may be from any (`read_from="any"`): a follower, if it can answer.

    choice = FollowerChoice(session, broker)
    reply = await choice.ask(question)      None: ask the master

A follower returns what it knows to be confirmed, and refuses the rest. An error of a follower says nothing about the
broker: an offset that it does not have may be the next message, or one that only the master still has. So its error is
ignored, the master is asked for MASTER_MS, and then another follower. Without one it is always the master.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from ..proto import errors
from .connections import Connection
from .queue import Queue
from .session import Session, Value

#: How long the master is asked after a follower could not answer.
MASTER_MS: Final = 5_000


class FollowerChoice:
    """The followers of BROKER, which is in a route of SESSION. Not thread-safe: its event loop owns it."""

    def __init__(self, session: Session, broker: str) -> None:
        self._session = session
        self._broker = broker
        self._turn = session.random.randrange(1 << 16)
        self._from_ms = 0

    async def ask(self, question: Callable[[Connection], Awaitable[Value | None]]) -> Value | None:
        """Return what QUESTION brings from a follower; None: there is none now, it failed, or brought None."""
        session = self._session
        others = session.routes.others(self._broker)
        if not others or session.clock.now_ms() < self._from_ms:
            return None
        try:
            found = await question(session.connections.to(others[self._turn % len(others)]))
        except errors.PocketMQError:
            found = None
        if found is None:
            self._turn += 1
            self._from_ms = session.clock.now_ms() + MASTER_MS
        return found


class FollowerChoices:
    """The choices of SESSION: one per broker, or per queue, so that they spread. Not thread-safe, likewise."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._choices: dict[tuple[str, Queue | None], FollowerChoice] = {}

    def of(self, broker: str, queue: Queue | None = None) -> FollowerChoice:
        """Return that of BROKER, or of its QUEUE."""
        found = self._choices.get((broker, queue))
        if found is None:
            found = self._choices[broker, queue] = FollowerChoice(self._session, broker)
        return found
