"""One connection without a socket: a peer's bytes in, its answers out, and a clock that stands until it is moved."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pocketmq.proto.rpc import Limits, MethodTable
from pocketmq.proto.rpc.connection import ServerConnection
from pocketmq.proto.rpc.conversation import ServerConversation
from pocketmq.proto.rpc.deadlines import Deadlines
from pocketmq.proto.rpc.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    RST_STREAM,
    WINDOW_MAX,
    WORD,
    ErrorCode,
    FrameReader,
    frame,
    settings,
    window_update,
)
from pocketmq.proto.rpc.hpack import FieldDecoder, FieldEncoder
from pocketmq.proto.rpc.limits import ConnectionLimits
from pocketmq.proto.rpc.messages import with_prefix
from pocketmq.proto.rpc.served import Served

from ..http2.calls import request_fields


class Server:
    """What all connections share, and the time."""

    def __init__(self, table: MethodTable, limits: Limits) -> None:
        self.now_ms = 0
        self.deadlines = Deadlines(lambda due_ms: None)
        self.served = Served([table], limits, self.deadlines, lambda: self.now_ms, _no_tasks)
        self.talks: list[Talk] = []

    def talk(self, peer: str = "10.0.0.9:1", **limits: Any) -> Talk:
        """Return a new connection of PEER whose HTTP/2 has LIMITS."""
        self.talks.append(Talk(self, ConnectionLimits(**limits), peer))
        return self.talks[-1]

    def pass_time(self, by_ms: int) -> None:
        """Let BY_MS pass, and have all that looks at the time do so."""
        self.now_ms += by_ms
        for action in self.deadlines.take_due(self.now_ms):
            action()
        for talk in self.talks:
            talk.conversation.check(self.now_ms)


def _no_tasks(work: Coroutine[Any, Any, None]) -> None:
    raise AssertionError("no handler here is a coroutine")


class Talk:
    """One connection."""

    def __init__(self, server: Server, limits: ConnectionLimits, peer: str) -> None:
        self._server = server
        self._written = 0
        self._connection = ServerConnection(limits, server.now_ms)
        self.conversation = ServerConversation(self._connection, server.served, peer, lambda: None)
        self._encoder = FieldEncoder()
        self._decoder = FieldDecoder()
        self._reader = FrameReader(1 << 24)
        self._reader.greet()
        self._last_id = -1
        #: By stream: what the trailers said, and "reset" where it was broken off.
        self.ends: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytes] = {}
        self.write(PREFACE + settings({}))

    def write(self, data: bytes) -> None:
        """Have DATA come from the peer."""
        now_ms = self._server.now_ms
        self.conversation.handle(self._connection.receive(data, now_ms), now_ms)
        self.conversation.answers.note(0, self._written)

    def open_windows(self) -> None:
        """Have the server send all there is."""
        more = WINDOW_MAX - DEFAULT_WINDOW
        self.write(settings({INITIAL_WINDOW_SIZE: WINDOW_MAX}) + window_update(0, more))

    def begin(self, path: str, *more: tuple[str, str]) -> int:
        """Begin a call of PATH whose fields say MORE; return its stream."""
        self._last_id += 2
        block = self._encoder.encode(request_fields(path, *more))
        self.write(frame(HEADERS, END_HEADERS, self._last_id, block))
        return self._last_id

    def send(self, stream_id: int, data: bytes, *, ends: bool = False) -> None:
        """Send DATA of a body in frames that are allowed; ENDS: it is the last."""
        for at in range(0, len(data), 16_384):
            self.write(frame(DATA, 0, stream_id, data[at : at + 16_384]))
        if ends:
            self.write(frame(DATA, END_STREAM, stream_id))

    def ask(self, path: str, message: bytes, *more: tuple[str, str]) -> int:
        """Make a whole call; return its stream."""
        stream_id = self.begin(path, *more)
        self.send(stream_id, with_prefix(message), ends=True)
        return stream_id

    def read(self) -> None:
        """Take what the server has written."""
        while data := self._connection.take():
            self._written += len(data)
            for kind, flags, stream_id, payload in self._reader.read(data):
                if kind == DATA:
                    self.bodies[stream_id] = self.bodies.get(stream_id, b"") + payload
                elif kind == HEADERS:
                    fields = dict(self._decoder.decode(payload).fields)
                    if flags & END_STREAM:
                        self.ends[stream_id] = fields
                elif kind == RST_STREAM and stream_id not in self.ends:
                    code = ErrorCode(WORD.unpack(payload)[0])
                    self.ends[stream_id] = {"reset": code.name}
            now_ms = self._server.now_ms
            self.conversation.handle(self._connection.events(), now_ms)
            self.conversation.answers.note(0, self._written)

    def status(self, stream_id: int) -> str:
        """Return the gRPC status of STREAM_ID, "reset" if it was broken off, "" while it is open."""
        self.read()
        end = self.ends.get(stream_id, {})
        return end.get("grpc-status", "reset" if "reset" in end else "")

    @property
    def open_calls(self) -> int:
        """Calls and streams that are open."""
        return self.conversation.open_calls

    @property
    def queued(self) -> int:
        """Bytes of answers that wait."""
        return self._connection.queued
