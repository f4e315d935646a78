"""The head of a request: its pseudo-fields and its headers, and what makes them malformed (RFC 9113 §8.2.2, §8.3.1)."""

from __future__ import annotations

from typing import Final, NamedTuple

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
