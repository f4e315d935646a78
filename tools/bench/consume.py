"""`bench consume`: from a queue that nobody has read to decoded messages, 128 B bodies.

The topic is filled first; then a consumer that starts with the oldest message polls until it has had all, and reads
body, properties and queue offset of each. A latency is that of one poll. `body_only_messages_per_second` leaves the
properties alone, which the client decodes only when they are asked for. The yardstick is a bare gRPC stream whose
answers are as long as a fetch's.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from ...client import AsyncProducer, AsyncPullConsumer
from .echo import echo_per_second
from .measure import MIB, BenchConditions, Figure, memcpy_bytes_per_second
from .servers import TOPIC, batch, cpu_of_both, record_bytes, server_with_topic

BODY_BYTES: Final = 128
RATE_EXPECTED: Final = 300_000
_BATCH: Final = 4_000
_RECORD_BYTES: Final = record_bytes(BODY_BYTES)


def consume(conditions: BenchConditions) -> Figure:
    """Measure reading."""
    batches = max(1, round(RATE_EXPECTED * conditions.seconds / _BATCH))
    count = batches * _BATCH
    figure = Figure(
        name="consume",
        what=f"{BODY_BYTES} B bodies, a cold queue, one consumer, body, properties and offset read",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(fill(server.nameserver, batches, BODY_BYTES))
        with cpu_of_both(figure, server):
            latencies, seconds = asyncio.run(_read(server.nameserver, count, properties=True))
        _, body_seconds = asyncio.run(_read(server.nameserver, count, properties=False))
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "record_bytes": _RECORD_BYTES,
        "body_only_messages_per_second": count / body_seconds,
    }
    assert figure.messages_per_second is not None
    record_rate = figure.messages_per_second * _RECORD_BYTES
    figure.compare("memcpy_bytes_per_second", memcpy_bytes_per_second(64 * MIB), record_rate)
    echo = echo_per_second(request_bytes=64, reply_bytes=MIB, in_flight=8)
    figure.compare(
        "grpc_echo_messages_per_second", echo * MIB / _RECORD_BYTES, figure.messages_per_second
    )
    figure.aim = (figure.messages_per_second, 300_000, True)
    return figure


async def fill(nameserver: str, batches: int, body_bytes: int) -> None:
    """Send so many BATCHES of messages with bodies of BODY_BYTES."""
    async with AsyncProducer(nameserver) as producer:
        for at in range(0, batches, 16):
            some = range(min(16, batches - at))
            await asyncio.gather(*(producer.send_many(batch(_BATCH, body_bytes)) for _ in some))


async def _read(nameserver: str, count: int, *, properties: bool) -> tuple[list[float], float]:
    """Read COUNT messages; return the latency of each poll, and how long it took in all."""
    latencies: list[float] = []
    group = "whole" if properties else "bodies"  # Who just left a group may still be in it.
    began = time.perf_counter()
    async with AsyncPullConsumer(group, TOPIC, nameserver, start="earliest") as consumer:
        left = count
        while left > 0:
            asked = time.perf_counter()
            messages = await consumer.poll(timeout_ms=10_000)
            latencies.append(time.perf_counter() - asked)
            assert messages, f"{left} of {count} messages did not come"
            for message in messages:
                assert len(message.body) == BODY_BYTES
                assert message.queue_offset >= 0
                assert not properties or message.properties
            left -= len(messages)
        return latencies, time.perf_counter() - began
