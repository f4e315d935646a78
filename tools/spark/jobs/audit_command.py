"""`pocketmq spark audit`: do log, queues and index of stores agree? Exit code 1 where something is wrong."""

from __future__ import annotations

from typing import Any

import click

from ....proto.clock import SystemClock
from ...options import (
    TakesStores,
    broker_settings,
    broker_settings_option,
    chosen_stores,
    json_option,
    stores_argument,
)
from .audit import audit as faults_of
from .options import OUT, check_out, running, show, with_options, write


@click.command(cls=TakesStores)
@with_options(stores_argument, broker_settings_option, OUT)
@json_option("a kind of fault of a queue a line")
@click.pass_context
def audit(context: click.Context, /, *, as_json: bool, out: str | None, **given: Any) -> None:
    """Hold log, queues and index of stores together, and check every record's CRC.

    Exit code 1 where something is wrong.
    """
    stores = chosen_stores(given.pop("stores"))
    settings = broker_settings(given.pop("settings"))
    check_out(out)
    with running(**given) as spark:
        faults = faults_of(spark, *stores, settings=settings).cache()
        if out is not None:
            write(faults, out, SystemClock().unix_ms())
        else:
            show(faults, as_json=as_json, empty="nothing is wrong")
        is_wrong = not faults.isEmpty()
    if is_wrong:
        context.exit(1)
