"""What a peer does wrong: mistakes that end a stream, and those that end the connection (RFC 9113 §5.4)."""

from __future__ import annotations

from . import calm
from .frames import ErrorCode


class StreamFault(Exception):
    """A mistake that ends stream STREAM_ID with CODE, and costs the peer COST (`calm`)."""

    def __init__(
        self, stream_id: int, code: ErrorCode, reason: str, cost: int = calm.MISTAKE
    ) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code
        self.cost = cost


class ConnectionFault(Exception):
    """A mistake that ends the connection with CODE."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
