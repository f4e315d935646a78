"""Errors on the wire: `PocketMQError` to and from the message `pocketmq.v1.Error` and gRPC statuses.

A failed call carries its gRPC status, the error's sentence as the status text, and in the trailing metadata
`pocketmq-error-bin` a serialised `pocketmq.v1.Error`: class name, sentence, details. In streams the same message is in
a reply. The receiver builds the same class again, with the same details. For a status without the metadata, by gRPC
itself or another server, `from_rpc_error` chooses the class by its code. This module needs no grpc at run time.

Peers refuse metadata from 8 KiB on, so an error is trimmed to `ERROR_SIZE_MAX` bytes: details and the sentence are cut
and end in "…", and details that do not fit are dropped.

Errors of the store name files, and the path of a queue's file contains its topic, which not every user may know. So the
path travels without the topic.
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

#: What grpc.aio says, with INTERNAL, when its own write meets a stream that has ended; the server's status is lost.
_WRITE_FAILED: Final = "Internal error from Core"

#: What a status without our metadata means to a caller.
_BY_CODE: Final[dict[str, type[errors.PocketMQError]]] = {
    "UNAVAILABLE": errors.ConnectionLost,
    "DEADLINE_EXCEEDED": errors.RequestTimeout,
    "CANCELLED": errors.ClientClosed,
    "UNIMPLEMENTED": errors.Unsupported,
    "RESOURCE_EXHAUSTED": errors.Overloaded,
    "INVALID_ARGUMENT": errors.InvalidArgument,
}


#: What a server itself answers, as one of ours.
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
        """Return the status, whose name is gRPC's."""
        ...

    def details(self) -> str | None:
        """Return the status text."""
        ...

    def trailing_metadata(self) -> Any:
        """Return keys and values."""
        ...


def ours(error: rpc.RpcError) -> errors.PocketMQError:
    """Return ERROR, which a server may have raised itself, as one of the tree: same sentence, same details."""
    if isinstance(error, errors.PocketMQError):
        return error
    return _OF_SERVER.get(type(error), errors.PocketMQError)(error.message, **error.details)


def failure_of(error: rpc.RpcError) -> rpc.RpcFailure:
    """Return ERROR as a call carries it: its status, its sentence, and itself in the trailing metadata."""
    wire = to_wire(ours(error))
    return rpc.RpcFailure(error.status, wire.message, ((ERROR_KEY, wire.SerializeToString()),))


def to_wire(error: errors.PocketMQError) -> Error:
    """Return ERROR as the message that travels, trimmed to `ERROR_SIZE_MAX` bytes."""
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
    """Return the sentence of ERROR as any user may read it."""
    if isinstance(error, errors.StoreError):
        return without_topics(error.message)
    return error.message


def without_topics(text: str) -> str:
    """Return TEXT without the topics in the paths of queues' files."""
    return _TOPIC_IN_PATH.sub(r"\1…", text)


def from_wire(wire: Error) -> errors.PocketMQError:
    """Return the error that WIRE tells of; a class that this version does not know becomes PocketMQError."""
    return errors.rebuild(wire.name, wire.message, dict(wire.details))


def from_rpc_error(error: FailedCall) -> errors.PocketMQError:
    """Return the error that the server raised, or the one that the failed call itself stands for."""
    metadata: Any = error.trailing_metadata()
    for key, value in metadata or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            with contextlib.suppress(DecodeError):  # Whoever wrote it was not one of ours.
                return from_wire(Error.FromString(value))
    code = error.code().name
    sentence = error.details() or code
    if isinstance(error, HandshakeFailed):
        return errors.TlsFailed(sentence)
    if "message larger than max" in sentence:
        return errors.MessageTooLarge(sentence, code=code)
    if sentence == _WRITE_FAILED:
        return errors.ConnectionLost("the stream ended while it was written to", code=code)
    return _BY_CODE.get(code, errors.PocketMQError)(sentence, code=code)


def _cut(text: str, length_max: int) -> str:
    """Return TEXT without what UTF-8 cannot hold, and no longer than LENGTH_MAX characters."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= length_max else text[: length_max - 1] + "…"
