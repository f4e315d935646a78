"""Frames between RocketMQ 5.5.0 and its Java clients 4.9.8 and 5.5.0, and `mqadmin`, as a relay recorded them.

A recording has the fields of each frame, without its `opaque`, and the word with the length of its header. Bodies are
cut off after some 1,500 bytes; bytes that are no UTF-8 are written as backslash escapes.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[2] / "fixtures" / "remoting"
NAMES: Final = ("frames49", "frames55", "framesadm")


@dataclass(frozen=True, kw_only=True)
class RecordedFrame:
    """One frame. IS_REQUEST: it was sent to a server. HEADER_SIZE: the length of its header."""

    recording: str
    server: str
    is_request: bool
    code: int
    request_code: int
    flag: int
    version: int
    remark: str | None
    fields: dict[str, str] | None = field(hash=False)
    keys: tuple[str, ...]
    body: bytes
    body_size: int
    header_size: int

    @property
    def is_whole(self) -> bool:
        """Is the body complete, and as it was sent?"""
        return len(self.body) == self.body_size


@cache
def frames() -> tuple[RecordedFrame, ...]:
    """Return all recorded frames, in order."""
    return tuple(frame for name in NAMES for frame in _read(name))


def _read(name: str) -> list[RecordedFrame]:
    text = lzma.decompress((FOLDER / f"{name}.jsonl.xz").read_bytes()).decode()
    return [_frame(name, json.loads(line)) for line in text.splitlines()]


def _frame(name: str, said: dict[str, object]) -> RecordedFrame:
    row: dict[str, object] = said
    fields = row["ext"]
    assert fields is None or isinstance(fields, dict)
    keys = row["raw"]
    assert isinstance(keys, list)
    return RecordedFrame(
        recording=name,
        server=str(row["who"]),
        is_request=row["way"] == "in",
        code=int(str(row["code"])),
        request_code=int(str(row["req"])),
        flag=int(str(row["flag"])),
        version=int(str(row["version"])),
        remark=None if row["remark"] is None else str(row["remark"]),
        fields=fields,
        keys=tuple(keys),
        body=str(row["body"]).encode(),
        body_size=int(str(row["bodylen"])),
        header_size=int(str(row["hex"]), 16) & 0xFFFFFF,
    )
