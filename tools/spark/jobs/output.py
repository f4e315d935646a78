"""The rows of a job: printed, or written by Spark to a place of one of these forms:

parquet:FOLDER    Parquet files; what was in FOLDER is replaced
json:FOLDER       a JSON object a line; what was in FOLDER is replaced
folder:FOLDER     Parquet files, added to those of earlier runs: each run is a sub-folder snapshot_time=…, and a column
table:NAME        rows added to a table of the session's catalog, with a column snapshot_time
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from ....proto.errors import ConfigError
from ...output import print_json, print_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMS: Final = ("parquet:FOLDER", "json:FOLDER", "folder:FOLDER", "table:NAME")
_SNAPSHOT: Final = "snapshot_time"
_ROWS_MAX: Final = 1_000


def check_out(out: str | None) -> None:
    """Raise ConfigError unless OUT is one of the forms, or None."""
    if out is None:
        return
    form, colon, place = out.partition(":")
    if not colon or not place or form not in {known.partition(":")[0] for known in FORMS}:
        raise ConfigError(
            f"--output {out}: write one of {', '.join(FORMS)}", field="out", value=out
        )


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
        click.echo(f"… and more: take --json or --output to have more than {_ROWS_MAX:,} rows")


def plain(value: Any) -> Any:
    """Return VALUE as JSON has it: times in ISO 8601, UTC; bytes as text, with escapes where they are none."""
    if isinstance(value, datetime):
        # Spark delivers times without a zone, in the local one.
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
