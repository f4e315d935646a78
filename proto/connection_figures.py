"""What a carrier that counts tells of its connections: plain values, and the protocol by which it is asked.

`services/connections.py` puts them on the wire. A carrier need not count: gRPC's own library does not let see its
connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFigures:
    """One open connection, counted since it was opened; ages are those of this moment."""

    #: Rises by one with each connection that is accepted; the first is 1.
    id: int
    #: "127.0.0.1:40312" or "[::1]:40312".
    peer: str
    #: TLS.
    secure: bool
    age_ms: int
    #: Calls and streams under way.
    streams_open: int
    calls_begun: int
    #: Answered with OK.
    calls_succeeded: int
    #: Answered with another status, or given up by the caller.
    calls_failed: int
    #: From the wire, what TLS and HTTP/2 add included.
    bytes_read: int
    bytes_written: int
    #: Not written yet, because the peer does not read.
    bytes_queued: int
    #: Of its first call, as it came: a peer may say anything. "": none said one.
    user_agent: str = ""
    #: Of the call begun last, as it came; "": none has begun.
    last_path: str = ""
    #: How long ago that was; 0 without one.
    last_call_age_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTotals:
    """All connections of a server since its start."""

    open: int
    #: Those that are open, and those that were closed.
    accepted: int
    #: Beyond the limit; they are not among the accepted.
    refused: int
    #: How many ended why; the reasons are the carrier's words, few and fixed.
    closed: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class CountsConnections(Protocol):
    """A carrier that counts. Asked on its event loop, while it serves."""

    def connection_figures(self, first_id: int, limit: int) -> Sequence[ConnectionFigures]:
        """Return LIMIT open connections at most, by id, beginning with the first whose id is not below FIRST_ID."""
        ...

    def connection_totals(self) -> ConnectionTotals:
        """Return what became of all connections."""
        ...
