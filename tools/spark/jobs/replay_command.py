"""`pocketmq spark replay`: stored messages once more, to a cluster that runs."""

from __future__ import annotations

from typing import Any

import click

from ...options import TakesStores, chosen_stores, nameserver_option
from .options import READING, reading_of, running, with_options
from .replay import REPLAYED_FROM
from .replay import replay as send


@click.command(
    cls=TakesStores,
    epilog=f"Each message says where it stood, in its property {REPLAYED_FROM}: repeats are told by that.",
)
@with_options(*READING)
@click.option("--to", metavar="TOPIC", help="Send all to TOPIC.  [default: each to its own]")
@nameserver_option
def replay(*, to: str | None, nameserver: str, **given: Any) -> None:
    """Send stored messages again, at least once: to a topic of a cluster that runs."""
    stores = chosen_stores(given.pop("stores"))
    reading = reading_of(given)
    with running(**given) as spark:
        count = send(spark, *stores, nameserver=nameserver, topic=to, reading=reading)
    click.echo(f"{count:,} messages sent")
