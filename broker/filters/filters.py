"""What fetches with a filter share: the counts, and looking on in a later turn of the loop.

A fetch may be far behind and want little: it looks at some messages a turn. One fetch goes on in one turn, the one that
has waited longest, so that sends and other fetches have their turns in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ...proto.clock import Clock
from ..delay.turns import Turns
from ..timers import Timers
from .counts import Counts

#: Looks on; returns False if there is nothing to do any more.
LookOn = Callable[[], bool]


class Filters:
    """Goes on, turn by turn. TIMERS go by CLOCK, which stays where it is while anything is to go on."""

    def __init__(self, timers: Timers, clock: Clock) -> None:
        self.counts = Counts()
        self._turns = Turns(timers, clock, self._turn)
        #: At most one a fetch that waits.
        self._going_on: deque[LookOn] = deque()

    def go_on(self, look_on: LookOn) -> None:
        """Call LOOK_ON in a later turn, after those that came before."""
        self._going_on.append(look_on)
        self._turns.soon()

    def _turn(self) -> None:
        while self._going_on and not self._going_on.popleft()():
            pass
        if self._going_on:
            self._turns.soon()

    def stop(self) -> None:
        """Go on with nothing any more."""
        self._going_on.clear()
        self._turns.stop()
