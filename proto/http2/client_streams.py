"""One stream of a client's connection."""

from __future__ import annotations

from .streams import Stream


class ClientStream(Stream):
    """A stream that this side has opened and whose answer is not whole."""

    __slots__ = ("answered", "sent")

    def __init__(self, stream_id: int, window: int, credit: int) -> None:
        super().__init__(stream_id, window, credit)
        #: The head of its answer came.
        self.answered = False
        #: The request has left, to its end.
        self.sent = False
