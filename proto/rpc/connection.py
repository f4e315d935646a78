"""HTTP/2 connections, either end: bytes in, events out, bytes to write (RFC 9113).

    connection = ServerConnection(ConnectionLimits(), now_ms)
    for event in connection.receive(data, now_ms): …      # requests, pieces of bodies, resets, the end
    connection.answer(stream_id, head, body, trailers)    # encoded by the caller (hpack.literal)
    write(connection.take())                              # while `has_more`

    connection = ClientConnection(ConnectionLimits(), now_ms)
    write(connection.take())                              # the preface and SETTINGS, at once
    stream_id = connection.open(fields, message)          # when it `can_open`
    for event in connection.receive(data, now_ms): …      # heads, pieces of bodies, trailers, resets, the end

A connection handles frames, streams, windows and blocks of fields. It does not know gRPC, sockets or clocks. `receive`
does not raise: a mistake of the peer ends its stream (`StreamReset`) or the connection (`ConnectionEnded`, after a
GOAWAY with code and reason).

Limits announced to the peer: open streams, the size of frames and of field lists, and the window. Bytes received are
credited at once (WINDOW_UPDATE) unless the stream is held (`hold`). `check` limits time, a flood budget limits useless
frames, and the writer limits what waits to be sent (`queued_of`, `tell_below`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

from . import flood_budget
from .frames import (
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PING,
    PREFACE,
    STREAM_MASK,
    ConnectionFault,
    ErrorCode,
    frame,
    goaway,
    rst_stream,
    settings,
    window_update,
)
from .hpack import Field, FieldEncoder
from .incoming import (
    CallsReset,
    ClientEvent,
    ClientIncoming,
    ConnectionEnded,
    DataReceived,
    Drained,
    Event,
    Incoming,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)
from .limits import ConnectionLimits
from .streams import ClientStream, Http2Stream, Outgoing, StreamTable

EventT = TypeVar("EventT")
IncomingT = TypeVar("IncomingT", bound=Incoming)


class Http2Connection(ABC, Generic[EventT, IncomingT]):
    """One end of a connection. Its owner passes the time. Writes to streams that have ended are dropped."""

    #: The reading half. Subclasses create it.
    _incoming: IncomingT

    def __init__(self, limits: ConnectionLimits, now_ms: int) -> None:
        self._limits = limits
        self._budget = flood_budget.FloodBudget(now_ms)
        self._table = StreamTable()
        self._streams = self._table.open
        self._events: list[Any] = []
        self._outgoing = Outgoing(self._budget, self._written, self._drained)
        #: Has it ended? Then received bytes are ignored.
        self.ended = False
        #: The reason of the end.
        self.end_code = ErrorCode.NO_ERROR

    def _announce(self, more: dict[int, int]) -> None:
        """Send the limits, and MORE settings, to the peer."""
        limits = self._limits
        own = {
            ENABLE_PUSH: 0,
            INITIAL_WINDOW_SIZE: limits.stream_window,
            MAX_FRAME_SIZE: limits.frame_bytes_max,
            MAX_HEADER_LIST_SIZE: limits.field_list_bytes_max,
        }
        self._outgoing.write(settings(own | more))
        if limits.connection_window > DEFAULT_WINDOW:
            self._outgoing.write(window_update(0, limits.connection_window - DEFAULT_WINDOW))

    def receive(self, data: bytes, now_ms: int) -> list[EventT]:
        """Process DATA, received at NOW_MS, and return its events. DATA after the end of the connection is ignored."""
        if self.ended:
            return []
        try:
            self._incoming.read(data, now_ms)
        except ConnectionFault as fault:
            self.end(fault.code, fault.reason)
        except flood_budget.Exhausted as spent:
            self.end(ErrorCode.ENHANCE_YOUR_CALM, str(spent))
        return self.events()

    def events(self) -> list[EventT]:
        """Return new events. Writing can cause events, too."""
        events, self._events = self._events, []
        return events

    def take(self) -> bytes:
        """Return bytes to write now; call it again while `has_more`."""
        return self._outgoing.take()

    @property
    def has_more(self) -> bool:
        """Does `take` return more, without news from the peer?"""
        return self._outgoing.has_more

    def pause(self) -> None:
        """Hold bodies back: the bytes taken were not sent yet."""
        self._outgoing.pause()

    def resume(self) -> None:
        """Undo `pause`."""
        self._outgoing.resume()

    @property
    def queued(self) -> int:
        """Bytes of bodies that wait to be taken."""
        return self._outgoing.queued

    def queued_of(self, stream_id: int) -> int:
        """Bytes of the body of STREAM_ID that wait to be taken."""
        stream = self._streams.get(stream_id)
        return stream.queued if stream is not None else 0

    def tell_below(self, stream_id: int, size: int) -> None:
        """Report `Drained` once, when less than SIZE bytes of STREAM_ID are queued."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.tell_below = size

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Write DATA of the body, or queue it until a window allows it."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.ending:
            self._outgoing.body(stream, data)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Reset STREAM_ID; it causes no more events."""
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._outgoing.forget(stream)
            self._outgoing.write(rst_stream(stream_id, code))
            self._table.add_reset(stream_id)

    def hold(self, stream_id: int) -> None:
        """Do not open the window of STREAM_ID for further data: its reader is busy."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.held = True

    def release(self, stream_id: int) -> None:
        """Undo `hold`."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.held = False
            self._incoming.open_window(stream)

    def earn(self) -> None:
        """Refill the flood budget for a useful message."""
        self._budget.earn(flood_budget.MESSAGE)

    def ping(self, payload: bytes) -> None:
        """Send a PING with PAYLOAD, eight bytes, which the peer returns."""
        self._outgoing.write(frame(PING, 0, 0, payload))

    def end(self, code: ErrorCode, reason: str) -> None:
        """End the connection and all its streams now."""
        if self.ended:
            return
        self.ended = True
        self.end_code = code
        self._outgoing.write(goaway(self._last_of_peer(), code, reason))
        for stream in self._streams.values():
            self._outgoing.forget(stream)
            self._events.append(StreamReset(stream.id, code, by_peer=False))
        self._streams.clear()
        self._events.append(ConnectionEnded(code, reason))

    def drop(self) -> None:
        """Drop everything that waits to be written: the connection is lost."""
        for stream in self._streams.values():
            self._outgoing.forget(stream)
        self._streams.clear()

    @abstractmethod
    def _last_of_peer(self) -> int:
        """Return the last stream of the peer that was processed."""

    def _add_event(self, event: Any) -> None:
        self._events.append(event)

    @abstractmethod
    def _written(self, stream: Http2Stream) -> None:
        """Called when this side of STREAM is completely sent."""

    def _drained(self, stream: Http2Stream) -> None:
        self._events.append(Drained(stream.id))


class ServerConnection(Http2Connection[Event, Incoming]):
    """A server's connection, from its preface on. Its owner passes the time."""

    def __init__(self, limits: ConnectionLimits, now_ms: int) -> None:
        super().__init__(limits, now_ms)
        self._incoming = Incoming(
            limits, self._table, self._outgoing, self._budget, self._add_event
        )
        #: Was its end announced?
        self._is_leaving = False
        self._announce({MAX_CONCURRENT_STREAMS: limits.streams_max})

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """Process DATA, received at NOW_MS, and return its events, without streams that DATA both opens and resets."""
        events = super().receive(data, now_ms)
        stale, reset_by_peer = self._incoming.stale, self._incoming.reset_by_peer
        if stale:
            events = [event for event in events if getattr(event, "stream_id", 0) not in stale]
        if reset_by_peer:
            events.insert(0, CallsReset(tuple(reset_by_peer)))
        return events

    def check(self, now_ms: int) -> list[Event]:
        """End what takes too long at NOW_MS: incomplete frames, and responses that the peer does not read."""
        if self.ended:
            return []
        if self._incoming.incomplete_for_ms(now_ms) >= self._limits.half_sent_ms:
            self.end(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"a frame or a block of fields is incomplete after {self._limits.half_sent_ms} ms",
            )
        elif self._outgoing.queued:
            self._check_stalled(now_ms)
        return self.events()

    def _check_stalled(self, now_ms: int) -> None:
        for stream in [stream for stream in self._streams.values() if stream.queued]:
            if stream.stalled_ms is None:
                stream.stalled_ms = now_ms
            elif now_ms - stream.stalled_ms >= self._limits.stalled_ms:
                self.reset(stream.id, ErrorCode.CANCEL)
                self._events.append(StreamReset(stream.id, ErrorCode.CANCEL, by_peer=False))

    @property
    def is_incomplete(self) -> bool:
        """Is the preface, a frame or a block of fields incomplete?"""
        return self._incoming.is_incomplete

    def answer(self, stream_id: int, head: bytes, body: bytes, trailers: bytes) -> None:
        """Write a complete answer on STREAM_ID: the blocks HEAD and TRAILERS, with BODY between them."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.answer(stream, head, body, trailers)

    def send_headers(self, stream_id: int, block: bytes, *, ends: bool = False) -> None:
        """Write the first BLOCK of fields of an answer; ENDS: it is the only one."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.headers(stream, block, ends=ends)

    def send_end(self, stream_id: int, trailers: bytes | None) -> None:
        """End the response after its body, with a block of TRAILERS if there is one."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.finish(stream, trailers)

    def drop_body(self, stream_id: int) -> None:
        """Drop the queued part of the answer's body: the end follows directly."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.forget(stream)

    def queued_most(self) -> list[tuple[int, int]]:
        """Return the streams with queued bodies and the number of bytes of each, the largest first."""
        found = [(stream.id, stream.queued) for stream in self._streams.values() if stream.queued]
        return sorted(found, key=itemgetter(1), reverse=True)

    def cut_short(self, stream_id: int, trailers: bytes) -> None:
        """Drop the queued part of the answer's body, and end it with a block of TRAILERS instead."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.forget(stream)
            self._outgoing.finish(stream, trailers)

    def announce_goaway(self) -> None:
        """Ask the peer to open no more streams. Streams already on their way are still served."""
        self._is_leaving = True
        self._outgoing.write(goaway(STREAM_MASK, ErrorCode.NO_ERROR))

    def goaway(self) -> None:
        """Serve no more streams. Call it about a second after `announce_goaway`, so that none is lost."""
        if self._incoming.last_served is None:
            last = self._incoming.refuse_more()
            self._outgoing.write(goaway(last, ErrorCode.NO_ERROR))

    @property
    def is_done(self) -> bool:
        """Are new streams refused, and have the open ones ended?"""
        return self._incoming.last_served is not None and not self._streams

    def _last_of_peer(self) -> int:
        return self._table.last_id

    def _written(self, stream: Http2Stream) -> None:
        """Forget STREAM, whose response is written. If the peer still sends a request, reset the stream.

        No reset is sent when the connection is about to end: the RocketMQ client (tonic) keeps reading after an error,
        finds such a reset again and again, and would spin after a broker has stopped.
        """
        del self._streams[stream.id]
        if not stream.ended_by_peer:
            if not self._is_leaving:
                self._outgoing.write(rst_stream(stream.id, ErrorCode.NO_ERROR))
            self._table.add_reset(stream.id)


#: Fields whose value differs between calls are not added to the table.
_UNINDEXED = ("grpc-timeout",)


class ClientConnection(Http2Connection[ClientEvent, ClientIncoming]):
    """A client's connection, from its preface on. Its owner passes the time."""

    def __init__(self, limits: ConnectionLimits, now_ms: int) -> None:
        super().__init__(limits, now_ms)
        self._encoder = FieldEncoder(unindexed=_UNINDEXED)
        self._incoming = ClientIncoming(
            limits, self._table, self._outgoing, self._budget, self._add_event, self._encoder
        )
        self._outgoing.write(PREFACE)
        self._announce({})

    @property
    def is_ready(self) -> bool:
        """Have the server's settings arrived? No stream is opened before."""
        return self._incoming.is_ready

    @property
    def is_going_away(self) -> bool:
        """Are new streams impossible? (The server sent GOAWAY, the connection has ended, or all ids are used.)"""
        return (
            self.ended
            or self._incoming.answered_up_to is not None
            or self._table.last_id >= STREAM_MASK
        )

    @property
    def can_open(self) -> bool:
        """Would the server accept one more stream now?"""
        return (
            self.is_ready
            and not self.is_going_away
            and len(self._streams) < self._incoming.streams_max
        )

    def open(self, fields: Sequence[Field], body: bytes | None = None) -> int:
        """Start a request with FIELDS, and BODY if that is all of it; return its stream. Requires `can_open`."""
        block = self._encoder.encode(fields)
        stream_id = self._table.begin_next()
        stream = ClientStream(stream_id, self._outgoing.initial_window, self._limits.stream_window)
        self._streams[stream_id] = stream
        self._outgoing.headers(stream, block, ends=False)
        if body is not None:
            self._outgoing.last(stream, body)
        return stream_id

    def send_end(self, stream_id: int) -> None:
        """End the request after its body."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.ending:
            self._outgoing.finish(stream, None)

    def _last_of_peer(self) -> int:
        return 0  # The server opens no streams.

    def _add_event(self, event: Any) -> None:
        super()._add_event(event)
        kind = type(event)
        if kind is TrailersReceived or (
            (kind is DataReceived or kind is ResponseReceived) and event.ended
        ):
            self._answered(event.stream_id)

    def _answered(self, stream_id: int) -> None:
        """Forget a stream whose answer is complete. The rest of its request, if any, is of no use."""
        stream = self._streams.pop(stream_id)
        assert isinstance(stream, ClientStream)
        self._outgoing.forget(stream)
        if not stream.sent:
            self._outgoing.write(rst_stream(stream_id, ErrorCode.NO_ERROR))

    def _written(self, stream: Http2Stream) -> None:
        assert isinstance(stream, ClientStream)
        stream.sent = True
