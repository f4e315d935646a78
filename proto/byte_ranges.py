"""Many ranges of one buffer at once: gather them into a matrix, split each at a separator, hash them as Java does.

A range is `data[start : start + size]`; a size ≤ 0 is empty. A structured array over the buffer with a stride of one
byte has a window of any width at every position, so one fancy index copies all windows: about 5 ns for 60 bytes.

The Java hash of a string (`java_hash`, java_hash.py) is computed from UTF-8 bytes in place. For ASCII a byte is a code
unit, and the hash of a range is the scalar product of its bytes with powers of 31. Ranges with other characters are
decoded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .java_hash import java_hash

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

#: Cells of one matrix; more rows are processed in slices.
CELLS_MAX: Final = 1 << 22
_WORD = 8


def windows(data: Bytes, starts: Longs, width: int) -> Bytes:
    """Return the WIDTH bytes at each of STARTS, one row each, as a new matrix. All must be inside DATA."""
    all_windows = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    rows: Bytes = all_windows[starts].view(np.uint8).reshape(len(starts), width)
    return rows


def left_aligned(data: Bytes, starts: Longs, sizes: Longs, width: int) -> Bytes:
    """Return a matrix with one range per row, cut to WIDTH columns; cells after the end of a range are unspecified."""
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
    """Return a matrix with one range per row, right-aligned to WIDTH columns, zeros before it. Sizes are ≤ WIDTH."""
    first = starts + sizes - width
    if len(data) >= width and int(first.min()) >= 0:
        cells = windows(data, first, width)
    else:
        cells = data[np.maximum(first[:, None] + np.arange(width), 0)]
    if int(sizes.min()) < width:
        cells *= np.arange(width, 0, -1) <= sizes[:, None]
    return cells


def bytes_at(data: Bytes, at: Longs, wanted: bytes) -> NDArray[np.bool_]:
    """Return for each position whether it has the bytes WANTED."""
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
    after the part's end are unspecified.
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


_Seeds: TypeAlias = NDArray[np.uint32] | np.uint32

_MASK = 0xFFFFFFFF
HASHED_WIDTH_MAX: Final = (
    512  # ranges longer than this are hashed one by one: the matrix would waste memory
)
_HASHED_CELLS_MAX = 1 << 20  # bytes that one matrix may hold


def _powers(count: int) -> NDArray[np.uint32]:
    powers = np.empty(count, np.uint32)
    value = 1
    for index in range(count):
        powers[index] = value
        value = value * 31 & _MASK
    return powers


_POWERS = _powers(HASHED_WIDTH_MAX + 1)
_FALLING_POWERS = np.ascontiguousarray(_POWERS[HASHED_WIDTH_MAX - 1 :: -1])


def java_hashes(texts: Sequence[str]) -> NDArray[np.int32]:
    """Return the hash of each of TEXTS."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    starts = np.cumsum(sizes) - sizes
    return hash_ranges(np.frombuffer(b"".join(encoded), np.uint8), starts, sizes)


def hash_ranges(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    seed: int | NDArray[np.int32] = 0,
) -> NDArray[np.int32]:
    """Return the hash of each UTF-8 range of DATA, each continued from SEED, the hash of its prefix.

    A range is `data[start : start + size]`; a size ≤ 0 is the empty string. SEED is one for all, or one per range.
    Malformed UTF-8 counts as U+FFFD.
    """
    count = len(starts)
    if count == 0:
        return np.empty(0, np.int32)
    seeds = seed.view(np.uint32) if isinstance(seed, np.ndarray) else np.uint32(seed & _MASK)
    width = int(sizes.max())
    if width <= 0:
        hashes = np.empty(count, np.uint32)
        hashes[:] = seeds
        return hashes.view(np.int32)
    if width > HASHED_WIDTH_MAX:
        return _mixed_hashes(data, starts, sizes, seeds)
    if count * width > _HASHED_CELLS_MAX:
        step = max(1, _HASHED_CELLS_MAX // width)
        parts = [
            _matrix_hashes(data, starts[i : i + step], sizes[i : i + step], _part(seeds, i, step))
            for i in range(0, count, step)
        ]
        return np.concatenate(parts)
    return _matrix_hashes(data, starts, sizes, seeds)


def _part(seeds: _Seeds, at: int, step: int) -> _Seeds:
    return seeds[at : at + step] if isinstance(seeds, np.ndarray) else seeds


def _matrix_hashes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], seeds: _Seeds
) -> NDArray[np.int32]:
    sizes = np.maximum(sizes, 0)
    width = max(1, int(sizes.max()))
    units = right_aligned(data, starts, sizes, width)
    hashes: NDArray[np.uint32] = units.astype(np.uint32) @ _FALLING_POWERS[-width:]
    if isinstance(seeds, np.ndarray) or seeds:
        hashes += _POWERS[sizes] * seeds
    if units.max() >= 0x80:
        _rehash(data, starts, sizes, seeds, hashes, np.flatnonzero((units >= 0x80).any(axis=1)))
    return hashes.view(np.int32)


def hash_rows(rows: Bytes, seed: int) -> NDArray[np.int32]:
    """Return the hash of each row of up to HASHED_WIDTH_MAX ASCII bytes, each continued from SEED."""
    width = rows.shape[1]
    hashes: NDArray[np.uint32] = rows.astype(np.uint32) @ _FALLING_POWERS[-width:]
    hashes += np.uint32(int(_POWERS[width]) * seed & _MASK)
    return hashes.view(np.int32)


def _mixed_hashes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], seeds: _Seeds
) -> NDArray[np.int32]:
    hashes = np.zeros(len(starts), np.uint32)
    short = sizes <= HASHED_WIDTH_MAX
    some = seeds[short].view(np.int32) if isinstance(seeds, np.ndarray) else int(seeds)
    hashes[short] = hash_ranges(data, starts[short], sizes[short], seed=some).view(np.uint32)
    _rehash(data, starts, sizes, seeds, hashes, np.flatnonzero(~short))
    return hashes.view(np.int32)


def _rehash(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    seeds: _Seeds,
    hashes: NDArray[np.uint32],
    rows: NDArray[np.intp],
) -> None:
    """Set HASHES of ROWS, each decoded and hashed separately."""
    for row in rows:
        start = int(starts[row])
        text = data[start : start + int(sizes[row])].tobytes().decode("utf-8", "replace")
        seed = seeds[row] if isinstance(seeds, np.ndarray) else seeds
        hashes[row] = java_hash(text, int(seed)) & _MASK


def decimal_numbers(array: Bytes, starts: Longs, sizes: Longs) -> Longs:
    """Return the decimal number of up to 18 digits in each range; −1 where there is none."""
    numbers = np.full(len(starts), -1, np.int64)
    for row in np.flatnonzero((sizes > 0) & (sizes < 19)).tolist():
        start = int(starts[row])
        text = array[start : start + int(sizes[row])].tobytes()
        if text.isdigit():
            numbers[row] = int(text)
    return numbers
