"""`pocketmq config`: shows the settings of running servers, and changes those that need no restart.

A change by `set` lasts until the server reads its configuration file again, at SIGHUP or a start. No command writes
that file.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any, Final

import click

from ..client.administration.server_settings import AsyncSettings, ServerSetting, ServerSettings
from .options import json_option, nameserver_option
from .output import print_json, print_table

_TITLES: Final = ("setting", "value", "default", "from", "change")


def _broker_option(function: Any) -> Any:
    return click.option(
        "--broker",
        metavar="NAME|HOST:PORT",
        help="Name of a broker, or address of a broker or name server.  [default: all brokers]",
    )(function)


@click.group()
def config() -> None:
    """Show or change the settings of running servers."""


@config.command()
@click.argument("prefixes", metavar="[PREFIX]…", nargs=-1)
@click.option("--changed", is_flag=True, help="Only settings that differ from their default.")
@_broker_option
@json_option("one server per line")
@nameserver_option
def show(
    prefixes: tuple[str, ...], *, changed: bool, broker: str | None, as_json: bool, nameserver: str
) -> None:
    """Show settings: all, or those whose name begins with a PREFIX.

    Prints the value, the default, the origin of the value (file and line, option, environment, set live), and whether a
    change needs a restart.

    \b
    Example: pocketmq config show store. broker.fetch
    """

    async def ask() -> list[ServerSettings]:
        async with AsyncSettings(nameserver, broker) as settings:
            return await settings.all()

    for at, server in enumerate(asyncio.run(ask())):
        chosen = [
            one
            for one in server.settings
            if (not prefixes or one.key.startswith(prefixes))
            and not (changed and one.value == one.default)
        ]
        if as_json:
            print_json(
                {
                    "server": server.server,
                    "address": server.address,
                    "settings": [_document(one) for one in chosen],
                }
            )
            continue
        if at:
            click.echo()
        click.echo(f"{server.server} at {server.address}")
        print_table(_TITLES, [_row(one) for one in chosen])


# A value may begin with a minus.
@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@_broker_option
@json_option("one server per line")
@nameserver_option
def set_setting(
    key: str, value: str, *, broker: str | None, as_json: bool, nameserver: str
) -> None:
    """Change the setting KEY of running servers to VALUE.

    VALUE is written as in the configuration file. It applies at once, until the server reads its file again (SIGHUP or
    start). To keep it, edit the file as well.

    \b
    Example: pocketmq config set store.retention_ms 86400000
    """

    async def change() -> list[tuple[str, ServerSetting, ServerSetting]]:
        async with AsyncSettings(nameserver, broker) as settings:
            return await settings.set(key, value)

    for server, before, after in asyncio.run(change()):
        if as_json:
            print_json({"server": server, "before": _document(before), "after": _document(after)})
        else:
            click.echo(f"{server}: {key} was {_shown(before.value)}, is {_shown(after.value)}")
    if not as_json:
        click.echo("This lasts until the server reads its file again, at SIGHUP or a start.")


def _document(one: ServerSetting) -> dict[str, Any]:
    default = json.loads(one.default) if one.default else None
    return asdict(one) | {"value": json.loads(one.value), "default": default}


def _row(one: ServerSetting) -> list[object]:
    default = _shown(one.default) if one.value != one.default else "="
    return [one.key, _shown(one.value), default, one.origin, "live" if one.live else "restart"]


def _shown(text: str) -> str:
    """Return TEXT, JSON, for people: a string without its quotes."""
    return (json.loads(text) or '""') if text.startswith('"') else text or "-"
