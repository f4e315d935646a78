"""`pocketmq console`: opens the console of a broker in a browser, or serves a console of all brokers."""

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
#: Ignores proxies of the environment: the console is on this machine.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@click.command()
@click.option(
    "--broker",
    metavar="HOST:PORT",
    default="127.0.0.1:8081",
    show_default=True,
    help="Address of a broker on this machine.",
)
@click.option(
    "--serve",
    "serves",
    is_flag=True,
    help="Serve a console of all brokers until Ctrl-C, with the permissions of $POCKETMQ_USER.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8090,
    show_default=True,
    help="Port of --serve, on 127.0.0.1; 0: a free port.",
)
@click.option("--no-browser", is_flag=True, help="Print the address, but open no browser.")
@nameserver_option
def console(broker: str, *, serves: bool, port: int, no_browser: bool, nameserver: str) -> None:
    """Open the web console of a broker.

    Prints its address, and opens it in a browser. Without --serve it is the console of one broker on this machine.

    \b
    Example: pocketmq console --serve --nameserver 10.0.0.1:9876
    """

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
        if error.code != HTTPStatus.UNAUTHORIZED:  # If there are users, the page asks for one.
            reason = json.loads(error.read() or b"{}").get("message", error.reason)
            raise ConnectionLost(f"the console at {address} refuses: {reason}") from error
    except (OSError, ValueError) as error:
        raise ConnectionLost(
            f"no console at {address}: {error}. Start a broker with `pocketmq serve`"
        ) from error
    show(address)
