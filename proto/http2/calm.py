"""How much nonsense a connection is allowed: a budget that useful work earns and floods spend.

Every frame that costs its sender nothing and brings nothing is charged: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, tiny
DATA, unknown kinds, mistakes that make this side reset a stream. Answers, messages and data that was sent earn.
Time gives some back, so that what is rare is never too much, however long a connection lives.

Resets have an account of their own. A consumer that cancels its long polls all day is no flood, not even one that
cancels each in the breath that asks: one by one, they fill no read. Only what comes as a heap is charged: resets
beyond `HEAP` of streams that the same read brought. Reads that are no heap give back.

Whoever has spent all is told to calm down (ENHANCE_YOUR_CALM), which ends the connection.
"""

from __future__ import annotations

from typing import Final

#: What a connection begins with and never exceeds.
BUDGET: Final = 1_500
#: What a second gives back.
PER_SECOND: Final = 100

#: A frame without use.
IDLE_FRAME: Final = 1
#: A mistake that has this side reset a stream: it may have cost a whole request.
MISTAKE: Final = 10
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


#: So many streams may be reset in the read that began them …
HEAP: Final = 32
#: … before each costs so much of the account, …
_HEAPED: Final = 5
#: … to which a read with some, but no heap of them, gives back. Servers that are held up read a heap now and then.
_NO_HEAP: Final = 100


class RapidResets:
    """Counts streams that are reset in the read that began them."""

    __slots__ = ("_in_read", "_left")

    def __init__(self) -> None:
        self._left = BUDGET
        self._in_read = 0

    def add(self) -> None:
        """Count one; raise Exhausted if heaps of them have spent the account."""
        self._in_read += 1
        if self._in_read > HEAP:
            self._left -= _HEAPED
            if self._left < 0:
                raise Exhausted

    def end_read(self) -> None:
        """Begin anew with the next read."""
        if 0 < self._in_read <= HEAP:
            self._left = min(BUDGET, self._left + _NO_HEAP)
        self._in_read = 0
