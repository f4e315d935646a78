"""The bounds of a channel, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ..http2.limits import ConnectionLimits

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """The bounds of one channel."""

    #: One message, in either direction: beyond a fetch, which brings at least one record of up to 4 MiB and 64 KiB.
    message_bytes_max: int = 64 * _MIB
    #: A server that is not there by then, its settings included, is not reached.
    connect_ms: int = 2_000
    #: A server that was silent for so long amid a call is asked whether it is there, …
    keepalive_ms: int = 20_000
    #: … and given up if it does not answer by then.
    keepalive_timeout_ms: int = 10_000
    #: Calls that wait for the connection, or for others to end where the server takes no more at once.
    waiting_max: int = 10_000
    #: Messages of a stream that nobody has read hold the server back from this size on.
    unread_bytes: int = _MIB
    #: What a server may send before it is read, and in one frame: few large ones are cheapest.
    connection: ConnectionLimits = field(
        default_factory=lambda: ConnectionLimits(
            frame_bytes_max=256 * 1024,
            stream_window=4 * _MIB,
            connection_window=16 * _MIB,
        )
    )
