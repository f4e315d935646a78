"""A client of HTTP/2 that does as it is told: any frame, valid or not, and all that comes back as plain tuples.

    async with Peer.open(port) as peer:
        stream = peer.call("/test.Echo/Plain", run.SerializeToString())
        answer = await peer.answer(stream)
        await peer.send(ping() * 3_000)
        assert (await peer.ended()).code == Code.ENHANCE_YOUR_CALM

What it is told to write is gathered, and leaves when anything is waited for. A peer is *polite* unless asked not to be:
it acknowledges SETTINGS and PING, and opens windows for the data that it has read. Blocks of fields are the business of
the `hpack` package, so that nothing of the server's own judges the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import hpack

from . import frames
from .calls import Answer, Fields, message, request_fields
from .frames import ACK, END_HEADERS, PREFACE, Code, Frame, Setting, Type
from .wire import Wire

#: Nothing that is waited for takes so long, unless it never comes.
PATIENCE_S: Final = 60.0
_WINDOW: Final = 65_535


class Peer:
    """The client's end of one connection."""

    def __init__(self, wire: Wire, *, polite: bool) -> None:
        self.wire = wire
        self.polite = polite
        #: What came, without HEADERS, DATA and CONTINUATION.
        self.frames: list[Frame] = []
        #: What came on streams that nobody has asked for yet.
        self.answers: dict[int, Answer] = {}
        #: What the server has announced.
        self.settings: dict[int, int] = {}
        #: The server's end of the connection is closed.
        self.lost = False
        self.received_bytes = 0
        #: Cleared: nothing is read.
        self.reading = asyncio.Event()
        self.reading.set()
        self._next_stream = 1
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._block: tuple[Frame, bytearray] | None = None
        self._window = _WINDOW
        self._windows: dict[int, int] = {}
        self._news: asyncio.Future[None] | None = None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._reader = asyncio.ensure_future(self._read_all())

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        settings: Mapping[int, int] | None = None,
        polite: bool = True,
        greet: bool = True,
    ) -> AsyncIterator[Peer]:
        """Connect to PORT; GREET with the preface and SETTINGS."""
        peer = cls(await Wire.connect(port, tls), polite=polite)
        try:
            if greet:
                peer.write(PREFACE, frames.settings(settings))
            yield peer
        finally:
            await peer.close()

    async def close(self) -> None:
        """Be gone, without a word."""
        self._reader.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader  # What failed in it fails the test.
        finally:
            self.wire.close()

    # --- writing

    def write(self, *parts: bytes) -> None:
        """Gather PARTS: bytes, as a rule frames."""
        for part in parts:
            self._outgoing += part

    async def flush(self) -> bool:
        """Send what is gathered, and say whether the server took it."""
        gathered = bytes(self._outgoing)
        self._outgoing.clear()
        return await self.wire.send(gathered) if gathered else not self.lost

    async def send(self, *parts: bytes) -> bool:
        """Gather PARTS and flush."""
        self.write(*parts)
        return await self.flush()

    def block(self, fields: Iterable[tuple[str, str]], *, literal: bool = False) -> bytes:
        """Return FIELDS as a block; LITERAL: none of them enters the table, and blocks may be dropped or repeated."""
        raw = ((name.encode("latin-1"), value.encode("latin-1"), literal) for name, value in fields)
        return self._encoder.encode(list(raw), huffman=not literal)

    def stream(self) -> int:
        """Return the number of a new stream."""
        self._next_stream += 2
        return self._next_stream - 2

    def begin(self, fields: Fields, *, end: bool = False) -> int:
        """Write the head of a request and return its stream."""
        stream = self.stream()
        self.write(frames.headers(stream, self.block(fields), end=end))
        return stream

    def call(self, path: str, encoded: bytes, *more: tuple[str, str]) -> int:
        """Write a whole, well-formed call of a small message and return its stream."""
        stream = self.begin(request_fields(path, *more))
        self.write(frames.data(stream, message(encoded), end=True))
        return stream

    async def send_body(self, stream: int, body: bytes, *, end: bool = True) -> bool:
        """Send BODY as the server's windows and frame size allow; False if STREAM was answered before it was all."""
        at = 0
        while at < len(body) or end:
            answer = self.answers.get(stream)
            if self.lost or (answer is not None and answer.ended):
                return False
            room = min(
                self._window, self.window_of(stream), self._in_force(Setting.MAX_FRAME_SIZE, 16_384)
            )
            if at < len(body) and room <= 0:
                await self._next_news()
                continue
            piece = body[at : at + room] if at < len(body) else b""
            at += len(piece)
            last = at >= len(body)
            self._window -= len(piece)
            self._windows[stream] = self._windows.get(stream, 0) - len(piece)
            await self.send(frames.data(stream, piece, end=end and last))
            if last:
                break
        return True

    def window_of(self, stream: int) -> int:
        """How much the server takes on STREAM."""
        initial = self._in_force(Setting.INITIAL_WINDOW_SIZE, _WINDOW)
        return initial + self._windows.get(stream, 0)

    def _in_force(self, setting: Setting, default: int) -> int:
        """Return what the server has announced, which holds from its acknowledgement on."""
        return self.settings.get(setting, default) if self.polite else default

    # --- waiting

    async def answer(self, stream: int) -> Answer:
        """Return what came on STREAM, once it has ended."""
        await self.flush()
        answer = self._answer(stream)
        if not answer.ended and not self.lost:
            self._waiting[stream] = asyncio.get_running_loop().create_future()
            try:
                async with self._patience(f"the end of stream {stream}"):
                    await self._waiting[stream]
            finally:
                del self._waiting[stream]
        answer.lost = not answer.ended
        del self.answers[stream]
        return answer

    async def until(self, found: Callable[[Frame], bool], *, skip: int = 0) -> Frame:
        """Return the first frame behind SKIP others that is FOUND (not HEADERS, nor DATA)."""
        await self.flush()
        async with self._patience("a frame"):
            while True:
                for at in range(skip, len(self.frames)):
                    if found(self.frames[at]):
                        return self.frames[at]
                skip = len(self.frames)
                assert not self.lost, f"the connection is lost; what came last: {self.frames[-3:]}"
                await self._next_news()

    async def until_true(self, condition: Callable[[], bool]) -> None:
        """Return when what has come makes CONDITION true."""
        await self.flush()
        async with self._patience("a condition"):
            while not condition():
                assert not self.lost, f"the connection is lost; what came last: {self.frames[-3:]}"
                await self._next_news()

    async def until_reset(self, stream: int) -> int:
        """Return the code with which the server breaks STREAM off."""
        return (await self.until(lambda f: f.type == Type.RST_STREAM and f.stream == stream)).code

    async def ended(self) -> Frame | None:
        """Return the last GOAWAY, or None if there was none, once the server has closed."""
        await self.flush()
        async with self._patience("the connection's end"):
            while not self.lost:
                await self._next_news()
        return next((f for f in reversed(self.frames) if f.type == Type.GOAWAY), None)

    async def ended_at_once(self) -> Frame | None:
        """Return as `ended` does; fail if the server goes on with what comes next, a PING."""
        skip = len(self.frames)
        await self.send(frames.ping(b"still on"))
        async with self._patience("the connection's end, or an answer"):
            while not self.lost:
                assert not any(_answers(f, b"still on") for f in self.frames[skip:]), (
                    "the server goes on"
                )
                await self._next_news()
        return await self.ended()

    async def round_trip(self) -> None:
        """Return when the server has read all that was sent: a PING has come back."""
        skip = len(self.frames)
        self.write(frames.ping(b"roundtri"))
        await self.until(lambda f: _answers(f, b"roundtri"), skip=skip)

    @asynccontextmanager
    async def _patience(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield
        except TimeoutError:
            raise AssertionError(
                f"{what} did not come in {PATIENCE_S} s; what came last: {self.frames[-5:]},"
                f" open: {dict(list(self.answers.items())[:5])}"
            ) from None

    async def _next_news(self) -> None:
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news)

    # --- reading

    async def _read_all(self) -> None:
        try:
            while received := await self._receive():
                self.received_bytes += len(received)
                self._incoming += received
                for frame in frames.cut(self._incoming):
                    self._take(frame)
                self._tell()
                if self._outgoing:
                    await self.flush()
        finally:
            self.lost = True
            for stream in list(self._waiting):
                self._wake(stream)
            self._tell()

    async def _receive(self) -> bytes:
        await self.reading.wait()
        return await self.wire.receive()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _wake(self, stream: int) -> None:
        waiting = self._waiting.get(stream)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _answer(self, stream: int) -> Answer:
        return self.answers.setdefault(stream, Answer())

    def _take(self, frame: Frame) -> None:
        match frame.type:
            case Type.HEADERS | Type.CONTINUATION:
                self._take_block(frame)
            case Type.DATA:
                self._take_data(frame)
            case _:
                self.frames.append(frame)
                self._take_control(frame)

    def _take_block(self, frame: Frame) -> None:
        first, gathered = self._block or (frame, bytearray())
        gathered += frame.payload
        self._block = (first, gathered)
        if not frame.flags & END_HEADERS:
            return
        self._block = None
        fields = {
            bytes(name).decode("latin-1"): bytes(value).decode("latin-1")
            for name, value in self._decoder.decode(bytes(gathered), raw=True)
        }
        answer = self._answer(first.stream)
        if ":status" in fields:
            answer.headers = fields
        else:
            answer.trailers = fields
        if first.ends_stream:
            self._end(first.stream, answer)

    def _take_data(self, frame: Frame) -> None:
        answer = self._answer(frame.stream)
        answer.body += frame.payload
        size = len(frame.payload)
        if self.polite and size:
            self.write(frames.window_update(0, size))
            if not frame.ends_stream:
                self.write(frames.window_update(frame.stream, size))
        if frame.ends_stream:
            self._end(frame.stream, answer)

    def _take_control(self, frame: Frame) -> None:
        match frame.type:
            case Type.SETTINGS if not frame.flags & ACK:
                for at in range(0, len(frame.payload), 6):
                    name = int.from_bytes(frame.payload[at : at + 2], "big")
                    self.settings[name] = int.from_bytes(frame.payload[at + 2 : at + 6], "big")
                if self.polite:
                    self.write(frames.frame(Type.SETTINGS, ACK))
            case Type.PING if not frame.flags & ACK and self.polite:
                self.write(frames.ping(frame.payload, ack=True))
            case Type.WINDOW_UPDATE:
                increment = int.from_bytes(frame.payload, "big")
                if frame.stream == 0:
                    self._window += increment
                else:
                    self._windows[frame.stream] = self._windows.get(frame.stream, 0) + increment
            case Type.RST_STREAM:
                answer = self._answer(frame.stream)
                if not answer.ended or frame.code != Code.NO_ERROR:
                    answer.reset = frame.code
                self._end(frame.stream, answer)

    def _end(self, stream: int, answer: Answer) -> None:
        answer.ended = True
        self._windows.pop(stream, None)
        self._wake(stream)


def _answers(frame: Frame, ping: bytes) -> bool:
    return frame.type == Type.PING and frame.flags & ACK != 0 and frame.payload == ping
