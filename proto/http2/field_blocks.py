"""Blocks of fields: a HEADERS frame and the CONTINUATION frames right behind it (RFC 9113 §4.3, §6.2, §6.10)."""

from __future__ import annotations

from typing import Final, NamedTuple

from .faults import ConnectionFault, StreamFault
from .frame_reader import without_padding
from .frames import END_HEADERS, END_STREAM, PADDED, STREAM_MASK, WITH_PRIORITY, WORD, ErrorCode

#: What precedes the block where a frame has a priority: the stream that it depends on, and a weight.
_PRIORITY_BYTES: Final = 5


class Block(NamedTuple):
    """A whole block of fields. ENDS: nothing follows on its stream; DEPENDS_ON: a stream, by its priority."""

    stream_id: int
    data: bytes
    ends: bool
    depends_on: int


class FieldBlocks:
    """Gathers blocks; one of more than SIZE_MAX bytes ends the connection."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._first: Block | None = None
        self._rest = bytearray()

    @property
    def is_open(self) -> bool:
        """Has a block begun that is not whole? Then nothing but its rest may come."""
        return self._first is not None

    def begin(self, flags: int, stream_id: int, payload: bytes) -> Block | None:
        """Return the block of a HEADERS frame, if it is whole."""
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
        block = Block(stream_id, payload, flags & END_STREAM != 0, depends_on)
        if flags & END_HEADERS:
            return block
        self._first = block
        self._gather(payload)
        return None

    def go_on(self, flags: int, stream_id: int, payload: bytes) -> Block | None:
        """Return the block that a CONTINUATION frame completes, if it does."""
        first = self._first
        if first is None or stream_id != first.stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of no open block")
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
    """Raise StreamFault if STREAM_ID depends on itself (RFC 7540 §5.3.1; priorities mean nothing here)."""
    if stream_id == depends_on:
        raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
