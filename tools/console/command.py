"""`pocketmq console`: the address of a broker's console, or the console of several, and a browser that shows it."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
import webbrowser
from http import HTTPStatus
from typing import Final

import click

from ...proto.errors import ConnectionLost
from ..options import nameserver_option

_TIMEOUT_S: Final = 30
#: On this machine, whatever proxy the environment names.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@click.command()
@click.option(
    "--broker",
    metavar="HOST:PORT",
    default="127.0.0.1:8081",
    show_default=True,
    help="The broker's port, on this machine.",
)
@click.option(
    "--serve",
    "serves",
    is_flag=True,
    help="Serve a console of all brokers that the name servers know, as the user of $POCKETMQ_USER, until Ctrl-C.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8090,
    show_default=True,
    help="Where --serve listens, on 127.0.0.1; 0: any free port.",
)
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
@nameserver_option
def console(broker: str, *, serves: bool, port: int, no_browser: bool, nameserver: str) -> None:
    """Show the console of the broker on this machine, or of all brokers, in a browser."""

    def show(address: str) -> None:
        click.echo(address)
        if not no_browser:
            webbrowser.open(address)

    if serves:
        from .brokers_site import serve_console

        asyncio.run(serve_console(nameserver, port, show))
        return
    address = f"http://{broker}/"
    try:
        with _DIRECT.open(f"{address}api/session", timeout=_TIMEOUT_S) as answer:
            json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.UNAUTHORIZED:  # Where there are users, the page asks who it is.
            told = json.loads(error.read() or b"{}").get("message", error.reason)
            raise ConnectionLost(f"the console at {address} is not to be had: {told}") from error
    except (OSError, ValueError) as error:
        raise ConnectionLost(
            f"no console answers at {address}: {error}; start a broker with `pocketmq serve`"
        ) from error
    show(address)
