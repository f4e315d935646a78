"""The streams of a connection: their windows, which streams ended recently, and the frames that wait to be written.

Frames are collected until `take`, so that all frames of one turn of the event loop leave in one write. A body that
fits follows its headers directly; consecutive pieces share a frame, up to the peer's frame size. What does not fit
waits in its stream. Streams write one piece each in turn, so a large response does not delay small ones. At most
`OUTPUT_BYTES` of bodies are collected; the rest stays in its stream, where it can still be dropped (RFC 9113 §5).
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
    """A stream that a peer has opened and that is not over. A connection owns it."""

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
        #: Bytes that the peer takes from now; negative if it made its window smaller.
        self.window = window
        #: Bytes that the peer may send from now …
        self.credit = credit
        #: … and received bytes for which no window update was sent yet.
        self.uncredited = 0
        #: No window updates are sent: the reader is busy.
        self.held = False
        self.ended_by_peer = False
        #: What content-length said, and what came of it.
        self.declared: int | None = None
        self.received = 0
        #: Pieces of the answer's body that wait for a window, and their size.
        self.outbox: deque[bytes | memoryview] = deque()
        self.queued = 0
        #: The answer has its end, …
        self.ending = False
        #: … which is sent after the queued body: the block of trailers, or none (the last piece ends the stream).
        self.end_block: bytes | None = None
        #: It takes part in the round of streams that write.
        self.is_waiting = False
        #: The writer wants a `Drained` event when less than this is queued.
        self.tell_below = 0
        #: Since when nothing of what waits was taken; None: something was, since that was last looked at.
        self.stalled_ms: int | None = None


class ClientStream(Http2Stream):
    """A stream that this side has opened and whose answer is not whole."""

    __slots__ = ("answered", "sent")

    def __init__(self, stream_id: int, window: int, credit: int) -> None:
        super().__init__(stream_id, window, credit)
        #: The head of its answer came.
        self.answered = False
        #: The request has left, to its end.
        self.sent = False


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
        self.open: dict[int, Http2Stream] = {}
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

    def begin_next(self) -> int:
        """Return the number of the next stream of this side, a client's, which is used from now on."""
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
        """Raise ConnectionFault, for WHAT came on STREAM_ID, which is not open, unless that was reset.

        Frames that the peer sends after its own RST_STREAM are a StreamFault, once per stream.
        """
        kept = self._reset[(stream_id >> 1) % _KEPT] if self._reset else 0
        if kept == stream_id != 0:
            return
        if kept == stream_id | _BY_PEER:
            raise StreamFault(
                stream_id,
                ErrorCode.STREAM_CLOSED,
                f"{what} behind its RST_STREAM",
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


#: What gathers at most before it is taken, bodies only.
OUTPUT_BYTES: Final = 256 * 1024


class Outgoing:
    """What a connection writes. WRITTEN gets each stream whose end was written, DRAINED each with free space again."""

    def __init__(
        self,
        budget: FloodBudget,
        written: Callable[[Http2Stream], None],
        drained: Callable[[Http2Stream], None],
    ) -> None:
        self._budget = budget
        self._written = written
        self._drained = drained
        #: Bytes of bodies that the peer takes from now, in all; that of new streams, each.
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.frame_size = DEFAULT_FRAME_SIZE
        #: Bytes of bodies that wait, of all streams.
        self.queued = 0
        #: No bodies are written: what was taken has not left yet.
        self.paused = False
        self._frames: list[bytes | memoryview] = []
        self._bodies = 0
        #: The newest DATA frame: its stream, the index of its frame head, its size; `_data_end` is the number of pieces
        #: after it. If that number is unchanged, nothing was written since.
        self._data_stream = self._data_head = self._data_size = 0
        self._data_end = -1
        self._waiting: deque[Http2Stream] = deque()

    # --- what the peer takes

    def resize_frames(self, size: int) -> None:
        """Write frames of up to SIZE bytes."""
        self.frame_size = size

    def resize_windows(self, size: int, streams: Iterable[Http2Stream]) -> None:
        """Have streams begin with a window of SIZE; those of STREAMS, which are open, as if they had."""
        change = size - self.initial_window
        self.initial_window = size
        for stream in streams:
            stream.window += change
            if stream.window > WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2³¹−1")
            self.wake(stream)

    def pause(self) -> None:
        """Write no bodies: what was taken has not left yet."""
        self.paused = True

    def resume(self) -> None:
        """Undo `pause`."""
        self.paused = False

    # --- frames

    def write(self, frame: bytes) -> None:
        """Append FRAME to the output."""
        self._frames.append(frame)

    def take(self) -> bytes:
        """Return what there is to write now, once."""
        if self._waiting:
            self.pump()
        frames, self._frames = self._frames, []
        self._bodies = 0
        self._data_end = -1
        return b"".join(frames)

    # --- answers

    def answer(self, stream: Http2Stream, head: bytes, body: bytes, end: bytes) -> None:
        """Write a whole answer: the block HEAD, BODY and the block END of trailers."""
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
        """Write the field BLOCK, the first of an answer; ENDS: there is nothing else of it."""
        self._frames.append(header_frames(stream.id, block, self.frame_size, ends=ends))
        if ends:
            stream.ending = True
            self._written(stream)

    def body(self, stream: Http2Stream, data: bytes) -> None:
        """Write DATA, or have it wait."""
        if self._fits(stream, len(data)):
            self._budget.earn(MESSAGE)
            self._write_data(stream, data, 0)
            return
        stream.outbox.append(data)
        stream.queued += len(data)
        self.queued += len(data)
        self.wake(stream)

    def last(self, stream: Http2Stream, data: bytes) -> None:
        """Write DATA, which ends a body without trailers, or have it wait."""
        stream.ending = True
        if self._fits(stream, len(data)):
            self._budget.earn(ANSWER)
            self._write_data(stream, data, END_STREAM)
            self._written(stream)
        else:
            self.body(stream, data)

    def finish(self, stream: Http2Stream, block: bytes | None) -> None:
        """End the answer with the BLOCK of trailers, or without, once its body has left."""
        stream.ending = True
        stream.end_block = block
        if stream.outbox:
            return
        self._write_end(stream)

    def forget(self, stream: Http2Stream) -> None:
        """Drop what waits of STREAM, which is over."""
        self.queued -= stream.queued
        stream.queued = 0
        stream.outbox.clear()

    # --- windows

    def wake(self, stream: Http2Stream) -> None:
        """Have STREAM take part in the round if it has something to write and a window."""
        if stream.outbox and stream.window > 0 and not stream.is_waiting:
            stream.is_waiting = True
            self._waiting.append(stream)

    def pump(self) -> None:
        """Write what windows allow of what waits."""
        waiting = self._waiting
        while waiting and self.window > 0 and not self.paused and self._bodies < OUTPUT_BYTES:
            stream = waiting.popleft()
            stream.is_waiting = False
            if stream.outbox and stream.window > 0:
                self._write_piece(stream)
                self.wake(stream)

    @property
    def has_more(self) -> bool:
        """Would `take` write more, were it asked again?"""
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
            # It extends the previous frame.
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
