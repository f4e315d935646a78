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

from .client_incoming import ClientIncoming
from .client_streams import ClientStream
from .connection_end import ConnectionEnd
from .events import DataReceived
from .frames import PREFACE, STREAM_MASK, ErrorCode, reset
from .hpack import Field, FieldEncoder
from .limits import ConnectionLimits
from .responses import ClientEvent, ResponseReceived, TrailersReceived
from .streams import Stream

#: Fields that differ from call to call are not worth a place in the table.
_UNINDEXED = ("grpc-timeout",)


class ClientConnection(ConnectionEnd[ClientEvent, ClientIncoming]):
    """One connection, from its preface on. Its owner says the time."""

    def __init__(self, limits: ConnectionLimits, now_ms: int) -> None:
        super().__init__(limits, now_ms)
        self._next_id = 1
        self._encoder = FieldEncoder(unindexed=_UNINDEXED)
        self._incoming = ClientIncoming(
            limits, self._table, self._outgoing, self._budget, self._tell, self._encoder
        )
        self._outgoing.write(PREFACE)
        self._announce({})

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

    def send_end(self, stream_id: int) -> None:
        """End the request behind its body."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.ending:
            self._outgoing.finish(stream, None)

    # --- its end

    def _last_of_peer(self) -> int:
        return 0  # The server opens none.

    # --- what the halves tell

    def _tell(self, event: Any) -> None:
        super()._tell(event)
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
