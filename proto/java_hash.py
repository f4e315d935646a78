"""Hashes of Java programs: `String.hashCode`, and Guava's consistent buckets. No input or output.

h = 0; for each UTF-16 code unit u: h = 31·h + u (mod 2³²), read as a signed 32-bit number. RocketMQ uses it for tag
codes (consume queue) and for keys (index file). A hash continues from a prefix: h(p + s) = h(p)·31^len(s) + h(s).
byte_ranges.py hashes many texts at once. Source: the Java language API; store-format.md §3.2, §4.2.

Buckets are consistent: when one is added, only the numbers of the new bucket move. The broker uses them to choose the
queue of a message group, and PocketMQ's clients to choose that of a sharding key, like Apache RocketMQ's proxy.
"""

from __future__ import annotations

from array import array
from typing import Final

_MASK: Final = 0xFFFFFFFF
_MASK_64: Final = (1 << 64) - 1
_MULTIPLIER: Final = 2862933555777941757


def java_hash(text: str, seed: int = 0) -> int:
    """Return the Java hash of TEXT as a signed 32-bit number, continued from SEED, the hash of a prefix."""
    value = seed & _MASK
    units = array("H", text.encode("utf-16-le", "surrogatepass"))
    for unit in units:
        value = (value * 31 + unit) & _MASK
    return value - (1 << 32) if value >> 31 else value


def consistent_bucket(number: int, buckets: int) -> int:
    """Return the bucket of NUMBER, 0 to BUCKETS - 1: the result of Guava's Hashing.consistentHash."""
    state = number & _MASK_64
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _MASK_64
        step = ((state >> 33) + 1) / (1 << 31)
        following = int((candidate + 1) / step)
        if following >= buckets:
            return candidate
        candidate = following
