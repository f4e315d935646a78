"""The baseline of transfers: the same bytes over a bare gRPC stream on loopback.

    python -m pocketmq.tools.bench.grpc_echo   serves on a free port, printed, until its input ends

The server is `grpc.aio` in a process of its own, as a broker is. A request begins with four bytes with the length of
the reply, so one echo represents a batch and its short acknowledgement, or a short fetch and its records. Neither side
parses anything: the messages are raw bytes.
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

_SERVICE: Final = "pocketmq.bench.Echo"
_METHOD: Final = "Echo"
_REPLY_SIZE: Final = struct.Struct(">I")
_NO_LIMIT: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def echo_per_second(
    *, request_bytes: int, reply_bytes: int, in_flight: int, seconds: float = 1.0
) -> float:
    """Return how many requests per second one stream carries, with IN_FLIGHT unanswered ones."""
    command = [sys.executable, "-m", "pocketmq.tools.bench.grpc_echo"]
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


if __name__ == "__main__":
    asyncio.run(_serve_grpc())
