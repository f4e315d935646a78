"""Ranges of queues, and how they are cut for tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ....client.queue import Queue
from .offsets import Offsets


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """The messages of QUEUE from offset BEGIN up to, and without, END."""

    queue: Queue
    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets it spans."""
        return self.end - self.begin

    def __str__(self) -> str:
        return f"{self.queue}[{self.begin}, {self.end})"


def ranges_between(begins: Offsets, ends: Offsets) -> list[QueueRange]:
    """Return what is between BEGINS and ENDS in the queues of both, without the empty ones, in order."""
    return [
        QueueRange(queue, begins[queue], ends[queue])
        for queue in sorted(ends)
        if queue in begins and begins[queue] < ends[queue]
    ]


def cut(
    ranges: Iterable[QueueRange], *, at_least: int = 0, records_max: int | None = None
) -> list[QueueRange]:
    """Return RANGES cut so that none has more than RECORDS_MAX, and that there are AT_LEAST, if there is so much.

    As Kafka's source has it: first by RECORDS_MAX; if these are too few, every range is cut again, in proportion to its
    size. Parts of a range differ by at most one message.
    """
    whole = [one for one in ranges if one.size]
    parts = [part for one in whole for part in _equal(one, _count(one.size, records_max))]
    if len(parts) >= at_least or not whole:
        return parts
    total = sum(one.size for one in whole)
    counts = [
        max(_count(one.size, records_max), round(at_least * one.size / total)) for one in whole
    ]
    _raise_to(counts, whole, at_least)
    return [
        part
        for one, count in zip(whole, counts, strict=True)
        for part in _equal(one, min(count, one.size))
    ]


def _count(records: int, records_max: int | None) -> int:
    """Return in how many parts RECORDS go."""
    return 1 if records_max is None else -(-records // records_max)


def _raise_to(counts: list[int], ranges: Sequence[QueueRange], at_least: int) -> None:
    """Raise COUNTS of parts, largest parts first, until there are AT_LEAST or nothing can be cut any more."""
    missing = at_least - sum(
        min(count, one.size) for count, one in zip(counts, ranges, strict=True)
    )
    while missing > 0:
        index = max(range(len(ranges)), key=lambda one: ranges[one].size / counts[one])
        if counts[index] >= ranges[index].size:
            return
        counts[index] += 1
        missing -= 1


def _equal(one: QueueRange, count: int) -> list[QueueRange]:
    """Return ONE in COUNT parts that differ by at most one message."""
    cuts = [one.begin + one.size * part // count for part in range(count + 1)]
    return [QueueRange(one.queue, low, high) for low, high in pairwise(cuts)]
