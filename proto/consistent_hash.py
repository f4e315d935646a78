"""Buckets by consistent hash: when one is added, only as many numbers move as the new one gets.

The broker places message groups by it, and our clients sharding keys, as Apache's proxy does: Guava's
Hashing.consistentHash of Java's hash of the text. Pure.
"""

from __future__ import annotations

from typing import Final

_MASK_64: Final = (1 << 64) - 1
_MULTIPLIER: Final = 2862933555777941757


def consistent_bucket(number: int, buckets: int) -> int:
    """Return the bucket, of BUCKETS, for NUMBER: as Guava's Hashing.consistentHash of the same 64-bit number."""
    state = number & _MASK_64
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _MASK_64
        step = ((state >> 33) + 1) / (1 << 31)
        following = int((candidate + 1) / step)
        if following >= buckets:
            return candidate
        candidate = following
