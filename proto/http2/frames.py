"""Frames: the nine bytes in front of each, their kinds, flags, settings and error codes (RFC 9113 §4, §6, §7).

    length 24 | type 8 | flags 8 | reserved 1, stream 31 | payload of that length

Kinds and flags are plain integers: they are compared for every frame that comes.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
#: The length as its upper and lower part.
HEAD: Final = struct.Struct(">BHBBL")
STREAM_MASK: Final = 0x7FFF_FFFF

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

#: What holds until a peer says otherwise.
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME_SIZE: Final = 16_384
FRAME_SIZE_MAX: Final = 0xFF_FFFF
WINDOW_MAX: Final = 0x7FFF_FFFF

SETTING: Final = struct.Struct(">HL")
WORD: Final = struct.Struct(">L")


class ErrorCode(enum.IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a frame of KIND; its PAYLOAD is no longer than the peer takes."""
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return the frame that announces VALUES, by identifier."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in values.items()))


def window_update(stream_id: int, size: int) -> bytes:
    """Return the frame that lets the peer send SIZE bytes more, on STREAM_ID or (0) in all."""
    return frame(WINDOW_UPDATE, 0, stream_id, WORD.pack(size))


def reset(stream_id: int, code: int) -> bytes:
    """Return the frame that ends STREAM_ID with CODE."""
    return frame(RST_STREAM, 0, stream_id, WORD.pack(code))


def go_away(last_stream_id: int, code: int, reason: str = "") -> bytes:
    """Return the frame that ends the connection: streams above LAST_STREAM_ID were not looked at."""
    return frame(GOAWAY, 0, 0, WORD.pack(last_stream_id) + WORD.pack(code) + reason.encode())


def header_frames(stream_id: int, block: bytes, frame_size: int, *, ends: bool) -> bytes:
    """Return the frames that carry field BLOCK: HEADERS, and CONTINUATION where FRAME_SIZE is too small for it."""
    flags = END_STREAM if ends else 0
    if len(block) <= frame_size:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [block[at : at + frame_size] for at in range(0, len(block), frame_size)]
    found = [frame(HEADERS, flags, stream_id, parts[0])]
    found += [frame(CONTINUATION, 0, stream_id, part) for part in parts[1:-1]]
    found.append(frame(CONTINUATION, END_HEADERS, stream_id, parts[-1]))
    return b"".join(found)
