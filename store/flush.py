"""Bringing what was written to the device, off the owner's thread.

`Flusher` is the thread: it takes one job at a time, a list of things to sync, and reports the outcome. `GroupCommit`
is the owner's side for the commit log: whoever needs the device waits here, one sync serves all that came before it
began, and the next sync begins as soon as the last one ended if anybody still waits.

A sync that failed leaves nobody knowing what reached the device (the kernel may have dropped the dirty pages), so it
fails everybody who waits, and the store takes no more writes.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..proto.errors import DiskFailure, PocketMQError, StoreError, StoreFull, TooManyOpenFiles
from .files import Syncable

logger = logging.getLogger(__name__)

#: How often, and after how long each, a sync is tried for which there is no descriptor: half a minute.
_TRIES: Final = 300
_PAUSE_S: Final = 0.1
_NEVER: Final = threading.Event()

#: Runs a function in the owner's thread, soon: `loop.call_soon_threadsafe`.
CallOwner = Callable[[Callable[[], None]], object]
#: Told of None, or of the error that makes it unknown whether the bytes are on the device.
Waiter = Callable[[StoreError | None], None]


@dataclass(frozen=True, slots=True)
class FlushJob:
    """Things to sync, in order, and whom to tell (in the flusher's thread)."""

    parts: list[Syncable]
    done: Callable[[StoreError | None], None]


class Flusher:
    """One thread that syncs. `start` before the first `submit`; `stop` ends it after the job at hand."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[FlushJob | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: The first sync that failed. The kernel tells of a failure once: whoever syncs again hears of success.
        self.error: StoreError | None = None

    def start(self) -> None:
        """Start the thread; raises StoreFull where the process cannot have another one."""
        assert self._thread is None, "a flusher starts once"
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreFull(
                f"no thread can be started ({error}): give the process more memory, or more threads (ulimit -u)",
                reason=str(error),
            ) from error
        self._thread = thread

    def stop(self) -> None:
        """Finish what was submitted, then end the thread; a flusher that was not started is fine."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    @property
    def running(self) -> bool:
        return self._thread is not None

    def submit(self, job: FlushJob) -> None:
        """Hand over JOB; without a thread it is done here and now."""
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
    """Sync PARTS in order; return the first error, behind which nothing was tried.

    What finds no descriptor was not tried, so it is again, up to TRIES times, every _PAUSE_S. The error is a
    DiskFailure, also where there was no room: what waits for the sync is stored, and must not be taken for refused.
    """
    try:
        for part in parts:
            _sync(part, tries)
    except DiskFailure as error:
        return error
    except StoreError as error:
        return DiskFailure(f"not synced: {error.message}", **error.details)
    except OSError as error:
        return DiskFailure(f"a sync failed: {error}", reason=str(error))
    return None


def _sync(part: Syncable, tries: int) -> None:
    for left in reversed(range(tries)):
        try:
            part.sync()
            return
        except TooManyOpenFiles as error:
            if not left:
                raise
            logger.warning("a sync waits for a descriptor", extra={"reason": error.message})
            _NEVER.wait(_PAUSE_S)


def _at_once(function: Callable[[], None]) -> None:
    function()


def _log_failure(error: StoreError) -> None:
    logger.error("a sync failed", extra={"reason": error.message})


class GroupCommit:
    """Who waits for which offset of the log, and the sync that is under way. Not thread-safe: the owner's."""

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
        """COLLECT returns the present end of the log and what must be synced to have all before it.

        All before FLUSHED_OFFSET is on the device. In the owner's thread, which CALL_OWNER reaches, all of ON_FLUSHED
        are called with each new flushed offset, and ON_FAILED when a sync failed, before the waiters are.
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
        """From now on reach the owner's thread by CALL_OWNER; before, it is the only one."""
        self.call_owner = call_owner

    def doubt(self, offset: int) -> None:
        """What lies behind OFFSET may not be on the device, whatever was synced before."""
        self.flushed_offset = offset

    @property
    def waiting(self) -> int:
        """Return how many wait for the device."""
        return len(self._waiting)

    def wait_for(self, end_offset: int, waiter: Waiter) -> None:
        """Call WAITER once everything before END_OFFSET is on the device (at once if it is), or never will be."""
        if self.failure is not None:
            waiter(self.failure)
        elif end_offset <= self.flushed_offset:
            waiter(None)
        else:
            self._waiting.append((end_offset, waiter))
            self.flush_up_to(end_offset)

    def flush_up_to(self, end_offset: int) -> None:
        """Begin a sync, or let one follow the one under way, so that everything before END_OFFSET is covered."""
        self._wanted_offset = max(self._wanted_offset, end_offset)
        if not self._busy and self.failure is None and self._wanted_offset > self.flushed_offset:
            self._begin()

    def _begin(self) -> None:
        end_offset, parts = self._collect()
        assert self._wanted_offset <= end_offset, "nobody waits for what was not written yet"
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
        """Everything before END_OFFSET is on the device: tell who waits for it."""
        if end_offset <= self.flushed_offset:
            return
        self.flushed_offset = end_offset
        reached = [waiter for end, waiter in self._waiting if end <= end_offset]
        self._waiting = [(end, waiter) for end, waiter in self._waiting if end > end_offset]
        for waiter in reached:
            tell(waiter, None)
        for callback in self._on_flushed:
            tell(callback, end_offset)

    def fail(self, error: StoreError) -> None:
        """It is unknown from now on what is on the device: tell everybody who waits, and refuse to wait again."""
        if self.failure is None:
            self.failure = error
            self._on_failed(error)
        waiting, self._waiting = self._waiting, []
        for _, waiter in waiting:
            tell(waiter, error)


def tell(listener: Callable[..., object], *arguments: object) -> None:
    """Call LISTENER with ARGUMENTS. What it raises is told in the log: it must not keep others from hearing."""
    try:
        listener(*arguments)
    except PocketMQError as error:
        logger.error("a listener failed", extra={"reason": error.message})
    except Exception:  # A bug of the listener's.
        logger.exception("a listener failed")
