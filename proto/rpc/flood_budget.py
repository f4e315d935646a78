"""Flood budgets: a limit of frames that are cheap to send and bring nothing.

Such are PING, SETTINGS, PRIORITY, WINDOW_UPDATE, tiny DATA, unknown types, and mistakes that make this side reset a
stream. Useful work and time refill the budget. Calls that arrive together with their own reset have a second budget,
refilled by time only. A connection that has spent its budget is closed with ENHANCE_YOUR_CALM. The result does not
depend on how the bytes were split into reads.
"""

from __future__ import annotations

from typing import Final

#: The initial budget, and the maximum to which time refills it.
BUDGET: Final = 1_500
#: … of which a second gives so much.
PER_SECOND: Final = 100
#: The most that useful work adds: two responses on each of 4,096 streams.
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
    """The remaining budget of a connection. The owner sets `now_ms` before it charges.

    It starts with AT_ONCE, and time refills PER_SECOND, up to AT_ONCE again. SPENT_BY names what spends it, for errors.
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
