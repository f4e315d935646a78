"""What views take and print: the store and places in its log; tables for people, JSON for programs.

The small files of a store, its tables and those of a replica, as a broker would load them: the file, or its backup.

Nothing is raised for damage: a table that cannot be read is empty, and `problems` says why.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...proto.errors import CorruptState, InvalidArgument
from ...proto.time_text import format_instant
from ...store.apache.config_beans import child, counts
from ...store.format import replica_files, state_tables
from ...store.format.java_json import parse_object
from ...store.kept_table import Bean, KeptChanges
from ...store.offsets_file import offsets_file
from ...store.os_disk import OsDisk
from ...store.overlay_disk import OverlayDisk
from ...store.state_files import StateFile
from ...store.view import StoreView
from .. import terminal
from ..instants import past_instant_of
from ..options import NUMBER, with_options
from ..stores.names import KnownNames

#: Unix milliseconds and log offsets are both numbers: an instant has a dash or a colon, or says so.
_OFFSET: Final = re.compile(r"[0-9][0-9_,]*")
_INSTANT_MS: Final = re.compile(r"@([0-9]+)")
_OFFSET_MAX: Final = (1 << 63) - 1
#: Rows of a table where nobody says how many; programs get all.
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
    """Return the number TEXT, in which `,` and `_` may stand; raises InvalidArgument for anything else."""
    digits = text.replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        raise InvalidArgument(f"{text[:64]!r} is no offset: write a number", value=text[:64])
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


# ---------------------------------------------------------------- the small files of a store


T = TypeVar("T")
E = TypeVar("E", bound=Bean)


@dataclass(slots=True)
class Tables:
    """The tables of one store; `problems` are sentences, `refused` those for which a broker would not start."""

    files: StoreView
    problems: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def topics(self) -> state_tables.TopicTable:
        """Return topics.json, with what was changed since it was written."""
        changes = self._changes("topics.json", state_tables.TOPICS)
        table = self._load("topics.json", state_tables.parse_topics, state_tables.TopicTable())
        if changes is None:
            return table
        return replace(table, topics=changes.applied(table.version, table.topics))

    def groups(self) -> state_tables.GroupTable:
        """Return subscriptionGroup.json, likewise."""
        changes = self._changes("subscriptionGroup.json", state_tables.GROUPS)
        table = self._load(
            "subscriptionGroup.json", state_tables.parse_groups, state_tables.GroupTable()
        )
        if changes is None:
            return table
        return replace(table, groups=changes.applied(table.version, table.groups))

    def offsets(self) -> state_tables.ConsumerOffsets:
        """Return consumerOffset.json, or lmqConsumerOffset.json where that is newer."""
        return self._load(
            offsets_file(self.files.disk, self.files.root),
            state_tables.parse_consumer_offsets,
            state_tables.ConsumerOffsets(),
        )

    def delays(self) -> state_tables.DelayOffsets:
        """Return delayOffset.json."""
        return self._load(
            "delayOffset.json", state_tables.parse_delay_offsets, state_tables.DelayOffsets()
        )

    def timers_pending(self) -> dict[str, int]:
        """Return the numbers of timed messages by real topic, as timermetrics has them."""
        return self._load("timermetrics", lambda text: counts(parse_object(text)), {})

    def transactions_open(self) -> dict[str, int]:
        """Return the numbers of open half messages by real topic, as transactionMetrics has them."""
        return self._load("transactionMetrics", _transaction_counts, {})

    def identity(self) -> replica_files.BrokerIdentity | None:
        """Return brokerIdentity; None for a broker without replicas."""
        return self._load(
            replica_files.IDENTITY_FILE, replica_files.parse_identity, None, folder=""
        )

    def epochs(self) -> replica_files.EpochStarts:
        """Return epochFileCheckpoint: epochs and where they begin."""
        return self._load(replica_files.EPOCHS_FILE, replica_files.parse_epochs, (), folder="")

    def _changes(self, name: str, form: state_tables.TableForm[E]) -> KeptChanges[E] | None:
        try:
            return KeptChanges(self.files.disk, self.files.root, name, form)
        except OSError as error:
            self.problems.append(_told(error))
            return None

    def _load(
        self, name: str, parse_text: Callable[[str], T], empty: T, folder: str = "config"
    ) -> T:
        # On an overlay: loading moves a file aside that does not parse.
        file = StateFile(OverlayDisk(self.files.disk), self.files.root, name, folder)
        try:
            loaded = file.load(lambda text: parse_text(text.strip("\0")))
        except (CorruptState, OSError) as error:
            told = error.message if isinstance(error, CorruptState) else _told(error)
            self.problems.append(told)
            if folder:  # What lies at the root is not read by a broker without replicas.
                self.refused.append(told)
            return empty
        if loaded.problem:
            place = f"{folder}/{name}".lstrip("/")
            self.problems.append(f"{place} does not parse: a broker uses {place}.bak")
        self.problems += (
            f"{folder}/{name}: the entry {key[:200]!r} cannot be read: {one.reason}"
            for key, one in getattr(loaded.value, "unread", {}).items()
        )
        return empty if loaded.value is None else loaded.value


def _told(error: OSError) -> str:
    return f"{error.filename} cannot be read: {error.strerror}"


def _transaction_counts(text: str) -> dict[str, int]:
    found = child(parse_object(text), "transactionCount").items()
    return {str(topic): int(child({"": one}, "").get("count", 0)) for topic, one in found}


def or_unknown(
    rows: Iterable[Row], tables: Tables, *, topics: Sequence[str] = (), groups: Sequence[str] = ()
) -> Iterator[Row]:
    """Yield ROWS. If there are none, raise TopicNotFound or GroupNotFound for a name that the store does not know."""
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        keys = [key.partition("@") for key in tables.offsets().offsets]
        known = KnownNames(set(tables.topics().topics), set(tables.groups().groups))
        known.topics.update((one.topic for one in tables.files.queues()), (key[0] for key in keys))
        known.groups.update(key[2] for key in keys)
        known.check(topics=topics, groups=groups)
