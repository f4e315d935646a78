"""`bench unary`: the server's CPU time per SendMessage, with the built-in HTTP/2 server and with grpcio.

A bare socket sends the calls as an official client does, 64 in flight on one connection, then one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from ...proto.carriers import GRPC_CHOICES
from ...proto.gen import rocketmq_v2_pb2 as v2
from .handler_costs import BODY_BYTES
from .measure import BenchConditions, Figure, seconds_of
from .official import IN_FLIGHT
from .raw_connection import RawConnection
from .servers import TOPIC, server_with_topic

#: By how many calls are in flight: µs of the server.
_AIMS_US: Final = {IN_FLIGHT: 100.0, 1: 250.0}


def unary(conditions: BenchConditions) -> Figure:
    """Measure both carriers, one after the other."""
    costs = {choice: _costs(conditions, choice) for choice in GRPC_CHOICES}
    own, grpcio = costs["own"], costs["grpcio"]
    figure = Figure(
        name="unary",
        what=f"server CPU of a SendMessage, {BODY_BYTES} B, {IN_FLIGHT} in flight",
        messages_per_second=own[IN_FLIGHT].per_second,
        aim=(own[IN_FLIGHT].cpu_us, _AIMS_US[IN_FLIGHT], False),
    )
    for in_flight, aim_us in _AIMS_US.items():
        ours, theirs = own[in_flight].cpu_us, grpcio[in_flight].cpu_us
        figure.compare(f"grpcio_us_at_{in_flight}", theirs, ours)
        figure.facts[f"own_us_at_{in_flight}"] = ours
        figure.notes.append(
            f"{in_flight} in flight: {ours:.0f} µs a call (aim {aim_us:.0f}), grpcio {theirs:.0f};"
            f" {own[in_flight].per_second:,.0f} calls per second, grpcio {grpcio[in_flight].per_second:,.0f}"
        )
    return figure


@dataclass(frozen=True)
class _Cost:
    cpu_us: float
    per_second: float


def _costs(conditions: BenchConditions, choice: str) -> dict[int, _Cost]:
    """Return what calls cost with the carrier of CHOICE, by how many are in flight."""
    folder = conditions.folder / choice
    folder.mkdir()
    found = {}
    with (
        server_with_topic(folder, options=("--grpc", choice)) as server,
        RawConnection(server.ready["broker"]) as connection,
    ):
        _call(connection, 2_000, IN_FLIGHT)  # Code that runs first.
        for in_flight in _AIMS_US:
            count = _count(connection, in_flight, conditions.seconds)
            before = server.cpu_seconds()
            taken_s = seconds_of(partial(_call, connection, count, in_flight))
            cpu_us = (server.cpu_seconds() - before) / count * 1e6
            found[in_flight] = _Cost(cpu_us, count / taken_s)
    return found


def _count(connection: RawConnection, in_flight: int, seconds: float) -> int:
    """Return how many calls take about SECONDS."""
    probe = 500
    return max(
        probe, int(probe / seconds_of(lambda: _call(connection, probe, in_flight)) * seconds)
    )


def _call(connection: RawConnection, count: int, in_flight: int) -> None:
    """Send COUNT messages, IN_FLIGHT at once."""
    calls = connection.calls("SendMessage", _requests(count), time_s=3)
    connection.send(b"".join(islice(calls, in_flight)))
    left = count
    while left:
        ended = connection.receive(v2.SendMessageResponse)
        left -= ended
        connection.send(b"".join(islice(calls, ended)))


def _requests(count: int) -> list[Any]:
    return [_request(number) for number in range(count)]


def _request(number: int) -> Any:
    properties = v2.SystemProperties(
        message_id=f"01{number:032X}",
        message_type=v2.NORMAL,
        body_encoding=v2.IDENTITY,
        born_host="bench",
    )
    properties.born_timestamp.GetCurrentTime()
    message = v2.Message(
        topic=v2.Resource(name=TOPIC), body=b"x" * BODY_BYTES, system_properties=properties
    )
    return v2.SendMessageRequest(messages=[message])
