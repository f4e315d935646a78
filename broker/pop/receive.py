"""One receive, which may wait: an operation of the purgatory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from ...proto.errors import PocketMQError
from ..waiting import Waiting
from .asked import Asked, Popped
from .parts import Taken

logger = logging.getLogger(__name__)


class Server(Protocol):
    """Who serves receives."""

    def take(self, asked: Asked) -> Taken:
        """Deliver what there is for ASKED."""
        ...

    def look_on(self, receive: Receive) -> None:
        """Have RECEIVE look on in a later turn of the loop."""
        ...


class Waits(Protocol):
    """Where receives wait."""

    def try_again(self, receive: Receive) -> bool:
        """Have RECEIVE try again; return whether it was still there."""
        ...

    def over(self, receive: Receive) -> None:
        """Hear that RECEIVE is over."""
        ...


class Receive:
    """What ASKED says, by SERVER, among WAITS; DONE is told the end, once."""

    __slots__ = ("_done", "_is_looking_on", "_server", "_waits", "asked", "waiting")

    def __init__(
        self, server: Server, waits: Waits, asked: Asked, done: Callable[[Popped], None]
    ) -> None:
        self._server = server
        self._waits = waits
        self._done = done
        #: Does a later turn look on? Then nothing else does.
        self._is_looking_on = False
        self.asked = asked
        self.waiting: Waiting | None = None

    def try_complete(self) -> bool:
        if self._is_looking_on:
            return False
        try:
            taken = self._server.take(self.asked)
        except PocketMQError as error:
            self._answer(Popped(error=error))
            return True
        except Exception:  # The edge: who sent what woke it must not pay for one receive's bug.
            logger.exception("receive failed group=%s topic=%s", self.asked.group, self.asked.topic)
            self._answer(
                Popped(error=PocketMQError("the receive failed: the broker's log has why"))
            )
            return True
        if taken.deliveries or taken.buried:
            self._answer(Popped(deliveries=taken.deliveries, filtered_only=not taken.deliveries))
            return True
        if taken.more:
            self._is_looking_on = True
            self._server.look_on(self)
        return False

    def on_deadline(self) -> None:
        self._answer(Popped())

    def look_on(self) -> bool:
        """Look on; return whether that was still asked for."""
        self._is_looking_on = False
        return self._waits.try_again(self)

    def end(self) -> None:
        """Answer with nothing, if it waits."""
        if self.waiting is not None and self.waiting.cancel():
            self.on_deadline()

    def cancel(self) -> None:
        """Let it go without an answer."""
        if self.waiting is not None and self.waiting.cancel():
            self._waits.over(self)

    def _answer(self, popped: Popped) -> None:
        self._waits.over(self)
        self._done(popped)
