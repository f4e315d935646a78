"""Which group has come how far in which queue of a store, and in which it has not begun."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ...proto.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX
from ...store.format.state_tables import GroupConfig
from ...store.view import OpenedStore, QueueBounds

#: By topic and queue: groups, and their committed offsets; None for none.
Positions = Mapping[tuple[str, int], dict[str, int | None]]


def positions_of(store: OpenedStore, queues: Collection[QueueBounds]) -> Positions:
    """Return the positions in STORE, whose QUEUES are these."""
    found: dict[tuple[str, int], dict[str, int | None]] = defaultdict(dict)
    readers: dict[str, set[str]] = defaultdict(set)
    for one in store.committed_offsets():
        # A negative offset is Java's word for none.
        found[one.topic, one.queue_id][one.group] = one.offset if one.offset >= 0 else None
        readers[one.topic].add(one.group)
    for topic, group in _readers(store):
        readers[topic].add(group)
    for topic, queue_id in _queues_of(store, queues, readers):
        for group in readers[topic]:
            found[topic, queue_id].setdefault(group, None)
    groups = {group for names in readers.values() for group in names} | set(store.groups)
    for topic, queue_id, group in _own_queues(queues, groups):
        found[topic, queue_id].setdefault(group, None)
    return found


def _queues_of(
    store: OpenedStore, queues: Iterable[QueueBounds], topics: Iterable[str]
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
    queues: Iterable[QueueBounds], groups: Collection[str]
) -> Iterator[tuple[str, int, str]]:
    """Yield those of QUEUES in which a group's own messages are: retried ones and dead letters; with the group."""
    for one in queues:
        if one.max_offset <= max(0, one.min_offset):
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
