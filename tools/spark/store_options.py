"""The options of the format `rocketmq-store`.

    path            a store, a URL, or a pattern over many brokers' stores (what `load` is given)
    dataset         messages (default), consumequeue, index, queues, offsets, files or lag
    topic           topics, separated by commas: the same as a filter on the column
    queueId         queue numbers, separated by commas: the same as a filter on the column
    maxSplitBytes   about what one task reads; default 64 MiB
    batchRows       most rows of a batch; default 8,192 messages, 65,536 entries
    badRecords      fail (default), skip or rows: bytes that should be a record and are none stop the query, are left
                    out, or are rows with the column bad_record
    checkCrc        false (default): is a record whose body does not fit its CRC a bad one?
    decompress      true (default): bodies as they were sent, or as they are stored
    failOnDataLoss  true (default): is a missing file an error?
    through         auto (default), log or queue: how messages are found; auto: queues where topics are named
    brokerName      of a single store; else its files have it
    pushdown        true (default): does Spark pass filters? Only if its own setting allows it, too
    recovery        apache (default) or pocketmq: the recovery that `queues`, `offsets` and `lag` show
    now             Unix milliseconds for the ages of `lag`; default the machine's time

And the broker's own settings, by RocketMQ's names, where files do not have them: maxHashSlotNum, maxIndexNum, …
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, cast

from ...proto.clock import SystemClock
from ...proto.errors import ConfigError
from ...store.apache.settings import ApacheSettings
from ...store.open_files import allow_many_files
from ...store.opened_store import OpenedStore
from ..stores import RECOVERIES, RecoveryName
from ..stores.cold_store import open_cold
from ..stores.locations import StoreLocation
from ..stores.scan.bad_records import policy_of
from ..stores.scan.conditions import Conditions
from ..stores.scan.scan import SPLIT_BYTES, ScanOptions, Through, dataset_of
from ..stores.schemas import datasets
from .option_reader import OptionReader

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


logger = logging.getLogger(__name__)


def _now_ms() -> int:
    return SystemClock().unix_ms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How stores are opened in tasks: as a broker would at NOW_MS, with SETTINGS by RocketMQ's names."""

    now_ms: int = field(default_factory=_now_ms)
    settings: Mapping[str, str] = field(default_factory=dict)
    recovery: RecoveryName = "apache"

    def open(self, location: StoreLocation) -> OpenedStore:
        """Return the store at LOCATION, without its key index. Raises StoreMismatch."""
        allow_many_files()
        store = open_cold(
            location,
            now_ms=self.now_ms,
            given=self.settings,
            recovery=self.recovery,
            index=False,
        )
        for warning in store.warnings:
            logger.warning("table entry left out store=%s reason=%s", location.url, warning)
        return store


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
