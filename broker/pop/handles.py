"""Receipt handles: which delivery of which message an acknowledgement means.

    p or r    from the topic that was asked for, or from the group's retry topic
    queue - offset - serial    hexadecimal

The serial is the delivery's: it rises with each one from a random start, so that no two have the same, over restarts
too, whatever became of the journal. To a client a handle is a text that it hands back.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Final, NamedTuple

from ...proto.errors import InvalidReceiptHandle

_KINDS: Final = {"p": False, "r": True}
_SHOWN_MAX: Final = 80
#: A serial fits 64 bits, for as many deliveries as there will ever be.
_SERIAL_BITS: Final = 60


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


def serials_from(random: Random) -> Iterator[int]:
    """Return serials, from a random start on."""
    return count(random.getrandbits(_SERIAL_BITS))
