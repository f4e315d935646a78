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
#: The status for the HTTP status of a server that does not speak gRPC.
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
#: The status for a stream that the server reset; other codes are INTERNAL.
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
        """Return the error with this status."""
        return ChannelClosed() if self is CLOSED else self.kind(*self[:3])


#: The caller cancelled the call, or its channel was closed.
CANCELLED: Final = Status(StatusCode.CANCELLED, "the caller cancelled the call")
CLOSED: Final = Status(StatusCode.CANCELLED, "the channel was closed")


def of_trailers(fields: Iterable[Field]) -> Status:
    """Return the status in trailers with FIELDS."""
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
    """Return the status of a call whose stream was reset with CODE."""
    try:
        known = ErrorCode(code)
        name = known.name
    except ValueError:
        return Status(StatusCode.INTERNAL, f"the server reset the call with code {code}")
    return Status(_BY_RESET.get(known, StatusCode.INTERNAL), f"the server reset the call: {name}")


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
                continue  # Not checked before, because unknown fields are not used here.


class AnswerReader:
    """Assembles one answer, with messages of up to SIZE_MAX bytes each."""

    __slots__ = ("_messages", "_size_max")

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._messages: MessageReader | None = None

    def head(self, http_status: int, fields: list[Field], *, ended: bool) -> Status | None:
        """Process the head of the answer; return the status if the call has ended."""
        said = dict(fields)
        if ended and "grpc-status" in said:
            return of_trailers(fields)
        content_type = said.get("content-type", "")
        if http_status != _HTTP_OK or not content_type.startswith(_CONTENT_TYPE):
            code = _BY_HTTP_STATUS.get(http_status, StatusCode.UNKNOWN)
            kind = content_type[:60] or "nothing"
            return Status(
                code, f"the server does not speak gRPC: the answer is HTTP {http_status}, {kind}"
            )
        if ended:
            return of_trailers(fields)
        compressed = said.get("grpc-encoding", "identity") == "gzip"
        self._messages = MessageReader(self._size_max, compressed=compressed)
        return None

    def data(self, piece: bytes) -> Iterator[bytes]:
        """Yield the messages that PIECE of the body completes; raise CallFailed if one is invalid."""
        assert self._messages is not None, "the head comes first"
        try:
            for message in self._messages.feed(piece):
                yield message if isinstance(message, bytes) else message.rest()
        except TooLarge as error:
            raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, error.message) from None
        except BadRequest as error:
            raise CallFailed(StatusCode.INTERNAL, error.message) from None

    def end(self, fields: list[Field]) -> Status:
        """Return the status of the call by the FIELDS of its trailers; none: it had no trailers."""
        status = of_trailers(fields)
        if (
            status.code is StatusCode.OK
            and self._messages is not None
            and self._messages.is_incomplete
        ):
            return Status(StatusCode.INTERNAL, "the answer ends inside a message")
        return status


_EXPIRED: Final = Status(StatusCode.DEADLINE_EXCEEDED, "no answer arrived in time")
_TWO: Final = Status(StatusCode.INTERNAL, "the server sent two answers to a unary call")
_NONE: Final = Status(
    StatusCode.INTERNAL, "the server ended a unary call with OK but without an answer"
)


class CallLink(Protocol):
    """The connection of a call, as the call uses it: `client_link.ClientLink`."""

    def send(self, stream_id: int, data: bytes) -> bool:
        """Write DATA of a request's body; return whether all of the stream was sent. If not, `on_drained` follows."""
        ...

    def queued_of(self, stream_id: int) -> int:
        """Bytes of STREAM_ID that wait for a window."""
        ...

    def send_end(self, stream_id: int) -> None:
        """End the request after its body."""
        ...

    def hold(self, stream_id: int) -> None:
        """Stop the server from sending more of STREAM_ID than fits its window."""
        ...

    def release(self, stream_id: int) -> None:
        """Let STREAM_ID receive again."""
        ...

    def forget(self, stream_id: int, code: ErrorCode) -> None:
        """Remove a call, and reset its stream with CODE if it has not ended."""
        ...


class ClientCall(ABC):
    """The common part of calls of both kinds. FIELDS are the head of the request."""

    #: The complete request, if it is known from the start.
    body: bytes | None = None

    def __init__(self, fields: list[Field], limits: ChannelLimits, timeout_s: float | None) -> None:
        self.fields = fields
        self._limits = limits
        self._reader = AnswerReader(limits.message_bytes_max)
        self._link: CallLink | None = None
        self._stream_id = 0
        #: The status of an ended call; None: it has not ended.
        self.status: Status | None = None
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(timeout_s, 0), self.end, _EXPIRED)

    def begin(self, link: CallLink, stream_id: int) -> None:
        """Set the connection LINK and the STREAM_ID on which the call has started."""
        self._link = link
        self._stream_id = stream_id

    def on_head(self, http_status: int, fields: list[Field], *, ended: bool) -> None:
        """Process the head of the answer."""
        status = self._reader.head(http_status, fields, ended=ended)
        if status is not None:
            self.end(status)

    def on_data(self, piece: bytes, *, ended: bool) -> None:
        """Process a piece of the answer's body."""
        try:
            for message in self._reader.data(piece):
                self._on_message(message)
        except CallFailed as failure:
            self.end(Status(failure.code(), failure.details()))
        if ended:
            self.end(self._reader.end([]))

    def on_trailers(self, fields: list[Field]) -> None:
        """Process the trailers of the answer."""
        self.end(self._reader.end(fields))

    def on_reset(self, code: int) -> None:
        """Process a reset by the server."""
        self.end(of_reset(code))

    @abstractmethod
    def on_drained(self) -> None:
        """Called when all written bytes were sent."""

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
        """Cancel it; return False if it has ended."""
        if self.status is not None:
            return False
        self.end(CANCELLED)
        return True

    @abstractmethod
    def _on_message(self, message: bytes) -> None:
        """Process MESSAGE of the answer."""

    @abstractmethod
    def _on_end(self) -> None:
        """Called after the end: `status` is the result."""


class ClientUnaryCall(ClientCall):
    """A unary call: one request, its answer, and the task that waits for it."""

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
    """A stream: messages to send, and received messages that were not read yet. It is a `channels.StreamCall`."""

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
        #: Tasks that wait: for the connection, for written bytes to be sent, for a message, for the end.
        self._waiting: set[asyncio.Future[None]] = set()
        self._on_done: list[Callable[[Any], None]] = []

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
        # A message is sent completely or not at all: the writer of the next one waits for a window here.
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
        """Return MESSAGE encoded. Raises CallFailed if it is too large."""
        data = self._serialize(message)
        if len(data) > self._limits.message_bytes_max:
            raise too_large(len(data), self._limits).failure()
        return with_prefix(data)

    def deliver_to(self, take: Callable[[Any], None] | None) -> None:
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
    """Return MESSAGE decoded; raise CallFailed if that fails."""
    try:
        return deserialize(message)
    except Exception as error:  # The bytes come from a server and may be anything.
        raise CallFailed(StatusCode.INTERNAL, f"the answer cannot be decoded: {error}") from error


def too_large(size: int, limits: ChannelLimits) -> Status:
    """Return the status of a call whose message of SIZE bytes is too large to be sent."""
    return Status(
        StatusCode.RESOURCE_EXHAUSTED,
        f"sent message larger than max: {size} bytes, the limit is {limits.message_bytes_max}. Send less at once",
    )
