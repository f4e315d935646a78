"""Settings of a store, with Apache RocketMQ 5.5.0's defaults, and their names in RocketMQ.

The sizes are properties of the files on disk: open a store with the sizes that it was written with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Final, Literal

from ..proto.errors import ConfigError
from ..proto.topics import MESSAGE_SIZE_MAX
from .format.index import index_file_size
from .format.queues import BATCH_ENTRY, ENTRY

#: RocketMQ's limit: the seconds of seven days, except sixty slots that stay blank.
TIMER_ROLL_SLOTS_MAX: Final = 7 * 86_400 - 60
DELAY_LEVELS_MAX: Final = 64
#: A timer log has delays as 32-bit integers, and a blank of the log has the rest of its file.
INT_MAX: Final = (1 << 31) - 1
_DELAY_MAX_MS: Final = 31 * 86_400_000
_DELAY_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIMER_PRECISION_MAX_MS: Final = 10_000
_LOG_ROLL_LEAST_MS: Final = 60_000
#: The maximum number of files that are closed by age within the retention: each takes a name and address space.
_LOG_ROLLS_MAX: Final = 1_000

_MIB = 1024 * 1024
_HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """The settings of a store: folders, file sizes, flushing, and retention."""

    #: What `pocketmq config set` and SIGHUP change: code that uses one of these reads it here each time.
    LIVE: ClassVar[frozenset[str]] = frozenset(
        {
            "lookup_results_max",
            "flush_queues_interval_ms",
            "flush_queues_thorough_interval_ms",
            "flush_checkpoint_interval_ms",
            "flush_timeout_ms",
            "retention_ms",
            "log_roll_ms",
            "delete_hour",
            "clean_files_max",
            "disk_expire_percent",
            "disk_force_percent",
            "disk_refuse_percent",
            "scrub_bytes_per_s",
        }
    )

    #: Root folder of the store.
    path: str
    #: Folder of the commit log; empty means `commitlog` under the root.
    log_path: str = ""

    log_file_size_bytes: int = 1024 * _MIB
    #: Rounded up to a multiple of 20.
    queue_file_size_bytes: int = 6_000_000
    #: Rounded up to a multiple of 46.
    batch_queue_file_size_bytes: int = 13_800_000
    timer_log_file_size_bytes: int = 100 * _MIB
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000

    #: Bytes of the largest body that is accepted, compressed if the client compresses it.
    message_size_max_bytes: int = MESSAGE_SIZE_MAX
    #: Maximum number of results of one key query.
    lookup_results_max: int = 64
    #: Are messages indexed by key?
    index: bool = True

    #: "async": acknowledged in memory, flushed to disk within the interval. "sync": acknowledged when on disk.
    flush: Literal["async", "sync"] = "async"
    flush_interval_ms: int = 500
    flush_queues_interval_ms: int = 1_000
    flush_queues_thorough_interval_ms: int = 60_000
    flush_checkpoint_interval_ms: int = 1_000
    #: How long a synchronous send waits for the flush.
    flush_timeout_ms: int = 5_000

    retention_ms: int = 72 * _HOUR_MS
    #: A log file whose first record is this old is closed, although it has space; 0: files are closed by size alone.
    log_roll_ms: int = 0
    #: Local hour in which expired files are deleted.
    delete_hour: int = 4
    clean_interval_ms: int = 10_000
    #: Maximum number of log files deleted in one round.
    clean_files_max: int = 10
    #: Above this disk usage, expired files are deleted at any hour.
    disk_expire_percent: int = 75
    #: Above this disk usage, the oldest files are deleted whatever their age.
    disk_force_percent: int = 85
    #: Above this disk usage, writes are refused as well.
    disk_refuse_percent: int = 90

    #: Delays of the levels 1, 2, …: whole numbers with s, m, h or d, with one space between them.
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    #: Scheduled messages are kept in slots of this length.
    timer_precision_ms: int = 1_000
    #: A message that is due after more slots than this is scheduled again on the way.
    timer_roll_window_slots: int = 172_800

    #: How fast the log is read in the background and compared with CRCs and queues, each file once per day; 0: never.
    scrub_bytes_per_s: int = _MIB
    #: How many files from the end of the log RocketMQ's recovery checks.
    recover_files_max: int = 10
    check_crc_on_recover: bool = True
    #: RocketMQ's messageIndexSafe: its recovery starts early enough to index everything again.
    index_safe: bool = False

    def __post_init__(self) -> None:
        _round_up(self, "queue_file_size_bytes", ENTRY.size)
        _round_up(self, "batch_queue_file_size_bytes", BATCH_ENTRY.size)
        for name, least in _LEAST.items():
            _require(name, getattr(self, name), least, None)
        _require("log_file_size_bytes", self.log_file_size_bytes, 1024, INT_MAX)
        _check_log_roll(self)
        _require("message_size_max_bytes", self.message_size_max_bytes, 1, MESSAGE_SIZE_MAX)
        _require("delete_hour", self.delete_hour, 0, 23)
        _require("timer_precision_ms", self.timer_precision_ms, 1, _TIMER_PRECISION_MAX_MS)
        _require("timer_roll_window_slots", self.timer_roll_window_slots, 2, TIMER_ROLL_SLOTS_MAX)
        window_ms = self.timer_roll_window_slots * self.timer_precision_ms
        _require("timer_roll_window_slots * timer_precision_ms", window_ms, 2, INT_MAX)
        parse_delay_levels(self.delay_levels)
        if self.flush not in ("async", "sync"):
            raise ConfigError(f"store.flush is {self.flush!r}: use async or sync", field="flush")
        percents = (self.disk_expire_percent, self.disk_force_percent, self.disk_refuse_percent)
        if not 1 <= percents[0] <= percents[1] <= percents[2] <= 100:
            raise ConfigError(
                f"store.disk_expire_percent, disk_force_percent and disk_refuse_percent are {percents}:"
                " they must rise, between 1 and 100",
                field="disk_refuse_percent",
            )

    @property
    def log_folder(self) -> str:
        return self.log_path or f"{self.path}/commitlog"

    @property
    def queue_folder(self) -> str:
        return f"{self.path}/consumequeue"

    @property
    def batch_queue_folder(self) -> str:
        return f"{self.path}/batchconsumequeue"

    @property
    def index_folder(self) -> str:
        return f"{self.path}/index"

    @property
    def timer_log_folder(self) -> str:
        return f"{self.path}/timerlog"

    @property
    def timer_wheel_path(self) -> str:
        return f"{self.path}/timerwheel"

    @property
    def timer_checkpoint_path(self) -> str:
        return f"{self.state_folder}/timercheck"

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delays of the levels 1, 2, … in milliseconds."""
        return parse_delay_levels(self.delay_levels)

    @property
    def checkpoint_path(self) -> str:
        return f"{self.path}/checkpoint"

    @property
    def abort_path(self) -> str:
        return f"{self.path}/abort"

    @property
    def lock_path(self) -> str:
        return f"{self.path}/lock"

    @property
    def state_folder(self) -> str:
        """The folder of RocketMQ's JSON files (topics.json, consumerOffset.json, …)."""
        return f"{self.path}/config"

    @property
    def own_folder(self) -> str:
        """The folder of files that RocketMQ does not have. Losing it loses no message and no offset."""
        return f"{self.path}/pocketmq"

    @property
    def index_file_size_bytes(self) -> int:
        return index_file_size(self.index_slots, self.index_entries)


_LEAST: Final = {
    "queue_file_size_bytes": ENTRY.size,
    "batch_queue_file_size_bytes": BATCH_ENTRY.size,
    "timer_log_file_size_bytes": 1024,
    "index_slots": 1,
    "index_entries": 2,
    "lookup_results_max": 1,
    "flush_interval_ms": 1,
    "flush_queues_interval_ms": 1,
    "flush_queues_thorough_interval_ms": 1,
    "flush_checkpoint_interval_ms": 1,
    "flush_timeout_ms": 1,
    "retention_ms": 0,
    "scrub_bytes_per_s": 0,
    "clean_interval_ms": 1,
    "clean_files_max": 1,
    "recover_files_max": 1,
}


def _round_up(config: StoreConfig, name: str, unit: int) -> None:
    object.__setattr__(config, name, -(-getattr(config, name) // unit) * unit)


def _require(name: str, value: int, least: int, most: int | None) -> None:
    if value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"{least} to {most}"
        raise ConfigError(f"store.{name} is {value}: must be {limit}", field=name, value=value)


def _check_log_roll(config: StoreConfig) -> None:
    least = max(_LOG_ROLL_LEAST_MS, -(-config.retention_ms // _LOG_ROLLS_MAX))
    if config.log_roll_ms != 0 and config.log_roll_ms < least:
        raise ConfigError(
            f"store.log_roll_ms is {config.log_roll_ms}: must be 0 (files are closed by size alone) or at least {least}"
            " (a minute, and a thousandth of store.retention_ms)",
            field="log_roll_ms",
            value=config.log_roll_ms,
        )


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in TEXT ("1s 5s 2h") in milliseconds; ConfigError for anything else.

    1 to DELAY_LEVELS_MAX levels, each from one second to 31 days.
    """
    words = text.split(" ")
    if len(words) > DELAY_LEVELS_MAX:
        raise ConfigError(
            f"store.delay_levels has {len(words)} levels, the limit is {DELAY_LEVELS_MAX}",
            field="delay_levels",
            value=text,
        )
    return tuple(_delay_ms(word, text) for word in words)


def _delay_ms(word: str, text: str) -> int:
    number, unit = word[:-1], word[-1:]
    known = unit in _DELAY_UNITS_MS and number.isascii() and number.isdigit() and len(number) < 9
    delay_ms = int(number) * _DELAY_UNITS_MS[unit] if known else 0
    if not 0 < delay_ms <= _DELAY_MAX_MS:
        raise ConfigError(
            f"store.delay_levels contains {word!r}: write delays like 1s 5m 2h 1d, up to 31 days, with one space"
            " between them",
            field="delay_levels",
            value=text,
        )
    return delay_ms


#: RocketMQ's name of a setting → PocketMQ's. `apply_apache_settings` converts hours and ratios.
APACHE_NAMES: Final[Mapping[str, str]] = {
    "storePathRootDir": "path",
    "storePathCommitLog": "log_path",
    "mappedFileSizeCommitLog": "log_file_size_bytes",
    "mappedFileSizeConsumeQueue": "queue_file_size_bytes",
    "mapperFileSizeBatchConsumeQueue": "batch_queue_file_size_bytes",
    "mappedFileSizeTimerLog": "timer_log_file_size_bytes",
    "maxHashSlotNum": "index_slots",
    "maxIndexNum": "index_entries",
    "maxMessageSize": "message_size_max_bytes",
    "maxMsgsNumBatch": "lookup_results_max",
    "messageIndexEnable": "index",
    "messageIndexSafe": "index_safe",
    "flushDiskType": "flush",
    "flushIntervalCommitLog": "flush_interval_ms",
    "flushIntervalConsumeQueue": "flush_queues_interval_ms",
    "flushConsumeQueueThoroughInterval": "flush_queues_thorough_interval_ms",
    "syncFlushTimeout": "flush_timeout_ms",
    "fileReservedTime": "retention_ms",
    "deleteWhen": "delete_hour",
    "cleanResourceInterval": "clean_interval_ms",
    "deleteFileBatchMax": "clean_files_max",
    "diskMaxUsedSpaceRatio": "disk_expire_percent",
    "diskSpaceCleanForciblyRatio": "disk_force_percent",
    "diskSpaceWarningLevelRatio": "disk_refuse_percent",
    "messageDelayLevel": "delay_levels",
    "timerPrecisionMs": "timer_precision_ms",
    "timerRollWindowSlot": "timer_roll_window_slots",
    "commitLogRecoverMaxNum": "recover_files_max",
    "checkCRCOnRecover": "check_crc_on_recover",
}
#: Settings that change how a RocketMQ broker treats a store, without effect in PocketMQ.
APACHE_ONLY: Final = frozenset({"checkCommitLogOffsetOnRecover"})

_FLUSH_TYPES: Final = {"ASYNC_FLUSH": "async", "SYNC_FLUSH": "sync"}


def apply_apache_settings(config: StoreConfig, settings: Mapping[str, str]) -> StoreConfig:
    """Return CONFIG changed by RocketMQ's SETTINGS (`maxIndexNum=2000`); an unknown name is a ConfigError."""
    changes: dict[str, object] = {}
    for name, text in settings.items():
        if name in APACHE_ONLY:
            continue
        ours = APACHE_NAMES.get(name)
        if ours is None:
            known = ", ".join(sorted({*APACHE_NAMES, *APACHE_ONLY}))
            raise ConfigError(f"no such store setting: {name}. Known: {known}", field=name)
        changes[ours] = _parsed(name, ours, text)
    return replace(config, **changes)  # type: ignore[arg-type]


_KINDS: Final = {field.name: field.type for field in fields(StoreConfig)}


def _parsed(name: str, ours: str, text: str) -> object:
    kind = _KINDS[ours]
    if kind == "str":
        return text
    if ours == "flush":
        return _choice(name, text, _FLUSH_TYPES)
    if kind == "bool":
        return _choice(name, text.lower(), {"true": True, "false": False})
    try:
        value = int(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text}: not a whole number", field=name, value=text) from error
    if ours == "message_size_max_bytes":
        # A RocketMQ broker may accept larger messages. PocketMQ reads its records all the same.
        return min(value, MESSAGE_SIZE_MAX)
    return value * _HOUR_MS if ours == "retention_ms" else value


def _choice(name: str, text: str, choices: Mapping[str, object]) -> object:
    if text not in choices:
        raise ConfigError(f"{name}={text}: use {' or '.join(choices)}", field=name, value=text)
    return choices[text]
