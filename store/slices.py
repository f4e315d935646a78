"""Reading a queue: entries, then the records they point to, in as few copies as the log's layout allows.

Entries whose records lie end to end in one file become one slice; all slices are joined in one copy. A record that
is not where its entry says (its file is gone, or damage overwrote it) is left out with a warning, so that a reader
gets past it: `next_offset` counts it as read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..proto.record import MAGIC_V1, MAGIC_V2
from ..proto.record_run import Longs
from .commit_log import CommitLog

logger = logging.getLogger(__name__)

_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """What a read of a queue found.

    records: whole records, end to end, with SIZES;  queue_offsets: the queue offset of each;  tags_codes: of each;
    next_offset: where to read on;  min_offset, max_offset: the queue's bounds at that moment.
    """

    records: bytes
    sizes: Longs
    queue_offsets: Longs
    tags_codes: Longs
    next_offset: int
    min_offset: int
    max_offset: int

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
        keep = slice(0, max(count, 1))
        return Entries(self.first, self.log_offsets[keep], self.sizes[keep], self.tags_codes[keep])


def read_entries(log: CommitLog, entries: Entries) -> tuple[bytes, NDArray[np.intp]]:
    """Return the records of ENTRIES that are there, joined, and which entries these are."""
    offsets, sizes = entries.log_offsets, entries.sizes
    breaks = np.flatnonzero(offsets[1:] != offsets[:-1] + sizes[:-1]) + 1
    pieces: list[memoryview] = []
    missing: list[int] = []
    for begin, end in pairwise([0, *breaks.tolist(), len(entries)]):
        piece = _stretch(log, entries, begin, end) if end - begin > 1 else None
        if piece is not None:
            pieces.append(piece)
        else:
            missing += _one_by_one(log, entries, begin, end, pieces)
    rows = np.arange(len(entries))
    if missing:
        _warn(entries, missing)
        rows = np.delete(rows, missing)
    return b"".join(pieces), rows


def _one_by_one(
    log: CommitLog, entries: Entries, begin: int, end: int, pieces: list[memoryview]
) -> list[int]:
    """Add the records of the entries [BEGIN, END) to PIECES; return the entries whose records are not there."""
    missing = []
    offsets = entries.log_offsets[begin:end].tolist()
    for row, offset, size in zip(
        range(begin, end), offsets, entries.sizes[begin:end].tolist(), strict=True
    ):
        if log.record_size(offset) == size and (piece := log.read(offset, size)) is not None:
            pieces.append(piece)
        else:
            missing.append(row)
    return missing


def _stretch(log: CommitLog, entries: Entries, begin: int, end: int) -> memoryview | None:
    """Return the records of the entries [BEGIN, END), which should lie end to end; None if any is not there."""
    if int(entries.sizes[begin:end].min()) < _HEAD.itemsize:
        return None  # Damaged entries: looked at one by one.
    start = int(entries.log_offsets[begin])
    size = int(entries.log_offsets[end - 1] + entries.sizes[end - 1]) - start
    piece = log.read(start, size)
    if piece is None:
        return None
    heads = np.ndarray((size - _HEAD.itemsize + 1,), _HEAD, piece, strides=(1,))
    at = entries.log_offsets[begin:end] - start
    if int(at[-1]) >= len(heads):
        return None
    found = heads[at]
    magic = found["magic"]
    known = (magic == MAGIC_V1) | (magic == MAGIC_V2)
    return piece if (known & (found["size"] == entries.sizes[begin:end])).all() else None


def _warn(entries: Entries, missing: list[int]) -> None:
    logger.warning(
        "records are not where their queue entries say",
        extra={
            "count": len(missing),
            "queue_offset": entries.first + missing[0],
            "log_offset": int(entries.log_offsets[missing[0]]),
        },
    )
