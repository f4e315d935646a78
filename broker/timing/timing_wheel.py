"""The timing wheel: timers by deadline; adding, cancelling and rescheduling cost O(1).

Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), in Kafka's form: overflow wheels are created
on demand, buckets are in a delay queue by their expiry, and timers of an expired bucket move to a lower wheel.

Pure: the caller passes the time and gets the due timers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

TICK_MS: Final = 1
WHEEL_SIZE: Final = 512
_by_order = attrgetter("order")
_by_deadline = attrgetter("deadline_ms")


class _Link:
    """An element of a ring; outside of a ring, both links are None. They are typed Any: it is 10 % faster."""

    __slots__ = ("_next", "_previous")

    _next: Any
    _previous: Any


class Timer(_Link):
    """A callback at DEADLINE_MS. `active` until it has fired or was cancelled."""

    __slots__ = ("callback", "deadline_ms", "order")

    def __init__(self, deadline_ms: int, callback: Callable[[], None], order: int = 0) -> None:
        self.deadline_ms = deadline_ms
        self.callback = callback
        #: Rises with each timer that is added or rescheduled.
        self.order = order
        self._previous = self._next = None

    @property
    def active(self) -> bool:
        return self._next is not None


class _Bucket(_Link):
    """The timers of one slot of one wheel, in the order of adding: a ring, closed by the bucket."""

    __slots__ = ("expiry_ms",)

    def __init__(self) -> None:
        #: Its expiry in the delay queue; -1: it is not in the queue.
        self.expiry_ms = -1
        self._previous = self._next = self

    def empty(self) -> list[Timer]:
        """Remove and return all timers."""
        timers: list[Timer] = []
        append = timers.append
        timer = self._next
        while timer is not self:
            append(timer)
            after = timer._next
            timer._previous = timer._next = None
            timer = after
        self._previous = self._next = self
        return timers


class _Wheel:
    """SIZE buckets of TICK_MS each, for deadlines in [current, end), end = current + tick · size."""

    __slots__ = ("buckets", "current_ms", "end_ms", "interval_ms", "overflow", "size", "tick_ms")

    def __init__(self, tick_ms: int, size: int, now_ms: int) -> None:
        self.tick_ms = tick_ms
        self.size = size
        self.interval_ms = tick_ms * size
        self.current_ms = now_ms - now_ms % tick_ms
        self.end_ms = self.current_ms + self.interval_ms
        self.buckets = [_Bucket() for _ in range(size)]
        self.overflow: _Wheel | None = None

    def grow(self) -> _Wheel:
        """Return a new overflow wheel."""
        self.overflow = _Wheel(self.interval_ms, self.size, self.current_ms)
        return self.overflow

    def advance(self, now_ms: int) -> None:
        wheel: _Wheel | None = self
        while wheel is not None and now_ms >= wheel.current_ms + wheel.tick_ms:
            wheel.current_ms = now_ms - now_ms % wheel.tick_ms
            wheel.end_ms = wheel.current_ms + wheel.interval_ms
            wheel = wheel.overflow


class TimingWheel:
    """Timers by deadline, in milliseconds.

    A wheel of tick t and size n holds what is due within t · n of its current time; what is due later goes to
    the overflow wheel, whose tick is t · n, and so on. An example with t = 1, n = 4, at time 0:

        wheel 1  tick 1   [0] [1] [2] [3]            the next 4 ms
        wheel 2  tick 4   [0–3] [4–7] [8–11] [12–15]    the next 16 ms
        wheel 3  tick 16  …                          the next 64 ms

    A timer for 2 goes to bucket [2] of wheel 1. One for 7 does not fit wheel 1 and goes to bucket [4–7] of wheel 2,
    whose expiry, 4, enters the delay queue. When time reaches 2, bucket [2] expires and its timer fires. At 4 bucket
    [4–7] expires: the clock of wheel 1 advances to 4, so that it covers 4…7 now, and the timer is inserted again, this
    time into bucket [7] of wheel 1. At 7 it fires. A bucket is re-used as soon as its time has passed: at 5, a timer
    for 8 takes the place of the bucket that was [0], with expiry 8.

    Adding, cancelling and rescheduling cost O(m), m the number of wheels (with 512 buckets and a tick of 1 ms, 3
    wheels cover 37 hours, 4 wheels 2 years, 5 wheels 1,100 years). Advancing costs as much as buckets expire, however
    much time passes. A cancelled timer leaves at once; its bucket stays in the delay queue until its expiry. The queue
    holds each bucket only once, so n · m entries is its limit. A timer is late by less than a tick (plus the delay of
    the call of `advance`), and never early.

    Not thread-safe: the event loop owns it.
    """

    def __init__(
        self, now_ms: int, *, tick_ms: int = TICK_MS, wheel_size: int = WHEEL_SIZE
    ) -> None:
        assert tick_ms > 0, "the tick must be positive"
        assert wheel_size > 1, "a wheel needs at least 2 buckets"
        self._lowest = _Wheel(tick_ms, wheel_size, now_ms)
        # (expiry, tick of the wheel, bucket): no two entries have the same expiry and tick.
        self._queue: list[tuple[int, int, _Bucket]] = []
        self._order = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of active timers."""
        return self._count

    @property
    def queue_length(self) -> int:
        """The number of buckets in the delay queue; the limit is the number of wheels times their size."""
        return len(self._queue)

    def add(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Add and return a timer for DEADLINE_MS. A deadline that has passed is due at the next `advance`."""
        self._order = order = self._order + 1
        self._count += 1
        timer = Timer(deadline_ms, callback, order)
        self._insert(timer)
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Remove TIMER; return whether it was still active."""
        following = timer._next
        if following is None:
            return False
        before = timer._previous
        before._next = following
        following._previous = before
        timer._previous = timer._next = None
        self._count -= 1
        return True

    def reschedule(self, timer: Timer, deadline_ms: int) -> None:
        """Let TIMER fire at DEADLINE_MS instead, or again if it has fired; it counts as added now."""
        following = timer._next
        if following is None:
            self._count += 1
        else:
            before = timer._previous
            before._next = following
            following._previous = before
        timer.deadline_ms = deadline_ms
        self._order = timer.order = self._order + 1
        self._insert(timer)

    def next_expiry_ms(self) -> int | None:
        """Return when `advance` must be called next: never after the earliest deadline; None: there are no timers."""
        queue = self._queue
        while queue:
            expiry_ms, _, bucket = queue[0]
            if bucket._next is not bucket:
                return expiry_ms
            heapq.heappop(queue)
            bucket.expiry_ms = -1
        return None

    def advance(self, now_ms: int) -> list[Timer]:
        """Set the clock to NOW_MS; return the due timers by deadline, equal ones in the order of adding.

        A time before the present one is ignored. The returned timers are inactive; the caller runs them.
        """
        due: list[Timer] = []
        queue, lowest = self._queue, self._lowest
        lowest_tick_ms = lowest.tick_ms
        while queue and queue[0][0] <= now_ms:
            expiry_ms, tick_ms, bucket = heapq.heappop(queue)
            bucket.expiry_ms = -1
            if bucket._next is bucket:
                continue
            lowest.advance(expiry_ms)
            timers = bucket.empty()
            if tick_ms == lowest_tick_ms:
                due += timers
            else:
                self._bring_down(timers, now_ms, due)
        lowest.advance(now_ms)
        self._count -= len(due)
        if len(due) > 1:
            # Timers from a higher wheel come after younger ones that were added to the lower wheel
            # directly: sort them.
            due.sort(key=_by_order)
            due.sort(key=_by_deadline)
        return due

    def _bring_down(self, timers: list[Timer], now_ms: int, due: list[Timer]) -> None:
        """Add the due timers of TIMERS, from a higher wheel, to DUE; add the others to the wheel for their deadline."""
        insert = self._insert
        for timer in timers:
            if timer.deadline_ms <= now_ms:
                due.append(timer)
            else:
                insert(timer)

    def _insert(self, timer: Timer) -> None:
        wheel = self._lowest
        tick_ms = wheel.tick_ms
        deadline_ms = timer.deadline_ms
        if tick_ms > 1:
            # Round up to a tick: a timer is late by less than one tick, and never early.
            deadline_ms = -(-deadline_ms // tick_ms) * tick_ms
        if deadline_ms < wheel.current_ms:
            deadline_ms = wheel.current_ms
        while deadline_ms >= wheel.end_ms:
            wheel = wheel.overflow or wheel.grow()
            tick_ms = wheel.tick_ms
        slot = deadline_ms // tick_ms
        bucket = wheel.buckets[slot % wheel.size]
        last = bucket._previous
        timer._previous = last
        timer._next = bucket
        last._next = bucket._previous = timer
        if bucket.expiry_ms < 0:
            bucket.expiry_ms = expiry_ms = slot * tick_ms
            heapq.heappush(self._queue, (expiry_ms, tick_ms, bucket))
