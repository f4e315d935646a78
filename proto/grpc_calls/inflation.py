"""Messages that came compressed (gzip), inflated a little at once, and in a thread where there is more of them.

What inflates to 64 KiB is done at once, in 0.2 ms. The rest of a larger one is inflated off the loop: one message at a
time on the server, one of each connection in turn, so that whoever sends many waits for its own. Only a message of
a connection whose last one was taken is inflated, so that one at most is there that nobody has paid for in bytes.

A message may inflate to a mebibyte, or `RATIO` times what came if that is more: beyond, it is a bomb, and refused.
"""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ..errors import InvalidArgument, MessageTooLarge

#: zlib's word for "a gzip header and trailer, the largest window".
_GZIP_WINDOW: Final = 31
#: What is inflated at once.
AT_ONCE_BYTES: Final = 64 * 1024
#: What any message may inflate to …
FREE_BYTES: Final = 1024 * 1024
#: … and how many times what came of it a larger one may. Text is packed to a tenth, JSON and logs to a thirtieth.
RATIO: Final = 64


class Inflation:
    """A message whose inflation has begun; it counts as what came of it."""

    def __init__(self, message: bytes, size_max: int) -> None:
        """SIZE_MAX: of any message. Raises InvalidArgument or MessageTooLarge."""
        self._packed_size = len(message)
        self._size_max = min(size_max, max(FREE_BYTES, RATIO * len(message)))
        self._decompressor = zlib.decompressobj(_GZIP_WINDOW)
        self._begun = self._decompressed(message, AT_ONCE_BYTES)

    def __len__(self) -> int:
        return self._packed_size

    @property
    def whole(self) -> bytes | None:
        """The message, if it is inflated already. Raises InvalidArgument, or MessageTooLarge."""
        begun = self._checked(self._begun)
        if self._decompressor.eof:
            return begun
        if len(self._begun) < AT_ONCE_BYTES:
            raise _cut_off()
        return None

    def rest(self) -> bytes:
        """Return the message, once it is inflated, in any thread. Raises InvalidArgument or MessageTooLarge."""
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
            raise InvalidArgument(
                f"a message that is no gzip data: {error}", field="grpc-encoding", value="gzip"
            ) from error

    def _checked(self, whole: bytes) -> bytes:
        if len(whole) > self._size_max:
            raise MessageTooLarge(
                f"received message larger than max: {self._packed_size} bytes of gzip inflate to more than"
                f" {self._size_max} ({RATIO} times as much, {FREE_BYTES} at least, or the limit of any message):"
                " send less at once, or as it is",
                field="receive_bytes_max",
                limit=self._size_max,
                value=self._packed_size,
            )
        return whole


def _cut_off() -> InvalidArgument:
    return InvalidArgument(
        "a message that ends within its gzip data", field="grpc-encoding", value="gzip"
    )


class Inflater:
    """Inflates what is large, for all connections of a server. Its event loop owns it."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._thread: ThreadPoolExecutor | None = None

    async def inflate(self, message: Inflation, connections_turn: asyncio.Lock) -> bytes:
        """Return MESSAGE when it has been its connection's turn; the next is begun once this one was taken."""
        async with connections_turn, self._turn:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "inflater")
            return await asyncio.get_running_loop().run_in_executor(self._thread, message.rest)

    def close(self) -> None:
        """Have the thread end."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
