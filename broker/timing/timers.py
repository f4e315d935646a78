"""The broker's timers: a hierarchical timing wheel, and the shell that turns it by a clock and runs what is due.

Adding, cancelling and re-scheduling a timer cost O(1), whatever the number of timers. Source: Varghese and Lauck,
"Hashed and Hierarchical Timing Wheels" (1987), in the shape that Kafka gave it: overflow wheels made on demand, buckets
in a delay queue keyed by their expiry, re-insertion when a bucket of a higher wheel expires. The wheel is pure: it is
told the time, and returns what is due.

Deadlines are instants of `Clock.now_ms`, which nobody can set.

One task sleeps until the wheel's next expiry; a timer that is due before that wakes it. Every wait of a broker
hangs here: long polls, flush deadlines, heartbeats, periodic work.

Timers fire one instant after the other, by deadline, equal ones in the order in which they were added, also where the
loop is late and finds several instants due at once: what a callback cancels does not fire any more, and what it adds
for an instant that is still to come fires in its place. A virtual clock and a late loop see the same sequence.

Bounds: `_BATCH` callbacks run in one turn of the loop, and none that became due in it; then others have theirs.

A backlog is worked off step by step (`Turns`), the next step in the next turn of the event loop, or at an instant, so
that sends and fetches have their turns in between; while a step is asked for in the next turn, a clock that is moved
stays where it is. What is due by the wall clock has to be looked at again when that is set: `follow_wall` until `stop`.

Purgatory: requests that cannot be answered yet wait for an event or for their deadline, whichever comes first.

An operation first tries to complete. If it cannot, it is watched under a key (a topic queue) or several, and tries
again at each event of one of them; at its deadline it completes with what there is. It completes exactly once.

Bounds: `limit()` operations wait at most; one more is completed at once with what there is, as if its deadline had
passed, so that an overload turns long polls into short ones instead of failing them.

Not thread-safe: the event loop owns it. Watching, cancelling and completing cost O(1) for each key.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

from ...proto.clock import Clock

TICK_MS: Final = 1
WHEEL_SIZE: Final = 512

_by_order = attrgetter("order")
_by_deadline = attrgetter("deadline_ms")


class _Link:
    """An element of a ring, or none of one: then both are None. Any: what asks for types here costs a tenth."""

    __slots__ = ("_next", "_previous")

    _next: Any
    _previous: Any


class Timer(_Link):
    """Something to do at DEADLINE_MS. `active` until it fired or was cancelled."""

    __slots__ = ("callback", "deadline_ms", "order")

    def __init__(self, deadline_ms: int, callback: Callable[[], None], order: int = 0) -> None:
        self.deadline_ms = deadline_ms
        self.callback = callback
        #: Rises with each timer that is added or re-scheduled.
        self.order = order
        self._previous = self._next = None

    @property
    def active(self) -> bool:
        return self._next is not None


class _Bucket(_Link):
    """The timers of one slot of one wheel, in the order in which they came: a ring that the bucket closes."""

    __slots__ = ("expiry_ms",)

    def __init__(self) -> None:
        #: When it expires, as the delay queue has it; -1: it is not there.
        self.expiry_ms = -1
        self._previous = self._next = self

    def empty(self) -> list[Timer]:
        """Take all timers out; return them."""
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
    """SIZE buckets of TICK_MS each: it holds deadlines in [current, end), end = current + tick · size."""

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

    A wheel of tick t and size n holds what is due within t · n of its current time; what lies further ahead goes to
    the overflow wheel, whose tick is t · n, and so on. An example with t = 1, n = 4, at time 0:

        wheel 1  tick 1   [0] [1] [2] [3]            the next 4 ms
        wheel 2  tick 4   [0–3] [4–7] [8–11] [12–15]    the next 16 ms
        wheel 3  tick 16  …                          the next 64 ms

    A timer for 2 goes to bucket [2] of wheel 1. One for 7 does not fit wheel 1 and goes to bucket [4–7] of wheel 2,
    whose expiry, 4, enters the delay queue. When time reaches 2, bucket [2] expires and its timer fires. At 4 bucket
    [4–7] expires: the clock of wheel 1 advances to 4, so that it covers 4…7 now, and the timer is inserted again, this
    time into bucket [7] of wheel 1. At 7 it fires. A bucket is re-used as soon as its time has passed: at 5, a timer
    for 8 takes the place of the bucket that was [0], with expiry 8.

    Adding, cancelling and re-scheduling cost O(m), m the number of wheels (with 512 buckets and a tick of 1 ms, 3
    wheels cover 37 hours, 4 wheels 2 years, 5 wheels 1,100 years); advancing costs as much as buckets expire, not as
    time passes. A cancelled timer leaves at once; its bucket stays in the delay queue until its expiry, so that the
    queue holds each bucket once at most: n · m entries, whatever was added and cancelled. A timer is late by less than
    a tick (plus what the caller is late with `advance`), and never early.

    Not thread-safe: the event loop owns it.
    """

    def __init__(
        self, now_ms: int, *, tick_ms: int = TICK_MS, wheel_size: int = WHEEL_SIZE
    ) -> None:
        assert tick_ms > 0, "a tick takes time"
        assert wheel_size > 1, "a wheel has buckets"
        self._lowest = _Wheel(tick_ms, wheel_size, now_ms)
        # (expiry, tick of its wheel, bucket): no two entries have the same expiry and tick.
        self._queue: list[tuple[int, int, _Bucket]] = []
        self._order = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of active timers."""
        return self._count

    @property
    def queue_length(self) -> int:
        """How many buckets wait in the delay queue: at most the number of wheels times their size."""
        return len(self._queue)

    def add(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Return a new timer for DEADLINE_MS. A deadline that has passed is due at the next `advance`."""
        self._order = order = self._order + 1
        self._count += 1
        timer = Timer(deadline_ms, callback, order)
        self._insert(timer)
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Take TIMER out; return whether it was still active."""
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
        """Have TIMER fire at DEADLINE_MS instead, or again if it has fired; it counts as added now."""
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
        """Return when `advance` has something to do next: never later than the earliest deadline; None: never."""
        queue = self._queue
        while queue:
            expiry_ms, _, bucket = queue[0]
            if bucket._next is not bucket:
                return expiry_ms
            heapq.heappop(queue)
            bucket.expiry_ms = -1
        return None

    def advance(self, now_ms: int) -> list[Timer]:
        """Move the clock to NOW_MS; return the timers that are due, by deadline, equal ones in the order of adding.

        A clock that went back does nothing. The timers are inactive when this returns; the caller runs them.
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
            # Timers that came down from a higher wheel stand behind younger ones that went to the lower at once.
            due.sort(key=_by_order)
            due.sort(key=_by_deadline)
        return due

    def _bring_down(self, timers: list[Timer], now_ms: int, due: list[Timer]) -> None:
        """Of TIMERS of a higher wheel those that are due join DUE; the others go to the wheel that holds them now."""
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
            # Rounded up to a tick: a timer is late by less than one tick, and never early.
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


# ---------------------------------------------------------------- the shell

logger = logging.getLogger(__name__)

#: Callbacks in one turn of the loop.
_BATCH: Final = 1_000
#: What the timers wake at while callbacks run: no deadline is before it.
_NEVER_EARLIER: Final = -(1 << 63)


class _Periodic(Timer):
    """A timer that is added again when it has fired; a period of 0: no more."""

    __slots__ = ("period_ms",)

    def __init__(self, deadline_ms: int, callback: Callable[[], None], period_ms: int) -> None:
        super().__init__(deadline_ms, callback)
        self.period_ms = period_ms


class Timers:
    """Timers on CLOCK. `start` on a running loop, `stop` drops what is left. The loop owns it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel = TimingWheel(clock.now_ms())
        self._sleeper: asyncio.Task[None] | None = None
        self._wakes_ms: int | None = None
        #: Is a new sleep asked for at the end of this turn of the loop?
        self._resleep: asyncio.Handle | None = None
        #: What is due at this instant and has not run yet.
        self._firing: set[Timer] = set()
        self._running = False

    def __len__(self) -> int:
        return len(self._wheel) + len(self._firing)

    def now_ms(self) -> int:
        """Return the present instant of the clock that turns them."""
        return self._clock.now_ms()

    def unix_ms(self) -> int:
        """Return what the wall clock shows."""
        return self._clock.unix_ms()

    def start(self) -> None:
        """Begin to fire; timers that were added before count as well."""
        self._running = True
        self._sleep()

    async def stop(self) -> None:
        """Fire nothing any more."""
        self._running = False
        self._wakes_ms = None
        self._firing.clear()
        if self._resleep is not None:
            self._resleep.cancel()
            self._resleep = None
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            sleeper.cancel()
            await asyncio.wait((sleeper,))

    def at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Have CALLBACK called at DEADLINE_MS, once."""
        timer = self._wheel.add(deadline_ms, callback)
        if self._wakes_ms is None or deadline_ms < self._wakes_ms:
            self._wake_earlier(deadline_ms)
        return timer

    def after(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Have CALLBACK called DELAY_MS from now, once."""
        return self.at(self._clock.now_ms() + delay_ms, callback)

    def every(self, period_ms: int, callback: Callable[[], None]) -> Timer:
        """Have CALLBACK called every PERIOD_MS (at least 1); cancel the timer to end it.

        The instants are start + n · PERIOD_MS, however late a call is and however long it takes. What has passed when
        a call ends is left out: no bursts.
        """
        assert period_ms > 0, "a period takes time"
        timer = _Periodic(0, callback, period_ms)
        self.reschedule(timer, self._clock.now_ms() + period_ms)
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Take TIMER out; return whether it was still to fire. One that is due and has not run yet does not run."""
        was_periodic = False
        if isinstance(timer, _Periodic):
            was_periodic, timer.period_ms = timer.period_ms > 0, 0
        if self._wheel.cancel(timer):
            return True
        if timer in self._firing:
            self._firing.remove(timer)
            return True
        return was_periodic

    def reschedule(self, timer: Timer, deadline_ms: int) -> None:
        """Have TIMER fire at DEADLINE_MS instead, or again; a periodic one goes on from there."""
        self._firing.discard(timer)
        self._wheel.reschedule(timer, deadline_ms)
        if self._wakes_ms is None or deadline_ms < self._wakes_ms:
            self._wake_earlier(deadline_ms)

    def _wake_earlier(self, deadline_ms: int) -> None:
        """Sleep anew at the end of this turn, once for all timers that it adds: DEADLINE_MS is before the waking."""
        if not self._running:
            return
        self._wakes_ms = deadline_ms
        if self._resleep is None:
            self._resleep = asyncio.get_running_loop().call_soon(self._sleep)

    def _sleep(self) -> None:
        self._resleep = None
        if self._wakes_ms == _NEVER_EARLIER:
            return  # Callbacks run: who runs them asks for the next expiry afterwards.
        if self._sleeper is not None:
            self._sleeper.cancel()
        self._wakes_ms = self._wheel.next_expiry_ms()
        self._sleeper = None
        if self._wakes_ms is not None:
            self._sleeper = asyncio.get_running_loop().create_task(self._turn(self._wakes_ms))

    async def _turn(self, wakes_ms: int) -> None:
        """Sleep, fire, and sleep again until nothing is left to wait for."""
        while True:
            await self._clock.sleep_until(wakes_ms)
            # While callbacks run, new timers need not wake anybody: the next expiry is asked for below.
            self._wakes_ms = _NEVER_EARLIER
            await self._fire()
            next_ms = self._wheel.next_expiry_ms()
            self._wakes_ms = next_ms
            if next_ms is None or not self._running:
                self._sleeper = None
                return
            wakes_ms = next_ms

    async def _fire(self) -> None:
        """Run what is due, instant by instant.

        What is due by the time that this took comes after a turn of the loop: a timer that is always late again must
        not keep the loop from everybody else.
        """
        while (next_ms := self._wheel.next_expiry_ms()) is not None:
            now_ms = self._clock.now_ms()
            if next_ms > now_ms:
                return
            await self._fire_until(now_ms)
            await asyncio.sleep(0)

    async def _fire_until(self, until_ms: int) -> None:
        wheel, firing = self._wheel, self._firing
        room = _BATCH
        while (next_ms := wheel.next_expiry_ms()) is not None and next_ms <= until_ms:
            due = wheel.advance(next_ms)
            firing.update(due)
            for timer in due:
                if timer not in firing:
                    continue  # One that ran before it cancelled it.
                firing.remove(timer)
                self._run(timer)
                room -= 1
                if not room:
                    room = _BATCH
                    await asyncio.sleep(0)

    def _run(self, timer: Timer) -> None:
        try:
            timer.callback()
        except Exception:  # The edge of the loop: one callback's bug must not stop all timers.
            logger.exception("timer callback failed")
        if isinstance(timer, _Periodic) and timer.period_ms and not timer.active:
            behind_ms = self._clock.now_ms() - timer.deadline_ms
            periods = max(0, behind_ms) // timer.period_ms + 1
            self._wheel.reschedule(timer, timer.deadline_ms + periods * timer.period_ms)


class TimerClock:
    """CLOCK with its sleeps on TIMERS, for coroutines that wait. Nobody is woken once the timers are stopped."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self.on_step = clock.on_step

    def now_ms(self) -> int:
        """Return the present instant."""
        return self._clock.now_ms()

    def unix_ms(self) -> int:
        """Return what the wall clock shows."""
        return self._clock.unix_ms()

    async def sleep_until(self, instant_ms: int) -> None:
        """Return once `now_ms()` has reached INSTANT_MS; a sleep that is cancelled leaves no timer."""
        if instant_ms <= self._clock.now_ms():
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self._timers.at(instant_ms, wake)
        try:
            await woken
        finally:
            self._timers.cancel(timer)

    def hold(self) -> None:
        """Keep a virtual clock at the present instant until `release`."""
        self._clock.hold()

    def release(self) -> None:
        """Undo one `hold`."""
        self._clock.release()


# --- work in steps


class Turns:
    """Calls STEP when that was asked for. TIMERS go by CLOCK."""

    def __init__(self, timers: Timers, clock: Clock, step: Callable[[], None]) -> None:
        self._timers = timers
        self._clock = clock
        self._step = step
        self._handle: asyncio.Handle | None = None
        self._timer: Timer | None = None

    def follow_wall(self) -> None:
        """Have a step as well whenever the wall clock was set."""
        self._clock.on_step.append(self.soon)

    @property
    def comes_next(self) -> bool:
        """Was a step asked for in the next turn?"""
        return self._handle is not None

    def soon(self) -> None:
        """Have a step in the next turn of the loop, at this instant."""
        if self._handle is None:
            self._clock.hold()
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = None
        try:
            self._step()
        finally:
            self._clock.release()

    def at(self, instant_ms: int) -> None:
        """Have a step at INSTANT_MS, instead of at any other instant."""
        if self._timer is None:
            self._timer = self._timers.at(instant_ms, self._step)
        elif not self._timer.active or self._timer.deadline_ms != instant_ms:
            self._timers.reschedule(self._timer, instant_ms)

    def by(self, instant_ms: int) -> None:
        """Have a step at INSTANT_MS unless there is one before."""
        if self._timer is None or not self._timer.active or instant_ms < self._timer.deadline_ms:
            self.at(instant_ms)

    def stop(self) -> None:
        """Have no step any more."""
        if self.soon in self._clock.on_step:
            self._clock.on_step.remove(self.soon)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._clock.release()
        if self._timer is not None:
            self._timers.cancel(self._timer)


# ---------------------------------------------------------------- purgatory


#: Waits of _LONG_WAIT_MS or more end in bunches: each is longer than asked for by less than this part of it.
_WAIT_PARTS: Final = 64
_LONG_WAIT_MS: Final = 10_000


def end_of_wait(now_ms: int, wait_ms: int) -> int:
    """Return when a wait of WAIT_MS from NOW_MS on ends: never early; a long one with others of its length.

    Idle consumers are answered, and come again, in bunches then: a wake of the loop is most of what one costs.
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

    def complete_all(self) -> None:
        """Complete everything with what there is: the broker is about to stop."""
        for watched in list(self._watched.values()):
            for waiting in list(watched):
                self._expire(waiting)

    def _expire(self, waiting: WatchedOperation) -> None:
        if self.remove(waiting):
            waiting.operation.on_deadline()
