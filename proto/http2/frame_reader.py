"""Cuts what comes into frames (RFC 9113 §4.1), however it was split on its way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .faults import ConnectionFault
from .frames import HEAD, HEAD_BYTES, PREFACE, STREAM_MASK, ErrorCode

_unpack: Final = HEAD.unpack_from

#: Kind, flags, stream, payload.
Frame = tuple[int, int, int, bytes]


class FrameReader:
    """The preface of a client, and the frames behind it. A frame that is not whole waits: FRAME_SIZE bytes at most."""

    def __init__(self, frame_size: int) -> None:
        self._frame_size = frame_size
        self._partial = bytearray()
        #: Nothing can be read before so many bytes are there.
        self._needed = len(PREFACE)
        self._greeted = False
        #: How many frames came.
        self.count = 0

    def greet(self) -> None:
        """Expect no preface: the other end is a server."""
        self._greeted = True
        self._needed = HEAD_BYTES

    @property
    def is_half(self) -> bool:
        """Does a frame, or the preface, wait for its rest?"""
        return bool(self._partial) or not self._greeted

    def read(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that DATA completes; raise ConnectionFault for one that is too long, and no preface."""
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
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR,
                    f"a frame of {size} bytes, the limit is {self._frame_size}",
                )
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
        """Return where the frames begin; the end of DATA if the preface is not there yet."""
        if not data.startswith(PREFACE):
            if not PREFACE.startswith(data):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 connection preface")
            self._partial += data
            return len(data)
        self._greeted = True
        return len(PREFACE)


def without_padding(payload: bytes) -> bytes:
    """Return what is not padding of PAYLOAD, whose frame says that it is padded; raise ConnectionFault."""
    padding = payload[0] if payload else 0
    if padding >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding as long as the frame, or longer")
    return payload[1 : len(payload) - padding]
