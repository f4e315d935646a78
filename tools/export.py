"""Writing rows to Parquet files in folders by topic and day, with bounded memory.

    TARGET/topic=Orders/day=2026-11-21/broker-a-00000.parquet
    TARGET/_SUCCESS

The folders are Hive's, which Spark, pyarrow, DuckDB and others read as columns: `topic`, escaped as in a URL where a
file name must not have it, and `day`, of the store time in UTC. A file appears under its name when it is complete;
_SUCCESS when all are. Rows of a file are in the order in which they came.

Memory: rows wait until there are enough of a kind for a row group, all together at most BUFFER_BYTES; at most
WRITERS_MAX files are open, of which the one that was not written to for longest is closed for another.

`pocketmq export`: messages of stores to Parquet files by topic and day, from the files alone.

Exit codes: 0 done, 2 wrong arguments, 6 damaged bytes (with --bad-records skip they are left out, and counted).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click
import numpy as np

from ..proto.clock import SystemClock
from ..proto.errors import ConfigError, DiskFailure
from ..proto.topics import is_system_topic
from ..store.open_files import allow_many_files
from .counted import counted
from .instants import past_instant_of
from .options import TakesStores, broker_name_option, chosen_stores, json_option, stores_argument
from .output import print_json
from .stores.cold_store import open_cold
from .stores.locations import StoreLocation, locate
from .stores.names import KnownNames
from .stores.scan.conditions import BadRecords, Conditions, Span
from .stores.scan.scan import Scan, ScanOptions
from .stores.schemas import arrow, schema_of

if TYPE_CHECKING:
    import pyarrow

BUFFER_BYTES: Final = 96 << 20
WRITERS_MAX: Final = 64
ROW_GROUP_BYTES: Final = 16 << 20
ROW_GROUP_ROWS: Final = 128 << 10
_DAY_US: Final = 86_400_000_000
_UNKNOWN_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")

#: Topic and day: what a file is of.
Key = tuple[str, str]


@dataclass(slots=True)
class Written:
    """What was written so far."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Waiting:
    """Rows that wait for their row group."""

    batches: list[Any] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class PartitionedFiles:
    """The files below TARGET, which must not exist or be empty. Close it with `finish`, or `give_up`."""

    def __init__(self, target: Path, compression: str = "zstd", *, with_system: bool) -> None:
        """WITH_SYSTEM: system topics too. Raises ConfigError for a folder that holds something."""
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(
                f"--to {target}: something is there already: name a new folder, or empty this one",
                field="to",
                value=target,
            )
        self._target = target
        self._compression = compression
        self._with_system = with_system
        self._waiting: dict[tuple[str, Key], _Waiting] = {}
        self._bytes = 0
        self._writers: OrderedDict[tuple[str, Key], _File] = OrderedDict()
        self._counts: dict[tuple[str, Key], int] = {}
        self.written = Written()
        #: Of all rows.
        self.topics: set[str] = set()

    def add(self, broker: str, batch: pyarrow.RecordBatch) -> None:
        """Take the rows of BATCH, which has the columns topic and storeTimestamp, of BROKER."""
        for key, rows in _by_partition(batch):
            if not self._with_system and is_system_topic(key[0]):
                continue
            self.topics.add(key[0])
            waiting = self._waiting.setdefault((broker, key), _Waiting())
            waiting.batches.append(rows)
            waiting.rows += rows.num_rows
            waiting.bytes += rows.nbytes
            self._bytes += rows.nbytes
            self.written.rows += rows.num_rows
            if waiting.bytes >= ROW_GROUP_BYTES or waiting.rows >= ROW_GROUP_ROWS:
                self._write((broker, key))
        while self._bytes > BUFFER_BYTES:
            self._write(max(self._waiting, key=lambda one: self._waiting[one].bytes))

    def _write(self, place: tuple[str, Key]) -> None:
        """Write what waits for PLACE as one row group."""
        waiting = self._waiting.pop(place)
        self._bytes -= waiting.bytes
        table = arrow().Table.from_batches(waiting.batches)
        self._writer(place, table.schema).write(table)

    def _writer(self, place: tuple[str, Key], schema: Any) -> _File:
        file = self._writers.get(place)
        if file is not None:
            self._writers.move_to_end(place)
            return file
        while len(self._writers) >= WRITERS_MAX:
            _, oldest = self._writers.popitem(last=False)
            self._close(oldest)
        broker, (topic, day) = place
        number = self._counts.get(place, 0)
        self._counts[place] = number + 1
        folder = self._target / f"topic={_escaped(topic)}" / f"day={day}"
        file = _File(folder, f"{_escaped(broker)}-{number:05d}.parquet", schema, self._compression)
        self._writers[place] = file
        return file

    def _close(self, file: _File) -> None:
        self.written.bytes += file.close()
        self.written.files += 1

    def finish(self) -> Written:
        """Write what waits, complete all files, and mark the folder as complete; return what was written."""
        for place in list(self._waiting):
            self._write(place)
        for file in self._writers.values():
            self._close(file)
        self._writers.clear()
        self._target.mkdir(parents=True, exist_ok=True)
        (self._target / "_SUCCESS").touch()
        return self.written

    def give_up(self) -> None:
        """Leave the files that are complete, without the mark, and nothing half-written."""
        for file in self._writers.values():
            file.drop()
        self._writers.clear()


class _File:
    """One Parquet file: hidden under another name until it is complete."""

    def __init__(self, folder: Path, name: str, schema: Any, compression: str) -> None:
        from pyarrow import parquet

        self._path = folder / name
        self._draft = folder / f".{name}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = parquet.ParquetWriter(self._draft, schema, compression=compression)
        except OSError as error:
            raise _failed(self._path, error) from error

    def write(self, table: Any) -> None:
        try:
            self._writer.write_table(table)
        except OSError as error:
            raise _failed(self._path, error) from error

    def close(self) -> int:
        """Complete the file; return its length."""
        try:
            self._writer.close()
            os.replace(self._draft, self._path)
            return self._path.stat().st_size
        except OSError as error:
            raise _failed(self._path, error) from error

    def drop(self) -> None:
        """Remove it."""
        with suppress(OSError):  # What is on the disk goes anyway.
            self._writer.close()
        self._draft.unlink(missing_ok=True)


def _failed(path: Path, error: OSError) -> DiskFailure:
    return DiskFailure(f"{path} cannot be written: {error.strerror or error}", path=path)


def _escaped(name: str) -> str:
    return quote(name, safe="-_.~@+ ")


def _by_partition(batch: pyarrow.RecordBatch) -> list[tuple[Key, pyarrow.RecordBatch]]:
    """Return the rows of BATCH of each topic and day, without the column topic, which the folder says."""
    if not batch.num_rows:
        return []
    topics = batch.column("topic").dictionary_encode()
    days = _days(batch.column("storeTimestamp"))
    codes = topics.indices.to_numpy().astype(np.int64)
    kinds, which = np.unique(np.stack([codes, days]), axis=1, return_inverse=True)
    rows = batch.drop_columns(["topic"])
    found = []
    for number, (code, day) in enumerate(kinds.T.tolist()):
        key = topics.dictionary[code].as_py(), _day_text(day)
        if kinds.shape[1] == 1:
            return [(key, rows)]
        (own,) = np.nonzero(which.reshape(-1) == number)
        found.append((key, rows.take(arrow().array(own))))
    return found


#: No day of a calendar.
_NO_DAY: Final = np.iinfo(np.int64).min


def _days(times: Any) -> Any:
    """Return the day since 1970 of each of TIMES; _NO_DAY for null."""
    micros = times.cast(arrow().int64())
    days = micros.fill_null(0).to_numpy(zero_copy_only=False) // _DAY_US
    if micros.null_count:
        days = np.where(micros.is_null().to_numpy(zero_copy_only=False), _NO_DAY, days)
    return days


def _day_text(day: int) -> str:
    return _UNKNOWN_DAY if day == _NO_DAY else str(np.datetime64(day, "D"))


# ---------------------------------------------------------------- `pocketmq export`


@click.command(cls=TakesStores)
@stores_argument
@click.option("--to", "target", required=True, metavar="DIR", help="A new or empty folder.")
@click.option("--since", "begin", metavar="TIME", help="Stored at TIME or later.")
@click.option("--until", metavar="TIME", help="Stored before TIME.")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--system", is_flag=True, help="Also system topics, where messages wait.")
@click.option(
    "--columns", metavar="NAME[,…]", help="Only these columns.  [default: all but rawProperties]"
)
@click.option(
    "--bad-records",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="Stop at bytes that are no record, or leave them out and count them.",
)
@click.option("--check-crc", is_flag=True, help="A body that does not fit its CRC is a bad record.")
@click.option("--stored-bodies", is_flag=True, help="Bodies as they are stored: not decompressed.")
@click.option("--data-loss-ok", is_flag=True, help="Continue where a log file is missing.")
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default=COMPRESSIONS[0],
    show_default=True,
    help="Compression of the Parquet files.",
)
@broker_name_option
@json_option("what was written")
def export(*, stores: tuple[str, ...], target: str, as_json: bool, **options: Any) -> None:
    """Write messages to DIR/topic=T/day=D/*.parquet: columns as in Spark, days of the store time in UTC.

    STORE is the folder of a store, a URL (s3://bucket/store), or a pattern over many brokers ("/data/broker-*/store").
    TIME is as 2026-12-24T18:00:00, with Z or +01:00 if it is not local time, or Unix milliseconds.
    """
    allow_many_files()
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
    except BaseException:  # Also of an interruption nothing half-written is to stay.
        files.give_up()
        raise
    _report(written, bad, target, as_json=as_json)


def _check_topics(
    wanted: Sequence[str], found: Collection[str], locations: Iterable[StoreLocation]
) -> None:
    """Raise TopicNotFound for a topic that is WANTED, not FOUND among the messages, and that no store knows."""
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


#: A file's folder is made of these.
_OF_FOLDERS = ("topic", "storeTimestamp")


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
                "badRecords": bad.count,
                "badBytes": bad.bytes,
                "path": target,
            }
        )
        return
    click.echo(
        f"{counted(written.rows, 'message')} in {counted(written.files, 'file')}, {written.bytes:,} bytes: {target}"
    )
    if bad.count:
        click.echo(bad.sentence(), err=True)
