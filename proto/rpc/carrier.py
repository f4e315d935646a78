"""Carriers: servers of method tables, which report metrics of their connections.

Duties of a carrier:

- It decodes requests. Bytes that cannot be decoded are INVALID_ARGUMENT, and no handler is called.
- It calls everything on the loop's thread: one message of a stream after the other. `on_close` is called exactly once
  and last, for each `Receiver` that a handler returned.
- It keeps the order of `send`. It reads no further message of a stream while the awaitable of `on_message` is pending
  or the outgoing queue is full.
- It drops answers to callers that have disconnected, without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .limits import Limits
from .methods import MethodTable


class Carrier(Protocol):
    """Serves method tables to clients."""

    async def start(self, host: str, port: int) -> int:
        """Serve at HOST and PORT (0: any free one) and return the port; raise CannotListen if that is not possible."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let open ones end within GRACE_S seconds, and fail the rest."""
        ...


class MakeCarrier(Protocol):
    """Creates the carrier of TABLES: usually its class."""

    def __call__(self, tables: Iterable[MethodTable], *, limits: Limits) -> Carrier: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFigures:
    """One open connection. Counters start when it was opened; ages are those of the present moment."""

    #: Rises by one with each connection that is accepted; the first is 1.
    id: int
    #: "127.0.0.1:40312" or "[::1]:40312".
    peer: str
    #: Does it use TLS?
    secure: bool
    age_ms: int
    #: Open calls and streams.
    streams_open: int
    calls_begun: int
    #: Answered with OK.
    calls_succeeded: int
    #: Answered with another status, or cancelled by the caller.
    calls_failed: int
    #: As sent by the peer, including the overhead of TLS and HTTP/2.
    bytes_read: int
    bytes_written: int
    #: Not written yet, because the peer does not read.
    bytes_queued: int
    #: Of its first call, as received: a peer may send anything. "": the call had none.
    user_agent: str = ""
    #: Path of the call that started last, as received; "": no call yet.
    last_path: str = ""
    #: Time since then; 0 without a call.
    last_call_age_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTotals:
    """All connections of a server since its start."""

    open: int
    #: Open and closed connections.
    accepted: int
    #: Beyond the limit; they are not counted as accepted.
    refused: int
    #: The number of closed connections by reason. The carrier has a small, fixed set of reasons.
    closed: Mapping[str, int] = field(default_factory=dict)
    #: Bytes of requests that are incomplete, or wait for their reader.
    requests_held_bytes: int = 0
    #: Bytes of answers that the peers have not read.
    answers_held_bytes: int = 0


@runtime_checkable
class CountsConnections(Protocol):
    """A carrier that counts connections. Call it on its event loop, while it serves."""

    def connection_figures(self, first_id: int, limit: int) -> Sequence[ConnectionFigures]:
        """Return up to LIMIT open connections in the order of their ids, from FIRST_ID on."""
        ...

    def connection_totals(self) -> ConnectionTotals:
        """Return the counters of all connections."""
        ...

    def close_connection(self, number: int) -> bool:
        """Close connection NUMBER and fail its open calls; return whether it was open."""
        ...
