"""Calls for two carriers, valid and invalid: each is a good call with some aspects changed.

An aspect changes one thing; whether it is still a good call is its own matter. Generated cases have several harmless
aspects and at most one that is not, so that the order in which carriers look at a request does not show.
"""

from __future__ import annotations

import gzip
import random
import zlib
from base64 import b64encode
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from ..calls import Fields, message, request_fields
from .witness import RUN

#: The largest message that both carriers take.
MESSAGE_BYTES_MAX: Final = 10_000

GOOD: Final = RUN(run_id=7, topic="T", records=b"r" * 100).SerializeToString()


@dataclass(frozen=True)
class Case:
    """A call as it is sent. CHUNK: how many bytes its DATA frames have; CANCEL: it is reset once a handler has it.

    SAYS_LENGTH: how many times it says its content-length.
    """

    method: str = "Plain"
    path: str | None = None
    instead: dict[str, str | None] = field(default_factory=dict)
    more: tuple[tuple[str, str], ...] = ()
    messages: tuple[bytes, ...] = (message(GOOD),)
    chunk: int = 16_384
    cancel: bool = False
    has_body: bool = True
    says_length: int = 0
    trailers: tuple[tuple[str, str], ...] = ()

    def fields(self, number: str) -> Fields:
        """Return the head of the call, which is case NUMBER."""
        path = f"/test.Witness/{self.method}" if self.path is None else self.path
        length = [("content-length", str(len(self.body)))] * self.says_length
        return request_fields(path, ("x-case", number), *length, *self.more, **self.instead)

    @property
    def body(self) -> bytes:
        return b"".join(self.messages)

    @property
    def is_too_late(self) -> bool:
        """Is its time over when it comes?"""
        return self.instead.get("grpc_timeout") in ("0S", "1n")

    @property
    def pieces(self) -> list[bytes]:
        """The body as its DATA frames hold it: a hundred chunks, and the rest in large ones."""
        small = min(100 * self.chunk, len(self.body))
        found = [self.body[at : at + self.chunk] for at in range(0, small, self.chunk)]
        return found + [self.body[at : at + 16_384] for at in range(small, len(self.body), 16_384)]


Aspect = Callable[[Case], Case]


def method(name: str) -> Aspect:
    return lambda case: replace(case, method=name)


def path(value: str) -> Aspect:
    return lambda case: replace(case, path=value)


def said(name: str, value: str | None) -> Aspect:
    return lambda case: replace(case, instead={**case.instead, name: value})


def more(*fields: tuple[str, str]) -> Aspect:
    return lambda case: replace(case, more=(*case.more, *fields))


def body(*messages: bytes) -> Aspect:
    return lambda case: replace(case, messages=messages)


def chunk(size: int) -> Aspect:
    return lambda case: replace(case, chunk=size)


def encoding(name: str) -> Aspect:
    """Say that messages may be compressed so, unless something else is said already."""

    def change(case: Case) -> Case:
        return case if "grpc_encoding" in case.instead else said("grpc_encoding", name)(case)

    return change


def gzipped(case: Case) -> Case:
    if "grpc_encoding" in case.instead:
        return case
    compressed = message(gzip.compress(GOOD), compressed=1)
    return replace(case, messages=(compressed,), instead={**case.instead, "grpc_encoding": "gzip"})


def encoded(name: str | None, *messages: bytes) -> Aspect:
    def change(case: Case) -> Case:
        return replace(case, messages=messages, instead={**case.instead, "grpc_encoding": name})

    return change


def later(timeout: str) -> Aspect:
    """Return a call that is never answered, and so ends with its deadline."""
    return lambda case: replace(
        case, method="Later", instead={**case.instead, "grpc_timeout": timeout}
    )


#: Aspects that leave a call good.
HARMLESS: Final[dict[str, Aspect]] = {
    "coroutine": method("Slow"),
    "failure": method("Fail"),
    "server stream": method("Count"),
    "talk": method("Talk"),
    "content-type with a codec": said("content_type", "application/grpc+proto"),
    "content-type with a parameter": said("content_type", "application/grpc;v=1"),
    "https": said("scheme", "https"),
    "no authority": said("authority", None),
    "timeout of hours": said("grpc_timeout", "1H"),
    "timeout of minutes": said("grpc_timeout", "12M"),
    "timeout of seconds": said("grpc_timeout", "300S"),
    "timeout of milliseconds": said("grpc_timeout", "300000m"),
    "timeout of microseconds": said("grpc_timeout", "99999999u"),
    "timeout of eight digits": said("grpc_timeout", "99999999S"),
    "identity": encoding("identity"),
    "gzip": gzipped,
    "gzip announced, not used": encoding("gzip"),
    "accepted encodings": more(("grpc-accept-encoding", "identity, deflate, gzip")),
    "metadata": more(("x-colour", "red"), ("x-size", "42")),
    "metadata twice": more(("x-colour", "red"), ("x-colour", "blue")),
    "metadata that is empty": more(("x-colour", "")),
    "metadata with punctuation": more(("x-colour", 'a,b;c="d" e\\f%20~{}')),
    "metadata with odd names": more(("x_y.z-1", "v"), ("0", "v")),
    "binary metadata": more(("x-raw-bin", b64encode(bytes(range(256))).decode())),
    "binary metadata without padding": more(("x-raw-bin", "AQI")),
    "long metadata": more(("x-long", "v" * 4_000)),
    "user-agent": more(("user-agent", "grpc-test/1 (x)")),
    "empty message": body(message(b"")),
    "bytes apart": chunk(1),
    "prefix apart": chunk(5),
    "pieces": chunk(37),
    "content-length": lambda case: replace(case, says_length=1),
    "content-length twice": lambda case: replace(case, says_length=2),
}

#: Aspects after which something is wrong, or the call ends otherwise.
OTHER: Final[dict[str, Aspect]] = {
    "unknown method": path("/test.Witness/Dance"),
    "unknown service": path("/test.Nobody/Plain"),
    "path without a method": path("/test.Witness"),
    "path of a slash": path("/"),
    "path without a slash": path("test.Witness/Plain"),
    "path with a query": path("/test.Witness/Plain?x=1"),
    "path in another case": path("/test.witness/plain"),
    "empty path": path(""),
    "no path": said("path", None),
    "GET": said("method", "GET"),
    "PUT": said("method", "PUT"),
    "OPTIONS": said("method", "OPTIONS"),
    "no method": said("method", None),
    "no scheme": said("scheme", None),
    "unknown scheme": said("scheme", "ftp"),
    "no te": said("te", None),
    "another te": said("te", "gzip"),
    "no content-type": said("content_type", None),
    "content-type of JSON": said("content_type", "application/json"),
    "content-type of gRPC-Web": said("content_type", "application/grpc-web"),
    "content-type with a tail": said("content_type", "application/grpcfoo"),
    "content-type in upper case": said("content_type", "APPLICATION/GRPC"),
    "timeout without a unit": said("grpc_timeout", "5"),
    "timeout without a number": said("grpc_timeout", "S"),
    "timeout of nine digits": said("grpc_timeout", "123456789S"),
    "negative timeout": said("grpc_timeout", "-1S"),
    "timeout with a fraction": said("grpc_timeout", "1.5S"),
    "timeout of an unknown unit": said("grpc_timeout", "1x"),
    "timeout with a space": said("grpc_timeout", "1 S"),
    "empty timeout": said("grpc_timeout", ""),
    "timeout of nothing": later("0S"),
    "timeout that is over at once": later("1n"),
    "timeout that passes": later("500m"),
    "unknown encoding": said("grpc_encoding", "snappy"),
    "empty encoding": said("grpc_encoding", ""),
    "deflate": encoded("deflate", message(zlib.compress(GOOD), compressed=1)),
    "gzip that is none": encoded("gzip", message(b"no gzip", compressed=1)),
    "gzip that is cut": encoded("gzip", message(gzip.compress(GOOD)[:-9], compressed=1)),
    "gzip that is too large": encoded("gzip", message(gzip.compress(bytes(99_999)), compressed=1)),
    "compressed without an encoding": encoded(None, message(gzip.compress(GOOD), compressed=1)),
    "compressed as identity": encoded("identity", message(gzip.compress(GOOD), compressed=1)),
    "unknown flag": body(message(GOOD, compressed=2)),
    "no message": body(),
    "no body": lambda case: replace(case, has_body=False),
    "two messages": body(message(GOOD), message(GOOD)),
    "half a prefix": body(message(GOOD)[:3]),
    "half a message": body(message(GOOD)[:-1]),
    "a message and half of one": body(message(GOOD), message(GOOD)[:-1]),
    "garbage": body(message(b"\xff\xff\xff\xff")),
    "text that is no UTF-8": body(message(b"\x12\x02\xff\xfe")),
    "as large as is taken": body(message(RUN(records=bytes(9_996)).SerializeToString())),
    "larger than is taken": body(message(RUN(records=bytes(9_999)).SerializeToString())),
    "much larger than is taken": body(message(bytes(60_000))),
    "length that lies": body(message(GOOD, length=2**32 - 1)),
    "content-length too small": more(("content-length", "3")),
    "content-length too large": more(("content-length", "300")),
    "content-length that is none": more(("content-length", "x")),
    "trailers of the caller": lambda case: replace(case, trailers=(("x-late", "1"),)),
    "pseudo-field among trailers": lambda case: replace(case, trailers=((":path", "/"),)),
    "upper case": more(("X-Colour", "red")),
    "metadata beyond ASCII": more(("x-colour", "r\u00f6t")),
    "control characters": more(("x-colour", "a\x01b")),
    "line break": more(("x-colour", "a\r\nb")),
    "white space around": more(("x-colour", " red ")),
    "empty name": more(("", "red")),
    "connection": more(("connection", "keep-alive")),
    "unknown pseudo-field": more((":colour", "red")),
    "binary metadata that is none": more(("x-raw-bin", "!!!")),
    "reserved metadata": more(("grpc-colour", "red")),
    "too much metadata": more(*((f"x-{n}", "v" * 100) for n in range(300))),
    "host": more(("host", "example.org")),
    "cancelled call": lambda case: replace(case, method="Later", cancel=True),
    "cancelled talk": lambda case: replace(case, method="Talk", cancel=True),
}


def generated(seed: int, without: Container[str]) -> list[str]:
    """Return the names of some aspects drawn from SEED, at most one of which is not harmless; none is in WITHOUT."""
    chooser = random.Random(seed)
    harmless = sorted(name for name in HARMLESS if name not in without)
    names = chooser.sample(harmless, chooser.randint(1, 4))
    if chooser.random() < 0.5:
        names.append(chooser.choice(sorted(name for name in OTHER if name not in without)))
    return names


def made(names: Iterable[str]) -> Case:
    """Return a good call with the aspects of NAMES."""
    case = Case()
    for name in names:
        case = (HARMLESS.get(name) or OTHER[name])(case)
    return case
