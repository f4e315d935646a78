"""Rows of fixed fields without gaps, big-endian: read one by one as tuples, or many at once as columns."""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record import Buffer

#: Rows as a structured array, over the bytes that they were read from.
Rows = NDArray[Any]

_TYPES: Final = {"h": ">i2", "i": ">i4", "q": ">i8"}


class RowFormat:
    """A row of FIELDS in their order, each "h", "i" or "q": a signed integer of 2, 4 or 8 bytes.

    size: bytes of one row;  dtype: its numpy type.
    pack(*values): return the row of VALUES;  write(buffer, at, *values): write it at AT of BUFFER;
    read(buffer, at=0): return the values of the row at AT of BUFFER. All raise `struct.error` if they do not fit.
    """

    __slots__ = ("dtype", "pack", "read", "size", "write")

    def __init__(self, **fields: str) -> None:
        one = Struct(">" + "".join(fields.values()))
        self.dtype: np.dtype[np.void] = np.dtype(
            [(name, _TYPES[kind]) for name, kind in fields.items()]
        )
        self.size = one.size
        self.pack = one.pack
        self.read = one.unpack_from
        self.write = one.pack_into

    def columns(self, data: Buffer, count: int | None = None, *, at: int = 0) -> Rows:
        """Return COUNT rows from position AT of DATA (None: all complete ones), without a copy."""
        count = (len(data) - at) // self.size if count is None else count
        rows: Rows = np.frombuffer(data, self.dtype, count, at)
        return rows

    def none(self) -> Rows:
        """Return an empty array of rows."""
        return np.empty(0, self.dtype)

    def zeros(self, count: int) -> Rows:
        """Return COUNT new rows of zeros."""
        return np.zeros(count, self.dtype)
