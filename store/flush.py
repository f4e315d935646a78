"""Flushes written data to disk in a thread of its own, off the owner's thread.

`Flusher` is the thread. It takes one job at a time, a list of objects to sync, and reports the result. `GroupCommit` is
the owner's side for the commit log. Callers that need their data on disk wait here. One sync serves all data written
before its start, and while callers wait, the next sync starts when the last one has ended.

After a failed sync it is unknown which data is on disk (the kernel may have dropped the dirty pages). So it fails all
waiting callers, and the store accepts no more writes.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..proto.errors import DiskFailure, PocketMQError, StoreError, StoreFull, TooManyOpenFiles
from ..proto.facts import Facts
from .files import Syncable

logger = logging.getLogger(__name__)

#: How often a sync is tried that has no free descriptor, at intervals of _PAUSE_S: for half a minute.
_TRIES: Final = 300
_PAUSE_S: Final = 0.1
_NEVER: Final = threading.Event()

#: Runs a function soon in the owner's thread: `loop.call_soon_threadsafe`.
CallOwner = Callable[[Callable[[], None]], object]
#: Called with None, or with the error after which it is unknown whether the bytes are on disk.
Waiter = Callable[[StoreError | None], None]


@dataclass(frozen=True, slots=True)
class FlushJob:
    """Objects to sync, in order, and the callback for the result (in the flusher's thread)."""

    parts: list[Syncable]
    done: Callable[[StoreError | None], None]


class Flusher:
    """A thread that syncs. Call `start` before the first `submit`; `stop` ends it after the current job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[FlushJob | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: The first failed sync. The kernel reports a failure only once: a second sync would succeed.
        self.error: StoreError | None = None

    def start(self) -> None:
        """Start the thread; raises StoreFull if the process cannot have another one."""
        assert self._thread is None, "a flusher starts once"
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreFull(
                f"cannot start a thread ({error}): give the process more memory, or more threads (ulimit -u)",
                reason=str(error),
            ) from error
        self._thread = thread

    def stop(self) -> None:
        """Finish the submitted jobs, then end the thread, if it was started."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    @property
    def running(self) -> bool:
        return self._thread is not None

    def submit(self, job: FlushJob) -> None:
        """Pass JOB to the thread; without a thread, do it now."""
        if self._thread is None:
            self._do(job)
        else:
            self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)

    def _do(self, job: FlushJob) -> None:
        error = sync_all(job.parts, tries=1 if self._thread is None else _TRIES)
        self.error = self.error or error
        job.done(error)


def sync_all(parts: list[Syncable], tries: int = 1) -> StoreError | None:
    """Sync PARTS in order; return the first error, after which nothing else was tried.

    A sync without a free descriptor is repeated, up to TRIES times, every _PAUSE_S. The error is a DiskFailure, even if
    there was no space: the data is stored, so it must not look refused.
    """
    try:
        for part in parts:
            _sync(part, tries)
    except DiskFailure as error:
        return error
    except StoreError as error:
        return DiskFailure(f"not synced: {error.message}", **error.details)
    except OSError as error:
        return DiskFailure(f"sync failed: {error}", reason=str(error))
    return None


def _sync(part: Syncable, tries: int) -> None:
    for left in reversed(range(tries)):
        try:
            part.sync()
            return
        except TooManyOpenFiles as error:
            if not left:
                raise
            logger.warning("sync waits for a free descriptor %s", Facts(reason=error.message))
            _NEVER.wait(_PAUSE_S)


def _at_once(function: Callable[[], None]) -> None:
    function()


def _log_failure(error: StoreError) -> None:
    logger.error("sync failed %s", Facts(reason=error.message))


class GroupCommit:
    """Callers that wait for an offset of the log, and the current sync. Not thread-safe: its owner calls it."""

    def __init__(
        self,
        collect: Callable[[], tuple[int, list[Syncable]]],
        flusher: Flusher,
        *,
        flushed_offset: int = 0,
        call_owner: CallOwner = _at_once,
        on_flushed: Sequence[Callable[[int], None]] = (),
        on_failed: Callable[[StoreError], None] = _log_failure,
    ) -> None:
        """COLLECT returns the present end of the log and what must be synced so that everything before it is on disk.

        All before FLUSHED_OFFSET is on disk. In the owner's thread, through CALL_OWNER, all of ON_FLUSHED are called
        with each new flushed offset, and ON_FAILED when a sync failed, before the waiters are.
        """
        self._collect = collect
        self._flusher = flusher
        self.call_owner = call_owner
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self.flushed_offset = flushed_offset
        self.failure: StoreError | None = None
        self._busy = False
        self._wanted_offset = 0
        self._waiting: list[tuple[int, Waiter]] = []

    def start(self, call_owner: CallOwner) -> None:
        """Use CALL_OWNER to call the owner's thread from now on. Before `start`, there is only that thread."""
        self.call_owner = call_owner

    def doubt(self, offset: int) -> None:
        """Note that bytes after OFFSET may not be on disk, although they were synced before."""
        self.flushed_offset = offset

    @property
    def waiting(self) -> int:
        """Return the number of waiters."""
        return len(self._waiting)

    def wait_for(self, end_offset: int, waiter: Waiter) -> None:
        """Call WAITER once everything before END_OFFSET is on disk (at once if it is), or when that fails."""
        if self.failure is not None:
            waiter(self.failure)
        elif end_offset <= self.flushed_offset:
            waiter(None)
        else:
            self._waiting.append((end_offset, waiter))
            self.flush_up_to(end_offset)

    def flush_up_to(self, end_offset: int) -> None:
        """Start a sync, or let one follow the current one, so that everything before END_OFFSET is synced."""
        self._wanted_offset = max(self._wanted_offset, end_offset)
        if not self._busy and self.failure is None and self._wanted_offset > self.flushed_offset:
            self._begin()

    def _begin(self) -> None:
        end_offset, parts = self._collect()
        assert self._wanted_offset <= end_offset, "a waiter waits for data that was not written"
        self._busy = True

        def done(error: StoreError | None) -> None:
            self.call_owner(lambda: self._finished(end_offset, error))

        self._flusher.submit(FlushJob(parts, done))

    def _finished(self, end_offset: int, error: StoreError | None) -> None:
        self._busy = False
        if error is not None:
            self.fail(error)
            return
        self.reached(end_offset)
        self.flush_up_to(self._wanted_offset)

    def reached(self, end_offset: int) -> None:
        """Everything before END_OFFSET is on disk: call the waiters for it."""
        if end_offset <= self.flushed_offset:
            return
        self.flushed_offset = end_offset
        reached = [waiter for end, waiter in self._waiting if end <= end_offset]
        self._waiting = [(end, waiter) for end, waiter in self._waiting if end > end_offset]
        for waiter in reached:
            notify(waiter, None)
        for callback in self._on_flushed:
            notify(callback, end_offset)

    def fail(self, error: StoreError) -> None:
        """It is now unknown what is on disk: call all waiters with ERROR, and refuse new ones."""
        if self.failure is None:
            self.failure = error
            self._on_failed(error)
        waiting, self._waiting = self._waiting, []
        for _, waiter in waiting:
            notify(waiter, error)


def notify(listener: Callable[..., object], *arguments: object) -> None:
    """Call LISTENER with ARGUMENTS. Its errors are logged and do not affect other listeners."""
    try:
        listener(*arguments)
    except PocketMQError as error:
        logger.error("listener failed %s", Facts(reason=error.message))
    except Exception:  # A bug of the listener.
        logger.exception("listener failed")
