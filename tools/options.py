"""Options that several verbs share, and what verbs say to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"
#: How the line begins by which a server says that it serves; a JSON object follows.
READY: Final = "ready "
NAMESERVER_VARIABLE: Final = "POCKETMQ_NAMESERVER"


def nameserver_option(function: Function) -> Function:
    """Add --nameserver: the option, then the environment, then the usual place."""
    return click.option(
        "--nameserver",
        metavar="HOST:PORT[,…]",
        envvar=NAMESERVER_VARIABLE,
        default=DEFAULT_NAMESERVER,
        show_default=True,
        show_envvar=True,
        help="Name servers to ask.",
    )(function)


def json_option(what: str) -> Callable[[Function], Function]:
    """Add --json, which prints WHAT."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what}, for programs.")
