"""Purgatory: requests that wait for an event or for their deadline, whichever comes first.

An operation first tries to complete. If it cannot, purgatory watches it under one or more keys, for example a topic
queue. Each event of a key lets it try again. At its deadline it completes with what there is. It completes only once.

At most `limit()` operations wait. A further one completes at once, as if its deadline had passed: an overload turns
long polls into short polls and fails none.

Not thread-safe: the event loop owns it. Watching, cancelling and completing cost O(1) per key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, Protocol

from .timers import Timers
from .timing_wheel import Timer

#: Waits of at least _LONG_WAIT_MS end in groups: each is prolonged by less than this part of it.
_WAIT_PARTS: Final = 64
_LONG_WAIT_MS: Final = 10_000


def end_of_wait(now_ms: int, wait_ms: int) -> int:
    """Return when a wait of WAIT_MS from NOW_MS on ends: never early; a long wait together with similar ones.

    Idle consumers are answered together, and ask again together: waking the event loop is most of the cost of an
    answer.
    """
    deadline_ms = now_ms + wait_ms
    if wait_ms < _LONG_WAIT_MS:
        return deadline_ms
    step_ms = wait_ms // _WAIT_PARTS
    return -(-deadline_ms // step_ms) * step_ms


class Operation(Protocol):
    """An operation that may wait."""

    def try_complete(self) -> bool:
        """Complete if that is possible now; return whether it was."""
        ...

    def on_deadline(self) -> None:
        """Complete with the present data."""
        ...


class WatchedOperation:
    """An operation that purgatory watches; `cancel` removes it."""

    __slots__ = ("_purgatory", "keys", "operation", "timer")

    def __init__(
        self, purgatory: Purgatory, keys: Sequence[Hashable], operation: Operation
    ) -> None:
        self._purgatory = purgatory
        self.keys = keys
        self.operation = operation
        self.timer: Timer | None = None

    def cancel(self) -> bool:
        """Remove the operation without completing it; return whether it was still waiting."""
        return self._purgatory.remove(self)


class Purgatory:
    """Waiting operations by key, with their deadlines on TIMERS."""

    def __init__(self, timers: Timers, *, limit: Callable[[], int]) -> None:
        self._timers = timers
        self._limit = limit
        self._watched: dict[Hashable, dict[WatchedOperation, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        """The number of waiting operations."""
        return self._count

    def complete_or_watch(
        self,
        operation: Operation,
        key: Hashable,
        deadline_ms: int,
        *,
        also: Sequence[Hashable] = (),
    ) -> WatchedOperation | None:
        """Complete OPERATION now, or watch it under KEY until DEADLINE_MS; return the watch, None if it is complete.

        ALSO: further, distinct keys.
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
        """Watch OPERATION, which could not complete, under KEY and ALSO until DEADLINE_MS, ignoring the limit."""
        waiting = WatchedOperation(self, (key, *also), operation)
        for each in waiting.keys:
            self._watched.setdefault(each, {})[waiting] = None
        self._count += 1
        waiting.timer = self._timers.at(deadline_ms, lambda: self._expire(waiting))
        return waiting

    def notify(self, key: Hashable) -> int:
        """Let all operations with KEY try again; return how many completed."""
        watched = self._watched.get(key)
        if not watched:
            return 0
        completed = 0
        for waiting in list(watched):
            # A completion may cancel other operations, which must not be tried.
            if waiting in watched and waiting.operation.try_complete():
                self.remove(waiting)
                completed += 1
        return completed

    def notify_in_turn(self, key: Hashable) -> int:
        """Let operations with KEY, which are equivalent, try again until one cannot complete; return how many did."""
        completed = 0
        while watched := self._watched.get(key):
            waiting = next(iter(watched))
            if not waiting.operation.try_complete():
                break
            self.remove(waiting)
            completed += 1
        return completed

    def is_watched(self, key: Hashable) -> bool:
        """Return whether any operation waits under KEY."""
        return key in self._watched

    def operations(self, key: Hashable) -> Iterator[Operation]:
        """Yield the operations that wait under KEY, in their order."""
        for waiting in self._watched.get(key, ()):
            yield waiting.operation

    def try_again(self, waiting: WatchedOperation) -> bool:
        """Let WAITING try again alone; return whether it was still waiting."""
        if waiting not in self._watched.get(waiting.keys[0], ()):
            return False
        if waiting.operation.try_complete():
            self.remove(waiting)
        return True

    def remove(self, waiting: WatchedOperation) -> bool:
        """Remove WAITING; return whether it was still waiting."""
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
        """Let WAITING wait no longer than WAIT_MS from now."""
        deadline_ms = self._timers.now_ms() + wait_ms
        if waiting.timer is not None and deadline_ms < waiting.timer.deadline_ms:
            self._timers.reschedule(waiting.timer, deadline_ms)

    def complete_all(self) -> None:
        """Complete all operations with the present data: the broker is about to stop."""
        for watched in list(self._watched.values()):
            for waiting in list(watched):
                self._expire(waiting)

    def _expire(self, waiting: WatchedOperation) -> None:
        if self.remove(waiting):
            waiting.operation.on_deadline()
