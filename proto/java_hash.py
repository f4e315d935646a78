"""Java's `String.hashCode` of one string.

h = 0; for each UTF-16 code unit u: h = 31·h + u (mod 2³²), read as a signed 32-bit number. RocketMQ uses it for tag
codes (consume queue) and for keys (index file). Source: the Java language API; store-format.md §3.2, §4.2.
A hash continues from a prefix: h(p + s) = h(p)·31^len(s) + h(s). Of many at once: `byte_ranges.py`.
"""

from __future__ import annotations

from array import array

_MASK = 0xFFFFFFFF


def java_hash(text: str, seed: int = 0) -> int:
    """Return Java's hash of TEXT as a signed 32-bit number, continued from SEED, the hash of a prefix."""
    value = seed & _MASK
    units = array("H", text.encode("utf-16-le", "surrogatepass"))
    for unit in units:
        value = (value * 31 + unit) & _MASK
    return value - (1 << 32) if value >> 31 else value
