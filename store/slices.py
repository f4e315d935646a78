"""Reading a queue: entries, then the records they point to, in as few copies as the log's layout allows.

Records that lie end to end, or near each other, in one file are read at once; all slices are joined. Then each record
is compared with its entry (format/agreement.py), and its body with its CRC, if that is asked for. A record that does
not agree (its file is gone, damage overwrote it, or recovery turned it into a rolled-back one) is left out, so that a
reader gets past it: `next_offset` counts it as read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..proto.record_run import (
    LEAST_SIZE,
    Longs,
    starts_of,
)
from ..proto.topics import RECORD_SIZE_MAX
from .commit_log import CommitLog
from .files import MappedFile
from .format.agreement import Entries, QueueName, compare

logger = logging.getLogger(__name__)

#: Records that lie scattered over no more are read with what is between them; of more the map is read.
_SPAN_MAX: Final = 1 << 17


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
    agrees, intact = compare(records, starts, entries, name, numbers, check_crcs=check_crcs)
    ends = starts + entries.sizes
    if not intact.all():
        starts, ends = starts[intact], ends[intact]
    elif (starts[1:] == ends[:-1]).all():
        return Found(records, rows, rows[:0])
    view = memoryview(records)
    records = b"".join(map(view.__getitem__, map(slice, starts.tolist(), ends.tolist())))
    return Found(records, rows[intact], rows[agrees & ~intact])


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
