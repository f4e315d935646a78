"""`pocketmq spark export`: messages to Parquet, in folders by topic and day."""

from __future__ import annotations

from typing import Any

import click

from ....proto.errors import ConfigError
from ...options import TakesStores, chosen_stores
from .export import export as write_messages
from .options import READING, reading_of, running, with_options


@click.command(cls=TakesStores)
@with_options(*READING)
@click.option("--to", required=True, metavar="FOLDER", help="Where the files go: a path or a URL.")
@click.option(
    "--mode",
    type=click.Choice(("new", "add", "replace")),
    default="new",
    show_default=True,
    help="FOLDER must be new; or files are added; or the topics and days that are written replace those there.",
)
def export(*, to: str, mode: Any, **given: Any) -> None:
    """Write messages to Parquet files, partitioned by topic and day of the store time, in UTC."""
    stores = chosen_stores(given.pop("stores"))
    reading = reading_of(given)
    if "=" in to.rsplit("/", 1)[-1]:
        raise ConfigError(f"--to {to}: Spark takes name=value in a path for a column", field="to")
    with running(**given) as spark:
        done = write_messages(spark, *stores, to=to, reading=reading, mode=mode)
    click.echo(f"{done.messages:,} messages, {done.size_bytes:,} bytes of log, to {to}")
