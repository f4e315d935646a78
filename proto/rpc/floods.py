"""Flood budgets: how much nonsense a connection is allowed. Time and useful work give back what floods spend.

Every frame that costs its sender nothing and brings nothing is charged: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, tiny
DATA, unknown kinds, mistakes that make this side reset a stream. Answers, messages and data that was sent earn: a peer
that was held up for a while opens the windows, or gives up the calls, of a thousand answers in one breath, and may.
Time gives some back, so that what is rare is never too much, however long a connection lives.

Calls that come with their own reset have an account of their own. Nobody serves them, so that one costs less than a
call that is answered, and nobody gains by resetting. They come as a heap where this side was held up: callers lost
patience meanwhile. It is bounded by time alone, at more than honest callers cancel; whoever does that all day, each in
the breath that asks, is no flood.

Nothing here depends on how bytes were cut into reads. Whoever has spent all is told to calm down (ENHANCE_YOUR_CALM),
which ends the connection.
"""

from __future__ import annotations

from typing import Final

#: What a connection begins with, and what time gives back at most …
BUDGET: Final = 1_500
#: … of which a second gives so much.
PER_SECOND: Final = 100
#: What useful work adds at most: that of two answers on each of 4,096 streams.
EARNED_MAX: Final = 16_384

#: A frame without use.
IDLE_FRAME: Final = 1
#: A mistake that has this side reset a stream: it may have cost a whole request.
MISTAKE: Final = 10
#: What was under way on a stream when its peer reset it. There is one such fault a stream.
LATE: Final = 0
#: So many bytes of a block with more fields than are allowed cost as much as a frame: it was read whole for the sake
#: of the table, in some 0.1 µs a byte.
TOO_LARGE_SHIFT: Final = 8
#: Earned by a whole request, and by a whole answer: a peer may open the windows of stream and connection for each
#: call, and PING, …
REQUEST: Final = 2
ANSWER: Final = 2
#: … and by a message on a stream, received or sent without waiting for a window, …
MESSAGE: Final = 2
#: … and by every 4 KiB of it that were sent: its receiver opens windows for them.
DATA_SENT_SHIFT: Final = 12
#: Smaller pieces of a body that do not end it are charged: a message that they complete earns as much.
TINY_DATA: Final = 256

#: Calls that come with their reset: so many at once, and so many a second.
STALE_CALLS: Final = 10_000
STALE_CALLS_PER_SECOND: Final = 5_000


class Exhausted(Exception):
    """The budget is spent; the text says by what."""


class FloodBudget:
    """What a connection may still spend. Its owner says the time before it charges.

    It begins with AT_ONCE, and time gives back PER_SECOND, up to AT_ONCE again. SPENT_BY is what spends it, in words.
    """

    __slots__ = ("_at_once", "_left", "_per_second", "_refilled_ms", "_spent_by", "now_ms")

    def __init__(
        self,
        now_ms: int,
        at_once: int = BUDGET,
        per_second: int = PER_SECOND,
        spent_by: str = "frames without use",
    ) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._spent_by = spent_by
        self._left = at_once
        self._refilled_ms = now_ms
        #: The time of what is charged now.
        self.now_ms = now_ms

    def advance_to(self, now_ms: int) -> None:
        """Charge by NOW_MS from now on."""
        self.now_ms = now_ms

    def earn(self, amount: int) -> None:
        """Give AMOUNT back."""
        left = self._left + amount
        self._left = left if left < EARNED_MAX else EARNED_MAX

    def charge(self, cost: int) -> None:
        """Take COST; raise Exhausted if that is more than is left."""
        self._left -= cost
        if self._left < 0:
            self._refill()
            if self._left < 0:
                raise Exhausted(f"too many {self._spent_by}")

    def _refill(self) -> None:
        back = (self.now_ms - self._refilled_ms) * self._per_second // 1000
        self._refilled_ms += back * 1000 // self._per_second
        self._left += min(back, self._at_once)
