"""`pocketmq console`: the address of a broker's console, and a browser that shows it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import webbrowser
from http import HTTPStatus
from typing import Final

import click

from ...proto.errors import Disconnected

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
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
def console(broker: str, *, no_browser: bool) -> None:
    """Show the console of the broker on this machine in a browser."""
    address = f"http://{broker}/"
    try:
        with _DIRECT.open(f"{address}api/session", timeout=_TIMEOUT_S) as answer:
            json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.UNAUTHORIZED:  # Where there are users, the page asks who it is.
            told = json.loads(error.read() or b"{}").get("message", error.reason)
            raise Disconnected(f"the console at {address} is not to be had: {told}") from error
    except (OSError, ValueError) as error:
        raise Disconnected(
            f"no console answers at {address}: {error}; start a broker with `pocketmq serve`"
        ) from error
    click.echo(address)
    if not no_browser:
        webbrowser.open(address)
