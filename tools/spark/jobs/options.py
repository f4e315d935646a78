"""Options that the commands of `pocketmq spark` share: which stores and messages, on which Spark, to where.

A job's rows are printed, or written by Spark:

parquet:FOLDER    Parquet files; what was in FOLDER is replaced
json:FOLDER       a JSON object a line; what was in FOLDER is replaced
folder:FOLDER     Parquet files, added to those of earlier runs: snapshotTime=… is a sub-folder a run, and a column
table:NAME        rows added to a table of the session's catalog, with a column snapshotTime

A job that fails says the sentence of the error that a task raised, without the JVM's pages. Spark hands on what Python
raises in a task as text, with its traceback, in which a line names the error where it is one of ours. Anything else
stays as short as it can be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ....proto import errors
from ....proto.errors import ConfigError, PocketMQError
from ...instants import past_instant_of
from ...options import broker_settings, broker_settings_option, stores_argument
from ...output import print_json, print_table
from ...stores.scan.conditions import POLICIES
from ..session import require_pyspark, spark_session
from .reading import Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RAISED: Final = re.compile(r"(?:^|[\s\]])(?:pocketmq\.[\w.]+\.)?([A-Z]\w+): ([^\n]*)")
_TEXT_MAX: Final = 500
FORMS: Final = ("parquet:FOLDER", "json:FOLDER", "folder:FOLDER", "table:NAME")
_SNAPSHOT: Final = "snapshotTime"
_ROWS_MAX: Final = 1_000


@contextmanager
def told_plainly() -> Iterator[None]:
    """Raise a PocketMQError in place of what Spark raises while the block runs."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise plain_error(str(error)) from error


def plain_error(text: str) -> PocketMQError:
    """Return the error of ours that TEXT, of an error of Spark's, tells of; or one with the first line of TEXT."""
    for name, message in _RAISED.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, PocketMQError):
            return kind(message.strip()[:_TEXT_MAX])
    return PocketMQError(f"Spark: {text.strip().splitlines()[0][:_TEXT_MAX]}")


def check_out(out: str | None) -> None:
    """Raise ConfigError unless OUT is one of the forms, or None."""
    if out is None:
        return
    form, colon, place = out.partition(":")
    if not colon or not place or form not in {known.partition(":")[0] for known in FORMS}:
        raise ConfigError(f"--out {out}: write one of {', '.join(FORMS)}", field="out", value=out)


def write(rows: DataFrame, out: str, now_ms: int) -> None:
    """Write ROWS, as of NOW_MS, to OUT, which `check_out` has seen."""
    from pyspark.sql import functions as f

    form, _, place = out.partition(":")
    if form in ("folder", "table"):
        taken = datetime.fromtimestamp(now_ms / 1000, UTC)
        stamp = f.lit(taken).cast("timestamp")
        if form == "table":
            rows.withColumn(_SNAPSHOT, stamp).write.mode("append").saveAsTable(place)
            return
        name = f.lit(taken.strftime("%Y-%m-%dT%H%M%S.%fZ"))
        rows.withColumn(_SNAPSHOT, name).write.mode("append").partitionBy(_SNAPSHOT).parquet(place)
        return
    writer = rows.write.mode("overwrite")
    if form == "json":
        writer.option("ignoreNullFields", "false").json(place)
    else:
        writer.parquet(place)


def show(rows: DataFrame, *, as_json: bool, empty: str) -> None:
    """Print ROWS: an object a line AS_JSON, or a table of at most some; EMPTY is what is said where there are none."""
    if as_json:
        for row in rows.toLocalIterator():
            print_json({name: plain(value) for name, value in row.asDict().items()})
        return
    found = rows.limit(_ROWS_MAX + 1).collect()
    if not found:
        click.echo(empty)
        return
    print_table(rows.columns, [[_cell(value) for value in row] for row in found[:_ROWS_MAX]])
    if len(found) > _ROWS_MAX:
        click.echo(f"… and more: take --json or --out to have more than {_ROWS_MAX:,} rows")


def plain(value: Any) -> Any:
    """Return VALUE as JSON has it: times in ISO 8601, UTC; bytes as text, with escapes where they are none."""
    if isinstance(value, datetime):
        # Spark hands out times without a zone, in the local one.
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    return value


def _cell(value: Any) -> object:
    if value is None:
        return "-"
    return value if isinstance(value, int | float) else str(plain(value))


Function = TypeVar("Function", bound=Callable[..., Any])

OUT: Final = click.option(
    "--out",
    metavar="FORM:PLACE",
    help=f"Write the rows there instead of printing them: {', '.join(FORMS)}.",
)
_MASTER: Final = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Where Spark runs: this machine's cores, or a cluster's master.",
)
_CONF: Final = click.option(
    "--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; may be repeated."
)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Add OPTIONS, and those of every command here, in this order."""

    def add(function: Function) -> Function:
        for option in reversed((*options, _MASTER, _CONF)):
            function = option(function)
        return function

    return add


@contextmanager
def running(master: str, conf: Sequence[str]) -> Iterator[SparkSession]:
    """Give a session on MASTER with Spark's settings CONF; what fails in it is told in a sentence.

    It is stopped afterwards, unless it was there before.
    """
    settings = parse_conf(conf)
    require_pyspark()
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    with told_plainly():
        spark = spark_session("pocketmq", master=master, settings=settings)
        try:
            yield spark
        finally:
            if there is None:
                spark.stop()


def parse_conf(conf: Sequence[str]) -> dict[str, str]:
    """Return CONF, each "KEY=VALUE", by key; UsageError for anything else."""
    found = {}
    for setting in conf:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--conf {setting}: write it as KEY=VALUE")
        found[name] = value
    return found


TOPIC: Final = click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic; may be repeated."
)
SINCE: Final = click.option(
    "--since", metavar="TIME", help="Only messages stored at TIME or later."
)
UNTIL: Final = click.option("--until", metavar="TIME", help="Only messages stored before TIME.")
BAD_RECORDS: Final = click.option(
    "--bad-records",
    type=click.Choice([policy for policy in POLICIES if policy != "rows"]),
    default="fail",
    show_default=True,
    help="Bytes that should be a record and are none: stop there, or leave them out and go on.",
)
#: The options of every job that reads messages.
READING: Final[tuple[Callable[[Any], Any], ...]] = (
    stores_argument,
    broker_settings_option,
    TOPIC,
    SINCE,
    UNTIL,
    BAD_RECORDS,
)


def reading_of(given: dict[str, Any]) -> Reading:
    """Return what the options GIVEN say, and take them out."""
    since, until = given.pop("since"), given.pop("until")
    policy = given.pop("bad_records")
    return Reading(
        topics=given.pop("topics"),
        since_ms=None if since is None else past_instant_of(since),
        until_ms=None if until is None else past_instant_of(until),
        bad_records=policy,
        fail_on_data_loss=policy == "fail",
        settings=broker_settings(given.pop("settings")),
    )
