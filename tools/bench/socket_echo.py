"""The baseline of ordinary calls: the same bytes over a bare socket on loopback.

    python -m pocketmq.tools.bench.socket_echo   serves on a free port, printed, until its input ends

It is what two processes of this machine pay for these bytes, and for nothing else. A request begins with its own size
and that of its reply, four bytes each, big-endian; a reply is zeros. Nothing is parsed but these sizes, and neither
side has an event loop: one thread reads, and replies to all that it has read at once.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ..server_process import cpu_seconds
from .measure import own_cpu_seconds

_SIZES: Final = struct.Struct(">II")
_READ_BYTES: Final = 1 << 18


class Echoed(NamedTuple):
    """Seconds of processor time that a request cost the two sides together, and how long each was waited for."""

    cpu_s: float
    latencies: Sequence[float]


def echo(*, request_bytes: int, reply_bytes: int, in_flight: int, seconds: float) -> Echoed:
    """Have IN_FLIGHT requests under way for SECONDS, as many sent at once as were answered at once."""
    command = [sys.executable, "-m", "pocketmq.tools.bench.socket_echo"]
    request = _SIZES.pack(request_bytes, reply_bytes).ljust(request_bytes, b"\0")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _ask(connection, request, reply_bytes, in_flight, seconds / 4)  # What runs first.
                before = own_cpu_seconds() + cpu_seconds(server.pid)
                latencies = _ask(connection, request, reply_bytes, in_flight, seconds)
                used = own_cpu_seconds() + cpu_seconds(server.pid) - before
        finally:
            server.stdin.close()
    return Echoed(used / len(latencies), latencies)


def _ask(
    connection: socket.socket, request: bytes, reply_bytes: int, in_flight: int, seconds: float
) -> list[float]:
    """Ask for SECONDS; return how long each answer took, from when its request was sent."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    sent, came, free = [time.perf_counter()] * in_flight, 0, in_flight
    while len(latencies) < len(sent):
        if free:
            connection.sendall(request * free)
        came += len(connection.recv(_READ_BYTES))
        free, came = divmod(came, reply_bytes)
        now = time.perf_counter()
        first = len(latencies)
        latencies += [now - sent[index] for index in range(first, first + free)]
        if now >= end:
            free = 0
        sent += [now] * free
    return latencies


def _serve_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        sys.stdin.read()


def _accept(listener: socket.socket) -> None:
    with suppress(
        OSError
    ):  # The port closes at the end, and who asks may go with an answer on its way.
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _answer(connection)


def _answer(connection: socket.socket) -> None:
    unread = b""
    while data := connection.recv(_READ_BYTES):
        unread += data
        at = answer_bytes = 0
        while len(unread) - at >= _SIZES.size:
            request_bytes, reply_bytes = _SIZES.unpack_from(unread, at)
            if len(unread) - at < request_bytes:
                break
            at += request_bytes
            answer_bytes += reply_bytes
        unread = unread[at:]
        if answer_bytes:
            connection.sendall(bytes(answer_bytes))


if __name__ == "__main__":
    _serve_socket()
