"""What views take and print: the store and places in its log; tables for people, JSON for programs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...proto.errors import InvalidArgument
from ...proto.time_text import format_instant
from ...store.os_disk import OsDisk
from ...store.view import StoreView
from .. import terminal
from ..instants import past_instant_of
from ..options import NUMBER, with_options

#: Unix milliseconds and log offsets are both numbers: an instant has a dash or a colon, or says so.
_OFFSET: Final = re.compile(r"[0-9][0-9_,]*")
_INSTANT_MS: Final = re.compile(r"@([0-9]+)")
_OFFSET_MAX: Final = (1 << 63) - 1
#: Default limit of rows in a table; programs get all.
ROWS_SHOWN: Final = 50
_WORD_SIZE_MAX: Final = 60
#: Wide tables are for the terminal to wrap, not for rich to cut.
_LINE_SIZE_MAX: Final = 2000


def offset_or_time(text: str) -> tuple[int | None, int | None]:
    """Return (offset, None) or (None, Unix milliseconds) for TEXT; raises InvalidArgument for anything else.

    Digits are an offset, `@` and digits Unix milliseconds, everything else ISO 8601 (without a zone: local time).
    """
    if _OFFSET.fullmatch(text):
        return offset_of(text), None
    if match := _INSTANT_MS.fullmatch(text):
        return None, past_instant_of(match.group(1))
    try:
        return None, past_instant_of(text)
    except InvalidArgument:
        raise InvalidArgument(
            f"{text[:64]!r} is neither an offset (1048576) nor a time (2026-12-24T18:00:00Z, or @ and Unix"
            " milliseconds)",
            value=text[:64],
        ) from None


def offset_of(text: str) -> int:
    """Return the number in TEXT, which may contain `,` and `_`. Raises InvalidArgument."""
    digits = text.replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        raise InvalidArgument(f"{text[:64]!r} is not an offset: write a number", value=text[:64])
    found = int(digits)
    if found > _OFFSET_MAX:
        raise InvalidArgument(f"offset {found} is beyond {_OFFSET_MAX}", value=found)
    return found


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the field NAME of a row, under TITLE; KIND: text, number, plain (a number whose digits
    are a name), time (Unix ms) or problem."""

    name: str
    title: str = ""
    kind: str = "text"

    def cell(self, row: Row) -> Text:
        """Return the value of ROW for people."""
        value = row.get(self.name)
        if value is None:
            return Text("-" if self.name in row else "")
        if self.kind == "time":
            return Text(format_instant(value) if value else "-")
        if self.kind == "plain":
            return Text(str(value))
        if self.kind == "number":
            return Text(f"{value:,}")
        if self.kind == "problem":
            return Text(str(value), style="red")
        return Text(_shortened(str(value)))


def _shortened(text: str) -> str:
    printable = "".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in text)
    if len(printable) <= _WORD_SIZE_MAX:
        return printable
    return printable[: _WORD_SIZE_MAX - 1] + "…"


format_options = with_options(
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    click.option("--jsonl", "as_jsonl", is_flag=True, help="Print one JSON object per line."),
)
limit_option = click.option(
    "--limit",
    type=NUMBER,
    help=f"Maximum number of rows; 0: all. [default: {ROWS_SHOWN} in a table, all in JSON]",
)


@dataclass(frozen=True, slots=True)
class Output:
    """Where a view prints, in the FORMAT table, json or jsonl, LIMIT rows of a list (None: the usual)."""

    format: str = "table"
    limit: int | None = None

    @classmethod
    def of(cls, as_json: bool, as_jsonl: bool, limit: int | None = None) -> Output:
        """Return the output that options ask for; the group's --json counts as the view's."""
        context = click.get_current_context().find_object(Inspected)
        as_json = as_json or (context is not None and context.as_json)
        if as_json and as_jsonl:
            raise click.UsageError("--json and --jsonl: choose one.")
        return cls("json" if as_json else "jsonl" if as_jsonl else "table", limit)

    @property
    def for_people(self) -> bool:
        return self.format == "table"

    @property
    def rows_max(self) -> int | None:
        """How many rows are shown; None for all."""
        if self.limit is None:
            return ROWS_SHOWN if self.for_people else None
        return self.limit or None

    def rows(
        self, rows: Iterable[Row], columns: Sequence[Column], *, title: str = "", what: str
    ) -> None:
        """Print ROWS, things called WHAT, up to the limit."""
        found = iter(rows)
        shown = itertools.islice(found, self.rows_max)
        if self.format == "jsonl":
            for row in shown:
                click.echo(json.dumps(row, ensure_ascii=False))
        elif self.format == "json":
            click.echo(json.dumps(list(shown), ensure_ascii=False))
        else:
            self._table(list(shown), found, columns, title, what)

    def _table(
        self,
        shown: list[Row],
        rest: Iterator[Row],
        columns: Sequence[Column],
        title: str,
        what: str,
    ) -> None:
        console = people()
        if not shown:
            console.print(f"no {what}")
            return
        console.print(table(shown, columns, title))
        if next(rest, None) is not None:
            console.print(f"… and more {what}: --limit 0 shows all", style="dim")

    def document(self, document: Row, people_see: Callable[[], None]) -> None:
        """Print DOCUMENT as JSON, or let PEOPLE_SEE print."""
        if self.for_people:
            people_see()
        else:
            click.echo(json.dumps(document, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Inspected:
    """What the words in front of a view say: the STORE, its settings, and whether JSON is wanted."""

    store: str
    given: dict[str, str]
    as_json: bool = False


def people() -> Console:
    """Return a console that neither breaks lines nor colours numbers."""
    return terminal.console(soft_wrap=True, width=_LINE_SIZE_MAX)


def table(rows: Sequence[Row], columns: Sequence[Column], title: str = "") -> Table:
    """Return ROWS as a table; a column that no row has a value for is left out."""
    kept = [one for one in columns if any(row.get(one.name) is not None for row in rows)]
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in kept:
        right = column.kind in ("number", "plain")
        made.add_column(
            column.title or column.name, justify="right" if right else "left", no_wrap=True
        )
    for row in rows:
        made.add_row(*(column.cell(row) for column in kept))
    return made


def opened() -> StoreView:
    """Return the files of the store that the command line names."""
    inspected = click.get_current_context().find_object(Inspected)
    assert inspected is not None, "a view runs below `inspect`"
    return StoreView(OsDisk(), inspected.store, inspected.given)
