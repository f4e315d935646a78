"""What differs between two stores: the messages of one queue, and the tables of topics, groups and committed offsets.

Records of one number are equal if flag, reconsume times, the kind of record, body and properties are; the order of
properties means nothing, and a body counts as what it is decompressed. What stands from the body on to the record's end
is compared as bytes first, so that a pair of equal records costs some 1 µs; only pairs that differ are taken apart.

One of the two stores that are compared, as our broker would serve it; it is only read.

`pocketmq diff A B`: do two stores mean the same?

Exit codes: 0 the same, 1 different, 2 wrong arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray

from ..proto.clock import SystemClock
from ..proto.errors import PocketMQError
from ..proto.record import (
    SYS_BORN_V6,
    SYS_ROLLBACK,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    Record,
    decode_record,
    decompress_body,
)
from ..proto.record_run import Longs, RunColumns, parse_run
from ..store.apache.config import JavaConfig
from ..store.consume_queues import Queue
from ..store.files import MappedFile
from ..store.listing import settings_of
from ..store.message_store import MessageStore
from ..store.os_disk import OsDisk
from ..store.overlay_disk import OverlayDisk
from ..store.queue_view import reached_entries
from ..store.system import allow_many_files
from ..store.view import open_ours
from .counted import counted
from .options import (
    StoreFolder,
    TakesStores,
    broker_settings,
    broker_settings_option,
    store_option,
)
from .output import print_json
from .stores.names import KnownNames

_CHUNK: Final = 1 << 14
_HOST_BITS: Final = SYS_BORN_V6 | SYS_STORE_V6
#: How bodies are compressed: what they are decompressed counts.
_COMPRESSION_BITS: Final = 0x701

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Compared:
    """What is compared besides what messages are: TIMES (store and born), HOSTS (store and born), PLACES in the log."""

    times: bool = False
    hosts: bool = False
    places: bool = False


@dataclass(slots=True)
class QueueDifference:
    """How one queue differs. Bounds are (min, max), None where the queue is not there; spans are [first, last] numbers
    of messages that one side alone has; `examples` are (queue offset, names of fields)."""

    name: Name
    bounds_a: Bounds | None
    bounds_b: Bounds | None
    compared: int = 0
    only_a: int = 0
    only_b: int = 0
    spans_only_a: list[list[int]] = field(default_factory=list)
    spans_only_b: list[list[int]] = field(default_factory=list)
    fields: Counter[str] = field(default_factory=Counter)
    differing: int = 0
    examples: list[tuple[int, list[str]]] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Is nothing different?"""
        same = self.bounds_a == self.bounds_b and not self.differing
        return same and not self.only_a and not self.only_b


class QueueComparison:
    """Compares the queue NAME of A and B; at most EXAMPLES_MAX numbers of each kind are kept."""

    def __init__(self, a: Side, b: Side, name: Name, what: Compared, examples_max: int) -> None:
        self._a, self._b = a, b
        self._what = what
        self._most = examples_max
        self._entries_a, self._entries_b = a.entries(name), b.entries(name)
        self.found = QueueDifference(name, self._entries_a.bounds, self._entries_b.bounds)

    def run(self) -> QueueDifference:
        """Return the difference."""
        numbers_a, numbers_b = self._entries_a.numbers, self._entries_b.numbers
        _, rows_a, rows_b = np.intersect1d(numbers_a, numbers_b, return_indices=True)
        alone_a = np.setdiff1d(np.arange(len(numbers_a)), rows_a)
        alone_b = np.setdiff1d(np.arange(len(numbers_b)), rows_b)
        self._note_only_a(self._a.readable(self._entries_a, alone_a))
        self._note_only_b(self._b.readable(self._entries_b, alone_b))
        for begin in range(0, len(rows_a), _CHUNK):
            self._compare(rows_a[begin : begin + _CHUNK], rows_b[begin : begin + _CHUNK])
        return self.found

    def _note_only_a(self, rows: Rows) -> None:
        self.found.only_a += len(rows)
        _add_spans(self.found.spans_only_a, self._entries_a.numbers[rows], self._most)

    def _note_only_b(self, rows: Rows) -> None:
        self.found.only_b += len(rows)
        _add_spans(self.found.spans_only_b, self._entries_b.numbers[rows], self._most)

    def _compare(self, rows_a: Rows, rows_b: Rows) -> None:
        offsets_a = self._entries_a.log_offsets[rows_a]
        offsets_b = self._entries_b.log_offsets[rows_b]
        files_a, files_b = self._a.file_numbers(offsets_a), self._b.file_numbers(offsets_b)
        for begin, end in runs_of(files_a, files_b):
            file_a = self._a.file(int(files_a[begin]))
            file_b = self._b.file(int(files_b[begin]))
            own_a, own_b = rows_a[begin:end], rows_b[begin:end]
            part_a = _part(file_a, self._entries_a, own_a)
            part_b = _part(file_b, self._entries_b, own_b)
            self._note_only_a(own_a[part_a.good & ~part_b.good])
            self._note_only_b(own_b[part_b.good & ~part_a.good])
            both = np.flatnonzero(part_a.good & part_b.good)
            if len(both):
                self._compare_parts(part_a.take(both), part_b.take(both), own_a[both])

    def _compare_parts(self, a: _Part, b: _Part, rows_a: Rows) -> None:
        """Compare records that are there in both."""
        self.found.compared += len(rows_a)
        differs = self._heads_differ(a.columns, b.columns)
        differs |= np.fromiter(
            (one != other for one, other in zip(a.tails(), b.tails(), strict=True)),
            np.bool_,
            len(rows_a),
        )
        for row in np.flatnonzero(differs).tolist():
            names = _differing_fields(a.record(row), b.record(row), self._what)
            if names:
                self.found.differing += 1
                self.found.fields.update(names)
                if len(self.found.examples) < self._most:
                    number = int(self._entries_a.numbers[rows_a[row]])
                    self.found.examples.append((number, names))

    def _heads_differ(self, a: RunColumns, b: RunColumns) -> NDArray[np.bool_]:
        what = self._what
        differs: NDArray[np.bool_] = (a.flag != b.flag) | (a.reconsume_times != b.reconsume_times)
        differs |= (a.sys_flag ^ b.sys_flag) & ~_HOST_BITS != 0
        if what.times:
            differs |= (a.store_ms != b.store_ms) | (a.born_ms != b.born_ms)
        if what.places:
            differs |= (a.log_offset != b.log_offset) | (a.prepared_offset != b.prepared_offset)
        if what.hosts:  # They stand in no column: every pair is taken apart.
            differs |= True
        return differs


class _Part:
    """Records of one log file. GOOD tells which entries stand for one."""

    def __init__(
        self, file: MappedFile | None, columns: RunColumns, good: NDArray[np.bool_]
    ) -> None:
        self._file = file
        self.columns = columns
        self.good = good

    def take(self, rows: Rows) -> _Part:
        return _Part(self._file, self.columns.take(rows), self.good[rows])

    def tails(self) -> Iterator[bytes]:
        """Yield what stands from each body on to the end of its record."""
        assert self._file is not None
        columns, view = self.columns, self._file.view
        begins = columns.body_start.tolist()
        ends = (columns.starts + columns.sizes).tolist()
        for begin, end in zip(begins, ends, strict=True):
            yield bytes(view[begin:end])

    def record(self, row: int) -> Record:
        assert self._file is not None
        return decode_record(self._file.view, int(self.columns.starts[row]))


def _part(file: MappedFile | None, entries: QueueSide, rows: Rows) -> _Part:
    if file is None:
        none = np.zeros(len(rows), np.bool_)
        return _Part(None, parse_run(b"", np.zeros(len(rows), np.int64)), none)
    offsets = entries.log_offsets[rows]
    columns = parse_run(file.view, offsets - file.start)
    return _Part(file, columns, is_message(columns, offsets, entries, rows))


def _add_spans(spans: list[list[int]], numbers: Longs, most: int) -> None:
    """Add rising NUMBERS to SPANS, which join where they touch; at most MOST are kept."""
    for begin, end in runs_of(numbers - np.arange(len(numbers))):
        if begin == end:
            return
        first, last = int(numbers[begin]), int(numbers[end - 1])
        if spans and spans[-1][1] == first - 1:
            spans[-1][1] = last
        elif len(spans) < most:
            spans.append([first, last])
        else:
            return


def _differing_fields(a: Record, b: Record, what: Compared) -> list[str]:
    """Return the names of the fields in which A and B differ."""
    bits = ~(_HOST_BITS | _COMPRESSION_BITS)
    pairs: dict[str, tuple[object, object]] = {
        "body": (_body(a), _body(b)),
        "properties": (_plain(a), _plain(b)),
        "tags": (a.properties.get("TAGS"), b.properties.get("TAGS")),
        "keys": (a.properties.get("KEYS"), b.properties.get("KEYS")),
        "flag": (a.flag, b.flag),
        "sysFlag": (a.sys_flag & bits, b.sys_flag & bits),
        "reconsumeTimes": (a.reconsume_times, b.reconsume_times),
    }
    if what.times:
        pairs["storeTimestamp"] = (a.store_timestamp_ms, b.store_timestamp_ms)
        pairs["bornTimestamp"] = (a.born_timestamp_ms, b.born_timestamp_ms)
    if what.hosts:
        pairs["storeHost"] = (a.store_host, b.store_host)
        pairs["bornHost"] = (a.born_host, b.born_host)
    if what.places:
        pairs["physicalOffset"] = (a.log_offset, b.log_offset)
        pairs["preparedTransactionOffset"] = (
            a.prepared_transaction_offset,
            b.prepared_transaction_offset,
        )
    return [name for name, (one, other) in pairs.items() if one != other]


def _plain(record: Record) -> dict[str, str]:
    """Return the properties but for tags and keys, which are compared by themselves."""
    left_out = ("TAGS", "KEYS")
    return {name: value for name, value in record.properties.items() if name not in left_out}


def _body(record: Record) -> bytes:
    try:
        return decompress_body(record.body, record.sys_flag)
    except PocketMQError:
        return record.body


@dataclass(slots=True)
class TableDifference:
    """One table: names that only A has, or only B, and those whose values differ, with both values."""

    table: str
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    changed: list[tuple[str, object, object]] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Is nothing different?"""
        return not (self.only_a or self.only_b or self.changed)

    def to_json(self, most: int) -> dict[str, Any]:
        """Return plain values, with at most MOST names of each kind."""
        return {
            "table": self.table,
            "onlyInA": {"count": len(self.only_a), "first": self.only_a[:most]},
            "onlyInB": {"count": len(self.only_b), "first": self.only_b[:most]},
            "changed": {
                "count": len(self.changed),
                "first": [
                    {"name": name, "a": one, "b": other} for name, one, other in self.changed[:most]
                ],
            },
        }


def compare_tables(a: JavaConfig, b: JavaConfig) -> list[TableDifference]:
    """Return the difference of each table, also of those that are the same."""
    return [
        _compared("topics", _beans(a.topics), _beans(b.topics)),
        _compared("groups", _beans(a.groups), _beans(b.groups)),
        _compared("offsets", dict(_offsets(a)), dict(_offsets(b))),
        _compared("delayLevels", _levels(a), _levels(b)),
    ]


def _compared(table: str, a: Mapping[str, object], b: Mapping[str, object]) -> TableDifference:
    return TableDifference(
        table,
        sorted(a.keys() - b.keys()),
        sorted(b.keys() - a.keys()),
        [(name, a[name], b[name]) for name in sorted(a.keys() & b.keys()) if a[name] != b[name]],
    )


def _beans(table: Mapping[str, Any]) -> dict[str, object]:
    return {name: bean.to_json() for name, bean in table.items()}


def _offsets(config: JavaConfig) -> Iterator[tuple[str, int]]:
    """Yield topic@group/queue and the committed offset."""
    for key, queues in config.consumer_offsets.items():
        for queue, offset in queues.items():
            yield f"{key}/{queue}", offset


def _levels(config: JavaConfig) -> dict[str, int]:
    return {str(level): offset for level, offset in config.delay_offsets.items()}


# ---------------------------------------------------------------- one of the two stores that are compared


Name = tuple[str, int]
Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class QueueSide:
    """The entries of one queue: queue offset and log offset of each, in order; BOUNDS are min and max offset.

    None: the queue is not there.
    """

    bounds: Bounds | None
    numbers: Longs
    log_offsets: Longs
    is_batch: bool = False


NOTHING = QueueSide(None, np.zeros(0, np.int64), np.zeros(0, np.int64))


class Side:
    """An opened store."""

    def __init__(self, root: str, store: MessageStore, config: JavaConfig) -> None:
        """Put the parts together; `open` is the way in."""
        self.root = root
        self.store = store
        self.config = config
        self._queues: dict[Name, Queue] = {(one.topic, one.queue): one for one in store.queues}
        self._starts = np.array([file.start for file in store.log.files.files], np.int64)

    @classmethod
    def open(cls, root: str, given: Mapping[str, str], now_ms: Callable[[], int]) -> Side:
        """Open the store ROOT; GIVEN are settings by Apache's names.

        Raises StoreError where our broker would not start on it.
        """
        disk = OverlayDisk()
        settings = settings_of(OsDisk(), root, given)
        store, config = open_ours(disk, root, settings, now_ms)
        return cls(root, store, config)

    def names(self) -> set[Name]:
        """Return topic and number of every queue that ever held a message."""
        return {name for name, queue in self._queues.items() if queue.max_offset}

    def entries(self, name: Name) -> QueueSide:
        """Return the entries of the queue NAME; `NOTHING` for a queue that is not there."""
        queue = self._queues.get(name)
        if queue is None:
            return NOTHING
        bounds = (queue.min_offset, queue.max_offset)
        return QueueSide(bounds, *reached_entries(queue), queue.is_batch)

    def file_numbers(self, log_offsets: Longs) -> NDArray[np.intp]:
        """Return the number of the log file that each of LOG_OFFSETS would lie in; −1 before the first."""
        found: NDArray[np.intp] = np.searchsorted(self._starts, log_offsets, "right") - 1
        return found

    def file(self, number: int) -> MappedFile | None:
        """Return the log file NUMBER; None for −1."""
        return self.store.log.files.files[number] if number >= 0 else None

    def readable(self, entries: QueueSide, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of ROWS of ENTRIES behind which there is a message of that number."""
        offsets = entries.log_offsets[rows]
        good = np.zeros(len(rows), np.bool_)
        for begin, end, file in self._runs(offsets):
            if file is not None:
                columns = parse_run(file.view, offsets[begin:end] - file.start)
                good[begin:end] = is_message(columns, offsets[begin:end], entries, rows[begin:end])
        return rows[good]

    def _runs(self, offsets: Longs) -> Iterator[tuple[int, int, MappedFile | None]]:
        numbers = self.file_numbers(offsets)
        for begin, end in runs_of(numbers):
            yield begin, end, self.file(int(numbers[begin]))


def runs_of(*columns: NDArray[np.intp] | Longs) -> Iterator[tuple[int, int]]:
    """Yield [begin, end) of each longest run in which none of COLUMNS changes."""
    count = len(columns[0])
    cuts = [np.flatnonzero(column[1:] != column[:-1]) + 1 for column in columns]
    edges = np.unique(np.concatenate([*cuts, np.array([0, count], np.int64)]))
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)


def is_message(
    columns: RunColumns, log_offsets: Longs, entries: QueueSide, rows: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Tell for each of COLUMNS, read for the ROWS of ENTRIES, whether it is the message that the entry stands for.

    An entry that repeats another one, and one whose record is damaged or gone, stands for none.
    """
    good: NDArray[np.bool_] = columns.well_formed & (columns.log_offset == log_offsets)
    good &= (columns.sys_flag & SYS_TRANSACTION) != SYS_ROLLBACK
    if not entries.is_batch:
        good &= columns.queue_offset == entries.numbers[rows]
    return good


# ---------------------------------------------------------------- `pocketmq diff A B`


_LIMIT = 20
_SPANS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """The whole of it: queues and tables, the same ones included."""

    queues: list[QueueDifference]
    tables: list[TableDifference]

    @property
    def is_same(self) -> bool:
        """Is nothing different?"""
        queues = all(queue.is_same for queue in self.queues)
        return queues and all(table.is_same for table in self.tables)


def compare(
    a: Side, b: Side, what: Compared, *, topics: Sequence[str] = (), examples_max: int = _LIMIT
) -> Difference:
    """Return how the stores A and B differ, in TOPICS alone if any are given."""
    names = sorted(a.names() | b.names())
    queues = [
        QueueComparison(a, b, name, what, examples_max).run()
        for name in names
        if not topics or name[0] in topics
    ]
    return Difference(queues, [] if topics else compare_tables(a.config, b.config))


@click.command(cls=TakesStores)
@click.argument("a", type=StoreFolder())
@click.argument("b", type=StoreFolder())
@store_option
@click.option("--topic", "topics", multiple=True, help="Compare this topic alone; repeatable.")
@click.option(
    "--compare-times", "times", is_flag=True, help="Compare the times of birth and storing, too."
)
@click.option("--hosts", is_flag=True, help="Compare the hosts of birth and storing, too.")
@click.option("--places", is_flag=True, help="Compare places in the log, too.")
@click.option(
    "--limit",
    type=click.IntRange(0, 10_000),
    default=_LIMIT,
    show_default=True,
    help="Examples of each kind; all are counted.",
)
@broker_settings_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.pass_context
def diff(
    context: click.Context,
    /,
    *,
    a: str,
    b: str,
    topics: Sequence[str],
    settings: Sequence[str],
    limit: int,
    as_json: bool,
    **what: bool,
) -> None:
    """Compare the stores A and B: messages by topic, queue and offset, bounds, topics, groups, committed offsets.

    Each is looked at as our broker would serve it. Where a message lies, which host stored it and when means nothing,
    unless asked for. Settings count for both.
    """
    allow_many_files()
    given, now_ms = broker_settings(settings), SystemClock().unix_ms
    sides = [Side.open(root, given, now_ms) for root in (a, b)]
    known = KnownNames()
    for side in sides:
        known.topics.update(side.config.topics, (topic for topic, _ in side.names()))
    known.check(topics=topics)
    found = compare(sides[0], sides[1], Compared(**what), topics=topics, examples_max=limit)
    if as_json:
        print_json(to_json(a, b, found, limit))
    else:
        for line in lines_of(a, b, found, limit):
            click.echo(line)
    if not found.is_same:
        context.exit(1)


def to_json(a: str, b: str, found: Difference, limit: int) -> dict[str, Any]:
    """Return FOUND as plain values: totals, and up to LIMIT queues that differ."""
    different = [queue for queue in found.queues if not queue.is_same]
    return {
        "a": a,
        "b": b,
        "same": found.is_same,
        "messagesCompared": sum(queue.compared for queue in found.queues),
        "onlyInA": sum(queue.only_a for queue in found.queues),
        "onlyInB": sum(queue.only_b for queue in found.queues),
        "differing": sum(queue.differing for queue in found.queues),
        "fields": dict(sum((queue.fields for queue in found.queues), Counter())),
        "queueCount": len(found.queues),
        "queuesDifferent": len(different),
        "queues": [_queue(queue) for queue in different[:limit]],
        "tables": [table.to_json(limit) for table in found.tables if not table.is_same],
    }


def _queue(queue: QueueDifference) -> dict[str, Any]:
    return {
        "topic": queue.name[0],
        "queueId": queue.name[1],
        "boundsA": queue.bounds_a,
        "boundsB": queue.bounds_b,
        "onlyInA": {"count": queue.only_a, "spans": queue.spans_only_a},
        "onlyInB": {"count": queue.only_b, "spans": queue.spans_only_b},
        "differing": {
            "count": queue.differing,
            "first": [{"queueOffset": number, "fields": names} for number, names in queue.examples],
        },
    }


def lines_of(a: str, b: str, found: Difference, limit: int) -> Iterator[str]:
    """Yield FOUND for people, with up to LIMIT queues and names of each kind."""
    document = to_json(a, b, found, limit)
    yield f"A {a}"
    yield f"B {b}"
    yield (
        f"{counted(document['messagesCompared'], 'message')} in both, {document['differing']:,} of them differ,"
        f" {document['onlyInA']:,} only in A, {document['onlyInB']:,} only in B,"
        f" {document['queuesDifferent']:,} of {document['queueCount']:,} queues differ"
    )
    different = [queue for queue in found.queues if not queue.is_same]
    for queue in different[:limit]:
        yield from _queue_lines(queue)
    hidden = document["queuesDifferent"] - len(document["queues"])
    if hidden:
        yield f"… and {hidden:,} more queues"
    for table in document["tables"]:
        yield from _table_lines(table)
    yield "the same" if found.is_same else "different"


def _queue_lines(queue: QueueDifference) -> Iterator[str]:
    place = f"{queue.name[0]}/{queue.name[1]}"
    if queue.bounds_a != queue.bounds_b:
        yield f"{place}: {_bounds(queue.bounds_a)} in A, {_bounds(queue.bounds_b)} in B"
    for side, count, spans in (
        ("A", queue.only_a, queue.spans_only_a),
        ("B", queue.only_b, queue.spans_only_b),
    ):
        if count:
            yield f"{place}: {count:,} only in {side}: {_text(spans, count)}"
    if queue.differing:
        fields = ", ".join(f"{name} {count:,}" for name, count in queue.fields.most_common())
        yield f"{place}: {queue.differing:,} differ ({fields})"
        for number, names in queue.examples[:3]:
            yield f"  for example offset {number:,}: {', '.join(names)}"


def _bounds(bounds: Bounds | None) -> str:
    return "no such queue" if bounds is None else f"offsets {bounds[0]:,}–{bounds[1]:,}"


def _text(spans: Sequence[Sequence[int]], count: int) -> str:
    """Return the first of SPANS, which hold some of COUNT numbers."""
    shown = spans[:_SPANS_SHOWN]
    text = ", ".join(f"{a:,}" if a == b else f"{a:,}–{b:,}" for a, b in shown)
    return text + (" …" if sum(b - a + 1 for a, b in shown) < count else "")


def _table_lines(table: dict[str, Any]) -> Iterator[str]:
    for side in ("A", "B"):
        found = table[f"onlyIn{side}"]
        if found["count"]:
            names = ", ".join(found["first"][:5])
            more = " …" if found["count"] > 5 else ""
            yield f"{table['table']}: {found['count']:,} only in {side}: {names}{more}"
    changed = table["changed"]
    if changed["count"]:
        yield f"{table['table']}: {changed['count']:,} differ"
    for row in changed["first"][:5]:
        yield f"  {row['name']}: {_short(row['a'])} in A, {_short(row['b'])} in B"


def _short(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= 100 else f"{text[:99]}…"
