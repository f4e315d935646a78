"""Options that several verbs share."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..client.name_server_addresses import DEFAULT_NAME_SERVERS, NAMESERVER_VARIABLE
from ..proto.errors import ConfigError, InvalidArgument
from ..proto.time_text import parse_duration
from ..proto.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, TLS_VARIABLE
from .stores import RECOVERIES

if TYPE_CHECKING:
    from ..client.config import ReadFrom

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: Offsets have 64 bits on the wire and on disk; other numbers have 32.
OFFSET: Final = click.IntRange(0, 2**63 - 1)
NUMBER: Final = click.IntRange(0, 2**31 - 1)
COUNT: Final = click.IntRange(1, 2**31 - 1)
#: A command waits up to a year.
WAIT_MAX_MS: Final = 365 * 86_400_000

#: The line that a server prints when it serves begins with this; a JSON object follows.
READY: Final = "ready "


class Seconds(click.FloatRange):
    """A number of seconds from MIN to MAX, or a duration with units: "1.5", "90s", "1m30s"."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = value
        if isinstance(value, str) and value[-1:].isalpha() and value[:1].isdigit():
            try:
                seconds = parse_duration(value) / 1000
            except InvalidArgument as error:
                self.fail(f"{error.message}.", param, ctx)
        found = super().convert(seconds, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return found


def with_options(*options: Decorator) -> Decorator:
    """Return what adds OPTIONS to a command, in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def help_with_default(text: str, default: str, *, shown: bool) -> str:
    """Return the help TEXT of an option, with its DEFAULT if that is SHOWN."""
    return f"{text}  [default: {default}]" if shown else text


def tls_options(function: Function) -> Function:
    """Add --tls and what goes with it: clients that the command makes find it in the environment."""
    file = click.Path(exists=True, dir_okay=False)
    told: list[tuple[str, str, dict[str, Any], str]] = [
        ("--tls", TLS_VARIABLE, {"is_flag": True, "flag_value": "1"}, "Use TLS."),
        (
            "--tls-ca",
            CA_VARIABLE,
            {"type": file},
            "PEM file of the authority that signed the servers' certificates; turns on TLS.",
        ),
        (
            "--tls-cert",
            CERT_VARIABLE,
            {"type": file},
            "PEM file of the client's certificate; turns on TLS.",
        ),
        ("--tls-key", KEY_VARIABLE, {"type": file}, "PEM file of the key of --tls-cert."),
    ]
    for name, variable, kind, text in reversed(told):
        function = click.option(
            name,
            default=None,
            expose_value=False,
            callback=partial(_into_environment, variable),
            help=f"{text}  [env var: {variable}]",
            **kind,
        )(function)
    return function


def _into_environment(
    variable: str, context: click.Context, parameter: click.Parameter, value: str | None
) -> None:
    """Set VARIABLE to VALUE while the command runs, if it was given."""
    if value is None:
        return
    before = os.environ.get(variable)
    os.environ[variable] = value

    def undo() -> None:
        if before is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = before

    context.call_on_close(undo)


#: --yes, without which the command asks (`confirm`).
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str) -> None:
    """Ask QUESTION; return if the answer is yes, else raise Abort. Without a terminal raise UsageError."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Standard input is not a terminal: give --yes.")
    click.confirm(question, abort=True)


def nameserver_option(function: Function) -> Function:
    """Add --nameserver: the option, then the environment, then the default; and `tls_options`."""
    return click.option(
        "--nameserver",
        metavar="HOST:PORT[,…]",
        envvar=NAMESERVER_VARIABLE,
        default=DEFAULT_NAME_SERVERS,
        show_default=True,
        show_envvar=True,
        help="Addresses of the name servers.",
    )(tls_options(function))


def cluster_option(function: Function) -> Function:
    """Add --nameserver to a command that also reads stores, None unless it is given; and `tls_options`."""
    return click.option(
        "--nameserver",
        metavar="HOST:PORT[,…]",
        envvar=NAMESERVER_VARIABLE,
        show_envvar=True,
        help=f"Ask the brokers of this cluster.  [default, without a STORE: {DEFAULT_NAME_SERVERS}]",
    )(tls_options(function))


def pattern_options(function: Function) -> Function:
    """Add --topic and --group, patterns of names."""
    from .completion import group_names, topic_names  # It imports the client.

    for name, what, complete in (("group", "G", group_names), ("topic", "orders", topic_names)):
        function = click.option(
            f"--{name}",
            shell_complete=complete,
            metavar="PATTERN",
            default="*",
            show_default=True,
            help=f"Only {name}s whose names match ({what}*).",
        )(function)
    return function


def read_from_option(what: str) -> Callable[[Function], Function]:
    """Add --read-from, None unless it is given; "any": followers do WHAT."""
    from ..client.config import READ_FROM  # A command without this option needs no client.

    return click.option(
        "--read-from",
        type=click.Choice(READ_FROM),
        help=f"any: followers {what}.  [default: master]",
    )


def read_from_of(given: ReadFrom | None, stores: Sequence[str] = ()) -> ReadFrom:
    """Return GIVEN, or the default of --read-from; raise UsageError if STORES are given: no replica is asked then."""
    if stores and given is not None:
        raise click.UsageError(
            "--read-from is for live brokers: leave it out, or leave out the STORE."
        )
    return given or "master"


def json_option(what: str) -> Callable[[Function], Function]:
    """Add --json, which prints WHAT."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what}, for programs.")


class StoreCommand(click.Command):
    """A command that takes stores as arguments and with --store: a `stores_argument` or a `store_argument`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words, stores = stores_taken_out(args)
        return super().parse_args(ctx, [*words, *stores])


def stores_taken_out(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return ARGS without the options --store, and the values of these."""
    words: list[str] = []
    stores: list[str] = []
    rest = iter(args)
    for word in rest:
        name, equals, value = word.partition("=")
        if word == "--":
            return [*words, word, *rest], stores
        if name != "--store":
            words.append(word)
        elif equals:
            stores.append(value)
        else:
            following = next(rest, None)
            if following is None:
                return [*words, word], stores  # click says what is missing.
            stores.append(following)
    return words, stores


store_option = click.option(
    "--store",
    "_stores_by_option",
    metavar="STORE",
    multiple=True,
    expose_value=False,
    help="Another way to give a STORE.",
)


def stores_argument(function: Function) -> Function:
    """Add any number of STOREs: folders, patterns, URLs."""
    stores = click.argument("stores", nargs=-1, metavar="[STORE]…", callback=_opening_many_files)
    return stores(store_option(function))


def store_argument(function: Function) -> Function:
    """Add one STORE, a folder of this machine."""
    store = click.argument("store", type=StoreFolder(), callback=_opening_many_files)
    return store(store_option(function))


def _opening_many_files(_: click.Context, __: click.Parameter, value: T) -> T:
    """Let a command open as many files as the system allows: each queue of a store has files of its own."""
    if value:
        from ..store.open_files import allow_many_files

        allow_many_files()
    return value


def chosen_stores(stores: Sequence[str]) -> Sequence[str]:
    """Return STORES; raise UsageError if there are none."""
    if not stores:
        raise click.UsageError("Give a STORE: a folder, a pattern over many brokers, or a URL.")
    return stores


class StoreFolder(click.Path):
    """An argument that names one local store: a folder that `stores/locations.py` takes for one."""

    name = "store"

    def __init__(self) -> None:
        super().__init__(file_okay=False)  # For shells that complete it; `convert` is what checks.

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return VALUE with `~` expanded; fail if it holds no store."""
        from .stores.locations import check_store

        path = os.path.expanduser(value)
        try:
            check_store(path)
        except ConfigError as error:
            self.fail(error.message, param, ctx)
        return path


#: Time between two reports of --watch.
_INTERVAL: Final = "30s"
_DURATION: Final = re.compile(r"[0-9.]+(ms|s|m|h|d)")
#: --broker-conf KEY=VALUE, repeatable; `broker_settings` reads it.
broker_settings_option = click.option(
    "--broker-conf",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Setting of the store's broker, as in broker.conf (mappedFileSizeCommitLog=65536). Repeatable.",
)
#: --watch, --interval and --iterations; `watch_interval_ms` reads them.
watch_options = with_options(
    click.option(
        "--watch", is_flag=True, help="Repeat until the command is interrupted, and show changes."
    ),
    click.option(
        "--interval",
        metavar="30s",
        help=f"With --watch: time between two reports, 1ms or longer.  [default: {_INTERVAL}]",
    ),
    click.option("--iterations", type=COUNT, help="With --watch: number of reports, then stop."),
)


def watch_interval_ms(
    watch: bool, interval: str | None, iterations: int | None, stores: Sequence[str]
) -> int | None:
    """Return the time between reports in ms; None: one report. Raises UsageError, InvalidArgument."""
    if watch and stores and _DURATION.fullmatch(stores[-1]):
        raise click.UsageError(f"--watch has no value. Use --watch --interval {stores[-1]}.")
    if not watch:
        for name, value in (("--interval", interval), ("--iterations", iterations)):
            if value is not None:
                raise click.UsageError(f"{name} needs --watch.")
        return None
    interval = interval or _INTERVAL
    interval_ms = parse_duration(interval, field="--interval", max_ms=WAIT_MAX_MS)
    if not interval_ms:
        raise click.UsageError(
            f"--interval {interval} is too short: give 1ms or more, such as {_INTERVAL}."
        )
    return interval_ms


#: --recovery, by the names of `stores/__init__.py`.
recovery_option = click.option(
    "--recovery",
    type=click.Choice(RECOVERIES),
    default=RECOVERIES[0],
    show_default=True,
    help="Show the store as it is after recovery by Apache RocketMQ 5.5.0 (apache), or by PocketMQ (pocketmq).",
)
#: --broker-name, for a store whose files do not contain the name.
broker_name_option = click.option(
    "--broker-name",
    metavar="NAME",
    help="Name of the broker of the STORE.  [default: from its files]",
)


def broker_settings(words: Sequence[str]) -> dict[str, str]:
    """Return the settings in WORDS, KEY=VALUE each, by RocketMQ's names. Raises click.UsageError."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"--broker-conf {word}: write KEY=VALUE, as in broker.conf.")
        given[name] = value
    return given
