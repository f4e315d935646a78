"""The lag rows of one store, from its files.

Rows: every committed offset, but for the marks that the broker keeps as such; and, for each group that is known to read
a topic, the topic's queues in which it has none. A group is known by a commit, its subscriptions in
subscriptionGroup.json, a filter, its place in an ordered queue or its mode of consumption. Retry and dead-letter topics
belong to their group; without a commit they show only where they hold messages.

Unread messages, their bytes and their age come from entries and record heads, never bodies: one pass over the entries
after the lowest offset serves all groups of a queue.

`store_rows` is one broker's share and needs nothing of any other: Spark runs it one task a broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ...broker.consume_stats import stats_in
from ...proto.record import head_store_time_ms
from ...proto.record_run import LEAST_SIZE, Longs
from ...proto.topics import DEAD_LETTER_PREFIX, DEAD_LETTERS_GROUP, MARK_GROUPS, RETRY_PREFIX
from ...store.apache.queue import JavaQueue
from ...store.apache.store import JavaReading
from ...store.format.log import begins_record
from ...store.format.state_tables import GroupConfig
from ...store.opened_store import OpenedQueue, OpenedStore
from ...store.queue_entries import QueueEntries, entries_of
from ..stores.waiting import WaitingCounts, waiting_of
from .rows import LagFacts, LagRow, is_dead_letter_topic, is_retry_topic

#: By topic and queue: groups, and their committed offsets; None for none.
Positions = Mapping[tuple[str, int], dict[str, int | None]]
#: By topic and queue: the first dead letter that was not purged.
PurgeMarks = Mapping[tuple[str, int], int]
#: So many records that cannot be read are passed over, one by one, to find the oldest that can.
_BAD_HEADS_MAX: Final = 64


def purge_marks_of(store: OpenedStore) -> PurgeMarks:
    """Return the marks that the broker keeps in STORE as committed offsets of a group of its own."""
    return {
        (one.topic, one.queue_id): one.offset
        for one in store.committed_offsets()
        if one.group == DEAD_LETTERS_GROUP
    }


def positions_of(
    store: OpenedStore, queues: Collection[OpenedQueue], purged: PurgeMarks
) -> Positions:
    """Return the positions in STORE, whose QUEUES are these, with dead letters PURGED."""
    found: dict[tuple[str, int], dict[str, int | None]] = defaultdict(dict)
    readers: dict[str, set[str]] = defaultdict(set)
    for one in store.committed_offsets():
        if one.group in MARK_GROUPS:
            continue
        # A negative offset means none, in RocketMQ.
        found[one.topic, one.queue_id][one.group] = one.offset if one.offset >= 0 else None
        readers[one.topic].add(one.group)
    for topic, group in _readers(store):
        readers[topic].add(group)
    for topic, queue_id in _queues_of(store, queues, readers):
        for group in readers[topic]:
            found[topic, queue_id].setdefault(group, None)
    groups = {group for names in readers.values() for group in names} | set(store.groups)
    for topic, queue_id, group in _own_queues(queues, groups, purged):
        found[topic, queue_id].setdefault(group, None)
    return found


def _queues_of(
    store: OpenedStore, queues: Iterable[OpenedQueue], topics: Iterable[str]
) -> set[tuple[str, int]]:
    """Return the queues of TOPICS, by their configuration and by their files."""
    wanted = set(topics)
    found = {(one.topic, one.queue_id) for one in queues if one.topic in wanted}
    for topic in wanted:
        found.update((topic, queue_id) for queue_id in range(store.configured_queues(topic)))
    return found


def _readers(store: OpenedStore) -> Iterator[tuple[str, str]]:
    """Yield topic and group of every reading that the tables tell of, but for commits."""
    config = store.config
    for group in config.groups.values():
        for topic in _subscribed(group):
            yield topic, group.name
    for topic, filters in config.filters.items():
        for name in filters.get("groupFilterData") or {}:
            yield str(topic), str(name)
    for topic, modes in config.request_modes.items():
        for name in modes:
            yield str(topic), str(name)
    for key in config.order:
        topic, at, name = str(key).partition("@")
        if at:
            yield topic, name


def _subscribed(group: GroupConfig) -> Iterator[str]:
    for one in group.subscriptions or ():
        bean: Any = one
        topic = bean.get("topic") if isinstance(bean, dict) else None
        if isinstance(topic, str) and topic:
            yield topic


def _own_queues(
    queues: Iterable[OpenedQueue], groups: Collection[str], purged: PurgeMarks
) -> Iterator[tuple[str, int, str]]:
    """Yield those of QUEUES in which a group's own messages are: retried ones and dead letters; with the group."""
    for one in queues:
        if one.max_offset <= max(0, one.min_offset, purged.get((one.topic, one.queue_id), 0)):
            continue
        if one.topic.startswith(DEAD_LETTER_PREFIX):
            yield one.topic, one.queue_id, one.topic.removeprefix(DEAD_LETTER_PREFIX)
        elif one.topic.startswith(RETRY_PREFIX):
            name = one.topic.removeprefix(RETRY_PREFIX)
            yield one.topic, one.queue_id, _owner(name, groups)


def _owner(name: str, groups: Collection[str]) -> str:
    """Return the group of the retry topic NAME: the group's name, or "group_topic", "group+topic" for popping."""
    if name in groups:
        return name
    for at in range(len(name) - 1, 0, -1):
        if name[at] in "_+" and name[:at] in groups:
            return name[:at]
    return name


@dataclass(slots=True)
class Unread:
    """The unread messages from one offset on: how many have entries, their bytes, when the oldest was stored."""

    messages: int = 0
    size_bytes: int = 0
    oldest_stored_ms: int | None = None
    _bad_heads: int = field(default=0, repr=False)


def unread_from(
    store: JavaReading, queue: JavaQueue, offsets: Collection[int]
) -> dict[int, Unread]:
    """Return what is unread in QUEUE from each of OFFSETS on; offsets below its minimum begin there."""
    found = {offset: Unread() for offset in offsets if offset < queue.max_offset}
    if not found:
        return found
    heads: dict[int, int | None] = {}
    for entries in entries_of(queue, min(found), queue.max_offset):
        for offset, unread in found.items():
            _add(store, heads, unread, entries, offset)
    return found


def _add(
    store: JavaReading,
    heads: dict[int, int | None],
    unread: Unread,
    entries: QueueEntries,
    offset: int,
) -> None:
    """Count in UNREAD those of ENTRIES that hold messages from OFFSET on."""
    ends = entries.queue_offset + entries.count
    first = 0 if len(ends) and ends[0] > offset else int(np.searchsorted(ends, offset, "right"))
    if first == len(ends):
        return
    unread.messages += int(
        ends[first:].sum() - np.maximum(entries.queue_offset[first:], offset).sum()
    )
    unread.size_bytes += int(entries.size[first:].sum())
    if unread.oldest_stored_ms is None and unread._bad_heads < _BAD_HEADS_MAX:
        _find_oldest(store, heads, unread, entries.physical_offset[first:], entries.size[first:])


def _find_oldest(
    store: JavaReading,
    heads: dict[int, int | None],
    unread: Unread,
    places: Longs,
    sizes: Longs,
) -> None:
    """Set when the first of the records at PLACES that can be read was stored."""
    first = int(places[0])
    if first not in heads:
        heads[first] = stored_ms(store, first, int(sizes[0]))
    unread.oldest_stored_ms = heads[first]
    if heads[first] is not None:
        return
    inside = np.flatnonzero(_are_in_log(store, places))
    for row in inside[: _BAD_HEADS_MAX - unread._bad_heads].tolist():
        place = int(places[row])
        if place not in heads:
            heads[place] = stored_ms(store, place, int(sizes[row]))
        if heads[place] is not None:
            unread.oldest_stored_ms = heads[place]
            return
        unread._bad_heads += 1


def _are_in_log(store: JavaReading, places: Longs) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell for each of PLACES whether a log file holds it."""
    files = store.log.files
    if not files:
        return np.zeros(len(places), np.bool_)
    starts = np.array([file.start for file in files], np.int64)
    ends = np.array([file.start + file.wrote for file in files], np.int64)
    number = np.searchsorted(starts, places, "right") - 1
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (number >= 0) & (places < ends[number])
    return found


def stored_ms(store: JavaReading, place: int, size: int) -> int | None:
    """Return when the record of SIZE bytes at log offset PLACE was stored; None if there is no such record."""
    file = store.log.find(place)
    if file is None:
        return None
    at = place - file.start
    head = file.mapping.read(at, min(LEAST_SIZE, file.wrote - at))
    if len(head) < LEAST_SIZE or not begins_record(head, size):
        return None
    return head_store_time_ms(head)


def store_rows(store: OpenedStore, now_ms: int) -> list[LagRow]:
    """Return the rows of STORE at NOW_MS, by topic, queue and group."""
    return list(_Report(store, now_ms).rows())


class _Report:
    """The rows of one store."""

    def __init__(self, store: OpenedStore, now_ms: int) -> None:
        self._store = store
        self._now_ms = now_ms
        self._bounds = {(one.topic, one.queue_id): one for one in store.queues()}
        self._purged: PurgeMarks = purge_marks_of(store)
        self._positions: Positions = positions_of(store, self._bounds.values(), self._purged)
        self._waiting: WaitingCounts = waiting_of(store)
        self._stats = stats_in(store.disk, store.root)
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
                    first = max(low, self._purged.get((topic, queue_id), 0))
                    self._dead[group] += max(0, bounds.max_offset - first)
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
        self, bounds: OpenedQueue | None, groups: Mapping[str, int | None]
    ) -> dict[int, Unread]:
        """Return what is unread from each of the groups' offsets on."""
        if bounds is None or not bounds.has_files:
            return {}
        queue = self._store.reading.queues[bounds.topic, bounds.queue_id]
        place = bounds.topic, bounds.queue_id
        offsets = {
            max(offset, self._purged_below(place, group))
            for group, offset in groups.items()
            if offset is not None
        }
        return unread_from(self._store.reading, queue, offsets)

    def _purged_below(self, place: tuple[str, int], group: str) -> int:
        """Return below which offset of the queue PLACE dead letters of GROUP were purged; 0: none were."""
        return self._purged.get(place, 0) if is_dead_letter_topic(place[0], group) else 0

    def _row(
        self,
        place: tuple[str, int],
        group: str,
        committed: int | None,
        bounds: OpenedQueue | None,
        unread_by_offset: Mapping[int, Unread],
    ) -> LagRow:
        purged_below = self._purged_below(place, group)
        unread = (
            unread_by_offset.get(max(committed, purged_below), Unread())
            if committed is not None and bounds is not None
            else None
        )
        held = self._waiting.held_by(*place, group)
        facts = LagFacts(
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
            purged_below=purged_below,
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
        """Return how many messages the filters of GROUP skipped; None for a store without statistics."""
        if self._stats is None:
            return None
        stats = self._stats.get((group, *place))
        return 0 if stats is None else stats.skipped_count

    def _of_group(self, topic: str, group: str) -> dict[str, int | None]:
        """Return what the group's own topics hold, for rows of the topics that it reads."""
        if is_retry_topic(topic, group) or is_dead_letter_topic(topic, group):
            return {}
        return {"retries": self._retries.get(group), "dead_letters": self._dead.get(group)}
