"""The bounds of a connection, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from .frames import DEFAULT_FRAME_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The bounds of one connection."""

    #: Streams open at once; further ones are refused.
    streams_max: int = 4096
    #: The payload of one frame that is received.
    frame_bytes_max: int = 4 * DEFAULT_FRAME_SIZE
    #: The fields of a request: names, values and 32 bytes each (RFC 9113 §6.5.2).
    field_list_bytes_max: int = 16 * 1024
    #: What a peer may send on a stream, and in all, before it is read.
    stream_window: int = 4 * 1024 * 1024
    connection_window: int = 16 * 1024 * 1024
    #: A frame, or a block of fields, that has begun is whole by then.
    half_sent_ms: int = 10_000
    #: An answer whose peer takes nothing of it for so long is broken off.
    stalled_ms: int = 120_000
