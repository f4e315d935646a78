"""Messages of gRPC in an HTTP/2 body (PROTOCOL-HTTP2.md), plain or compressed with gzip.

A message is a flag, four bytes of length, and the body. DATA frames do not end where messages end; `MessageReader`
joins them. It copies each byte at most twice and buffers nothing of a message beyond the limit.

The first 64 KiB of a gzip message are inflated at once (0.2 ms). The rest is inflated in a thread, one message at a
time per server and one per connection in turn, so a client that sends many waits for its own. A message may inflate to
1 MiB, or to `RATIO` times its compressed size if that is more. A larger one is refused as a decompression bomb.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from .errors import BadRequest, TooLarge

#: zlib's code for "a gzip header and trailer, the largest window".
_GZIP_WINDOW: Final = 31
#: Bytes inflated on the event loop.
AT_ONCE_BYTES: Final = 64 * 1024
#: Any message may inflate to this size, …
FREE_BYTES: Final = 1024 * 1024
#: … and a larger one to this multiple of its compressed size. Text shrinks to 1/10, JSON and logs to 1/30.
RATIO: Final = 64


class Inflation:
    """A partly inflated message. Its length is the inflated size so far."""

    def __init__(self, message: bytes, size_max: int) -> None:
        """SIZE_MAX: the limit of any message. Raises BadRequest or TooLarge."""
        self._packed_size = len(message)
        self._size_max = min(size_max, max(FREE_BYTES, RATIO * len(message)))
        self._decompressor = zlib.decompressobj(_GZIP_WINDOW)
        self._begun = self._decompressed(message, AT_ONCE_BYTES)

    def __len__(self) -> int:
        return self._packed_size

    @property
    def whole(self) -> bytes | None:
        """The message, if it is completely inflated. Raises BadRequest, or TooLarge."""
        begun = self._checked(self._begun)
        if self._decompressor.eof:
            return begun
        if len(self._begun) < AT_ONCE_BYTES:
            raise _cut_off()
        return None

    def rest(self) -> bytes:
        """Inflate the rest, and return the message. Thread-safe. Raises BadRequest or TooLarge."""
        missing = self._size_max + 1 - len(self._begun)
        if missing > 0:
            self._begun += self._decompressed(self._decompressor.unconsumed_tail, missing)
        whole = self._checked(self._begun)
        if not self._decompressor.eof:
            raise _cut_off()
        return whole

    def _decompressed(self, data: bytes, size_max: int) -> bytes:
        try:
            return self._decompressor.decompress(data, size_max)
        except zlib.error as error:
            raise BadRequest(
                f"a message is not gzip data: {error}", field="grpc-encoding", value="gzip"
            ) from error

    def _checked(self, whole: bytes) -> bytes:
        if len(whole) > self._size_max:
            raise TooLarge(
                f"received message larger than max: {self._packed_size} bytes of gzip inflate to more than"
                f" {self._size_max} ({RATIO} times as much, {FREE_BYTES} at least, or the limit of any message):"
                " send less at once, or uncompressed",
                field="receive_bytes_max",
                limit=self._size_max,
                value=self._packed_size,
            )
        return whole


def _cut_off() -> BadRequest:
    return BadRequest(
        "the gzip data of a message is truncated", field="grpc-encoding", value="gzip"
    )


class Inflater:
    """Inflates large messages for all connections of a server. Its event loop owns it."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._thread: ThreadPoolExecutor | None = None

    async def inflate(self, message: Inflation, connections_turn: asyncio.Lock) -> bytes:
        """Inflate the rest of MESSAGE when its connection has its turn. One message per connection at a time."""
        async with connections_turn, self._turn:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "inflater")
            return await asyncio.get_running_loop().run_in_executor(self._thread, message.rest)

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


_PREFIX: Final = struct.Struct(">BL")
PREFIX_BYTES: Final = _PREFIX.size
_pack: Final = _PREFIX.pack
_unpack: Final = _PREFIX.unpack_from


#: A received message, or one that must be inflated.
Message = bytes | Inflation


def with_prefix(message: bytes) -> bytes:
    """Return MESSAGE with its prefix, uncompressed."""
    return _pack(0, len(message)) + message


def joined_with_prefix(pieces: Sequence[bytes | memoryview]) -> bytes:
    """Return the message of PIECES with its prefix. Each piece is copied once."""
    return b"".join((_pack(0, sum(map(len, pieces))), *pieces))


class MessageReader:
    """Assembles the messages of one body; none may have more than SIZE_MAX bytes."""

    __slots__ = ("_compressed", "_flag", "_needed", "_pieces", "_size_max", "held")

    def __init__(self, size_max: int, *, compressed: bool) -> None:
        """COMPRESSED: the call declared that its messages may be compressed (gzip)."""
        self._size_max = size_max
        self._compressed = compressed
        #: The received part of a prefix, or (then _flag is its flag) of a message, and the length of the complete one.
        self._pieces: list[bytes] = []
        self._flag: int | None = None
        self._needed = PREFIX_BYTES
        #: Bytes of an incomplete message.
        self.held = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that DATA completes; raise TooLarge or BadRequest."""
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
    def is_incomplete(self) -> bool:
        """Return whether a message has started but is not complete."""
        return self.held > 0 or self._flag is not None

    def drop(self) -> None:
        """Drop a partly received message: its reader is gone."""
        self._clear()

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.held += len(piece)

    def _clear(self) -> None:
        self._pieces.clear()
        self.held = 0

    def _begin(self, data: bytes, position: int = 0) -> None:
        """Read the prefix at POSITION of DATA: a message follows."""
        self._flag, self._needed = _unpack(data, position)
        if self._needed > self._size_max:
            raise self._too_large(self._needed)

    def _end(self, message: bytes) -> Message:
        """Return the complete MESSAGE: a prefix follows."""
        flag, self._flag = self._flag, None
        self._needed = PREFIX_BYTES
        return self._decompressed(flag, message) if flag else message

    def _decompressed(self, flag: int, message: bytes) -> Message:
        if flag != 1 or not self._compressed:
            raise BadRequest(
                f"a message has flag {flag}, but the call has no grpc-encoding that says how it is compressed:"
                " set grpc-encoding to gzip, or send it uncompressed",
                field="grpc-encoding",
                value=flag,
            )
        inflation = Inflation(message, self._size_max)
        whole = inflation.whole
        return inflation if whole is None else whole

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(
            f"received message larger than max: {size} bytes, the limit is {self._size_max}. Send less at once",
            field="receive_bytes_max",
            limit=self._size_max,
            value=size,
        )


def not_one(found: str) -> BadRequest:
    """Return the error of a call with FOUND messages, "none" or "more", where one is required."""
    return BadRequest(
        f"the call has {found} where one message is required: send one, and end the stream",
        field="body",
        value=found,
    )
