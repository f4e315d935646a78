"""The yardstick for everything that travels: a bare gRPC stream that carries the same bytes and does nothing with them.

    python -m pocketmq.tools.bench.echo       serves on a free port, printed, until standard input ends

The server is `grpc.aio` in a process of its own, as a broker is. A request begins with four bytes that say how long the
answer is to be, so that one echo stands for a run and its short acknowledgement, and one for a short question and the
records that answer it. Neither side parses anything: the messages are raw bytes.
"""

from __future__ import annotations

import asyncio
import collections
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio

_PATH: Final = "/pocketmq.bench.Echo/Echo"
_SIZE: Final = struct.Struct(">I")
_NO_LIMIT: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def echo_per_second(
    *, request_bytes: int, reply_bytes: int, in_flight: int, seconds: float = 1.0
) -> float:
    """Return how many requests a second one stream carries, with IN_FLIGHT unanswered ones."""
    command = [sys.executable, "-m", "pocketmq.tools.bench.echo"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = int(server.stdout.readline())
        request = _SIZE.pack(reply_bytes).ljust(request_bytes, b"\0")
        try:
            return asyncio.run(_measure(port, request, in_flight, seconds))
        finally:
            server.stdin.close()


async def _measure(port: int, request: bytes, in_flight: int, seconds: float) -> float:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_NO_LIMIT) as channel:
        call: Any = channel.stream_stream  # Its stubs want serialisers; bytes need none.
        stream = call(_PATH)()
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


class _Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stubs only
    """Answers each request with as many zeros as it asks for."""

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != _PATH:
            return None
        return grpc.stream_stream_rpc_method_handler(self._echo)

    async def _echo(self, requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        answers: collections.defaultdict[int, bytes] = collections.defaultdict(bytes)
        async for request in requests:
            (size,) = _SIZE.unpack_from(request)
            if size not in answers:
                answers[size] = bytes(size)
            yield answers[size]


async def _serve() -> None:
    server = grpc.aio.server(options=_NO_LIMIT)
    server.add_generic_rpc_handlers((_Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_serve())
