"""The yardsticks for what travels: the same bytes over a bare gRPC stream, and over a bare socket, both on loopback.

    python -m pocketmq.tools.bench.yardsticks grpc | socket   serves on a free port, printed, until its input ends

The gRPC server is `grpc.aio` in a process of its own, as a broker is. A request begins with four bytes that say how
long the answer is to be, so that one echo stands for a run and its short acknowledgement, and one for a short question
and the records that answer it. Neither side parses anything: the messages are raw bytes.

The socket's is what two processes of this machine pay for the same bytes, and for nothing else. A request begins with
its own size and that of its answer, four bytes each, big-endian; an answer is zeros. Nothing is parsed but these sizes,
and neither side has an event loop: one thread reads, and answers all that it has read at once.
"""

from __future__ import annotations

import asyncio
import collections
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ..server_process import cpu_seconds
from .measure import own_cpu_seconds

_SERVICE: Final = "pocketmq.bench.Echo"
_METHOD: Final = "Echo"
_REPLY_SIZE: Final = struct.Struct(">I")
_NO_LIMIT: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def echo_per_second(
    *, request_bytes: int, reply_bytes: int, in_flight: int, seconds: float = 1.0
) -> float:
    """Return how many requests a second one stream carries, with IN_FLIGHT unanswered ones."""
    command = [sys.executable, "-m", "pocketmq.tools.bench.yardsticks", "grpc"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = int(server.stdout.readline())
        request = _REPLY_SIZE.pack(reply_bytes).ljust(request_bytes, b"\0")
        try:
            return asyncio.run(_measure(port, request, in_flight, seconds))
        finally:
            server.stdin.close()


async def _measure(port: int, request: bytes, in_flight: int, seconds: float) -> float:
    import grpc.aio

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_NO_LIMIT) as channel:
        call: Any = channel.stream_stream  # Its stubs want serialisers; bytes need none.
        stream = call(f"/{_SERVICE}/{_METHOD}")()
        for _ in range(in_flight):
            await stream.write(request)
        began = time.perf_counter()
        answered = 0
        while time.perf_counter() - began < seconds:
            await stream.read()
            answered += 1
            await stream.write(request)
        took = time.perf_counter() - began
        stream.cancel()
        return answered / took


async def _serve_grpc() -> None:
    import grpc.aio

    handlers = {_METHOD: grpc.stream_stream_rpc_method_handler(_echoed)}
    server = grpc.aio.server(options=_NO_LIMIT)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


async def _echoed(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    """Answer each of REQUESTS with as many zeros as it asks for."""
    answers: collections.defaultdict[int, bytes] = collections.defaultdict(bytes)
    async for request in requests:
        (size,) = _REPLY_SIZE.unpack_from(request)
        if size not in answers:
            answers[size] = bytes(size)
        yield answers[size]


# ---------------------------------------------------------------- the bare loopback echo


_SIZES: Final = struct.Struct(">II")
_READ_BYTES: Final = 1 << 18


class Echoed(NamedTuple):
    """Seconds of processor time that a request cost the two sides together, and how long each was waited for."""

    cpu_s: float
    latencies: Sequence[float]


def echo(*, request_bytes: int, reply_bytes: int, in_flight: int, seconds: float) -> Echoed:
    """Have IN_FLIGHT requests under way for SECONDS, as many sent at once as were answered at once."""
    command = [sys.executable, "-m", "pocketmq.tools.bench.yardsticks", "socket"]
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
    if sys.argv[1:] == ["grpc"]:
        asyncio.run(_serve_grpc())
    else:
        _serve_socket()
