"""What a connection tells of the bytes that came: requests, their bodies, their ends."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from .requests import Request


class RequestReceived(NamedTuple):
    """A stream has begun. ENDED: no body follows."""

    stream_id: int
    request: Request
    ended: bool


class RequestTooLarge(NamedTuple):
    """A stream has begun whose fields are more than the limit: nothing is known of them. It waits for an answer."""

    stream_id: int
    ended: bool


class DataReceived(NamedTuple):
    """A piece of a request's body; ENDED: the last. The piece may be empty then."""

    stream_id: int
    data: bytes
    ended: bool


class StreamReset(NamedTuple):
    """A stream is over before its answer was: the peer broke it off, or a mistake of the peer did (BY_PEER False)."""

    stream_id: int
    code: int
    by_peer: bool


class CallsGivenUp(NamedTuple):
    """Told first of what was read: the peer resets these streams further on. What comes between need not be served."""

    stream_ids: tuple[int, ...]


class Drained(NamedTuple):
    """Less waits to be written of a stream than whoever asked to be told wanted."""

    stream_id: int


class PingAnswered(NamedTuple):
    """The peer answered the ping with PAYLOAD."""

    payload: bytes


class ConnectionEnded(NamedTuple):
    """The connection is over: what is left to write says why to the peer; close it then."""

    code: int
    reason: str


Event: TypeAlias = (
    RequestReceived
    | RequestTooLarge
    | DataReceived
    | StreamReset
    | CallsGivenUp
    | Drained
    | PingAnswered
    | ConnectionEnded
)
