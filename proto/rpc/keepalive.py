"""Keepalive: a silent peer is probed, and its connection closed if it does not answer.

No connection is closed without a probe, because the silence may be this side's own delay.
"""

from __future__ import annotations

from collections.abc import Callable

from .deadlines import Deadline, Deadlines
from .limits import Limits


class Keepalive:
    """Watches one connection: call `note_data` when data arrives, `stop` at its end. PING probes, GIVE_UP ends it."""

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
        #: Was the peer probed since the last data?
        self._asked = False
        self._next = self._look_in(limits.keepalive_ms)

    def note_data(self, now_ms: int) -> None:
        """Note that data arrived at NOW_MS."""
        self._heard_ms = now_ms
        self._asked = False

    def stop(self) -> None:
        """Stop watching."""
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
