"""Mutations of a conversation, drawn from a seed: of its bytes, of its frames, and of how it is cut into reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

_EDGES: Final = (0, 1, 2, 4, 5, 0x7F, 0x80, 0xFF)


def mutated(frames: list[bytes], chooser: random.Random) -> bytes:
    """Return the bytes of FRAMES with up to five mutations; the first of them is spared as a rule."""
    changed = list(frames)
    for _ in range(chooser.randint(0, 3)):
        _change_frames(changed, chooser)
    data = bytearray(b"".join(changed))
    for _ in range(chooser.choice((0, 0, 1, 1, 2))):
        _change_bytes(data, chooser)
    return bytes(data)


def reads(data: bytes, chooser: random.Random) -> Iterator[bytes]:
    """Yield DATA as reads of a socket might bring it."""
    most = chooser.choice((1, 9, 100, 1_000, len(data) + 1))
    at = 0
    while at < len(data):
        size = chooser.randint(1, most)
        yield data[at : at + size]
        at += size


def _change_frames(frames: list[bytes], chooser: random.Random) -> None:
    at = chooser.randrange(1, len(frames))
    match chooser.randrange(6):
        case 0 if len(frames) > 2:
            del frames[at]
        case 1:
            frames.insert(at, chooser.choice(frames))
        case 2:
            other = chooser.randrange(1, len(frames))
            frames[at], frames[other] = frames[other], frames[at]
        case 3:
            frames[at] = frames[at] * chooser.randint(2, 50)
        case 4:
            head = bytearray(frames[at])
            if len(head) >= 9:  # Its type, its flags or its stream.
                head[chooser.choice((3, 4, 4, 8))] = chooser.choice(_EDGES)
            frames[at] = bytes(head)
        case _:
            frames[at] = _with_payload(frames[at], chooser)


def _with_payload(frame: bytes, chooser: random.Random) -> bytes:
    """Return FRAME with a payload that is damaged, and a length that fits it."""
    payload = bytearray(frame[9:])
    _change_bytes(payload, chooser)
    return len(payload).to_bytes(3, "big") + frame[3:9] + bytes(payload)


def _change_bytes(data: bytearray, chooser: random.Random) -> None:
    at = chooser.randrange(len(data) + 1)
    match chooser.randrange(5):
        case 0 if at < len(data):
            data[at] ^= 1 << chooser.randrange(8)
        case 1 if at < len(data):
            data[at] = chooser.choice(_EDGES)
        case 2:
            del data[at : at + chooser.randint(1, 16)]
        case 3:
            data[at:at] = data[at : at + 16]
        case _:
            data[at:at] = chooser.randbytes(chooser.randint(1, 8))
