"""Does a queue entry agree with the record that it points to?

An entry agrees with a record if

1. the record is well formed and begins at the entry's log offset,
2. its size is the entry's size,
3. it is a record of the entry's queue: topic, queue id and queue offset,
4. queues contain such records: it is neither prepared nor rolled back,
5. the entry has the record's tags code, unless it has the address of an extension unit instead.

Light queues (%LMQ%) point to records of other queues, so 3 does not apply to them.

| who | compares | with |
|---|---|---|
| readers, repair | 1 to 4, from the bytes of records | `compare` |
| recovery, scrubber | 1, 2 and 5 by column: records are already grouped by queue | `same_place`, `same_tags` |
| `inspect` | all, with a verdict for each entry | `verdicts` |
| `inspect verify` | 1, 2 and 5 by column, then `verdicts` where a queue has a mismatch | all of these |
| Spark's audit | 1 to 4 in SQL | `COMPARED_COLUMNS`, `SERVED_SQL` |
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...proto.byte_ranges import decimal_numbers, windows
from ...proto.property_ranges import PropertyRanges
from ...proto.record import (
    QUEUE_OFFSET_AT,
    SYS_BORN_V6,
    SYS_PREPARED,
    SYS_STORE_V6,
    body_crc,
    hosts_extra,
    topic_field,
)
from ...proto.record_run import (
    HEAD_SIZE,
    Bytes,
    Ints,
    Longs,
    RunColumns,
    as_bytes,
    body_crcs,
    heads_at,
    parse_run,
    topic_is,
)
from .queues import ADDRESS_MAX, LIGHT_PREFIX, PRE_BLANK_SIZE
from .rows import Rows as EntryRows

Mask = NDArray[np.bool_]

#: A value of one record, or of many.
N = TypeVar("N", int, Longs)

#: Pairs of columns of Spark's data sets that must be equal: of an entry, and of its record.
COMPARED_COLUMNS: Final = {
    "topic": "topic",
    "queue": "queue",
    "queue_offset": "queue_offset",
    "size": "store_size",
}
#: `is_served` in SQL.
SERVED_SQL: Final = f"(sys_flag & {SYS_PREPARED}) = 0"


def is_served(sys_flags: Ints) -> Mask:
    """Return which records queues contain. The bit is set in prepared and in rolled back ones."""
    served: Mask = (sys_flags & SYS_PREPARED) == 0
    return served


def same_place(entries: EntryRows, log_offsets: Longs, sizes: Longs) -> Mask:
    """Return which of ENTRIES have the log offset and size of the record in the same row."""
    same: Mask = (entries["log_offset"] == log_offsets) & (entries["size"] == sizes)
    return same


def same_tags(stored: Longs, codes: Longs, *, may_be_address: bool = True) -> Mask:
    """Return which STORED tags codes equal the CODES of the records; an address counts as equal."""
    same: Mask = stored == codes
    return same | (stored <= ADDRESS_MAX) if may_be_address else same


def set_delivery_times(
    array: Bytes,
    columns: RunColumns,
    properties: PropertyRanges,
    rows: NDArray[np.intp] | slice,
    codes: Longs,
    delays_ms: Longs,
) -> None:
    """Set the tags codes of ROWS, records of the schedule topic, to the delivery time of each message.

    DELAYS_MS has the delay of each level. Higher levels count as the highest one. A message without a level, or
    with a level that is not a number, keeps its code.
    """
    starts, sizes = properties.find("DELAY")
    levels = decimal_numbers(array, starts[rows], sizes[rows])
    delays = delays_ms[np.clip(levels, 0, len(delays_ms) - 1)]
    codes[rows] = np.where(levels > 0, columns.store_ms[rows] + delays, codes[rows])


def foreign_entries(
    entries: EntryRows, own: Longs, edges: tuple[int, int], begin: int
) -> list[int]:
    """Return the log offsets of the ENTRIES from row BEGIN on that belong to no record and repeat no neighbour.

    The rows OWN have their records. EDGES are the log offsets of the queue's records before and after ENTRIES, −1 for
    none. Recovery puts a copy of a neighbour in place of an entry whose record is damaged.
    """
    others = np.ones(len(entries), np.bool_)
    others[own] = False
    others[:begin] = False
    rows = np.flatnonzero(others)
    if not len(rows):
        return []
    around = np.concatenate(
        (np.array([edges[0]]), entries["log_offset"][own].astype(np.int64), np.array([edges[1]]))
    )
    place = np.searchsorted(own, rows)
    offsets = entries["log_offset"][rows].astype(np.int64)
    foreign = (offsets != around[place]) & (offsets != around[place + 1])
    foreign &= entries["size"][rows] != PRE_BLANK_SIZE
    found: list[int] = offsets[foreign].tolist()
    return found


#: Fewer records are compared one by one, because numpy's many calls cost more.
_FEW_MAX: Final = 20
#: The compared fields of a record's head, one by one and as columns.
_HEAD: Final = struct.Struct(">iiii4xqqi44xi")
_FIELDS: Final = (
    "total_size",
    "magic",
    "body_crc",
    "queue_id",
    "queue_offset",
    "log_offset",
    "sys_flag",
    "body_size",
)
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_V6: Final = SYS_BORN_V6 | SYS_STORE_V6


@dataclass(frozen=True, slots=True)
class Entries:
    """Consume queue entries, one array each, in order of the queue from FIRST on."""

    first: int
    log_offsets: Longs
    sizes: Longs
    tags_codes: Longs

    def __len__(self) -> int:
        return len(self.sizes)

    def up_to(self, size_max: int) -> Entries:
        """Return the leading entries whose records have SIZE_MAX bytes or less in total, but at least one."""
        ends = np.maximum(self.sizes, 0).cumsum()
        if not len(ends) or ends[-1] <= size_max:
            return self
        return self.take(slice(0, max(int(ends.searchsorted(size_max, "right")), 1)))

    def take(self, rows: NDArray[np.intp] | slice) -> Entries:
        """Return the entries ROWS."""
        return Entries(self.first, self.log_offsets[rows], self.sizes[rows], self.tags_codes[rows])


@dataclass(frozen=True, slots=True)
class QueueName:
    """The records that entries point to: those of a topic, and of a queue if one is named."""

    topic: str
    queue: int | None = None
    is_light: bool = field(init=False)
    #: The topic field of a record, with its length; and the magic of records with such a topic.
    magic: int = field(init=False)
    topic_part: bytes = field(init=False)
    #: The bytes after a body: the topic, and the size of the properties.
    tail: np.dtype[np.void] = field(init=False)

    def __post_init__(self) -> None:
        magic, part = topic_field(self.topic)
        object.__setattr__(self, "is_light", self.topic.startswith(LIGHT_PREFIX))
        object.__setattr__(self, "magic", magic)
        object.__setattr__(self, "topic_part", part)
        tail = np.dtype([("topic", f"V{len(part)}"), ("properties_size", ">i2")])
        object.__setattr__(self, "tail", tail)


class Agreement(NamedTuple):
    """Which records agree with their entries; and which of these have a body that matches its CRC, if CHECK_CRCS."""

    agrees: Mask
    intact: Mask


def queue_offsets_at(data: bytes | memoryview, starts: Longs) -> Longs:
    """Return the queue offsets in the records at STARTS, which are inside DATA."""
    said = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    found: Longs = said[starts + QUEUE_OFFSET_AT].astype(np.int64)
    return found


def compare(
    data: bytes | memoryview,
    starts: Longs,
    entries: Entries,
    name: QueueName,
    queue_offsets: Longs | None = None,
    *,
    check_crcs: bool = False,
) -> Agreement:
    """Compare ENTRIES of the queue NAME with the ranges of DATA that begin at STARTS.

    Without CHECK_CRCS each agreeing record counts as intact. An empty body always does. QUEUE_OFFSETS, if given, are
    the required queue offsets of the records. The ranges are inside DATA, and have the sizes in the entries, at least
    LEAST_SIZE.
    """
    if name.is_light:
        return _of_any_topic(data, starts, entries, check_crcs)
    if len(starts) <= _FEW_MAX:
        return _few(data, starts, entries, name, queue_offsets, check_crcs)
    array = as_bytes(data)
    heads = heads_at(array, starts)
    head = tuple(heads[field].astype(np.int64) for field in _FIELDS)
    *_, flags, body_size = head
    body_at = starts + HEAD_SIZE
    if (flags & _V6).any():
        columns = parse_run(array, starts)
        body_at, body_size = columns.body_start, columns.body_size
    entry = entries.sizes, entries.log_offsets, queue_offsets
    agrees = _contradictions(head, entry, name) == 0
    tail_at = body_at + body_size
    room = starts + entries.sizes - tail_at - name.tail.itemsize
    agrees &= (body_size | room) >= 0
    if not agrees.all():
        if not agrees.any():
            return Agreement(agrees, agrees)
        tail_at = np.where(agrees, tail_at, tail_at[agrees.argmax()])
    tails = windows(array, tail_at, name.tail.itemsize).view(name.tail)[:, 0]
    agrees &= tails["properties_size"] == room
    agrees &= tails["topic"] == np.frombuffer(name.topic_part, name.tail["topic"])[0]
    if not check_crcs:
        return Agreement(agrees, agrees)
    return Agreement(agrees, _intact(data, agrees, body_at, body_size, head[2]))


def _contradictions(head: tuple[N, ...], entry: tuple[N, N, N | None], name: QueueName) -> N:
    """Return a value that is 0 where HEAD (fields or columns of them) agrees with its ENTRY and with NAME."""
    total_size, magic, _, queue, number, log_offset, flags, _ = head
    size, place, wanted = entry
    found = (total_size ^ size) | (log_offset ^ place) | (magic ^ name.magic)
    found |= flags & SYS_PREPARED
    if name.queue is not None:
        found |= queue ^ name.queue
    if wanted is not None:
        found |= number ^ wanted
    return found


def _few(
    data: bytes | memoryview,
    starts: Longs,
    entries: Entries,
    name: QueueName,
    queue_offsets: Longs | None,
    check_crcs: bool,
) -> Agreement:
    agrees, intact = [], []
    wanted = [None] * len(starts) if queue_offsets is None else queue_offsets.tolist()
    rows = zip(entries.sizes.tolist(), entries.log_offsets.tolist(), wanted, strict=True)
    for start, entry in zip(starts.tolist(), rows, strict=True):
        head = _HEAD.unpack_from(data, start)
        body = None
        if not _contradictions(head, entry, name):
            body = _body_range(data, start, start + entry[0], head, name)
        agrees.append(body is not None)
        intact.append(body is not None and not (check_crcs and _is_wrong(data, *body, head[2])))
    return Agreement(np.array(agrees, np.bool_), np.array(intact, np.bool_))


def _body_range(
    data: bytes | memoryview, start: int, end: int, head: tuple[int, ...], name: QueueName
) -> tuple[int, int] | None:
    """Return the range of the body of the record [START, END) with HEAD; None if lengths or topic do not agree."""
    *_, flags, body_size = head
    at = start + HEAD_SIZE
    if flags & _V6:
        at += hosts_extra(flags)
        if at > end:
            return None
        (body_size,) = _INT.unpack_from(data, at - _INT.size)
    topic_at = at + body_size
    room = end - topic_at - name.tail.itemsize
    if (body_size | room) < 0:
        return None
    properties_at = end - room
    if data[topic_at : properties_at - _SHORT.size] != name.topic_part:
        return None
    if _SHORT.unpack_from(data, properties_at - _SHORT.size)[0] != room:
        return None
    return at, topic_at


def _is_wrong(data: bytes | memoryview, begin: int, end: int, crc: int) -> bool:
    return begin < end and body_crc(memoryview(data)[begin:end]) != crc


def _intact(
    data: bytes | memoryview,
    rows: Mask,
    body_at: Longs,
    body_size: Longs,
    crcs: Longs | Ints,
) -> Mask:
    """Return those of ROWS, whose lengths agree, whose bodies match their CRCS."""
    intact = rows.copy()
    some = slice(None) if rows.all() else rows
    there = body_crcs(data, body_at[some], body_size[some])
    intact[some] = (there == crcs[some]) | (body_size[some] == 0)
    return intact


def _of_any_topic(
    data: bytes | memoryview, starts: Longs, entries: Entries, check_crcs: bool
) -> Agreement:
    """Compare entries of a light queue: its records have other topics, and the queue offsets of other queues."""
    columns = parse_run(data, starts)
    agrees: Mask = columns.well_formed & (columns.sizes == entries.sizes)
    agrees &= columns.log_offset == entries.log_offsets
    agrees &= is_served(columns.sys_flag)
    if not check_crcs:
        return Agreement(agrees, agrees)
    intact = _intact(data, agrees, columns.body_start, columns.body_size, columns.body_crc)
    return Agreement(agrees, intact)


Verdicts = NDArray[np.int8]

FINE, GONE, PRE_BLANK, REPEATED = 0, 1, 2, 3
NO_FILE, BEHIND_END, NO_RECORD, OTHER_MESSAGE, WRONG_SIZE, WRONG_TAGS = 10, 11, 12, 13, 14, 15


class QueueKind(Protocol):
    """The properties of a queue that verdicts need."""

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...

    @property
    def is_batch(self) -> bool: ...


class FoundRecords:
    """Valid records in DATA."""

    def __init__(self, data: Bytes, columns: RunColumns) -> None:
        self.data = data
        self.columns = columns
        self._ranges: PropertyRanges | None = None

    @property
    def ranges(self) -> PropertyRanges:
        """The ranges of the values of their properties."""
        if self._ranges is None:
            self._ranges = PropertyRanges(self.data, self.columns)
        return self._ranges


def verdicts(
    queue: QueueKind,
    queue_offsets: Longs,
    entries: EntryRows,
    found: FoundRecords,
    tags_codes: Longs,
) -> Verdicts:
    """Return a verdict for each of ENTRIES by comparing it with the record FOUND at its log offset.

    QUEUE_OFFSETS are those of the entries, TAGS_CODES those of the records. Of several faults the worst is returned.
    """
    codes = np.zeros(len(entries), np.int8)
    columns = found.columns
    codes[~same_tags(entries["tags_code"], tags_codes)] = WRONG_TAGS
    codes[entries["size"] != columns.sizes] = WRONG_SIZE
    if queue.topic.startswith(LIGHT_PREFIX):
        return codes
    same = (columns.queue_id == queue.queue_id) & topic_is(found.data, columns, queue.topic)
    same &= is_served(columns.sys_flag)
    if queue.is_batch:
        bases = decimal_numbers(found.data, *found.ranges.find("INNER_BASE"))
        same &= bases == entries["base"]
    else:
        same &= columns.queue_offset == queue_offsets
    codes[~same] = OTHER_MESSAGE
    return codes


def mark_repetitions(log_offsets: Longs, codes: Verdicts) -> None:
    """Mark the entries that repeat the next one in place of a lost one, instead of being OTHER_MESSAGE."""
    for row in np.flatnonzero(codes == OTHER_MESSAGE)[::-1].tolist():
        if row + 1 < len(log_offsets) and log_offsets[row] == log_offsets[row + 1]:
            codes[row] = REPEATED if codes[row + 1] in (FINE, REPEATED) else codes[row]
