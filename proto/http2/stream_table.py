"""The streams of a connection: those that are open, and what is known of those that are not (RFC 9113 §5.1, §5.1.1)."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final

from . import calm
from .faults import ConnectionFault, StreamFault
from .frames import ErrorCode
from .streams import Stream

#: Among so many streams in a row those that were reset are known: what was under way to them is no mistake. It is
#: twice what may be open, and takes 32 KiB where there are any.
_KEPT: Final = 8192
#: Set in the number of a stream that the peer has reset.
_BY_PEER: Final = 1 << 31
#: Gaps between the numbers of streams, to tell a stream that is over from one that never was.
_GAPS_KEPT: Final = 64


class StreamTable:
    """Streams by number; a peer opens them with odd numbers that grow."""

    def __init__(self) -> None:
        self.open: dict[int, Stream] = {}
        #: The highest number that was used.
        self.last_id = 0
        #: By their place in the row.
        self._reset = array("I")
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_GAPS_KEPT)

    def begin(self, stream_id: int) -> None:
        """Note that the peer uses STREAM_ID; raise ConnectionFault if it is not its next."""
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is not a client's")
        if stream_id > self.last_id + 2:
            self._gaps.append((self.last_id, stream_id))
        self.last_id = stream_id

    def add_reset(self, stream_id: int) -> None:
        """Note that this side has reset STREAM_ID, or what the peer sends behind its own reset has been answered."""
        self._note(stream_id, stream_id)

    def add_reset_by_peer(self, stream_id: int) -> None:
        """Note that the peer has reset STREAM_ID."""
        self._note(stream_id, stream_id | _BY_PEER)

    def _note(self, stream_id: int, value: int) -> None:
        if not self._reset:
            self._reset = array("I", bytes(_KEPT * self._reset.itemsize))
        self._reset[(stream_id >> 1) % _KEPT] = value

    def is_idle(self, stream_id: int) -> bool:
        """Was STREAM_ID never used?"""
        return stream_id > self.last_id or not stream_id & 1

    def check_over(self, stream_id: int, what: str) -> None:
        """Raise ConnectionFault, for WHAT came on STREAM_ID, which is not open, unless that was reset.

        What the peer sends behind its own reset was under way within it: a StreamFault, once a stream.
        """
        kept = self._reset[(stream_id >> 1) % _KEPT] if self._reset else 0
        if kept == stream_id != 0:
            return
        if kept == stream_id | _BY_PEER:
            raise StreamFault(
                stream_id, ErrorCode.STREAM_CLOSED, f"{what} behind its RST_STREAM", calm.LATE
            )
        if self.is_idle(stream_id):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which is idle"
            )
        if any(below < stream_id < above for below, above in self._gaps):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} after stream {self.last_id}"
            )
        raise ConnectionFault(
            ErrorCode.STREAM_CLOSED, f"{what} on stream {stream_id}, which is closed"
        )
