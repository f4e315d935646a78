"""Reads a queue: entries, then the records they point to, in as few copies as the log's layout allows.

Consecutive records, or records near each other, in one file are read at once; all slices are joined. Then each record
is compared with its entry (format/agreement.py), and its body with its CRC, if requested. A record that does not agree
(its file was deleted, damage overwrote it, or recovery turned it into a rolled-back one) is left out, so that a reader
gets past it: `next_offset` counts it as read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..proto.facts import Facts
from ..proto.record_run import LEAST_SIZE, Longs, starts_of
from ..proto.topics import RECORD_SIZE_MAX
from .commit_log import CommitLog
from .files import MappedFile
from .format.agreement import Entries, QueueName, compare

logger = logging.getLogger(__name__)

#: Records inside a range of this size are read with the bytes between them; others through the map.
_SPAN_MAX: Final = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """The result of reading a queue.

    records: complete records, concatenated, with SIZES;  queue_offsets, tags_codes: of each record;
    next_offset: where to continue;  min_offset, max_offset: the queue's limits at that moment;
    turned_down: entries before NEXT_OFFSET that CHOOSE did not select;  lost: messages before NEXT_OFFSET
    that do not exist any more: damaged, or deleted with a file.
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
    """The records that a read found, joined; ROWS: the indexes of their entries; DAMAGED: entries whose records are
    left out because their bodies do not match their CRCs (checked only if requested)."""

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
    """Return the records of ENTRIES, of the queue NAME, that exist, and are valid if CHECK_CRCS.

    NUMBERS, if given, are the required queue offsets of the records.
    The records are copied first and checked then, when their heads are in the processor's cache.
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
    """Log ENTRIES whose records were not FOUND and are not damaged."""
    missing = np.ones(len(entries), np.bool_)
    missing[found.rows] = missing[found.damaged] = False
    if missing.any():
        first = int(missing.argmax())
        logger.warning(
            "queue entries without their records %s",
            Facts(
                count=int(missing.sum()),
                queue_offset=entries.first + first,
                log_offset=int(entries.log_offsets[first]),
            ),
        )


def _span(log: CommitLog, entries: Entries) -> tuple[bytes, Longs] | None:
    """Return the bytes from the first of the records of ENTRIES to the last, and the start of each record in them.

    None unless they are in one file, and not much more than the records.
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
    """Return the bytes of the log at ENTRIES, joined, and which of ENTRIES are inside the log."""
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
    """Return how many leading offsets are in FILE."""
    inside = (log_offsets >= file.start) & (log_offsets < file.end)
    return len(inside) if inside.all() else int(inside.argmin())


def _add_pieces(
    file: MappedFile, entries: Entries, begin: int, end: int, pieces: list[memoryview]
) -> NDArray[np.bool_]:
    """Add the bytes of the entries [BEGIN, END), all in FILE, to PIECES; set which of them are inside the file."""
    at = entries.log_offsets[begin:end] - file.start
    sizes = entries.sizes[begin:end]
    ends = at + sizes
    inside: NDArray[np.bool_] = (sizes >= LEAST_SIZE) & (ends <= file.position)
    for row in (inside & (sizes > RECORD_SIZE_MAX)).nonzero()[0].tolist():
        # A damaged entry may have the size of the whole file: the size in the record is compared before the copy.
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
