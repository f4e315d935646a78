"""Which numbers below a mark are missing: a few intervals [begin, end), rising and apart. Pure."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from ...proto.record_run import Longs

Gaps: TypeAlias = tuple[tuple[int, int], ...]


def without(gaps: Gaps, begin: int, end: int) -> Gaps:
    """Return GAPS without the numbers [BEGIN, END)."""
    left: list[tuple[int, int]] = []
    for low, high in gaps:
        left += [(a, b) for a, b in ((low, min(high, begin)), (max(low, end), high)) if a < b]
    return tuple(left)


def intervals(present: Longs) -> list[tuple[int, int]]:
    """Return the intervals of the rising numbers PRESENT."""
    if not len(present):
        return []
    breaks = np.flatnonzero(np.diff(present) != 1)
    begins = np.concatenate((present[:1], present[breaks + 1])).tolist()
    ends = (np.concatenate((present[breaks], present[-1:])) + 1).tolist()
    return list(zip(begins, ends, strict=True))
