"""gRPC as bytes, for tests: the fields of a request, the prefix of a message, an answer put together."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

Fields = list[tuple[str, str]]

#: What every well-formed request says besides its path.
_COMMON: Final = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


def request_fields(path: str, /, *more: tuple[str, str], **instead: str | None) -> Fields:
    """Return the fields of a well-formed request for PATH and MORE.

    INSTEAD replaces values by name ("_" stands for "-"; `method`, `scheme` and `authority` are the pseudo fields);
    None leaves the field out.
    """
    fields: dict[str, str | None] = {":path": path, **dict(_COMMON)}
    for name, value in instead.items():
        pseudo = f":{name}"
        fields[pseudo if pseudo in fields else name.replace("_", "-")] = value
    found = [(name, value) for name, value in fields.items() if value is not None]
    found.sort(key=lambda item: not item[0].startswith(":"))
    return [*found, *more]


def message(encoded: bytes, *, compressed: int = 0, length: int | None = None) -> bytes:
    """Return ENCODED behind its prefix, which may lie about the LENGTH."""
    return struct.pack(">BI", compressed, len(encoded) if length is None else length) + encoded


def messages(body: bytes) -> list[bytes]:
    """Return what the messages of BODY hold; raise ValueError where it ends within one."""
    found = []
    at = 0
    while at < len(body):
        compressed, size = struct.unpack_from(">BI", body, at)
        if compressed or at + 5 + size > len(body):
            raise ValueError(f"a message of {size} bytes at {at} of {len(body)}")
        found.append(body[at + 5 : at + 5 + size])
        at += 5 + size
    return found


@dataclass
class Answer:
    """What came on one stream. RESET: the code of a RST_STREAM; LOST: the connection ended first."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    reset: int | None = None
    lost: bool = False
    ended: bool = False

    @property
    def http_status(self) -> str | None:
        return self.headers.get(":status")

    @property
    def status(self) -> str | None:
        """The gRPC status, wherever it stood."""
        return self.trailers.get("grpc-status", self.headers.get("grpc-status"))

    @property
    def status_text(self) -> str:
        return self.trailers.get("grpc-message", self.headers.get("grpc-message", ""))

    @property
    def messages(self) -> list[bytes]:
        return messages(self.body)
