"""`bench send`: single messages of 128 B (also of 1 KiB) from one thread, default settings.

They go through `Producer.send_nowait`, until a flush has all acknowledgements; then through `Producer.send` one after
the other, which gives the latencies. The baseline is a bare gRPC stream with the same requests and answers, in batches
as large as the producer's.
"""

from __future__ import annotations

import time
from typing import Final

from ...client import Message, Producer
from ..server_process import ServerProcess
from . import measure, servers
from .grpc_echo import echo_per_second

BODY_BYTES: Final = 128
RECORD_BYTES: Final = servers.record_bytes(BODY_BYTES)
LARGE_BYTES: Final = 1024
#: The largest batches of the producer's default settings.
RUN_MESSAGES: Final = 4_000
RUNS_IN_FLIGHT: Final = 8
_REPLY_BYTES: Final = 40
_AIM: Final = 190_000
_LARGE_AIM_MB: Final = 105
_LATENCY_AIMS_MS: Final = (0.4, 2.0)
#: Messages between two looks at the clock.
_STRETCH: Final = 1_000


def send(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure sending one message at a time."""
    figure = measure.Figure(
        name="send",
        what=f"single messages of {BODY_BYTES} B through the full producer, one thread, memory acknowledgement",
    )
    with servers.server_with_topic(conditions.folder) as server:
        _send_for(server, BODY_BYTES, 0.5)  # Connections, routes, code that runs first.
        with servers.cpu_of_both(figure, server):
            count, seconds = _send_for(server, BODY_BYTES, conditions.seconds)
        large_count, large_seconds = _send_for(server, LARGE_BYTES, conditions.seconds)
        latencies = _send_one_by_one(server, 1.0)
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    assert figure.client_cpu_seconds is not None
    assert figure.server_cpu_seconds is not None
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "record_bytes": RECORD_BYTES,
        "client_cpu_us_per_message": figure.client_cpu_seconds / count * 1e6,
        "server_cpu_us_per_message": figure.server_cpu_seconds / count * 1e6,
        "large_body_bytes": LARGE_BYTES,
        "large_messages_per_second": large_count / large_seconds,
        "large_bytes_per_second": large_count * LARGE_BYTES / large_seconds,
        "one_after_the_other_per_second": len(latencies) / sum(latencies),
    }
    _compare(figure)
    return figure


def compare(figure: measure.Figure, run_messages: int, in_flight: int, aim: int) -> None:
    """Compare FIGURE with a copy, with a gRPC echo of as many batches IN_FLIGHT, and with AIM messages per second."""
    rate = figure.messages_per_second
    assert rate is not None
    memcpy = measure.memcpy_bytes_per_second(64 * measure.MIB)
    figure.compare("memcpy_bytes_per_second", memcpy, rate * RECORD_BYTES)
    echo = echo_per_second(
        request_bytes=RECORD_BYTES * run_messages, reply_bytes=_REPLY_BYTES, in_flight=in_flight
    )
    figure.compare("grpc_echo_messages_per_second", echo * run_messages, rate)
    figure.aim = (rate, aim, True)


def _compare(figure: measure.Figure) -> None:
    compare(figure, RUN_MESSAGES, RUNS_IN_FLIGHT, _AIM)
    large_mb = figure.facts["large_bytes_per_second"] / 1e6
    figure.notes = [
        f"{LARGE_BYTES} B: {large_mb:,.1f} MB/s, {measure.against(large_mb >= _LARGE_AIM_MB, f'≥ {_LARGE_AIM_MB}')}",
        *(
            f"one after the other, {name}: {value:.2f} ms, {measure.against(value <= aim, f'≤ {aim}')}"
            for name, value, aim in zip(
                ("p50", "p99"),
                (figure.p50_ms or 0, figure.p99_ms or 0),
                _LATENCY_AIMS_MS,
                strict=True,
            )
        ),
    ]


def _send_for(server: ServerProcess, body_bytes: int, seconds: float) -> tuple[int, float]:
    """Send for SECONDS; return how many messages, and how long it took until all were acknowledged."""
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    body = body[:body_bytes]
    count = 0
    with Producer(server.nameserver) as producer:
        producer.send(Message(servers.TOPIC, body))
        send_nowait = producer.send_nowait
        last = None
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(_STRETCH):
                last = send_nowait(Message(servers.TOPIC, body))
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
        message = Message(servers.TOPIC, bytes(BODY_BYTES))
        producer.send(message)
        end = time.perf_counter() + seconds
        while (sent := time.perf_counter()) < end:
            producer.send(message)
            latencies.append(time.perf_counter() - sent)
    return latencies
