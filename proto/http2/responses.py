"""What a client is told: heads of responses, trailers, farewells, and what makes them malformed (RFC 9113 §8.3.2)."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from .events import ConnectionEnded, DataReceived, Drained, PingAnswered, StreamReset
from .hpack import Field
from .requests import Malformed, check_headers


class ResponseReceived(NamedTuple):
    """A stream's answer has begun, with HTTP STATUS and further FIELDS. ENDED: there is nothing else of it."""

    stream_id: int
    status: int
    fields: list[Field]
    ended: bool


class TrailersReceived(NamedTuple):
    """A stream's answer has ended with FIELDS."""

    stream_id: int
    fields: list[Field]


class GoAwayReceived(NamedTuple):
    """The server takes no new streams, and none above LAST_STREAM_ID, which are over. It may say why."""

    last_stream_id: int
    code: int
    reason: str


ClientEvent: TypeAlias = (
    ResponseReceived
    | DataReceived
    | TrailersReceived
    | StreamReset
    | Drained
    | PingAnswered
    | GoAwayReceived
    | ConnectionEnded
)


def read_status(fields: list[Field]) -> int:
    """Return the status of a response that begins with FIELDS; raise Malformed."""
    name, text = fields[0] if fields else ("", "")
    if name != ":status" or len(text) != 3 or not (text.isascii() and text.isdigit()):
        raise Malformed("a response says its :status first")
    status = int(text)
    if status < 100 or status == 101:
        raise Malformed(f"a response of status {status}")
    check_headers(dict(fields[1:]))
    return status
