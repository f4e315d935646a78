"""A server's end of an HTTP/2 connection: bytes in, events out, bytes to write (RFC 9113).

    connection = Connection(ConnectionLimits(), now_ms)
    for event in connection.receive(data, now_ms): …      # requests, pieces of bodies, resets, the end
    connection.answer(stream_id, head, body, trailers)    # blocks are encoded by whoever answers (hpack.literal)
    write(connection.take())                              # while `has_more`

It knows frames, streams, windows and blocks of fields, and nothing of gRPC, sockets or clocks. What a peer does
wrong ends its stream (`StreamReset`) or the connection (`ConnectionEnded`, and a GOAWAY with code and reason among
what there is to write); `receive` raises nothing, and looks at nothing that comes after the end.

Bounds, of which the peer is told: streams open at once, the size of a frame and of a list of fields, and how much
of a body may be under way. What came of a body is given back at once unless its stream is held (`hold`), so that a
connection buffers here one frame, one block of fields, and what waits to be written; how much of that there may be
is up to whoever answers. `calm.Budget` bounds nonsense, `check` what takes too long.
"""

from __future__ import annotations

from . import calm
from .events import ConnectionEnded, Drained, Event, StreamReset
from .faults import ConnectionFault
from .frames import (
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PING,
    STREAM_MASK,
    ErrorCode,
    frame,
    go_away,
    reset,
    settings,
    window_update,
)
from .incoming import Incoming
from .limits import ConnectionLimits
from .outgoing import Outgoing
from .stream_table import StreamTable
from .streams import Stream


class Connection:
    """One connection, from its preface on. Its owner says the time."""

    def __init__(self, limits: ConnectionLimits, now_ms: int) -> None:
        self._limits = limits
        self._budget = calm.Budget(now_ms)
        self._table = StreamTable()
        self._streams = self._table.open
        self._events: list[Event] = []
        self._outgoing = Outgoing(self._budget, self._written, self._drained)
        self._incoming = Incoming(limits, self._table, self._outgoing, self._budget, self._tell)
        #: It is over: nothing that comes is looked at any more.
        self.ended = False
        #: Why it is.
        self.end_code = ErrorCode.NO_ERROR
        #: Its end is announced.
        self._is_leaving = False
        self._outgoing.write(
            settings(
                {
                    ENABLE_PUSH: 0,
                    MAX_CONCURRENT_STREAMS: limits.streams_max,
                    INITIAL_WINDOW_SIZE: limits.stream_window,
                    MAX_FRAME_SIZE: limits.frame_bytes_max,
                    MAX_HEADER_LIST_SIZE: limits.field_list_bytes_max,
                }
            )
        )
        if limits.connection_window > DEFAULT_WINDOW:
            self._outgoing.write(window_update(0, limits.connection_window - DEFAULT_WINDOW))

    # --- bytes in, events out

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
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

    def events(self) -> list[Event]:
        """Return what is to be told and was not yet; writing brings news, too."""
        events = self._events[:]
        self._events.clear()
        return events

    def check(self, now_ms: int) -> list[Event]:
        """End what takes too long at NOW_MS: what was half sent, and answers that nobody takes."""
        if self.ended:
            return []
        if self._incoming.half_for_ms(now_ms) >= self._limits.half_sent_ms:
            self.end(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"what was begun is not whole after {self._limits.half_sent_ms} ms",
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
    def is_half_sent(self) -> bool:
        """Does the preface, a frame or a block of fields wait for its rest?"""
        return self._incoming.is_half

    # --- bytes out

    def take(self) -> bytes:
        """Return what is to be written now; ask again while `has_more`."""
        return self._outgoing.take()

    @property
    def has_more(self) -> bool:
        """May more be taken, without news from the peer?"""
        return self._outgoing.has_more

    def pause(self, paused: bool) -> None:
        """Hold bodies back while PAUSED: what was taken has not left yet."""
        self._outgoing.paused = paused

    @property
    def queued(self) -> int:
        """Bytes of bodies that wait to be taken."""
        return self._outgoing.queued

    def queued_of(self, stream_id: int) -> int:
        """Bytes of the body of STREAM_ID that wait to be taken."""
        stream = self._streams.get(stream_id)
        return stream.queued if stream is not None else 0

    def tell_below(self, stream_id: int, size: int) -> None:
        """Have `Drained` told once when less than SIZE bytes of STREAM_ID wait."""
        self._streams[stream_id].tell_below = size

    # --- answers; those on streams that are over are dropped

    def answer(self, stream_id: int, head: bytes, body: bytes, trailers: bytes) -> None:
        """Write a whole answer on STREAM_ID: blocks HEAD and TRAILERS, and BODY between them."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.answer(stream, head, body, trailers)

    def send_headers(self, stream_id: int, block: bytes, *, ends: bool = False) -> None:
        """Write the BLOCK of fields that an answer begins with, or (ENDS) consists of."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.headers(stream, block, ends=ends)

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Write DATA of the answer's body, or have it wait for a window."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.body(stream, data)

    def send_end(self, stream_id: int, trailers: bytes | None) -> None:
        """End the answer behind its body, with a block of TRAILERS if there is one."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.finish(stream, trailers)

    def drop_body(self, stream_id: int) -> None:
        """Drop what waits of the answer's body: its end follows what has left."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.forget(stream)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Break STREAM_ID off."""
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._outgoing.forget(stream)
            self._outgoing.write(reset(stream_id, code))
            self._table.add_reset(stream_id)

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
        self._budget.earn(calm.MESSAGE)

    # --- the connection itself

    def ping(self, payload: bytes) -> None:
        """Ask the peer whether it is there; PAYLOAD is eight bytes, which it sends back."""
        self._outgoing.write(frame(PING, 0, 0, payload))

    def announce_end(self) -> None:
        """Tell the peer to open no more streams here; those that are under way to us are still served."""
        self._is_leaving = True
        self._outgoing.write(go_away(STREAM_MASK, ErrorCode.NO_ERROR))

    def refuse_new(self) -> None:
        """Serve no further streams: a second or so after `announce_end`, so that none is lost."""
        if self._incoming.last_served is None:
            self._incoming.last_served = self._table.last_id
            self._outgoing.write(go_away(self._table.last_id, ErrorCode.NO_ERROR))

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    @property
    def is_done(self) -> bool:
        """Are new streams refused, and those that were open over?"""
        return self._incoming.last_served is not None and not self._streams

    def end(self, code: ErrorCode, reason: str) -> None:
        """End the connection now: every stream is over."""
        if self.ended:
            return
        self.ended = True
        self.end_code = code
        self._outgoing.write(go_away(self._table.last_id, code, reason))
        for stream in self._streams.values():
            self._outgoing.forget(stream)
            self._events.append(StreamReset(stream.id, code, by_peer=False))
        self._streams.clear()
        self._events.append(ConnectionEnded(code, reason))

    # --- what the halves tell

    def _tell(self, event: Event) -> None:
        self._events.append(event)

    def _written(self, stream: Stream) -> None:
        """Forget STREAM, whose answer is written; a peer that still sends is told to stop.

        Not where the connection is about to end, which tells as much: tonic's streams, read on behind an error as
        RocketMQ's client does, find such a reset again and again, and the client spins from a broker's stop on.
        """
        del self._streams[stream.id]
        if not stream.ended_by_peer:
            if not self._is_leaving:
                self._outgoing.write(reset(stream.id, ErrorCode.NO_ERROR))
            self._table.add_reset(stream.id)

    def _drained(self, stream: Stream) -> None:
        self._events.append(Drained(stream.id))
