"""Heads of gRPC requests and answers on HTTP/2, and trailers (PROTOCOL-HTTP2.md).

Heads and trailers of responses use only HPACK's static table. So the same block is valid on every connection, and the
blocks of successful responses are constants.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from .channels import StatusCode
from .errors import BadRequest, Describe, RpcError, Unimplemented
from .hpack import literal
from .incoming import Request

_CONTENT_TYPE: Final = "application/grpc"
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
#: Milliseconds of a unit. Shorter times are rounded up, so that a short timeout is not zero.
_UNIT_MS: Final = {"H": 3_600_000, "M": 60_000, "S": 1_000, "m": 1}
_UNITS_PER_MS: Final = {"u": 1_000, "n": 1_000_000}
#: The supported encodings of requests.
ENCODINGS: Final = ("identity", "gzip")


def http_refusal(request: Request) -> int | None:
    """Return an HTTP status if REQUEST is not gRPC: its client would not understand another answer."""
    if request.method != "POST":
        return 405
    content_type = request.headers.get("content-type", "")
    if content_type == _CONTENT_TYPE:
        return None
    is_grpc = content_type.startswith((_CONTENT_TYPE + "+", _CONTENT_TYPE + ";"))
    return None if is_grpc else 415


def timeout_ms(headers: dict[str, str]) -> int | None:
    """Return how long the caller waits from now on; None: without limit. Raises BadRequest."""
    text = headers.get("grpc-timeout")
    if text is None:
        return None
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise BadRequest(
            f"grpc-timeout is {text[:20]!r}: must be up to eight digits and a unit (H, M, S, m, u, n)",
            field="grpc-timeout",
            value=text[:20],
        )
    number, unit = int(found[1]), found[2]
    if unit in _UNIT_MS:
        return number * _UNIT_MS[unit]
    return -(-number // _UNITS_PER_MS[unit])


def is_compressed(headers: dict[str, str]) -> bool:
    """Return whether messages of the call may be compressed; raise Unimplemented for an unknown encoding."""
    encoding = headers.get("grpc-encoding", "identity")
    if encoding not in ENCODINGS:
        raise Unimplemented(
            f"grpc-encoding is {encoding[:20]!r}: must be {' or '.join(ENCODINGS)}",
            field="grpc-encoding",
            value=encoding[:20],
        )
    return encoding != "identity"


#: Characters that percent-encoding leaves unchanged: printable ASCII except "%".
_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
#: A longer status text is cut: peers refuse trailers from 8 KiB on, and the trailers also contain the encoded error.
_TEXT_BYTES_MAX: Final = 2_048
_TEXT_CHARACTERS: Final = 160

#: The start of every answer: field 8 of the static table is ":status 200".
HEAD: Final = b"\x88" + literal("content-type", "application/grpc")
#: The end of a successful answer.
GOOD: Final = literal("grpc-status", "0")

#: Cached, because there are mostly the same few fields.
_literal: Final = lru_cache(512)(literal)


@lru_cache(512)
def good(trailing: tuple[tuple[str, str], ...]) -> bytes:
    """Return the trailers of a successful answer, with TRAILING. Cached, because there are mostly the same few."""
    return GOOD + b"".join(_literal(name, value) for name, value in trailing)


def failed(error: RpcError, describe: Describe) -> bytes:
    """Return the trailers of an answer that fails with ERROR, in the form that DESCRIBE returns."""
    status, message, trailing = describe(error)
    block = literal("grpc-status", str(StatusCode[status].value))
    block += literal("grpc-message", _text(message))
    for name, value in trailing:
        text = value if isinstance(value, str) else b64encode(value).rstrip(b"=").decode()
        block += literal(name, text)
    if error.details.get("field") == "grpc-encoding":
        block += literal("grpc-accept-encoding", ",".join(ENCODINGS))
    return block


def http_only(status: int) -> bytes:
    """Return the headers of an answer to a request that is not gRPC: the HTTP STATUS, and nothing else."""
    return literal(":status", str(status))


def _text(sentence: str) -> str:
    """Return SENTENCE percent-encoded, cut if it is too long."""
    text = quote(sentence, safe=_PLAIN)
    if len(text) > _TEXT_BYTES_MAX:
        text = quote(sentence[:_TEXT_CHARACTERS] + "…", safe=_PLAIN)
    return text
