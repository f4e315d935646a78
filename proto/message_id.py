"""Message ids: the offset id that a broker derives, and the unique id that a client creates.

Offset id: store host (4 or 16 bytes), port (i32) and log offset (i64), upper-case hexadecimal: 32 or 56 digits.

Unique id, in the form of RocketMQ's gRPC clients, 34 digits:

    01 | 6 bytes, the client's own | process id, low 16 bits | seconds since 2021-01-01 UTC, u32 | counter, u32

A client draws its six bytes at random (with the locally-administered bit of a MAC address set): two containers may
share a MAC, and random bytes reveal nothing about the machine. Source: store-format.md sections 8.1 and 8.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Final, overload

from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EPOCH_2021_MS: Final = 1_609_459_200_000
_ID_V4 = struct.Struct(">4siq")
_ID_V6 = struct.Struct(">16siq")


def offset_message_id(host: bytes, port: int, log_offset: int) -> str:
    """Return the offset id of the record at LOG_OFFSET on the broker at HOST (4 or 16 bytes) and PORT."""
    layout = _ID_V4 if len(host) == 4 else _ID_V6
    return layout.pack(host, port, log_offset).hex().upper()


def offset_message_ids(
    hosts: NDArray[np.uint8], log_offsets: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the offset ids of many records, one text per row. HOSTS are address and port as in records."""
    import numpy as np

    places = log_offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    texts: NDArray[np.uint8] = _hex_digits()[np.concatenate((hosts, places), axis=1)].view(np.uint8)
    return texts


def decode_offset_message_id(text: str) -> tuple[bytes, int, int]:
    """Return (host, port, log offset) of an offset id; raise InvalidArgument if TEXT is not one."""
    layout = {32: _ID_V4, 56: _ID_V6}.get(len(text))
    try:
        if layout is None:
            raise ValueError
        host, port, log_offset = layout.unpack(bytes.fromhex(text))
    except (ValueError, struct.error):  # `fromhex` skips spaces.
        raise InvalidArgument(
            f"message id {text[:64]!r}: an offset message id has 32 (IPv4) or 56 (IPv6) hexadecimal digits",
            field="message_id",
            value=text[:64],
        ) from None
    return host, port, log_offset


class UniqueIds:
    """Creates unique ids for one client. Not thread-safe: its event loop owns it."""

    def __init__(self, now_ms: Callable[[], int], process_id: int, random: Random) -> None:
        self._now_ms = now_ms
        origin = bytearray(random.randbytes(6))
        origin[0] = origin[0] & 0xFE | 0x02
        self._prefix = b"01%s%04X" % (origin.hex().upper().encode(), process_id & 0xFFFF)
        self._counter = random.getrandbits(31)

    def next(self) -> str:
        """Return one id."""
        return self.many(1)[0].decode()

    def many(self, count: int) -> list[bytes]:
        """Return COUNT ids in ASCII, in the order of their creation."""
        return list(self.row(count))

    def row(self, count: int) -> UniqueIdRow:
        """Return COUNT ids that are created when they are read."""
        seconds = max(0, self._now_ms() - _EPOCH_2021_MS) // 1000 & 0xFFFFFFFF
        first = self._counter + 1
        self._counter += count
        return UniqueIdRow(b"%s%08X" % (self._prefix, seconds), first, count)


class UniqueIdRow(Sequence[bytes]):
    """COUNT ids in ASCII that differ only in their counter, FIRST modulo 2^32 and on; HEAD is the part before it."""

    __slots__ = ("_count", "first", "head")

    def __init__(self, head: bytes, first: int, count: int) -> None:
        self.head = head
        self.first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> UniqueIdRow: ...
    def __getitem__(self, index: int | slice) -> bytes | UniqueIdRow:
        numbers = range(self.first, self.first + self._count)[index]
        if isinstance(numbers, int):
            return b"%s%08X" % (self.head, numbers & 0xFFFFFFFF)
        if numbers.step != 1:
            raise InvalidArgument("ids in a row are consecutive: slice without a step")
        return UniqueIdRow(self.head, numbers.start, len(numbers))

    def __iter__(self) -> Iterator[bytes]:
        head, first = self.head, self.first
        for number in range(first, first + self._count):
            yield b"%s%08X" % (head, number & 0xFFFFFFFF)

    def digits(self) -> NDArray[np.uint8]:
        """Return the counters of the ids: one row of COUNTER_DIGITS digits per id."""
        import numpy as np

        numbers = np.arange(self.first, self.first + self._count, dtype=np.int64)
        octets = (numbers & 0xFFFFFFFF).astype(">u4").view(np.uint8)
        return _hex_digits()[octets].view(np.uint8).reshape(self._count, COUNTER_DIGITS)


#: The digits of an id that are its counter.
COUNTER_DIGITS: Final = 8


@cache
def _hex_digits() -> NDArray[np.uint16]:
    """Return the two hexadecimal digits of each byte value, as one number."""
    import numpy as np

    return np.frombuffer(b"".join(b"%02X" % octet for octet in range(256)), np.uint16)
