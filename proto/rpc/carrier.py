"""Carriers: they serve method tables to clients, and report the metrics of their connections.

Duties of a carrier:

- It decodes requests. Bytes that cannot be decoded are INVALID_ARGUMENT, and no handler is called.
- It calls everything on the loop's thread: one message of a stream after the other. `on_close` is called exactly once
  and last, for each `Receiver` that a handler returned.
- It keeps the order of `send`. It reads no further message of a stream while the awaitable of `on_message` is pending
  or the outgoing queue is full.
- It drops answers to callers that disconnected, without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .limits import Limits
from .methods import MethodTable


class Carrier(Protocol):
    """What puts method tables within reach of callers."""

    async def start(self, host: str, port: int) -> int:
        """Serve at HOST and PORT (0: any free one) and return the port; raise CannotListen if that cannot be had."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let open ones end within GRACE_S seconds, fail the rest."""
        ...


class MakeCarrier(Protocol):
    """Makes the carrier of TABLES: the class of one, as a rule."""

    def __call__(self, tables: Iterable[MethodTable], *, limits: Limits) -> Carrier: ...


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
    #: Path of the call that started last, as received; "": no call yet.
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
    #: Bytes of requests that are not whole, or wait for their reader.
    requests_held_bytes: int = 0
    #: Bytes of answers that their peers have not read.
    answers_held_bytes: int = 0


@runtime_checkable
class CountsConnections(Protocol):
    """A carrier that counts. Asked on its event loop, while it serves."""

    def connection_figures(self, first_id: int, limit: int) -> Sequence[ConnectionFigures]:
        """Return up to LIMIT open connections in the order of their ids, from FIRST_ID on."""
        ...

    def connection_totals(self) -> ConnectionTotals:
        """Return what became of all connections."""
        ...

    def close_connection(self, number: int) -> bool:
        """Break off connection NUMBER, with all that is under way on it; return whether it was open."""
        ...
