"""Many ranges of one buffer at once: gather them into a matrix, or split each at a separator.

A range is `data[start : start + size]`; a size ≤ 0 is empty. A structured array over the buffer with a stride of one
byte has a window of any width at every position, so that one fancy index copies all windows: some 5 ns for 60 bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

#: Cells of one matrix; more rows are worked off in slices.
CELLS_MAX: Final = 1 << 22
_WORD = 8


def windows(data: Bytes, starts: Longs, width: int) -> Bytes:
    """Return the WIDTH bytes at each of STARTS, a row each, as a new matrix. All must lie inside DATA."""
    all_windows = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    rows: Bytes = all_windows[starts].view(np.uint8).reshape(len(starts), width)
    return rows


def left_aligned(data: Bytes, starts: Longs, sizes: Longs, width: int) -> Bytes:
    """Return a matrix with one range a row, cut to WIDTH columns; what stands behind a range is unspecified."""
    if not len(starts) or width <= 0:
        return np.zeros((len(starts), max(0, width)), np.uint8)
    room = len(data) - width
    if room >= 0 and int(starts.max()) <= room:
        return windows(data, starts, width)
    matrix = np.zeros((len(starts), width), np.uint8)
    inside = starts <= room
    if inside.any():
        matrix[inside] = windows(data, starts[inside], width)
    for row in np.flatnonzero(~inside):
        start = int(starts[row])
        part = data[start : start + min(width, max(0, int(sizes[row])))]
        matrix[row, : len(part)] = part
    return matrix


def right_aligned(data: Bytes, starts: Longs, sizes: Longs, width: int) -> Bytes:
    """Return a matrix with one range a row, right-aligned to WIDTH columns, zeros before it. Sizes are ≤ WIDTH."""
    first = starts + sizes - width
    if len(data) >= width and int(first.min()) >= 0:
        cells = windows(data, first, width)
    else:
        cells = data[np.maximum(first[:, None] + np.arange(width), 0)]
    if int(sizes.min()) < width:
        cells *= np.arange(width, 0, -1) <= sizes[:, None]
    return cells


def bytes_at(data: Bytes, at: Longs, wanted: bytes) -> NDArray[np.bool_]:
    """Tell for each position whether the bytes WANTED stand there."""
    size = len(wanted)
    if len(data) < size:
        return np.zeros(len(at), np.bool_)
    last = len(data) - size
    all_windows = np.ndarray((last + 1,), f"V{size}", data, strides=(1,))
    found = all_windows[np.minimum(np.maximum(at, 0), last)]
    equal: NDArray[np.bool_] = found == np.frombuffer(wanted, f"V{size}")[0]
    return equal & (at <= last)


class Parts:
    """Ranges, each split at a separator: part i belongs to range `rows[i]`; rows and parts are in order.

    No part is empty. `words` holds the first eight bytes of each part, the first in the lowest place; bytes
    behind the part's end are unspecified.
    """

    def __init__(self, rows: Longs, starts: Longs, ends: Longs, words: NDArray[np.uint64]) -> None:
        self.rows = rows
        self.starts = starts
        self.ends = ends
        self.words = words


def split(data: Bytes, starts: Longs, sizes: Longs, separator: int) -> Parts:
    """Split each range at the byte SEPARATOR; empty parts are left out."""
    count = len(starts)
    width = int(sizes.max()) if count else 0
    if width <= 0:
        empty = np.empty(0, np.int64)
        return Parts(empty, empty, empty, np.empty(0, np.uint64))
    step = max(1, CELLS_MAX // (width + 1))
    if count <= step:
        return _split(data, starts, sizes, separator, width)
    slices = [slice(at, at + step) for at in range(0, count, step)]
    found = [split(data, starts[one], sizes[one], separator) for one in slices]
    return Parts(
        np.concatenate([part.rows + one.start for part, one in zip(found, slices, strict=True)]),
        np.concatenate([part.starts for part in found]),
        np.concatenate([part.ends for part in found]),
        np.concatenate([part.words for part in found]),
    )


def _split(data: Bytes, starts: Longs, sizes: Longs, separator: int, width: int) -> Parts:
    """Split all ranges through one matrix in which every row ends with a separator."""
    count = len(starts)
    columns = width + 1
    flat = np.zeros(count * columns + _WORD, np.uint8)
    matrix = flat[: count * columns].reshape(count, columns)
    matrix[:, :width] = left_aligned(data, starts, sizes, width)
    hits = matrix == separator
    lengths = np.maximum(sizes, 0)
    if int(sizes.min()) < width:
        hits &= np.arange(columns) < lengths[:, None]
        hits[np.arange(count), lengths] = True
    else:
        hits[:, width] = True
    (ends,) = hits.reshape(-1).nonzero()
    rows = ends // columns
    begins = np.empty_like(ends)
    begins[0] = 0
    np.add(ends[:-1], 1, out=begins[1:])
    first_cells = rows * columns
    np.maximum(begins, first_cells, out=begins)
    filled = begins < ends
    if not filled.all():
        (kept,) = filled.nonzero()
        rows, begins, ends, first_cells = rows[kept], begins[kept], ends[kept], first_cells[kept]
    words = np.ndarray((len(flat) - _WORD + 1,), "<u8", flat, strides=(1,))[begins]
    shift = starts[rows] - first_cells
    return Parts(rows, begins + shift, ends + shift, words)
