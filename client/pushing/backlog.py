"""What workers have to do: jobs in the order of their arrival. Any thread may use a backlog.

    SharedBacklog     all idle workers take from the oldest row until it is empty: any order
    OrderedBacklog    a queue is with one worker at a time, who works on one portion of it; then it goes to the back

Every call takes a lock for some instructions; there is one for a portion, none for a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import length_hint
from threading import Lock
from typing import Protocol

from .listening import Job
from .process_queue import Portion, ProcessQueue


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
    """Rows that any number of workers take from."""

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
        """Whoever comes next looks for himself."""

    @property
    def left(self) -> int:
        with self._lock:
            return sum(length_hint(job.row) for job in self._jobs)


class OrderedBacklog:
    """Queues, each with one worker at most."""

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
        """Let QUEUE go on, which was with a worker, or suspended."""
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
