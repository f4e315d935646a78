"""Frames in a stream of bytes: `FrameSplitter` takes bytes as they arrive and returns complete frames."""

from __future__ import annotations

from typing import Final

_LENGTH_SIZE: Final = 4


class FrameSplitter:
    """Divides the bytes of one connection into frames. SIZE_MAX limits the length that a frame may have."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._pending = bytearray()

    @property
    def held(self) -> int:
        """Bytes of the incomplete frame."""
        return len(self._pending)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that DATA completes, each without its length. Raises ValueError for an invalid length."""
        source: bytes | bytearray = data
        if self._pending:
            self._pending += data
            source = self._pending
        frames: list[bytes] = []
        at, end = 0, len(source)
        while end - at >= _LENGTH_SIZE:
            size = int.from_bytes(source[at : at + _LENGTH_SIZE], signed=True)
            if not _LENGTH_SIZE <= size <= self._size_max:
                raise ValueError(
                    f"a frame of {size:,} bytes, must have {_LENGTH_SIZE} to {self._size_max:,}"
                )
            begin = at + _LENGTH_SIZE
            if end - begin < size:
                break
            frames.append(bytes(source[begin : begin + size]))
            at = begin + size
        if source is self._pending:
            del self._pending[:at]
        else:
            self._pending += data[at:]
        return frames
