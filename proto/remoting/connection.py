"""One connection that speaks remoting: frames in, commands out, within limits.

Answers of one turn of the event loop are written together, up to `_TOGETHER_BYTES`. A peer that sends an invalid frame
is disconnected: where the next frame begins is not known. One that does not read its answers is not read either (the
link sees to it), and requests that arrived before wait: few bytes can ask for many. It is disconnected if it holds too
many bytes for too long, alone or with others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ..rpc.memory_quota import MemoryQuota
from ..rpc.other_protocol import OtherLink
from ..rpc.turn_loop import reading
from .command import REQUEST_MAX, RemotingCommand, decode, encode
from .frames import FrameSplitter

logger = logging.getLogger(__name__)

#: Unanswered requests of one connection; further ones are refused.
OPEN_REQUESTS_MAX: Final = 4_096
#: So many bytes of answers are written at once, in the middle of a turn.
_TOGETHER_BYTES: Final = 256 << 10
#: When requests wait for their peer to read, it is checked this often.
_LOOK_AGAIN_S: Final = 0.02


class ConnectionOwner(Protocol):
    """What all connections of a port share."""

    #: Bytes of incomplete requests, and of answers that wait for their peers.
    requests: MemoryQuota[Any]
    answers: MemoryQuota[Any]
    #: Returns the machine's time.
    now_ms: Callable[[], int]
    #: A peer with so many unread bytes gets no requests from this side, and its own ones wait.
    unread_max: int

    def take(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        """Process COMMAND of CONNECTION."""
        ...


class RemotingConnection:
    """The conversation with PROTOCOL on LINK. Implements `OtherConversation`."""

    def __init__(self, link: OtherLink, protocol: ConnectionOwner) -> None:
        self._link = link
        self._protocol = protocol
        self._reader = FrameSplitter(REQUEST_MAX)
        #: Requests that wait until the peer has read answers, and whether a look at that is scheduled.
        self._frames: deque[bytes] = deque()
        self._frames_bytes = 0
        self._looks_again = False
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._is_handling = self._is_scheduled = self._is_leaving = self._is_lost = False
        #: Unanswered requests.
        self.open_requests = 0
        #: When the bytes that it holds began to wait.
        self._held_since_ms = 0
        self._on_close: list[Callable[[], None]] = []
        #: What to call for each unanswered request if the connection is closed.
        self.waiting: dict[object, Callable[[], None]] = {}
        self.peer = link.peer

    @property
    def local_address(self) -> tuple[str, int]:
        """The address that the peer connected to."""
        return self._link.local_address

    @property
    def is_secure(self) -> bool:
        """Does it use TLS?"""
        return self._link.is_secure

    @property
    def certificate_names(self) -> Sequence[str]:
        """The names in the peer's verified certificate."""
        return self._link.certificate_names

    @property
    def is_open(self) -> bool:
        """Can commands be sent?"""
        return not (self._is_lost or self._is_leaving)

    @property
    def has_room(self) -> bool:
        """Does the peer read its answers, so that requests of this side may be sent?"""
        return self.is_open and self._link.unsent < self._protocol.unread_max

    def on_close(self, function: Callable[[], None]) -> None:
        """Call FUNCTION when the connection is closed; at once if it is."""
        if self._is_lost:
            function()
        else:
            self._on_close.append(function)

    def receive(self, data: bytes) -> None:
        """Process DATA from the peer."""
        if not self.is_open:
            return
        self._is_handling = True
        try:
            frames = self._reader.feed(data)
            self._frames.extend(frames)
            self._frames_bytes += sum(map(len, frames))
            with reading(asyncio.get_running_loop()):
                self._take_frames()
        except ValueError as error:
            logger.debug("remoting connection ended peer=%s reason=%s", self.peer, error)
            self._give_up("invalid frame")
            return
        finally:
            self._is_handling = False
        self._note_held()
        self.flush()

    def _take_frames(self) -> None:
        """Process requests while the peer reads its answers. Raises ValueError for an invalid one."""
        while self._frames and self.is_open:
            if self._link.unsent >= self._protocol.unread_max:
                if not self._looks_again:
                    self._looks_again = True
                    asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._look_again)
                return
            frame = self._frames.popleft()
            self._frames_bytes -= len(frame)
            self._protocol.take(self, decode(frame))

    def _look_again(self) -> None:
        self._looks_again = False
        self.receive(b"")

    def _waiting_bytes(self) -> int:
        return self._reader.held + self._frames_bytes

    def _note_held(self) -> None:
        """Note the bytes of requests and answers that it holds; if there are too many, connections are given up."""
        if self._is_lost:
            return
        waiting, unsent = self._waiting_bytes(), self._link.unsent
        if not (waiting or unsent):
            self._held_since_ms = 0
        elif not self._held_since_ms:
            self._held_since_ms = self._protocol.now_ms()
        for quota, size in ((self._protocol.requests, waiting), (self._protocol.answers, unsent)):
            quota.hold(self, size)
            quota.make_room(RemotingConnection.burden, RemotingConnection.shed)

    def burden(self) -> int:
        """Return the bytes that it holds times the time that it has held them."""
        since_ms = self._held_since_ms or self._protocol.now_ms()
        held = self._waiting_bytes() + self._link.unsent
        return held * (self._protocol.now_ms() - since_ms + 1)

    def shed(self) -> None:
        """Give up the connection: it holds the most bytes for the longest time."""
        self._give_up("not reading" if self._link.unsent else "memory")

    def _give_up(self, reason: str) -> None:
        """Close now, for REASON. Until the link reports the end, nothing is sent, and no request processed."""
        self._is_lost = True
        self._link.abort(reason)
        self._release()
        self._cancel_waiting()

    def send(self, command: RemotingCommand) -> None:
        """Send COMMAND, with others of this turn of the event loop."""
        if self._is_lost:
            return
        frame = encode(command)
        self._output.append(frame)
        self._output_bytes += len(frame)
        if self._output_bytes >= _TOGETHER_BYTES:
            self._write()
        elif not (self._is_handling or self._is_scheduled):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what was sent."""
        self._is_scheduled = False
        if self._is_lost:
            return
        self._write()
        if self._is_leaving and not self.open_requests:
            self._link.finish("stopped")

    def _write(self) -> None:
        if self._output:
            data = self._output[0] if len(self._output) == 1 else b"".join(self._output)
            self._output.clear()
            self._output_bytes = 0
            self._link.write(data)
            self._note_held()

    def answered(self) -> None:
        """Note that a request was answered."""
        self.open_requests -= 1
        if self._is_leaving and not (self.open_requests or self._is_scheduled):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def leave(self) -> None:
        """Take no more requests, and finish once the open ones are answered."""
        self._is_leaving = True
        self._drop_frames()
        self.flush()

    def end(self, reason: str) -> None:
        """Close the connection, for REASON, once its answers were sent. Open requests are not answered any more."""
        self.flush()
        self._link.finish(reason)
        self.lost()

    def lost(self) -> None:
        """Release everything: the connection is closed."""
        self._is_lost = True
        self._release()
        self._cancel_waiting()
        functions = list(self._on_close)
        self._on_close.clear()
        self._call(functions)

    def _cancel_waiting(self) -> None:
        functions = list(self.waiting.values())
        self.waiting.clear()
        self._call(functions)

    def _call(self, functions: list[Callable[[], None]]) -> None:
        for function in functions:
            try:
                function()
            except Exception:  # A bug in one must not keep the others from being called.
                logger.exception("close callback failed peer=%s", self.peer)

    def _drop_frames(self) -> None:
        self._frames.clear()
        self._frames_bytes = 0

    def _release(self) -> None:
        self._drop_frames()
        self._output.clear()
        self._protocol.requests.hold(self, 0)
        self._protocol.answers.hold(self, 0)
