"""The thread with an event loop that all synchronous clients of a process share.

The first client starts it, and the last client that is closed ends it. There is only one, because two threads would
compete for the interpreter lock. `LoopThread.post` is the cheap way to call a function on the loop: only the first of
several calls wakes the loop. Any thread may use it. The loop runs the calls in the order in which they were posted.

A forked process has a copy of the clients but not the thread. There each call raises ClientClosed, and `close` does
nothing. A client that you create there gets a new thread. The copies are kept, because deleting them would end the
connections of the parent process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from ..proto.errors import ClientClosed

Value = TypeVar("Value")


class LoopThread:
    """A thread that runs an event loop, shared by all clients that acquired it."""

    _shared: LoopThread | None = None
    _shared_lock = threading.Lock()  # protects _shared and _holders
    #: Copies of the threads of parent processes.
    _inherited: ClassVar[list[LoopThread]] = []

    def __init__(self) -> None:
        self._holders = 0
        self._row: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._awake = False
        #: Whether the loop has ended. Calls that were posted before are executed, or fail with ClientClosed.
        self._has_ended = False
        #: Whether this process was forked after the thread was started.
        self.is_inherited = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pocketmq-client", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> LoopThread:
        """Return the shared thread. Each caller of `acquire` calls `release` once."""
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = cls()
            cls._shared._holders += 1
            return cls._shared

    @classmethod
    def forked(cls) -> None:
        """Forget the thread of the parent process. Called in a forked process."""
        cls._shared_lock = threading.Lock()  # Another thread may have held it.
        if (left := cls._shared) is not None:
            left.is_inherited = left._has_ended = True
            cls._inherited.append(left)
            cls._shared = None

    def release(self) -> None:
        """Undo `acquire`. The last call ends the loop and the thread."""
        if self.is_inherited:
            return
        with self._shared_lock:
            self._holders -= 1
            if self._holders:
                return
            LoopThread._shared = None
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
            self._call_posted()
            loop.run_until_complete(self._cancel_rest())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _cancel_rest(self) -> None:
        """Cancel work that was started after the last client was closed."""
        await asyncio.sleep(0)  # So that work of other threads becomes tasks.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call FUNCTION with ARGUMENTS on the loop soon. FUNCTION must not raise."""
        self._row.append((function, arguments))
        # Checked after the append, because the end of the loop executes everything that was appended before.
        if self._has_ended:
            self.check()
            raise ClientClosed("the client is closed")
        if not self._awake:
            self._awake = True
            with suppress(RuntimeError):  # The loop has ended meanwhile, and has executed the call.
                self._loop.call_soon_threadsafe(self._call_posted)

    def _call_posted(self) -> None:
        # Cleared first: calls that are appended from here on are either executed below, or they wake the loop again.
        self._awake = False
        row = self._row
        for _ in range(len(row)):
            function, arguments = row.popleft()
            function(*arguments)

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run WORK on the loop and return its result. If this thread is interrupted, WORK is cancelled."""
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            if self._has_ended:
                raise ClientClosed("the client is closed") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def check(self) -> None:
        """Raise ClientClosed if this process was forked after the thread was started."""
        if self.is_inherited:
            raise ClientClosed(
                "the client was created before this process was forked: create one in this process"
            )

    def start(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        """Start WORK on the loop. Raises ClientClosed on the loop's own thread, which would wait for itself."""
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
            raise ClientClosed("the client is closed") from None
        if self._has_ended:  # The loop may not execute it any more.
            self._thread.join()
            if future.cancel():
                work.close()
        return future


if hasattr(os, "register_at_fork"):  # Windows has neither.
    os.register_at_fork(after_in_child=LoopThread.forked)
