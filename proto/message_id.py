"""Message ids: the offset id that a broker derives, and the unique id that a client makes.

Offset id: store host (4 or 16 bytes), port (i32) and log offset (i64), upper-case hexadecimal: 32 or 56 digits.

Unique id, the form of RocketMQ's gRPC clients, 34 digits:

    01 | 6 bytes, the client's own | process id, low 16 bits | seconds since 2021-01-01 UTC, u32 | counter, u32

Source: store-format.md §8.1, §8.3. A client draws its six bytes at random (with the locally-administered bit of a MAC
address set): two containers may share a MAC, and random bytes tell nothing about the machine.

Recall handles: what a receipt gives and a recall takes, to have back a message that waits for its time.

URL-safe base64 of `v1 topic brokerName instant messageId`, words with one space between, as Apache's. The instant
(Unix ms) names the slot of the timer wheel in which the message waits: any from TIMER_OUT_MS + 1, which Apache's
handles have, to TIMER_OUT_MS + 1000 means the same slot. Ours have the instant at which the message is due.

Source: fixture v2/delay-recall, v2-protocol.md §4.9. Pure.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, overload

from .errors import InvalidArgument, InvalidName
from .topics import check_topic

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
    """Return the offset ids of many records, the text of one a row: HOSTS are address and port as records hold them."""
    import numpy as np

    places = log_offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    texts: NDArray[np.uint8] = _hex_digits()[np.concatenate((hosts, places), axis=1)].view(np.uint8)
    return texts


def decode_offset_message_id(text: str) -> tuple[bytes, int, int]:
    """Return (host, port, log offset) of an offset id; raise InvalidArgument if TEXT is none."""
    layout = {32: _ID_V4, 56: _ID_V6}.get(len(text))
    try:
        if layout is None:
            raise ValueError
        host, port, log_offset = layout.unpack(bytes.fromhex(text))
    except ValueError:
        raise InvalidArgument(
            f"message id {text[:64]!r}: an offset message id has 32 (IPv4) or 56 (IPv6) hexadecimal digits",
            field="message_id",
            value=text[:64],
        ) from None
    return host, port, log_offset


class UniqueIds:
    """Makes unique ids for one client. Not thread-safe: its event loop owns it."""

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
        """Return COUNT ids in ASCII; their order is that of their making."""
        return list(self.row(count))

    def row(self, count: int) -> UniqueIdRow:
        """Return COUNT ids that are made when they are looked at."""
        seconds = max(0, self._now_ms() - _EPOCH_2021_MS) // 1000 & 0xFFFFFFFF
        first = self._counter + 1
        self._counter += count
        return UniqueIdRow(b"%s%08X" % (self._prefix, seconds), first, count)


class UniqueIdRow(Sequence[bytes]):
    """COUNT ids in ASCII that differ in their counter alone, which begins at FIRST; HEAD is the rest of them."""

    __slots__ = ("_count", "_first", "head")

    def __init__(self, head: bytes, first: int, count: int) -> None:
        self.head = head
        self._first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> UniqueIdRow: ...
    def __getitem__(self, index: int | slice) -> bytes | UniqueIdRow:
        numbers = range(self._first, self._first + self._count)[index]
        if isinstance(numbers, int):
            return b"%s%08X" % (self.head, numbers & 0xFFFFFFFF)
        if numbers.step != 1:
            raise InvalidArgument("ids in a row follow each other: slice without a step")
        return UniqueIdRow(self.head, numbers.start, len(numbers))

    def __iter__(self) -> Iterator[bytes]:
        head, first = self.head, self._first
        for number in range(first, first + self._count):
            yield b"%s%08X" % (head, number & 0xFFFFFFFF)

    def digits(self) -> NDArray[np.uint8]:
        """Return what follows the head of each id: a row of COUNTER_DIGITS digits an id."""
        import numpy as np

        numbers = np.arange(self._first, self._first + self._count, dtype=np.int64)
        octets = (numbers & 0xFFFFFFFF).astype(">u4").view(np.uint8)
        return _hex_digits()[octets].view(np.uint8).reshape(self._count, COUNTER_DIGITS)


#: The digits of an id that count.
COUNTER_DIGITS: Final = 8


@cache
def _hex_digits() -> NDArray[np.uint16]:
    """Return the two digits of each byte, as one number."""
    import numpy as np

    return np.frombuffer(b"".join(b"%02X" % octet for octet in range(256)), np.uint16)


# ---------------------------------------------------------------- recall handles


_VERSION: Final = "v1"
#: Characters of a handle; one with the longest names has fewer than 900.
HANDLE_LENGTH_MAX: Final = 2048
_DIGITS_MAX: Final = 18
_SHOWN_MAX: Final = 64  # characters of a bad value
_WORDS: Final = 5


class RecallHandle(NamedTuple):
    """What a handle says. DUE_MS is an instant of the slot in which the message waits (Unix ms)."""

    topic: str
    broker: str
    due_ms: int
    message_id: str


def encode_handle(topic: str, broker: str, due_ms: int, message_id: str) -> str:
    """Return the handle of message MESSAGE_ID of TOPIC, which waits on BROKER until DUE_MS."""
    text = f"{_VERSION} {topic} {broker} {due_ms} {message_id}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_handle(handle: str) -> RecallHandle:
    """Return what HANDLE says, with or without its padding; raise InvalidArgument that names what is wrong with it."""
    version, _, rest = _text(handle).partition(" ")
    if version != _VERSION:
        _refuse(handle, f"its version is {version[:_SHOWN_MAX]!r}, not {_VERSION!r}")
    words = rest.rsplit(
        " ", _WORDS - 2
    )  # The topic of an old store may hold blanks, nothing else does.
    if len(words) < _WORDS - 1:
        _refuse(handle, f"it holds {len(words) + 1} words, not {_WORDS}")
    topic, broker, instant, message_id = words
    if not (instant.isascii() and instant.isdigit() and len(instant) <= _DIGITS_MAX):
        _refuse(handle, f"its time is {instant[:_SHOWN_MAX]!r}, not a number of milliseconds")
    try:
        check_topic(topic)
    except InvalidName as error:
        _refuse(handle, error.message)
    if not broker:
        _refuse(handle, "the broker's name is empty")
    if not message_id:
        _refuse(handle, "the message id is empty")
    return RecallHandle(topic, broker, int(instant), message_id)


def _text(handle: str) -> str:
    """Return what HANDLE is the base64 of."""
    if not handle:
        _refuse(handle, "it is empty")
    if len(handle) > HANDLE_LENGTH_MAX:
        _refuse(handle, f"it has {len(handle)} characters, the limit is {HANDLE_LENGTH_MAX}")
    padded = handle.rstrip("=") + "=" * (-len(handle.rstrip("=")) % 4)
    try:
        return base64.b64decode(padded.encode(), b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        _refuse(handle, "it is not URL-safe base64 of text")


def _refuse(handle: str, problem: str) -> NoReturn:
    raise InvalidArgument(
        f"{handle[:_SHOWN_MAX]!r} is no recall handle: {problem}; take it from the receipt of a message that is to be"
        " delivered at a time of its own",
        field="handle",
        value=handle[:_SHOWN_MAX],
    )
