"""How views print: tables for people, one JSON document or one object a line for programs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...proto.instant import format_instant

Row = Mapping[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])

#: Rows of a table where nobody says how many; programs get all.
ROWS_SHOWN: Final = 50
_WORD_SIZE_MAX: Final = 60
#: Wide tables are for the terminal to wrap, not for rich to cut.
_LINE_SIZE_MAX: Final = 2000


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


def format_options(function: Function) -> Function:
    """Add --json and --jsonl."""
    jsonl = click.option("--jsonl", "as_jsonl", is_flag=True, help="Print one JSON object a line.")
    whole = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    return whole(jsonl(function))


def limit_option(function: Function) -> Function:
    """Add --limit."""
    return click.option(
        "--limit",
        type=click.IntRange(0),
        help=f"At most so many rows; 0: all. [default: {ROWS_SHOWN} in a table, all in JSON]",
    )(function)


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
    return Console(highlight=False, soft_wrap=True, width=_LINE_SIZE_MAX)


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
