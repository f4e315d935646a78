"""`pocketmq clock`: what time it is at the brokers, and moving the time of those with a virtual clock."""

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
    "--broker", metavar="NAME|HOST:PORT", help="This broker only.  [default: all]"
)


@click.group()
def clock() -> None:
    """Tell the brokers' time; move it where they were started with --clock virtual."""


@clock.command()
@_broker_option
@json_option("a broker a line")
@nameserver_option
def now(*, broker: str | None, as_json: bool, nameserver: str) -> None:
    """Show the time of each broker."""
    _show(_ask(nameserver, broker, AsyncClockAdmin.now), as_json)


@clock.command()
@click.argument("duration", metavar="DURATION")
@_broker_option
@json_option("a broker a line")
@nameserver_option
def advance(duration: str, *, broker: str | None, as_json: bool, nameserver: str) -> None:
    """Move time by DURATION (500ms, 30s, 2h, 1h30m, 3d).

    All that falls due on the way happens, in order and each at its own time, before this returns.
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
