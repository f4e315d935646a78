"""Errors of calls: those that handlers raise, and those that a server itself returns.

    RpcError                 the root; handlers raise subclasses, and the caller receives their `status`
    ├── BadRequest           the request breaks gRPC's rules, or cannot be decoded
    ├── TooLarge             a message exceeds the limit
    ├── ResourceExhausted    a limit of the server is reached
    ├── Unimplemented        no such method, or no such encoding
    ├── DeadlineExceeded     the caller's deadline passed, or the request was not complete in time
    ├── Stopping             the server is about to stop
    ├── InternalError        a handler raised something else than an RpcError
    └── CannotListen         the server cannot listen on this address and port

An error has a message and `details`, strings by name. The server's `describe` decides what else is sent to the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeAlias

logger = logging.getLogger(__name__)


class RpcError(Exception):
    """The result of a call that fails."""

    #: Name of the gRPC status code of this class.
    status: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, str] = {name: str(value) for name, value in details.items()}


class BadRequest(RpcError):
    """The request breaks gRPC's rules, or cannot be decoded."""

    status = "INVALID_ARGUMENT"


class TooLarge(RpcError):
    """A message is larger than the limit, compressed or decompressed."""

    status = "RESOURCE_EXHAUSTED"


class ResourceExhausted(RpcError):
    """A limit of the server is reached; the message names it."""

    status = "RESOURCE_EXHAUSTED"


class Unimplemented(RpcError):
    """The server has no such method, or does not know the encoding of the call."""

    status = "UNIMPLEMENTED"


class DeadlineExceeded(RpcError):
    """The caller's deadline has passed, or a request was not complete in time."""

    status = "DEADLINE_EXCEEDED"


class Stopping(RpcError):
    """The server is about to stop."""

    status = "UNAVAILABLE"


class InternalError(RpcError):
    """A handler raised an error that is no RpcError; the log contains it."""


class CannotListen(RpcError):
    """The server cannot listen on the address and port that you gave."""

    status = "FAILED_PRECONDITION"


class RpcFailure(NamedTuple):
    """An error as sent: a gRPC status, a message, and further metadata. Values of keys in "-bin" are bytes."""

    status: str
    message: str
    trailing: tuple[tuple[str, str | bytes], ...] = ()


#: Returns the sent form of an error.
Describe: TypeAlias = Callable[[RpcError], RpcFailure]


def described(error: RpcError) -> RpcFailure:
    """Return ERROR with its status and its message, and no metadata."""
    return RpcFailure(error.status, error.message)


def internal_error(path: str, bug: BaseException) -> InternalError:
    """Log BUG, which the handler of PATH raised, and return the error for the caller. It contains no internals."""
    logger.error("handler failed method=%s", path, exc_info=bug)
    return InternalError(f"internal error in {path}", method=path)


def shutting_down() -> Stopping:
    """Return the error of calls that a stop of the server ends."""
    return Stopping("the server is about to stop. Retry later or with another server")


def not_read(queued: int, limit: int, field: str) -> ResourceExhausted:
    """Return the error of a call whose peer has QUEUED unread bytes, more than LIMIT, the setting FIELD."""
    return ResourceExhausted(
        f"{queued} bytes wait for a peer that does not read them, the limit is {limit}:"
        " read faster or request less",
        field=field,
        limit=limit,
        value=queued,
    )
