"""What fetches with a filter share: the accounts, turns of the loop, and looking on in a later one.

A fetch may be far behind and want little: it looks at some messages a turn, and all together at no more than one may.
One fetch goes on in one turn, the one that has waited longest, so that sends and other fetches have their turns in
between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ...proto.clock import Clock
from ..accounts.accounts import Accounts
from ..timers import Timers, Turns

#: Looks on; returns False if there is nothing to do any more.
LookOn = Callable[[], bool]


class Filters:
    """Goes on, turn by turn. TIMERS go by CLOCK, which stays where it is while anything is to go on."""

    def __init__(self, timers: Timers, clock: Clock, accounts: Accounts | None = None) -> None:
        self.accounts = Accounts() if accounts is None else accounts
        self._turns = Turns(timers, clock, self._turn)
        #: At most one a fetch that waits.
        self._going_on: deque[LookOn] = deque()
        self._spent = 0.0

    @property
    def has_turn(self) -> bool:
        """May more be looked at in this turn of the loop?"""
        return self._spent < 1

    def spend(self, share: float) -> None:
        """Note that SHARE of what may be looked at in this turn is; the last look may exceed it."""
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._spent += share

    def _begin_turn(self) -> None:
        self._spent = 0.0

    def go_on(self, look_on: LookOn) -> None:
        """Call LOOK_ON in a later turn, after those that came before."""
        self._going_on.append(look_on)
        self._turns.soon()

    def _turn(self) -> None:
        while self.has_turn and self._going_on and not self._going_on.popleft()():
            pass
        if self._going_on:
            self._turns.soon()

    def stop(self) -> None:
        """Go on with nothing any more."""
        self._going_on.clear()
        self._turns.stop()
