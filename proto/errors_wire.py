"""Errors on the wire: `PocketMQError` to and from the message `pocketmq.v1.Error` and gRPC statuses.

A failed call has its gRPC status, the message of the error as the status text, and in the trailing metadata
`pocketmq-error-bin` a serialised `pocketmq.v1.Error`: class name, message, details. In streams it is
part of a reply. The receiver creates the same class again, with the same details. For a status
without this metadata (by gRPC itself, or another server), `from_rpc_error` chooses the class by its code. This module
needs no grpc at run time.

Peers refuse metadata from 8 KiB on, so an error is trimmed to `ERROR_SIZE_MAX` bytes: details and message are cut and
end in "…", and details that do not fit are dropped.

Errors of the store contain file names, and the path of a queue's file contains its topic, which not every user may see.
So topics are removed from paths.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from . import errors
from .gen.pocketmq_v1_pb2 import Error
from .rpc import errors as rpc
from .rpc.channels import HandshakeFailed

#: The metadata key; keys in "-bin" may hold any bytes.
ERROR_KEY: Final = "pocketmq-error-bin"

ERROR_SIZE_MAX: Final = 3072  # bytes of a serialised Error
SENTENCE_LENGTH_MAX: Final = 600  # characters
DETAIL_LENGTH_MAX: Final = 200  # characters of one value

#: A topic in the path of a queue's file.
_TOPIC_IN_PATH: Final = re.compile(r"((?:batch)?consumequeue(?:_ext)?/)[^/]+")

#: The status text of grpc.aio, with INTERNAL, when it writes to an ended stream; the server's own status is lost.
_WRITE_FAILED: Final = "Internal error from Core"

#: The error class for a status without PocketMQ's metadata.
_BY_CODE: Final[dict[str, type[errors.PocketMQError]]] = {
    "UNAVAILABLE": errors.ConnectionLost,
    "DEADLINE_EXCEEDED": errors.RequestTimeout,
    "CANCELLED": errors.ClientClosed,
    "UNIMPLEMENTED": errors.Unsupported,
    "RESOURCE_EXHAUSTED": errors.Overloaded,
    "INVALID_ARGUMENT": errors.InvalidArgument,
}


#: The error class for errors that the HTTP/2 server itself returns.
_OF_SERVER: Final[dict[type[rpc.RpcError], type[errors.PocketMQError]]] = {
    rpc.BadRequest: errors.InvalidArgument,
    rpc.TooLarge: errors.MessageTooLarge,
    rpc.ResourceExhausted: errors.Overloaded,
    rpc.Unimplemented: errors.Unsupported,
    rpc.DeadlineExceeded: errors.RequestTimeout,
    rpc.Stopping: errors.ShuttingDown,
    rpc.CannotListen: errors.ConfigError,
}


class FailedCall(Protocol):
    """A call that failed: `channels.CallFailed`, or grpc's own error."""

    def code(self) -> Any:
        """Return the status; its `name` is gRPC's name of it."""
        ...

    def details(self) -> str | None:
        """Return the status text."""
        ...

    def trailing_metadata(self) -> Any:
        """Return keys and values."""
        ...


def ours(error: rpc.RpcError) -> errors.PocketMQError:
    """Return ERROR, which the HTTP/2 server may have raised, as a PocketMQError with the same message and details."""
    if isinstance(error, errors.PocketMQError):
        return error
    return _OF_SERVER.get(type(error), errors.PocketMQError)(error.message, **error.details)


def failure_of(error: rpc.RpcError) -> rpc.RpcFailure:
    """Return ERROR as a call sends it: its status, its message, and the serialised error as trailing metadata."""
    wire = to_wire(ours(error))
    return rpc.RpcFailure(error.status, wire.message, ((ERROR_KEY, wire.SerializeToString()),))


def to_wire(error: errors.PocketMQError) -> Error:
    """Return ERROR as the message to send, trimmed to `ERROR_SIZE_MAX` bytes."""
    is_of_store = isinstance(error, errors.StoreError)
    wire = Error(
        name=type(error).__name__,
        message=_cut(sentence_of(error), SENTENCE_LENGTH_MAX),
        details={
            _cut(name, DETAIL_LENGTH_MAX): _cut(
                without_topics(value) if is_of_store else value, DETAIL_LENGTH_MAX
            )
            for name, value in error.details.items()
        },
    )
    if wire.ByteSize() > ERROR_SIZE_MAX:
        wire.ClearField("details")
    return wire


def sentence_of(error: rpc.RpcError) -> str:
    """Return the message of ERROR in the form that any user may read."""
    if isinstance(error, errors.StoreError):
        return without_topics(error.message)
    return error.message


def without_topics(text: str) -> str:
    """Return TEXT without the topics in paths of queue files."""
    return _TOPIC_IN_PATH.sub(r"\1…", text)


def from_wire(wire: Error) -> errors.PocketMQError:
    """Return the error in WIRE; a class that this version does not know becomes PocketMQError."""
    return errors.rebuild(wire.name, wire.message, dict(wire.details))


def from_rpc_error(error: FailedCall) -> errors.PocketMQError:
    """Return the error that the server raised, or the one that corresponds to the status of the failed call."""
    metadata: Any = error.trailing_metadata()
    for key, value in metadata or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            with contextlib.suppress(DecodeError):  # A server other than PocketMQ wrote it.
                return from_wire(Error.FromString(value))
    code = error.code().name
    sentence = error.details() or code
    if isinstance(error, HandshakeFailed):
        return errors.TlsFailed(sentence)
    if "message larger than max" in sentence:
        return errors.MessageTooLarge(sentence, code=code)
    if sentence == _WRITE_FAILED:
        return errors.ConnectionLost("the stream ended while the client wrote to it", code=code)
    return _BY_CODE.get(code, errors.PocketMQError)(sentence, code=code)


def _cut(text: str, length_max: int) -> str:
    """Return TEXT without characters that UTF-8 cannot encode, cut to LENGTH_MAX characters."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= length_max else text[: length_max - 1] + "…"
