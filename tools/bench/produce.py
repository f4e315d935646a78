"""`bench produce`: our client to our broker on loopback, 128 B bodies, acknowledged in memory.

Batches of 1,000 new messages go through `send_many_nowait`, some at a time; a latency is that of a whole batch, from
the call to the last acknowledgement. The yardstick carries the same requests and answers over a bare gRPC stream.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

from ...client import AsyncProducer, Receipts
from .echo import echo_per_second
from .measure import Conditions, Figure, memcpy_bytes_per_second
from .servers import batch, cpu_of_both, server_with_topic

BODY_BYTES: Final = 128
BATCH: Final = 1_000
IN_FLIGHT: Final = 16
_REPLY_BYTES: Final = 40
_RECORD_BYTES: Final = BODY_BYTES + 91 + len("bench") + 45  # fixed fields, topic, UNIQ_KEY


def produce(conditions: Conditions) -> Figure:
    """Measure sending."""
    figure = Figure(
        name="produce",
        what=f"{BODY_BYTES} B bodies, batches of {BATCH}, {IN_FLIGHT} batches in flight, memory acknowledgement",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(_send_for(server.nameserver, 0.5))  # Connections, routes, code that runs first.
        with cpu_of_both(figure, server):
            latencies, seconds = asyncio.run(_send_for(server.nameserver, conditions.seconds))
    count = len(latencies) * BATCH
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    figure.facts = {"messages": count, "body_bytes": BODY_BYTES, "record_bytes": _RECORD_BYTES}
    _compare(figure)
    return figure


def _compare(figure: Figure) -> None:
    assert figure.messages_per_second is not None
    run_bytes = _RECORD_BYTES * BATCH
    record_rate = figure.messages_per_second * _RECORD_BYTES
    memcpy = memcpy_bytes_per_second(run_bytes * 64)
    figure.compare("memcpy_bytes_per_second", memcpy, record_rate)
    echo = echo_per_second(request_bytes=run_bytes, reply_bytes=_REPLY_BYTES, in_flight=IN_FLIGHT)
    figure.compare("grpc_echo_messages_per_second", echo * BATCH, figure.messages_per_second)
    figure.aim = (figure.messages_per_second, 200_000, True)


async def _send_for(nameserver: str, seconds: float) -> tuple[list[float], float]:
    """Send for SECONDS; return the latency of each batch, and how long it took in all."""
    latencies: list[float] = []
    async with AsyncProducer(nameserver) as producer:
        began = time.perf_counter()
        under_way: deque[tuple[float, asyncio.Future[Receipts]]] = deque()
        while time.perf_counter() - began < seconds:
            if len(under_way) == IN_FLIGHT:
                latencies.append(await _acknowledged(*under_way.popleft()))
            messages = batch(BATCH, BODY_BYTES)
            under_way.append((time.perf_counter(), producer.send_many_nowait(messages)))
            await asyncio.sleep(0)
        while under_way:
            latencies.append(await _acknowledged(*under_way.popleft()))
        return latencies, time.perf_counter() - began


async def _acknowledged(sent: float, receipts: asyncio.Future[Receipts]) -> float:
    assert len(await receipts) == BATCH
    return time.perf_counter() - sent
