"""Reading a queue: entries, then the records they point to, in as few copies as the log's layout allows.

Records that lie end to end, or near each other, in one file are read at once; all slices are joined. Then each record
is held against its entry: size, magic, its own log offset, topic, queue and lengths must agree; and its body against
its CRC, if that is asked for. A record that is not where its entry says (its file is gone, or damage overwrote it), or
is of a kind that queues never deliver (recovery turns damaged records into rolled-back ones), is left out, so that a
reader gets past it: `next_offset` counts it as read.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..proto.byte_ranges import windows
from ..proto.record import (
    QUEUE_OFFSET_AT,
    SYS_BORN_V6,
    SYS_PREPARED,
    SYS_STORE_V6,
    body_crc,
    hosts_extra,
    topic_field,
)
from ..proto.record_run import (
    HEAD_SIZE,
    LEAST_SIZE,
    Ints,
    Longs,
    as_bytes,
    body_crcs,
    heads_at,
    parse_run,
    starts_of,
)
from ..proto.topics import RECORD_SIZE_MAX
from .consume_queues import LIGHT_PREFIX
from .files import CommitLog, MappedFile

logger = logging.getLogger(__name__)

#: Of fewer records each is looked at by itself: that costs less than the many calls of numpy.
_FEW_MAX: Final = 20
#: Records that lie scattered over no more are read with what is between them; of more the map is read.
_SPAN_MAX: Final = 1 << 17
#: What is looked at in a record's head, one by one and as columns.
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

#: A number of one record, or of many.
N = TypeVar("N", int, Longs)
_Masks: TypeAlias = tuple[NDArray[np.bool_], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """What a read of a queue found.

    records: whole records, end to end, with SIZES;  queue_offsets: the queue offset of each;  tags_codes: of each;
    next_offset: where to read on;  min_offset, max_offset: the queue's bounds at that moment;
    turned_down: entries before NEXT_OFFSET that the reader was told to leave out;  lost: messages before NEXT_OFFSET
    that are not there any more: damaged, or gone with a file.
    """

    records: bytes
    sizes: Longs
    queue_offsets: Longs
    tags_codes: Longs
    next_offset: int
    min_offset: int
    max_offset: int
    turned_down: int = 0
    lost: int = 0

    def __len__(self) -> int:
        return len(self.sizes)


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
        """Return the leading entries whose records have at most SIZE_MAX bytes together, but at least one."""
        ends = np.maximum(self.sizes, 0).cumsum()
        if not len(ends) or ends[-1] <= size_max:
            return self
        return self.take(slice(0, max(int(ends.searchsorted(size_max, "right")), 1)))

    def take(self, rows: NDArray[np.intp] | slice) -> Entries:
        """Return the entries ROWS."""
        return Entries(self.first, self.log_offsets[rows], self.sizes[rows], self.tags_codes[rows])


@dataclass(frozen=True, slots=True)
class QueueName:
    """Whose records entries point to: those of a topic, and of a queue if one is named. No topic: of any (LMQ)."""

    topic: str
    queue: int | None = None
    is_light: bool = field(init=False)
    #: How the topic stands in a record, with its length, behind the magic that goes with it.
    magic: int = field(init=False)
    topic_part: bytes = field(init=False)
    #: What stands behind a body: the topic, and the size of the properties.
    tail: np.dtype[np.void] = field(init=False)

    def __post_init__(self) -> None:
        magic, part = topic_field(self.topic)
        object.__setattr__(self, "is_light", self.topic.startswith(LIGHT_PREFIX))
        object.__setattr__(self, "magic", magic)
        object.__setattr__(self, "topic_part", part)
        tail = np.dtype([("topic", f"V{len(part)}"), ("properties_size", ">i2")])
        object.__setattr__(self, "tail", tail)


class Found(NamedTuple):
    """The records that a read found, joined; ROWS: of which entries they are; DAMAGED: entries whose records are left
    out because their bodies do not fit their CRCs (looked at only if that was asked for)."""

    records: bytes
    rows: NDArray[np.intp]
    damaged: NDArray[np.intp]


def read_entries(
    log: CommitLog,
    entries: Entries,
    name: QueueName,
    numbers: Longs | None = None,
    *,
    check_crcs: bool = False,
) -> Found:
    """Return the records of ENTRIES, of the queue NAME, that are there, and sound if CHECK_CRCS.

    NUMBERS, if given, are the queue offsets that the records must say.
    The records are copied first and looked at then: their heads are in the cache by that time.
    """
    rows = np.arange(len(entries))
    span = _span(log, entries)
    if span is None:
        records, rows = _pieces(log, entries)
        if len(rows) < len(entries):
            entries = entries.take(rows)
            numbers = None if numbers is None else numbers[rows]
        span = records, starts_of(entries.sizes)
    records, starts = span
    agrees, fits = judged(records, starts, entries, name, numbers, check_crcs=check_crcs)
    ends = starts + entries.sizes
    if not fits.all():
        starts, ends = starts[fits], ends[fits]
    elif (starts[1:] == ends[:-1]).all():
        return Found(records, rows, rows[:0])
    view = memoryview(records)
    records = b"".join(map(view.__getitem__, map(slice, starts.tolist(), ends.tolist())))
    return Found(records, rows[fits], rows[agrees & ~fits])


def warn_of_missing(entries: Entries, found: Found) -> None:
    """Tell of ENTRIES whose records were not FOUND, and are not damaged ones either."""
    missing = np.ones(len(entries), np.bool_)
    missing[found.rows] = missing[found.damaged] = False
    if missing.any():
        first = int(missing.argmax())
        logger.warning(
            "records are not where their queue entries say",
            extra={
                "count": int(missing.sum()),
                "queue_offset": entries.first + first,
                "log_offset": int(entries.log_offsets[first]),
            },
        )


def _span(log: CommitLog, entries: Entries) -> tuple[bytes, Longs] | None:
    """Return what stands from the first of the records of ENTRIES to the last, and where in it each begins.

    None unless it is in one file, and not much more than the records.
    """
    offsets, sizes = entries.log_offsets, entries.sizes
    if not len(entries):
        return b"", offsets
    low, size = int(offsets.min()), int(sizes.sum())
    most = max(_SPAN_MAX, 2 * size)
    if (
        int(sizes.min()) < LEAST_SIZE
        or size > RECORD_SIZE_MAX
        or int(offsets.max()) - low > most
        or (high := int((offsets + sizes).max())) - low > most
    ):
        return None
    found = log.read(low, high - low)
    return None if found is None else (found, offsets - low)


def _pieces(log: CommitLog, entries: Entries) -> tuple[bytes, NDArray[np.intp]]:
    """Return what ENTRIES point to inside of the log, joined, and which of them that are."""
    pieces: list[memoryview] = []
    found = np.zeros(len(entries), np.bool_)
    row = 0
    while row < len(entries):
        file = log.files.file_at(int(entries.log_offsets[row]))
        if file is None:
            row += 1
            continue
        end = row + _leading(entries.log_offsets[row:], file)
        found[row:end] = _add_pieces(file, entries, row, end, pieces)
        row = end
    return b"".join(pieces), found.nonzero()[0]


def _leading(log_offsets: Longs, file: MappedFile) -> int:
    """Return how many leading offsets lie in FILE."""
    inside = (log_offsets >= file.start) & (log_offsets < file.end)
    return len(inside) if inside.all() else int(inside.argmin())


def _add_pieces(
    file: MappedFile, entries: Entries, begin: int, end: int, pieces: list[memoryview]
) -> NDArray[np.bool_]:
    """Add what the entries [BEGIN, END), all in FILE, point to, to PIECES; tell which of them lie inside it."""
    at = entries.log_offsets[begin:end] - file.start
    sizes = entries.sizes[begin:end]
    ends = at + sizes
    inside: NDArray[np.bool_] = (sizes >= LEAST_SIZE) & (ends <= file.position)
    for row in (inside & (sizes > RECORD_SIZE_MAX)).nonzero()[0].tolist():
        # A damaged entry may ask for all of the file: its record is believed before it is copied.
        inside[row] = int.from_bytes(file.read(int(at[row]), 4)) == sizes[row]
    if not inside.all():
        at, ends = at[inside], ends[inside]
    if not len(at):
        return inside
    breaks = (at[1:] != ends[:-1]).nonzero()[0]
    firsts = np.concatenate((at[:1], at[1:][breaks]))
    lasts = np.concatenate((ends[:-1][breaks], ends[-1:]))
    low, high = int(firsts.min()), int(lasts.max())
    if high - low <= max(_SPAN_MAX, 2 * int((lasts - firsts).sum())):
        view = memoryview(file.read(low, high - low))
        firsts, lasts = firsts - low, lasts - low
    else:
        view = file.view
    pieces += map(view.__getitem__, map(slice, firsts.tolist(), lasts.tolist()))
    return inside


def numbers_at(data: bytes | memoryview, starts: Longs) -> Longs:
    """Return the queue offsets that the records at STARTS, which lie inside DATA, say."""
    said = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    found: Longs = said[starts + QUEUE_OFFSET_AT].astype(np.int64)
    return found


def judged(
    data: bytes | memoryview,
    starts: Longs,
    entries: Entries,
    name: QueueName,
    numbers: Longs | None = None,
    *,
    check_crcs: bool = False,
) -> _Masks:
    """Tell which of the ranges of DATA that begin at STARTS are the records of ENTRIES, and of the queue NAME.

    And which of these have bodies that fit their CRCs: all, unless CHECK_CRCS. An empty body always does.
    NUMBERS, if given, are the queue offsets that they must say. The ranges lie inside DATA, and have the sizes that
    the entries say, at least LEAST_SIZE.
    """
    if name.is_light:
        return _of_any_topic(data, starts, entries, check_crcs)
    if len(starts) <= _FEW_MAX:
        return _few_judged(data, starts, entries, name, numbers, check_crcs)
    array = as_bytes(data)
    heads = heads_at(array, starts)
    head = tuple(heads[field].astype(np.int64) for field in _FIELDS)
    *_, flags, body_size = head
    body_at = starts + HEAD_SIZE
    if (flags & _V6).any():
        columns = parse_run(array, starts)
        body_at, body_size = columns.body_start, columns.body_size
    agrees = _contradictions(head, (entries.sizes, entries.log_offsets, numbers), name) == 0
    tail_at = body_at + body_size
    room = starts + entries.sizes - tail_at - name.tail.itemsize
    agrees &= (body_size | room) >= 0
    if not agrees.all():
        if not agrees.any():
            return agrees, agrees
        tail_at = np.where(agrees, tail_at, tail_at[agrees.argmax()])
    tails = windows(array, tail_at, name.tail.itemsize).view(name.tail)[:, 0]
    agrees &= tails["properties_size"] == room
    agrees &= tails["topic"] == np.frombuffer(name.topic_part, name.tail["topic"])[0]
    if not check_crcs:
        return agrees, agrees
    return agrees, _fitting(data, agrees, body_at, body_size, head[2])


def _contradictions(head: tuple[N, ...], entry: tuple[N, N, N | None], name: QueueName) -> N:
    """Return what is not 0 where a HEAD, fields or columns of them, says something else than its ENTRY, or than NAME.

    Prepared or rolled back: what recovery made of damage.
    """
    total_size, magic, _, queue, number, log_offset, flags, _ = head
    size, place, wanted = entry
    found = (total_size ^ size) | (log_offset ^ place) | (magic ^ name.magic)
    found |= flags & SYS_PREPARED
    if name.queue is not None:
        found |= queue ^ name.queue
    if wanted is not None:
        found |= number ^ wanted
    return found


def _few_judged(
    data: bytes | memoryview,
    starts: Longs,
    entries: Entries,
    name: QueueName,
    numbers: Longs | None,
    check_crcs: bool,
) -> _Masks:
    agrees, fits = [], []
    wanted = [None] * len(starts) if numbers is None else numbers.tolist()
    rows = zip(entries.sizes.tolist(), entries.log_offsets.tolist(), wanted, strict=True)
    for start, entry in zip(starts.tolist(), rows, strict=True):
        head = _HEAD.unpack_from(data, start)
        body = None
        if not _contradictions(head, entry, name):
            body = _body_range(data, start, start + entry[0], head, name)
        agrees.append(body is not None)
        fits.append(body is not None and not (check_crcs and _is_wrong(data, *body, head[2])))
    return np.array(agrees, np.bool_), np.array(fits, np.bool_)


def _body_range(
    data: bytes | memoryview, start: int, end: int, head: tuple[int, ...], name: QueueName
) -> tuple[int, int] | None:
    """Return where the body of the record [START, END) with HEAD is; None if lengths or topic do not agree."""
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


def _fitting(
    data: bytes | memoryview,
    rows: NDArray[np.bool_],
    body_at: Longs,
    body_size: Longs,
    crcs: Longs | Ints,
) -> NDArray[np.bool_]:
    """Return those of ROWS, whose lengths agree, whose bodies fit their CRCS."""
    fits = rows.copy()
    some = slice(None) if rows.all() else rows
    there = body_crcs(data, body_at[some], body_size[some])
    fits[some] = (there == crcs[some]) | (body_size[some] == 0)
    return fits


def _of_any_topic(
    data: bytes | memoryview, starts: Longs, entries: Entries, check_crcs: bool
) -> _Masks:
    """Tell the same of a light queue: its records are of other topics, and say the numbers of other queues."""
    columns = parse_run(data, starts)
    agrees: NDArray[np.bool_] = columns.well_formed & (columns.sizes == entries.sizes)
    agrees &= columns.log_offset == entries.log_offsets
    agrees &= (columns.sys_flag & SYS_PREPARED) == 0
    if not check_crcs:
        return agrees, agrees
    return agrees, _fitting(data, agrees, columns.body_start, columns.body_size, columns.body_crc)
