"""How much nonsense a connection is allowed: a budget that useful work earns and floods spend.

Every frame that costs its sender nothing and brings nothing is charged: PING, SETTINGS, PRIORITY, WINDOW_UPDATE,
empty and tiny DATA, unknown kinds, resets of what was only just asked, mistakes that make this side reset a stream.
Answers, messages and data that was sent earn. Time gives some back, so that what is rare is never too much, however
long a connection lives: a consumer that cancels its long polls all day is no flood (it waited for each), nor is one
that pings now and then.

Whoever has spent all is told to calm down (ENHANCE_YOUR_CALM), which ends the connection.
"""

from __future__ import annotations

from typing import Final

#: What a connection begins with and never exceeds.
BUDGET: Final = 2_000
#: What a second gives back.
PER_SECOND: Final = 100

#: A frame without use.
IDLE_FRAME: Final = 1
#: A request that was reset in the read that brought it.
RAPID_RESET: Final = 5
#: A mistake that has this side reset a stream: it may have cost a whole request.
MISTAKE: Final = 5
#: Earned by an answer, or a message of one, …
ANSWER: Final = 2
#: … and by every 4 KiB of it that were sent: its receiver opens windows for them.
DATA_SENT_SHIFT: Final = 12
#: Smaller pieces of a body that do not end it are charged: a message that they complete earns as much.
TINY_DATA: Final = 256


class Exhausted(Exception):
    """The budget is spent."""


class Budget:
    """What a connection may still spend. Its owner says the time before it charges."""

    __slots__ = ("_left", "_refilled_ms", "now_ms")

    def __init__(self, now_ms: int) -> None:
        self._left = BUDGET
        self._refilled_ms = now_ms
        #: The time of what is charged now.
        self.now_ms = now_ms

    def earn(self, amount: int) -> None:
        """Give AMOUNT back."""
        left = self._left + amount
        self._left = left if left < BUDGET else BUDGET

    def charge(self, cost: int) -> None:
        """Take COST; raise Exhausted if that is more than is left."""
        self._left -= cost
        if self._left < 0:
            self._refill()
            if self._left < 0:
                raise Exhausted

    def _refill(self) -> None:
        back = (self.now_ms - self._refilled_ms) * PER_SECOND // 1000
        self._refilled_ms += back * 1000 // PER_SECOND
        self.earn(back)
