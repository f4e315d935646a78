"""`bench consume` and `bench poll`: a pull consumer reads a full topic, bodies of 128 B, default settings.

    consume   decoded messages with body, properties and offset; a latency is that of one poll.
              `body_only_messages_per_second` does not decode the properties
    poll      batches whose columns (offsets, places of bodies) are read with numpy; the other rates read more

The baseline is a bare gRPC stream with answers as long as a fetch's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from ...client import AsyncProducer, AsyncPullConsumer, MessageBatch
from .grpc_echo import echo_per_second
from .measure import MIB, BenchConditions, Figure, memcpy_bytes_per_second
from .servers import TOPIC, batch, cpu_of_both, record_bytes, server_with_topic

BODY_BYTES: Final = 128
RATE_EXPECTED: Final = 300_000
BATCH: Final = 4_000
_RECORD_BYTES: Final = record_bytes(BODY_BYTES)
_SIZES: Final = {"body_bytes": BODY_BYTES, "record_bytes": _RECORD_BYTES}

#: Looks at a batch; returns how many bytes its bodies have.
Look = Callable[[MessageBatch], int]


def consume(conditions: BenchConditions) -> Figure:
    """Measure reading."""
    batches, count = batches_to_send(conditions, RATE_EXPECTED)
    figure = Figure(
        name="consume",
        what=f"{BODY_BYTES} B bodies, a cold queue, one consumer, body, properties and offset read",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(fill(server.nameserver, batches, BODY_BYTES))
        with cpu_of_both(figure, server):
            latencies, seconds = asyncio.run(_read(server.nameserver, count, "whole", _whole))
        # Who just left a group may still be in it.
        _, body_seconds = asyncio.run(
            _read(server.nameserver, count, "bodies", _without_properties)
        )
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    figure.facts = _SIZES | {
        "messages": count,
        "body_only_messages_per_second": count / body_seconds,
    }
    return compare(figure, RATE_EXPECTED)


def batches_to_send(conditions: BenchConditions, rate: int) -> tuple[int, int]:
    """Return how many batches, and messages, keep who reads RATE a second busy for as long as CONDITIONS say."""
    batches = max(1, round(rate * conditions.seconds / BATCH))
    return batches, batches * BATCH


async def fill(nameserver: str, batches: int, body_bytes: int) -> None:
    """Send so many BATCHES of messages with bodies of BODY_BYTES."""
    async with AsyncProducer(nameserver) as producer:
        for at in range(0, batches, 16):
            some = range(min(16, batches - at))
            await asyncio.gather(*(producer.send_many(batch(BATCH, body_bytes)) for _ in some))


def _whole(batch: MessageBatch) -> int:
    size_bytes = 0
    for message in batch:
        assert message.queue_offset >= 0
        assert message.properties
        size_bytes += len(message.body)
    return size_bytes


def _without_properties(batch: MessageBatch) -> int:
    size_bytes = 0
    for message in batch:
        assert message.queue_offset >= 0
        size_bytes += len(message.body)
    return size_bytes


def _messages(batch: MessageBatch) -> int:
    return sum(len(message.body) for message in batch)


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


def compare(figure: Figure, aim: int) -> Figure:
    """Compare FIGURE with a copy and a gRPC echo of the same bytes, and with AIM messages per second."""
    assert figure.messages_per_second is not None
    record_rate = figure.messages_per_second * _RECORD_BYTES
    figure.compare("memcpy_bytes_per_second", memcpy_bytes_per_second(64 * MIB), record_rate)
    echo = echo_per_second(request_bytes=64, reply_bytes=MIB, in_flight=8)
    figure.compare(
        "grpc_echo_messages_per_second", echo * MIB / _RECORD_BYTES, figure.messages_per_second
    )
    figure.aim = (figure.messages_per_second, aim, True)
    return figure


POLLED_RATE_EXPECTED: Final = 1_000_000


def poll(conditions: BenchConditions) -> Figure:
    """Measure polling."""
    batches, count = batches_to_send(conditions, POLLED_RATE_EXPECTED)
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
    rates = {f"{name}_messages_per_second": rate for name, rate in others.items()}
    figure.facts = _SIZES | {"messages": count} | rates
    return compare(figure, POLLED_RATE_EXPECTED)


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
