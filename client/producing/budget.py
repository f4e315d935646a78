"""The memory that unacknowledged messages may take, shared by all topics of a producer.

`take` and `give` may be called from any thread; waiting is for the event loop. Waiters are served in their order, and
a message larger than the whole budget is let in when nothing else is there.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from ...proto.errors import BufferFull


class Budget:
    """Counts bytes up to LIMIT_BYTES."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        #: Called when somebody begins to wait: what lingers has to leave.
        self.on_short: Callable[[], None] | None = None
        #: How many have waited.
        self.wait_count = 0
        self._taken_bytes = 0
        self._lock = threading.Lock()  # protects _taken_bytes
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    @property
    def is_short(self) -> bool:
        """Does somebody wait?"""
        return bool(self._waiters)

    def take(self, size_bytes: int) -> bool:
        """Take SIZE_BYTES if they are there and nobody waits for them."""
        if self._waiters:
            return False
        with self._lock:
            taken_bytes = self._taken_bytes + size_bytes
            if taken_bytes > self.limit_bytes and self._taken_bytes:
                return False
            self._taken_bytes = taken_bytes
            return True

    async def take_within(self, size_bytes: int, max_block_ms: int) -> None:
        """Take SIZE_BYTES; wait for them up to MAX_BLOCK_MS. Raises BufferFull."""
        if self.take(size_bytes):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size_bytes, waiter))
        self.wait_count += 1
        if self.on_short is not None:
            self.on_short()
        try:
            async with asyncio.timeout(max_block_ms / 1000):
                await waiter
        except TimeoutError:
            raise self.full(f"for {max_block_ms} ms") from None
        finally:
            self._drop(waiter, size_bytes)

    def _drop(self, waiter: asyncio.Future[None], size_bytes: int) -> None:
        """Forget WAITER; hand on what it was given but, cancelled, will not use."""
        if waiter.cancelled() or not waiter.done():
            self._waiters = deque(entry for entry in self._waiters if entry[1] is not waiter)
            self._serve()

    def give(self, size_bytes: int) -> None:
        """Give SIZE_BYTES back. On the event loop's thread."""
        with self._lock:
            self._taken_bytes -= size_bytes
        if self._waiters:
            self._serve()

    def _serve(self) -> None:
        while self._waiters:
            size_bytes, waiter = self._waiters[0]
            if not waiter.done():
                if not self._has_room(size_bytes):
                    return
                waiter.set_result(None)
            self._waiters.popleft()

    def _has_room(self, size_bytes: int) -> bool:
        """Take SIZE_BYTES for the one that waits longest, if they are there."""
        with self._lock:
            if self._taken_bytes and self._taken_bytes + size_bytes > self.limit_bytes:
                return False
            self._taken_bytes += size_bytes
            return True

    def full(self, how_long: str) -> BufferFull:
        """Return the error for a sender that found no room."""
        return BufferFull(
            f"the producer's buffer of {self.limit_bytes} bytes was full {how_long}: the brokers take less than you "
            f"send; wait for acknowledgements, raise buffer_memory, or raise max_block_ms",
            limit=self.limit_bytes,
        )
