"""What an application can hear of queues that come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from .queue import Queue


class RebalanceListener:
    """Hears of queues while the application polls; leave out what you do not need.

    Of a synchronous consumer it is called on the polling thread, of an asyncio one on the event loop, where it may be a
    coroutine function. What it raises comes out of that poll.
    """

    def on_assigned(self, queues: Sequence[Queue]) -> Awaitable[None] | None:
        """QUEUES are ours from now on; nothing of them was handed out yet: `seek` is in time."""
        return None

    def on_revoked(self, queues: Sequence[Queue]) -> Awaitable[None] | None:
        """QUEUES go to others when this returns; what was handed out of them can still be committed."""
        return None

    def on_lost(self, queues: Sequence[Queue]) -> Awaitable[None] | None:
        """QUEUES may be others' already: nothing of them can be committed."""
        return None
