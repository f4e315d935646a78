"""The differences of two stores: messages of one queue, and tables of topics, groups and committed offsets.

Two records of the same offset are equal if flag, reconsume times, kind of record, body and properties are equal. The
order of properties means nothing, and bodies are compared decompressed. Bytes from the body to the end of the record
are compared first, so that a pair of equal records takes about 1 µs. Only pairs that differ are decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...proto.errors import PocketMQError
from ...proto.record import SYS_BORN_V6, SYS_STORE_V6, Record, decode_record, decompress_body
from ...proto.record_run import Longs, RunColumns, parse_run
from ...store.apache.config import JavaConfig
from ...store.files import MappedFile
from .side import Bounds, Name, QueueSide, Side, is_message, runs_of

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
    """The differences of one queue. Bounds are (min, max), None if the queue does not exist; spans are [first, last]
    numbers of messages that one side alone has; `examples` are (queue offset, names of fields)."""

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
        if what.hosts:  # They are in no column: every pair is taken apart.
            differs |= True
        return differs


class _Part:
    """Records of one log file. GOOD: which entries point to one."""

    def __init__(
        self, file: MappedFile | None, columns: RunColumns, good: NDArray[np.bool_]
    ) -> None:
        self._file = file
        self.columns = columns
        self.good = good

    def take(self, rows: Rows) -> _Part:
        return _Part(self._file, self.columns.take(rows), self.good[rows])

    def tails(self) -> Iterator[bytes]:
        """Yield the bytes from each body to the end of its record."""
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
        "sys_flag": (a.sys_flag & bits, b.sys_flag & bits),
        "reconsume_times": (a.reconsume_times, b.reconsume_times),
    }
    if what.times:
        pairs["stored_ms"] = (a.store_timestamp_ms, b.store_timestamp_ms)
        pairs["born_ms"] = (a.born_timestamp_ms, b.born_timestamp_ms)
    if what.hosts:
        pairs["store_host"] = (a.store_host, b.store_host)
        pairs["born_host"] = (a.born_host, b.born_host)
    if what.places:
        pairs["log_offset"] = (a.log_offset, b.log_offset)
        pairs["prepared_transaction_offset"] = (
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
            "only_in_a": {"count": len(self.only_a), "first": self.only_a[:most]},
            "only_in_b": {"count": len(self.only_b), "first": self.only_b[:most]},
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
        _compared("delay_levels", _levels(a), _levels(b)),
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
