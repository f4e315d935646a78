"""The limits of servers, channels and their connections, with their defaults."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final

from .frames import DEFAULT_FRAME_SIZE

_MIB: Final = 1024 * 1024
#: A host is an IPv4 address, or this many leading bytes of an IPv6 address: one owner has all addresses with them.
_V6_HOST_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server."""

    #: Larger requests are refused with RESOURCE_EXHAUSTED.
    receive_bytes_max: int = 64 * 1024 * 1024
    #: When a stream's queue reaches this size, reading stops and `drained()` waits.
    queue_bytes: int = 8 * 1024 * 1024
    #: A stream fails when its queue exceeds this size: its peer does not read.
    queue_bytes_max: int = 128 * 1024 * 1024
    #: Calls and streams open at once on one connection; further ones wait at the peer.
    concurrent_streams_max: int = 4096
    #: A silent connection is probed this often …
    keepalive_ms: int = 30_000
    #: … and closed if no answer arrives in this time.
    keepalive_timeout_ms: int = 20_000
    #: A TLS handshake that takes longer is aborted.
    handshake_timeout_ms: int = 10_000
    #: grpcio sends GOAWAY to peers that probe more often. The built-in server counts probes in the flood budget.
    peer_keepalive_min_ms: int = 5_000
    #: Metadata of a call: names, values and 32 bytes each.
    metadata_bytes_max: int = 16 * 1024
    #: A request, or a message of a stream, must be complete this long after its first byte.
    request_ms: int = 60_000
    #: Bytes of requests that are incomplete or unread, on one connection and on all.
    half_sent_bytes_connection: int = 128 * 1024 * 1024
    half_sent_bytes_server: int = 256 * 1024 * 1024
    #: Bytes of answers that wait for the peer of one connection, and for all peers.
    connection_queue_bytes_max: int = 256 * 1024 * 1024
    queue_bytes_server: int = 256 * 1024 * 1024
    #: An answer is aborted if its peer reads nothing of it for this time.
    stalled_ms: int = 120_000
    #: Connections open at once; further ones are closed.
    connections_max: int = 10_000
    #: Connections older than this receive GOAWAY and have this long to end their calls; 0: no limit.
    connection_age_ms: int = 7 * 86_400_000
    connection_age_grace_ms: int = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one connection."""

    #: Streams open at once; further ones are refused.
    streams_max: int = 4096
    #: The maximum payload of a received frame.
    frame_bytes_max: int = 4 * DEFAULT_FRAME_SIZE
    #: The fields of a request: names, values and 32 bytes each (RFC 9113 §6.5.2).
    field_list_bytes_max: int = 16 * 1024
    #: Bytes that a peer may send on a stream, and in all, before they are read.
    stream_window: int = 4 * 1024 * 1024
    connection_window: int = 16 * 1024 * 1024
    #: A frame, or a block of fields, must be complete this long after its first byte.
    half_sent_ms: int = 10_000
    #: An answer is aborted if its peer reads nothing of it for this time.
    stalled_ms: int = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """The limits of one channel."""

    #: One message, in either direction. A fetch returns at least one record, which may have 4 MiB and 64 KiB.
    message_bytes_max: int = 64 * _MIB
    #: The connection and the server's settings must arrive in this time.
    connect_ms: int = 2_000
    #: A server that is silent for this long during a call is probed (PING), …
    keepalive_ms: int = 20_000
    #: … and the connection is closed if no answer arrives in this time.
    keepalive_timeout_ms: int = 10_000
    #: Calls that wait for the connection, or for a free stream.
    waiting_max: int = 10_000
    #: When unread messages of a stream reach this size, the server must stop sending.
    unread_bytes: int = _MIB
    #: Bytes that a server may send before they are read, and in one frame: few large frames are cheapest.
    connection: ConnectionLimits = field(
        default_factory=lambda: ConnectionLimits(
            frame_bytes_max=256 * 1024,
            stream_window=4 * _MIB,
            connection_window=16 * _MIB,
        )
    )


def owner_of(peer: str) -> str:
    """Return the host of PEER (address and port). Limits per host count by it."""
    address = peer.rpartition(":")[0]
    if not address.startswith("["):
        return address
    try:
        return ipaddress.IPv6Address(address.strip("[]")).packed[:_V6_HOST_BYTES].hex()
    except ValueError:
        return address
