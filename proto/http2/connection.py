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

from operator import itemgetter

from .connection_end import ConnectionEnd
from .events import CallsGivenUp, Event, StreamReset
from .frames import MAX_CONCURRENT_STREAMS, STREAM_MASK, ErrorCode, go_away, reset
from .incoming import Incoming
from .limits import ConnectionLimits
from .streams import Stream


class Connection(ConnectionEnd[Event, Incoming]):
    """One connection, from its preface on. Its owner says the time."""

    def __init__(self, limits: ConnectionLimits, now_ms: int) -> None:
        super().__init__(limits, now_ms)
        self._incoming = Incoming(limits, self._table, self._outgoing, self._budget, self._tell)
        #: Its end is announced.
        self._is_leaving = False
        self._announce({MAX_CONCURRENT_STREAMS: limits.streams_max})

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """Take DATA, which came at NOW_MS, and return what it tells; nothing of streams that it begins and resets."""
        told = super().receive(data, now_ms)
        stale, given_up = self._incoming.stale, self._incoming.given_up
        if stale:
            told = [event for event in told if getattr(event, "stream_id", 0) not in stale]
        if given_up:
            told.insert(0, CallsGivenUp(tuple(given_up)))
        return told

    # --- what takes too long

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

    def queued_most(self) -> list[tuple[int, int]]:
        """Return streams whose bodies wait, and how many bytes of each, the most first."""
        found = [(stream.id, stream.queued) for stream in self._streams.values() if stream.queued]
        return sorted(found, key=itemgetter(1), reverse=True)

    def cut_short(self, stream_id: int, trailers: bytes) -> None:
        """Drop what waits of the answer's body, and end it with a block of TRAILERS instead."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._outgoing.forget(stream)
            self._outgoing.finish(stream, trailers)

    # --- its end

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
    def is_done(self) -> bool:
        """Are new streams refused, and those that were open over?"""
        return self._incoming.last_served is not None and not self._streams

    def _last_of_peer(self) -> int:
        return self._table.last_id

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
