"""The event loop of clients: the background tasks on it, how they wait by the clock, and the way to it from threads.

A client owns its tasks, ends them all, and lets none fail unheard. They wait until somebody rings, or for work that
ends in time.

All synchronous clients of a process share one background thread with one loop: the first opens it, the last to close
ends it, and no thread is left behind. (Two would only wait for each other's interpreter lock.) `Portal.post` is the
cheap way in: calls are appended to a row, and only the first of a row wakes the loop. Any thread may use a portal; what
is called runs on the loop's thread, in the order of posting.

A process that is forked has a copy of the clients, and not the thread. There they raise ClientClosed, closing them does
nothing, and clients that are made there get a loop of their own. The copies are kept: taken to pieces, they would end
the connections of the process before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from ..proto.clock import Clock
from ..proto.errors import ClientClosed
from ..proto.facts import Facts

logger = logging.getLogger(__name__)


class Tasks:
    """Owns tasks. Not thread-safe: its event loop owns it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run WORK in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            facts = Facts(task=task.get_name(), reason=repr(error))
            logger.error("background task failed %s", facts, exc_info=error)

    async def close(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        while running := list(self._running):
            for task in running:
                task.cancel()
            await asyncio.wait(running)


class Alarm:
    """Rings at an instant, or when it is told to. One waits at a time; its event loop owns it."""

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self._clock = clock
        self._tasks = tasks
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End the wait that is under way, or else the next one."""
        self._rung.set()

    async def wait_until(self, instant_ms: int) -> None:
        """Return at INSTANT_MS, or once it is rung."""
        if not self._rung.is_set():
            sleeping = self._tasks.spawn(self._sleep(instant_ms))
            try:
                await self._rung.wait()
            finally:
                sleeping.cancel()
        self._rung.clear()

    async def wait(self) -> None:
        """Return once it is rung."""
        await self._rung.wait()
        self._rung.clear()

    async def _sleep(self, instant_ms: int) -> None:
        await self._clock.sleep_until(instant_ms)
        self._rung.set()


async def finished_within(
    work: Coroutine[Any, Any, object], timeout_ms: int, clock: Clock, tasks: Tasks
) -> bool:
    """Run WORK for TIMEOUT_MS by CLOCK at most; return whether it ended by itself. Raises what it raised."""
    working = tasks.spawn(work)
    sleeping = tasks.spawn(clock.sleep_until(clock.now_ms() + timeout_ms))
    try:
        await asyncio.wait((working, sleeping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        sleeping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))


# ---------------------------------------------------------------- the way from threads

Value = TypeVar("Value")


class Portal:
    """A loop in a thread of its own, shared by those who hold it."""

    _shared: Portal | None = None
    _shared_lock = threading.Lock()  # protects _shared and _holders
    #: What the processes before a fork had.
    _inherited: ClassVar[list[Portal]] = []

    def __init__(self) -> None:
        self._holders = 0
        self._row: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._awake = False
        #: What is appended, or started, before this is set is still done, or told that its client is closed.
        self._has_ended = False
        #: Was this process forked since?
        self.is_inherited = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pocketmq-client", daemon=True)
        self._thread.start()

    @classmethod
    def hold(cls) -> Portal:
        """Return the shared portal; each holder lets go of it once, with `release`."""
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = cls()
            cls._shared._holders += 1
            return cls._shared

    @classmethod
    def forked(cls) -> None:
        """Leave behind what the process before has; for a process that was forked just now."""
        cls._shared_lock = threading.Lock()  # Another thread may have held it.
        if (left := cls._shared) is not None:
            left.is_inherited = left._has_ended = True
            cls._inherited.append(left)
            cls._shared = None

    def release(self) -> None:
        """Let go; the last holder ends loop and thread."""
        if self.is_inherited:
            return
        with self._shared_lock:
            self._holders -= 1
            if self._holders:
                return
            Portal._shared = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            self._has_ended = True
            self._work_off()
            loop.run_until_complete(self._cancel_rest())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _cancel_rest(self) -> None:
        """End what was started when the last client was closed already."""
        await asyncio.sleep(0)  # What threads have handed over becomes tasks.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have FUNCTION called with ARGUMENTS on the loop, soon; it must not raise."""
        self._row.append((function, arguments))
        if (
            self._has_ended
        ):  # Looked at behind the append: what comes before the end is worked off by it.
            self.check()
            raise ClientClosed("the client was closed")
        if not self._awake:
            self._awake = True
            with suppress(RuntimeError):  # The loop has ended meanwhile, and has worked it off.
                self._loop.call_soon_threadsafe(self._work_off)

    def _work_off(self) -> None:
        # Cleared first: who appends from here on either is seen below, or wakes the loop again.
        self._awake = False
        row = self._row
        for _ in range(len(row)):
            function, arguments = row.popleft()
            function(*arguments)

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run WORK on the loop and return its result; an interrupt here cancels it there."""
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            if self._has_ended:
                raise ClientClosed("the client was closed") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def check(self) -> None:
        """Raise ClientClosed in a process that was forked since."""
        if self.is_inherited:
            raise ClientClosed(
                "the client was made before this process was forked: make one in this process"
            )

    def start(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        """Start WORK on the loop. Raises if called on the loop's own thread, which would wait for itself."""
        if threading.current_thread() is self._thread or self._has_ended:
            work.close()
            self.check()
            raise ClientClosed(
                "a synchronous client was called on its own event loop, or after it was closed: "
                "use the Async… classes in coroutines"
            )
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # The loop was closed meanwhile.
            work.close()
            raise ClientClosed("the client was closed") from None
        if self._has_ended:  # It may have come too late for the loop.
            self._thread.join()
            if future.cancel():
                work.close()
        return future


if hasattr(os, "register_at_fork"):  # Windows has neither.
    os.register_at_fork(after_in_child=Portal.forked)
