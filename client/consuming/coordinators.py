"""Which broker coordinates a group: the one to which the group's name hashes, or the next that can be reached. Pure.

The brokers' names in order are a ring. All members find the same one as long as they see the same brokers; where they
do not, or cannot reach the same, each half agrees for itself, and the leases of the queues keep them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...proto.java_hash import java_hash


def coordinators(group: str, addresses: Mapping[str, str]) -> list[str]:
    """Return ADDRESSES, which are by broker name, in the order in which a member of GROUP tries them."""
    names = sorted(addresses)
    if not names:
        return []
    first = (java_hash(group) & 0x7FFFFFFF) % len(names)
    return [addresses[name] for name in _from(names, first)]


def _from(names: list[str], first: int) -> Iterable[str]:
    return names[first:] + names[:first]
