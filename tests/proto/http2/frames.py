"""Frames of HTTP/2 (RFC 9113 §4, §6) for tests, whether valid or not. Written apart from the server's own."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Type(enum.IntEnum):
    """Types of frames (§6)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(enum.IntEnum):
    """Settings (§6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(enum.IntEnum):
    """Error codes (§7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20


class Frame(NamedTuple):
    """A frame as it came; FIELDS is what its block says, with HEADERS alone."""

    type: int
    flags: int
    stream: int
    payload: bytes
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def ends_stream(self) -> bool:
        return self.type in (Type.DATA, Type.HEADERS) and self.flags & END_STREAM != 0

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        at = 4 if self.type == Type.GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")

    @property
    def last_stream(self) -> int:
        """The last stream that a GOAWAY promises to serve."""
        return int.from_bytes(self.payload[:4], "big")


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame, as it is asked for."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(values: Mapping[int, int] | None = None) -> bytes:
    pairs = (struct.pack(">HI", *pair) for pair in (values or {}).items())
    return frame(Type.SETTINGS, payload=b"".join(pairs))


def ping(payload: bytes = bytes(8), *, ack: bool = False) -> bytes:
    return frame(Type.PING, ACK if ack else 0, payload=payload)


def window_update(stream: int, increment: int) -> bytes:
    return frame(Type.WINDOW_UPDATE, stream=stream, payload=struct.pack(">I", increment))


def reset(stream: int, code: int = Code.CANCEL) -> bytes:
    return frame(Type.RST_STREAM, stream=stream, payload=struct.pack(">I", code))


def priority(stream: int, depends_on: int = 0, weight: int = 16) -> bytes:
    payload = struct.pack(">IB", depends_on, weight - 1)
    return frame(Type.PRIORITY, stream=stream, payload=payload)


def data(stream: int, payload: bytes = b"", *, end: bool = False) -> bytes:
    return frame(Type.DATA, END_STREAM if end else 0, stream, payload)


def headers(stream: int, block: bytes, *, end: bool = False, whole: bool = True) -> bytes:
    """Return HEADERS with a field BLOCK; not WHOLE: CONTINUATION is to follow."""
    flags = (END_STREAM if end else 0) | (END_HEADERS if whole else 0)
    return frame(Type.HEADERS, flags, stream, block)


def continuation(stream: int, block: bytes, *, whole: bool = False) -> bytes:
    return frame(Type.CONTINUATION, END_HEADERS if whole else 0, stream, block)


def cut(received: bytearray) -> Iterator[Frame]:
    """Take the whole frames off the front of RECEIVED."""
    at = 0
    try:
        while len(received) - at >= 9:
            end = at + 9 + int.from_bytes(received[at : at + 3], "big")
            if end > len(received):
                break
            kind, flags, stream = struct.unpack_from(">BBI", received, at + 3)
            payload = bytes(received[at + 9 : end])
            at = end
            yield Frame(kind, flags, stream & 0x7FFF_FFFF, payload)
    finally:
        del received[:at]
