"""What both ends of an HTTP/2 connection have: bytes in, events out, bytes to write; streams by number; an end.

`connection.py` is the server's end, `client_connection.py` the client's. Each brings the half that reads (`incoming.py`
or `client_incoming.py`) and what it says on a stream; the half that writes (`outgoing.py`) is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from . import calm
from .events import ConnectionEnded, Drained, StreamReset
from .faults import ConnectionFault
from .frames import (
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PING,
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

EventT = TypeVar("EventT")
IncomingT = TypeVar("IncomingT", bound=Incoming)


class ConnectionEnd(ABC, Generic[EventT, IncomingT]):
    """One end, from its first byte on. Its owner says the time. What is said of streams that are over is dropped."""

    #: The half that reads, which whoever derives from this makes.
    _incoming: IncomingT

    def __init__(self, limits: ConnectionLimits, now_ms: int) -> None:
        self._limits = limits
        self._budget = calm.Budget(now_ms)
        self._table = StreamTable()
        self._streams = self._table.open
        self._events: list[Any] = []
        self._outgoing = Outgoing(self._budget, self._written, self._drained)
        #: It is over: nothing that comes is looked at any more.
        self.ended = False
        #: Why it is.
        self.end_code = ErrorCode.NO_ERROR

    def _announce(self, more: dict[int, int]) -> None:
        """Tell the peer the limits, and MORE settings."""
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

    # --- bytes in, events out

    def receive(self, data: bytes, now_ms: int) -> list[EventT]:
        """Take DATA, which came at NOW_MS, and return what it tells."""
        if self.ended:
            return []
        try:
            self._incoming.read(data, now_ms)
        except ConnectionFault as fault:
            self.end(fault.code, fault.reason)
        except calm.Exhausted as spent:
            self.end(ErrorCode.ENHANCE_YOUR_CALM, str(spent))
        return self.events()

    def events(self) -> list[EventT]:
        """Return what is to be told and was not yet; writing brings news, too."""
        events, self._events = self._events, []
        return events

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
    def is_paused(self) -> bool:
        """Are bodies held back?"""
        return self._outgoing.paused

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
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.tell_below = size

    # --- streams

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Write DATA of the body, or have it wait for a window."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.ending:
            self._outgoing.body(stream, data)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Break STREAM_ID off: nothing more of it is told."""
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

    def end(self, code: ErrorCode, reason: str) -> None:
        """End the connection now: every stream is over."""
        if self.ended:
            return
        self.ended = True
        self.end_code = code
        self._outgoing.write(go_away(self._last_of_peer(), code, reason))
        for stream in self._streams.values():
            self._outgoing.forget(stream)
            self._events.append(StreamReset(stream.id, code, by_peer=False))
        self._streams.clear()
        self._events.append(ConnectionEnded(code, reason))

    def drop(self) -> None:
        """Let go of all that waits to be written: the connection is gone."""
        for stream in self._streams.values():
            self._outgoing.forget(stream)
        self._streams.clear()

    @abstractmethod
    def _last_of_peer(self) -> int:
        """Return the last stream of the peer that was looked at."""

    # --- what the halves tell

    def _tell(self, event: Any) -> None:
        self._events.append(event)

    @abstractmethod
    def _written(self, stream: Stream) -> None:
        """Know that all has left that this end says on STREAM."""

    def _drained(self, stream: Stream) -> None:
        self._events.append(Drained(stream.id))
