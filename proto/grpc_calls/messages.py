"""Messages in a body: a flag, four bytes of length, so many bytes (PROTOCOL-HTTP2.md, Length-Prefixed-Message).

The pieces of a body end where frames end, not where messages do. `MessageReader` puts them together; nothing is
copied more than twice, however small the pieces, and nothing is gathered of a message that is too large.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from ..errors import InvalidArgument, MessageTooLarge

_PREFIX: Final = struct.Struct(">BL")
PREFIX_BYTES: Final = _PREFIX.size
#: zlib's word for "a gzip header and trailer, the largest window".
_GZIP_WINDOW: Final = 31
_pack: Final = _PREFIX.pack
_unpack: Final = _PREFIX.unpack_from


def with_prefix(message: bytes) -> bytes:
    """Return MESSAGE as it travels, not compressed."""
    return _pack(0, len(message)) + message


class MessageReader:
    """Puts the messages of one body together; none may have more than SIZE_MAX bytes."""

    __slots__ = ("_compressed", "_pieces", "_size_max", "held")

    def __init__(self, size_max: int, *, compressed: bool) -> None:
        """COMPRESSED: the call said that its messages may be (gzip)."""
        self._size_max = size_max
        self._compressed = compressed
        self._pieces: list[bytes] = []
        #: Bytes of a message that is not whole.
        self.held = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that DATA completes; raise MessageTooLarge or InvalidArgument."""
        if self._pieces:
            self._pieces.append(data)
            self.held += len(data)
            if self.held < self._needed():
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
            self.held = 0
        position, end = 0, len(data)
        while end - position >= PREFIX_BYTES:
            flag, size = _unpack(data, position)
            if size > self._size_max:
                raise self._too_large(size)
            start = position + PREFIX_BYTES
            if start + size > end:
                break
            position = start + size
            message = data[start:position]
            yield self._decompressed(flag, message) if flag else message
        if position < end:
            self._pieces.append(data[position:] if position else data)
            self.held = end - position

    def _needed(self) -> int:
        """Return how many bytes there must be for a message, as far as is known."""
        first = self._pieces[0]
        if len(first) < PREFIX_BYTES:
            if self.held < PREFIX_BYTES:
                return PREFIX_BYTES
            self._pieces = [b"".join(self._pieces)]
            first = self._pieces[0]
        size: int = _unpack(first)[1]
        if size > self._size_max:
            raise self._too_large(size)
        return PREFIX_BYTES + size

    def _decompressed(self, flag: int, message: bytes) -> bytes:
        if flag != 1 or not self._compressed:
            raise InvalidArgument(
                f"a message with flag {flag} in a call whose grpc-encoding does not say how it is compressed:"
                " set grpc-encoding to gzip, or send it as it is",
                field="grpc-encoding",
                value=flag,
            )
        decompressor = zlib.decompressobj(_GZIP_WINDOW)
        try:
            whole = decompressor.decompress(message, self._size_max + 1)
        except zlib.error as error:
            raise InvalidArgument(
                f"a message that is no gzip data: {error}", field="grpc-encoding", value="gzip"
            ) from error
        if len(whole) > self._size_max:
            raise self._too_large(len(whole))
        if not decompressor.eof:
            raise InvalidArgument(
                "a message that ends within its gzip data", field="grpc-encoding", value="gzip"
            )
        return whole

    def _too_large(self, size: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"received message larger than max: {size} bytes, the limit is {self._size_max}; send less at once",
            field="receive_bytes_max",
            limit=self._size_max,
            value=size,
        )


def not_one(found: str) -> InvalidArgument:
    """Return the error of a call that has FOUND, "none" or "more", where one message is due."""
    return InvalidArgument(
        f"the call has {found} where one message is due: send one, and end the stream",
        field="body",
        value=found,
    )
