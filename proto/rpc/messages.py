"""Messages of gRPC in a body of HTTP/2 (PROTOCOL-HTTP2.md), plain or compressed with gzip.

A message is a flag, four bytes of length, and the body. DATA frames do not end where messages end; `MessageReader`
joins them. It copies each byte at most twice and buffers nothing of a message beyond the limit.

The first 64 KiB of a gzip message are inflated at once (0.2 ms). The rest is inflated in a thread, one message at a
time per server and one per connection in turn, so a client that sends many waits for its own. A message may inflate to
1 MiB, or to `RATIO` times its compressed size if that is more. Beyond that it is refused as a bomb.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from .errors import BadRequest, TooLarge

#: zlib's word for "a gzip header and trailer, the largest window".
_GZIP_WINDOW: Final = 31
#: What is inflated at once.
AT_ONCE_BYTES: Final = 64 * 1024
#: What any message may inflate to …
FREE_BYTES: Final = 1024 * 1024
#: … and how many times what came of it a larger one may. Text is packed to a tenth, JSON and logs to a thirtieth.
RATIO: Final = 64


class Inflation:
    """A message that is partly inflated. It counts with its inflated size so far."""

    def __init__(self, message: bytes, size_max: int) -> None:
        """SIZE_MAX: of any message. Raises BadRequest or TooLarge."""
        self._packed_size = len(message)
        self._size_max = min(size_max, max(FREE_BYTES, RATIO * len(message)))
        self._decompressor = zlib.decompressobj(_GZIP_WINDOW)
        self._begun = self._decompressed(message, AT_ONCE_BYTES)

    def __len__(self) -> int:
        return self._packed_size

    @property
    def whole(self) -> bytes | None:
        """The message, if it is inflated already. Raises BadRequest, or TooLarge."""
        begun = self._checked(self._begun)
        if self._decompressor.eof:
            return begun
        if len(self._begun) < AT_ONCE_BYTES:
            raise _cut_off()
        return None

    def rest(self) -> bytes:
        """Return the message, once it is inflated, in any thread. Raises BadRequest or TooLarge."""
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
                f"a message that is no gzip data: {error}", field="grpc-encoding", value="gzip"
            ) from error

    def _checked(self, whole: bytes) -> bytes:
        if len(whole) > self._size_max:
            raise TooLarge(
                f"received message larger than max: {self._packed_size} bytes of gzip inflate to more than"
                f" {self._size_max} ({RATIO} times as much, {FREE_BYTES} at least, or the limit of any message):"
                " send less at once, or as it is",
                field="receive_bytes_max",
                limit=self._size_max,
                value=self._packed_size,
            )
        return whole


def _cut_off() -> BadRequest:
    return BadRequest(
        "a message that ends within its gzip data", field="grpc-encoding", value="gzip"
    )


class Inflater:
    """Inflates what is large, for all connections of a server. Its event loop owns it."""

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
        """Have the thread end."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


_PREFIX: Final = struct.Struct(">BL")
PREFIX_BYTES: Final = _PREFIX.size
_pack: Final = _PREFIX.pack
_unpack: Final = _PREFIX.unpack_from


#: What came: a message, or one that has to be inflated.
Message = bytes | Inflation


def with_prefix(message: bytes) -> bytes:
    """Return MESSAGE as it travels, not compressed."""
    return _pack(0, len(message)) + message


def joined_with_prefix(pieces: Sequence[bytes | memoryview]) -> bytes:
    """Do that with the message of PIECES, which are copied once."""
    return b"".join((_pack(0, sum(map(len, pieces))), *pieces))


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
    def is_half(self) -> bool:
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
            raise BadRequest(
                f"a message with flag {flag} in a call whose grpc-encoding does not say how it is compressed:"
                " set grpc-encoding to gzip, or send it as it is",
                field="grpc-encoding",
                value=flag,
            )
        inflation = Inflation(message, self._size_max)
        whole = inflation.whole
        return inflation if whole is None else whole

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(
            f"received message larger than max: {size} bytes, the limit is {self._size_max}; send less at once",
            field="receive_bytes_max",
            limit=self._size_max,
            value=size,
        )


def not_one(found: str) -> BadRequest:
    """Return the error of a call that has FOUND, "none" or "more", where one message is due."""
    return BadRequest(
        f"the call has {found} where one message is due: send one, and end the stream",
        field="body",
        value=found,
    )
