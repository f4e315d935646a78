"""Floods of frames, valid and invalid, that cost their sender nothing: by name, with the code that must end each.

A flood is prepared (it may need open streams), and then sent whole: `FRAMES` frames at most, or `STALE_FRAMES` of calls
that are reset as they come, of which one costs less than a call that is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from . import frames
from .calls import message, request_fields
from .frames import END_STREAM, PADDED, Code, Setting, Type
from .peer import Peer
from .stage import LATER, PLAIN, Stage

FRAMES: Final = 2_100
#: Twenty thousand calls.
STALE_FRAMES: Final = 60_000

Frames = Iterator[bytes]


@dataclass(frozen=True)
class Flood:
    """Streams that wait for an answer are OPEN before; then what FRAMES yields comes, and CODE ends the connection."""

    frames: Callable[[Peer], Frames]
    open: int = 0
    code: int = Code.ENHANCE_YOUR_CALM
    most: int = FRAMES

    async def sent(self, peer: Peer, stage: Stage) -> None:
        """Have PEER send it."""
        for _ in range(self.open):
            peer.call("/test.Echo/Plain", LATER)
        await peer.flush()
        await stage.until_arrived(self.open)
        await peer.send(*islice(self.frames(peer), self.most))


def again(frame: bytes) -> Callable[[Peer], Frames]:
    """Return a flood of FRAME."""

    def repeat(_: Peer) -> Frames:
        while True:
            yield frame

    return repeat


def resized_windows(_: Peer) -> Frames:
    while True:
        yield frames.settings({Setting.INITIAL_WINDOW_SIZE: 1_000_000})
        yield frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})


def within_a_body(frame: Callable[[int], bytes]) -> Callable[[Peer], Frames]:
    """Return a flood of what FRAME returns for the number of a stream whose request is half there."""

    def begin(peer: Peer) -> Frames:
        stream = peer.begin(request_fields("/test.Echo/Plain"))
        peer.write(frames.data(stream, message(b"", length=1_000_000)))
        while True:
            yield frame(stream)

    return begin


def within_a_block(piece: bytes) -> Callable[[Peer], Frames]:
    """Return a flood of CONTINUATION frames with PIECE, none of which is the last."""

    def begin(peer: Peer) -> Frames:
        stream = peer.stream()
        block = peer.block(request_fields("/test.Echo/Plain"), literal=True)
        yield frames.headers(stream, block, whole=False)
        while True:
            yield frames.continuation(stream, piece)

    return begin


def calls_with(*behind: Callable[[int], bytes], encoded: bytes = LATER) -> Callable[[Peer], Frames]:
    """Return a flood of calls, each with the frames BEHIND it that are made of its stream's number."""

    def call(peer: Peer) -> Frames:
        block = peer.block(request_fields("/test.Echo/Plain"), literal=True)
        body = message(encoded)
        while True:
            stream = peer.stream()
            yield frames.headers(stream, block)
            yield frames.data(stream, body, end=True)
            yield from (make(stream) for make in behind)

    return call


def bad_heads(*more: tuple[str, str], **instead: str | None) -> Callable[[Peer], Frames]:
    """Return a flood of requests with a malformed head."""

    def begin(peer: Peer) -> Frames:
        block = peer.block(request_fields("/test.Echo/Plain", *more, **instead), literal=True)
        while True:
            yield frames.headers(peer.stream(), block, end=True)

    return begin


def oversized_lists(peer: Peer) -> Frames:
    """Yield requests with as many fields as a frame can have."""
    block = b"\x00\x01a\x01b" * (64 * 1024 // 5)
    while True:
        yield frames.headers(peer.stream(), block, end=True)


def lying_lengths(peer: Peer) -> Frames:
    fields = request_fields("/test.Echo/Plain", content_length="1")
    block = peer.block(fields, literal=True)
    while True:
        stream = peer.stream()
        yield frames.headers(stream, block)
        yield frames.data(stream, message(PLAIN), end=True)


def single_bytes_of_answers(peer: Peer) -> Frames:
    """Yield windows of one byte for an answer of many."""
    peer.write(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    stream = peer.begin(request_fields("/test.Echo/Count"))
    peer.write(frames.data(stream, message(b"\x18\x64"), end=True))  # queue: 100 answers
    while True:
        yield frames.window_update(stream, 1)


def closed_stream(frame: Callable[[int], bytes]) -> Callable[[Peer], Frames]:
    """Return a flood of what FRAME returns for a stream that the peer has reset."""

    def close(peer: Peer) -> Frames:
        stream = peer.call("/test.Echo/Plain", LATER)
        peer.write(frames.reset(stream))
        while True:
            yield frame(stream)

    return close


PADDING: Final = bytes((255,)) + bytes(255)

FLOODS: Final = {
    "PING": Flood(again(frames.ping())),
    "PING that answers none": Flood(again(frames.ping(ack=True))),
    "SETTINGS": Flood(again(frames.settings())),
    "SETTINGS that says all": Flood(again(frames.settings({1: 4096, 3: 100, 5: 16_384}))),
    "SETTINGS that acknowledges none": Flood(again(frames.frame(Type.SETTINGS, frames.ACK))),
    "SETTINGS that resizes windows": Flood(resized_windows, open=200),
    "PRIORITY": Flood(again(frames.priority(1))),
    "PRIORITY of streams to come": Flood(again(frames.priority(2**31 - 1, depends_on=5))),
    "an unknown type": Flood(again(frames.frame(0xBB, 0xFF, 0, b"what?"))),
    "an unknown type on a stream": Flood(again(frames.frame(0xBB, 0, 1, b"")), open=1),
    "GOAWAY": Flood(again(frames.frame(Type.GOAWAY, payload=bytes(8)))),
    "WINDOW_UPDATE of the connection": Flood(again(frames.window_update(0, 1))),
    "WINDOW_UPDATE of a stream": Flood(again(frames.window_update(1, 1)), open=1),
    "WINDOW_UPDATE of a closed stream": Flood(closed_stream(lambda s: frames.window_update(s, 1))),
    "windows of one byte": Flood(single_bytes_of_answers),
    "empty DATA": Flood(within_a_body(frames.data)),
    "DATA of one byte": Flood(within_a_body(lambda s: frames.data(s, b"x"))),
    "DATA of padding": Flood(within_a_body(lambda s: frames.frame(Type.DATA, PADDED, s, PADDING))),
    "empty CONTINUATION": Flood(within_a_block(b"")),
    "CONTINUATION of one byte": Flood(within_a_block(b"\x82")),
    "full CONTINUATION": Flood(within_a_block(b"\x82" * 16_384)),
    "RST_STREAM of a closed stream": Flood(closed_stream(frames.reset)),
    "rapid resets of fast calls": Flood(calls_with(frames.reset, encoded=PLAIN), most=STALE_FRAMES),
    "rapid resets of calls that wait": Flood(calls_with(frames.reset), most=STALE_FRAMES),
    "reset by an empty window": Flood(calls_with(lambda s: frames.window_update(s, 0))),
    "reset by a window too large": Flood(calls_with(lambda s: frames.window_update(s, 2**31 - 1))),
    "reset by DATA behind the end": Flood(calls_with(lambda s: frames.data(s, b"x"))),
    "reset by HEADERS behind the end": Flood(
        calls_with(lambda s: frames.headers(s, b"\x00\x01a\x01b", end=True))
    ),
    "reset by a stream that depends on itself": Flood(
        calls_with(lambda s: frames.priority(s, depends_on=s))
    ),
    "reset by PRIORITY of a wrong size": Flood(
        calls_with(lambda s: frames.frame(Type.PRIORITY, 0, s, b""))
    ),
    "content-length that lies": Flood(lying_lengths),
    "lists of fields beyond the limit": Flood(oversized_lists, most=10),
    "heads without a method": Flood(bad_heads(method=None)),
    "heads with upper case": Flood(bad_heads(("X-Colour", "red"))),
    "heads of HTTP/1.1": Flood(bad_heads(("connection", "close"))),
    "heads that depend on themselves": Flood(
        lambda peer: (
            frames.frame(Type.HEADERS, frames.PRIORITY | 0x4 | END_STREAM, s, s.to_bytes(4) + b"\0")
            for s in iter(peer.stream, -1)
        )
    ),
}

#: What is wrong once and for all.
MISTAKES: Final = {
    "no preface": (b"GRPC / HTTP/2.0\r\n\r\n", Code.PROTOCOL_ERROR),
    "DATA without a stream": (frames.data(0, b"x"), Code.PROTOCOL_ERROR),
    "DATA on an idle stream": (frames.data(1, b"x"), Code.PROTOCOL_ERROR),
    "HEADERS without a stream": (frames.headers(0, b"\x82"), Code.PROTOCOL_ERROR),
    "HEADERS on a server's stream": (frames.headers(2, b"\x82"), Code.PROTOCOL_ERROR),
    "a block that does not decode": (frames.headers(1, b"\xff\xff\xff"), Code.COMPRESSION_ERROR),
    "CONTINUATION of nothing": (frames.continuation(1, b"\x82"), Code.PROTOCOL_ERROR),
    "PING within a block": (
        frames.headers(1, b"\x82", whole=False) + frames.ping(),
        Code.PROTOCOL_ERROR,
    ),
    "CONTINUATION of another stream": (
        frames.headers(1, b"\x82", whole=False) + frames.continuation(3, b"\x82"),
        Code.PROTOCOL_ERROR,
    ),
    "RST_STREAM of an idle stream": (frames.reset(1), Code.PROTOCOL_ERROR),
    "RST_STREAM of a wrong size": (frames.frame(Type.RST_STREAM, 0, 1), Code.FRAME_SIZE_ERROR),
    "SETTINGS of a wrong size": (frames.frame(Type.SETTINGS, payload=b"x"), Code.FRAME_SIZE_ERROR),
    "SETTINGS of a stream": (frames.frame(Type.SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
    "a window that is impossible": (frames.settings({4: 2**31}), Code.FLOW_CONTROL_ERROR),
    "frames that are impossible": (frames.settings({5: 1}), Code.PROTOCOL_ERROR),
    "PING of a wrong size": (frames.ping(b"7 bytes"), Code.FRAME_SIZE_ERROR),
    "GOAWAY of a wrong size": (frames.frame(Type.GOAWAY, payload=b"x"), Code.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE by nothing": (frames.window_update(0, 0), Code.PROTOCOL_ERROR),
    "WINDOW_UPDATE by too much": (frames.window_update(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE of an idle stream": (frames.window_update(1, 1), Code.PROTOCOL_ERROR),
    "PUSH_PROMISE": (frames.frame(Type.PUSH_PROMISE, 4, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "a frame that is too long": (frames.frame(0xBB, payload=bytes(100_000)), Code.FRAME_SIZE_ERROR),
    "padding that is too long": (
        frames.frame(Type.HEADERS, PADDED | 4, 1, b"\x05abc"),
        Code.PROTOCOL_ERROR,
    ),
}
