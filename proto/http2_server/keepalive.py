"""Asks peers that are silent whether they are there, and gives up those that do not answer.

Nobody is given up who was not asked: where this side was held up, silence is its own.
"""

from __future__ import annotations

from collections.abc import Callable

from ..deadlines import Deadline, Deadlines
from ..rpc import Limits


class Keepalive:
    """Watches one connection: `heard` when anything came, `stop` at its end. PING asks the peer, GIVE_UP ends it."""

    def __init__(
        self,
        limits: Limits,
        deadlines: Deadlines,
        now_ms: Callable[[], int],
        ping: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._deadlines = deadlines
        self._now_ms = now_ms
        self._ping = ping
        self._give_up = give_up
        self._heard_ms = now_ms()
        #: The peer was asked, and nothing came since.
        self._asked = False
        self._next = self._look_in(limits.keepalive_ms)

    def heard(self, now_ms: int) -> None:
        """Note that something came at NOW_MS."""
        self._heard_ms = now_ms
        self._asked = False

    def stop(self) -> None:
        """Watch no longer."""
        self._next.cancel()

    def _look_in(self, wait_ms: int) -> Deadline:
        return self._deadlines.add(self._now_ms() + max(wait_ms, 1), self._look)

    def _look(self) -> None:
        limits = self._limits
        silent_ms = self._now_ms() - self._heard_ms
        if self._asked:
            self._give_up()
        elif silent_ms >= limits.keepalive_ms:
            self._asked = True
            self._ping()
            self._next = self._look_in(limits.keepalive_timeout_ms)
        else:
            self._next = self._look_in(limits.keepalive_ms - silent_ms)
