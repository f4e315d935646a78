"""What comes of one call, put together: messages, and the status that it ends with. Pure.

Sources: PROTOCOL-HTTP2.md (Responses, Errors) and http-grpc-status-mapping.md of gRPC's documentation. An answer is a
head, messages, and trailers that say the status; or trailers alone, which then are the head.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

from ..channels import CallFailed, ChannelClosed, Metadata, StatusCode
from ..errors import InvalidArgument, MessageTooLarge
from ..grpc_calls.messages import MessageReader
from ..http2.frames import ErrorCode
from ..http2.hpack import Field

_HTTP_OK: Final = 200
_CONTENT_TYPE: Final = "application/grpc"
#: What a server that does not speak gRPC means.
_BY_HTTP_STATUS: Final = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    429: StatusCode.UNAVAILABLE,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
}
#: What it means that a server breaks a stream off; other codes are INTERNAL.
_BY_RESET: Final = {
    ErrorCode.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
}
_CODES: Final = {str(code.value): code for code in StatusCode}
_RESERVED: Final = frozenset(("content-type", "grpc-status", "grpc-message", "grpc-encoding"))


class Status(NamedTuple):
    """How a call ended."""

    code: StatusCode
    details: str = ""
    trailing: Metadata = ()

    def failure(self) -> CallFailed:
        """Return the error that it is."""
        return ChannelClosed() if self is CLOSED else CallFailed(*self)


#: Nobody waits for the answer any more: the caller broke it off, or its channel was closed.
CANCELLED: Final = Status(StatusCode.CANCELLED, "the caller cancelled the call")
CLOSED: Final = Status(StatusCode.CANCELLED, "the channel was closed")


def of_trailers(fields: Iterable[Field]) -> Status:
    """Return the status that trailers with FIELDS say."""
    fields = list(fields)
    said = dict(fields)
    number = said.get("grpc-status")
    if number is None:
        return Status(StatusCode.UNKNOWN, "the server ended the call without a status")
    code = _CODES.get(number, StatusCode.UNKNOWN)
    details = said.get("grpc-message", "")
    if "%" in details:
        details = unquote(details, errors="replace")
    return Status(code, details, tuple(_metadata(fields)))


def of_reset(code: int) -> Status:
    """Return the status of a call whose stream was broken off with CODE."""
    try:
        known = ErrorCode(code)
        name = known.name
    except ValueError:
        return Status(StatusCode.INTERNAL, f"the server broke the call off with code {code}")
    return Status(
        _BY_RESET.get(known, StatusCode.INTERNAL), f"the server broke the call off: {name}"
    )


def _metadata(fields: Iterable[Field]) -> Iterator[tuple[str, str | bytes]]:
    for name, value in fields:
        if name in _RESERVED:
            continue
        if not name.endswith("-bin"):
            yield name, value
            continue
        for part in value.split(","):
            try:
                yield name, b64decode(part.strip() + "=" * (-len(part.strip()) % 4), validate=True)
            except binascii.Error:
                continue  # It was not for us to check what we do not know.


class AnswerReader:
    """Puts one answer together; its messages may have SIZE_MAX bytes each."""

    __slots__ = ("_messages", "_size_max")

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._messages: MessageReader | None = None

    def head(self, http_status: int, fields: list[Field], *, ended: bool) -> Status | None:
        """Take the head of the answer; return how the call has ended, if it has."""
        said = dict(fields)
        if ended and "grpc-status" in said:
            return of_trailers(fields)
        content_type = said.get("content-type", "")
        if http_status != _HTTP_OK or not content_type.startswith(_CONTENT_TYPE):
            code = _BY_HTTP_STATUS.get(http_status, StatusCode.UNKNOWN)
            kind = content_type[:60] or "nothing"
            return Status(
                code, f"no gRPC is spoken there: the answer is HTTP {http_status}, {kind}"
            )
        if ended:
            return of_trailers(fields)
        compressed = said.get("grpc-encoding", "identity") == "gzip"
        self._messages = MessageReader(self._size_max, compressed=compressed)
        return None

    def data(self, piece: bytes) -> Iterator[bytes]:
        """Yield the messages that PIECE of the body completes; raise CallFailed for what is none."""
        assert self._messages is not None, "the head comes first"
        try:
            for message in self._messages.feed(piece):
                yield message if isinstance(message, bytes) else message.rest()
        except MessageTooLarge as error:
            raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, error.message) from None
        except InvalidArgument as error:
            raise CallFailed(StatusCode.INTERNAL, error.message) from None

    def end(self, fields: list[Field]) -> Status:
        """Return how the call has ended, by the FIELDS of its trailers; none: it had none."""
        status = of_trailers(fields)
        if status.code is StatusCode.OK and self._messages is not None and self._messages.is_half:
            return Status(StatusCode.INTERNAL, "the answer ends within a message")
        return status
