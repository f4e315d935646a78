"""One stream of a connection: which halves are open, its two windows, and what waits to be written."""

from __future__ import annotations

from collections import deque


class Stream:
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
        #: … and those that came and were not yet given back.
        self.uncredited = 0
        #: Nothing is given back: whoever reads is busy.
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
        #: … which waits behind the outbox: the block of trailers, or none (the last piece ends the stream).
        self.end_block: bytes | None = None
        #: It takes part in the round of streams that write.
        self.is_waiting = False
        #: Whoever writes wants to hear when less than this is queued.
        self.tell_below = 0
        #: Since when nothing of what waits was taken; None: something was, since that was last looked at.
        self.stalled_ms: int | None = None
