"""`bench send`: one message at a time through the full producer, from one thread, with default settings.

New Messages of 128 B, then of 1 KiB, go through `Producer.send_nowait` as fast as one thread makes them, until a flush
has all acknowledgements; then `Producer.send` one after the other, whose latencies stand in the table. The yardstick
carries the same requests and answers over a bare gRPC stream, in runs as large as the producer made them; beside it a
memcpy of the records.
"""

from __future__ import annotations

import time
from typing import Final

from ...client import Message, Producer
from ..server_process import ServerProcess
from .echo import echo_per_second
from .measure import MIB, BenchConditions, Figure, memcpy_bytes_per_second
from .servers import TOPIC, cpu_of_both, record_bytes, server_with_topic

SMALL_BYTES: Final = 128
LARGE_BYTES: Final = 1024
#: The largest runs of the producer's default settings.
RUN_MESSAGES: Final = 4_000
RUNS_IN_FLIGHT: Final = 8
_REPLY_BYTES: Final = 40
_AIM: Final = 190_000
_LARGE_AIM_MB: Final = 105
_LATENCY_AIMS_MS: Final = (0.4, 2.0)
#: Messages between two looks at the clock.
_STRETCH: Final = 1_000


def send(conditions: BenchConditions) -> Figure:
    """Measure sending one message at a time."""
    figure = Figure(
        name="send",
        what=f"single messages of {SMALL_BYTES} B through the full producer, one thread, memory acknowledgement",
    )
    with server_with_topic(conditions.folder) as server:
        _send_for(server, SMALL_BYTES, 0.5)  # Connections, routes, code that runs first.
        with cpu_of_both(figure, server):
            count, seconds = _send_for(server, SMALL_BYTES, conditions.seconds)
        large_count, large_seconds = _send_for(server, LARGE_BYTES, conditions.seconds)
        latencies = _send_one_by_one(server, 1.0)
    figure.add_rate(count, count * SMALL_BYTES, seconds)
    figure.add_latencies(latencies)
    assert figure.client_cpu_seconds is not None
    assert figure.server_cpu_seconds is not None
    figure.facts = {
        "messages": count,
        "body_bytes": SMALL_BYTES,
        "record_bytes": record_bytes(SMALL_BYTES),
        "client_cpu_us_per_message": figure.client_cpu_seconds / count * 1e6,
        "server_cpu_us_per_message": figure.server_cpu_seconds / count * 1e6,
        "large_body_bytes": LARGE_BYTES,
        "large_messages_per_second": large_count / large_seconds,
        "large_bytes_per_second": large_count * LARGE_BYTES / large_seconds,
        "one_after_the_other_per_second": len(latencies) / sum(latencies),
    }
    _compare(figure)
    return figure


def _compare(figure: Figure) -> None:
    rate = figure.messages_per_second
    assert rate is not None
    memcpy = memcpy_bytes_per_second(64 * MIB)
    figure.compare("memcpy_bytes_per_second", memcpy, rate * record_bytes(SMALL_BYTES))
    run_bytes = record_bytes(SMALL_BYTES) * RUN_MESSAGES
    echo = echo_per_second(
        request_bytes=run_bytes, reply_bytes=_REPLY_BYTES, in_flight=RUNS_IN_FLIGHT
    )
    figure.compare("grpc_echo_messages_per_second", echo * RUN_MESSAGES, rate)
    figure.aim = (rate, _AIM, True)
    large_mb = figure.facts["large_bytes_per_second"] / 1e6
    figure.notes = [
        f"{LARGE_BYTES} B: {large_mb:,.1f} MB/s, {_against(large_mb >= _LARGE_AIM_MB, f'≥ {_LARGE_AIM_MB}')}",
        *(
            f"one after the other, {name}: {value:.2f} ms, {_against(value <= aim, f'≤ {aim}')}"
            for name, value, aim in zip(
                ("p50", "p99"),
                (figure.p50_ms or 0, figure.p99_ms or 0),
                _LATENCY_AIMS_MS,
                strict=True,
            )
        ),
    ]


def _against(met: bool, aim: str) -> str:
    return f"aim {aim} {'met' if met else 'missed'}"


def _send_for(server: ServerProcess, body_bytes: int, seconds: float) -> tuple[int, float]:
    """Send for SECONDS; return how many messages, and how long it took until all were acknowledged."""
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    body = body[:body_bytes]
    count = 0
    with Producer(server.nameserver) as producer:
        producer.send(Message(TOPIC, body))
        send_nowait = producer.send_nowait
        last = None
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(_STRETCH):
                last = send_nowait(Message(TOPIC, body))
            count += _STRETCH
        producer.flush()
        took = time.perf_counter() - began
        assert last is not None
        assert last.done()
        last.result()
    return count, took


def _send_one_by_one(server: ServerProcess, seconds: float) -> list[float]:
    """Send one after the other for SECONDS; return the latency of each, in seconds."""
    latencies: list[float] = []
    with Producer(server.nameserver) as producer:
        message = Message(TOPIC, bytes(SMALL_BYTES))
        producer.send(message)
        end = time.perf_counter() + seconds
        while (sent := time.perf_counter()) < end:
            producer.send(message)
            latencies.append(time.perf_counter() - sent)
    return latencies
