"""`pocketmq inspect STORE`: what a broker would make of a store, worked out without writing a byte.

Exit codes: 0 a broker would accept the store, 1 it would refuse it (the description is printed all the same), 2 wrong
arguments.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from ...proto.clock import SystemClock
from ...store.os_disk import OsDisk
from .document import describe_apache
from .ours import describe_ours
from .sizes import settings_of
from .summary import print_summary

_DESCRIBE = {"apache": describe_apache, "ours": describe_ours}


@click.command()
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of Apache's broker (mappedFileSizeCommitLog=65536); may be repeated.",
)
@click.option(
    "--recovery",
    type=click.Choice(tuple(_DESCRIBE)),
    default="apache",
    show_default=True,
    help="Whose recovery: Apache RocketMQ 5.5.0's, or ours.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the whole description as one JSON object."
)
@click.pass_context
def inspect(
    context: click.Context, *, store: str, settings: Sequence[str], recovery: str, as_json: bool
) -> None:
    """Describe the store in the folder STORE as a broker would see it.

    The store may be live, stopped, copied or damaged, and of either broker. Sizes of its files are taken from the files
    where they tell; say them with --set where the store has none left.
    """
    given = _parsed(settings)
    chosen = settings_of(OsDisk(), store, given)
    document = _DESCRIBE[recovery](store, given, chosen, SystemClock().now_ms(), lookups=as_json)
    if as_json:
        click.echo(json.dumps(document, ensure_ascii=True))
    else:
        print_summary(store, document)
    if not document["accepted"]:
        context.exit(1)


def _parsed(settings: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"--set {setting}: write it as KEY=VALUE, as in broker.conf.")
        given[name] = value
    return given
