"""Spark's filters as conditions that a scan of a store meets itself. Pure.

The scan takes over filters on broker, topic, queue, queue_offset, log_offset and store_timestamp with =, <=>,
<, <=, >, >= or IN: it skips files and bytes by them, and returns only rows that meet them. Spark applies all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from ..stores.scan.conditions import Conditions, Span

#: The columns of each dataset that conditions are about, and which field of `Conditions` has their span.
_SPANS: Final = {
    "messages": {
        "queue_offset": "queue_offsets",
        "log_offset": "log_offsets",
        "store_timestamp": "store_ms",
    },
    "consumequeue": {"queue_offset": "queue_offsets", "log_offset": "log_offsets"},
    "index": {"log_offset": "log_offsets", "store_timestamp": "store_ms"},
}
_NEVER_NULL: Final = ("broker", "topic", "queue", "queue_offset", "log_offset")
#: What is known of bytes that are no record.
_OF_BAD_ROWS: Final = ("broker", "log_offset")
_BY_QUEUE: Final = ("messages", "consumequeue")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Times that 64 bits of microseconds do not hold are null, and null meets no comparison.
_TIMES: Final = Span(-(1 << 63) // 1000 + 1, (1 << 63) // 1000 - 1)
_NOTHING: Final = Span(1, 0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What rows must meet: CONDITIONS, and to be of one of BROKERS (None: any)."""

    conditions: Conditions = field(default_factory=Conditions)
    brokers: frozenset[str] | None = None

    def taking(self, filter: Filter, dataset: str, *, bad_rows: bool = False) -> Wanted | None:
        """Return this with FILTER as well; None if it is not one that a scan of DATASET can meet.

        BAD_ROWS: are bad records rows, with null in most columns?
        """
        path: tuple[str, ...] = getattr(filter, "attribute", ())
        if len(path) != 1:
            return None
        column = path[0]
        if isinstance(filter, IsNotNull) and column in _NEVER_NULL:
            return None if bad_rows and column not in _OF_BAD_ROWS else self
        if column == "broker":
            texts = _values(filter, str)
            return None if texts is None else self._of_brokers(texts)
        if dataset in _BY_QUEUE and column == "topic":
            texts = _values(filter, str)
            return None if texts is None else self._with(self.conditions.and_topics(texts))
        if dataset in _BY_QUEUE and column == "queue":
            numbers = _values(filter, int)
            if numbers is not None:
                return self._with(self.conditions.and_queue_ids(numbers))
        name = _SPANS.get(dataset, {}).get(column)
        if name is None:
            return None
        span = _times(filter) if column == "store_timestamp" else _numbers(filter)
        if span is None:
            return None
        both = getattr(self.conditions, name) & span
        return self._with(replace(self.conditions, **{name: both}))

    def _with(self, conditions: Conditions) -> Wanted:
        return replace(self, conditions=conditions)

    def _of_brokers(self, names: frozenset[str]) -> Wanted:
        return replace(self, brokers=names if self.brokers is None else self.brokers & names)

    def wants_broker(self, name: str) -> bool:
        """May rows of the broker NAME be wanted?"""
        return self.brokers is None or name in self.brokers


def _values(filter: Filter, kind: type) -> frozenset[Any] | None:
    """Return the values of KIND of which the column must have one; None for another filter."""
    if isinstance(filter, EqualTo | EqualNullSafe):
        values: tuple[Any, ...] = (filter.value,)
    elif isinstance(filter, In):
        values = tuple(filter.value)
    else:
        return None
    if not all(isinstance(value, kind) for value in values):
        return None
    return frozenset(values)


def _numbers(filter: Filter) -> Span | None:
    """Return the whole numbers that meet FILTER; None for one that is no range."""
    value = getattr(filter, "value", None)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return _span(filter, value, value)


def _times(filter: Filter) -> Span | None:
    """Return the milliseconds that meet FILTER, which compares with a time in microseconds."""
    if isinstance(filter, IsNotNull):
        return _TIMES
    value = getattr(filter, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    past = value - _EPOCH
    micros = (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds
    span = _span(filter, micros // 1000, -(-micros // 1000))
    return None if span is None else span & _TIMES


def _span(filter: Filter, below: int, above: int) -> Span | None:
    """Return the whole numbers that meet FILTER, whose value is between BELOW and ABOVE, both next to it or it."""
    if isinstance(filter, EqualTo | EqualNullSafe):
        return Span(below, above) if below == above else _NOTHING
    if isinstance(filter, GreaterThan):
        return Span(low=below + 1)
    if isinstance(filter, GreaterThanOrEqual):
        return Span(low=above)
    if isinstance(filter, LessThan):
        return Span(high=above - 1)
    if isinstance(filter, LessThanOrEqual):
        return Span(high=below)
    return None
