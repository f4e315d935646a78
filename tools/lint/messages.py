"""The messages of the queues of a store, read for likely mistakes: tags, keys, and which consumers wanted them.

Columns of a few thousand records at a time: about 12 µs per message, and 3 more where groups skip with tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from ...broker.messages.filters import Mask, choice_of
from ...broker.queue_stats import EVERY, OTHERS, Filtering, QueueStats
from ...proto.errors import InvalidFilter
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import SHARDING_KEY, TAGS
from ...proto.property_ranges import PropertyRanges
from ...proto.record_run import LEAST_SIZE, parse_run, starts_of
from ...store.apache.queue import JavaQueue
from ...store.apache.store import JavaReading
from ...store.format.log import begins_record
from ...store.queue_entries import QueueEntries, entries_of
from ...store.slices import Slices
from .rules import QueueMessages, is_nameable

_AT_ONCE: Final = 4_096
#: Limit of different tags of one queue.
_TAGS_MAX: Final = 1_000


def read_messages(
    store: JavaReading,
    place: tuple[str, int],
    stats: Sequence[QueueStats | None],
    *,
    limit: int,
) -> QueueMessages:
    """Return counts of the newest LIMIT messages of the queue PLACE of STORE.

    ACCOUNTS: filter statistics of each group that reads it; None: it filtered nothing out.
    """
    queue = store.queues[place]
    found = QueueMessages(topic=place[0], queue=place[1])
    wanted_by_some = not stats or any(one is None for one in stats)
    tags: Counter[str | None] = Counter()
    for seen in _records(store, queue, queue.max_offset - limit):
        ranges = PropertyRanges(seen.records, parse_run(seen.records, starts_of(seen.sizes)))
        texts = ranges.texts(TAGS)
        found.read += len(seen)
        tags.update(texts)
        found.without_key += int((ranges.find(SHARDING_KEY)[1] <= 0).sum())
        if not wanted_by_some:
            unwanted = np.ones(len(seen), np.bool_)
            for one in stats:
                assert one is not None, "checked before"
                unwanted &= _skipped(one, seen)
            _note_unwanted(found, seen, unwanted, texts)
    found.tags = {
        tag: count
        for tag, count in tags.most_common(_TAGS_MAX)
        if tag is not None and not is_nameable(tag)
    }
    return found


def _note_unwanted(
    found: QueueMessages, seen: Slices, unwanted: Mask, texts: Sequence[str | None]
) -> None:
    (rows,) = unwanted.nonzero()
    if not len(rows):
        return
    offsets = seen.queue_offsets[rows]
    if found.unwanted_first < 0:
        found.unwanted_first = int(offsets[0])
    found.unwanted_last = int(offsets[-1])
    found.unwanted += len(rows)
    for row in rows.tolist():
        tag = texts[row] or ""
        if tag in found.unwanted_tags or len(found.unwanted_tags) < _TAGS_MAX:
            found.unwanted_tags[tag] = found.unwanted_tags.get(tag, 0) + 1


def _skipped(stats: QueueStats, seen: Slices) -> Mask:
    """Return which of the records that were SEEN the group of ACCOUNT reached, and skipped."""
    offsets = seen.queue_offsets
    found = np.zeros(len(seen), np.bool_)
    begins = np.array([begin for begin, _ in stats.looks], np.int64)
    stretch = np.searchsorted(begins, offsets, "right") - 1
    looked = (stretch >= 0) & (offsets < stats.looked_to)
    for number, (_, name) in enumerate(stats.looks):
        rows = looked & (stretch == number)
        if rows.any() and (wanted := _wanted(name, seen)) is not None:
            found |= rows & ~wanted
    return found


def _wanted(name: Filtering, seen: Slices) -> Mask | None:
    """Return which of the records SEEN the filter NAME matches; None: all, or not known."""
    kind, expression = name
    if name in (EVERY, OTHERS) or expression.endswith("…"):
        return None
    try:
        choice = choice_of(pb.Filter(kind=kind, expression=expression))
    except (ValueError, InvalidFilter):
        return None
    return None if choice is None else choice.wanted(seen)


def _records(store: JavaReading, queue: JavaQueue, begin: int) -> Iterator[Slices]:
    """Yield the records of QUEUE from offset BEGIN on that the log holds, some thousands at a time."""
    for entries in entries_of(queue, begin, queue.max_offset):
        for at in range(0, len(entries), _AT_ONCE):
            some = entries.take(slice(at, at + _AT_ONCE))
            rows = [row for row in range(len(some)) if some.count[row] == 1]
            pieces = {row: data for row in rows if (data := _record(store, some, row))}
            if pieces:
                kept = np.array(list(pieces), np.int64)
                yield Slices(
                    records=b"".join(pieces.values()),
                    sizes=some.size[kept],
                    queue_offsets=some.queue_offset[kept],
                    tags_codes=some.tags_code[kept],
                    next_offset=0,
                    min_offset=0,
                    max_offset=0,
                )


def _record(store: JavaReading, entries: QueueEntries, row: int) -> bytes | None:
    """Return the record that the entry ROW leads to; None if there is none."""
    place, size = int(entries.physical_offset[row]), int(entries.size[row])
    file = store.log.find(place)
    if file is None or size < LEAST_SIZE or place - file.start + size > file.wrote:
        return None
    data = file.mapping.read(place - file.start, size)
    return data if begins_record(data, size) else None


def stats_by_queue(
    stats: Mapping[tuple[str, str, int], QueueStats], readers: Mapping[str, set[str]]
) -> dict[tuple[str, int], list[QueueStats | None]]:
    """Return of each queue with statistics those of all groups that read its topic, as READERS says."""
    places = {(topic, queue) for _, topic, queue in stats}
    return {
        (topic, queue): [
            stats.get((group, topic, queue)) for group in sorted(readers.get(topic, ()))
        ]
        for topic, queue in places
    }
