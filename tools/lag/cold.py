"""The lag rows of one store, from its files.

Rows: every committed offset; and, for each group that is known to read a topic, the topic's queues in which it has
none. A group is known by a commit, its subscriptions in subscriptionGroup.json, a filter, its place in an ordered queue
or its mode of consumption. Retry and dead-letter topics belong to their group; without a commit they show only
where they hold messages.

`store_rows` is one broker's share and needs nothing of any other: Spark runs it one task a broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ...broker.accounts.accounts import accounts_in
from ...store.view import OpenedStore, QueueBounds
from ..stores.waiting import Waiting, waiting_of
from .positions import Positions, positions_of
from .rows import Facts, LagRow, is_dead_letter_topic, is_retry_topic
from .unread import Unread, unread_from


def store_rows(store: OpenedStore, now_ms: int) -> list[LagRow]:
    """Return the rows of STORE at NOW_MS, by topic, queue and group."""
    return list(_Report(store, now_ms).rows())


class _Report:
    """The rows of one store."""

    def __init__(self, store: OpenedStore, now_ms: int) -> None:
        self._store = store
        self._now_ms = now_ms
        self._bounds = {(one.topic, one.queue_id): one for one in store.queues()}
        self._positions: Positions = positions_of(store, self._bounds.values())
        self._waiting: Waiting = waiting_of(store)
        self._accounts = accounts_in(store.disk, store.root)
        self._retries: dict[str, int] = defaultdict(int)
        self._dead: dict[str, int] = defaultdict(int)
        self._sum_up_groups()

    def _sum_up_groups(self) -> None:
        """Count what waits in the retry topics of each group, and its dead letters."""
        for (topic, queue_id), groups in self._positions.items():
            bounds = self._bounds.get((topic, queue_id))
            if bounds is None:
                continue
            for group, committed in groups.items():
                low = max(0, bounds.min_offset)
                if is_dead_letter_topic(topic, group):
                    self._dead[group] += bounds.max_offset - low
                elif is_retry_topic(topic, group):
                    unread = bounds.max_offset - max(low, committed or 0)
                    delayed = self._waiting.delayed_for(topic, queue_id) or 0
                    self._retries[group] += max(0, unread) + delayed

    def rows(self) -> Iterator[LagRow]:
        for topic, queue_id in sorted(self._positions):
            groups = self._positions[topic, queue_id]
            bounds = self._bounds.get((topic, queue_id)) or self._store.queue(topic, queue_id)
            unread = self._unread(bounds, groups)
            for group in sorted(groups):
                yield self._row((topic, queue_id), group, groups[group], bounds, unread)

    def _unread(
        self, bounds: QueueBounds | None, groups: Mapping[str, int | None]
    ) -> dict[int, Unread]:
        """Return what is unread from each of the groups' offsets on."""
        if bounds is None or not bounds.has_files:
            return {}
        queue = self._store.reading.queues[bounds.topic, bounds.queue_id]
        offsets = {offset for offset in groups.values() if offset is not None}
        return unread_from(self._store.reading, queue, offsets)

    def _row(
        self,
        place: tuple[str, int],
        group: str,
        committed: int | None,
        bounds: QueueBounds | None,
        unread_by_offset: Mapping[int, Unread],
    ) -> LagRow:
        known = committed is not None and bounds is not None
        unread = (
            unread_by_offset.get(committed, Unread()) if known and committed is not None else None
        )
        held = self._waiting.held_by(*place, group)
        facts = Facts(
            topic=place[0],
            queue_id=place[1],
            group=group,
            committed_offset=committed,
            min_offset=None if bounds is None or bounds.min_offset < 0 else bounds.min_offset,
            max_offset=None if bounds is None else bounds.max_offset,
            unread_entries=None if unread is None else unread.messages,
            delayed=self._waiting.delayed_for(*place),
            held=None if held is None else held.count,
            held_until_ms=None if held is None else held.until_ms,
            read_to=None if held is None else held.read_to,
            skipped=self._skipped(group, place),
            now_ms=self._now_ms,
            **self._of_group(place[0], group),
        )
        stored_ms = None if unread is None else unread.oldest_stored_ms
        return LagRow.of(
            self._store.broker_name,
            facts,
            lag_bytes=None if unread is None else unread.size_bytes,
            oldest_unread_age_ms=None if stored_ms is None else max(0, self._now_ms - stored_ms),
        )

    def _skipped(self, group: str, place: tuple[str, int]) -> int | None:
        """Return how many messages the filters of GROUP stepped over; None for a store without accounts."""
        if self._accounts is None:
            return None
        account = self._accounts.get((group, *place))
        return 0 if account is None else account.skipped_count

    def _of_group(self, topic: str, group: str) -> dict[str, int | None]:
        """Return what the group's own topics hold, for rows of the topics that it reads."""
        if is_retry_topic(topic, group) or is_dead_letter_topic(topic, group):
            return {}
        return {"retries": self._retries.get(group), "dead_letters": self._dead.get(group)}
