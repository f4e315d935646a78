"""The gRPC part of one connection: its calls by stream. The connection's events are its input.

    conversation = ServerConversation(connection, served, peer, schedule_flush)
    conversation.handle(connection.receive(data, now_ms))
    conversation.check(now_ms)                  # regularly, while `needs_check`
    conversation.lost()                         # the connection is lost

`schedule_flush` is called when a response was written outside of `handle`, so that the owner sends it.

Limits: a request, or a message of a stream, must be complete `Limits.request_ms` after its start. Incomplete or unread
requests may hold `Limits.half_sent_bytes_connection` per connection; beyond that the call that adds to them fails. All
connections share `Limits.half_sent_bytes_server`, and unsent responses share `Limits.queue_bytes_server`; beyond that
the calls of the greatest burden fail (`memory_quota.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from .connection import ServerConnection
from .errors import DeadlineExceeded, ResourceExhausted, RpcError, Unimplemented
from .frames import ErrorCode
from .heads import HEAD, http_only, http_refusal, is_compressed, timeout_ms
from .held_answers import ResponseQuota
from .incoming import (
    CallsReset,
    ConnectionEnded,
    DataReceived,
    Drained,
    Event,
    PingAnswered,
    Request,
    RequestReceived,
    RequestTooLarge,
    StreamReset,
)
from .messages import MessageReader
from .methods import MethodKind
from .pages import PageRequest, PageStream
from .served import Served
from .server_calls import IncomingCall, ServerStreamCall, ServerUnaryCall

OpenCall = ServerUnaryCall | ServerStreamCall
#: The weight of an incomplete call in addition to its bytes.
CALL_BYTES: Final = 2 * 1024
#: The metrics of a connection that has no calls yet.
NO_CALLS: Final[dict[str, Any]] = {"calls_begun": 0, "calls_succeeded": 0, "calls_failed": 0}


class ServerConversation:
    """All calls of one connection."""

    def __init__(  # noqa: PLR0913 (what the link does for it)
        self,
        connection: ServerConnection,
        served: Served,
        peer: str,
        schedule_flush: Callable[[], None],
        abort: Callable[[], None] | None = None,
        *,
        write_now: Callable[[], None] = lambda: None,
        is_secure: bool = False,
        certificate_names: Sequence[str] = (),
    ) -> None:
        """ABORT ends a connection whose peer does not read; IS_SECURE: it uses TLS.

        CERTIFICATE_NAMES: the names in the peer's verified certificate.
        """
        self.connection = connection
        self.served = served
        self.peer = peer
        self.is_secure = is_secure
        self.certificate_names = certificate_names
        self.schedule_flush = schedule_flush
        self.write_now = write_now
        self._calls: dict[int, OpenCall] = {}
        self._pages: dict[int, PageStream] = {}
        #: Incomplete requests, and since when.
        self._incomplete: dict[OpenCall, int] = {}
        self._held: dict[OpenCall, int] = {}
        self._held_sum = 0
        #: The held bytes of this connection as last reported to the quota of all connections.
        self._requests_noted = 0
        self.answers = ResponseQuota(
            connection, served, peer, self._cut_short, abort or self.give_up
        )
        self.inflating = asyncio.Lock()
        self.begun = 0
        self.succeeded = 0
        self.failed = 0
        self.user_agent = ""
        self.last_path = ""
        self.last_ms = 0
        self._now_ms = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            RequestReceived: self._on_request,
            RequestTooLarge: self._on_too_large,
            DataReceived: self._on_data,
            StreamReset: self._on_reset,
            CallsReset: self._on_calls_reset,
            Drained: self._on_drained,
            PingAnswered: _ignore,
            ConnectionEnded: _ignore,
        }

    def handle(self, events: list[Event], now_ms: int) -> None:
        """Process EVENTS, which were received at NOW_MS."""
        self._now_ms = now_ms
        handlers = self._handlers
        for event in events:
            handlers[type(event)](event)
        if self._incomplete or self._requests_noted:
            self._note_requests()
            self.served.requests.make_room(
                ServerConversation.requests_burden, ServerConversation.shed_requests
            )

    def _on_request(self, event: RequestReceived) -> None:
        stream_id, request, ended = event
        status = http_refusal(request)
        if status is not None:
            self._refuse_http(stream_id, request, status, ended=ended)
            return
        self.begun += 1
        self.last_path = request.path
        self.last_ms = self._now_ms
        headers = request.headers
        if not self.user_agent:
            self.user_agent = headers.get("user-agent", "")
        try:
            method = self.served.methods.get(request.path)
            if method is None:
                raise Unimplemented(
                    f"{request.path[:200]} is not served here: call another server, or a newer one",
                    method=request.path[:200],
                )
            compressed = is_compressed(headers)
            time_ms = timeout_ms(headers)
        except RpcError as error:
            self._refuse(stream_id, error)
            return
        due_ms = None if time_ms is None else self._now_ms + time_ms
        if due_ms is not None and time_ms == 0:
            self._refuse(stream_id, self.too_late(request.path))
            return
        self._begin(IncomingCall(self, stream_id, method, headers, due_ms), compressed)
        if ended:
            self._on_data(DataReceived(stream_id, b"", True))

    def _begin(self, asked: IncomingCall, compressed: bool) -> None:
        """Start the call or stream ASKED, whose messages may be COMPRESSED."""
        size_max = self.served.limits.receive_bytes_max
        call: OpenCall
        if asked.method.kind is MethodKind.UNARY:
            # Mostly one uncompressed message, which needs no MessageReader.
            call = ServerUnaryCall(
                asked, MessageReader(size_max, compressed=True) if compressed else None
            )
        else:
            call = ServerStreamCall(asked, MessageReader(size_max, compressed=compressed))
        self._calls[asked.stream_id] = call
        self._incomplete[call] = self._now_ms
        if isinstance(call, ServerStreamCall):
            call.open()

    def _refuse_http(self, stream_id: int, request: Request, status: int, *, ended: bool) -> None:
        """Answer REQUEST, which is not gRPC, with STATUS, unless it is for an HTML page. ENDED: no body follows."""
        pages = self.served.pages
        if pages is None or not pages.wants(request):
            self.connection.send_headers(stream_id, http_only(status), ends=True)
            return
        host = request.authority or request.headers.get("host", "")
        asked = PageRequest(
            request.method,
            request.path,
            {**request.headers, "host": host},
            peer=self.peer,
            secure=self.is_secure,
        )
        stream = PageStream(
            self.connection,
            self.schedule_flush,
            stream_id,
            asked,
            lambda over: self._pages.pop(over, None),
        )
        self._pages[stream_id] = stream
        if ended:
            stream.take(b"", ended=True)
        stream.begin(self.served.spawn(pages.answer(stream, self.served.limits.request_ms)))

    def _refuse(self, stream_id: int, error: RpcError) -> None:
        self.failed += 1
        self.connection.send_headers(stream_id, HEAD + self.served.failed(error), ends=True)

    def _on_too_large(self, event: RequestTooLarge) -> None:
        self.begun += 1
        limit = self.served.limits.metadata_bytes_max
        self._refuse(
            event.stream_id,
            ResourceExhausted(
                f"the metadata of the call has more than {limit} bytes (names, values and 32 bytes each): send less",
                field="metadata_bytes_max",
                limit=limit,
            ),
        )

    def _on_data(self, event: DataReceived) -> None:
        stream_id, data, ended = event
        call = self._calls.get(stream_id)
        if call is not None:
            call.take(data, ended)
        elif stream_id in self._pages:
            self._pages[stream_id].take(data, ended)

    def _on_reset(self, event: StreamReset) -> None:
        call = self._calls.get(event.stream_id)
        if call is not None:
            self.failed += 1
            call.abort()
        elif event.stream_id in self._pages:
            self._pages[event.stream_id].abort()

    def _on_calls_reset(self, event: CallsReset) -> None:
        """Cancel calls before the rest of their requests starts handlers. Streams still get their messages."""
        for stream_id in event.stream_ids:
            if isinstance(self._calls.get(stream_id), ServerUnaryCall):
                self._on_reset(StreamReset(stream_id, ErrorCode.CANCEL, True))

    def _on_drained(self, event: Drained) -> None:
        call = self._calls.get(event.stream_id)
        if isinstance(call, ServerStreamCall):
            call.drain()

    def complete(self, call: OpenCall) -> None:
        """Note that the request of CALL is complete."""
        self._incomplete.pop(call, None)
        if self._requests_noted:
            self._hold(call, 0)

    def gathered(self, call: OpenCall) -> None:
        """Note how many bytes CALL holds now; raise ResourceExhausted if the total exceeds the limit."""
        held = call.held
        if held or self._held:
            self._hold(call, held)
        if isinstance(call, ServerStreamCall):
            if not call.is_incomplete:
                self._incomplete.pop(call, None)
            else:
                self._incomplete.setdefault(call, self._now_ms)
        limits = self.served.limits
        if self._held_sum > limits.half_sent_bytes_connection:
            raise _too_much(
                self._held_sum, limits.half_sent_bytes_connection, "half_sent_bytes_connection"
            )

    def _hold(self, call: OpenCall, held: int) -> None:
        self._held_sum += held - self._held.pop(call, 0)
        if held:
            self._held[call] = held
        self._note_requests()

    def _note_requests(self) -> None:
        size = self._held_sum + CALL_BYTES * len(self._incomplete)
        if size != self._requests_noted:
            self._requests_noted = size
            self.served.requests.hold(self, size)

    def forget(self, call: OpenCall) -> None:
        """Remove CALL, which has ended."""
        self._calls.pop(call.stream_id, None)
        self.complete(call)
        if isinstance(call, ServerStreamCall):
            self.answers.forget(call)

    def too_late(self, path: str) -> RpcError:
        """Return the error of calls of PATH whose deadline has passed."""
        return DeadlineExceeded(
            f"{path} was not answered before the caller's deadline", method=path
        )

    def requests_burden(self) -> int:
        """Return the sum of all `burdens`."""
        return sum(self.burdens().values())

    def burdens(self) -> dict[OpenCall, int]:
        """Return calls with the bytes that they hold times the time for which they have been incomplete."""
        now_ms = self.served.now_ms()
        # Complete messages wait for their reader, which is not the peer's fault.
        found: dict[OpenCall, int] = dict(self._held)
        for call, since_ms in self._incomplete.items():
            found[call] = (self._held.get(call, 0) + CALL_BYTES) * (now_ms - since_ms + 1)
        return found

    def shed_requests(self) -> None:
        """End calls with incomplete requests until the usage of all connections is below the quota."""
        requests = self.served.requests
        burdens = self.burdens()
        for call in sorted(burdens, key=burdens.__getitem__, reverse=True):
            if requests.held <= requests.goal:
                return
            call.expire(
                ResourceExhausted(
                    f"incomplete and unread requests of all connections together have reached the limit of"
                    f" {requests.bytes_max} bytes. This one has been incomplete for longest, or is the largest: send it"
                    " without pauses, or send less",
                    field="half_sent_bytes_server",
                    limit=requests.bytes_max,
                )
            )

    def _cut_short(self, stream_id: int, error: RpcError) -> None:
        """End the answer on STREAM_ID with ERROR instead of its queued part."""
        call = self._calls.get(stream_id)
        if isinstance(call, ServerStreamCall):
            call.overflow(error)
        else:
            self.connection.cut_short(stream_id, self.served.failed(error))
        self.schedule_flush()

    @property
    def needs_check(self) -> bool:
        """Can anything reach a time limit?"""
        return bool(self._incomplete) or self.connection.is_incomplete or self.connection.queued > 0

    def check(self, now_ms: int) -> None:
        """End everything that has reached a time limit."""
        self.handle(self.connection.check(now_ms), now_ms)
        limit_ms = self.served.limits.request_ms
        for call, since_ms in list(self._incomplete.items()):
            if now_ms - since_ms >= limit_ms:
                call.expire(
                    DeadlineExceeded(
                        f"the request, or a message of it, was incomplete after {limit_ms} ms: send it without pauses",
                        field="request_ms",
                        limit=limit_ms,
                    )
                )
        self._note_requests()

    def figures(self, now_ms: int) -> dict[str, Any]:
        """Return the fields of `ConnectionFigures` that are about calls, at NOW_MS."""
        return {
            "calls_begun": self.begun,
            "calls_succeeded": self.succeeded,
            "calls_failed": self.failed,
            "user_agent": self.user_agent,
            "last_path": self.last_path,
            "last_call_age_ms": now_ms - self.last_ms if self.begun else 0,
        }

    def calls(self) -> list[OpenCall]:
        """Return the open calls and streams."""
        return list(self._calls.values())

    @property
    def open_calls(self) -> int:
        """The number of open calls and streams."""
        return len(self._calls)

    def wind_down(self) -> None:
        """Ask streams to end; unary calls continue."""
        for call in (*self._calls.values(), *self._pages.values()):
            call.wind_down()
        self.schedule_flush()

    def give_up(self) -> None:
        """End everything that is still open, because the server stops."""
        for call in list(self._calls.values()):
            call.give_up()
        for page in list(self._pages.values()):
            page.abort()

    def lost(self) -> None:
        """Remove all calls: the connection is lost."""
        self.failed += len(self._calls)
        for call in (*self._calls.values(), *self._pages.values()):
            call.abort()
        self.answers.drop()


def _too_much(size: int, limit: int, field: str) -> ResourceExhausted:
    return ResourceExhausted(
        f"{size} bytes of requests are incomplete or unread, the limit is {limit}:"
        " end some calls before you start others",
        field=field,
        limit=limit,
        value=size,
    )


def _ignore(_event: Event) -> None:
    """Ignore an event that the connection's owner handles itself."""
