"""Calls on the server side: their requests, and their answers; unary calls and streams."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from google.protobuf.message import Message

from .connection import ServerConnection
from .deadlines import Deadline
from .errors import BadRequest, RpcError, internal_error, not_read, shutting_down
from .heads import GOOD, HEAD, good
from .held_answers import ResponseQuota
from .messages import (
    PREFIX_BYTES,
    Inflation,
    MessageReader,
    joined_with_prefix,
    not_one,
    with_prefix,
)
from .methods import LATER, Call, MethodKind, Receiver, Stream
from .served import Served, ServedMethod

#: Headers of the transport, which handlers do not need.
_OF_TRANSPORT: Final = frozenset(
    ("te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding")
)
logger = logging.getLogger(__name__)


class RequestMetadata(Mapping[str, str]):
    """The metadata among HEADERS, without binary entries and headers of the transport. Nothing is copied."""

    __slots__ = ("_headers",)

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def __getitem__(self, name: str) -> str:
        if _is_hidden(name):
            raise KeyError(name)
        return self._headers[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._headers if not _is_hidden(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _is_hidden(name: str) -> bool:
    return name.endswith("-bin") or name in _OF_TRANSPORT


class Peer(Protocol):
    """The connection of a call, as the call uses it. Its counters include all its calls."""

    connection: ServerConnection
    served: Served
    answers: ResponseQuota
    #: One message of the connection is inflated at a time.
    inflating: asyncio.Lock
    #: The caller's end of the connection.
    peer: str
    #: Does it use TLS?
    is_secure: bool
    #: The names in the caller's verified certificate.
    certificate_names: Sequence[str]
    #: Schedules a write of the answers to the socket.
    schedule_flush: Callable[[], None]
    #: Writes the answers in this turn of the loop.
    write_now: Callable[[], None]
    succeeded: int
    failed: int

    def complete(self, call: Any) -> None:
        """Note that the request of CALL is complete."""
        ...

    def gathered(self, call: Any) -> None:
        """Note how many bytes CALL holds now; raise ResourceExhausted if the total exceeds the limit."""
        ...

    def forget(self, call: Any) -> None:
        """Remove CALL, which has ended."""
        ...

    def too_late(self, path: str) -> RpcError:
        """Return the error of calls of PATH whose deadline has passed."""
        ...


class IncomingCall(NamedTuple):
    """A call as its headers describe it. DUE_MS: its deadline, by the server's clock; None: it has none."""

    conversation: Peer
    stream_id: int
    method: ServedMethod
    headers: dict[str, str]
    due_ms: int | None


class RequestContext:
    """Mixed into call and stream: the caller, its metadata and deadline, and the trailers of a successful answer."""

    __slots__ = ()
    _asked: IncomingCall
    _deadline: Deadline | None
    _trailing: list[tuple[str, str]]

    @property
    def stream_id(self) -> int:
        """The id of its HTTP/2 stream."""
        return self._asked.stream_id

    @property
    def peer(self) -> str:
        return self._asked.conversation.peer

    @property
    def is_secure(self) -> bool:
        return self._asked.conversation.is_secure

    @property
    def certificate_names(self) -> Sequence[str]:
        return self._asked.conversation.certificate_names

    @property
    def metadata(self) -> Mapping[str, str]:
        return RequestMetadata(self._asked.headers)

    @property
    def deadline_ms(self) -> int | None:
        due_ms = self._asked.due_ms
        return None if due_ms is None else max(0, due_ms - self._asked.conversation.served.now_ms())

    def add_trailing(self, name: str, value: str) -> None:
        self._trailing.append((name, value))

    def _begun_deadline(self, expire: Callable[[], None]) -> Deadline | None:
        """Call EXPIRE at the caller's deadline; return the object that cancels this."""
        due_ms = self._asked.due_ms
        deadlines = self._asked.conversation.served.deadlines
        return None if due_ms is None else deadlines.add(due_ms, expire)

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _trailers(self) -> bytes:
        """Return the trailers of a successful answer."""
        return good(tuple(self._trailing)) if self._trailing else GOOD


class ServerUnaryCall(RequestContext, Call):
    """A call from its headers to its answer. Answers after that are dropped."""

    __slots__ = (
        "_answered",
        "_asked",
        "_conversation",
        "_deadline",
        "_message",
        "_method",
        "_reader",
        "_task",
        "_trailing",
    )

    def __init__(self, asked: IncomingCall, reader: MessageReader | None) -> None:
        """READER: messages may be compressed; None: they are not."""
        super().__init__()
        self._asked = asked
        self._conversation = asked.conversation
        self._method = asked.method
        self._reader = reader
        self._message: bytes | Inflation | None = None
        self._deadline: Deadline | None = None
        self._trailing: list[tuple[str, str]] = []
        self._task: asyncio.Task[None] | None = None
        self._answered = False

    def take(self, data: bytes, ended: bool) -> None:
        """Process a piece of the body; ENDED: it is the last."""
        if ended and self._reader is None and self._is_whole(data):
            self._conversation.complete(self)
            self._ask(data[PREFIX_BYTES:])
            return
        try:
            self._gather(data)
            if ended:
                self._conversation.complete(self)
                if self._message is None or self._is_incomplete:
                    raise not_one("none")
                if isinstance(self._message, Inflation):
                    self._inflate(self._message)
                else:
                    self._ask(self._message)
        except RpcError as error:
            self._conversation.complete(self)
            self._settle_with(error)

    @property
    def held(self) -> int:
        """Bytes of the request that have arrived but were not passed to the handler."""
        waiting = len(self._message) if self._message is not None else 0
        return waiting if self._reader is None else waiting + self._reader.held

    @property
    def _is_incomplete(self) -> bool:
        """Does the body end inside a message?"""
        return self._reader is not None and self._reader.is_incomplete

    def _is_whole(self, data: bytes) -> bool:
        """Is DATA, a complete body, one uncompressed message?"""
        size = len(data) - PREFIX_BYTES
        return (
            0 <= size <= self._conversation.served.limits.receive_bytes_max
            and data[0] == 0
            and int.from_bytes(data[1:PREFIX_BYTES]) == size
        )

    def _gather(self, data: bytes) -> None:
        if self._reader is None:
            size_max = self._conversation.served.limits.receive_bytes_max
            self._reader = MessageReader(size_max, compressed=False)
        for message in self._reader.feed(data):
            if self._message is not None:
                raise not_one("more")
            self._message = message
        self._conversation.gathered(self)

    def _inflate(self, message: Inflation) -> None:
        """Call the handler with MESSAGE once it is inflated. Until then it counts as unread."""
        self._begin_deadline()
        self._conversation.gathered(self)
        self._task = self._conversation.served.spawn(self._ask_inflated(message))

    async def _ask_inflated(self, message: Inflation) -> None:
        served, conversation = self._conversation.served, self._conversation
        try:
            data = await served.inflater.inflate(message, conversation.inflating)
        except RpcError as error:
            self._settle_with(error)
        else:
            conversation.complete(self)
            self._ask(data)

    def _ask(self, data: bytes) -> None:
        method = self._method
        self._message = None
        try:
            request = method.decode(data)
            if method.is_coroutine:
                self._task = self._conversation.served.spawn(self._run(request))
                self._begin_deadline()
                return
            reply = method.handler(request, self)
            if reply is LATER:
                if not self._answered:
                    self._begin_deadline()
            else:
                self._settle(reply.SerializeToString())
        except RpcError as error:
            self._settle_with(error)
        except Exception as bug:  # A bug in a handler fails its own call, not the process.
            self._settle_with(internal_error(method.path, bug))

    def _begin_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self._begun_deadline(self._expire)

    async def _run(self, request: Message) -> None:
        try:
            self.reply(await self._method.handler(request, self))
        except RpcError as error:
            self._settle_with(error)
        except asyncio.CancelledError as cancelled:
            if self._answered or self.cancelled:
                raise
            self._settle_with(internal_error(self._method.path, cancelled))
        except Exception as bug:  # As in `_ask`.
            self._settle_with(internal_error(self._method.path, bug))

    def reply(self, message: Message) -> None:
        if self._is_open():
            self._settle(message.SerializeToString())

    def fail(self, error: RpcError) -> None:
        if self._is_open():
            self._settle_with(error)

    @property
    def is_over(self) -> bool:
        """Was it answered, or has its caller disconnected?"""
        return self._answered

    def _is_open(self) -> bool:
        """May it be answered? A second answer is a bug, unless a stop or the caller ended the call meanwhile."""
        if self.cancelled:
            return False
        assert not self._answered, "a call is answered once"
        return True

    def _settle(self, data: bytes) -> None:
        """Answer successfully with the encoded message DATA."""
        conversation = self._conversation
        limit = conversation.served.limits.connection_queue_bytes_max
        if conversation.connection.queued > limit:
            self._settle_with(
                not_read(conversation.connection.queued, limit, "connection_queue_bytes_max")
            )
            return
        self._close()
        conversation.succeeded += 1
        conversation.connection.answer(self.stream_id, HEAD, with_prefix(data), self._trailers())
        conversation.schedule_flush()

    def _settle_with(self, error: RpcError) -> None:
        """Answer with ERROR."""
        conversation = self._conversation
        self._close()
        conversation.failed += 1
        conversation.connection.send_headers(
            self.stream_id, HEAD + conversation.served.failed(error), ends=True
        )
        conversation.schedule_flush()

    def _close(self) -> None:
        self._answered = True
        self._reader = self._message = None  # Release them now, not at the next garbage collection.
        self._no_deadline()
        self._conversation.forget(self)

    def wind_down(self) -> None:
        """Continue: the response may come within the grace period."""

    def give_up(self) -> None:
        """Answer that the server stops. Later answers are dropped."""
        self.cancel()
        self._end_task()
        self._settle_with(shutting_down())

    def abort(self) -> None:
        """Release everything: the caller no longer waits for a response."""
        self._close()
        self.cancel()
        self._end_task()

    def expire(self, error: RpcError) -> None:
        """Answer with ERROR, because the deadline has passed, and notify the handler."""
        self._settle_with(error)
        self.cancel()
        self._end_task()

    def _expire(self) -> None:
        self.expire(self._conversation.too_late(self._method.path))

    def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()


class ServerStreamCall(RequestContext, Stream):
    """A stream from its headers to its end. Messages sent after that are dropped.

    The receiver gets one message at a time. While it is busy, or more than `Limits.queue_bytes` is queued for the peer,
    further messages wait here and get no window update.
    """

    __slots__ = (
        "_arrived",
        "_asked",
        "_busy",
        "_conversation",
        "_deadline",
        "_drained",
        "_end_told",
        "_ended",
        "_ended_by_peer",
        "_has_head",
        "_is_delivering",
        "_method",
        "_reader",
        "_receiver",
        "_receiving",
        "_task",
        "_trailing",
        "_waiting_bytes",
    )

    def __init__(self, asked: IncomingCall, reader: MessageReader) -> None:
        super().__init__()
        self._asked = asked
        self._conversation = asked.conversation
        self._method = asked.method
        self._reader = reader
        self._deadline: Deadline | None = None
        self._trailing: list[tuple[str, str]] = []
        self._receiver: Receiver[Any] | None = None
        self._receiving = True
        self._task: asyncio.Task[None] | None = None
        #: Is the receiver busy with a message? Until this is done.
        self._busy: asyncio.Future[Any] | None = None
        self._is_delivering = False
        self._arrived: deque[bytes | Inflation] = deque()
        self._waiting_bytes = 0
        self._ended_by_peer = False
        self._end_told = False
        self._has_head = False
        self._ended = False
        self._drained: list[asyncio.Future[None]] = []

    @property
    def is_over(self) -> bool:
        """Has it ended?"""
        return self._ended

    def open(self) -> None:
        """Call the handler of a bidirectional stream for its receiver; a server stream waits for its request."""
        self._deadline = self._begun_deadline(self._expire)
        if self._method.kind is not MethodKind.BIDI:
            return
        try:
            self._receiver = self._method.handler(self)
        except RpcError as error:
            self._end(error)
        except Exception as bug:  # A bug in a handler fails its own stream, not the process.
            self._end(internal_error(self._method.path, bug))
        else:
            self._send_head()  # Some peers wait for it before they send anything.
            self._conversation.complete(self)
            if self._conversation.served.stopping:
                self.wind_down()

    def take(self, data: bytes, ended: bool) -> None:
        """Process a piece of the body; ENDED: it is the last."""
        if self._ended:
            return
        try:
            for message in self._reader.feed(data):
                self._arrived.append(message)
                self._waiting_bytes += len(message)
                self._conversation.connection.earn()
            if ended:
                self._ended_by_peer = True
                if self._reader.is_incomplete:
                    raise BadRequest(
                        "the body ends inside a message: send as many bytes as its prefix says",
                        field="body",
                    )
            self._deliver()
        except RpcError as error:
            self._deliver()  # Complete messages before the error are processed first.
            self.fail(error)
        self._account()

    @property
    def held(self) -> int:
        """Bytes that have arrived but were not delivered."""
        return self._waiting_bytes + self._reader.held

    @property
    def is_incomplete(self) -> bool:
        """Return whether a message is incomplete, or the request of a server stream is missing."""
        return self._reader.is_incomplete or (
            self._method.kind is not MethodKind.BIDI and self._receiving
        )

    def _deliver(self) -> None:
        """Pass received messages to the receiver, as long as it is not busy."""
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            if self._method.kind is MethodKind.BIDI:
                self._deliver_all()
            else:
                self._deliver_request()
        except RpcError as error:
            self.fail(error)
        except Exception as bug:  # A bug fails its own stream.
            self.fail(internal_error(self._method.path, bug))
        finally:
            self._is_delivering = False

    def _deliver_all(self) -> None:
        connection, queue_bytes = (
            self._conversation.connection,
            self._conversation.served.limits.queue_bytes,
        )
        receiver, method = self._receiver, self._method
        assert receiver is not None
        while self._arrived and self._receiving and not self._ended and self._busy is None:
            if self.queued_bytes >= queue_bytes:
                connection.hold(self.stream_id)
                connection.tell_below(self.stream_id, queue_bytes)
                return
            if self._conversation.answers.is_full:
                connection.hold(self.stream_id)
                self._conversation.answers.wait(self)
                return
            data = self._arrived.popleft()
            busy: Awaitable[None] | None
            if isinstance(data, Inflation):
                busy = self._inflate(data, lambda data: receiver.on_message(method.decode(data)))
            else:
                self._waiting_bytes -= len(data)
                busy = receiver.on_message(method.decode(data))
            if busy is not None:
                self._wait_for(busy)
        if not self._arrived and self._ended_by_peer and self._busy is None and not self._ended:
            self._end_receiving(receiver)

    def _deliver_request(self) -> None:
        """Call the handler of a server stream, once the request and the end have arrived."""
        if not self._ended_by_peer or not self._receiving:
            if len(self._arrived) > 1:
                raise not_one("more")
            return
        self._receiving = False
        self._conversation.complete(self)
        if len(self._arrived) != 1:
            raise not_one("more" if self._arrived else "none")
        data = self._arrived.popleft()
        if isinstance(data, Inflation):
            self._wait_for(self._inflate(data, self._ask))
        else:
            self._waiting_bytes = 0
            self._ask(data)

    def _ask(self, data: bytes) -> None:
        """Call the handler of a server stream."""
        request = self._method.decode(data)
        if self._method.is_coroutine:
            self._task = self._conversation.served.spawn(self._run(request))
        else:
            self._method.handler(request, self)

    async def _run(self, request: Message) -> None:
        try:
            await self._method.handler(request, self)
            self.finish()
        except RpcError as error:
            self.fail(error)
        except asyncio.CancelledError as cancelled:
            if self._ended or self.cancelled:
                raise
            self.fail(internal_error(self._method.path, cancelled))
        except Exception as bug:  # As in `_deliver`.
            self.fail(internal_error(self._method.path, bug))

    async def _inflate(
        self, message: Inflation, take: Callable[[bytes], Awaitable[None] | None]
    ) -> None:
        """Call TAKE with MESSAGE once it is inflated. Until then it counts as unread."""
        conversation = self._conversation
        data = await conversation.served.inflater.inflate(message, conversation.inflating)
        self._waiting_bytes -= len(message)
        busy = take(data)
        if busy is not None:
            await busy

    def _wait_for(self, busy: Awaitable[None]) -> None:
        self._busy = asyncio.ensure_future(busy)
        self._busy.add_done_callback(self._go_on)
        self._conversation.connection.hold(self.stream_id)

    def _go_on(self, done: asyncio.Future[Any]) -> None:
        """Deliver waiting messages, or fail with the receiver's error."""
        self._busy = None
        bug = asyncio.CancelledError() if done.cancelled() else done.exception()
        if self._ended or self.cancelled:
            return
        if isinstance(bug, RpcError):
            self.fail(bug)
        elif bug is not None:
            self.fail(internal_error(self._method.path, bug))
        elif not self._receiving and self._receiver is not None:
            self._end_in_stop(self._receiver)
        else:
            self._resume()

    def _resume(self) -> None:
        self._deliver()
        self._account()
        if not self._ended and self._busy is None and not self._arrived:
            self._conversation.connection.release(self.stream_id)
        self._conversation.schedule_flush()

    def _account(self) -> None:
        """Report the held bytes to the connection; fail if they exceed the limit."""
        if not self._ended:
            try:
                self._conversation.gathered(self)
            except RpcError as error:
                self.fail(error)

    def drain(self) -> None:
        """Continue: the queue is below its limit."""
        self._release_drained()
        if not self._ended:
            self._resume()

    def _end_receiving(self, receiver: Receiver[Any]) -> None:
        self._receiving = False
        if not self._end_told:
            self._end_told = True
            receiver.on_end()

    @property
    def queued_bytes(self) -> int:
        return self._conversation.connection.queued_of(self.stream_id)

    def send(self, message: Message) -> None:
        if not (self._ended or self.cancelled):
            self._send_data(with_prefix(message.SerializeToString()))

    def send_encoded(self, pieces: Sequence[bytes | memoryview]) -> None:
        if not (self._ended or self.cancelled):
            self._send_data(joined_with_prefix(pieces))

    def _send_data(self, data: bytes) -> None:
        connection, limits = self._conversation.connection, self._conversation.served.limits
        if not self._has_head:
            self._send_head()
        connection.send_data(self.stream_id, data)
        if self.queued_bytes > limits.queue_bytes_max:
            self.overflow(not_read(self.queued_bytes, limits.queue_bytes_max, "queue_bytes_max"))
        elif connection.queued > limits.connection_queue_bytes_max:
            self.overflow(
                not_read(
                    connection.queued,
                    limits.connection_queue_bytes_max,
                    "connection_queue_bytes_max",
                )
            )
        self._conversation.schedule_flush()

    def write_now(self) -> None:
        self._conversation.write_now()

    def _send_head(self) -> None:
        self._has_head = True
        self._conversation.connection.send_headers(self.stream_id, HEAD)

    def overflow(self, error: RpcError) -> None:
        """End with ERROR instead of the queued messages."""
        self._conversation.connection.drop_body(self.stream_id)
        self.fail(error)

    def finish(self) -> None:
        self._end(shutting_down() if self._conversation.served.stopping else None)

    def fail(self, error: RpcError) -> None:
        self._end(error)

    async def drained(self) -> None:
        queue_bytes = self._conversation.served.limits.queue_bytes
        while self.queued_bytes >= queue_bytes and not self._ended and not self.cancelled:
            waiting = asyncio.get_running_loop().create_future()
            self._drained.append(waiting)
            self._conversation.connection.tell_below(self.stream_id, queue_bytes)
            await waiting

    def _release_drained(self) -> None:
        for waiting in self._drained:
            if not waiting.done():
                waiting.set_result(None)
        self._drained.clear()

    def _end(self, error: RpcError | None) -> None:
        """End the stream after its queued messages, successfully or with ERROR."""
        if self._ended or self.cancelled:
            return
        conversation = self._conversation
        trailers = conversation.served.failed(error) if error is not None else self._trailers()
        if self._has_head:
            conversation.connection.send_end(self.stream_id, trailers)
        else:
            conversation.connection.send_headers(self.stream_id, HEAD + trailers, ends=True)
        if error is None:
            conversation.succeeded += 1
        else:
            conversation.failed += 1
        self._close()
        conversation.schedule_flush()

    def _close(self) -> None:
        """Release everything. The receiver gets `on_close` once the code that runs now has returned."""
        self._ended = True
        self._no_deadline()
        self._arrived.clear()
        self._waiting_bytes = 0
        self._reader.drop()  # Release it now, not at the next garbage collection.
        self._conversation.forget(self)
        self._release_drained()
        if self._busy is not None:
            self._busy.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if self._receiver is not None:
            asyncio.get_running_loop().call_soon(_close_receiver, self._receiver, self._method.path)

    def wind_down(self) -> None:
        """Let the receiver finish what is pending. A stream without a receiver does nothing."""
        if self._receiver is None:
            self.fail(shutting_down())
        elif self._busy is not None:
            self._receiving = False  # The receiver's `on_end` is called when it is free.
        elif self._receiving:
            self._end_in_stop(self._receiver)

    def _end_in_stop(self, receiver: Receiver[Any]) -> None:
        try:
            self._end_receiving(receiver)
        except RpcError as error:
            self.fail(error)
        except Exception as bug:  # A bug in a receiver fails its own stream.
            self.fail(internal_error(self._method.path, bug))

    def give_up(self) -> None:
        """End now, because the server stops."""
        self.fail(shutting_down())

    def abort(self) -> None:
        """Release everything: the peer has reset the stream."""
        if not self._ended:
            self.cancel()
            self._close()

    def expire(self, error: RpcError) -> None:
        """End with ERROR, because the deadline has passed, and notify the handler."""
        self.fail(error)
        self.cancel()

    def _expire(self) -> None:
        self.expire(self._conversation.too_late(self._method.path))


def _close_receiver(receiver: Receiver[Any], path: str) -> None:
    try:
        receiver.on_close()
    except Exception:  # The stream has ended: the error can only be logged.
        logger.exception("receiver failed to close method=%s", path)
