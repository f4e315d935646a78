"""Reading a queue: entries, then the records they point to, in as few copies as the log's layout allows.

Entries whose records lie end to end in one file become one slice; all slices are joined in one copy. Then each record
is held against its entry: size, magic, its own log offset, topic, queue and lengths must agree; bodies are not read.
A record that is not where its entry says (its file is gone, or damage overwrote it), or is of a kind that queues never
deliver (recovery turns damaged records into rolled-back ones), is left out with a warning, so that a reader gets past
it: `next_offset` counts it as read.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..proto.byte_ranges import windows
from ..proto.record import QUEUE_OFFSET_AT, SYS_BORN_V6, SYS_PREPARED, SYS_STORE_V6
from ..proto.record_run import (
    HEAD_SIZE,
    LEAST_SIZE,
    Longs,
    as_bytes,
    heads_at,
    parse_run,
    starts_of,
    topic_field,
)
from ..proto.run_check import topic_is
from ..proto.topics import RECORD_SIZE_MAX
from .commit_log import CommitLog
from .mapped_file import MappedFile
from .queue_kinds import LIGHT_PREFIX

logger = logging.getLogger(__name__)

#: Of fewer records each is looked at by itself: that costs less than the many calls of numpy.
_FEW_MAX: Final = 8
#: Size, magic, queue id, queue offset, log offset, sysFlag and body size.
_HEAD: Final = struct.Struct(">ii4xi4xqqi44xi")
_SHORT: Final = struct.Struct(">h")
_V6: Final = SYS_BORN_V6 | SYS_STORE_V6


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
        count = int(np.searchsorted(np.cumsum(self.sizes), size_max, "right"))
        return self.take(slice(0, max(count, 1)))

    def take(self, rows: NDArray[np.intp] | slice) -> Entries:
        """Return the entries ROWS."""
        return Entries(self.first, self.log_offsets[rows], self.sizes[rows], self.tags_codes[rows])


@dataclass(frozen=True, slots=True)
class QueueName:
    """Whose records entries point to: those of a topic, and of a queue if one is named. No topic: of any (LMQ)."""

    topic: str
    queue: int | None = None
    #: How the topic stands in a record, with its length, behind the magic that goes with it.
    magic: int = field(init=False)
    topic_part: bytes = field(init=False)

    def __post_init__(self) -> None:
        magic, part = topic_field(self.topic)
        object.__setattr__(self, "magic", magic)
        object.__setattr__(self, "topic_part", part)


def read_entries(
    log: CommitLog, entries: Entries, name: QueueName, numbers: Longs | None = None
) -> tuple[bytes, NDArray[np.intp]]:
    """Return the records of ENTRIES, of the queue NAME, that are there, joined, and which entries these are.

    NUMBERS, if given, are the queue offsets that the records must say.
    The records are copied first and looked at then: their heads are in the cache by that time.
    """
    pieces: list[memoryview] = []
    found = np.zeros(len(entries), np.bool_)
    row = 0
    while row < len(entries):
        file = log.files.file_at(int(entries.log_offsets[row]))
        if file is None:
            row += 1
            continue
        file.check_length()
        end = row + _leading(entries.log_offsets[row:], file)
        found[row:end] = _add_pieces(file, entries, row, end, pieces)
        row = end
    rows = found.nonzero()[0]
    there = entries if len(rows) == len(entries) else entries.take(rows)
    records = b"".join(pieces)
    wanted = None if numbers is None else numbers[rows]
    good = agreeing(records, starts_of(there.sizes), there, name, wanted)
    if not good.all():
        records, rows = _without_bad(records, there.sizes, good), rows[good]
        found[:] = False
        found[rows] = True
    if len(rows) < len(entries):
        _warn(entries, int(found.argmin()), len(entries) - len(rows))
    return records, rows


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
        inside[row] = int.from_bytes(file.view[at[row] : at[row] + 4]) == sizes[row]
    if not inside.all():
        at, ends = at[inside], ends[inside]
    breaks = (at[1:] != ends[:-1]).nonzero()[0]
    firsts = np.concatenate((at[:1], at[1:][breaks])).tolist()
    lasts = np.concatenate((ends[:-1][breaks], ends[-1:])).tolist()
    pieces += map(file.view.__getitem__, map(slice, firsts, lasts))
    return inside


def numbers_at(data: bytes | memoryview, starts: Longs) -> Longs:
    """Return the queue offsets that the records at STARTS, which lie inside DATA, say."""
    said = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    found: Longs = said[starts + QUEUE_OFFSET_AT].astype(np.int64)
    return found


def agreeing(
    data: bytes | memoryview,
    starts: Longs,
    entries: Entries,
    name: QueueName,
    numbers: Longs | None = None,
) -> NDArray[np.bool_]:
    """Tell which of the ranges of DATA that begin at STARTS are the records of ENTRIES, and of the queue NAME.

    NUMBERS, if given, are the queue offsets that they must say. The ranges lie inside DATA, and have the
    sizes that the entries say, at least LEAST_SIZE.
    """
    if name.topic.startswith(LIGHT_PREFIX):
        return _agreeing_of_any_topic(
            data, starts, entries
        )  # They say the numbers of another queue.
    if len(starts) <= _FEW_MAX:
        columns = starts.tolist(), entries.sizes.tolist(), entries.log_offsets.tolist()
        rows = zip(*columns, strict=True)
        said = [None] * len(starts) if numbers is None else numbers.tolist()
        few = [
            _agrees(data, start, size, offset, name, number)
            for (start, size, offset), number in zip(rows, said, strict=True)
        ]
        return np.array(few, np.bool_)
    array = as_bytes(data)
    head = heads_at(array, starts)
    sys_flag, body_size = head["sys_flag"], head["body_size"].astype(np.int64)
    good: NDArray[np.bool_] = head["total_size"] == entries.sizes
    good &= head["log_offset"] == entries.log_offsets
    good &= head["magic"] == name.magic
    # Prepared or rolled back: what recovery made of damage.
    good &= (sys_flag & (SYS_PREPARED | _V6)) == 0
    if name.queue is not None:
        good &= head["queue_id"] == name.queue
    in_order = True if numbers is None else head["queue_offset"] == numbers
    # Behind the body: the topic with its length, and the size of the properties, which reach to the record's end.
    topic_size = len(name.topic_part)
    tail_type = np.dtype([("topic", f"V{topic_size}"), ("properties_size", ">i2")])
    tail_at = starts + (HEAD_SIZE + body_size)
    room = starts + entries.sizes - tail_at - tail_type.itemsize
    fits = (body_size >= 0) & (room >= 0)
    tails = windows(array, np.where(fits, tail_at, 0), tail_type.itemsize).view(tail_type)[:, 0]
    good &= fits & (tails["properties_size"] == room)
    good &= tails["topic"] == np.frombuffer(name.topic_part, f"V{topic_size}")[0]
    for row in (~good & ((sys_flag & _V6) != 0)).nonzero()[0].tolist():
        good[row] = _agrees_unusual(
            data, int(starts[row]), int(entries.sizes[row]), int(entries.log_offsets[row]), name
        )
    good &= in_order
    return good


def _agrees(
    data: bytes | memoryview,
    start: int,
    size: int,
    log_offset: int,
    name: QueueName,
    number: int | None,
) -> bool:
    there, magic, queue, said, own_offset, sys_flag, body_size = _HEAD.unpack_from(data, start)
    if there != size or own_offset != log_offset or sys_flag & SYS_PREPARED:
        return False
    if number not in (None, said):
        return False
    if sys_flag & _V6:  # The body stands further behind: what was read above is no size of it.
        return _agrees_unusual(data, start, size, log_offset, name)
    if body_size < 0:
        return False
    topic_at = start + _HEAD.size + body_size
    properties_at = topic_at + len(name.topic_part) + _SHORT.size
    end = start + size
    if magic != name.magic or properties_at > end or name.queue not in (None, queue):
        return False
    if data[topic_at : properties_at - _SHORT.size] != name.topic_part:
        return False
    (properties_size,) = _SHORT.unpack_from(data, properties_at - _SHORT.size)
    return bool(properties_at + properties_size == end)


def _agrees_unusual(
    data: bytes | memoryview, start: int, size: int, log_offset: int, name: QueueName
) -> bool:
    """Tell the same of a record with an IPv6 host."""
    place = np.array([start])
    entry = Entries(0, np.array([log_offset]), np.array([size]), np.zeros(1, np.int64))
    if not _agreeing_of_any_topic(data, place, entry)[0]:
        return False
    columns = parse_run(data, place)
    same_queue = name.queue in (None, int(columns.queue_id[0]))
    return same_queue and bool(topic_is(data, columns, name.topic)[0])


def _agreeing_of_any_topic(
    data: bytes | memoryview, starts: Longs, entries: Entries
) -> NDArray[np.bool_]:
    columns = parse_run(data, starts)
    good: NDArray[np.bool_] = columns.well_formed & (columns.sizes == entries.sizes)
    good &= columns.log_offset == entries.log_offsets
    good &= (columns.sys_flag & SYS_PREPARED) == 0
    return good


def _without_bad(data: bytes, sizes: Longs, good: NDArray[np.bool_]) -> bytes:
    ends = np.cumsum(sizes)
    ranges = zip((ends - sizes)[good].tolist(), ends[good].tolist(), strict=True)
    return b"".join(data[begin:end] for begin, end in ranges)


def _warn(entries: Entries, first: int, count: int) -> None:
    logger.warning(
        "records are not where their queue entries say",
        extra={
            "count": count,
            "queue_offset": entries.first + first,
            "log_offset": int(entries.log_offsets[first]),
        },
    )
