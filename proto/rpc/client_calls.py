"""Calls of a client: one request and its response, or a stream in both directions.

A call waits for a connection, opens a stream on it, receives the response, and ends once: with the server's status, at
its deadline, by the caller, or with its connection. Not thread-safe: the event loop owns it.

A response is a head, messages, and trailers with the status; or only trailers, which are then the head. Sources:
PROTOCOL-HTTP2.md (Responses, Errors) and http-grpc-status-mapping.md of gRPC's documentation.
"""

from __future__ import annotations

import asyncio
import binascii
from abc import ABC, abstractmethod
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

from .channels import EOF, CallFailed, ChannelClosed, Deserialize, Metadata, Serialize, StatusCode
from .errors import BadRequest, TooLarge
from .frames import ErrorCode
from .hpack import Field
from .limits import ChannelLimits
from .messages import MessageReader, with_prefix

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
    kind: type[CallFailed] = CallFailed

    def failure(self) -> CallFailed:
        """Return the error that it is."""
        return ChannelClosed() if self is CLOSED else self.kind(*self[:3])


#: The caller cancelled the call, or its channel was closed.
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
        except TooLarge as error:
            raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, error.message) from None
        except BadRequest as error:
            raise CallFailed(StatusCode.INTERNAL, error.message) from None

    def end(self, fields: list[Field]) -> Status:
        """Return how the call has ended, by the FIELDS of its trailers; none: it had none."""
        status = of_trailers(fields)
        if status.code is StatusCode.OK and self._messages is not None and self._messages.is_half:
            return Status(StatusCode.INTERNAL, "the answer ends within a message")
        return status


_EXPIRED: Final = Status(StatusCode.DEADLINE_EXCEEDED, "no answer came in time")
_TWO: Final = Status(StatusCode.INTERNAL, "the server answered twice")
_NONE: Final = Status(StatusCode.INTERNAL, "the server answered well and said nothing")


class CallLink(Protocol):
    """The connection of a call, as the call sees it: `client_link.ClientLink`."""

    def send(self, stream_id: int, data: bytes) -> bool:
        """Write DATA of a request's body; return whether all of the stream left. If not, its call hears when it has."""
        ...

    def queued_of(self, stream_id: int) -> int:
        """Bytes of STREAM_ID that wait for a window."""
        ...

    def send_end(self, stream_id: int) -> None:
        """End the request after its body."""
        ...

    def hold(self, stream_id: int) -> None:
        """Have the server send no more of STREAM_ID than its window takes."""
        ...

    def release(self, stream_id: int) -> None:
        """Let STREAM_ID receive again."""
        ...

    def forget(self, stream_id: int, code: ErrorCode) -> None:
        """Let go of a call, and break its stream off with CODE if it is not over."""
        ...


class ClientCall(ABC):
    """What calls of both kinds have in common. FIELDS are the head of the request."""

    #: The whole request, if it is known from the start.
    body: bytes | None = None

    def __init__(self, fields: list[Field], limits: ChannelLimits, timeout_s: float | None) -> None:
        self.fields = fields
        self._limits = limits
        self._reader = AnswerReader(limits.message_bytes_max)
        self._link: CallLink | None = None
        self._stream_id = 0
        #: How it ended; None: it has not.
        self.status: Status | None = None
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(timeout_s, 0), self.end, _EXPIRED)

    # --- the connection's side

    def begin(self, link: CallLink, stream_id: int) -> None:
        """Note that it has started, as STREAM_ID of LINK."""
        self._link = link
        self._stream_id = stream_id

    def on_head(self, http_status: int, fields: list[Field], *, ended: bool) -> None:
        """Take the head of the answer."""
        status = self._reader.head(http_status, fields, ended=ended)
        if status is not None:
            self.end(status)

    def on_data(self, piece: bytes, *, ended: bool) -> None:
        """Take a piece of the answer's body."""
        try:
            for message in self._reader.data(piece):
                self._on_message(message)
        except CallFailed as failure:
            self.end(Status(failure.code(), failure.details()))
        if ended:
            self.end(self._reader.end([]))

    def on_trailers(self, fields: list[Field]) -> None:
        """Take the end of the answer."""
        self.end(self._reader.end(fields))

    def on_reset(self, code: int) -> None:
        """Note that the server broke it off."""
        self.end(of_reset(code))

    @abstractmethod
    def on_drained(self) -> None:
        """Note that what was written has left."""

    def end(self, status: Status) -> None:
        """End with STATUS, unless it has ended."""
        if self.status is not None:
            return
        self.status = status
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.forget(self._stream_id, ErrorCode.CANCEL)
        self._on_end()

    def cancel(self) -> bool:
        """Break it off; return False if it has ended."""
        if self.status is not None:
            return False
        self.end(CANCELLED)
        return True

    @abstractmethod
    def _on_message(self, message: bytes) -> None:
        """Take MESSAGE of the answer."""

    @abstractmethod
    def _on_end(self) -> None:
        """Know that it is over: `status` says how."""


class ClientUnaryCall(ClientCall):
    """One question, its answer, and who waits for it."""

    def __init__(
        self, fields: list[Field], body: bytes, limits: ChannelLimits, timeout_s: float | None
    ) -> None:
        super().__init__(fields, limits, timeout_s)
        self.body = body
        self._reply: bytes | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answer(self) -> bytes:
        """Return the answer. Raises CallFailed."""
        try:
            await self._over
        except asyncio.CancelledError:
            self.cancel()
            raise
        assert self.status is not None
        if self.status.code is not StatusCode.OK:
            raise self.status.failure()
        if self._reply is None:
            raise _NONE.failure()
        return self._reply

    def on_drained(self) -> None:
        """Do nothing: a unary request is written at once."""

    def _on_message(self, message: bytes) -> None:
        if self._reply is not None:
            self.end(_TWO)
        self._reply = message

    def _on_end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


class ClientStreamCall(ClientCall):
    """A stream: messages to send, and messages that were not read yet. It is a `channels.StreamCall`."""

    def __init__(
        self,
        fields: list[Field],
        serialize: Serialize,
        deserialize: Deserialize,
        limits: ChannelLimits,
        timeout_s: float | None,
    ) -> None:
        super().__init__(fields, limits, timeout_s)
        self._serialize = serialize
        self._deserialize = deserialize
        #: Called with each message as it arrives; None: they wait to be read.
        self._take: Callable[[Any], None] | None = None
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._held = False
        self._done_writing = False
        #: Tasks that wait: for the connection, for written bytes to leave, for a message, for the end.
        self._waiting: set[asyncio.Future[None]] = set()
        self._on_done: list[Callable[[Any], None]] = []

    # --- the connection's side

    def begin(self, link: CallLink, stream_id: int) -> None:
        super().begin(link, stream_id)
        self._wake()

    def on_drained(self) -> None:
        self._wake()

    def _on_message(self, message: bytes) -> None:
        if self.status is not None:
            return
        if self._take is not None and not self._unread:
            self._take(decoded(self._deserialize, message))
            return
        self._unread.append(message)
        self._unread_bytes += len(message)
        if self._unread_bytes > self._limits.unread_bytes and not self._held:
            assert self._link is not None
            self._held = True
            self._link.hold(self._stream_id)
        self._wake()

    def _on_end(self) -> None:
        self._wake()
        for callback in self._on_done:
            callback(self)
        self._on_done.clear()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def _news(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    # --- the caller's side

    async def wait_for_connection(self) -> None:
        while self._link is None and self.status is None:
            await self._news()
        if self._link is None or self.status is not None:
            self._raise_end()

    def _raise_end(self) -> None:
        assert self.status is not None
        if self.status is CANCELLED:
            raise asyncio.CancelledError
        if self.status.code is not StatusCode.OK:
            raise self.status.failure()

    async def write(self, message: Any) -> None:
        if self.status is not None or self._done_writing:
            raise asyncio.InvalidStateError("the stream has ended")
        if self._link is None:
            await self.wait_for_connection()
        data = self._encoded(message)
        link = self._link
        if link is None or self.status is not None:
            raise asyncio.InvalidStateError("the stream has ended")
        # A message leaves completely or not at all: the writer of the next one waits for a window here.
        await self._drained(link)
        if not link.send(self._stream_id, data):
            await self._drained(link)

    async def _drained(self, link: CallLink) -> None:
        """Return once nothing waits for a window."""
        while self.status is None and link.queued_of(self._stream_id):
            await self._news()
        if self.status is not None:
            raise asyncio.InvalidStateError("the stream has ended")

    def write_nowait(self, message: Any) -> bool:
        if self.status is not None or self._done_writing:
            raise asyncio.InvalidStateError("the stream has ended")
        link = self._link
        if link is None or link.queued_of(self._stream_id):
            return False
        link.send(self._stream_id, self._encoded(message))
        return True

    def _encoded(self, message: Any) -> bytes:
        """Return MESSAGE as it travels. Raises CallFailed if it is too large."""
        data = self._serialize(message)
        if len(data) > self._limits.message_bytes_max:
            raise too_large(len(data), self._limits).failure()
        return with_prefix(data)

    def hear(self, take: Callable[[Any], None] | None) -> None:
        self._take = take

    async def done_writing(self) -> None:
        if self._done_writing or self.status is not None:
            return
        self._done_writing = True
        await self.wait_for_connection()
        if self._link is not None:
            self._link.send_end(self._stream_id)

    async def read(self) -> Any:
        while True:
            if self.status is CANCELLED:
                raise asyncio.CancelledError
            if self._unread:
                return self._next()
            if self.status is not None:
                self._raise_end()
                return EOF
            await self._news()

    def _next(self) -> Any:
        message = self._unread.popleft()
        self._unread_bytes -= len(message)
        if self._held and self._unread_bytes * 2 <= self._limits.unread_bytes:
            self._held = False
            if self.status is None and self._link is not None:
                self._link.release(self._stream_id)
        return decoded(self._deserialize, message)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    def done(self) -> bool:
        return self.status is not None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.status is not None:
            callback(self)
        else:
            self._on_done.append(callback)

    async def _ended(self) -> Status:
        while self.status is None:
            await self._news()
        return self.status

    async def code(self) -> StatusCode:
        return (await self._ended()).code

    async def details(self) -> str:
        return (await self._ended()).details

    async def trailing_metadata(self) -> Metadata:
        return (await self._ended()).trailing


def decoded(deserialize: Deserialize, message: bytes) -> Any:
    """Return what MESSAGE is; raise CallFailed if it is nothing."""
    try:
        return deserialize(message)
    except Exception as error:  # The edge: bytes of a server, which may be anything.
        raise CallFailed(StatusCode.INTERNAL, f"the answer cannot be decoded: {error}") from error


def too_large(size: int, limits: ChannelLimits) -> Status:
    """Return how a call ends whose message of SIZE bytes is not sent."""
    return Status(
        StatusCode.RESOURCE_EXHAUSTED,
        f"sent message larger than max: {size} bytes, the limit is {limits.message_bytes_max}; send less at once",
    )
