"""`bench produce`: our client to our broker on loopback, 128 B bodies, acknowledged in memory.

Batches of 1,000 new messages go through `send_many_nowait`, some at a time; a latency is that of a whole batch, from
the call to the last acknowledgement. Besides, single messages: as many as 1,000 `send`s wait at once, and one after the
other. The yardstick carries the same requests and answers over a bare gRPC stream.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from typing import Final

from ...client import AsyncProducer, Receipts
from .echo import echo_per_second
from .measure import MIB, BenchConditions, Figure, memcpy_bytes_per_second
from .servers import batch, cpu_of_both, record_bytes, server_with_topic

BODY_BYTES: Final = 128
BATCH: Final = 1_000
IN_FLIGHT: Final = 16
SINGLES_IN_FLIGHT: Final = 1_000
SINGLES_S: Final = 1.0
_REPLY_BYTES: Final = 40
_RECORD_BYTES: Final = record_bytes(BODY_BYTES)


def produce(conditions: BenchConditions) -> Figure:
    """Measure sending."""
    figure = Figure(
        name="produce",
        what=f"{BODY_BYTES} B bodies, batches of {BATCH}, {IN_FLIGHT} batches in flight, memory acknowledgement",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(_send_for(server.nameserver, 0.5))  # Connections, routes, code that runs first.
        with cpu_of_both(figure, server):
            latencies, seconds = asyncio.run(_send_for(server.nameserver, conditions.seconds))
        many, _ = asyncio.run(_send_singles(server.nameserver, SINGLES_IN_FLIGHT))
        one, one_seconds = asyncio.run(_send_singles(server.nameserver, 1))
    count = len(latencies) * BATCH
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "record_bytes": _RECORD_BYTES,
        "single_sends_per_second": many,
        "one_after_the_other_per_second": one,
        "one_after_the_other_p50_ms": one_seconds * 1000,
    }
    _compare(figure)
    return figure


def _compare(figure: Figure) -> None:
    assert figure.messages_per_second is not None
    run_bytes = _RECORD_BYTES * BATCH
    record_rate = figure.messages_per_second * _RECORD_BYTES
    memcpy = memcpy_bytes_per_second(64 * MIB)
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


async def _send_singles(nameserver: str, in_flight: int) -> tuple[float, float]:
    """Send single messages for SINGLES_S; return how many a second, and the median latency in seconds."""
    latencies: list[float] = []
    (message,) = batch(1, BODY_BYTES)

    async def send_on() -> None:
        while (sent := time.perf_counter()) < end:
            await producer.send(message)
            latencies.append(time.perf_counter() - sent)

    async with AsyncProducer(nameserver) as producer:
        await producer.send(message)
        began = time.perf_counter()
        end = began + SINGLES_S
        async with asyncio.TaskGroup() as senders:
            for _ in range(in_flight):
                senders.create_task(send_on())
        took = time.perf_counter() - began
    return len(latencies) / took, statistics.median(latencies)
