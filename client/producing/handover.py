"""The hand-over of single messages from application threads to the event loop.

Messages gather in a row until the loop comes to it, and only the first of a row wakes the loop: so under load the loop
works on hundreds at a time. Any thread may put; the loop's thread takes, in the order of putting. Bounded by the
producer's budget, from which the bytes of a message are taken before.
"""

from __future__ import annotations

from itertools import groupby
from typing import cast

from ..message import Message
from ..portal import Portal
from .outcome import Outcome, SendFuture
from .run import record_size
from .sender import Sender


class Handover:
    """Hands rows of messages to SENDER on the loop of PORTAL."""

    def __init__(self, portal: Portal, sender: Sender) -> None:
        self._portal = portal
        self._sender = sender
        self._take_bytes = sender.budget.take
        self._largest_bytes = sender.config.max_request_size
        #: Futures that have their messages, or messages, their bytes, and what else waits for their receipts.
        self._row: list[SendFuture | tuple[Message, int, Outcome]] = []
        #: Something else than a SendFuture may stand in the row; it never ends, for threads put meanwhile.
        self._mixed = False
        self._awake = False

    def put(self, message: Message) -> SendFuture:
        """Take MESSAGE, waiting for room; return the future of its receipt."""
        sender = self._sender
        if not sender.is_open:
            sender.check_open()
        size_bytes = record_size(message)
        if size_bytes > self._largest_bytes or not self._take_bytes(size_bytes):
            self.take(message)
        future: SendFuture = SendFuture()
        future.message = message
        future.size_bytes = size_bytes
        self._row.append(future)
        if not self._awake:
            self._wake()
        return future

    def take(self, message: Message) -> int:
        """Take the bytes of MESSAGE, which may have to wait for them, from the budget; return how many."""
        size_bytes = self._sender.size_of(message)
        if not self._take_bytes(size_bytes):
            budget, config = self._sender.budget, self._sender.config
            self._portal.run(budget.take_within(size_bytes, config.max_block_ms))
        return size_bytes

    def put_watched(self, message: Message, size_bytes: int, outcome: Outcome) -> None:
        """Take MESSAGE, whose SIZE_BYTES were taken; OUTCOME gets its receipt."""
        self._mixed = True
        self._row.append((message, size_bytes, outcome))
        if not self._awake:
            self._wake()

    def _wake(self) -> None:
        self._awake = True
        self._portal.post(self._take)

    def _take(self) -> None:
        # Cleared first: who appends from here on either is seen below, or wakes the loop again.
        self._awake = False
        row = self._row[:]
        del self._row[: len(row)]
        if not self._mixed:
            if row:
                self._sender.accept_row(cast("list[SendFuture]", row))
            return
        for plain, entries in groupby(row, lambda entry: type(entry) is SendFuture):
            if plain:
                self._sender.accept_row(cast("list[SendFuture]", list(entries)))
            else:
                for entry in entries:
                    self._sender.accept(*cast("tuple[Message, int, Outcome]", entry))
