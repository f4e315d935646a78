"""`bench v2`: an official client of Apache RocketMQ with PocketMQ on loopback, 128 B.

Single sends with 64 in flight, then one after the other; then a simple consumer that receives 32 and acknowledges each,
with one thread and with eight. The cost of the handlers alone shows how much of the time is theirs.
"""

from __future__ import annotations

from typing import Final

from ...client import Admin
from ..server_process import ServerProcess, cpu_seconds
from .handler_costs import AIMS_US, BATCH, BODY_BYTES, handler_costs_us
from .measure import BenchConditions, Figure
from .official_client import OfficialClient
from .servers import TOPIC, server_with_topic

IN_FLIGHT: Final = 64
_HANDLED: Final = 4_096
#: Of RocketMQ's own broker and proxy with its Java client, on the machine that the aims were set on.
_APACHE: Final = {
    "sends a second, 64 in flight": 4_000,
    "send, one in flight, p99 ms": 9.2,
    "receive 32 + ack each, 1 thread": 3_300,
    "receive 32 + ack each, 8 threads": 6_400,
}


def official(conditions: BenchConditions) -> Figure:
    """Measure the official client that is asked for, or the first that can be had."""
    costs_us = handler_costs_us(conditions.folder, _HANDLED)
    with server_with_topic(conditions.folder) as server:
        with Admin(server.nameserver) as admin:
            admin.create_group("readers")
        with OfficialClient(str(server.ready["broker"]), conditions.client) as client:
            return _figure(client, server, conditions.seconds, costs_us)


def _figure(
    client: OfficialClient, server: ServerProcess, seconds: float, costs_us: dict[str, float]
) -> Figure:
    client("producer", name="producer", topics=[TOPIC])
    _storm(client, 500, IN_FLIGHT)  # Connections, and code that runs first.
    figure = Figure(
        name="v2",
        what=f"the official client ({client.name}), {BODY_BYTES} B, {IN_FLIGHT} single sends in flight",
    )
    probe_s, _ = _storm(client, 500, IN_FLIGHT)
    count = max(500, int(500 / probe_s * seconds))
    server_before, client_before = server.cpu_seconds(), cpu_seconds(client.pid)
    taken_s, _ = _storm(client, count, IN_FLIGHT)
    figure.server_cpu_seconds = server.cpu_seconds() - server_before
    figure.client_cpu_seconds = cpu_seconds(client.pid) - client_before
    figure.server_rss_bytes = server.rss_bytes()
    figure.add_rate(count, count * BODY_BYTES, taken_s)
    alone_before = server.cpu_seconds()
    _, one_by_one_us = _storm(client, max(200, count // 10), 1)
    alone_us = (server.cpu_seconds() - alone_before) / len(one_by_one_us) * 1e6
    figure.add_latencies([cost / 1e6 for cost in one_by_one_us])
    client(
        "simple",
        name="consumer",
        topic=TOPIC,
        group="readers",
        filter="tag",
        expression="*",
        await_s=8,
    )
    drains = {threads: _drain(client, count * 2 // 5, threads) for threads in (1, 8)}
    _tell(figure, count, drains, costs_us)
    together_us = figure.facts["server_cpu_us_per_send"]
    figure.facts["server_cpu_us_per_send_alone"] = alone_us
    figure.notes.append(
        f"server time of a send: {together_us:.0f} µs with {IN_FLIGHT} in flight, {alone_us:.0f} µs alone;"
        " compared with grpcio: bench unary"
    )
    return figure


def _storm(client: OfficialClient, count: int, in_flight: int) -> tuple[float, list[float]]:
    found = client(
        "storm",
        client="producer",
        topic=TOPIC,
        body="x",
        size=BODY_BYTES,
        count=count,
        in_flight=in_flight,
    )
    return float(found["seconds"]), list(found["costs_us"])


def _drain(client: OfficialClient, count: int, threads: int) -> float:
    """Return messages per second."""
    found = client("drain", client="consumer", count=count, batch=BATCH, threads=threads)
    return count / float(found["seconds"])


def _tell(figure: Figure, count: int, drains: dict[int, float], costs_us: dict[str, float]) -> None:
    assert figure.messages_per_second is not None
    assert figure.p99_ms is not None
    measured = dict(
        zip(
            _APACHE,
            (figure.messages_per_second, figure.p99_ms, drains[1], drains[8]),
            strict=True,
        )
    )
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "server_cpu_us_per_send": (figure.server_cpu_seconds or 0.0) / count * 1e6,
        **{f"receive_and_ack_per_second_{threads}": rate for threads, rate in drains.items()},
        **{f"{name}_us": cost for name, cost in costs_us.items()},
    }
    figure.aim = (figure.messages_per_second, _APACHE["sends a second, 64 in flight"], True)
    figure.notes = [
        *(
            f"{name}: {value:,.1f} (Apache with its Java client: {_APACHE[name]:,})"
            for name, value in measured.items()
        ),
        *(
            f"{name} without a carrier: {cost:.1f} µs, aim ≤ {AIMS_US[name]:.0f}"
            for name, cost in costs_us.items()
        ),
    ]
