"""`pocketmq inspect STORE [VIEW]`: shows the content of a store; it writes nothing.

    inspect STORE                      an overview, within a second for a store of any size (overview.py)
    inspect STORE VIEW …               one part of it: log, record, queue, index, … (VIEWS below)
    inspect STORE --recovery BROKER    a summary of the store after recovery by a broker
    inspect STORE --json               the same (by default after recovery by Apache RocketMQ) as one JSON document

Views read the files as they are. The last two forms open the store as a broker does, on an overlay in memory, and read
every record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import click

from ...proto.clock import SystemClock
from ...store.apache.settings import ApacheSettings
from ...store.os_disk import OsDisk
from ..lazy_group import LazyGroup
from ..options import broker_settings, broker_settings_option, store_argument, stores_taken_out
from ..stores import RECOVERIES
from .output import Inspected

#: View, (module and object, what it shows).
VIEWS: Final[dict[str, tuple[str, str]]] = {
    "overview": (
        "overview_command:overview",
        "Show files, topics, groups and health: the default.",
    ),
    "log": ("log_listing:log", "List the records of the commit log, or follow it."),
    "record": ("record:record", "Show one record: every field with its bytes."),
    "queue": ("queue_listing:queue", "List the entries of one consume queue."),
    "index": ("index_listing:index", "List the index files, or the entries of one."),
    "checkpoint": ("state:checkpoint", "Show how far each part is on disk."),
    "offsets": ("state:offsets", "List committed offsets, with the offsets of their queues."),
    "topics": ("state:topics", "List topics and their configuration."),
    "groups": ("state:groups", "List consumer groups and their configuration."),
    "schedule": ("pending_views:schedule", "List delay levels and the messages that are due next."),
    "timer": ("pending_views:timer", "Show scheduled messages: checkpoint, wheel, timer log."),
    "tables": ("tables:tables", "Show the broker's own tables, and damage in their journal."),
    "transactions": (
        "pending_views:transactions",
        "List half messages without commit or rollback.",
    ),
    "verify": ("verify_command:verify", "Check the whole store: log, queues, index, CRC."),
}


class Views(LazyGroup):
    """Views of a store. Options may be before or after STORE."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words, stores = stores_taken_out(args)
        return super().parse_args(ctx, self._options_first([*stores, *words]))

    def _options_first(self, args: Sequence[str]) -> list[str]:
        """Return ARGS with the options between STORE and a view moved before STORE, where click reads them."""
        takes_value = {
            name: not getattr(one, "is_flag", False)
            for one in self.params
            if isinstance(one, click.Option)
            for name in one.opts
        }
        options: list[str] = []
        words: list[str] = []
        rest = list(args)
        while rest and len(words) < 2:
            word = rest.pop(0)
            if not word.startswith("-") or word == "-":
                words.append(word)
                continue
            options.append(word)
            if takes_value.get(word) and rest:
                options.append(rest.pop(0))
        return [*options, *words, *rest]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VIEWS and not ctx.resilient_parsing:
            raise click.UsageError(f"{args[0]!r} is not a view. Views: {', '.join(VIEWS)}.", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Views,
    sections={"Views": VIEWS},
    package=__package__,
    invoke_without_command=True,
    subcommand_metavar="[VIEW [ARGS]...]",
)
@store_argument
@broker_settings_option
@click.option(
    "--recovery",
    type=click.Choice(RECOVERIES),
    help="Show the store after recovery by Apache RocketMQ 5.5.0 (apache), or by PocketMQ (pocketmq).",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the store after recovery (default: apache) as one JSON object; with VIEW, the view.",
)
@click.option(
    "--follow", is_flag=True, help="Print new records as they arrive, like `log --follow`."
)
@click.pass_context
def inspect(
    context: click.Context,
    *,
    store: str,
    settings: Sequence[str],
    recovery: str | None,
    as_json: bool,
    follow: bool,
) -> None:
    """Show the contents of a store without changing it.

    Prints an overview, or the VIEW of one part. The store may be live, stopped, copied or damaged, of PocketMQ or of
    Apache RocketMQ. File sizes are read from its files; if none are left, give them with --broker-conf.

    \b
    Examples: pocketmq inspect data/store
              pocketmq inspect data/store queue orders 0

    Exit code 1: a broker would refuse the store, or a view found a fault; 3: no such record, queue or file.
    """
    given = broker_settings(settings)
    ApacheSettings.of(given)  # Refuse a wrong setting with any view.
    context.obj = Inspected(store, given, as_json and context.invoked_subcommand is not None)
    if context.invoked_subcommand is not None:
        if recovery or follow:
            raise click.UsageError("--recovery and --follow cannot be used with a VIEW.")
        return
    if follow:
        _run_view(context, "log", ["--follow", *(["--jsonl"] if as_json else [])])
    elif recovery or as_json:
        _describe(context, store, given, recovery or RECOVERIES[0], as_json)
    else:
        _run_view(context, "overview", [])


def _run_view(context: click.Context, view: str, arguments: list[str]) -> None:
    command = inspect.get_command(context, view)
    assert command is not None
    with command.make_context(view, arguments, parent=context) as view_context:
        command.invoke(view_context)


def _describe(
    context: click.Context, store: str, given: Mapping[str, str], recovery: str, as_json: bool
) -> None:
    """Print STORE after recovery; exit with 1 if the broker would refuse it."""
    from ...store.file_sizes import settings_of
    from .document import describe_apache, describe_ours
    from .summary import print_summary

    describe = describe_apache if recovery == "apache" else describe_ours
    chosen = settings_of(OsDisk(), store, given)
    document = describe(store, given, chosen, SystemClock().unix_ms(), lookups=as_json)
    if as_json:
        click.echo(json.dumps(document, ensure_ascii=True))
    else:
        print_summary(store, document)
    if not document["accepted"]:
        context.exit(1)
