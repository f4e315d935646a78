"""The streams of a connection: their windows, recently ended streams, and the frames that wait to be written.

Frames are collected until `take`, so that all frames of one turn of the event loop are sent in one write. A body that
fits follows its headers directly; consecutive pieces share a frame, up to the peer's frame size. The rest waits in its
stream. Streams write one piece each in turn, so a large response does not delay small ones. Up to `OUTPUT_BYTES` of
bodies are collected; the rest stays in its stream, where it can still be dropped (RFC 9113 §5).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from . import flood_budget
from .flood_budget import ANSWER, DATA_SENT_SHIFT, MESSAGE, FloodBudget
from .frames import (
    DATA,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    WINDOW_MAX,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    header_frames,
)


class Http2Stream:
    """An open stream. A connection owns it."""

    __slots__ = (
        "credit",
        "declared",
        "end_block",
        "ended_by_peer",
        "ending",
        "held",
        "id",
        "is_waiting",
        "outbox",
        "queued",
        "received",
        "stalled_ms",
        "tell_below",
        "uncredited",
        "window",
    )

    def __init__(self, stream_id: int, window: int, credit: int) -> None:
        self.id = stream_id
        #: Bytes that the peer accepts at present; negative if it made its window smaller.
        self.window = window
        #: Bytes that the peer may send at present …
        self.credit = credit
        #: … and received bytes for which no window update was sent yet.
        self.uncredited = 0
        #: Are no window updates sent, because the reader is busy?
        self.held = False
        self.ended_by_peer = False
        #: The declared content-length, and the bytes received so far.
        self.declared: int | None = None
        self.received = 0
        #: Pieces of the answer's body that wait for a window, and their size.
        self.outbox: deque[bytes | memoryview] = deque()
        self.queued = 0
        #: Is the answer complete? …
        self.ending = False
        #: … Then this is sent after the queued body: the block of trailers, or none (the last piece ends the stream).
        self.end_block: bytes | None = None
        #: Is it in the queue of streams that write in turn?
        self.is_waiting = False
        #: Report a `Drained` event when fewer bytes than this are queued.
        self.tell_below = 0
        #: The time since which the peer has accepted nothing; None: it has, since the last check.
        self.stalled_ms: int | None = None


class ClientStream(Http2Stream):
    """A stream that this side has opened and whose answer is incomplete."""

    __slots__ = ("answered", "sent")

    def __init__(self, stream_id: int, window: int, credit: int) -> None:
        super().__init__(stream_id, window, credit)
        #: Has the head of its answer arrived?
        self.answered = False
        #: Was the request sent completely?
        self.sent = False


#: Resets are remembered for this many of the latest streams: frames on their way to them are no mistake. This is twice
#: the limit of open streams, and takes 32 KiB if there are any.
_KEPT: Final = 8192
#: This bit is set for a stream that the peer has reset.
_BY_PEER: Final = 1 << 31
#: Gaps between stream ids, to distinguish a stream that has ended from one that never existed.
_GAPS_KEPT: Final = 64


class StreamTable:
    """Streams by id; a peer opens them with increasing odd ids."""

    def __init__(self) -> None:
        self.open: dict[int, Http2Stream] = {}
        #: The highest id used.
        self.last_id = 0
        #: Ids of reset streams, by their place in a ring.
        self._reset = array("I")
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_GAPS_KEPT)

    def begin(self, stream_id: int) -> None:
        """Note that the peer opens STREAM_ID; raise ConnectionFault if it is not its next one."""
        if not stream_id & 1:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is not one of a client"
            )
        if stream_id > self.last_id + 2:
            self._gaps.append((self.last_id, stream_id))
        self.last_id = stream_id

    def begin_next(self) -> int:
        """Return the id of the next stream of this side, a client, and mark it as used."""
        self.last_id = stream_id = (self.last_id + 1) | 1
        return stream_id

    def add_reset(self, stream_id: int) -> None:
        """Note that this side reset STREAM_ID, or has answered frames that the peer sent after its own reset."""
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
        """Raise ConnectionFault, about WHAT was received on STREAM_ID, which is not open, unless it was reset.

        Frames that the peer sends after its own RST_STREAM are a StreamFault, once per stream.
        """
        kept = self._reset[(stream_id >> 1) % _KEPT] if self._reset else 0
        if kept == stream_id != 0:
            return
        if kept == stream_id | _BY_PEER:
            raise StreamFault(
                stream_id,
                ErrorCode.STREAM_CLOSED,
                f"{what} after its RST_STREAM",
                flood_budget.LATE,
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


#: The maximum of collected bytes, bodies only.
OUTPUT_BYTES: Final = 256 * 1024


class Outgoing:
    """The writer of a connection. WRITTEN gets each completely written stream, DRAINED each with free space."""

    def __init__(
        self,
        budget: FloodBudget,
        written: Callable[[Http2Stream], None],
        drained: Callable[[Http2Stream], None],
    ) -> None:
        self._budget = budget
        self._written = written
        self._drained = drained
        #: Bytes of bodies that the peer accepts at present, in total; and the initial window of new streams.
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.frame_size = DEFAULT_FRAME_SIZE
        #: Queued bytes of bodies, of all streams.
        self.queued = 0
        #: Are bodies held back? (The bytes taken were not sent yet.)
        self.paused = False
        self._frames: list[bytes | memoryview] = []
        self._bodies = 0
        #: The newest DATA frame: its stream, the index of its frame head, its size; `_data_end` is the number of pieces
        #: after it. While that number is unchanged, nothing else was written.
        self._data_stream = self._data_head = self._data_size = 0
        self._data_end = -1
        self._waiting: deque[Http2Stream] = deque()

    def resize_frames(self, size: int) -> None:
        """Write frames of up to SIZE bytes."""
        self.frame_size = size

    def resize_windows(self, size: int, streams: Iterable[Http2Stream]) -> None:
        """Set the initial window of streams to SIZE, and adjust the windows of STREAMS, which are open."""
        change = size - self.initial_window
        self.initial_window = size
        for stream in streams:
            stream.window += change
            if stream.window > WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2³¹−1")
            self.wake(stream)

    def pause(self) -> None:
        """Hold bodies back: the bytes taken were not sent yet."""
        self.paused = True

    def resume(self) -> None:
        """Undo `pause`."""
        self.paused = False

    def write(self, frame: bytes) -> None:
        """Append FRAME to the output."""
        self._frames.append(frame)

    def take(self) -> bytes:
        """Return the collected output, and forget it."""
        if self._waiting:
            self.pump()
        frames, self._frames = self._frames, []
        self._bodies = 0
        self._data_end = -1
        return b"".join(frames)

    def answer(self, stream: Http2Stream, head: bytes, body: bytes, end: bytes) -> None:
        """Write a complete answer: the block HEAD, BODY, and the block END of trailers."""
        size = len(body)
        if not self._fits(stream, size) or max(len(head), len(end)) > self.frame_size:
            self.headers(stream, head, ends=False)
            self.body(stream, body)
            self.finish(stream, end)
            return
        self._budget.earn(ANSWER)
        self.window -= size
        self._bodies += size
        stream_id, pack = stream.id, HEAD.pack
        self._frames.append(
            b"".join(
                (
                    pack(0, len(head), HEADERS, END_HEADERS, stream_id),
                    head,
                    pack(size >> 16, size & 0xFFFF, DATA, 0, stream_id),
                    body,
                    pack(0, len(end), HEADERS, END_HEADERS | END_STREAM, stream_id),
                    end,
                )
            )
        )
        self._written(stream)

    def headers(self, stream: Http2Stream, block: bytes, *, ends: bool) -> None:
        """Write the first BLOCK of fields of an answer; ENDS: it is the only one."""
        self._frames.append(header_frames(stream.id, block, self.frame_size, ends=ends))
        if ends:
            stream.ending = True
            self._written(stream)

    def body(self, stream: Http2Stream, data: bytes) -> None:
        """Write DATA, or queue it."""
        if self._fits(stream, len(data)):
            self._budget.earn(MESSAGE)
            self._write_data(stream, data, 0)
            return
        stream.outbox.append(data)
        stream.queued += len(data)
        self.queued += len(data)
        self.wake(stream)

    def last(self, stream: Http2Stream, data: bytes) -> None:
        """Write DATA, the end of a body without trailers, or queue it."""
        stream.ending = True
        if self._fits(stream, len(data)):
            self._budget.earn(ANSWER)
            self._write_data(stream, data, END_STREAM)
            self._written(stream)
        else:
            self.body(stream, data)

    def finish(self, stream: Http2Stream, block: bytes | None) -> None:
        """End the answer after its body, with the BLOCK of trailers if there is one."""
        stream.ending = True
        stream.end_block = block
        if stream.outbox:
            return
        self._write_end(stream)

    def forget(self, stream: Http2Stream) -> None:
        """Drop the queue of STREAM, which has ended."""
        self.queued -= stream.queued
        stream.queued = 0
        stream.outbox.clear()

    def wake(self, stream: Http2Stream) -> None:
        """Let STREAM write in its turn if it has something to write and a window."""
        if stream.outbox and stream.window > 0 and not stream.is_waiting:
            stream.is_waiting = True
            self._waiting.append(stream)

    def pump(self) -> None:
        """Write as much of the queues as windows allow."""
        waiting = self._waiting
        while waiting and self.window > 0 and not self.paused and self._bodies < OUTPUT_BYTES:
            stream = waiting.popleft()
            stream.is_waiting = False
            if stream.outbox and stream.window > 0:
                self._write_piece(stream)
                self.wake(stream)

    @property
    def has_more(self) -> bool:
        """Would another `take` return more?"""
        return bool(self._waiting) and self.window > 0 and not self.paused

    def _fits(self, stream: Http2Stream, size: int) -> bool:
        return (
            size <= stream.window
            and size <= self.window
            and size <= self.frame_size
            and not stream.outbox
            and not self.paused
            and self._bodies < OUTPUT_BYTES
        )

    def _write_piece(self, stream: Http2Stream) -> None:
        data = stream.outbox.popleft()
        room = min(stream.window, self.window, self.frame_size)
        if len(data) > room:
            view = memoryview(data)  # Nothing is copied until it is written.
            stream.outbox.appendleft(view[room:])
            data = view[:room]
        size = len(data)
        stream.queued -= size
        self.queued -= size
        is_last = stream.ending and not stream.outbox
        ends = is_last and stream.end_block is None
        self._write_data(stream, data, END_STREAM if ends else 0)
        if is_last:
            if ends:
                self._written(stream)
            else:
                self._write_end(stream)
        elif stream.queued < stream.tell_below:
            stream.tell_below = 0
            self._drained(stream)

    def _write_data(self, stream: Http2Stream, data: bytes | memoryview, flags: int) -> None:
        size = len(data)
        stream.window -= size
        stream.stalled_ms = None
        self.window -= size
        self._bodies += size
        frames = self._frames
        if (
            len(frames) == self._data_end
            and self._data_stream == stream.id
            and self._data_size + size <= self.frame_size
        ):
            # Extend the previous frame.
            self._data_size = whole = self._data_size + size
            frames[self._data_head] = HEAD.pack(whole >> 16, whole & 0xFFFF, DATA, flags, stream.id)
            frames.append(data)
        else:
            self._data_stream, self._data_head, self._data_size = stream.id, len(frames), size
            frames += (HEAD.pack(size >> 16, size & 0xFFFF, DATA, flags, stream.id), data)
        self._data_end = len(frames)
        self._budget.earn(size >> DATA_SENT_SHIFT)

    def _write_end(self, stream: Http2Stream) -> None:
        if stream.end_block is None:
            self._frames.append(HEAD.pack(0, 0, DATA, END_STREAM, stream.id))
        else:
            self._frames.append(
                header_frames(stream.id, stream.end_block, self.frame_size, ends=True)
            )
        self._written(stream)
