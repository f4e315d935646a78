"""Decides which of several subscriptions of a group is served while its members change to a new one. Pure.

A rolling deployment brings members with a new filter one by one. Members with the old and with the new one are both
served for a grace period, which begins when the newest subscription comes. Then the newest one wins: members with an
older one are refused.

    present      subscriptions that members have now, and since when
    superseded   subscriptions that have lost, and until when they are refused: a grace period from the last attempt. So
                 an old process that restarts again and again does not count as a new deployment

A subscription without members is forgotten. If it returns after that, it is new.

Limit: `_SUPERSEDED_MAX` superseded subscriptions.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Final, Generic, TypeVar

from ...proto.time_text import format_duration

_SUPERSEDED_MAX: Final = 16

Key = TypeVar("Key", bound=Hashable)


class Grace(Generic[Key]):
    """The subscriptions of a group, or of one topic of it. Times are of any clock that never goes back."""

    __slots__ = ("_since", "_superseded")

    def __init__(self) -> None:
        self._since: dict[Key, int] = {}
        self._superseded: dict[Key, int] = {}

    def winner(self, mine: Key, present: Collection[Key], now_ms: int, grace_ms: int) -> Key | None:
        """Return the subscription that is served instead of MINE; None: members with MINE are served.

        PRESENT: the subscriptions of all members, including MINE if its member has joined already.
        """
        self._observe(present, now_ms, grace_ms)
        rivals = [one for one in self._since if one != mine]
        if not rivals:
            self._since.setdefault(mine, now_ms)
            self._superseded.pop(mine, None)
            return None
        newest = rivals[-1]
        if mine not in self._since:
            if self._superseded.get(mine, now_ms) <= now_ms:
                self._superseded.pop(mine, None)
                self._since[mine] = now_ms
                return None
        elif self.newest == mine or now_ms < self._since[newest] + grace_ms:
            return None
        self._supersede(mine, now_ms + grace_ms)
        return newest

    def ends_ms(self, present: Collection[Key], now_ms: int, grace_ms: int) -> int | None:
        """Return when the newest of the subscriptions PRESENT wins; None: there is only one."""
        self._observe(present, now_ms, grace_ms)
        if len(self._since) < 2:
            return None
        assert self.newest is not None
        return self._since[self.newest] + grace_ms

    @property
    def newest(self) -> Key | None:
        """The newest of the present subscriptions."""
        return next(reversed(self._since), None)

    def _observe(self, present: Collection[Key], now_ms: int, grace_ms: int) -> None:
        """Update the PRESENT subscriptions. One that disappears after the newest has won is superseded."""
        for key in present:
            self._since.setdefault(key, now_ms)
        newest = self.newest
        gone = [key for key in self._since if key not in present]
        if newest is not None and newest in present and now_ms >= self._since[newest] + grace_ms:
            for key in gone:
                self._supersede(key, now_ms + grace_ms)
        for key in gone:
            del self._since[key]

    def _supersede(self, key: Key, until_ms: int) -> None:
        self._superseded.pop(key, None)
        self._superseded[key] = until_ms
        if len(self._superseded) > _SUPERSEDED_MAX:
            del self._superseded[next(iter(self._superseded))]


#: What happens to members with different subscriptions, as the end of a sentence.
STEPPED_OVER: Final = (
    "messages that the subscription of their reader does not match are filtered out"
)
SUPERSEDED: Final = (
    "the newer subscription is served, because the grace period (broker.subscription_grace_ms) has ended: use the same"
    " subscription, use another group, or stop the members with the newer one first"
)


def served_for(grace_ms: int) -> str:
    """Return the sentence that both subscriptions are served for a while."""
    return (
        f"both are served for {format_duration(grace_ms)}, then only the newer one; {STEPPED_OVER}"
    )
