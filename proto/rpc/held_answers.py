"""Queued answers of a connection that its peer has not read yet, within a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .connection import ServerConnection
from .errors import RpcError, not_read
from .served import Served


class Waiter(Protocol):
    """A stream that is not read while too many bytes wait for the peer."""

    def drain(self) -> None:
        """Continue."""
        ...


class ResponseQuota:
    """The queued answers for PEER on CONNECTION, and the streams that wait until the peer reads them.

    CUT_SHORT ends the answer on a stream with an error. ABORT ends a connection whose peer does not even read its
    socket.
    """

    def __init__(
        self,
        connection: ServerConnection,
        served: Served,
        peer: str,
        cut_short: Callable[[int, RpcError], None],
        abort: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._served = served
        self._cut_short = cut_short
        self._abort = abort
        self.peer = peer
        #: Queued bytes, as last reported; and those of them that were passed to the socket but are still on this host.
        self._held = 0
        self._unsent = 0
        #: A round ends when the peer has read as many bytes as were queued at its start.
        self._round_ms = 0
        self._round_end = 0
        self._waiting: dict[Waiter, None] = {}

    def note(self, unsent: int, written: int) -> None:
        """Note the queued bytes, UNSENT ones included, after WRITTEN bytes in total; shed answers over the limit."""
        held = self._connection.queued + unsent
        if not held and not self._held:
            return
        if not self._held or written >= self._round_end:
            self._round_ms, self._round_end = self._served.now_ms(), written + held
        self._unsent = unsent
        self._hold(held)
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for stream in waiting:
                stream.drain()
        self._served.answers.make_room(ResponseQuota.burden, ResponseQuota.shed)

    def _hold(self, held: int) -> None:
        self._held = held
        self._served.answers.hold(self, held)

    @property
    def is_full(self) -> bool:
        """Are so many bytes queued that work for the peer which can wait must wait?"""
        queued = self._connection.queued
        return queued > 0 and (
            queued >= self._served.answers.free
            or queued * 2 >= self._served.limits.connection_queue_bytes_max
        )

    def wait(self, stream: Waiter) -> None:
        """Let STREAM continue once it is no longer full."""
        self._waiting[stream] = None

    def forget(self, stream: Waiter) -> None:
        """Forget STREAM, which may have waited: it has ended."""
        self._waiting.pop(stream, None)

    def drop(self) -> None:
        """Release everything: the connection is lost. (Now, and not at the next garbage collection.)"""
        self._waiting.clear()
        self._connection.drop()
        self._hold(0)

    def burden(self) -> int:
        """Return the queued bytes times the time since the peer last read as many."""
        return self._held * (self._served.now_ms() - self._round_ms + 1)

    def shed(self) -> None:
        """End responses, the largest first, until usage is within the quota; end all if the peer reads nothing."""
        if self._unsent:
            self._abort()
            self._hold(0)
            return
        answers = self._served.answers
        for stream_id, queued in self._connection.queued_most():
            if answers.held <= answers.goal:
                break
            self._cut_short(
                stream_id, not_read(answers.held, answers.bytes_max, "queue_bytes_server")
            )
            self._hold(self._held - queued)
