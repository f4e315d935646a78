"""`pocketmq doctor STORE`: the effects of a power cut or of a start of either broker on a store; it writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ...proto import speedups
from ...proto.clock import SystemClock
from ...store.file_sizes import settings_of
from ...store.os_disk import OsDisk
from ..options import StoreCommand, broker_settings, broker_settings_option, store_argument
from ..output import print_json
from .diagnosis import diagnose
from .report import print_diagnosis


@click.command(cls=StoreCommand)
@store_argument
@click.option(
    "--what-if",
    type=click.Choice(("crash",)),
    help="Check the store as if its broker were killed now.",
)
@broker_settings_option
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as one JSON object.")
@click.pass_context
def doctor(
    context: click.Context,
    *,
    store: str,
    what_if: str | None,
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Show what a start of the broker would cut, rebuild and lose.

    Prints for PocketMQ and for Apache RocketMQ where each would cut the log, what it would rebuild, which messages it
    would lose and why. The store may be live, stopped, copied or damaged, of either broker; it is only read.

    \b
    Example: pocketmq doctor data/store --what-if crash

    Exit code 1: messages would be lost or served damaged, a cleanly stopped store would be rebuilt, or a broker would
    refuse the store.
    """
    chosen = settings_of(OsDisk(), store, broker_settings(settings))
    diagnosis = diagnose(store, chosen, SystemClock().unix_ms(), crash=what_if == "crash")
    if as_json:
        print_json(diagnosis.to_json() | {"code": speedups.running()})
    else:
        print_diagnosis(diagnosis)
    if not diagnosis.is_safe:
        context.exit(1)
