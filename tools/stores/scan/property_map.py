"""The properties of many records as an Arrow map: names and values, without a Python object a property.

By Apache's reader a later duplicate of a name wins, so a map never holds a name twice; names and values that are empty
are none (proto/properties.py). Duplicates are rare: to see that there are none costs some 10 ns a property.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....proto.property_ranges import Pairs
from ....proto.record_run import Bytes, Ints, Longs
from ..schemas import arrow
from .arrow_ranges import are_rising, as_text, pieces, text_ranges

if TYPE_CHECKING:
    import pyarrow

#: So many different names are counted as bits of one number; the sums of so many properties a record fit in 64 bits.
_BITS_MAX: Final = 40
_TOKENS: Final = 4


def property_map(data: Bytes, pairs: Pairs, count: int) -> pyarrow.Array:
    """Return the maps of COUNT records whose properties PAIRS stand in DATA."""
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
