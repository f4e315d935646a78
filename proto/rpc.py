"""What a gRPC method is to its handler: tables of methods, calls and streams, whatever carries them.

A service is a `MethodTable`: for each method its path, its kind, its protobuf types and a handler. A *carrier*
hangs tables on something that speaks gRPC (`carrier_grpcio.py` does so with `grpc.aio`). Handlers import this
module and nothing of the carrier; a carrier knows nothing of the handlers but what stands here.

    kind           handler
    UNARY          handler(request, call) -> reply | LATER        a plain function, or a coroutine function
    SERVER_STREAM  handler(request, stream) -> None               a plain function, or a coroutine function
    BIDI           handler(stream) -> Receiver                    a plain function

Duties of a handler
  - It runs on the event loop and returns promptly. What waits for one event is a plain function that returns
    `LATER` (or keeps its stream) and completes it from the event's callback; only what waits over many steps is a
    coroutine, because a task per call costs 20-30 µs.
  - It answers once: `reply` or `fail` for a call, `finish` or `fail` for a stream. An exception is an answer too: a
    `PocketMQError` becomes its status, anything else a logged INTERNAL that tells nothing of the inside.
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
import importlib.util
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import Message

from .errors import ConfigError, InvalidArgument, PocketMQError

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
    @abstractmethod
    def deadline_ms(self) -> int | None:
        """Milliseconds from now until the caller gives up (0 if it has); None: it waits without end."""

    @abstractmethod
    def add_trailing(self, name: str, value: str) -> None:
        """Have the metadata that follows a good answer say VALUE under NAME, once each; before it is answered."""

    @abstractmethod
    def fail(self, error: PocketMQError) -> None:
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
        for `drained()` between messages. A queue of `Limits.queue_bytes_max` fails the stream with Overloaded.
        """

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


class Kind(enum.Enum):
    """How many messages travel in each direction."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDI = "bidirectional stream"


@dataclass(frozen=True, slots=True)
class Method:
    """One gRPC method: PATH is "/package.Service/Method"."""

    path: str
    kind: Kind
    request_type: type[Message]
    reply_type: type[Message]
    handler: Callable[..., Any]

    def decode(self, data: bytes) -> Message:
        """Return the request in DATA; raise InvalidArgument that names method and type."""
        request = self.request_type()
        try:
            request.ParseFromString(data)
        except (
            Exception
        ) as error:  # protobuf's DecodeError, or UnicodeDecodeError, by implementation
            kind = self.request_type.DESCRIPTOR.full_name
            raise InvalidArgument(
                f"the request of {self.path} is not a well-formed {kind}: {len(data)} bytes do not decode",
                method=self.path,
                field=kind,
                value=f"{len(data)} bytes",
            ) from error
        return request


@dataclass(frozen=True, slots=True)
class Entry:
    """A method without its name: what `unary`, `server_stream` and `bidi` return for `service`."""

    kind: Kind
    request_type: type[Message]
    reply_type: type[Message]
    handler: Callable[..., Any]


def unary(
    request_type: type[Request],
    reply_type: type[Reply],
    handler: Callable[[Request, Call], Reply | Later] | Callable[[Request, Call], Awaitable[Reply]],
) -> Entry:
    """Return the entry of a unary method."""
    return Entry(Kind.UNARY, request_type, reply_type, handler)


def server_stream(
    request_type: type[Request],
    reply_type: type[Reply],
    handler: Callable[[Request, Stream], None] | Callable[[Request, Stream], Awaitable[None]],
) -> Entry:
    """Return the entry of a method that answers with a stream; the end of a coroutine finishes its stream."""
    return Entry(Kind.SERVER_STREAM, request_type, reply_type, handler)


def bidi(
    request_type: type[Request],
    reply_type: type[Reply],
    handler: Callable[[Stream], Receiver[Request]],
) -> Entry:
    """Return the entry of a method with a stream in both directions."""
    return Entry(Kind.BIDI, request_type, reply_type, handler)


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
        """Return the names of the services ("pocketmq.v1.Broker") that methods here belong to, in order."""
        return sorted({path[1:].rpartition("/")[0] for path in self._methods})

    def __or__(self, other: MethodTable) -> MethodTable:
        """Return a table of both; they must not share a path."""
        both = self._methods.keys() & other._methods.keys()
        assert not both, f"two tables serve {sorted(both)}"
        return MethodTable(self._methods | other._methods)


def service(name: str, entries: Mapping[str, Entry]) -> MethodTable:
    """Return the table of service NAME ("pocketmq.v1.Broker") with ENTRIES by method name."""
    return MethodTable(
        {
            path: Method(path, entry.kind, entry.request_type, entry.reply_type, entry.handler)
            for path, entry in ((f"/{name}/{method}", entry) for method, entry in entries.items())
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a carrier."""

    #: A larger request is refused by the carrier with RESOURCE_EXHAUSTED.
    receive_bytes_max: int = 64 * 1024 * 1024
    #: From here on a stream's queue holds back reading, and `drained()` waits.
    queue_bytes: int = 8 * 1024 * 1024
    #: A stream whose queue grows beyond this is failed: its peer does not read.
    queue_bytes_max: int = 128 * 1024 * 1024
    #: Calls and streams open at once on one connection; further ones wait at the peer.
    concurrent_streams_max: int = 4096
    #: A silent connection is probed this often …
    keepalive_ms: int = 30_000
    #: … and given up if no answer comes in this time.
    keepalive_timeout_ms: int = 20_000
    #: A TLS handshake that takes longer is broken off.
    handshake_timeout_ms: int = 10_000
    #: Peers that probe more often are told to go away, by grpcio; ours counts probes among frames without use.
    peer_keepalive_min_ms: int = 5_000
    #: Metadata of a call, names, values and 32 bytes each.
    metadata_bytes_max: int = 16 * 1024
    #: A request that has begun, or a message of a stream, is whole by then.
    request_ms: int = 60_000
    #: Bytes of requests that are not whole or wait for their reader, on one connection and on all.
    half_sent_bytes_connection: int = 128 * 1024 * 1024
    half_sent_bytes_server: int = 256 * 1024 * 1024
    #: Bytes of answers that wait for one connection's peer, and for those of all.
    connection_queue_bytes_max: int = 256 * 1024 * 1024
    queue_bytes_server: int = 256 * 1024 * 1024
    #: An answer whose peer takes nothing of it for so long is broken off.
    stalled_ms: int = 120_000
    #: Connections open at once; further ones are closed.
    connections_max: int = 10_000
    #: A connection that is so old is asked to come anew, and has this long to end its calls; 0: it may grow old.
    connection_age_ms: int = 7 * 86_400_000
    connection_age_grace_ms: int = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a server shows over TLS, as PEM: its certificate with those between it and a root, and its key."""

    chain: bytes
    key: bytes = field(repr=False)


class Carrier(Protocol):
    """What puts method tables within reach of callers."""

    async def start(self, host: str, port: int) -> int:
        """Serve at HOST and PORT (0: any free one) and return the port; raise ConfigError if that cannot be had."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let open ones end within GRACE_S seconds, fail the rest."""
        ...


class MakeCarrier(Protocol):
    """Makes the carrier of TABLES: the class of one, as a rule."""

    def __call__(self, tables: Iterable[MethodTable], *, limits: Limits) -> Carrier: ...


#: The carriers that there are, as settings name them: ours, and grpcio's.
GRPC_CHOICES: Final = ("own", "grpcio")


def check_grpc(section: str, choice: str) -> None:
    """Raise ConfigError unless CHOICE, the setting `grpc` of SECTION, names a carrier that is installed."""
    if choice not in GRPC_CHOICES:
        raise ConfigError(
            f"{section}.grpc is {choice!r}: must be {' or '.join(GRPC_CHOICES)}",
            field="grpc",
            value=choice,
        )
    if choice == "grpcio":
        need_grpcio(f"{section}.grpc is {choice!r}")


def need_grpcio(who: str) -> None:
    """Raise ConfigError for WHO if gRPC's own library is not installed: PocketMQ itself has no need of it."""
    if importlib.util.find_spec("grpc") is None:
        raise ConfigError(f"{who}, which needs grpcio: pip install 'pocketmq[grpcio]'")
