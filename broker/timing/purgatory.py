"""Purgatory: requests that wait for an event or for their deadline, whichever comes first.

An operation first tries to complete. If it cannot, purgatory watches it under one or more keys, for example a topic
queue. Each event of a key lets it try again. At its deadline it completes with what there is. It completes only once.

At most `limit()` operations wait. One more completes at once, as if its deadline had passed: an overload turns long
polls into short polls and fails none.

Not thread-safe: the event loop owns it. Watching, cancelling and completing cost O(1) per key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, Protocol

from .timers import Timers
from .timing_wheel import Timer

#: Waits of _LONG_WAIT_MS or more end in bunches: each is longer than asked for by less than this part of it.
_WAIT_PARTS: Final = 64
_LONG_WAIT_MS: Final = 10_000


def end_of_wait(now_ms: int, wait_ms: int) -> int:
    """Return when a wait of WAIT_MS from NOW_MS on ends: never early; a long one with others of its length.

    Idle consumers are answered together, and ask again together: waking the loop is most of the cost of an answer.
    """
    deadline_ms = now_ms + wait_ms
    if wait_ms < _LONG_WAIT_MS:
        return deadline_ms
    step_ms = wait_ms // _WAIT_PARTS
    return -(-deadline_ms // step_ms) * step_ms


class Operation(Protocol):
    """Something that waits."""

    def try_complete(self) -> bool:
        """Complete if that is possible now; return whether it was."""
        ...

    def on_deadline(self) -> None:
        """Complete with what there is."""
        ...


class WatchedOperation:
    """An operation that is watched; `cancel` takes it out."""

    __slots__ = ("_purgatory", "keys", "operation", "timer")

    def __init__(
        self, purgatory: Purgatory, keys: Sequence[Hashable], operation: Operation
    ) -> None:
        self._purgatory = purgatory
        self.keys = keys
        self.operation = operation
        self.timer: Timer | None = None

    def cancel(self) -> bool:
        """Let the operation go without completing it; return whether it was still waiting."""
        return self._purgatory.remove(self)


class Purgatory:
    """Waiting operations by key, with their deadlines on TIMERS."""

    def __init__(self, timers: Timers, *, limit: Callable[[], int]) -> None:
        self._timers = timers
        self._limit = limit
        self._watched: dict[Hashable, dict[WatchedOperation, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many operations wait."""
        return self._count

    def complete_or_watch(
        self,
        operation: Operation,
        key: Hashable,
        deadline_ms: int,
        *,
        also: Sequence[Hashable] = (),
    ) -> WatchedOperation | None:
        """Complete OPERATION now, or watch it under KEY until DEADLINE_MS; return the watch, None if it is done.

        ALSO are further keys, each another one.
        """
        if operation.try_complete():
            return None
        if self._count >= self._limit():
            operation.on_deadline()
            return None
        return self.watch(operation, key, deadline_ms, also=also)

    def watch(
        self,
        operation: Operation,
        key: Hashable,
        deadline_ms: int,
        *,
        also: Sequence[Hashable] = (),
    ) -> WatchedOperation:
        """Watch OPERATION, which has tried in vain, under KEY and ALSO until DEADLINE_MS, whatever the limit."""
        waiting = WatchedOperation(self, (key, *also), operation)
        for each in waiting.keys:
            self._watched.setdefault(each, {})[waiting] = None
        self._count += 1
        waiting.timer = self._timers.at(deadline_ms, lambda: self._expire(waiting))
        return waiting

    def notify(self, key: Hashable) -> int:
        """Let everything that waits under KEY try again; return how many completed."""
        watched = self._watched.get(key)
        if not watched:
            return 0
        completed = 0
        for waiting in list(watched):
            # One completion may cancel another: what is gone is not tried.
            if waiting in watched and waiting.operation.try_complete():
                self.remove(waiting)
                completed += 1
        return completed

    def notify_in_turn(self, key: Hashable) -> int:
        """Let those who wait under KEY, and want the same, try again until one cannot; return how many completed."""
        completed = 0
        while watched := self._watched.get(key):
            waiting = next(iter(watched))
            if not waiting.operation.try_complete():
                break
            self.remove(waiting)
            completed += 1
        return completed

    def is_watched(self, key: Hashable) -> bool:
        """Does anything wait under KEY?"""
        return key in self._watched

    def operations(self, key: Hashable) -> Iterator[Operation]:
        """Yield what waits under KEY, in the order in which it came."""
        for waiting in self._watched.get(key, ()):
            yield waiting.operation

    def try_again(self, waiting: WatchedOperation) -> bool:
        """Let WAITING try again on its own; return whether it was still there."""
        if waiting not in self._watched.get(waiting.keys[0], ()):
            return False
        if waiting.operation.try_complete():
            self.remove(waiting)
        return True

    def remove(self, waiting: WatchedOperation) -> bool:
        """Forget WAITING; return whether it was still there."""
        for key in waiting.keys:
            watched = self._watched.get(key)
            if watched is None or waiting not in watched:
                return False
            del watched[waiting]
            if not watched:
                del self._watched[key]
        self._count -= 1
        if waiting.timer is not None:
            self._timers.cancel(waiting.timer)
        return True

    def shorten(self, waiting: WatchedOperation, wait_ms: int) -> None:
        """Let WAITING wait no longer than WAIT_MS from now on."""
        deadline_ms = self._timers.now_ms() + wait_ms
        if waiting.timer is not None and deadline_ms < waiting.timer.deadline_ms:
            self._timers.reschedule(waiting.timer, deadline_ms)

    def complete_all(self) -> None:
        """Complete everything with what there is: the broker is about to stop."""
        for watched in list(self._watched.values()):
            for waiting in list(watched):
                self._expire(waiting)

    def _expire(self, waiting: WatchedOperation) -> None:
        if self.remove(waiting):
            waiting.operation.on_deadline()
