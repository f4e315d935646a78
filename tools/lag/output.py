"""Lag rows for people, for programs and in files."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from ...proto.errors import ConfigError
from ...proto.time_text import format_duration
from ..counted import counted
from ..output import print_table
from .rows import COLUMNS, LagRow, lag_batch
from .snapshots import LagProgress, document_of

_TITLES: Final = (
    "broker", "topic", "queue", "group", "committed", "min", "max", "lag", "bytes", "oldest", "verdict",
)  # fmt: skip
_RATES: Final = ("read/s", "written/s", "caught up in")
_ROWS_MAX: Final = 1_000
#: The forms that `--output` writes, by the ending of the file's name.
FORMS: Final = (".json", ".jsonl", ".csv", ".parquet")


def print_rows(
    found: Sequence[LagProgress], *, as_json: bool, with_rates: bool, empty: str = "no rows"
) -> None:
    """Print FOUND: a row a line as JSON, or a table with a line that sums it up. EMPTY says why there is no row."""
    if as_json:
        documents = (one.to_json() if with_rates else one.row.to_json() for one in found)
        if lines := [json.dumps(document, ensure_ascii=False) for document in documents]:
            click.echo("\n".join(lines))
        return
    titles = [*_TITLES, *(_RATES if with_rates else ()), "because"]
    print_table(titles, [_cells(one, with_rates=with_rates) for one in found[:_ROWS_MAX]])
    if len(found) > _ROWS_MAX:
        click.echo(
            f"… and {counted(len(found) - _ROWS_MAX, 'row')} more: choose some with --group or --topic, or take --json"
        )
    click.echo(_summary([one.row for one in found]) if found else empty)


def _cells(one: LagProgress, *, with_rates: bool) -> list[object]:
    row, facts = one.row, one.row.facts
    age = None if row.oldest_unread_age_ms is None else _rounded(row.oldest_unread_age_ms)
    numbers = (facts.committed_offset, facts.min_offset, facts.max_offset, row.lag, row.lag_bytes)
    cells: list[object] = [
        *(row.broker_name, facts.topic, facts.queue_id, facts.group),
        *("-" if number is None else f"{number:,}" for number in numbers),
        age or "-",
        row.verdict.text,
    ]
    if with_rates:
        cells += [_rate(one.read_per_s), _rate(one.written_per_s), _soon(one.catch_up_s)]
    return [*cells, "; ".join(row.reasons)]


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.1f}"


def _soon(seconds: float | None) -> str:
    return "-" if seconds is None else _rounded(round(seconds * 1000))


def _rounded(duration_ms: int) -> str:
    """Return a length of time in its two largest units."""
    for unit_ms in (86_400_000, 3_600_000, 60_000, 1_000):
        if duration_ms >= unit_ms:
            step = max(1, unit_ms // 60 if unit_ms != 86_400_000 else 3_600_000)
            return format_duration(duration_ms // step * step)
    return format_duration(duration_ms)


def _summary(rows: Sequence[LagRow]) -> str:
    verdicts = Counter(row.verdict.text for row in rows)
    parts = ", ".join(f"{count:,} {verdict}" for verdict, count in verdicts.most_common())
    unread = sum(row.lag or 0 for row in rows)
    size = sum(row.lag_bytes or 0 for row in rows)
    ages = [row.oldest_unread_age_ms for row in rows if row.oldest_unread_age_ms is not None]
    text = f"{counted(len(rows), 'row')}: {parts}; {counted(unread, 'message')} unread"
    text += f", {size:,} bytes" if size else ""
    return text + (f", the oldest for {_rounded(max(ages))}" if ages else "")


def check_out(path: str) -> None:
    """Raise ConfigError for a file that `write_rows` has no form for."""
    if Path(path).suffix not in FORMS:
        raise ConfigError(
            f"--output {path}: the name must end in {', '.join(FORMS)}", field="out", value=path
        )


def write_rows(path: str, rows: Sequence[LagRow], now_ms: int) -> None:
    """Write ROWS, as of NOW_MS, to the file PATH in the form that its ending says; the old file is replaced at once."""
    suffix = Path(path).suffix
    draft = f"{path}.tmp"
    if suffix == ".parquet":
        _write_parquet(draft, rows)
    else:
        Path(draft).write_text(_text(suffix, rows, now_ms), encoding="utf-8", newline="")
    os.replace(draft, path)


def _text(suffix: str, rows: Sequence[LagRow], now_ms: int) -> str:
    if suffix == ".json":
        return json.dumps(document_of(rows, now_ms), ensure_ascii=False) + "\n"
    if suffix == ".jsonl":
        return "".join(json.dumps(row.to_json(), ensure_ascii=False) + "\n" for row in rows)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(_flat(row.values()))
    return text.getvalue()


def _flat(values: Sequence[Any]) -> list[Any]:
    return ["; ".join(value) if isinstance(value, list) else value for value in values]


def _write_parquet(path: str, rows: Sequence[LagRow]) -> None:
    batch = lag_batch(rows)
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_batches([batch]), path)
