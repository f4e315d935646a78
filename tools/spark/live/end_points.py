"""The offsets at which reading begins and ends, resolved from a user's option. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ....client.queue import Queue
from ....proto.errors import ConfigError
from .cluster import Bounds, Cluster
from .losses import Losses
from .offsets import EARLIEST, LATEST, Offsets, named
from .read_options import Point


def resolved(
    point: Point,
    bounds: Mapping[Queue, Bounds],
    cluster: Cluster,
    group: str,
) -> dict[Queue, int]:
    """Return the offsets of POINT in the queues of BOUNDS; EARLIEST and LATEST stay as they are.

    GROUP's offsets count where POINT is `group`; it begins where a queue does that it never committed.
    """
    if point.kind == "earliest":
        return dict.fromkeys(bounds, EARLIEST)
    if point.kind == "latest":
        return dict.fromkeys(bounds, LATEST)
    if point.kind == "group":
        return dict.fromkeys(bounds, EARLIEST) | cluster.committed(group, bounds)
    if point.kind == "offsets":
        check_named(point, bounds)
        return dict(point.numbers)
    if point.kind == "times":
        check_named(point, bounds)
    times = point.numbers if point.kind == "times" else dict.fromkeys(bounds, point.time_ms)
    found = cluster.at_times(times)
    too_young = [queue for queue in bounds if found.get(queue) is None]
    if too_young and not point.latest_if_none:
        raise ConfigError(
            f"option {point.option}: nothing is so young in {named(too_young)}; name an earlier time, or write"
            " startingOffsetsByTimestampStrategy=latest",
            field=point.option,
        )
    return {queue: LATEST if (at := found.get(queue)) is None else at for queue in bounds}


def check_named(point: Point, bounds: Mapping[Queue, Bounds]) -> None:
    """Raise ConfigError unless POINT names each queue of BOUNDS, and no other."""
    unknown, missing = set(point.numbers) - set(bounds), set(bounds) - set(point.numbers)
    if unknown:
        raise ConfigError(
            f"option {point.option}: {named(unknown)} is not read; the queues are {named(bounds)}",
            field=point.option,
        )
    if missing:
        raise ConfigError(
            f"option {point.option}: it says nothing of {named(missing)}; name every queue ({EARLIEST} is earliest,"
            f" {LATEST} latest)",
            field=point.option,
        )


def settled(offsets: Offsets, bounds: Mapping[Queue, Bounds]) -> dict[Queue, int]:
    """Return OFFSETS with numbers for EARLIEST and LATEST."""
    special = {
        queue: {EARLIEST: bounds[queue].least, LATEST: bounds[queue].end} for queue in offsets
    }
    return {queue: special[queue].get(offset, offset) for queue, offset in offsets.items()}


def within(
    offsets: Offsets, bounds: Mapping[Queue, Bounds], losses: Losses, what: str
) -> dict[Queue, int]:
    """Return OFFSETS, those outside of BOUNDS set to the nearest valid one. WHAT names their origin."""
    found: dict[Queue, int] = {}
    for queue, offset in offsets.items():
        least, end = bounds[queue]
        if offset < least:
            losses.report(
                f"{what} {queue}: offset {offset} is gone, the oldest that is there is {least}"
            )
        elif offset > end:
            losses.report(f"{what} {queue}: offset {offset} is behind the end, {end}")
        found[queue] = min(max(offset, least), end)
    return found
