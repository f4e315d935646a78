"""Reading a queue: entries, then the records they point to, in as few copies as the log's layout allows.

Entries whose records lie end to end in one file become one slice; all slices are joined in one copy. A record that
is not where its entry says (its file is gone, or damage overwrote it), or is of a kind that queues never deliver
(recovery turns damaged records into rolled-back ones), is left out with a warning, so that a reader gets past it:
`next_offset` counts it as read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..proto.byte_ranges import windows
from ..proto.record import MAGIC_V1, MAGIC_V2, SYS_PREPARED
from ..proto.record_run import Longs, as_bytes
from ..proto.topics import RECORD_SIZE_MAX
from .commit_log import CommitLog
from .mapped_file import MappedFile

logger = logging.getLogger(__name__)

_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("others", "V28"), ("sys_flag", ">i4")])


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


def read_entries(log: CommitLog, entries: Entries) -> tuple[bytes, NDArray[np.intp]]:
    """Return the records of ENTRIES that are there, joined, and which entries these are.

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
        end = row + _leading(entries.log_offsets[row:], file)
        found[row:end] = _add_pieces(file, entries, row, end, pieces)
        row = end
    rows = found.nonzero()[0]
    records = b"".join(pieces)
    good = _are_records(records, entries.sizes[rows])
    if not good.all():
        records, rows = _without_bad(records, entries.sizes[rows], good), rows[good]
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
    inside: NDArray[np.bool_] = (sizes >= _HEAD.itemsize) & (ends <= file.position)
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


def _are_records(data: bytes, sizes: Longs) -> NDArray[np.bool_]:
    """Tell which of the ranges with SIZES, end to end in DATA, are records that queues deliver."""
    if not len(sizes):
        return np.zeros(0, np.bool_)
    starts = np.cumsum(sizes) - sizes
    head = windows(as_bytes(data), starts, _HEAD.itemsize).view(_HEAD)[:, 0]
    magic = head["magic"]
    good: NDArray[np.bool_] = (magic == MAGIC_V1) | (magic == MAGIC_V2)
    good &= head["size"] == sizes
    # Prepared or rolled back: what recovery made of damage.
    good &= (head["sys_flag"] & SYS_PREPARED) == 0
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
