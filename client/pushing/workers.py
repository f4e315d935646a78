"""The workers that call listeners: a limited number of threads or tasks, which take jobs from a backlog.

A batch of quick messages is handled by one worker from end to end, because threads would only take the interpreter lock
from each other. Listeners that wait (for a database, for a service) are called by more at once: while messages are
left over and fewer than SLOW_PER_MS are taken, the number of workers doubles every TICK_MS up to the limit; above
QUICK_PER_MS it halves. A worker that waits never keeps the others from what is left in its row.

    Threads     for listeners that are called; started when they are first needed, ended by `close`
    Tasks       for listeners that are awaited

Thread contract: the event loop owns it; workers on other threads touch only what a lock protects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import length_hint
from queue import SimpleQueue
from threading import Lock
from typing import Final, Protocol

from ...proto.clock import Clock
from ...proto.facts import Facts
from ..tasks import Tasks as BackgroundTasks
from .listening import AsyncSpell, Job, Spell
from .process_queue import Portion, ProcessQueue

logger = logging.getLogger(__name__)


TICK_MS: Final = 10
_TICK_MS_MAX: Final = 640
SLOW_PER_MS: Final = 10
QUICK_PER_MS: Final = 40
#: A listener that never waits lets the loop turn this often.
_TURN_S: Final = 0.001
#: How long idle threads are waited for at the end, in real time.
_THREADS_END_S: Final = 2.0

#: Upper bounds of the histogram of a call's time, in milliseconds; above the last: one more.
HISTOGRAM_MS: Final = (0.01, 0.1, 1, 10, 100, 1_000, 10_000, 60_000, 900_000)


class CallTimes:
    """How long listeners took, by the real clock: each of a spell counts with the spell's average.

    Any thread may add: numbers that two add at the same instant may be one short.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(HISTOGRAM_MS) + 1)
        self.sum_ms = 0.0

    def add(self, spell_ms: float, count: int) -> None:
        """Note that COUNT messages took SPELL_MS."""
        self.sum_ms += spell_ms
        average_ms = spell_ms / count
        for at, bound_ms in enumerate(HISTOGRAM_MS):
            if average_ms <= bound_ms:
                self.counts[at] += count
                return
        self.counts[-1] += count


class Staff:
    """How many work, and how many shall. Any thread may use it."""

    def __init__(self, limit: int, backlog: Backlog) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._backlog = backlog
        self._wanted = 1
        self.busy = 0

    def call_in(self, count: int) -> int:
        """Return how many workers to set to work when COUNT messages are left; they count as busy."""
        with self._lock:
            missing = max(0, min(self._wanted, count) - self.busy)
            self.busy += missing
            return missing

    def next_job(self) -> Job | None:
        """Return what a busy worker does next; None: it is idle from now on."""
        with self._lock:
            job = None if self.busy > self._wanted else self._backlog.take()
            if job is None:
                self.busy -= 1
            return job

    def leave(self) -> None:
        """Count a worker out that was stopped in the middle."""
        with self._lock:
            self.busy -= 1

    def adapt(self, taken: int, left: int) -> None:
        """Want more or fewer workers, now that TAKEN messages were taken in a tick and LEFT are there."""
        with self._lock:
            if left and taken < SLOW_PER_MS * TICK_MS:
                self._wanted = min(self._limit, 2 * max(self._wanted, self.busy))
            elif taken > QUICK_PER_MS * TICK_MS:
                self._wanted = max(1, self._wanted // 2)


class Workers(Protocol):
    """Work off a backlog."""

    times: CallTimes

    def put(self, count: int) -> None:
        """Hear that COUNT messages were added to the backlog."""
        ...

    async def close(self) -> None:
        """End the workers; one that is within a listener still is left to itself."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersParts:
    """What workers are made of."""

    limit: int
    backlog: Backlog
    clock: Clock
    tasks: BackgroundTasks
    #: Told on the loop when a worker has left a portion, or a message in it failed.
    tell: Callable[[Portion], object]
    times: CallTimes = field(default_factory=CallTimes)


class _Adapting(ABC):
    """Calls workers in, and looks again as long as there is work."""

    def __init__(self, parts: WorkersParts) -> None:
        self._parts = parts
        self._backlog = parts.backlog
        self._tell = parts.tell
        self.times = parts.times
        self._staff = Staff(parts.limit, parts.backlog)
        self._loop = asyncio.get_running_loop()
        self._added = 0
        self._ticking = False

    def put(self, count: int) -> None:
        """Hear that COUNT messages were added to the backlog."""
        self._added += count
        self._call_in(self._backlog.left)
        if not self._ticking:
            self._ticking = True
            self._parts.tasks.spawn(self._tick())

    def _call_in(self, left: int) -> None:
        if missing := self._staff.call_in(left):
            self._start(missing)

    @abstractmethod
    def _start(self, count: int) -> None:
        """Set COUNT more workers to work."""

    async def _tick(self) -> None:
        """Look again and again as long as messages are left over; less often when no worker advances."""
        clock, pause_ms = self._parts.clock, TICK_MS
        while left := self._backlog.left:
            self._added = 0
            await clock.sleep_until(clock.now_ms() + pause_ms)
            still_left = self._backlog.left
            taken = left + self._added - still_left
            self._staff.adapt(taken * TICK_MS // pause_ms, still_left)
            self._call_in(still_left)
            stuck = not taken and self._staff.busy >= self._parts.limit
            pause_ms = min(2 * pause_ms, _TICK_MS_MAX) if stuck else TICK_MS
        self._ticking = False


class TaskWorkers(_Adapting):
    """Workers that await their listener on the loop."""

    def __init__(self, parts: WorkersParts, spell: AsyncSpell) -> None:
        super().__init__(parts)
        self._spell = spell
        self._running: set[asyncio.Task[None]] = set()

    def _start(self, count: int) -> None:
        for _ in range(count):
            task = self._parts.tasks.spawn(self._work())
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _work(self) -> None:
        while (job := self._staff.next_job()) is not None:
            try:
                await self._work_on(job)
            except BaseException:  # Whatever stops it: nobody else counts it out.
                self._staff.leave()
                raise

    async def _work_on(self, job: Job) -> None:
        portion, stopwatch = job.portion, self._loop.time
        place = portion.join()
        try:
            began = turned = stopwatch()
            while not portion.dropped and (count := await self._spell(job, place)):
                now = stopwatch()
                self.times.add((now - began) * 1000, count)
                began = now
                if job.suspended:
                    break
                if now - turned >= _TURN_S:
                    await asyncio.sleep(0)
                    began = turned = stopwatch()
        finally:
            portion.leave(place)
            self._backlog.give_back(job)
            self._tell(portion)

    async def close(self) -> None:
        """End the workers, and the listeners that they wait for."""
        while running := list(self._running):
            for task in running:
                task.cancel()
            await asyncio.wait(running)


class ThreadWorkers(_Adapting):
    """Workers that call their listener, each on a thread of its own."""

    def __init__(self, parts: WorkersParts, spell: Spell, name: str) -> None:
        super().__init__(parts)
        self._spell = spell
        self._name = name
        #: True: there may be work; False: it is over.
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._waiting = 0
        self._ended = asyncio.Event()
        self._holding = False

    def _start(self, count: int) -> None:
        self._hold()
        for _ in range(count):
            if len(self._threads) < self._staff.busy:
                number = len(self._threads) + 1
                thread = threading.Thread(
                    target=self._run, name=f"pocketmq-{self._name}-{number}", daemon=True
                )
                self._threads.add(thread)
                thread.start()
            self._calls.put(True)

    def _hold(self) -> None:
        """Keep a virtual clock where it is while threads are at work."""
        if not self._holding:
            self._holding = True
            self._parts.clock.hold()

    def _release(self) -> None:
        if self._holding and not self._staff.busy:
            self._holding = False
            self._parts.clock.release()

    def _run(self) -> None:
        while self._calls.get():
            while (job := self._staff.next_job()) is not None:
                try:
                    self._work_on(job)
                except BaseException as error:
                    # Nobody else counts the thread out, or does its work.
                    logger.error(
                        "work on messages failed %s",
                        Facts(queue=job.portion.queue.queue, reason=repr(error)),
                        exc_info=error,
                    )
            post(self._loop, self._release)
        post(self._loop, self._forget, threading.current_thread())

    def _work_on(self, job: Job) -> None:
        portion, stopwatch = job.portion, self._loop.time
        place = portion.join()
        try:
            began = stopwatch()
            while not portion.dropped and (count := self._spell(job, place)):
                now = stopwatch()
                self.times.add((now - began) * 1000, count)
                began = now
                if job.suspended:
                    break
        finally:
            portion.leave(place)
            self._backlog.give_back(job)
            post(self._loop, self._tell, portion)

    def _forget(self, thread: threading.Thread) -> None:
        thread.join()
        self._threads.discard(thread)
        if not self._threads:
            self._ended.set()

    async def close(self) -> None:
        """End the threads; one that is within a listener still ends after it."""
        for _ in self._threads:
            self._calls.put(False)
        if self._threads:
            try:
                async with asyncio.timeout(_THREADS_END_S):
                    await self._ended.wait()
            except TimeoutError:
                logger.warning(
                    "listeners run on behind a closed consumer %s",
                    Facts(threads=", ".join(sorted(thread.name for thread in self._threads))),
                )
        if self._holding:
            self._holding = False
            self._parts.clock.release()


def post(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object
) -> None:
    """Have FUNCTION called on LOOP, from another thread; if the loop has ended, nobody is left to hear it."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


class Backlog(Protocol):
    """Jobs to be taken."""

    def put(self, portions: Sequence[Portion]) -> None:
        """Add the rows of PORTIONS, which follow each other in one queue."""
        ...

    def take(self) -> Job | None:
        """Return a job with messages in its row; None: there is none to be had."""
        ...

    def give_back(self, job: Job) -> None:
        """Hear that the worker who took JOB has left it."""
        ...

    @property
    def left(self) -> int:
        """How many messages are in the rows, about."""
        ...


class SharedBacklog:
    """All idle workers take from the oldest row until it is empty: any order. Any thread may use it.

    Every call takes a lock for some instructions; there is one per portion, none per message.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._jobs: deque[Job] = deque()

    def put(self, portions: Sequence[Portion]) -> None:
        with self._lock:
            self._jobs.extend(map(Job, portions))

    def put_again(self, portion: Portion, index: int) -> None:
        """Have message INDEX of PORTION handled once more."""
        with self._lock:
            self._jobs.append(Job(portion, iter((index,))))

    def take(self) -> Job | None:
        with self._lock:
            jobs = self._jobs
            while jobs:
                if length_hint(jobs[0].row) and not jobs[0].portion.dropped:
                    return jobs[0]
                jobs.popleft()
            return None

    def give_back(self, job: Job) -> None:
        """The next worker looks again."""

    @property
    def left(self) -> int:
        with self._lock:
            return sum(length_hint(job.row) for job in self._jobs)


class OrderedBacklog:
    """A queue is with one worker at a time, which handles one portion of it; then the queue is the last one.

    Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._portions: dict[ProcessQueue, deque[Portion]] = {}
        #: Queues that wait for a worker.
        self._open: deque[ProcessQueue] = deque()
        #: Queues that are open, with a worker, or suspended.
        self._busy: set[ProcessQueue] = set()

    def put(self, portions: Sequence[Portion]) -> None:
        with self._lock:
            for portion in portions:
                self._portions.setdefault(portion.queue, deque()).append(portion)
            for queue in {portion.queue for portion in portions} - self._busy:
                self._busy.add(queue)
                self._open.append(queue)

    def take(self) -> Job | None:
        with self._lock:
            while self._open:
                queue = self._open.popleft()
                if job := self._job(queue):
                    return job
            return None

    def _job(self, queue: ProcessQueue) -> Job | None:
        """Return the job of the first portion of QUEUE that is not empty."""
        portions = self._portions[queue]
        while portions:
            if portions[0].left:
                return Job(portions[0])
            portions.popleft()
        del self._portions[queue]
        self._busy.discard(queue)
        return None

    def give_back(self, job: Job) -> None:
        if not job.suspended:
            self.resume(job.portion.queue)

    def resume(self, queue: ProcessQueue) -> None:
        """Resume QUEUE, which was with a worker, or suspended."""
        with self._lock:
            if queue in self._portions:
                self._open.append(queue)

    def forget(self, queue: ProcessQueue) -> None:
        """Drop what is here of QUEUE, which was dropped."""
        with self._lock:
            self._portions.pop(queue, None)
            self._busy.discard(queue)
            if queue in self._open:
                self._open.remove(queue)

    @property
    def left(self) -> int:
        with self._lock:
            return sum(
                portion.left for queue in self._open for portion in self._portions.get(queue, ())
            )
