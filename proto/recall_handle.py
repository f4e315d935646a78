"""Recall handles: the receipt of a delayed message has one, with which you can cancel the message.

URL-safe base64 of `v1 topic brokerName instant messageId`, words with one space between, as in RocketMQ. The instant
(Unix ms) identifies the slot of the timer wheel that the message is in: any value from TIMER_OUT_MS + 1, which RocketMQ
uses, to TIMER_OUT_MS + 1000 means the same slot. PocketMQ uses the delivery time of the message.

Source: fixture v2/delay-recall, v2-protocol.md section 4.9.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from .errors import InvalidArgument, InvalidName
from .topics import check_topic

if TYPE_CHECKING:
    pass


_VERSION: Final = "v1"
#: Characters of a handle; one with the longest names has fewer than 900.
HANDLE_LENGTH_MAX: Final = 2048
_DIGITS_MAX: Final = 18
_SHOWN_MAX: Final = 64  # characters of a bad value
_WORDS: Final = 5


class RecallHandle(NamedTuple):
    """The content of a handle. DUE_MS is a time in the slot that the message is in (Unix ms)."""

    topic: str
    broker: str
    due_ms: int
    message_id: str


def encode_handle(topic: str, broker: str, due_ms: int, message_id: str) -> str:
    """Return the handle of message MESSAGE_ID of TOPIC, which is on BROKER until DUE_MS."""
    text = f"{_VERSION} {topic} {broker} {due_ms} {message_id}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_handle(handle: str) -> RecallHandle:
    """Return the content of HANDLE, with or without padding; raise InvalidArgument with the reason if it is invalid."""
    version, _, rest = _text(handle).partition(" ")
    if version != _VERSION:
        _refuse(handle, f"its version is {version[:_SHOWN_MAX]!r}, not {_VERSION!r}")
    words = rest.rsplit(
        " ", _WORDS - 2
    )  # The topic of an old store may contain spaces, other words do not.
    if len(words) < _WORDS - 1:
        _refuse(handle, f"it has {len(words) + 1} words, not {_WORDS}")
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
    """Return HANDLE decoded from base64."""
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
        f"{handle[:_SHOWN_MAX]!r} is not a recall handle: {problem}. Use the handle in the receipt of a message"
        " with a delivery time",
        field="handle",
        value=handle[:_SHOWN_MAX],
    )
