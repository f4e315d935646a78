"""Consume statistics of all queues of all groups: in memory, and in the table `statistics` of the broker's journal.

Key: topic, group and queue. Value: `QueueStats` as JSON. The table holds the objects themselves, and encodes one
only when the journal or a follower needs it. The table is lazy: a kill loses the changes of the last second. A move (an
offset reset) is never lost: its reply waits until it is on disk. If the table is lost, all statistics start empty.
The event loop owns them.

Limits: STATS_MAX queues, SIZE_MAX characters. Beyond a limit, those that were used least recently are forgotten.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from ..proto.gen import pocketmq_v1_pb2 as pb
from ..store.disk import Disk
from ..store.flush import Waiter
from ..store.table_files import FOLDER, read_entries
from .group_queues import ONE_SCOPE, GroupQueue, GroupQueueTable, group_queue_table
from .queue_stats import EVERY, Filtering, MovedBy, QueueStats, ScanResult

logger = logging.getLogger(__name__)

STATS_MAX: Final = 10_000
#: A character needs up to six bytes as JSON. With this limit, all statistics fit into one frame to
#: followers.
SIZE_MAX: Final = 10_000_000

StatsKey: TypeAlias = GroupQueue
StatisticsTable: TypeAlias = GroupQueueTable[QueueStats]


class ConsumeStats:
    """Statistics by group, topic and queue. NOW_MS: Unix time.

    `lost` counts lost messages that groups skipped since the start, once per group. `skipped` counts messages that
    filters skipped since the start.
    """

    def __init__(
        self,
        now_ms: Callable[[], int] = lambda: 0,
        table: StatisticsTable | None = None,
        limit: int = STATS_MAX,
        holder: Callable[[str, str, int], str] = lambda group, topic, queue: "",
    ) -> None:
        """Load TABLE (None: keep nothing on disk). HOLDER returns the member that holds a queue for a group."""
        self._holder = holder
        self._now_ms = now_ms
        self._table = statistics_table() if table is None else table
        self._limit = limit
        #: The size of each queue's statistics, and their sum.
        self._sizes = {key: stats.size for key, stats in self.items()}
        self._size = sum(self._sizes.values())
        self._keep_limits()
        self.lost = 0
        self.skipped = 0

    def look(
        self,
        key: StatsKey,
        look: ScanResult,
        *,
        queue_end: int,
        filtering: Filtering = EVERY,
        member: str | None = None,
    ) -> None:
        """Record LOOK at KEY through FILTERING for MEMBER (None: the queue's owner). The queue ends at QUEUE_END."""
        stats = self._of(key, queue_end)
        who = self._holder(*key) if member is None and look.stepped else member or ""
        skipped, lost = stats.look(look, filtering, who, self._now_ms())
        self.skipped += skipped
        self._grew(key, stats)
        self.lost += lost

    def look_at_all(self, key: StatsKey, begin: int, end: int) -> None:
        """Record that all messages [BEGIN, END) of KEY were delivered, if filters have scanned it before."""
        stats = self.get(key)
        if stats is not None and stats.looks:
            stats.look_at_all(begin, end)
            self._table.put(ONE_SCOPE, key, stats)
            self._grew(key, stats)

    def lose(self, key: StatsKey) -> None:
        """Record that a delivered message of KEY is lost and cannot be redelivered."""
        stats = self._of(key)
        stats.lost += 1
        self.lost += 1
        self._grew(key, stats)

    def move(self, key: StatsKey, who: str, before: int | None, after: int) -> None:
        """Record that WHO moved the group of KEY from offset BEFORE to AFTER."""
        if before != after:
            stats = self._of(key)
            stats.move(MovedBy(self._now_ms(), who, before, after))
            self._grew(key, stats)

    def _of(self, key: StatsKey, queue_end: int | None = None) -> QueueStats:
        stats = self.get(key)
        if stats is None or (queue_end is not None and stats.counted_to > queue_end):
            # The topic was deleted and created again: its offsets start at 0, the counts stay.
            stats = (
                QueueStats()
                if stats is None
                else QueueStats(lost=stats.lost, skipped=stats.skipped)
            )
        self._table.put(ONE_SCOPE, key, stats)
        return stats

    def _grew(self, key: StatsKey, stats: QueueStats) -> None:
        """Update the size of ACCOUNT, which is the one of KEY."""
        size = stats.size
        self._size += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self._keep_limits()

    def _keep_limits(self) -> None:
        while len(self._table) > self._limit or self._size > SIZE_MAX:
            _, oldest, _ = next(self._table.items())
            self._drop(oldest, is_urgent=False)

    def _drop(self, key: StatsKey, *, is_urgent: bool) -> None:
        self._size -= self._sizes.pop(key, 0)
        self._table.drop(ONE_SCOPE, key, is_urgent=is_urgent)

    def forget_group(self, group: str) -> None:
        """Forget the statistics of GROUP."""
        self._forget(lambda key: key[0] == group)

    def forget_topic(self, topic: str) -> None:
        """Forget the statistics of TOPIC's queues."""
        self._forget(lambda key: key[1] == topic)

    def _forget(self, matches: Callable[[StatsKey], bool]) -> None:
        for _, key, _ in list(self._table.items()):
            if matches(key):
                self._drop(key, is_urgent=True)

    def get(self, key: StatsKey) -> QueueStats | None:
        """Return the statistics of KEY; None if there are none."""
        return self._table.get(ONE_SCOPE, key)

    def items(self) -> Iterator[tuple[StatsKey, QueueStats]]:
        """Yield the statistics of all queues, the least recently used first."""
        for _, key, stats in self._table.items():
            if stats is not None:
                yield key, stats

    def of_group(self, group: str) -> list[pb.FilteredCount]:
        """Return which messages GROUP did not read, by topic and queue, without queues that it read completely."""
        return [
            pb.FilteredCount(
                topic=topic,
                queue=queue,
                group=name,
                count=stats.skipped_count,
                lost_count=stats.lost,
                skipped=[_skipped(*item) for item in stats.skipped.items()],
                moves=[_moved(one) for one in stats.moves],
            )
            for (name, topic, queue), stats in sorted(self.items(), key=lambda item: item[0])
            if name == group and (stats.skipped or stats.lost or stats.moves)
        ]

    def skipped_by_topic(self) -> dict[tuple[str, str], int]:
        """Return how many messages filters skipped, by group and topic."""
        found: dict[tuple[str, str], int] = {}
        for (group, topic, _), stats in self.items():
            if count := stats.skipped_count:
                found[group, topic] = found.get((group, topic), 0) + count
        return found

    def when_durable(self, waiter: Waiter) -> None:
        """Call WAITER once all records up to now are on disk, or with the error."""
        self._table.when_durable(waiter)


def statistics_table() -> StatisticsTable:
    """Return the table that stores the statistics."""
    return group_queue_table(4, "statistics", QueueStats.to_json, QueueStats.from_json)


def cut_stats(table: StatisticsTable, queue_end: Callable[[str, int], int]) -> None:
    """Remove messages after QUEUE_END(topic, queue) from the statistics in TABLE: the log lost them."""
    for scope, key, stats in table.items():
        _, topic, queue = key
        if stats is not None and stats.cut(queue_end(topic, queue)):
            table.put(scope, key, stats)


def stats_in(disk: Disk, root: str) -> dict[StatsKey, QueueStats] | None:
    """Return all statistics in the store at ROOT on DISK, as last written; None if it has no such table."""
    table = statistics_table()
    read_entries(disk, posixpath.join(root, "pocketmq", FOLDER), [table])
    found = {key: stats for _, key, stats in table.items() if stats is not None}
    return found or None


def _skipped(name: Filtering, one: Any) -> pb.SkippedBy:
    return pb.SkippedBy(
        kind=name[0],
        expression=name[1],
        count=one.count,
        first=one.first,
        last=one.last,
        members=one.members,
        at_ms=one.at_ms,
    )


def _moved(one: MovedBy) -> pb.MovedBy:
    before = -1 if one.before is None else one.before
    return pb.MovedBy(at_ms=one.at_ms, who=one.who, before=before, after=one.after)
