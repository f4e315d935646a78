"""What a connection tells its owner: heads of requests and of responses, pieces of bodies, resets, GOAWAY, the end.

A head is checked here: pseudo-fields, headers and trailers, and what makes them malformed (RFC 9113 §8.2.2, §8.3).
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from .hpack import Field


class Malformed(Exception):
    """A request, or its trailers, that HTTP/2 does not allow. It ends its stream."""


class Request(NamedTuple):
    """What is asked. HEADERS has no pseudo-fields; of a name that comes twice it has the last value."""

    method: str
    path: str
    authority: str
    headers: dict[str, str]


_PSEUDO: Final = frozenset((":method", ":scheme", ":path", ":authority"))
#: What has no place behind the pseudo-fields: other ones, and what is about an HTTP/1.1 connection.
_MISPLACED: Final = frozenset(
    (
        *_PSEUDO,
        ":status",
        ":protocol",
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
    )
)


def read_request(fields: list[Field]) -> Request:
    """Return the request with FIELDS, in their order; raise Malformed."""
    pseudo: dict[str, str] = {}
    count = 0
    for name, value in fields:
        if name[0] != ":":
            break
        pseudo[name] = value
        count += 1
    if len(pseudo) != count:
        raise Malformed("a pseudo-field comes twice")
    headers = dict(fields[count:])
    check_headers(headers)
    if not pseudo.keys() <= _PSEUDO:
        raise Malformed("a pseudo-field is none of a request")
    path, method = pseudo.get(":path"), pseudo.get(":method")
    if not path or not method or not pseudo.get(":scheme"):
        raise Malformed("a request says its :method, :scheme and :path")
    return Request(method, path, pseudo.get(":authority", ""), headers)


def check_headers(headers: dict[str, str]) -> None:
    """Raise Malformed unless HEADERS, which follow the pseudo-fields or the body, are allowed there."""
    if not _MISPLACED.isdisjoint(headers):
        misplaced = ", ".join(sorted(_MISPLACED & headers.keys()))
        raise Malformed(f"{misplaced} has no place there")
    if headers.get("te", "trailers") != "trailers":
        raise Malformed("te is not trailers")


def check_trailers(fields: list[Field]) -> None:
    """Raise Malformed unless FIELDS may follow a body."""
    check_headers(dict(fields))


def content_length(headers: dict[str, str]) -> int | None:
    """Return how long the body says to be; None: it does not say. Raises Malformed."""
    text = headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise Malformed("content-length is no number")
    return int(text)


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


class CallsReset(NamedTuple):
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
    | CallsReset
    | Drained
    | PingAnswered
    | ConnectionEnded
)


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
