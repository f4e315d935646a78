"""The memory quota of a server: the bytes it holds for the peers of all connections.

All connections share one limit without fixed shares, so a single busy peer may use nearly all of it. When it is used
up, connections lose their bytes in the order of their burden: bytes × time held. The host whose connections have the
highest total burden loses first, and of its connections the one with the highest burden. So many connections that hold
a little each count as one burden, and of many clients with one address the active ones keep their bytes.

A call that holds nothing costs nothing, any other call two table look-ups. An eighth of the limit is freed at once, so
that the search through all connections is rare.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from .limits import owner_of

logger = logging.getLogger(__name__)
#: An eighth of the limit is freed when the limit is reached.
_ROOM: Final = 8
#: When usage falls from this peak or more to a quarter, freed memory is returned to the system.
_PEAK_BYTES: Final = 64 * 1024 * 1024
STEP_MS: Final = 50
#: Old steps are removed when there are this many, and twice as many as steps with deadlines.
STEPS_MIN: Final = 100


class Holder(Protocol):
    """A connection."""

    #: The peer's end of it, "127.0.0.1:40312" or "[::1]:40312".
    peer: str


HolderT = TypeVar("HolderT", bound=Holder)


def ignore() -> None:
    """Do nothing: the allocator keeps freed memory."""


class MemoryQuota(Generic[HolderT]):
    """The bytes that holders have, up to BYTES_MAX; KIND names these bytes in the log."""

    def __init__(self, kind: str, bytes_max: int, released: Callable[[], None] = ignore) -> None:
        """RELEASED is called when usage has fallen far below a high peak."""
        self._released = released
        self._kind = kind
        self.bytes_max = bytes_max
        #: Total bytes.
        self.held = 0
        #: The usage to which `make_room` reduces.
        self.goal = bytes_max - bytes_max // _ROOM
        self._of: dict[HolderT, int] = {}
        self._is_making_room = False
        self._was_over = False
        self._peak = 0

    @property
    def free(self) -> int:
        """Bytes of the limit that are not in use; 0 when the limit is exceeded."""
        return max(0, self.bytes_max - self.held)

    def hold(self, holder: HolderT, size: int) -> None:
        """Note that HOLDER now has SIZE bytes."""
        self.held += size - self._of.pop(holder, 0)
        if size:
            self._of[holder] = size
        if self.held > self._peak:
            self._peak = self.held
        elif self._peak >= _PEAK_BYTES and self.held < self._peak // 4:
            self._peak = self.held
            self._was_over = False
            self._released()

    def make_room(self, burden: Callable[[HolderT], int], take: Callable[[HolderT], None]) -> None:
        """If usage exceeds the limit, call TAKE with holders, the one with the greatest BURDEN (bytes × time) first.

        TAKE ends as many of their calls as are needed to come down to `goal`.
        """
        if self.held <= self.bytes_max or self._is_making_room:
            return
        self._is_making_room = True
        try:
            holders = self._by_burden(burden)
            if not self._was_over:
                logger.warning(
                    "memory quota exceeded kind=%s limit=%d holders=%d first=%s",
                    self._kind,
                    self.bytes_max,
                    len(holders),
                    holders[0].peer,
                )
            self._was_over = True
            for holder in holders:
                if self.held <= self.goal:
                    break
                take(holder)
        finally:
            self._is_making_room = False

    def _by_burden(self, burden: Callable[[HolderT], int]) -> list[HolderT]:
        """Return all holders: the host with the greatest burden first, and within a host the greatest first."""
        burdens = {holder: (owner_of(holder.peer), burden(holder)) for holder in self._of}
        sums: Counter[str] = Counter()
        for host, own in burdens.values():
            sums[host] += own

        def rank(holder: HolderT) -> tuple[int, int]:
            host, own = burdens[holder]
            return sums[host], own

        return sorted(burdens, key=rank, reverse=True)
