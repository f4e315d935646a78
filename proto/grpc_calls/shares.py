"""Bytes that a server holds for its peers, bounded over all connections: whoever is the greatest burden gives first.

There is one bound and no fixed share: a single busy peer may have nearly all of it. Where all of it is in use, room is
made for whoever comes by taking from the others in the order of their burdens: bytes that are held, times how long they
have been. The host whose connections are the greatest burden together gives first, so that many connections that hold a
little each are one burden; of its connections the greatest, so that of many clients behind one address those that go
on keep what they have. Who sends a request, or takes an answer, at any pace that a network has is next to none.

Cost: nothing per call that holds nothing; else two look-ups in a table. Room is made an eighth of the bound at once, so
that looking through all holders happens once for so many bytes.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

#: The part of the bound that is made free when it is reached.
_ROOM: Final = 8
#: A host is an IPv4 address, or so many leading bytes of an IPv6 address: its owner has all that follow.
_V6_HOST_BYTES: Final = 8
#: Who held so much, and holds a quarter of it, has freed what is worth giving back to the system.
_PEAK_BYTES: Final = 64 * 1024 * 1024


class Holder(Protocol):
    """A connection."""

    #: The peer's end of it, "127.0.0.1:40312" or "[::1]:40312".
    peer: str


HolderT = TypeVar("HolderT", bound=Holder)


class Shares(Generic[HolderT]):
    """What holders have of BYTES_MAX; KIND says of what, in the log."""

    def __init__(self, kind: str, bytes_max: int) -> None:
        self._kind = kind
        self.bytes_max = bytes_max
        #: Bytes of all.
        self.held = 0
        #: What is left when room was made.
        self.goal = bytes_max - bytes_max // _ROOM
        self._of: dict[HolderT, int] = {}
        self._is_making_room = False
        self._was_over = False
        self._peak = 0
        #: Told when much was held and is no more.
        self.released: Callable[[], None] = _ignore

    @property
    def free(self) -> int:
        """Bytes that nobody holds; none where room has to be made."""
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
            self.released()

    def make_room(self, burden: Callable[[HolderT], int], take: Callable[[HolderT], None]) -> None:
        """Unless all is within the bound, have TAKE end what holders have, the greatest BURDEN (bytes × time) first.

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
        burdens = {holder: (host_of(holder.peer), burden(holder)) for holder in self._of}
        sums: Counter[str] = Counter()
        for host, own in burdens.values():
            sums[host] += own

        def rank(holder: HolderT) -> tuple[int, int]:
            host, own = burdens[holder]
            return sums[host], own

        return sorted(burdens, key=rank, reverse=True)


def _ignore() -> None:
    """Leave what was freed to the allocator."""


def host_of(peer: str) -> str:
    """Return who PEER, an address and a port, belongs to."""
    address = peer.rpartition(":")[0]
    if not address.startswith("["):
        return address
    try:
        return ipaddress.IPv6Address(address.strip("[]")).packed[:_V6_HOST_BYTES].hex()
    except ValueError:
        return address
