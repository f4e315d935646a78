"""Recall handles: what a receipt gives and `recall` takes, to have back a message that waits for its time."""

from __future__ import annotations

import base64
from typing import NamedTuple

from ..proto.errors import InvalidArgument


class RecallHandle(NamedTuple):
    """What a handle says: DUE_MS is any instant in the slot of the timer wheel."""

    topic: str
    broker: str
    due_ms: int
    message_id: str


def encode_handle(topic: str, broker: str, due_ms: int, message_id: str) -> str:
    """Return the handle of message MESSAGE_ID of TOPIC, which waits on BROKER until DUE_MS."""
    return base64.urlsafe_b64encode(f"v1 {topic} {broker} {due_ms} {message_id}".encode()).decode()


def decode_handle(handle: str) -> RecallHandle:
    """Return what HANDLE says; raise InvalidArgument if it is none."""
    try:
        words = base64.b64decode(handle.encode(), b"-_", validate=True).decode().split(" ")
        version, topic, broker, due, message_id = words
        if version != "v1":
            raise ValueError
        return RecallHandle(topic, broker, int(due), message_id)
    except ValueError:
        raise InvalidArgument(
            f"{handle[:64]!r} is no recall handle: a receipt of a message with delay=… or deliver_at=… has it",
            field="handle",
            value=handle[:64],
        ) from None
