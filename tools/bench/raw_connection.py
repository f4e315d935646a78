"""Calls as an official client sends them, over a bare socket: HTTP/2 frames that are built in advance."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

from google.protobuf.message import Message

from ...proto.errors import PocketMQError
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    FrameReader,
    frame,
    settings,
    window_update,
)
from ...proto.rpc.hpack import FieldEncoder
from ...proto.rpc.messages import PREFIX_BYTES, with_prefix

_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_WINDOW: Final = 1 << 24
_READ_BYTES: Final = 256 * 1024
_TIMEOUT_S: Final = 120.0


class RawConnection:
    """One connection to the broker at ADDRESS. Answers must be good; a reply is decoded by its type."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._encoder = FieldEncoder()
        self._reader = FrameReader(_WINDOW)
        self._reader.greet()
        self._stream_id = -1
        self._unread = 0
        self._socket.sendall(PREFACE + settings({}) + window_update(0, _WINDOW))

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def calls(self, method: str, requests: Sequence[Message], *, time_s: int) -> Iterator[bytes]:
        """Yield calls of METHOD with REQUESTS as they travel, with TIME_S to be answered in.

        Each is to be sent before the next is asked for: its fields refer to earlier ones.
        """
        for request in requests:
            self._stream_id += 2
            block = self._encoder.encode(
                _fields(method, time_s * 1_000_000 - self._stream_id % 9_999)
            )
            body = with_prefix(request.SerializeToString())
            yield (
                frame(HEADERS, END_HEADERS, self._stream_id, block)
                + frame(DATA, END_STREAM, self._stream_id, body)
            )

    def send(self, calls: bytes) -> None:
        """Send CALLS."""
        self._socket.sendall(calls)

    def receive(self, reply: Any) -> int:
        """Read what is there, replies of type REPLY; return how many calls it ends. Raises PocketMQError."""
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise PocketMQError("the server closed the connection")
        ended = 0
        for kind, flags, _, payload in self._reader.read(data):
            if kind == DATA and payload:
                self._check(reply.FromString(payload[PREFIX_BYTES:]), len(payload))
            elif kind == HEADERS and flags & END_STREAM:
                ended += 1
            elif kind in (SETTINGS, PING) and not flags & ACK:
                self._socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            elif kind in (GOAWAY, RST_STREAM):
                raise PocketMQError(f"the server broke off: frame {kind}, {payload!r}")
        return ended

    def _check(self, reply: Any, size: int) -> None:
        if reply.status.code != v2.OK:
            raise PocketMQError(f"answered with {reply.status.code}: {reply.status.message}")
        self._unread += size
        if self._unread * 2 > _WINDOW:
            self._socket.sendall(window_update(0, self._unread))
            self._unread = 0


def _fields(method: str, time_us: int) -> list[tuple[str, str]]:
    """Return what an official client says with each call; request id and time differ from call to call."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", _SERVICE + method),
        (":authority", "127.0.0.1:8081"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "grpc-java-netty/1.53.0"),
        ("grpc-accept-encoding", "gzip"),
        ("grpc-timeout", f"{time_us}u"),
        ("x-mq-language", "JAVA"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.0.7"),
        ("x-mq-date-time", "20250101T000000Z"),
        ("x-mq-request-id", str(uuid4())),
        ("x-mq-client-id", "bench@1@0@bench"),
        ("x-mq-namespace", ""),
    ]
