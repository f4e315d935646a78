"""`bench send-many`: lists of bodies to our broker on loopback, 128 B, acknowledged in memory, default settings.

Lists of 10,000 new bodies go through `send_many_nowait("topic", bodies)`, four at a time, as an application does that
has its data in lists: no Message is made. Beside it the same with Messages, made anew, and a memcpy of the records.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ...client import AsyncProducer, Receipts
from .measure import MIB, BenchConditions, Figure, memcpy_bytes_per_second
from .servers import TOPIC, batch, cpu_of_both, record_bytes, server_with_topic

BODY_BYTES: Final = 128
AT_ONCE: Final = 10_000
LISTS_IN_FLIGHT: Final = 4
_RECORD_BYTES: Final = record_bytes(BODY_BYTES)

#: Sends AT_ONCE messages.
_SendList = Callable[[AsyncProducer], asyncio.Future[Receipts]]


def send_many(conditions: BenchConditions) -> Figure:
    """Measure sending lists of bodies."""
    figure = Figure(
        name="send-many",
        what=f"{BODY_BYTES} B, lists of {AT_ONCE:,} bodies, {LISTS_IN_FLIGHT} in flight, memory acknowledgement",
    )
    with server_with_topic(conditions.folder) as server:
        address = server.nameserver
        asyncio.run(_send_for(address, _bodies, 0.5))  # Connections, routes, code that runs first.
        with cpu_of_both(figure, server):
            latencies, seconds = asyncio.run(_send_for(address, _bodies, conditions.seconds))
        own, own_seconds = asyncio.run(_send_for(address, _messages, 1.0))
    count = len(latencies) * AT_ONCE
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    assert figure.messages_per_second is not None
    assert figure.client_cpu_seconds is not None
    assert figure.server_cpu_seconds is not None
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "record_bytes": _RECORD_BYTES,
        "client_cpu_us_per_message": figure.client_cpu_seconds / count * 1e6,
        "server_cpu_us_per_message": figure.server_cpu_seconds / count * 1e6,
        "as_messages_per_second": len(own) * AT_ONCE / own_seconds,
    }
    memcpy = memcpy_bytes_per_second(64 * MIB)
    figure.compare("memcpy_bytes_per_second", memcpy, figure.messages_per_second * _RECORD_BYTES)
    figure.aim = (figure.messages_per_second, 500_000, True)
    return figure


def _bodies(producer: AsyncProducer) -> asyncio.Future[Receipts]:
    # New objects each time, as an application has them.
    data = os.urandom(BODY_BYTES) * AT_ONCE
    bodies = [data[at : at + BODY_BYTES] for at in range(0, len(data), BODY_BYTES)]
    return producer.send_many_nowait(TOPIC, bodies)


def _messages(producer: AsyncProducer) -> asyncio.Future[Receipts]:
    return producer.send_many_nowait(batch(AT_ONCE, BODY_BYTES))


async def _send_for(nameserver: str, send: _SendList, seconds: float) -> tuple[list[float], float]:
    """Send for SECONDS; return the latency of each list, and how long it took in all."""
    latencies: list[float] = []
    async with AsyncProducer(nameserver) as producer:
        began = time.perf_counter()
        under_way: deque[tuple[float, asyncio.Future[Receipts]]] = deque()
        while under_way or time.perf_counter() - began < seconds:
            open_for_more = time.perf_counter() - began < seconds
            if len(under_way) == LISTS_IN_FLIGHT or not open_for_more:
                sent, receipts = under_way.popleft()
                assert len(await receipts) == AT_ONCE
                latencies.append(time.perf_counter() - sent)
            if open_for_more:
                under_way.append((time.perf_counter(), send(producer)))
                await asyncio.sleep(0)
        return latencies, time.perf_counter() - began
