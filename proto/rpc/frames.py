"""Frames of HTTP/2: their heads, reading and writing them (RFC 9113 §4, §6, §7).

    length 24 | type 8 | flags 8 | reserved 1, stream 31 | payload of that length

Types and flags are plain integers because they are compared for every frame. Mistakes of the peer raise StreamFault or
ConnectionFault (§5.4).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from .flood_budget import MISTAKE

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
#: The length is split into its upper and lower part.
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

#: Valid until the peer sends another value.
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
    """Return a frame of KIND. The caller ensures that the peer accepts the length of PAYLOAD."""
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return the frame that announces VALUES, by identifier."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in values.items()))


def window_update(stream_id: int, size: int) -> bytes:
    """Return the frame that lets the peer send SIZE more bytes on STREAM_ID, or on the connection (0)."""
    return frame(WINDOW_UPDATE, 0, stream_id, WORD.pack(size))


def rst_stream(stream_id: int, code: int) -> bytes:
    """Return the frame that ends STREAM_ID with CODE."""
    return frame(RST_STREAM, 0, stream_id, WORD.pack(code))


def goaway(last_stream_id: int, code: int, reason: str = "") -> bytes:
    """Return the frame that ends the connection: streams above LAST_STREAM_ID were not processed."""
    return frame(GOAWAY, 0, 0, WORD.pack(last_stream_id) + WORD.pack(code) + reason.encode())


def header_frames(stream_id: int, block: bytes, frame_size: int, *, ends: bool) -> bytes:
    """Return the frames of field BLOCK: HEADERS, and CONTINUATION if FRAME_SIZE is too small for it."""
    flags = END_STREAM if ends else 0
    if len(block) <= frame_size:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [block[at : at + frame_size] for at in range(0, len(block), frame_size)]
    found = [frame(HEADERS, flags, stream_id, parts[0])]
    found += [frame(CONTINUATION, 0, stream_id, part) for part in parts[1:-1]]
    found.append(frame(CONTINUATION, END_HEADERS, stream_id, parts[-1]))
    return b"".join(found)


class StreamFault(Exception):
    """A mistake that ends stream STREAM_ID with CODE, and costs COST of the peer's flood budget."""

    def __init__(self, stream_id: int, code: ErrorCode, reason: str, cost: int = MISTAKE) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code
        self.cost = cost


class ConnectionFault(Exception):
    """A mistake that ends the connection with CODE."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


_unpack: Final = HEAD.unpack_from

#: Kind, flags, stream, payload.
Frame = tuple[int, int, int, bytes]


class FrameReader:
    """Reads the client's preface and the frames after it. An incomplete frame (up to FRAME_SIZE bytes) waits."""

    def __init__(self, frame_size: int) -> None:
        self._frame_size = frame_size
        self._partial = bytearray()
        #: The number of bytes needed before anything can be read.
        self._needed = len(PREFACE)
        self._greeted = False
        #: The number of frames read.
        self.count = 0

    def greet(self) -> None:
        """Expect no preface: the peer is a server."""
        self._greeted = True
        self._needed = HEAD_BYTES

    @property
    def is_incomplete(self) -> bool:
        """Is a frame, or the preface, incomplete?"""
        return bool(self._partial) or not self._greeted

    def read(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that DATA completes; raise ConnectionFault for a frame over the limit, or a bad preface."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed and self._greeted:
                return
            data = bytes(self._partial)
            self._partial.clear()
        position = 0 if self._greeted else self._greet(data)
        end = len(data)
        while end - position >= HEAD_BYTES:
            upper, lower, kind, flags, stream_id = _unpack(data, position)
            size = upper << 16 | lower
            if size > self._frame_size:
                words = f"a frame of {size} bytes, the limit is {self._frame_size}"
                if (
                    not self.count
                ):  # The peer may be another kind of server, of HTTP/1.1, for example.
                    words += f"; it begins with {data[position : position + 16]!r}"
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, words)
            start = position + HEAD_BYTES
            if start + size > end:
                self._needed = HEAD_BYTES + size
                break
            position = start + size
            self.count += 1
            yield kind, flags, stream_id & STREAM_MASK, data[start:position]
        else:
            self._needed = HEAD_BYTES
        if position < end:
            self._partial += data[position:]

    def _greet(self, data: bytes) -> int:
        """Return where the frames begin; the end of DATA if the preface is incomplete."""
        if not data.startswith(PREFACE):
            if not PREFACE.startswith(data):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HTTP/2 connection preface missing")
            self._partial += data
            return len(data)
        self._greeted = True
        return len(PREFACE)


def without_padding(payload: bytes) -> bytes:
    """Return PAYLOAD of a frame with padding without the padding; raise ConnectionFault."""
    padding = payload[0] if payload else 0
    if padding >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding is longer than the frame")
    return payload[1 : len(payload) - padding]


#: The length of the priority before a block: the stream it depends on, and a weight.
_PRIORITY_BYTES: Final = 5


class FieldBlock(NamedTuple):
    """A complete block of fields. ENDS: nothing follows on its stream; DEPENDS_ON: a stream, from its priority."""

    stream_id: int
    data: bytes
    ends: bool
    depends_on: int


class FieldBlocks:
    """Gathers blocks; one of more than SIZE_MAX bytes ends the connection."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._first: FieldBlock | None = None
        self._rest = bytearray()

    @property
    def is_open(self) -> bool:
        """Return whether a block is incomplete. Only its continuation may follow then."""
        return self._first is not None

    def begin(self, flags: int, stream_id: int, payload: bytes) -> FieldBlock | None:
        """Return the block of a HEADERS frame, if it is complete."""
        if stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS without a stream")
        if flags & PADDED:
            payload = without_padding(payload)
        depends_on = 0
        if flags & WITH_PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its priority")
            depends_on = WORD.unpack_from(payload)[0] & STREAM_MASK
            payload = payload[_PRIORITY_BYTES:]
        block = FieldBlock(stream_id, payload, flags & END_STREAM != 0, depends_on)
        if flags & END_HEADERS:
            return block
        self._first = block
        self._gather(payload)
        return None

    def go_on(self, flags: int, stream_id: int, payload: bytes) -> FieldBlock | None:
        """Return the block that a CONTINUATION frame completes, if it does."""
        first = self._first
        if first is None or stream_id != first.stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without an open block")
        self._gather(payload)
        if not flags & END_HEADERS:
            return None
        data = bytes(self._rest)
        self._first = None
        self._rest.clear()
        return first._replace(data=data)

    def _gather(self, payload: bytes) -> None:
        self._rest += payload
        if len(self._rest) > self._size_max:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"a block of fields of more than {self._size_max} bytes",
            )


def check_dependency(stream_id: int, depends_on: int) -> None:
    """Raise StreamFault if STREAM_ID depends on itself (RFC 7540 §5.3.1; priorities are otherwise ignored)."""
    if stream_id == depends_on:
        raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")


#: By identifier: the minimum and the maximum value, and the error of another value.
_BOUNDS: Final = {
    ENABLE_PUSH: (0, 1, ErrorCode.PROTOCOL_ERROR),
    INITIAL_WINDOW_SIZE: (0, WINDOW_MAX, ErrorCode.FLOW_CONTROL_ERROR),
    MAX_FRAME_SIZE: (DEFAULT_FRAME_SIZE, FRAME_SIZE_MAX, ErrorCode.PROTOCOL_ERROR),
}


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield identifiers and values in their order; raise ConnectionFault for a value outside its limits."""
    if len(payload) % SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS are six bytes each")
    for identifier, value in SETTING.iter_unpack(payload):
        least, most, code = _BOUNDS.get(identifier, (0, value, ErrorCode.NO_ERROR))
        if not least <= value <= most:
            raise ConnectionFault(
                code, f"setting {identifier} is {value}, not between {least} and {most}"
            )
        yield identifier, value
