"""Receipt handles: which delivery of which message an acknowledgement means.

    p or r    from the topic that was asked for, or from the group's retry topic
    queue - offset - serial    hexadecimal

The serial is the delivery's: 64 bits of chance, so that nobody names a delivery that was not its own, and no two of a
message have the same, over restarts too, whatever became of the journal. To a client a handle is a text that it hands
back; it is as good as the journal's memory of its serial, of whichever version of ours the journal is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ...proto.errors import InvalidReceiptHandle

_KINDS: Final = {"p": False, "r": True}
_SHOWN_MAX: Final = 80
#: Serials that are drawn at once: a draw costs more than a serial.
_DRAWN: Final = 512


class Handle(NamedTuple):
    """What a receipt handle says."""

    is_retry: bool
    queue: int
    offset: int
    serial: int


def encode_handle(is_retry: bool, queue: int, offset: int, serial: int) -> str:
    """Return the handle of delivery SERIAL of the message at OFFSET."""
    return f"{'r' if is_retry else 'p'}{queue:x}-{offset:x}-{serial:x}"


def decode_handle(text: str) -> Handle:
    """Return what TEXT says; raise InvalidReceiptHandle."""
    try:
        queue, offset, serial = text[1:].split("-")
        return Handle(_KINDS[text[0]], int(queue, 16), int(offset, 16), int(serial, 16))
    except (ValueError, LookupError):
        raise InvalidReceiptHandle(
            f"receipt handle {text[:_SHOWN_MAX]!r} is none of this broker's: give the one that came with the message",
            field="receipt_handle",
            value=text[:_SHOWN_MAX],
        ) from None


def finished(text: str) -> InvalidReceiptHandle:
    """Return the refusal of TEXT, the handle of a message that is finished."""
    return InvalidReceiptHandle(
        f"receipt handle {text[:_SHOWN_MAX]!r}: its message is finished", field="receipt_handle"
    )


def serials_from(random_bytes: Callable[[int], bytes]) -> Iterator[int]:
    """Yield serials, of what RANDOM_BYTES returns: so many bytes that nobody can foretell. None is 0."""
    form = struct.Struct(f"<{_DRAWN}Q")
    while True:
        yield from filter(None, form.unpack(random_bytes(form.size)))
