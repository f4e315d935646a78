"""Benchmarks of sending from coroutines: `send-many`, `produce` and `sync`, with 128 B bodies and default settings.

send-many   lists of 10,000 new bodies through `send_many_nowait("topic", bodies)`, four at a time; also Messages
produce     batches of 1,000 new messages through `send_many_nowait`; a latency is that of a whole batch. Also
            single messages: 1,000 `send`s at once, and one after the other
sync        64 coroutines send one message each and wait until it is on disk. Baseline: 4 KiB written and forced
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from ...client import AsyncProducer, Receipts
from ...client.producing.receipt import Acks
from ..server_process import ServerProcess
from . import measure, servers
from .grpc_echo import echo_per_second
from .sending import BODY_BYTES, RECORD_BYTES, compare

AT_ONCE: Final = 10_000
LISTS_IN_FLIGHT: Final = 4

#: Sends a list of messages.
_SendList = Callable[[AsyncProducer], asyncio.Future[Receipts]]


def send_many(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure sending lists of bodies."""
    figure = measure.Figure(
        name="send-many",
        what=f"{BODY_BYTES} B, lists of {AT_ONCE:,} bodies, {LISTS_IN_FLIGHT} in flight, memory acknowledgement",
    )
    with servers.server_with_topic(conditions.folder) as server:
        lists = LISTS_IN_FLIGHT, AT_ONCE
        count = _add_lists(figure, server, _bodies, conditions.seconds, *lists)
        own, own_seconds = asyncio.run(_send_lists_for(server.nameserver, _messages, 1.0, *lists))
    assert figure.messages_per_second is not None
    assert figure.client_cpu_seconds is not None
    assert figure.server_cpu_seconds is not None
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "record_bytes": RECORD_BYTES,
        "client_cpu_us_per_message": figure.client_cpu_seconds / count * 1e6,
        "server_cpu_us_per_message": figure.server_cpu_seconds / count * 1e6,
        "as_messages_per_second": len(own) * AT_ONCE / own_seconds,
    }
    memcpy = measure.memcpy_bytes_per_second(64 * measure.MIB)
    figure.compare("memcpy_bytes_per_second", memcpy, figure.messages_per_second * RECORD_BYTES)
    figure.aim = (figure.messages_per_second, 500_000, True)
    return figure


def _bodies(producer: AsyncProducer) -> asyncio.Future[Receipts]:
    # New objects each time, as an application has them.
    data = os.urandom(BODY_BYTES) * AT_ONCE
    bodies = [data[at : at + BODY_BYTES] for at in range(0, len(data), BODY_BYTES)]
    return producer.send_many_nowait(servers.TOPIC, bodies)


def _messages(producer: AsyncProducer) -> asyncio.Future[Receipts]:
    return producer.send_many_nowait(servers.batch(AT_ONCE, BODY_BYTES))


def _add_lists(
    figure: measure.Figure,
    server: ServerProcess,
    send: _SendList,
    seconds: float,
    in_flight: int,
    messages: int,
) -> int:
    """Send like `_send_lists_for`, add the result to FIGURE, and return the number of messages."""
    send_for = partial(_send_lists_for, server.nameserver, send)
    asyncio.run(send_for(0.5, in_flight, messages))  # Connections, routes, code that runs first.
    with servers.cpu_of_both(figure, server):
        latencies, took_s = asyncio.run(send_for(seconds, in_flight, messages))
    count = len(latencies) * messages
    figure.add_rate(count, count * BODY_BYTES, took_s)
    figure.add_latencies(latencies)
    return count


async def _send_lists_for(
    nameserver: str, send: _SendList, seconds: float, in_flight: int, messages: int
) -> tuple[list[float], float]:
    """SEND lists of MESSAGES for SECONDS; return the latency of each, and how long it took in all."""
    latencies: list[float] = []
    under_way: deque[tuple[float, asyncio.Future[Receipts]]] = deque()

    async def oldest_acknowledged() -> None:
        sent, receipts = under_way.popleft()
        assert len(await receipts) == messages
        latencies.append(time.perf_counter() - sent)

    async with AsyncProducer(nameserver) as producer:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            if len(under_way) == in_flight:
                await oldest_acknowledged()
            under_way.append((time.perf_counter(), send(producer)))
            await asyncio.sleep(0)
        while under_way:
            await oldest_acknowledged()
        return latencies, time.perf_counter() - began


BATCH: Final = 1_000
IN_FLIGHT: Final = 16
SINGLES_IN_FLIGHT: Final = 1_000
SINGLES_S: Final = 1.0


def produce(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure sending."""
    figure = measure.Figure(
        name="produce",
        what=f"{BODY_BYTES} B bodies, batches of {BATCH}, {IN_FLIGHT} batches in flight, memory acknowledgement",
    )
    with servers.server_with_topic(conditions.folder) as server:
        count = _add_lists(figure, server, _batch, conditions.seconds, IN_FLIGHT, BATCH)
        many, many_s = asyncio.run(_send_singles(server.nameserver, SINGLES_IN_FLIGHT, SINGLES_S))
        one, one_s = asyncio.run(_send_singles(server.nameserver, 1, SINGLES_S))
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "record_bytes": RECORD_BYTES,
        "single_sends_per_second": len(many) / many_s,
        "one_after_the_other_per_second": len(one) / one_s,
        "one_after_the_other_p50_ms": statistics.median(one) * 1000,
    }
    compare(figure, BATCH, IN_FLIGHT, 200_000)
    return figure


def _batch(producer: AsyncProducer) -> asyncio.Future[Receipts]:
    return producer.send_many_nowait(servers.batch(BATCH, BODY_BYTES))


async def _send_singles(
    nameserver: str, in_flight: int, seconds: float, acks: Acks | None = None
) -> tuple[list[float], float]:
    """Send single messages for SECONDS; return the latency of each, in seconds, and how long it took in all."""
    latencies: list[float] = []
    (message,) = servers.batch(1, BODY_BYTES)

    async def send_on() -> None:
        while (sent := time.perf_counter()) < end:
            await producer.send(message)
            latencies.append(time.perf_counter() - sent)

    async with AsyncProducer(nameserver, acks=acks) as producer:
        await producer.send(message)
        began = time.perf_counter()
        end = began + seconds
        async with asyncio.TaskGroup() as senders:
            for _ in range(in_flight):
                senders.create_task(send_on())
        return latencies, time.perf_counter() - began


SYNCED_IN_FLIGHT: Final = 64


def sync(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure sending with synchronous flush."""
    figure = measure.Figure(
        name="sync",
        what=f"{BODY_BYTES} B bodies, {SYNCED_IN_FLIGHT} single sends in flight, each acknowledged on disk",
    )
    with servers.server_with_topic(conditions.folder) as server:
        address = server.nameserver
        asyncio.run(_send_singles(address, SYNCED_IN_FLIGHT, 0.5, acks="disk"))
        with servers.cpu_of_both(figure, server):
            latencies, seconds = asyncio.run(
                _send_singles(address, SYNCED_IN_FLIGHT, conditions.seconds, acks="disk")
            )
    figure.add_rate(len(latencies), len(latencies) * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    figure.facts = {"messages": len(latencies), "body_bytes": BODY_BYTES}
    assert figure.messages_per_second is not None
    synced = measure.synced_writes_per_second(conditions.folder)
    figure.compare("synced_4_kib_writes_per_second", synced, figure.messages_per_second)
    echo = echo_per_second(
        request_bytes=BODY_BYTES + 200, reply_bytes=40, in_flight=SYNCED_IN_FLIGHT
    )
    figure.compare("grpc_echo_per_second", echo, figure.messages_per_second)
    figure.aim = (figure.messages_per_second, 20_000, True)
    return figure
