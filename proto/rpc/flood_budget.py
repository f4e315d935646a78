"""Flood budgets: limits for frames that are cheap to send and useless.

These are PING, SETTINGS, PRIORITY, WINDOW_UPDATE, tiny DATA, unknown types, and mistakes that make this side reset a
stream. Useful work and time refill the budget. Calls that arrive together with their own reset have a second budget,
which only time refills. A connection that has spent its budget is closed with ENHANCE_YOUR_CALM. The result does not
depend on how the bytes were split into reads.
"""

from __future__ import annotations

from typing import Final

#: The initial budget, and the maximum to which time refills it.
BUDGET: Final = 1_500
#: … and how much of it one second refills.
PER_SECOND: Final = 100
#: The most that useful work adds: two responses on each of 4,096 streams.
EARNED_MAX: Final = 16_384

#: The cost of a useless frame.
IDLE_FRAME: Final = 1
#: The cost of a mistake that makes this side reset a stream: it may have taken the work of a complete request.
MISTAKE: Final = 10
#: The cost of frames that were on their way when their stream was reset: once per stream.
LATE: Final = 0
#: A block with too many fields costs one frame for each 2⁸ bytes: it is decoded completely, because it changes the
#: table, in about 0.1 µs per byte.
TOO_LARGE_SHIFT: Final = 8
#: Earned by a complete request, and by a complete answer: for each call a peer may open the windows of stream and
#: connection, and send a PING, …
REQUEST: Final = 2
ANSWER: Final = 2
#: … and by a message on a stream, received or sent without waiting for a window, …
MESSAGE: Final = 2
#: … and by every 4 KiB of it that were sent, because the receiver opens windows for them.
DATA_SENT_SHIFT: Final = 12
#: Smaller pieces of a body that do not end it cost one frame. A message that they complete earns as much.
TINY_DATA: Final = 256

#: Calls that arrive together with their reset: the limit at once, and per second.
STALE_CALLS: Final = 10_000
STALE_CALLS_PER_SECOND: Final = 5_000


class Exhausted(Exception):
    """The budget is spent; the text contains the reason."""


class FloodBudget:
    """The remaining budget of a connection. The owner sets `now_ms` before it charges.

    It starts with AT_ONCE, and time refills PER_SECOND, up to AT_ONCE. SPENT_BY names the cause, for error messages.
    """

    __slots__ = ("_at_once", "_left", "_per_second", "_refilled_ms", "_spent_by", "now_ms")

    def __init__(
        self,
        now_ms: int,
        at_once: int = BUDGET,
        per_second: int = PER_SECOND,
        spent_by: str = "useless frames",
    ) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._spent_by = spent_by
        self._left = at_once
        self._refilled_ms = now_ms
        #: The time of the next charge.
        self.now_ms = now_ms

    def advance_to(self, now_ms: int) -> None:
        """Use NOW_MS for charges from now on."""
        self.now_ms = now_ms

    def earn(self, amount: int) -> None:
        """Refill AMOUNT."""
        left = self._left + amount
        self._left = left if left < EARNED_MAX else EARNED_MAX

    def charge(self, cost: int) -> None:
        """Spend COST; raise Exhausted if that is more than is left."""
        self._left -= cost
        if self._left < 0:
            self._refill()
            if self._left < 0:
                raise Exhausted(f"too many {self._spent_by}")

    def _refill(self) -> None:
        back = (self.now_ms - self._refilled_ms) * self._per_second // 1000
        self._refilled_ms += back * 1000 // self._per_second
        self._left += min(back, self._at_once)
