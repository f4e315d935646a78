"""Methods as handlers know them: tables of methods, calls and streams, whatever carries them.

A service is a `MethodTable`: for each method its path, its kind, its protobuf types and a handler. A *carrier*
hangs tables on something that speaks gRPC: `server.py` on HTTP/2 of its own. Handlers import this module and nothing of
the carrier; a carrier knows nothing of the handlers but what stands here.

    kind           handler
    UNARY          handler(request, call) -> reply | LATER        a plain function, or a coroutine function
    SERVER_STREAM  handler(request, stream) -> None               a plain function, or a coroutine function
    BIDI           handler(stream) -> Receiver                    a plain function

Duties of a handler
  - It runs on the event loop and returns promptly. What waits for one event is a plain function that returns
    `LATER` (or keeps its stream) and completes it from the event's callback; only what waits over many steps is a
    coroutine, because a task per call costs 20-30 µs.
  - It answers once: `reply` or `fail` for a call, `finish` or `fail` for a stream. An exception is an answer too: an
    `RpcError` becomes its status, anything else a logged INTERNAL that tells nothing of the inside.
  - It lets go of what it holds for a caller that has gone: `on_cancel`, or the receiver's `on_close`.

Duties of a carrier (`Carrier`)
  - It decodes requests; bytes that do not decode are INVALID_ARGUMENT, and no handler hears of them.
  - It calls everything on the loop's thread, one message of a stream after the other, and never again after
    `on_close`, which comes exactly once and last, for every `Receiver` that a handler returned.
  - It keeps the order of `send`, and reads no further message of a stream while the awaitable that
    `on_message` returned is pending or the outgoing queue stands at its bound.
  - It drops answers to callers that have gone, without an error: they may race with a flush.
"""

from __future__ import annotations

import enum
import logging
import os
import ssl
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast, runtime_checkable

from google.protobuf.message import Message

from .errors import BadRequest, RpcError
from .limits import Limits

logger = logging.getLogger(__name__)

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
RequestIn = TypeVar("RequestIn", bound=Message, contravariant=True)


class Later(enum.Enum):
    """The type of `LATER`."""

    LATER = "later"


#: Returned by a unary handler that will complete its call from a callback.
LATER: Final = Later.LATER


class CallContext(ABC):
    """What calls and streams have in common: who asks, until when, and whether they still wait."""

    __slots__ = ("_on_cancel", "cancelled")

    def __init__(self) -> None:
        #: The caller has gone before it was answered; answers are dropped.
        self.cancelled = False
        self._on_cancel: list[Callable[[], None]] = []

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
        """Did it come over TLS?"""
        return False

    @property
    def certificate_names(self) -> Sequence[str]:
        """The names in the caller's certificate, if it showed one that was verified."""
        return ()

    @property
    @abstractmethod
    def deadline_ms(self) -> int | None:
        """Milliseconds from now until the caller gives up (0 if it has); None: it waits without end."""

    @abstractmethod
    def add_trailing(self, name: str, value: str) -> None:
        """Have the metadata that follows a good answer say VALUE under NAME, once each; before it is answered."""

    @abstractmethod
    def fail(self, error: RpcError) -> None:
        """Answer with ERROR; of a stream, after what was sent before."""

    def on_cancel(self, function: Callable[[], None]) -> None:
        """Have FUNCTION called once if the caller goes before it is answered; at once if it has gone."""
        if self.cancelled:
            function()
        else:
            self._on_cancel.append(function)

    def cancel(self) -> None:
        """Note that the caller has gone. For carriers; at most the first call has an effect."""
        if self.cancelled:
            return
        self.cancelled = True
        for function in self._on_cancel:
            try:
                function()
            except Exception:  # The edge: one handler's bug must not keep the others from hearing.
                logger.exception("cancellation callback failed")
        self._on_cancel.clear()


class Call(CallContext):
    """A unary call under way."""

    __slots__ = ()

    @abstractmethod
    def reply(self, message: Message) -> None:
        """Answer with MESSAGE: the handler has returned, or will return, `LATER`."""


class _Encoded:
    """A message that is encoded: all that a stream asks of one."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:
        return self._data


class Stream(CallContext):
    """The outgoing half of a stream. Messages are queued and leave in order."""

    __slots__ = ()

    @property
    @abstractmethod
    def queued_bytes(self) -> int:
        """Size of what was sent and has not left yet."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Queue MESSAGE. It is encoded now, so the caller may change or reuse it afterwards.

        The bound of the queue is the carrier's: who sends unasked (more than one reply for a message received) waits
        for `drained()` between messages. A queue of `Limits.queue_bytes_max` fails the stream with ResourceExhausted.
        """

    def send_encoded(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Do that with a message that is encoded already, as PIECES: of a large one each copy counts."""
        self.send(cast("Message", _Encoded(b"".join(pieces))))

    def write_now(self) -> None:
        """Have what was sent leave in this turn of the loop, if the carrier can; else it leaves in the next one."""
        return

    @abstractmethod
    def finish(self) -> None:
        """End the stream well, once what was sent has left."""

    @abstractmethod
    async def drained(self) -> None:
        """Return once the queue is below `Limits.queue_bytes`, or the stream is gone."""


class Receiver(Protocol[RequestIn]):
    """The incoming half of a bidirectional stream: what a handler of kind BIDI returns."""

    def on_message(self, message: RequestIn) -> Awaitable[None] | None:
        """Take MESSAGE. An awaitable holds back reading of the next one until it is done.

        An exception fails the stream as one of a handler would.
        """
        ...

    def on_end(self) -> None:
        """Know that no message follows: answer what is pending, then `finish()` the stream.

        The peer half-closed, the server is about to stop, or (a carrier may not be able to tell) the peer is gone.
        """
        ...

    def on_close(self) -> None:
        """Let go: the stream is over, for whatever reason.

        `stream.cancelled` tells that the peer broke it off; a receiver that finishes on `on_end` may not see that.
        """
        ...


class MethodKind(enum.Enum):
    """How many messages travel in each direction."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDI = "bidirectional stream"


@dataclass(frozen=True, slots=True)
class Method:
    """One gRPC method: PATH is "/package.Service/Method"."""

    path: str
    kind: MethodKind
    request_type: type[Message]
    reply_type: type[Message]
    handler: Callable[..., Any]

    def decode(self, data: bytes) -> Message:
        """Return the request in DATA; raise BadRequest that names method and type."""
        request = self.request_type()
        try:
            request.ParseFromString(data)
        except (
            Exception
        ) as error:  # protobuf's DecodeError, or UnicodeDecodeError, by implementation
            kind = self.request_type.DESCRIPTOR.full_name
            raise BadRequest(
                f"the request of {self.path} is not a well-formed {kind}: {len(data)} bytes do not decode",
                method=self.path,
                field=kind,
                value=f"{len(data)} bytes",
            ) from error
        return request


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A method without its name: what `unary`, `server_stream` and `bidi` return for `service`."""

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
    """Return the entry of a method that answers with a stream; the end of a coroutine finishes its stream."""
    return MethodEntry(MethodKind.SERVER_STREAM, request_type, reply_type, handler)


def bidi(
    request_type: type[Request],
    reply_type: type[Reply],
    handler: Callable[[Stream], Receiver[Request]],
) -> MethodEntry:
    """Return the entry of a method with a stream in both directions."""
    return MethodEntry(MethodKind.BIDI, request_type, reply_type, handler)


class MethodTable:
    """The methods of one or several services; no path twice."""

    def __init__(self, methods: Mapping[str, Method] | None = None) -> None:
        self._methods = dict(methods or {})

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())

    def __len__(self) -> int:
        return len(self._methods)

    def __getitem__(self, path: str) -> Method:
        return self._methods[path]

    def services(self) -> list[str]:
        """Return the names of the services ("package.Service") that methods here belong to, in order."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a side shows over TLS, as PEM: its certificate with those between it and a root, and its key.

    AUTHORITIES, PEM as well, are for those who know each other: the other side has to show a certificate that one of
    them signed, whatever name is in it. Empty: a server asks callers for none.
    """

    chain: bytes
    key: bytes = field(repr=False)
    authorities: bytes = b""

    def server_context(self) -> ssl.SSLContext:
        """Return what a server's handshakes need: TLS 1.2 or later, HTTP/2 before HTTP/1.1 (ALPN).

        Raises ssl.SSLError for what is no certificate, no key of it, or no authority.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["h2", "http/1.1"])
        if self.authorities:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return what a client's handshakes need, who believes AUTHORITIES only. Raises ssl.SSLError likewise."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION
        if self.authorities:
            context.load_verify_locations(cadata=self.authorities.decode("ascii", "replace"))
        # OpenSSL takes files only: it gets one without a name where there are such.
        content = self.key + b"\n" + self.chain
        if hasattr(os, "memfd_create"):
            with open(os.memfd_create("certificate"), "wb") as file:
                file.write(content)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        else:
            with tempfile.NamedTemporaryFile() as named:
                named.write(content)
                named.flush()
                context.load_cert_chain(named.name)
        return context


class Carrier(Protocol):
    """What puts method tables within reach of callers."""

    async def start(self, host: str, port: int) -> int:
        """Serve at HOST and PORT (0: any free one) and return the port; raise CannotListen if that cannot be had."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let open ones end within GRACE_S seconds, fail the rest."""
        ...


class MakeCarrier(Protocol):
    """Makes the carrier of TABLES: the class of one, as a rule."""

    def __call__(self, tables: Iterable[MethodTable], *, limits: Limits) -> Carrier: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFigures:
    """One open connection, counted since it was opened; ages are those of this moment."""

    #: Rises by one with each connection that is accepted; the first is 1.
    id: int
    #: "127.0.0.1:40312" or "[::1]:40312".
    peer: str
    #: TLS.
    secure: bool
    age_ms: int
    #: Calls and streams under way.
    streams_open: int
    calls_begun: int
    #: Answered with OK.
    calls_succeeded: int
    #: Answered with another status, or given up by the caller.
    calls_failed: int
    #: From the wire, what TLS and HTTP/2 add included.
    bytes_read: int
    bytes_written: int
    #: Not written yet, because the peer does not read.
    bytes_queued: int
    #: Of its first call, as it came: a peer may say anything. "": none said one.
    user_agent: str = ""
    #: Of the call begun last, as it came; "": none has begun.
    last_path: str = ""
    #: How long ago that was; 0 without one.
    last_call_age_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTotals:
    """All connections of a server since its start."""

    open: int
    #: Those that are open, and those that were closed.
    accepted: int
    #: Beyond the limit; they are not among the accepted.
    refused: int
    #: How many ended why; the reasons are the carrier's words, few and fixed.
    closed: Mapping[str, int] = field(default_factory=dict)
    #: Bytes of requests that are not whole, or wait for their reader.
    requests_held_bytes: int = 0
    #: Bytes of answers that their peers have not read.
    answers_held_bytes: int = 0


@runtime_checkable
class CountsConnections(Protocol):
    """A carrier that counts. Asked on its event loop, while it serves."""

    def connection_figures(self, first_id: int, limit: int) -> Sequence[ConnectionFigures]:
        """Return LIMIT open connections at most, by id, beginning with the first whose id is not below FIRST_ID."""
        ...

    def connection_totals(self) -> ConnectionTotals:
        """Return what became of all connections."""
        ...

    def close_connection(self, number: int) -> bool:
        """Break off connection NUMBER, with all that is under way on it; return whether it was open."""
        ...
