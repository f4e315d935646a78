"""The choice of a replica with `read_from="any"`: a follower, if it can answer.

    choice = FollowerChoice(session, broker)
    reply = await choice.ask(question)      None: ask the master

A follower returns messages that it knows to be confirmed, and refuses other requests. Its errors say nothing about the
broker. For example, an offset that it does not have may be the next message, or may exist only on the master. So errors
of followers are ignored. After one, the master is asked for MASTER_MS, then another follower. Without followers the
master is always asked.
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
        """Call QUESTION with a follower; return its result. None: there is no follower now, or QUESTION failed."""
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
    """One FollowerChoice per broker, or per queue, so that requests are spread. Not thread-safe."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._choices: dict[tuple[str, Queue | None], FollowerChoice] = {}

    def of(self, broker: str, queue: Queue | None = None) -> FollowerChoice:
        """Return the choice for BROKER, or for its QUEUE."""
        found = self._choices.get((broker, queue))
        if found is None:
            found = self._choices[broker, queue] = FollowerChoice(self._session, broker)
        return found
