"""What the headers of a call say: content type, time, how messages are compressed (PROTOCOL-HTTP2.md, Requests)."""

from __future__ import annotations

import re
from typing import Final

from ..errors import InvalidArgument, NotServed
from ..http2.requests import Request

_CONTENT_TYPE: Final = "application/grpc"
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
#: Milliseconds of a unit; what is shorter is rounded up, so that a short time is not none.
_UNIT_MS: Final = {"H": 3_600_000, "M": 60_000, "S": 1_000, "m": 1}
_UNITS_PER_MS: Final = {"u": 1_000, "n": 1_000_000}
#: How messages of requests may be compressed.
ENCODINGS: Final = ("identity", "gzip")


def http_refusal(request: Request) -> int | None:
    """Return the HTTP status for REQUEST if it is not gRPC at all: it would not understand another answer."""
    if request.method != "POST":
        return 405
    content_type = request.headers.get("content-type", "")
    if content_type == _CONTENT_TYPE:
        return None
    is_grpc = content_type.startswith((_CONTENT_TYPE + "+", _CONTENT_TYPE + ";"))
    return None if is_grpc else 415


def timeout_ms(headers: dict[str, str]) -> int | None:
    """Return how long the caller waits from now on; None: without end. Raises InvalidArgument."""
    text = headers.get("grpc-timeout")
    if text is None:
        return None
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise InvalidArgument(
            f"grpc-timeout is {text[:20]!r}: must be up to eight digits and a unit (H, M, S, m, u, n)",
            field="grpc-timeout",
            value=text[:20],
        )
    number, unit = int(found[1]), found[2]
    if unit in _UNIT_MS:
        return number * _UNIT_MS[unit]
    return -(-number // _UNITS_PER_MS[unit])


def is_compressed(headers: dict[str, str]) -> bool:
    """Return whether messages of the call may be compressed; raise NotServed if it is in a way that is not known."""
    encoding = headers.get("grpc-encoding", "identity")
    if encoding not in ENCODINGS:
        raise NotServed(
            f"grpc-encoding is {encoding[:20]!r}: must be {' or '.join(ENCODINGS)}",
            field="grpc-encoding",
            value=encoding[:20],
        )
    return encoding != "identity"
