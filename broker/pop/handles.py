"""Receipt handles: each identifies one delivery of one message.

    p, r or l    from the requested topic, from the group's retry topic, or of a lite topic
    queue - offset - serial    hexadecimal
    - lite topic    for l

The serial is a random number of 64 bits. So clients cannot guess handles, and no two deliveries share one, also over
restarts and without the journal. A handle is valid as long as any version of the journal has its serial.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ...proto.errors import InvalidReceiptHandle

_KINDS: Final = {"p": False, "r": True}
#: The first letter of handles of lite topics.
LITE_HANDLE: Final = "l"
_SHOWN_MAX: Final = 80
#: Serials that are drawn at once: a draw costs more than a serial.
_DRAWN: Final = 512


class Handle(NamedTuple):
    """The content of a receipt handle."""

    is_retry: bool
    queue: int
    offset: int
    serial: int
    #: "": the message is not of a lite topic, or is delivered as one of its parent.
    lite_topic: str = ""


def encode_handle(
    is_retry: bool, queue: int, offset: int, serial: int, lite_topic: str = ""
) -> str:
    """Return the handle of delivery SERIAL of the message at OFFSET."""
    if lite_topic:
        return f"{LITE_HANDLE}{queue:x}-{offset:x}-{serial:x}-{lite_topic}"
    return f"{'r' if is_retry else 'p'}{queue:x}-{offset:x}-{serial:x}"


def decode_handle(text: str) -> Handle:
    """Return the content of the handle TEXT; raise InvalidReceiptHandle."""
    try:
        if text.startswith(LITE_HANDLE):
            queue, offset, serial, lite_topic = text[1:].split("-", 3)
            return Handle(False, int(queue, 16), int(offset, 16), int(serial, 16), lite_topic)
        queue, offset, serial = text[1:].split("-")
        return Handle(_KINDS[text[0]], int(queue, 16), int(offset, 16), int(serial, 16))
    except (ValueError, LookupError):
        raise InvalidReceiptHandle(
            f"receipt handle {text[:_SHOWN_MAX]!r} is not of this broker: use the handle of the received message",
            field="receipt_handle",
            value=text[:_SHOWN_MAX],
        ) from None


def finished(text: str) -> InvalidReceiptHandle:
    """Return the error for TEXT, the handle of a message that is finished."""
    return InvalidReceiptHandle(
        f"receipt handle {text[:_SHOWN_MAX]!r}: its message was already acknowledged",
        field="receipt_handle",
    )


def serials_from(random_bytes: Callable[[int], bytes]) -> Iterator[int]:
    """Yield serials from RANDOM_BYTES, which returns unpredictable bytes. A serial is never 0."""
    form = struct.Struct(f"<{_DRAWN}Q")
    while True:
        yield from filter(None, form.unpack(random_bytes(form.size)))
