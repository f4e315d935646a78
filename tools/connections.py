"""`pocketmq connections`: the open connections of brokers and name servers, with their traffic."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, Final

import click

from ..client.administration.servers import AsyncServerConnections, ServerConnections
from ..proto.rpc.carrier import ConnectionFigures, ConnectionTotals
from .options import json_option, nameserver_option
from .output import print_json, print_table

_TITLES: Final = (
    "peer",
    "tls",
    "open for",
    "streams",
    "calls",
    "failed",
    "read",
    "written",
    "queued",
    "last call",
    "client",
)
_BYTES: Final = ("B", "kB", "MB", "GB", "TB")
_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


@click.command()
@click.option(
    "--broker",
    metavar="NAME|HOST:PORT",
    help="This broker only, or the server at this address, also a name server.  [default: all]",
)
@json_option("one server per line")
@nameserver_option
def connections(*, broker: str | None, as_json: bool, nameserver: str) -> None:
    """Show the open connections of name servers and brokers.

    Prints for each its peer, age, calls and bytes, those with most calls first. A server that runs with --grpc grpcio
    has no such numbers.
    """

    async def ask() -> list[ServerConnections]:
        is_address = broker is not None and ":" in broker
        async with AsyncServerConnections(
            nameserver, broker if is_address else None, broker=None if is_address else broker
        ) as servers:
            return await servers.all()

    for at, server in enumerate(asyncio.run(ask())):
        if as_json:
            print_json(_document(server))
            continue
        if at:
            click.echo()
        _print(server)


def busiest(found: tuple[ConnectionFigures, ...]) -> list[ConnectionFigures]:
    """Return FOUND, those with most calls first; equal ones as they were opened."""
    return sorted(found, key=lambda one: (-one.calls_begun, one.id))


def _document(server: ServerConnections) -> dict[str, Any]:
    return {
        "server": server.server,
        "address": server.address,
        "totals": asdict(server.totals) if server.totals else None,
        "connections": [asdict(one) for one in busiest(server.connections)],
        "error": server.error.message if server.error else None,
    }


def _print(server: ServerConnections) -> None:
    name = f"{server.server} at {server.address}"
    if server.totals is None:
        click.echo(f"{name}: {server.error}")
        return
    click.echo(f"{name}: {_summary(server.totals)}")
    if server.connections:
        print_table(_TITLES, [_row(one) for one in busiest(server.connections)])


def _summary(totals: ConnectionTotals) -> str:
    counts = f"{totals.open:,} open, {totals.accepted:,} accepted, {totals.refused:,} refused"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(totals.closed.items()))
    return f"{counts}; closed: {reasons}" if reasons else counts


def _row(one: ConnectionFigures) -> list[object]:
    method = one.last_path.rpartition("/")[2]
    return [
        one.peer,
        "yes" if one.secure else "no",
        age_text(one.age_ms),
        one.streams_open,
        one.calls_begun,
        one.calls_failed,
        bytes_text(one.bytes_read),
        bytes_text(one.bytes_written),
        bytes_text(one.bytes_queued),
        f"{_printable(method)}, {age_text(one.last_call_age_ms)} ago" if one.last_path else "-",
        _printable(one.user_agent) or "-",
    ]


def age_text(age_ms: int) -> str:
    """Return AGE_MS for people, in its largest unit: "0.4s", "12s", "3m", "5h", "2d"."""
    if age_ms < 10 * _SECOND:
        return f"{age_ms / _SECOND:.1f}s"
    for unit, unit_ms in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE)):
        if age_ms >= unit_ms:
            return f"{age_ms // unit_ms}{unit}"
    return f"{age_ms // _SECOND}s"


def bytes_text(count: int) -> str:
    """Return COUNT bytes for people: "812 B", "1.2 MB"."""
    size, at = float(count), 0
    while size >= 999.95 and at < len(_BYTES) - 1:
        size, at = size / 1_000, at + 1
    return f"{count} B" if at == 0 else f"{size:.1f} {_BYTES[at]}"


def _printable(text: str) -> str:
    """Return TEXT, which comes from a client, without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
