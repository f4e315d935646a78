"""Another protocol on a server's port, recognized by its first byte. It gets the bytes of its connections.

A connection that is silent for `SILENT_MS` is closed. What does not follow from its bytes (requests, answers, limits)
is up to the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

#: How long a peer may send nothing, in two steps.
SILENT_MS: Final = 120_000


class OtherLink(Protocol):
    """A connection, as its conversation uses it."""

    #: The peer's end of it, "127.0.0.1:40312" or "[::1]:40312".
    peer: str

    @property
    def local_address(self) -> tuple[str, int]:
        """Return this end of it: the address that the peer connected to."""
        ...

    @property
    def is_secure(self) -> bool:
        """Does it use TLS?"""
        ...

    @property
    def certificate_names(self) -> Sequence[str]:
        """The names in the peer's verified certificate."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes that were written but are still on this host."""
        ...

    def write(self, data: bytes) -> None:
        """Send DATA."""
        ...

    def finish(self, reason: str) -> None:
        """Close for REASON, once everything was sent."""
        ...

    def abort(self, reason: str) -> None:
        """Close now, for REASON, one of a few constants."""
        ...


class OtherConversation(Protocol):
    """One connection's conversation."""

    def receive(self, data: bytes) -> None:
        """Process DATA from the peer."""
        ...

    def leave(self) -> None:
        """Take no more requests, and finish the connection once the open ones are answered: the server stops."""
        ...

    def lost(self) -> None:
        """Release everything: the connection is closed."""
        ...


class OtherProtocol(Protocol):
    """A protocol whose connections begin with FIRST_BYTE, which no HTTP and no TLS begins with."""

    @property
    def first_byte(self) -> int:
        """The first byte of each connection."""
        ...

    def open(self, link: OtherLink) -> OtherConversation:
        """Begin the conversation on LINK."""
        ...
