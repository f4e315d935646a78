"""`pocketmq export`: writes messages of stores to Parquet files by topic and day, without a broker."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from ..proto.clock import SystemClock
from .counted import counted
from .instants import past_instant_of
from .options import StoreCommand, broker_name_option, chosen_stores, json_option, stores_argument
from .output import print_json
from .partitioned_files import COMPRESSIONS, PartitionedFiles, Written
from .stores.cold_store import open_cold
from .stores.locations import StoreLocation, locate
from .stores.names import KnownNames
from .stores.scan.bad_records import BadRecords
from .stores.scan.conditions import Conditions, Span
from .stores.scan.scan import Scan, ScanOptions
from .stores.schemas import schema_of


@click.command(cls=StoreCommand)
@stores_argument
@click.option(
    "--output", "target", required=True, metavar="DIR", help="New or empty folder for the files."
)
@click.option(
    "--since", "begin", metavar="TIME", help="Only messages stored at this time or later."
)
@click.option("--until", metavar="TIME", help="Only messages stored before this time.")
@click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic. Repeatable."
)
@click.option("--system", is_flag=True, help="Also system topics, which hold delayed messages.")
@click.option(
    "--columns", metavar="NAME[,…]", help="Only these columns.  [default: all but raw_properties]"
)
@click.option(
    "--bad-records",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="At damaged bytes: stop, or leave them out and count them.",
)
@click.option(
    "--check-crc", is_flag=True, help="Treat a body that does not match its CRC as damaged."
)
@click.option(
    "--stored-bodies", is_flag=True, help="Write bodies as stored, without decompressing them."
)
@click.option("--data-loss-ok", is_flag=True, help="Continue if a log file is missing.")
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default=COMPRESSIONS[0],
    show_default=True,
    help="Compression of the Parquet files.",
)
@broker_name_option
@json_option("the result")
def export(*, stores: tuple[str, ...], target: str, as_json: bool, **options: Any) -> None:
    """Write messages of stores to Parquet files.

    The files are DIR/topic=T/day=D/*.parquet, with days of the store time in UTC, and the columns of `pocketmq spark`.
    STORE is a folder, a URL (s3://bucket/store), or a pattern over many brokers ("/data/broker-*/store"). TIME is
    2026-12-24T18:00:00, with Z or +01:00 if it is not local time, or Unix milliseconds.

    \b
    Example: pocketmq export data/store --output parquet --topic orders --since 2026-12-01

    Exit code 6: bytes are damaged.
    """
    locations = locate(chosen_stores(stores), broker_name=options["broker_name"])
    scan = Scan(_scan_options(options), _conditions(options))
    scan.options.schema()
    with_system = bool(options["system"] or options["topics"])
    files = PartitionedFiles(Path(target), options["compression"], with_system=with_system)
    bad = BadRecords(scan.options.bad_records)
    try:
        for task in scan.plan(locations):
            for batch in scan.read(task, bad):
                files.add(task.location.broker_name, batch)
        _check_topics(options["topics"], files.topics, locations)
        written = files.finish()
    except BaseException:  # Remove incomplete files after an interruption, too.
        files.give_up()
        raise
    _report(written, bad, target, as_json=as_json)


def _check_topics(
    wanted: Sequence[str], found: Collection[str], locations: Iterable[StoreLocation]
) -> None:
    """Raise TopicNotFound for a WANTED topic that is neither FOUND among the messages nor known to a store."""
    missing = [topic for topic in wanted if topic not in found]
    if missing:
        known = KnownNames()
        for location in locations:
            known.add_store(open_cold(location, now_ms=SystemClock().unix_ms(), index=False))
        known.check(topics=missing)


def _scan_options(options: dict[str, Any]) -> ScanOptions:
    columns = None
    if options["columns"]:
        asked = [name.strip() for name in options["columns"].split(",")]
        known = schema_of("messages").names
        columns = tuple(dict.fromkeys((*asked, *(name for name in known if name in _OF_FOLDERS))))
    return ScanOptions(
        columns=columns,
        bad_records=options["bad_records"],
        check_crc=options["check_crc"],
        decompress=not options["stored_bodies"],
        fail_on_data_loss=not options["data_loss_ok"],
    )


#: Columns from which the folder of a file is made.
_OF_FOLDERS = ("topic", "store_timestamp")


def _conditions(options: dict[str, Any]) -> Conditions:
    span = Span()
    if options["begin"]:
        span &= Span(low=past_instant_of(options["begin"]))
    if options["until"]:
        span &= Span(high=past_instant_of(options["until"]) - 1)
    topics = frozenset(options["topics"]) if options["topics"] else None
    return Conditions(topics=topics, store_ms=span)


def _report(written: Written, bad: BadRecords, target: str, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "rows": written.rows,
                "files": written.files,
                "bytes": written.bytes,
                "bad_records": bad.count,
                "bad_bytes": bad.bytes,
                "path": target,
            }
        )
        return
    click.echo(
        f"{counted(written.rows, 'message')} in {counted(written.files, 'file')}, {written.bytes:,} bytes: {target}"
    )
    if bad.count:
        click.echo(bad.sentence(), err=True)
