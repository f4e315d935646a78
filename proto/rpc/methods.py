"""The interface of handlers: tables of methods, calls and streams.

A service is a `MethodTable`: for each method its path, kind, protobuf types and handler. Handlers import this module
and nothing of the server (carrier.py), which serves the tables on connections.

    kind           handler
    UNARY          handler(request, call) -> reply | LATER        a plain function, or a coroutine function
    SERVER_STREAM  handler(request, stream) -> None               a plain function, or a coroutine function
    BIDI           handler(stream) -> Receiver                    a plain function

Duties of a handler:

- It runs on the event loop and returns promptly. To wait for one event, return `LATER` and complete the call from the
  event's callback. Use a coroutine only to wait over many steps: a task per call costs 20 to 30 µs.
- It answers once: `reply` or `fail` for a call, `finish` or `fail` for a stream. An `RpcError` becomes its status; any
  other exception becomes a logged INTERNAL without details.
- It releases what it holds for a caller that disconnected: `on_cancel`, or the receiver's `on_close`.
"""

from __future__ import annotations

import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

from google.protobuf.message import Message

from .errors import BadRequest, RpcError

logger = logging.getLogger(__name__)
Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
RequestIn = TypeVar("RequestIn", bound=Message, contravariant=True)


class Later(enum.Enum):
    """The type of `LATER`."""

    LATER = "later"


#: Returned by a unary handler that will complete its call from a callback.
LATER: Final = Later.LATER


class CallUser:
    """The user of calls, as a guard identified it. This class itself is for servers without users: it may do all."""

    __slots__ = ()
    #: "": the server has no users.
    name: str = ""

    def may(self, call: CallContext, need: Any) -> bool:
        """May the user, who sent CALL, do at present what NEED describes?"""
        return True


ANYBODY: Final = CallUser()


class CallContext(ABC):
    """The common part of calls and streams: the caller, the deadline, and whether the caller still waits."""

    __slots__ = ("_on_cancel", "cancelled", "outlasts", "user")

    def __init__(self) -> None:
        #: The user; set by the guard before the handler.
        self.user: CallUser = ANYBODY
        #: Did the caller disconnect before it was answered? Then answers are dropped.
        self.cancelled = False
        #: Does it continue when the server replaces the tables that it belongs to?
        self.outlasts = False
        self._on_cancel: list[Callable[[], None]] = []

    def may(self, need: Any) -> bool:
        """May the user do at present what NEED describes?"""
        return self.user.may(self, need)

    @property
    @abstractmethod
    def peer(self) -> str:
        """The caller's end of the connection, "127.0.0.1:40312" or "[::1]:40312"."""

    @property
    @abstractmethod
    def metadata(self) -> Mapping[str, str]:
        """The request's metadata, keys in lower case; binary entries ("-bin") are left out."""

    @property
    def is_secure(self) -> bool:
        """Does the connection use TLS?"""
        return False

    @property
    def certificate_names(self) -> Sequence[str]:
        """The names in the caller's verified certificate; none if it showed none."""
        return ()

    @property
    @abstractmethod
    def deadline_ms(self) -> int | None:
        """Milliseconds until the caller's deadline (0 if it has passed); None: there is no deadline."""

    @abstractmethod
    def add_trailing(self, name: str, value: str) -> None:
        """Add NAME with VALUE to the trailing metadata of a successful answer: before the answer, once per name."""

    @abstractmethod
    def fail(self, error: RpcError) -> None:
        """Answer with ERROR; in a stream, after the messages that were sent before."""

    def outlast(self) -> None:
        """Let the call continue after its tables are replaced: other tables answer it."""
        self.outlasts = True

    def on_cancel(self, function: Callable[[], None]) -> None:
        """Call FUNCTION once if the caller disconnects before it is answered; at once if it has."""
        if self.cancelled:
            function()
        else:
            self._on_cancel.append(function)

    def cancel(self) -> None:
        """Note that the caller has disconnected. For servers; only the first call has an effect."""
        if self.cancelled:
            return
        self.cancelled = True
        for function in self._on_cancel:
            try:
                function()
            except Exception:
                # A bug in one handler must not keep the other callbacks from being called.
                logger.exception("cancellation callback failed")
        self._on_cancel.clear()


class Call(CallContext):
    """An open unary call."""

    __slots__ = ()

    @abstractmethod
    def reply(self, message: Message) -> None:
        """Answer with MESSAGE: the handler has returned, or will return, `LATER`."""


class _Encoded:
    """An encoded message, with the one method that a stream calls."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:
        return self._data


class Stream(CallContext):
    """The outgoing half of a stream. Messages are queued and sent in order."""

    __slots__ = ()

    @property
    @abstractmethod
    def queued_bytes(self) -> int:
        """Bytes of queued messages."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Queue MESSAGE. It is encoded now, so the caller may change or reuse it afterwards.

        The carrier limits the queue. A handler that sends more than one reply per received message waits for
        `drained()` between messages. A queue of `Limits.queue_bytes_max` fails the stream with ResourceExhausted.
        """

    def send_encoded(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Queue an encoded message, as PIECES: for large messages this saves copies."""
        self.send(cast("Message", _Encoded(b"".join(pieces))))

    def write_now(self) -> None:
        """Send queued messages in this turn of the loop, if the server can; otherwise in the next one."""
        return

    @abstractmethod
    def finish(self) -> None:
        """End the stream without an error after its queued messages."""

    @abstractmethod
    async def drained(self) -> None:
        """Return once the queue is below `Limits.queue_bytes`, or the stream has ended."""


class Receiver(Protocol[RequestIn]):
    """The incoming half of a bidirectional stream, returned by a handler of kind BIDI."""

    def on_message(self, message: RequestIn) -> Awaitable[None] | None:
        """Process MESSAGE. If the result is an awaitable, the next message is read when it is done.

        An exception fails the stream as one of a handler would.
        """
        ...

    def on_end(self) -> None:
        """Called after the last message: answer what is pending, then `finish()` the stream.

        The peer half-closed, the server is about to stop, or (if the server cannot distinguish it) the peer is gone.
        """
        ...

    def on_close(self) -> None:
        """Release everything: the stream has ended, for whatever reason.

        `stream.cancelled` is true if the peer reset it; a receiver that finishes on `on_end` may not see that.
        """
        ...


class MethodKind(enum.Enum):
    """The number of messages in each direction."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDI = "bidirectional stream"


@dataclass(frozen=True, slots=True)
class Method:
    """One gRPC method: PATH is "/package.Service/Method". CHECK raises BadRequest for a request that must be refused,
    CHECK_DATA does so before the request is decoded.
    """

    path: str
    kind: MethodKind
    request_type: type[Message]
    reply_type: type[Message]
    handler: Callable[..., Any]
    check: Callable[[Any], None] | None = None
    check_data: Callable[[bytes], None] | None = None

    def decode(self, data: bytes) -> Message:
        """Return the request in DATA; raise BadRequest, with method and type, if it cannot be decoded."""
        if self.check_data is not None:
            self.check_data(data)
        request = self.request_type()
        try:
            request.ParseFromString(data)
        except (
            Exception
        ) as error:  # protobuf's DecodeError, or UnicodeDecodeError, by implementation
            kind = self.request_type.DESCRIPTOR.full_name
            raise BadRequest(
                f"the request of {self.path} is not a well-formed {kind}: {len(data)} bytes cannot be decoded",
                method=self.path,
                field=kind,
                value=f"{len(data)} bytes",
            ) from error
        if self.check is not None:
            self.check(request)
        return request


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A method without its name: `unary`, `server_stream` and `bidi` return it for `service`."""

    kind: MethodKind
    request_type: type[Message]
    reply_type: type[Message]
    handler: Callable[..., Any]


def unary(
    request_type: type[Request],
    reply_type: type[Reply],
    handler: Callable[[Request, Call], Reply | Later] | Callable[[Request, Call], Awaitable[Reply]],
) -> MethodEntry:
    """Return the entry of a unary method."""
    return MethodEntry(MethodKind.UNARY, request_type, reply_type, handler)


def server_stream(
    request_type: type[Request],
    reply_type: type[Reply],
    handler: Callable[[Request, Stream], None] | Callable[[Request, Stream], Awaitable[None]],
) -> MethodEntry:
    """Return the entry of a method that answers with a stream. The end of a coroutine finishes its stream."""
    return MethodEntry(MethodKind.SERVER_STREAM, request_type, reply_type, handler)


def bidi(
    request_type: type[Request],
    reply_type: type[Reply],
    handler: Callable[[Stream], Receiver[Request]],
) -> MethodEntry:
    """Return the entry of a method with a stream in both directions."""
    return MethodEntry(MethodKind.BIDI, request_type, reply_type, handler)


class MethodTable:
    """The methods of one or several services. Each path is unique."""

    def __init__(self, methods: Mapping[str, Method] | None = None) -> None:
        self._methods = dict(methods or {})

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())

    def __len__(self) -> int:
        return len(self._methods)

    def __getitem__(self, path: str) -> Method:
        return self._methods[path]

    def services(self) -> list[str]:
        """Return the names of the services ("package.Service") of these methods, in order."""
        return sorted({path[1:].rpartition("/")[0] for path in self._methods})

    def __or__(self, other: MethodTable) -> MethodTable:
        """Return a table of both; they must not share a path."""
        both = self._methods.keys() & other._methods.keys()
        assert not both, f"two tables serve {sorted(both)}"
        return MethodTable(self._methods | other._methods)


def service(name: str, entries: Mapping[str, MethodEntry]) -> MethodTable:
    """Return the table of service NAME ("package.Service") with ENTRIES by method name."""
    return MethodTable(
        {
            path: Method(path, entry.kind, entry.request_type, entry.reply_type, entry.handler)
            for path, entry in ((f"/{name}/{method}", entry) for method, entry in entries.items())
        }
    )
