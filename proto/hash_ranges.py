"""Java's `String.hashCode` of many byte ranges at once: what `java_hash.py` computes of one string, in columns.

It works on UTF-8 bytes in place. For ASCII a byte is a code unit, and the hash of a range is the scalar product of its
bytes with powers of 31; ranges with other characters are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .byte_ranges import right_aligned
from .java_hash import java_hash

_Seeds: TypeAlias = NDArray[np.uint32] | np.uint32

_MASK = 0xFFFFFFFF
_WIDTH_MAX = 512  # ranges longer than this are hashed one by one: the matrix would waste memory
_CELLS_MAX = 1 << 20  # bytes that one matrix may hold


def _powers(count: int) -> NDArray[np.uint32]:
    powers = np.empty(count, np.uint32)
    value = 1
    for index in range(count):
        powers[index] = value
        value = value * 31 & _MASK
    return powers


_POWERS = _powers(_WIDTH_MAX + 1)
_FALLING_POWERS = np.ascontiguousarray(_POWERS[_WIDTH_MAX - 1 :: -1])


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

    A range is `data[start : start + size]`; a size ≤ 0 is the empty string. SEED is one for all, or one a range.
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
    if width > _WIDTH_MAX:
        return _mixed_hashes(data, starts, sizes, seeds)
    if count * width > _CELLS_MAX:
        step = max(1, _CELLS_MAX // width)
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


def _mixed_hashes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], seeds: _Seeds
) -> NDArray[np.int32]:
    hashes = np.zeros(len(starts), np.uint32)
    short = sizes <= _WIDTH_MAX
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
    """Set HASHES of ROWS, each decoded and hashed on its own."""
    for row in rows:
        start = int(starts[row])
        text = data[start : start + int(sizes[row])].tobytes().decode("utf-8", "replace")
        seed = seeds[row] if isinstance(seeds, np.ndarray) else seeds
        hashes[row] = java_hash(text, int(seed)) & _MASK
