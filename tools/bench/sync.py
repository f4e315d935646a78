"""`bench sync`: messages acknowledged on the device, 64 single sends in flight.

Each of 64 coroutines sends one message of 128 B, waits until it is on the device, and sends the next: the broker forces
whole groups at once. The yardsticks are 4 KiB written and forced one after the other, and a bare gRPC stream with 64
small requests in flight.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from ...client import AsyncProducer
from .echo import echo_per_second
from .measure import BenchConditions, Figure, synced_writes_per_second
from .servers import batch, cpu_of_both, server_with_topic

BODY_BYTES: Final = 128
IN_FLIGHT: Final = 64


def sync(conditions: BenchConditions) -> Figure:
    """Measure sending with synchronous flush."""
    figure = Figure(
        name="sync",
        what=f"{BODY_BYTES} B bodies, {IN_FLIGHT} single sends in flight, each acknowledged on the device",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(_send_for(server.nameserver, 0.5))
        with cpu_of_both(figure, server):
            latencies, seconds = asyncio.run(_send_for(server.nameserver, conditions.seconds))
    figure.add_rate(len(latencies), len(latencies) * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    figure.facts = {"messages": len(latencies), "body_bytes": BODY_BYTES}
    assert figure.messages_per_second is not None
    synced = synced_writes_per_second(conditions.folder)
    figure.compare("synced_4_kib_writes_per_second", synced, figure.messages_per_second)
    echo = echo_per_second(request_bytes=BODY_BYTES + 200, reply_bytes=40, in_flight=IN_FLIGHT)
    figure.compare("grpc_echo_per_second", echo, figure.messages_per_second)
    figure.aim = (figure.messages_per_second, 20_000, True)
    return figure


async def _send_for(nameserver: str, seconds: float) -> tuple[list[float], float]:
    """Send for SECONDS; return the latencies, and how long it took in all."""
    latencies: list[float] = []
    (message,) = batch(1, BODY_BYTES)

    async def send_on() -> None:
        while (sent := time.perf_counter()) < end:
            await producer.send(message)
            latencies.append(time.perf_counter() - sent)

    async with AsyncProducer(nameserver, acks="disk") as producer:
        began = time.perf_counter()
        end = began + seconds
        async with asyncio.TaskGroup() as senders:
            for _ in range(IN_FLIGHT):
                senders.create_task(send_on())
        return latencies, time.perf_counter() - began
