"""The settings of Apache RocketMQ 5.5.0's broker that affect how it reads a store, by their names there.

Settings that change nothing about load, recovery and reading are accepted and have no effect, like unknown ones in
RocketMQ's broker.conf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ...proto.errors import ConfigError
from ..config import StoreConfig

#: The largest int in Java.
_INT_MAX: Final = (1 << 31) - 1


def _named(name: str, default: Any) -> Any:
    return field(default=default, metadata={"apache": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApacheSettings:
    """The settings, with 5.5.0's defaults."""

    log_file_size: int = _named("mappedFileSizeCommitLog", 1 << 30)
    queue_file_size: int = _named("mappedFileSizeConsumeQueue", 6_000_000)
    batch_queue_file_size: int = _named("mapperFileSizeBatchConsumeQueue", 13_800_000)
    timer_log_file_size: int = _named("mappedFileSizeTimerLog", 100 << 20)
    index_slots: int = _named("maxHashSlotNum", 5_000_000)
    index_entries: int = _named("maxIndexNum", 20_000_000)
    lookup_results_max: int = _named("maxMsgsNumBatch", 64)
    recover_files_max: int = _named("commitLogRecoverMaxNum", 10)
    check_crc: bool = _named("checkCRCOnRecover", True)
    check_offset: bool = _named("checkCommitLogOffsetOnRecover", False)
    property_crc_required: bool = _named("forceVerifyPropCRC", False)
    accelerated_recovery: bool = _named("enableAcceleratedRecovery", False)
    index_enabled: bool = _named("messageIndexEnable", True)
    index_safe: bool = _named("messageIndexSafe", False)
    index_file_write: bool = _named("indexFileWriteEnable", True)
    index_file_read: bool = _named("indexFileReadEnable", True)
    flush_disk_type: str = _named("flushDiskType", "ASYNC_FLUSH")
    delay_levels: str = _named(
        "messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )
    timer_wheel: bool = _named("timerWheelEnable", True)
    timer_precision_ms: int = _named("timerPrecisionMs", 1000)
    cluster: str = _named("brokerClusterName", "DefaultCluster")
    broker: str = _named("brokerName", "broker-a")
    auto_create_topic: bool = _named("autoCreateTopicEnable", True)
    cluster_topic: bool = _named("clusterTopicEnable", True)
    broker_topic: bool = _named("brokerTopicEnable", True)
    trace_topic: bool = _named("traceTopicEnable", False)
    trace_topic_name: str = _named("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC")
    topic_queues: int = _named("defaultTopicQueueNums", 8)
    revive_queues: int = _named("reviveQueueNum", 8)

    @classmethod
    def of(cls, given: Mapping[str, str], **derived: int) -> ApacheSettings:
        """Return the settings GIVEN by RocketMQ's names; DERIVED are values (by field) for the others."""
        values: dict[str, Any] = dict(derived)
        for one in fields(cls):
            name = one.metadata["apache"]
            if name in given:
                values[one.name] = _parsed(name, given[name], type(one.default))
        return cls(**values)

    @property
    def queue_file_bytes(self) -> int:
        """Length of a consume queue file: RocketMQ rounds up to complete entries."""
        return -(-self.queue_file_size // 20) * 20

    @property
    def index_file_bytes(self) -> int:
        """Length of an index file."""
        return 40 + self.index_slots * 4 + self.index_entries * 20

    @property
    def sync_flush(self) -> bool:
        """Is a send acknowledged only when it is on disk?"""
        return self.flush_disk_type == "SYNC_FLUSH"

    def store_config(self, root: str) -> StoreConfig:
        """Return the settings of PocketMQ for the store in ROOT."""
        return StoreConfig(
            path=root,
            log_file_size_bytes=self.log_file_size,
            queue_file_size_bytes=self.queue_file_size,
            batch_queue_file_size_bytes=self.batch_queue_file_size,
            timer_log_file_size_bytes=self.timer_log_file_size,
            index_slots=self.index_slots,
            index_entries=self.index_entries,
            lookup_results_max=self.lookup_results_max,
            index=self.index_enabled,
            check_crc_on_recover=self.check_crc,
        )

    def delay_table(self) -> dict[int, int]:
        """Return the delay of each level in ms."""
        units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
        words = self.delay_levels.split(" ")
        return {level: units[word[-1]] * int(word[:-1]) for level, word in enumerate(words, 1)}


def _parsed(name: str, text: str, kind: type) -> object:
    if kind is bool:
        return text.lower() == "true"  # as Boolean.parseBoolean in Java
    if kind is not int:
        return text
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name}={text}: not a whole number", field=name, value=text) from None
    if not 0 < value <= _INT_MAX:
        raise ConfigError(f"{name}={text}: must be 1 to {_INT_MAX}", field=name, value=text)
    return value
