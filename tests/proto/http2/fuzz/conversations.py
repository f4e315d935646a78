"""What a client says in whole conversations, as frames: unary calls, streams, and what surrounds them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Final

import hpack

from .. import frames
from ..calls import message, request_fields
from ..differential.cases import GOOD
from ..frames import ACK, PREFACE, Setting, Type

Frames = list[bytes]


class Client:
    """Writes frames as a client does whose blocks refer to what earlier ones said."""

    def __init__(self, settings: dict[int, int] | None = None) -> None:
        self.frames: Frames = [PREFACE, frames.settings(settings)]
        self._encoder = hpack.Encoder()
        self._next = 1

    def begin(
        self, method: str, *more: tuple[str, str], end: bool = False, pieces: int = 1, **say: str
    ) -> int:
        """Write the head of a call in so many PIECES and return its stream."""
        stream, self._next = self._next, self._next + 2
        fields = request_fields(f"/test.Witness/{method}", ("x-case", str(stream)), *more, **say)
        block = self._encoder.encode(fields)
        size = -(-len(block) // pieces)
        parts = [block[at : at + size] for at in range(0, len(block), size)]
        self.frames.append(frames.headers(stream, parts[0], end=end, whole=len(parts) == 1))
        for part in parts[1:]:
            self.frames.append(frames.continuation(stream, part, whole=part is parts[-1]))
        return stream

    def say(self, *written: bytes) -> None:
        """Write frames."""
        self.frames.extend(written)

    def call(self, method: str, *more: tuple[str, str], pieces: int = 1) -> int:
        """Write a whole call."""
        stream = self.begin(method, *more, pieces=pieces)
        self.say(frames.data(stream, message(GOOD), end=True))
        return stream


def unary() -> Frames:
    client = Client()
    for method in ("Plain", "Fail", "Dance", "Later", "Slow"):
        client.call(method, ("x-colour", "red"), ("grpc-timeout", "500m"))
    client.say(frames.frame(Type.SETTINGS, ACK), frames.ping(), frames.window_update(0, 1_000))
    stream = client.begin("Plain", grpc_encoding="gzip", pieces=3)
    packed = message(gzip.compress(GOOD), compressed=1)
    client.say(*(frames.data(stream, packed[at : at + 20]) for at in range(0, len(packed), 20)))
    client.say(frames.data(stream, end=True), frames.priority(stream))
    client.say(frames.reset(client.call("Later")))
    client.say(frames.reset(client.call("Slow")))
    stream = client.begin("Plain")
    client.say(frames.data(stream, message(GOOD)))
    client.say(frames.headers(stream, b"\x00\x06x-late\x01y", end=True))
    client.call("Plain", ("x-colour", "red"))
    return client.frames


def streams() -> Frames:
    client = Client()
    talks = [client.begin("Talk", ("x-colour", "red"), ("x-turn", str(n))) for n in range(3)]
    for _ in range(3):
        for talk in talks:
            client.say(frames.data(talk, message(GOOD)[:40]), frames.data(talk, message(GOOD)[40:]))
    client.say(frames.data(talks[0], message(GOOD) * 5, end=True))
    client.call("Count")
    client.say(frames.window_update(talks[1], 5_000), frames.reset(talks[1]))
    client.say(
        frames.frame(Type.DATA, frames.PADDED | 1, talks[2], b"\x03" + message(GOOD) + bytes(3))
    )
    client.call("Count", ("grpc-timeout", "1S"), pieces=2)
    client.begin("Talk", end=True)
    return client.frames


def narrow_windows() -> Frames:
    client = Client({Setting.INITIAL_WINDOW_SIZE: 3, Setting.MAX_FRAME_SIZE: 16_384})
    streams = [client.call(method) for method in ("Plain", "Count", "Count", "Plain")]
    for _ in range(3):
        for stream in streams:
            client.say(frames.window_update(stream, 2))
    client.say(frames.settings({Setting.INITIAL_WINDOW_SIZE: 1, Setting.HEADER_TABLE_SIZE: 100}))
    client.say(frames.settings({Setting.INITIAL_WINDOW_SIZE: 50}))
    client.say(frames.reset(streams[1]), frames.window_update(streams[2], 1_000))
    talk = client.begin("Talk")
    client.say(frames.data(talk, message(GOOD) * 20), frames.data(talk, end=True))
    client.say(frames.frame(Type.GOAWAY, payload=bytes(8)))
    return client.frames


CONVERSATIONS: Final[dict[str, Callable[[], Frames]]] = {
    "unary": unary,
    "streams": streams,
    "narrow windows": narrow_windows,
}
