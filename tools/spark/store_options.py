"""The options of the format `rocketmq-store`.

path            a store, a URL, or a pattern over many brokers' stores (what `load` is given)
dataset         messages (default), consumequeue, index, queues, offsets, files or lag
topic           topics, separated by commas: the same as a filter on the column
queueId         queue numbers, separated by commas: the same as a filter on the column
maxSplitBytes   about what one task reads; default 64 MiB
batchRows       most rows of a batch; default 8,192 messages, 65,536 entries
badRecords      fail (default), skip or rows: bytes that should be a record and are none stop the query, are left out,
                or are rows with the column badRecord
checkCrc        false (default): is a record whose body does not fit its CRC a bad one?
decompress      true (default): bodies as they were sent, or as they are stored
failOnDataLoss  true (default): is a missing file an error?
through         auto (default), log or queue: how messages are found; auto takes the queues where topics are named
brokerName      of a single store; else its files tell it
pushdown        true (default): does Spark hand filters over? It refuses to, unless its own setting allows it
recovery        apache (default) or ours: whose recovery `queues`, `offsets` and `lag` show
now             Unix milliseconds for the ages of `lag`; default the machine's time

And the broker's own settings, by Apache's names, where files do not tell them: maxHashSlotNum, maxIndexNum, …

The columns that a user asks a format for, `.schema("topic string, …")`, held against those that it has.

Spark's filters as conditions that a scan meets itself.

A filter on brokerName, topic, queueId, queueOffset, physicalOffset or storeTimestamp, with =, <=>, <, <=, >, >= or
IN, is taken over: files and bytes are skipped by it, and no row comes back that does not meet it. All others stay with
Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

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
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...proto.clock import SystemClock
from ...proto.errors import ConfigError
from ...store.apache.settings import ApacheSettings
from ...store.system import allow_many_files
from ...store.view import OpenedStore
from ..stores import RECOVERIES, RecoveryName
from ..stores.cold_store import open_cold
from ..stores.locations import StoreLocation
from ..stores.scan.conditions import Conditions, Span, policy_of
from ..stores.scan.scan import SPLIT_BYTES, ScanOptions, Through, dataset_of
from ..stores.schemas import datasets
from .live.options import OptionReader

if TYPE_CHECKING:
    import pyarrow

_OWN: Final = (
    "path",
    "paths",
    "dataset",
    "topic",
    "queueId",
    "maxSplitBytes",
    "batchRows",
    "badRecords",
    "checkCrc",
    "decompress",
    "failOnDataLoss",
    "through",
    "brokerName",
    "pushdown",
    "recovery",
    "now",
)
_BATCH_ROWS_MAX: Final = 1 << 20


def _now_ms() -> int:
    return SystemClock().unix_ms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How stores are opened in tasks: as a broker would at NOW_MS, with SETTINGS by Apache's names."""

    now_ms: int = field(default_factory=_now_ms)
    settings: Mapping[str, str] = field(default_factory=dict)
    recovery: RecoveryName = "apache"

    def open(self, location: StoreLocation) -> OpenedStore:
        """Return the store at LOCATION, without its key index. Raises StoreRefused."""
        allow_many_files()
        return open_cold(
            location,
            now_ms=self.now_ms,
            given=self.settings,
            recovery=self.recovery,
            index=False,
        )


_APACHES: Final = tuple(
    name
    for field in fields(ApacheSettings)
    if (name := field.metadata.get("apache")) and name != "brokerName"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What a reader was asked for. `scan` has what reading files needs, CONDITIONS what was given as options;
    OPENING is for the datasets that need a store as its broker would have it.
    """

    paths: tuple[str, ...]
    scan: ScanOptions
    conditions: Conditions
    broker_name: str | None
    pushdown: bool
    opening: Opening

    def with_columns(self, names: tuple[str, ...]) -> StoreOptions:
        """Return them for the columns NAMES."""
        return replace(self, scan=replace(self.scan, columns=names))


def store_options(given: Mapping[str, str]) -> StoreOptions:
    """Return the options GIVEN. Raises ConfigError for one that is unknown, or has a value that cannot be."""
    options = OptionReader(given, (*_OWN, *_APACHES))
    settings = {name: value for name in _APACHES if (value := options.text(name)) is not None}
    now_ms = options.number("now", least=0)
    return StoreOptions(
        paths=_paths(options),
        scan=_scan_options(options, settings),
        conditions=_conditions(options),
        broker_name=options.text("brokerName"),
        pushdown=options.flag("pushdown", True),
        opening=Opening(
            now_ms=SystemClock().unix_ms() if now_ms is None else now_ms,
            settings=settings,
            recovery=cast(RecoveryName, options.one_of("recovery", RECOVERIES, RECOVERIES[0])),
        ),
    )


def _scan_options(options: OptionReader, settings: Mapping[str, str]) -> ScanOptions:
    rows = options.number("batchRows")
    return ScanOptions(
        dataset=dataset_of(options.text("dataset") or "messages", datasets()),
        split_bytes=options.number("maxSplitBytes") or SPLIT_BYTES,
        batch_rows=None if rows is None else min(rows, _BATCH_ROWS_MAX),
        bad_records=policy_of(options.text("badRecords") or "fail"),
        check_crc=options.flag("checkCrc", False),
        decompress=options.flag("decompress", True),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        through=cast(Through, options.one_of("through", ("auto", "log", "queue"), "auto")),
        settings=settings,
    )


def _paths(options: OptionReader) -> tuple[str, ...]:
    several = options.text("paths")
    if several is not None:
        return tuple(str(path) for path in json.loads(several))
    path = options.text("path")
    if path is None:
        raise ConfigError('no store: say .load("./store"), or a pattern over many', field="path")
    return (path,)


def _conditions(options: OptionReader) -> Conditions:
    topics, ids = options.text("topic"), options.text("queueId")
    conditions = Conditions()
    if topics is not None:
        conditions = conditions.and_topics(frozenset(map(str.strip, topics.split(","))))
    if ids is not None:
        numbers = [one.strip() for one in ids.split(",")]
        if not all(one.isascii() and one.isdigit() for one in numbers):
            raise options.error("queueId", "write numbers, separated by commas")
        conditions = conditions.and_queue_ids(frozenset(map(int, numbers)))
    return conditions


# ---------------------------------------------------------------- the columns that a user asks a format for


def check_types(asked: StructType, ours: pyarrow.Schema, of: str = "") -> None:
    """Raise ConfigError unless the columns ASKED have the types of OURS, which are the same columns; OF says whose."""
    for one, own in zip(asked.fields, from_arrow_schema(ours).fields, strict=True):
        asked_type, own_type = one.dataType.simpleString(), own.dataType.simpleString()
        if asked_type != own_type:
            raise ConfigError(
                f"column {one.name}{of} is {own_type}, not {asked_type}: correct the schema, and cast afterwards",
                field="schema",
                value=asked_type,
            )


# ---------------------------------------------------------------- Spark's filters


#: The columns of each dataset that conditions are about, and which field of `Conditions` has their span.
_SPANS: Final = {
    "messages": {
        "queueOffset": "queue_offsets",
        "physicalOffset": "log_offsets",
        "storeTimestamp": "store_ms",
    },
    "consumequeue": {"queueOffset": "queue_offsets", "physicalOffset": "log_offsets"},
    "index": {"physicalOffset": "log_offsets", "storeTimestamp": "store_ms"},
}
_NEVER_NULL: Final = ("brokerName", "topic", "queueId", "queueOffset", "physicalOffset")
#: What is known of bytes that are no record.
_OF_BAD_ROWS: Final = ("brokerName", "physicalOffset")
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
        if column == "brokerName":
            texts = _values(filter, str)
            return None if texts is None else self._of_brokers(texts)
        if dataset in _BY_QUEUE and column == "topic":
            texts = _values(filter, str)
            return None if texts is None else self._with(self.conditions.and_topics(texts))
        if dataset in _BY_QUEUE and column == "queueId":
            numbers = _values(filter, int)
            if numbers is not None:
                return self._with(self.conditions.and_queue_ids(numbers))
        name = _SPANS.get(dataset, {}).get(column)
        if name is None:
            return None
        span = _times(filter) if column == "storeTimestamp" else _numbers(filter)
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
    """Return the whole numbers that meet FILTER, whose value lies between BELOW and ABOVE, both next to it or it."""
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
