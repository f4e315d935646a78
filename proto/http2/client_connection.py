"""A client's end of an HTTP/2 connection: bytes in, events out, bytes to write (RFC 9113).

    connection = ClientConnection(ConnectionLimits(), now_ms)
    write(connection.take())                              # the preface and settings, at once
    stream_id = connection.open(fields, message)          # once it `can_open`
    for event in connection.receive(data, now_ms): …      # heads, pieces of bodies, trailers, resets, the end

The same halves as the server's end (`connection.py`), turned round: it opens streams, and reads responses. A stream is
over when its answer is whole: what this side has not sent of its request by then is dropped, and the server told so.
What a server does wrong ends the stream (`StreamReset`) or the connection (`ConnectionEnded`); `receive` never raises.

Bounds, of which the server is told: the size of a frame and of a list of fields, and how much of an answer may be under
way. What came is given back at once unless its stream is held (`hold`). How much waits to be written is up to whoever
asks (`queued_of`, `tell_below`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import calm
from .client_incoming import ClientIncoming
from .client_streams import ClientStream
from .events import ConnectionEnded, DataReceived, Drained, StreamReset
from .faults import ConnectionFault
from .frames import (
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PING,
    PREFACE,
    STREAM_MASK,
    ErrorCode,
    frame,
    go_away,
    reset,
    settings,
    window_update,
)
from .hpack import Field, FieldEncoder
from .limits import ConnectionLimits
from .outgoing import Outgoing
from .responses import ClientEvent, ResponseReceived, TrailersReceived
from .stream_table import StreamTable
from .streams import Stream

#: Fields that differ from call to call are not worth a place in the table.
_UNINDEXED = ("grpc-timeout",)


class ClientConnection:
    """One connection, from its preface on. Its owner says the time."""

    def __init__(self, limits: ConnectionLimits, now_ms: int) -> None:
        self._limits = limits
        self._budget = calm.Budget(now_ms)
        self._table = StreamTable()
        self._streams = self._table.open
        self._next_id = 1
        self._events: list[ClientEvent] = []
        self._encoder = FieldEncoder(unindexed=_UNINDEXED)
        self._outgoing = Outgoing(self._budget, self._written, self._drained)
        self._incoming = ClientIncoming(
            limits, self._table, self._outgoing, self._budget, self._tell, self._encoder
        )
        #: It is over: nothing that comes is looked at any more.
        self.ended = False
        announced = {
            ENABLE_PUSH: 0,
            INITIAL_WINDOW_SIZE: limits.stream_window,
            MAX_FRAME_SIZE: limits.frame_bytes_max,
            MAX_HEADER_LIST_SIZE: limits.field_list_bytes_max,
        }
        self._outgoing.write(PREFACE + settings(announced))
        if limits.connection_window > DEFAULT_WINDOW:
            self._outgoing.write(window_update(0, limits.connection_window - DEFAULT_WINDOW))

    # --- bytes in, events out

    def receive(self, data: bytes, now_ms: int) -> list[ClientEvent]:
        """Take DATA, which came at NOW_MS, and return what it tells."""
        if self.ended:
            return []
        try:
            self._incoming.read(data, now_ms)
        except ConnectionFault as fault:
            self.end(fault.code, fault.reason)
        except calm.Exhausted:
            self.end(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without use")
        return self.events()

    def events(self) -> list[ClientEvent]:
        """Return what is to be told and was not yet; writing brings news, too."""
        events, self._events = self._events, []
        return events

    # --- bytes out

    def take(self) -> bytes:
        """Return what is to be written now; ask again while `has_more`."""
        return self._outgoing.take()

    @property
    def has_more(self) -> bool:
        """May more be taken, without news from the server?"""
        return self._outgoing.has_more

    def pause(self, paused: bool) -> None:
        """Hold bodies back while PAUSED: what was taken has not left yet."""
        self._outgoing.paused = paused

    @property
    def queued(self) -> int:
        """Bytes of bodies that wait to be taken."""
        return self._outgoing.queued

    def queued_of(self, stream_id: int) -> int:
        """Bytes of the body of STREAM_ID that wait for a window."""
        stream = self._streams.get(stream_id)
        return stream.queued if stream is not None else 0

    def tell_below(self, stream_id: int, size: int) -> None:
        """Have `Drained` told once when less than SIZE bytes of STREAM_ID wait."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.tell_below = size

    # --- requests; what is said of streams that are over is dropped

    @property
    def is_ready(self) -> bool:
        """Has the server said how many streams it takes, and the like? Nothing is opened before."""
        return self._incoming.is_ready

    @property
    def is_leaving(self) -> bool:
        """Are there to be no new streams: the server said so, it is over, or all numbers are used?"""
        return (
            self.ended or self._incoming.answered_up_to is not None or self._next_id > STREAM_MASK
        )

    @property
    def can_open(self) -> bool:
        """Would the server take one more stream now?"""
        return (
            self.is_ready
            and not self.is_leaving
            and len(self._streams) < self._incoming.streams_max
        )

    def open(self, fields: Sequence[Field], body: bytes | None = None) -> int:
        """Begin a request with FIELDS, and BODY if that is all of it; return its stream. Only where it `can_open`."""
        stream_id = self._next_id
        self._next_id += 2
        block = self._encoder.encode(fields)
        self._table.last_id = stream_id
        stream = ClientStream(stream_id, self._outgoing.initial_window, self._limits.stream_window)
        self._streams[stream_id] = stream
        self._outgoing.headers(stream, block, ends=False)
        if body is not None:
            self._outgoing.last(stream, body)
        return stream_id

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Write DATA of the request's body, or have it wait for a window."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.ending:
            self._outgoing.body(stream, data)

    def send_end(self, stream_id: int) -> None:
        """End the request behind its body."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.ending:
            self._outgoing.finish(stream, None)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Break STREAM_ID off: nothing more of it is told."""
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._outgoing.forget(stream)
            self._outgoing.write(reset(stream_id, code))

    def hold(self, stream_id: int) -> None:
        """Give nothing back of what comes on STREAM_ID from now on: its reader is busy."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.held = True

    def release(self, stream_id: int) -> None:
        """Undo `hold`."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.held = False
            self._incoming.give_back(stream)

    def earn(self) -> None:
        """Count a message that came: it was of use."""
        self._budget.earn(calm.ANSWER)

    # --- the connection itself

    def ping(self, payload: bytes) -> None:
        """Ask the server whether it is there; PAYLOAD is eight bytes, which it sends back."""
        self._outgoing.write(frame(PING, 0, 0, payload))

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def end(self, code: ErrorCode, reason: str) -> None:
        """End the connection now: every stream is over."""
        if self.ended:
            return
        self.ended = True
        # No stream of the server's was looked at: it opens none.
        self._outgoing.write(go_away(0, code, reason))
        for stream in self._streams.values():
            self._outgoing.forget(stream)
            self._events.append(StreamReset(stream.id, code, by_peer=False))
        self._streams.clear()
        self._events.append(ConnectionEnded(code, reason))

    # --- what the halves tell

    def _tell(self, event: Any) -> None:
        self._events.append(event)
        kind = type(event)
        if kind is TrailersReceived or (
            (kind is DataReceived or kind is ResponseReceived) and event.ended
        ):
            self._answered(event.stream_id)

    def _answered(self, stream_id: int) -> None:
        """Forget a stream whose answer is whole; what is left of its request is of no use to anybody."""
        stream = self._streams.pop(stream_id)
        assert isinstance(stream, ClientStream)
        self._outgoing.forget(stream)
        if not stream.sent:
            self._outgoing.write(reset(stream_id, ErrorCode.NO_ERROR))

    def _written(self, stream: Stream) -> None:
        assert isinstance(stream, ClientStream)
        stream.sent = True

    def _drained(self, stream: Stream) -> None:
        self._events.append(Drained(stream.id))
