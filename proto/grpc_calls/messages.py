"""Messages in a body: a flag, four bytes of length, so many bytes (PROTOCOL-HTTP2.md, Length-Prefixed-Message).

The pieces of a body end where frames end, not where messages do. `MessageReader` puts them together; nothing is
copied more than twice, however small the pieces, and nothing is gathered of a message that is too large.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from ..errors import InvalidArgument, MessageTooLarge
from .inflation import Inflation

_PREFIX: Final = struct.Struct(">BL")
PREFIX_BYTES: Final = _PREFIX.size
_pack: Final = _PREFIX.pack
_unpack: Final = _PREFIX.unpack_from


#: What came: a message, or one that has to be inflated.
Message = bytes | Inflation


def with_prefix(message: bytes) -> bytes:
    """Return MESSAGE as it travels, not compressed."""
    return _pack(0, len(message)) + message


class MessageReader:
    """Puts the messages of one body together; none may have more than SIZE_MAX bytes."""

    __slots__ = ("_compressed", "_flag", "_needed", "_pieces", "_size_max", "held")

    def __init__(self, size_max: int, *, compressed: bool) -> None:
        """COMPRESSED: the call said that its messages may be (gzip)."""
        self._size_max = size_max
        self._compressed = compressed
        #: What is there of a prefix, or (then _flag is its flag) of a message, and how long that is when it is whole.
        self._pieces: list[bytes] = []
        self._flag: int | None = None
        self._needed = PREFIX_BYTES
        #: Bytes of a message that is not whole.
        self.held = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that DATA completes; raise MessageTooLarge or InvalidArgument."""
        position, end = 0, len(data)
        if self.held:
            position = self._needed - self.held
            if position > end:
                self._keep(data)
                return
            self._pieces.append(data[:position])
            whole = b"".join(self._pieces)
            self._clear()
            if self._flag is None:
                self._begin(whole)
            else:
                yield self._end(whole)
        while True:
            if self._flag is None:
                if end - position < PREFIX_BYTES:
                    break
                self._begin(data, position)
                position += PREFIX_BYTES
            if end - position < self._needed:
                break
            message = data[position : position + self._needed]
            position += self._needed
            yield self._end(message)
        if position < end:
            self._keep(data[position:] if position else data)

    @property
    def is_half(self) -> bool:
        """Has a message begun that is not whole?"""
        return self.held > 0 or self._flag is not None

    def drop(self) -> None:
        """Let go of what is there of a message: nobody waits for it."""
        self._clear()

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.held += len(piece)

    def _clear(self) -> None:
        self._pieces.clear()
        self.held = 0

    def _begin(self, data: bytes, position: int = 0) -> None:
        """Take the prefix at POSITION of DATA: a message follows."""
        self._flag, self._needed = _unpack(data, position)
        if self._needed > self._size_max:
            raise self._too_large(self._needed)

    def _end(self, message: bytes) -> Message:
        """Return the MESSAGE that is whole: a prefix follows."""
        flag, self._flag = self._flag, None
        self._needed = PREFIX_BYTES
        return self._decompressed(flag, message) if flag else message

    def _decompressed(self, flag: int, message: bytes) -> Message:
        if flag != 1 or not self._compressed:
            raise InvalidArgument(
                f"a message with flag {flag} in a call whose grpc-encoding does not say how it is compressed:"
                " set grpc-encoding to gzip, or send it as it is",
                field="grpc-encoding",
                value=flag,
            )
        inflation = Inflation(message, self._size_max)
        whole = inflation.whole
        return inflation if whole is None else whole

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
