"""Columns of byte ranges: from where values are in a buffer to Arrow arrays, without a Python object per value.

An Arrow array of strings is a buffer and the places at which values begin and end. With the places (start 0, end 0,
start 1, end 1, …) over the whole buffer every second element is a value, and the others are the bytes between: nothing
is copied so far. `take` then picks the values: 30 ns each. Ranges that do not rise, or overlap (in records of a
damaged store they may), are cut out one by one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ....proto.property_ranges import Pairs
from ....proto.record_run import Bytes, Ints, Longs
from ..schemas import arrow

if TYPE_CHECKING:
    import pyarrow

#: Places in a buffer of Arrow's have 31 bits.
_BYTES_MAX: Final = (1 << 31) - 1
#: In microseconds 64 bits reach that many milliseconds either way; a sender may have written anything.
_INSTANT_MAX_MS: Final = (1 << 63) // 1000 - 1
#: So many different names are counted as bits of one number; the sums of so many properties a record fit in 64 bits.
_BITS_MAX: Final = 40
_TOKENS: Final = 4


def binary_ranges(
    data: Bytes, starts: Longs, ends: Longs, missing: NDArray[np.bool_] | None = None
) -> pyarrow.Array:
    """Return the ranges [STARTS, ENDS) of DATA as Arrow binary values, null where MISSING."""
    return _picked(data, starts, ends, missing, arrow().binary())


def text_ranges(
    data: Bytes, starts: Longs, ends: Longs, missing: NDArray[np.bool_] | None = None
) -> pyarrow.Array:
    """Return the ranges [STARTS, ENDS) of DATA as Arrow strings, null where MISSING."""
    return as_text(_picked(data, starts, ends, missing, arrow().string()))


def _picked(
    data: Bytes, starts: Longs, ends: Longs, missing: NDArray[np.bool_] | None, kind: Any
) -> pyarrow.Array:
    pa = arrow()
    if missing is not None and missing.any():
        starts, ends = _filled(starts, missing), _filled(ends, missing)
    else:
        missing = None
    if not len(starts):
        return pa.array([], kind)
    places = np.empty(2 * len(starts), np.int64)
    places[0::2] = starts
    places[1::2] = ends
    if not are_rising(places, len(data)):
        cut = [
            None if gone else data[start:end].tobytes()
            for start, end, gone in zip(
                starts.tolist(), ends.tolist(), _flags(missing, len(starts)), strict=True
            )
        ]
        return pa.array(cut, pa.binary()).cast(kind, safe=False)
    between = pieces(data, places, kind)
    chosen = evens(len(starts))
    return between.take(pa.array(chosen, mask=missing) if missing is not None else pa.array(chosen))


def _flags(missing: NDArray[np.bool_] | None, count: int) -> list[bool]:
    flags: list[bool] = [False] * count if missing is None else missing.tolist()
    return flags


def are_rising(places: Longs, room: int) -> bool:
    """Are PLACES ascending, and inside of ROOM bytes? Arrow does not check it."""
    inside = int(places[0]) >= 0 and int(places[-1]) <= room
    return inside and not bool((places[1:] < places[:-1]).any())


def pieces(data: Bytes, places: Longs, kind: Any) -> pyarrow.Array:
    """Return what is in DATA between each of PLACES, which must rise, and the next one; nothing is copied."""
    pa = arrow()
    if len(data) > _BYTES_MAX:
        raise ValueError(f"{len(data):,} bytes: places in a buffer have 31 bits")
    return pa.Array.from_buffers(
        kind, len(places) - 1, [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(data)]
    )


def _filled(places: Longs, missing: NDArray[np.bool_]) -> Longs:
    """Return PLACES with the nearest one before in place of a MISSING one, so that they still rise."""
    return np.maximum.accumulate(np.where(missing, 0, places))


@cache
def _evens(room: int) -> Ints:
    return np.arange(0, 2 * room, 2, dtype=np.int32)


def evens(count: int) -> Ints:
    """Return 0, 2, 4, …: COUNT numbers."""
    return _evens(1 << max(13, (count - 1).bit_length()))[:count]


def as_text(strings: pyarrow.Array) -> pyarrow.Array:
    """Return STRINGS with malformed UTF-8 replaced by U+FFFD, as the decoder of Java does it."""
    pa = arrow()
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        values = strings.cast(pa.binary()).to_pylist()
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
        return pa.array(texts, pa.string())
    return strings


def instants(times_ms: Longs) -> pyarrow.Array:
    """Return Unix milliseconds as Arrow timestamps in µs; null where 64 bits do not hold them."""
    pa = arrow()
    kind = pa.timestamp("us", tz="UTC")
    wild = (times_ms > _INSTANT_MAX_MS) | (times_ms < -_INSTANT_MAX_MS)
    if wild.any():
        return pa.array(np.where(wild, 0, times_ms) * 1000, pa.int64(), mask=wild).cast(kind)
    micros = np.ascontiguousarray(times_ms * 1000)
    return pa.Array.from_buffers(kind, len(micros), [None, pa.py_buffer(micros)])


class ConstantColumn:
    """A column that has one text in every row; made once, and cut to length."""

    __slots__ = ("_array", "_text")

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._array: Any = None

    def rows(self, count: int) -> pyarrow.Array:
        """Return it for COUNT rows."""
        if self._array is None or len(self._array) < count:
            pa = arrow()
            self._array = pa.repeat(pa.scalar(self._text, pa.string()), count)
        return self._array[:count]


def property_map(data: Bytes, pairs: Pairs, count: int) -> pyarrow.Array:
    """Return the maps of COUNT records whose properties PAIRS are in DATA.

    By RocketMQ's reader a later duplicate of a name wins, so a map never has a name twice; names and values that are
    empty are none (proto/properties.py). Duplicates are rare: to see that there are none costs about 10 ns each.
    """
    pa = arrow()
    names, values = _names_and_values(data, pairs)
    rows = pairs.rows
    encoded = names.dictionary_encode()
    ids = encoded.indices.to_numpy()
    if _has_duplicates(rows, ids, len(encoded.dictionary), count):
        kept = _last_ones(rows, ids, len(encoded.dictionary))
        names, values, rows = names.take(pa.array(kept)), values.take(pa.array(kept)), rows[kept]
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=ends[1:])
    return pa.MapArray.from_arrays(pa.array(ends), names, values)


def _names_and_values(data: Bytes, pairs: Pairs) -> tuple[Any, Any]:
    """Return the names and the values. Of four neighbours one is a name, one its separator, one a value, one a gap."""
    pa = arrow()
    if not len(pairs):
        return pa.array([], pa.string()), pa.array([], pa.string())
    columns = (pairs.name_starts, pairs.name_ends, pairs.value_starts, pairs.value_ends)
    places = np.empty(_TOKENS * len(pairs), np.int64)
    for at, column in enumerate(columns):
        places[at::_TOKENS] = column
    if not are_rising(places, len(data)):
        names, values = columns[:2], columns[2:]
        return text_ranges(data, *names), text_ranges(data, *values)
    tokens = pieces(data, places, pa.string())
    chosen = np.arange(0, len(places), _TOKENS, dtype=np.int32)
    names, values = tokens.take(pa.array(chosen)), tokens.take(pa.array(chosen + np.int32(2)))
    return as_text(names), as_text(values)


def _has_duplicates(rows: Longs, ids: Ints, names: int, count: int) -> bool:
    """Is a name twice in one record? Then the sum of its bits is more than their union."""
    if not len(rows):
        return False
    if names > _BITS_MAX:
        return len(np.unique(rows * names + ids)) != len(rows)
    bits = np.int64(1) << ids.astype(np.int64)
    firsts = np.flatnonzero(np.diff(rows, prepend=-1))
    return bool((np.add.reduceat(bits, firsts) != np.bitwise_or.reduceat(bits, firsts)).any())


def _last_ones(rows: Longs, ids: Ints, names: int) -> Longs:
    """Return which properties are the last ones of their name in their record, in order."""
    _, backwards = np.unique((rows * names + ids)[::-1], return_index=True)
    return np.sort(len(rows) - 1 - backwards)
