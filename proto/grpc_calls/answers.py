"""The headers and trailers of answers, as blocks of fields (PROTOCOL-HTTP2.md, Responses).

They refer to HPACK's static table alone, so that a block is the same on every connection: those of good answers are
constants.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from ..errors import PocketMQError
from ..errors_wire import ERROR_KEY, to_wire
from ..http2.hpack import literal
from .request_head import ENCODINGS

_STATUS: Final = {
    name: number
    for number, name in enumerate(
        (
            "OK",
            "CANCELLED",
            "UNKNOWN",
            "INVALID_ARGUMENT",
            "DEADLINE_EXCEEDED",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "PERMISSION_DENIED",
            "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION",
            "ABORTED",
            "OUT_OF_RANGE",
            "UNIMPLEMENTED",
            "INTERNAL",
            "UNAVAILABLE",
            "DATA_LOSS",
            "UNAUTHENTICATED",
        )
    )
}
#: What percent-encoding leaves as it is: printable ASCII but "%" itself.
_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
#: A longer status text is cut: peers refuse trailers from 8 KiB on, and the error itself stands there, too.
_TEXT_BYTES_MAX: Final = 2_048
_TEXT_CHARACTERS: Final = 160

#: What every answer begins with: field 8 of the static table is ":status 200" …
HEAD: Final = b"\x88" + literal("content-type", "application/grpc")
#: … and what follows a good one.
GOOD: Final = literal("grpc-status", "0")

#: Fields that were said before, mostly the same few.
_literal: Final = lru_cache(512)(literal)


def good(trailing: Iterable[tuple[str, str]]) -> bytes:
    """Return the trailers of a good answer that say TRAILING as well."""
    return GOOD + b"".join(_literal(name, value) for name, value in trailing)


def failed(error: PocketMQError) -> bytes:
    """Return the trailers of an answer that is ERROR."""
    wire = to_wire(error)
    # A message beyond the carrier's limit has gRPC's own status for that, whatever the broker's are.
    is_carriers = error.details.get("field") == "receive_bytes_max"
    status = "RESOURCE_EXHAUSTED" if is_carriers else error.status
    block = literal("grpc-status", str(_STATUS[status]))
    block += literal("grpc-message", _text(wire.message))
    value = b64encode(wire.SerializeToString()).rstrip(b"=").decode()
    block += literal(ERROR_KEY, value)
    if error.details.get("field") == "grpc-encoding":
        block += literal("grpc-accept-encoding", ",".join(ENCODINGS))
    return block


def http_only(status: int) -> bytes:
    """Return the headers of an answer to what is no gRPC: the HTTP STATUS, and nothing else."""
    return literal(":status", str(status))


def _text(sentence: str) -> str:
    """Return SENTENCE percent-encoded, cut if that is long."""
    text = quote(sentence, safe=_PLAIN)
    if len(text) > _TEXT_BYTES_MAX:
        text = quote(sentence[:_TEXT_CHARACTERS] + "…", safe=_PLAIN)
    return text
