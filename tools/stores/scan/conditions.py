"""The conditions on the rows of a dataset, as far as a reader can use them.

All conditions hold together: topics, queues, and ranges of numbers. A reader skips files and bytes by them where it
can, and leaves out the rows that do not meet them, so that its caller need not check again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....proto.byte_ranges import bytes_at
from ....proto.record_run import Bytes, Ints, Longs, RunColumns

logger = logging.getLogger(__name__)

_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from LOW to HIGH, both included."""

    low: int = _LEAST
    high: int = _MOST

    def __and__(self, other: Span) -> Span:
        return Span(max(self.low, other.low), min(self.high, other.high))

    @property
    def is_all(self) -> bool:
        return self.low <= _LEAST and self.high >= _MOST

    @property
    def is_empty(self) -> bool:
        return self.low > self.high

    def meets(self, low: int, high: int) -> bool:
        """Is any of LOW to HIGH, both included, in it?"""
        return self.low <= high and low <= self.high and not self.is_empty

    def mask(self, values: Longs | Ints) -> NDArray[np.bool_] | None:
        """Tell which VALUES are in it; None: all are, whatever they are."""
        if self.is_all:
            return None
        if self.is_empty:
            return np.zeros(len(values), np.bool_)
        inside: NDArray[np.bool_] = (values >= self.low) & (values <= self.high)
        return inside


ALL: Final = Span()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions on the columns topic, queue, queue_offset, log_offset, and store_timestamp in milliseconds.

    None: any topic, any queue.
    """

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    queue_offsets: Span = ALL
    log_offsets: Span = ALL
    store_ms: Span = ALL

    def and_topics(self, topics: frozenset[str]) -> Conditions:
        return replace(self, topics=topics if self.topics is None else self.topics & topics)

    def and_queue_ids(self, ids: frozenset[int]) -> Conditions:
        return replace(self, queue_ids=ids if self.queue_ids is None else self.queue_ids & ids)

    def wants_queue(self, topic: str, queue_id: int) -> bool:
        """May rows of the queue QUEUE_ID of TOPIC be wanted?"""
        if self.topics is not None and topic not in self.topics:
            return False
        return self.queue_ids is None or queue_id in self.queue_ids

    @property
    def are_impossible(self) -> bool:
        """Can no row meet them?"""
        spans = (self.queue_offsets, self.log_offsets, self.store_ms)
        return (
            any(span.is_empty for span in spans)
            or (self.topics is not None and not self.topics)
            or (self.queue_ids is not None and not self.queue_ids)
        )

    def of_records(self, data: Bytes, columns: RunColumns) -> RunColumns:
        """Return those of the records COLUMNS, whose places count in DATA, that meet them."""
        masks = [
            self.queue_offsets.mask(columns.queue_offset),
            self.log_offsets.mask(columns.log_offset),
            self.store_ms.mask(columns.store_ms),
        ]
        if self.queue_ids is not None:
            masks.append(np.isin(columns.queue_id, sorted(self.queue_ids)))
        if self.topics is not None:
            masks.append(_has_topic(data, columns, self.topics))
        wanted = combined(masks)
        return columns if wanted is None or wanted.all() else columns.take(wanted)


def combined(masks: list[NDArray[np.bool_] | None]) -> NDArray[np.bool_] | None:
    """Return what is in all MASKS; None means everything."""
    result: NDArray[np.bool_] | None = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result & mask
    return result


def _has_topic(data: Bytes, columns: RunColumns, topics: frozenset[str]) -> NDArray[np.bool_]:
    found = np.zeros(len(columns), np.bool_)
    for topic in topics:
        wanted = topic.encode()
        found |= (columns.topic_size == len(wanted)) & bytes_at(data, columns.topic_start, wanted)
    return found
