"""Counters of incoming and outgoing messages for `/metrics`, by topic, type and group.

Counting is done per batch and per reply, never per message in Python: it costs about 1 µs per send. Incoming messages
are counted when their send is answered, outgoing ones when they are delivered. All counters start at 0 with the
process.

Limit: `series_max()` series of each kind. A further one replaces the oldest one; `left_out` counts these. The event
loop owns it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...proto.record_run import Longs
from ...proto.run import Run

#: Upper limits of the buckets for record sizes, in bytes.
SIZE_BOUNDS: Final = (1024, 4096, 524_288, 1_048_576, 2_097_152, 4_194_304)
#: Upper limits of the buckets for durations of calls, in milliseconds.
CALL_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
#: Upper limits of the buckets for the age of ended transactions, in seconds.
OUTCOME_BOUNDS_S: Final = (5, 60, 600, 3600, 43_200, 86_400)
_NORMAL: Final = "normal"
_SIZES: Final = np.array(SIZE_BOUNDS)

Key = TypeVar("Key")
Count = TypeVar("Count")


class Distribution:
    """A histogram. `counts` has one number per bucket: up to each of BOUNDS, and above. `total`: the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(
        self, bounds: tuple[int, ...], counts: list[int] | None = None, total: float = 0
    ) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1) if counts is None else counts
        self.total = total

    def copy(self) -> Distribution:
        """Return an independent copy."""
        return Distribution(self.bounds, self.counts.copy(), self.total)

    def add(self, value: float) -> None:
        """Count VALUE."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class GroupOut:
    """Messages of one topic that were delivered to one group."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0


class TopicOutcomes:
    """Ended transactions of one topic, and how long their half messages had waited, in seconds."""

    __slots__ = ("committed", "rolled_back", "waits_s")

    def __init__(self) -> None:
        self.committed = 0
        self.rolled_back = 0
        self.waits_s = Distribution(OUTCOME_BOUNDS_S)


class TrafficCounts:
    """All counters.

    Sizes of incoming records by topic and type; deliveries by topic and group; dead letters by topic and group. calls:
    durations of calls of official clients, by method, code of the reply, whether it waited for messages, and whether it
    was a reply.
    """

    def __init__(self, series_max: Callable[[], int] = lambda: 10_000) -> None:
        self._series_max = series_max
        self.came_in: dict[tuple[str, str], Distribution] = {}
        #: By topic, group, and whether the messages were delivered before.
        self.went_out: dict[tuple[str, str, bool], GroupOut] = {}
        self.dead: dict[tuple[str, str], int] = {}
        self.outcomes: dict[str, TopicOutcomes] = {}
        self.calls: dict[tuple[str, str, bool, bool], Distribution] = {}
        #: Number of replaced series, by counter.
        self.left_out: dict[str, int] = {
            "messages_in": 0,
            "messages_out": 0,
            "send_to_dlq": 0,
            "transactions": 0,
        }

    def stored(self, run: Run, kinds: Mapping[str, NDArray[np.bool_]] | None) -> None:
        """Count RUN, which was stored. KINDS: which of its messages have which type; None: all are NORMAL."""
        if kinds is None:
            self._add(run)
            return
        for kind, of_it in kinds.items():
            self._add_sizes(run.topic, kind.lower(), run.sizes[of_it])

    def stored_again(self, run: Run, *, dead: bool) -> None:
        """Count RUN, the copy of a failed message: a retry, which has a delay, or with DEAD a dead letter."""
        self._add_sizes(run.topic, _NORMAL if dead else "delay", run.sizes)

    def _add(self, run: Run) -> None:
        """Count RUN, whose messages are all NORMAL."""
        found = self._sizes_of(run.topic, _NORMAL)
        least, most = run.size_range
        place = bisect_left(SIZE_BOUNDS, least)
        if place == bisect_left(SIZE_BOUNDS, most):
            found.counts[place] += len(run)
            found.total += len(run.records)
        else:
            self._add_sizes(run.topic, _NORMAL, run.sizes)

    def _add_sizes(self, topic: str, kind: str, sizes: Longs) -> None:
        """Count messages of KIND with SIZES that came into TOPIC."""
        found = self._sizes_of(topic, kind)
        counts = found.counts
        places = np.bincount(np.searchsorted(_SIZES, sizes), minlength=len(counts))
        for place, count in enumerate(places.tolist()):
            counts[place] += count
        found.total += int(sizes.sum())

    def _sizes_of(self, topic: str, kind: str) -> Distribution:
        found = self.came_in.get((topic, kind))
        if found is None:
            made = partial(Distribution, SIZE_BOUNDS)
            found = self._begin("messages_in", self.came_in, (topic, kind), made)
        return found

    def delivered(
        self, group: str, topic: str, messages: int, size: int, *, retried: bool = False
    ) -> None:
        """Count MESSAGES of TOPIC with SIZE bytes in all, delivered to GROUP; RETRIED: they were delivered before."""
        key = topic, group, retried
        found = self.went_out.get(key)
        if found is None:
            found = self._begin("messages_out", self.went_out, key, GroupOut)
        found.messages += messages
        found.bytes += size

    def buried(self, group: str, topic: str) -> None:
        """Count a message of TOPIC that became a dead letter of GROUP."""
        key = topic, group
        if key not in self.dead:
            self._begin("send_to_dlq", self.dead, key, int)
        self.dead[key] += 1

    def ended(self, topic: str, waited_ms: int, *, committed: bool) -> None:
        """Count a transaction for TOPIC that ended WAITED_MS after its half message was stored."""
        found = self.outcomes.get(topic)
        if found is None:
            found = self._begin("transactions", self.outcomes, topic, TopicOutcomes)
        if committed:
            found.committed += 1
        else:
            found.rolled_back += 1
        found.waits_s.add(waited_ms / 1000)

    def answered(
        self, method: str, code: str, took_ms: float, *, waited: bool, failed: bool
    ) -> None:
        """Count a call of METHOD. Both it and CODE are names of the protocol, so there are few of them."""
        key = method, code, waited, failed
        found = self.calls.get(key)
        if found is None:
            found = self.calls[key] = Distribution(CALL_BOUNDS_MS)
        found.add(took_ms)

    def _begin(
        self, what: str, table: dict[Key, Count], key: Key, make: Callable[[], Count]
    ) -> Count:
        """Add and return a new counter for KEY in TABLE."""
        while len(table) >= self._series_max():
            del table[next(iter(table))]
            self.left_out[what] += 1
        made = table[key] = make()
        return made

    def forget_topic(self, topic: str) -> None:
        """Forget TOPIC, which was deleted."""
        tables: tuple[dict[Any, Any], ...] = (self.came_in, self.went_out, self.dead)
        for table in tables:
            _forget(table, lambda key: bool(key[0] == topic))
        self.outcomes.pop(topic, None)

    def forget_group(self, group: str) -> None:
        """Forget GROUP, which was deleted."""
        _forget(self.went_out, lambda key: key[1] == group)
        _forget(self.dead, lambda key: key[1] == group)


def _forget(table: dict[Any, Any], matches: Callable[[Any], bool]) -> None:
    for key in [key for key in table if matches(key)]:
        del table[key]
