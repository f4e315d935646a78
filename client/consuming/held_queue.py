"""What sharing says to reading: this queue is yours from now on, give that one back.

    source (who gets which queue)          user (who reads)
    sharing.py    a group's share    ───►  begin(held)         read on at the committed offset
    unshared_queues.py               ◄───  lost(held)          the broker says that it is not ours any more
                                     ───►  end(queue, lost)    stop, finish or drop, commit; then it is let go

For each queue `begin` and `end` alternate; a queue comes again only after its `end` has returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...proto.errors import PocketMQError
from ..queue import Queue


@dataclass(frozen=True, slots=True)
class HeldQueue:
    """A queue that is ours to read and to commit."""

    queue: Queue
    #: By which the broker knows it; 0: it is not shared, nobody else is kept from it.
    token: int
    #: The group's offset when it was given; −1: never committed.
    committed: int
    #: The group starts with us: the settings "earliest" and "latest" count more than what is committed.
    from_start: bool = False


class QueueUser(Protocol):
    """Reads the queues that a source gives it. All calls come on the event loop."""

    def begin(self, held: HeldQueue) -> None:
        """Read the queue from now on."""
        ...

    async def end(self, queue: Queue, *, lost: bool) -> None:
        """Stop reading QUEUE, finish or drop what is held of it, and commit; it is let go when this returns.

        LOST: somebody else may have it already: nothing can be committed. Cancelled after rebalance_timeout_ms; then
        the queue goes all the same, and what was not committed comes again there.
        """
        ...

    def fail(self, error: PocketMQError) -> None:
        """Have the application meet ERROR: it was refused, and what is held ends."""
        ...


class QueueSource(Protocol):
    """Gives queues to a user."""

    def start(self) -> None:
        """Begin."""
        ...

    def held(self, queue: Queue) -> HeldQueue | None:
        """Return by what right QUEUE is read; None: it is not ours."""
        ...

    def lost(self, held: HeldQueue) -> None:
        """Hear that the broker does not know HELD any more. Of an old right nothing happens."""
        ...

    def fetched(self, held: HeldQueue, sent_ms: int) -> None:
        """Hear that the broker has answered a fetch of HELD that was sent at SENT_MS: its lease lasts from there."""
        ...

    def doubt(self, held: HeldQueue) -> None:
        """Hear that the connection broke by which HELD was read: its broker may not know of it any more."""
        ...

    def look_again(self) -> None:
        """Look for changes of the queues soon: an error suggests one."""
        ...

    async def close(self) -> None:
        """Have every queue ended, and let go of all."""
        ...
