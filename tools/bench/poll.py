"""`bench poll`: from queues that nobody has read to batches whose columns are read, 128 B bodies.

The topic is filled first; then a consumer that starts with the oldest message polls until it has had all, and reads the
queue offsets and the place of the bodies of each batch as numpy columns. The other rates read more: every body as a
row of a matrix, every body as bytes, every message as an object with its body. The yardstick is a bare gRPC stream
whose answers are as long as a fetch's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from ...client import AsyncPullConsumer, MessageBatch
from .consume import fill
from .echo import echo_per_second
from .measure import MIB, BenchConditions, Figure, memcpy_bytes_per_second
from .servers import TOPIC, cpu_of_both, record_bytes, server_with_topic

BODY_BYTES: Final = 128
RATE_EXPECTED: Final = 1_000_000
_BATCH: Final = 4_000
_RECORD_BYTES: Final = record_bytes(BODY_BYTES)

#: Looks at a batch; returns how many bytes its bodies have.
Look = Callable[[MessageBatch], int]


def _columns(batch: MessageBatch) -> int:
    columns = batch.columns
    assert int(columns.queue_offset[-1]) >= len(batch) - 1
    return int(columns.body_size.sum())


def _matrix(batch: MessageBatch) -> int:
    matrix = batch.body_matrix()
    assert not matrix[:, 0].any()
    return matrix.size


def _bodies(batch: MessageBatch) -> int:
    return sum(map(len, batch.bodies))


def _messages(batch: MessageBatch) -> int:
    return sum(len(message.body) for message in batch)


def poll(conditions: BenchConditions) -> Figure:
    """Measure polling."""
    batches = max(1, round(RATE_EXPECTED * conditions.seconds / _BATCH))
    count = batches * _BATCH
    figure = Figure(
        name="poll",
        what=f"{BODY_BYTES} B bodies, cold queues, one consumer, batches read by the column",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(fill(server.nameserver, batches, BODY_BYTES))
        with cpu_of_both(figure, server):
            latencies, seconds = asyncio.run(_read(server.nameserver, count, "columns", _columns))
        others = {
            name: count / asyncio.run(_read(server.nameserver, count, name, look))[1]
            for name, look in (("matrix", _matrix), ("bodies", _bodies), ("messages", _messages))
        }
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "record_bytes": _RECORD_BYTES,
        **{f"{name}_messages_per_second": rate for name, rate in others.items()},
    }
    assert figure.messages_per_second is not None
    record_rate = figure.messages_per_second * _RECORD_BYTES
    figure.compare("memcpy_bytes_per_second", memcpy_bytes_per_second(64 * MIB), record_rate)
    echo = echo_per_second(request_bytes=64, reply_bytes=MIB, in_flight=8)
    figure.compare(
        "grpc_echo_messages_per_second", echo * MIB / _RECORD_BYTES, figure.messages_per_second
    )
    figure.aim = (figure.messages_per_second, RATE_EXPECTED, True)
    return figure


async def _read(nameserver: str, count: int, group: str, look: Look) -> tuple[list[float], float]:
    """Read COUNT messages as GROUP, with LOOK; return the latency of each poll, and how long it took in all."""
    latencies: list[float] = []
    size_bytes = 0
    began = time.perf_counter()
    async with AsyncPullConsumer(group, TOPIC, nameserver, start="earliest") as consumer:
        left = count
        while left > 0:
            asked = time.perf_counter()
            batch = await consumer.poll(timeout_ms=10_000)
            latencies.append(time.perf_counter() - asked)
            assert batch, f"{left} of {count} messages did not come"
            size_bytes += look(batch)
            left -= len(batch)
        seconds = time.perf_counter() - began
    assert size_bytes == count * BODY_BYTES
    return latencies, seconds
