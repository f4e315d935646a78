"""The values of properties in many records at once, with numpy.

Most batches come from one client: every record has the same properties in the same order, with values of the same
lengths. Then the layout of one record applies to all, and one comparison of all property strings with the first one
proves it. The first record may be longer or shorter than the others, as in batches of an idempotent producer. It is
parsed separately. Otherwise the strings are split at their separators (see properties.py for the format).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from .byte_ranges import CELLS_MAX, Parts, bytes_at, hash_ranges, left_aligned, split, windows
from .record import Buffer
from .record_run import Bytes, Longs, RunColumns

if TYPE_CHECKING:
    from .record import Buffer

_END_OF_NAME: Final = 1
_END_OF_PAIR: Final = 2
_NAME_END: Final = bytes((_END_OF_NAME,))
_PAIR_END: Final = bytes((_END_OF_PAIR,))


@dataclass(frozen=True, slots=True)
class Pairs:
    """All properties of many records, in order: the ranges of each name and each value, and the index of the record."""

    rows: Longs
    name_starts: Longs
    name_ends: Longs
    value_starts: Longs
    value_ends: Longs

    def __len__(self) -> int:
        return len(self.rows)


class PropertyRanges:
    """Finds the values of properties in all records of a batch."""

    def __init__(self, data: Buffer | Bytes, columns: RunColumns) -> None:
        self._array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        self._starts = columns.properties_start
        self._sizes = columns.properties_size
        self._count = len(columns)
        self._pairs: Parts | None = None
        #: How many records at the front are parsed separately: 0 or 1.
        self._apart = int(self._count > 1 and self._sizes[0] != self._sizes[1])
        self._first: dict[bytes, tuple[int, int]] = {}
        self._layout = self._common_layout()
        self._found: dict[str, tuple[Longs, Longs]] = {}

    def find(self, name: str) -> tuple[Longs, Longs]:
        """Return start and size of the value of property NAME in each record; size −1 where it has none.

        By RocketMQ's rules: an empty value is none, a later duplicate wins. Results are cached: do not change them.
        """
        if name not in self._found:
            by_layout = self._layout is not None
            self._found[name] = self._in_layout(name) if by_layout else self._in_pairs(name)
        return self._found[name]

    def has(self, name: str) -> bool:
        """Does any record have the property NAME with a value?"""
        if self._layout is not None:
            encoded = name.encode()
            return encoded in self._layout or encoded in self._first
        return bool((self.find(name)[1] > 0).any())

    def texts(self, name: str) -> list[str | None]:
        """Return the value of property NAME in each record, None where it has none; malformed UTF-8 as U+FFFD."""
        starts, sizes = self.find(name)
        if not len(sizes) or int(sizes.max()) <= 0:
            return [None] * len(sizes)
        view = memoryview(self._array)  # type: ignore[arg-type]  # numpy's stubs do not say that arrays are buffers
        cuts = map(slice, starts.tolist(), (starts + np.maximum(sizes, 0)).tolist())
        found: list[str | None] = [str(view[cut], "utf-8", "replace") for cut in cuts]
        if int(sizes.min()) <= 0:
            for row in (sizes <= 0).nonzero()[0].tolist():
                found[row] = None
        return found

    def pairs(self) -> Pairs:
        """Return every property that has a name and a value; of duplicates all (the last one counts)."""
        parts = self._parts()
        name_ends = _first_in_parts(self._array, parts, _END_OF_NAME)
        good = (name_ends > parts.starts) & (name_ends + 1 < parts.ends)
        if good.all():
            return Pairs(parts.rows, parts.starts, name_ends, name_ends + 1, parts.ends)
        ends = name_ends[good]
        return Pairs(parts.rows[good], parts.starts[good], ends, ends + 1, parts.ends[good])

    def _common_layout(self) -> dict[bytes, tuple[int, int]] | None:
        """Return start and size of each property's value, the same in every property string; None if they differ."""
        if not self._count:
            return None
        starts, sizes = self._starts[self._apart :], self._sizes[self._apart :]
        width = int(sizes[0])
        if not 0 < width <= CELLS_MAX // self._count or (sizes != width).any():
            return None
        if int(starts.max()) + width > len(self._array) or not self._read_first():
            return None
        strings = windows(self._array, starts, width)
        layout: dict[bytes, tuple[int, int]] = {}
        fixed = np.full(
            width, 0xFF, np.uint8
        )  # bytes in which all strings must equal the first one
        for name, start, size in pairs_of(strings[0].tobytes()):
            layout[name] = (start, size)
            fixed[start : start + size] = 0
        ends = strings == _END_OF_PAIR
        if int(np.count_nonzero(ends)) != len(strings) * int(np.count_nonzero(ends[0])):
            return None
        strings ^= strings[0].copy()
        strings &= fixed
        return None if strings.any() else layout

    def _read_first(self) -> bool:
        """Parse the first record if it is separate; return False if its properties are not inside the data."""
        if self._apart:
            start, size = int(self._starts[0]), int(self._sizes[0])
            if start < 0 or size < 0 or start + size > len(self._array):
                return False
            string = self._array[start : start + size].tobytes()
            self._first = {name: (at, length) for name, at, length in pairs_of(string)}
        return True

    def _in_layout(self, name: str) -> tuple[Longs, Longs]:
        assert self._layout is not None
        start, size = self._layout.get(name.encode(), (0, -1))
        starts = self._starts + start
        sizes = np.full(self._count, size, np.int64)
        if self._apart:
            start, sizes[0] = self._first.get(name.encode(), (0, -1))
            starts[0] = self._starts[0] + start
        return starts, sizes

    def _parts(self) -> Parts:
        if self._pairs is None:
            self._pairs = split(self._array, self._starts, self._sizes, _END_OF_PAIR)
        return self._pairs

    def _in_pairs(self, name: str) -> tuple[Longs, Longs]:
        pairs = self._parts()
        wanted = name.encode() + _NAME_END
        word = int.from_bytes(wanted[:8], "little")
        mask = (1 << 8 * min(8, len(wanted))) - 1
        (hits,) = ((pairs.words & np.uint64(mask)) == np.uint64(word)).nonzero()
        value_at = pairs.starts[hits] + len(wanted)
        found = value_at < pairs.ends[hits]
        if len(wanted) > 8:
            found &= bytes_at(self._array, pairs.starts[hits] + 8, wanted[8:])
        if not found.all():
            hits, value_at = hits[found], value_at[found]
        rows = pairs.rows[hits]
        starts = np.zeros(self._count, np.int64)
        sizes = np.full(self._count, -1, np.int64)
        starts[rows] = value_at
        sizes[rows] = pairs.ends[hits] - value_at
        return starts, sizes


_ONES: Final = np.uint64(0x0101010101010101)
_TOPS: Final = np.uint64(0x8080808080808080)
_WORD: Final = 8
#: The upper bits of the IEEE double 2⁷: the exponent, with a bias of 1023.
_POWER_7: Final = 1023 + 7


def _first_in_parts(data: Bytes, parts: Parts, wanted: int) -> Longs:
    """Return the first position of the byte WANTED in each of PARTS; −1: it has none. Eight bytes at a time."""
    found = _first_in_words(parts.words, wanted)
    going = (found < 0) & (parts.starts + _WORD < parts.ends)
    found = np.where(found < 0, -1, parts.starts + found)
    (rows,) = going.nonzero()
    at = parts.starts[rows]
    while len(rows):
        at = at + _WORD
        words = left_aligned(data, at, parts.ends[rows] - at, _WORD).view("<u8").reshape(-1)
        place = _first_in_words(words, wanted)
        hit = place >= 0
        found[rows[hit]] = (at + place)[hit]
        going = ~hit & (at + _WORD < parts.ends[rows])
        rows, at = rows[going], at[going]
    found[found >= parts.ends] = -1
    return found


def _first_in_words(words: NDArray[np.uint64], wanted: int) -> Longs:
    """Return which byte of each of WORDS, from the lowest on, is the first that equals WANTED; negative: none does."""
    odd = words ^ (_ONES * np.uint64(wanted))
    # The lowest bit set here is the top bit of the first byte of ODD that is zero.
    tops = (odd - _ONES) & ~odd & _TOPS
    lowest = tops & (~tops + np.uint64(1))
    powers: Longs = lowest.astype(np.float64).view(np.int64) >> 52
    return (powers - _POWER_7) >> 3


def pairs_of(string: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, value start and value size of each property in STRING that has both."""
    at = 0
    for pair in string.split(_PAIR_END):
        name, separator, value = pair.partition(_NAME_END)
        if separator and name and value:
            yield name, at + len(name) + 1, len(value)
        at += len(pair) + 1


def tags_codes(data: Buffer | Bytes, ranges: PropertyRanges) -> Longs:
    """Return the tags code of each record: the sign-extended Java hash of TAGS, 0 without tags."""
    starts, sizes = ranges.find("TAGS")
    codes = np.zeros(len(starts), np.int64)
    if ranges.has("TAGS"):
        (tagged,) = (sizes > 0).nonzero()
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        codes[tagged] = hash_ranges(array, starts[tagged], sizes[tagged])
    return codes
