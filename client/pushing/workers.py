"""The workers that call listeners: a limited number of threads or tasks, which take jobs from a backlog.

One worker processes a batch of quick messages alone, because threads would only compete for the interpreter lock.
Listeners that wait, for example for a database, are called by several workers at once. While messages are left over and
fewer than SLOW_PER_MS are taken per millisecond, the number of workers doubles every TICK_MS up to the limit. Above
QUICK_PER_MS it halves. Other workers can take the messages after that of a waiting worker.

    Threads     for listeners that are ordinary functions; started when they are needed, ended by `close`
    Tasks       for listeners that are awaited

The event loop owns the workers. Workers on other threads use only state that a lock protects.
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
from ..tasks import TaskGroup as BackgroundTasks
from .listening import AsyncListenerCall, Job, ListenerCall
from .process_queue import Chunk, ProcessQueue

logger = logging.getLogger(__name__)


TICK_MS: Final = 10
_TICK_MS_MAX: Final = 640
SLOW_PER_MS: Final = 10
QUICK_PER_MS: Final = 40
#: A task whose listener never waits yields to the event loop this often.
_TURN_S: Final = 0.001
#: How long `close` waits for threads, in real time.
_THREADS_END_S: Final = 2.0

#: Upper limits of the histogram buckets of the listener's time, in milliseconds. There is one more bucket above.
HISTOGRAM_MS: Final = (0.01, 0.1, 1, 10, 100, 1_000, 10_000, 60_000, 900_000)


class CallTimes:
    """Histogram of the time that listeners took, by the real clock.

    Messages that were processed together count with their average. Any thread may add. If two threads add at the same
    time, one of them may be lost.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(HISTOGRAM_MS) + 1)
        self.sum_ms = 0.0

    def add(self, elapsed_ms: float, count: int) -> None:
        """Note that COUNT messages took ELAPSED_MS."""
        self.sum_ms += elapsed_ms
        average_ms = elapsed_ms / count
        for at, limit_ms in enumerate(HISTOGRAM_MS):
            if average_ms <= limit_ms:
                self.counts[at] += count
                return
        self.counts[-1] += count


class WorkerPool:
    """The number of busy workers, and how many are wanted. Any thread may use it."""

    def __init__(self, limit: int, backlog: Backlog) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._backlog = backlog
        self._wanted = 1
        self.busy = 0

    def wake(self, count: int) -> int:
        """Return how many more workers are needed for COUNT messages. They count as busy from now on."""
        with self._lock:
            missing = max(0, min(self._wanted, count) - self.busy)
            self.busy += missing
            return missing

    def next_job(self) -> Job | None:
        """Return the next job of a busy worker; None: the worker is idle from now on."""
        with self._lock:
            job = None if self.busy > self._wanted else self._backlog.take()
            if job is None:
                self.busy -= 1
            return job

    def leave(self) -> None:
        """Note that a busy worker was stopped within a job."""
        with self._lock:
            self.busy -= 1

    def adapt(self, taken: int, left: int) -> None:
        """Change the number of wanted workers. TAKEN: messages taken in the last TICK_MS. LEFT: messages left."""
        with self._lock:
            if left and taken < SLOW_PER_MS * TICK_MS:
                self._wanted = min(self._limit, 2 * max(self._wanted, self.busy))
            elif taken > QUICK_PER_MS * TICK_MS:
                self._wanted = max(1, self._wanted // 2)


class Workers(Protocol):
    """Process the jobs of a backlog."""

    times: CallTimes

    def put(self, count: int) -> None:
        """Start workers if needed: COUNT messages were added to the backlog."""
        ...

    async def close(self) -> None:
        """End the workers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersParts:
    """The parts that all kinds of workers need."""

    limit: int
    backlog: Backlog
    clock: Clock
    tasks: BackgroundTasks
    #: Called on the event loop when a worker has left a portion.
    on_progress: Callable[[Chunk], object]
    times: CallTimes = field(default_factory=CallTimes)


class _Adapting(ABC):
    """Starts workers, and adapts their number while there is work."""

    def __init__(self, parts: WorkersParts) -> None:
        self._parts = parts
        self._backlog = parts.backlog
        self._on_progress = parts.on_progress
        self.times = parts.times
        self._staff = WorkerPool(parts.limit, parts.backlog)
        self._loop = asyncio.get_running_loop()
        self._added = 0
        self._ticking = False

    def put(self, count: int) -> None:
        """Start workers if needed: COUNT messages were added to the backlog."""
        self._added += count
        self._wake(self._backlog.left)
        if not self._ticking:
            self._ticking = True
            self._parts.tasks.spawn(self._tick())

    def _wake(self, left: int) -> None:
        if missing := self._staff.wake(left):
            self._start(missing)

    @abstractmethod
    def _start(self, count: int) -> None:
        """Start COUNT more workers."""

    async def _tick(self) -> None:
        """Adapt the number of workers every TICK_MS while messages are left; less often if no worker advances."""
        clock, pause_ms = self._parts.clock, TICK_MS
        while left := self._backlog.left:
            self._added = 0
            await clock.sleep_until(clock.now_ms() + pause_ms)
            still_left = self._backlog.left
            taken = left + self._added - still_left
            self._staff.adapt(taken * TICK_MS // pause_ms, still_left)
            self._wake(still_left)
            stuck = not taken and self._staff.busy >= self._parts.limit
            pause_ms = min(2 * pause_ms, _TICK_MS_MAX) if stuck else TICK_MS
        self._ticking = False


class TaskWorkers(_Adapting):
    """Workers that await the listener on the event loop."""

    def __init__(self, parts: WorkersParts, call_listener: AsyncListenerCall) -> None:
        super().__init__(parts)
        self._call_listener = call_listener
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
            except BaseException:  # Whatever ends the worker, it is not busy any more.
                self._staff.leave()
                raise

    async def _work_on(self, job: Job) -> None:
        portion, stopwatch = job.portion, self._loop.time
        place = portion.join()
        try:
            began = turned = stopwatch()
            while not portion.dropped and (count := await self._call_listener(job, place)):
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
            self._backlog.release(job)
            self._on_progress(portion)

    async def close(self) -> None:
        """Cancel the workers, and the listeners that they await."""
        while running := list(self._running):
            for task in running:
                task.cancel()
            await asyncio.wait(running)


class ThreadWorkers(_Adapting):
    """Workers that call the listener, each in its own thread."""

    def __init__(self, parts: WorkersParts, call_listener: ListenerCall, name: str) -> None:
        super().__init__(parts)
        self._call_listener = call_listener
        self._name = name
        #: True: there may be work. False: the thread has to end.
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
        """Stop a virtual clock while threads are busy."""
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
                    # Whatever the error is, the thread takes the next job.
                    logger.error(
                        "worker failed %s",
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
            while not portion.dropped and (count := self._call_listener(job, place)):
                now = stopwatch()
                self.times.add((now - began) * 1000, count)
                began = now
                if job.suspended:
                    break
        finally:
            portion.leave(place)
            self._backlog.release(job)
            post(self._loop, self._on_progress, portion)

    def _forget(self, thread: threading.Thread) -> None:
        thread.join()
        self._threads.discard(thread)
        if not self._threads:
            self._ended.set()

    async def close(self) -> None:
        """End the threads. A thread whose listener is running ends after it."""
        for _ in self._threads:
            self._calls.put(False)
        if self._threads:
            try:
                async with asyncio.timeout(_THREADS_END_S):
                    await self._ended.wait()
            except TimeoutError:
                logger.warning(
                    "consumer closed while listeners are running %s",
                    Facts(threads=", ".join(sorted(thread.name for thread in self._threads))),
                )
        if self._holding:
            self._holding = False
            self._parts.clock.release()


def post(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object
) -> None:
    """Call FUNCTION on LOOP from another thread. Does nothing if LOOP has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


class Backlog(Protocol):
    """The jobs for workers."""

    def put(self, portions: Sequence[Chunk]) -> None:
        """Add PORTIONS, which follow each other in one queue."""
        ...

    def take(self) -> Job | None:
        """Return a job with messages in its row; None: there is none now."""
        ...

    def release(self, job: Job) -> None:
        """Note that the worker that took JOB has left it."""
        ...

    @property
    def left(self) -> int:
        """Approximate number of messages in the rows."""
        ...


class SharedBacklog:
    """The unordered backlog: all idle workers take from the oldest row until it is empty. Any thread may use it.

    Each call takes a lock for a few instructions. There is one call per portion, none per message.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._jobs: deque[Job] = deque()

    def put(self, portions: Sequence[Chunk]) -> None:
        with self._lock:
            self._jobs.extend(map(Job, portions))

    def put_again(self, portion: Chunk, index: int) -> None:
        """Add message INDEX of PORTION, to be processed again."""
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

    def release(self, job: Job) -> None:
        """Do nothing: other workers may take from the row at any time."""

    @property
    def left(self) -> int:
        with self._lock:
            return sum(length_hint(job.row) for job in self._jobs)


class OrderedBacklog:
    """The ordered backlog: one worker at a time processes a queue.

    It processes one portion; then the queue goes to the end of the waiting queues. Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._portions: dict[ProcessQueue, deque[Chunk]] = {}
        #: Queues that wait for a worker.
        self._open: deque[ProcessQueue] = deque()
        #: Queues that wait for a worker, have a worker, or are suspended.
        self._busy: set[ProcessQueue] = set()

    def put(self, portions: Sequence[Chunk]) -> None:
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

    def release(self, job: Job) -> None:
        if not job.suspended:
            self.resume(job.portion.queue)

    def resume(self, queue: ProcessQueue) -> None:
        """Let QUEUE wait for a worker again, after it had one or was suspended."""
        with self._lock:
            if queue in self._portions:
                self._open.append(queue)

    def forget(self, queue: ProcessQueue) -> None:
        """Remove everything of QUEUE, which was dropped."""
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
