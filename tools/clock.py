"""`pocketmq clock`: shows the time of brokers, and advances virtual clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import click

from ..client.administration.clocks import AsyncClockAdmin, BrokerClock
from ..proto.clock import STEP_MAX_MS
from ..proto.time_text import parse_duration
from .options import json_option, nameserver_option
from .output import instant, print_json, print_table

_broker_option = click.option(
    "--broker",
    metavar="NAME|HOST:PORT",
    help="Name or address of one broker.  [default: all brokers]",
)


@click.group()
def clock() -> None:
    """Show the brokers' time, or advance a virtual clock."""


@clock.command()
@_broker_option
@json_option("one broker per line")
@nameserver_option
def now(*, broker: str | None, as_json: bool, nameserver: str) -> None:
    """Show the time of each broker."""
    _show(_ask(nameserver, broker, AsyncClockAdmin.now), as_json)


@clock.command()
@click.argument("duration", metavar="DURATION")
@_broker_option
@json_option("one broker per line")
@nameserver_option
def advance(duration: str, *, broker: str | None, as_json: bool, nameserver: str) -> None:
    """Advance the virtual clock of brokers by DURATION.

    DURATION is 500ms, 30s, 2h, 1h30m or 3d. Scheduled messages, retries and timeouts that become due on the way happen
    in order, each at its own time, before the command returns. Brokers need `serve --clock virtual`.

    \b
    Example: pocketmq clock advance 1h
    """
    by_ms = parse_duration(duration, field="DURATION", max_ms=STEP_MAX_MS)
    _show(_ask(nameserver, broker, lambda clocks: clocks.advance(by_ms)), as_json)


def _ask(
    nameserver: str,
    broker: str | None,
    question: Callable[[AsyncClockAdmin], Awaitable[list[BrokerClock]]],
) -> list[BrokerClock]:
    async def ask() -> list[BrokerClock]:
        async with AsyncClockAdmin(nameserver, broker) as clocks:
            return await question(clocks)

    return asyncio.run(ask())


def _show(clocks: list[BrokerClock], as_json: bool) -> None:
    if as_json:
        for one in clocks:
            print_json(asdict(one) | {"now": instant(one.now_ms)})
        return
    print_table(
        ["broker", "time", "milliseconds", "clock"],
        [
            [one.broker, instant(one.now_ms), one.now_ms, "virtual" if one.virtual else "system"]
            for one in clocks
        ],
    )
