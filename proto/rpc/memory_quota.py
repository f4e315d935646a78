"""The memory quota of all connections of a server: bytes held for peers.

All connections share one limit without fixed shares, so a single busy peer may use nearly all of it. If it is used up,
holders lose their bytes in the order of their burden: bytes × time held. The host whose connections have the highest
total burden loses first, and of its connections the one with the highest burden. So many connections that hold a little
each count as one burden, and of many clients behind one address the active ones keep their bytes.

A call that holds nothing costs nothing; another one costs two table look-ups. An eighth of the limit is freed at once,
so that the search through all holders is rare.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from .limits import owner_of

logger = logging.getLogger(__name__)
#: This fraction (1/8) of the limit is freed when the limit is reached.
_ROOM: Final = 8
#: After usage fell from this peak to a quarter of it, freed memory is returned to the system.
_PEAK_BYTES: Final = 64 * 1024 * 1024
STEP_MS: Final = 50
#: So many steps are kept, and twice those that have deadlines, before the others are looked for.
STEPS_MIN: Final = 100


class Holder(Protocol):
    """A connection."""

    #: The peer's end of it, "127.0.0.1:40312" or "[::1]:40312".
    peer: str


HolderT = TypeVar("HolderT", bound=Holder)


def ignore() -> None:
    """Leave what was freed to the allocator."""


class Shares(Generic[HolderT]):
    """What holders have of BYTES_MAX; KIND says of what, in the log."""

    def __init__(self, kind: str, bytes_max: int, released: Callable[[], None] = ignore) -> None:
        """RELEASED is called when usage has fallen far below a high peak."""
        self._released = released
        self._kind = kind
        self.bytes_max = bytes_max
        #: Bytes of all.
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
        """Note that HOLDER has SIZE bytes now."""
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
        """If usage exceeds the limit, have TAKE end holdings, the one with the greatest BURDEN (bytes × time) first.

        TAKE ends no more than it takes to come down to `goal`.
        """
        if self.held <= self.bytes_max or self._is_making_room:
            return
        self._is_making_room = True
        try:
            holders = self._by_burden(burden)
            if not self._was_over:
                logger.warning(
                    "peers hold too much kind=%s limit=%d holders=%d first=%s",
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
        """Return all holders: those of the host with the greatest burden first, and of a host the greatest first."""
        burdens = {holder: (owner_of(holder.peer), burden(holder)) for holder in self._of}
        sums: Counter[str] = Counter()
        for host, own in burdens.values():
            sums[host] += own

        def rank(holder: HolderT) -> tuple[int, int]:
            host, own = burdens[holder]
            return sums[host], own

        return sorted(burdens, key=rank, reverse=True)
