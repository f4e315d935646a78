"""The streams of a connection: those that are open, and what is known of those that are not (RFC 9113 §5.1, §5.1.1)."""

from __future__ import annotations

from collections import deque
from typing import Final

from .faults import ConnectionFault
from .frames import ErrorCode
from .streams import Stream

#: Streams that this side has reset lately: what was under way to them is no mistake.
_RESET_KEPT: Final = 1024
#: Gaps between the numbers of streams, to tell a stream that is over from one that never was.
_GAPS_KEPT: Final = 64


class StreamTable:
    """Streams by number; a peer opens them with odd numbers that grow."""

    def __init__(self) -> None:
        self.open: dict[int, Stream] = {}
        #: The highest number that was used.
        self.last_id = 0
        self._reset: dict[int, None] = {}
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_GAPS_KEPT)

    def begin(self, stream_id: int) -> None:
        """Note that the peer uses STREAM_ID; raise ConnectionFault if it is not its next."""
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is not a client's")
        if stream_id > self.last_id + 2:
            self._gaps.append((self.last_id, stream_id))
        self.last_id = stream_id

    def add_reset(self, stream_id: int) -> None:
        """Note that this side has reset STREAM_ID."""
        if len(self._reset) >= _RESET_KEPT:
            del self._reset[next(iter(self._reset))]
        self._reset[stream_id] = None

    def is_idle(self, stream_id: int) -> bool:
        """Was STREAM_ID never used?"""
        return stream_id > self.last_id or not stream_id & 1

    def check_over(self, stream_id: int, what: str) -> None:
        """Raise ConnectionFault, for WHAT came on STREAM_ID, which is not open, unless this side has reset it."""
        if stream_id in self._reset:
            return
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
