"""Settings, their limits, and Apache's names for them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.proto.topics import MESSAGE_SIZE_MAX
from pocketmq.store.config import APACHE_NAMES, StoreConfig, apply_apache_settings


def test_defaults_are_apaches() -> None:
    config = StoreConfig(path="/s")

    assert config.log_file_size_bytes == 1_073_741_824
    assert config.queue_file_size_bytes == 6_000_000
    assert config.batch_queue_file_size_bytes == 13_800_000
    assert config.index_file_size_bytes == 420_000_040
    assert config.log_folder == "/s/commitlog"
    assert config.log_roll_ms == 0
    assert len(config.delay_levels_ms) == 18
    assert config.delay_levels_ms[:5] == (1_000, 5_000, 10_000, 30_000, 60_000)
    assert config.delay_levels_ms[15:] == (1_800_000, 3_600_000, 7_200_000)
    assert (config.timer_precision_ms, config.timer_roll_window_slots) == (1_000, 172_800)


def test_a_roll_window_fits_the_timer_log() -> None:
    with pytest.raises(ConfigError, match="timer_roll_window_slots"):
        StoreConfig(path="/s", timer_precision_ms=10_000, timer_roll_window_slots=604_740)


def test_queue_files_hold_whole_entries() -> None:
    config = StoreConfig(path="/s", queue_file_size_bytes=2001, batch_queue_file_size_bytes=47)

    assert (config.queue_file_size_bytes, config.batch_queue_file_size_bytes) == (2020, 92)


@pytest.mark.parametrize(
    ("retention_h", "least"), [(0, 60_000), (1, 60_000), (72, 259_200), (720, 2_592_000)]
)
def test_age_closes_no_more_than_a_thousand_files_within_the_retention(
    retention_h: int, least: int
) -> None:
    retention_ms = retention_h * 3_600_000
    assert StoreConfig(path="/s", retention_ms=retention_ms, log_roll_ms=least).log_roll_ms == least

    with pytest.raises(ConfigError, match=f"log_roll_ms is {least - 1}: .* at least {least} "):
        StoreConfig(path="/s", retention_ms=retention_ms, log_roll_ms=least - 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_file_size_bytes", 10),
        ("log_file_size_bytes", 1 << 31),
        ("log_roll_ms", -1),
        ("message_size_max_bytes", 0),
        ("message_size_max_bytes", MESSAGE_SIZE_MAX + 1),
        ("log_roll_ms", 259_199),
        ("flush", "later"),
        ("delete_hour", 24),
        ("disk_force_percent", 95),
        ("retention_ms", -1),
        ("delay_levels", ""),
        ("delay_levels", "1s  5s"),
        ("delay_levels", "1s 5"),
        ("delay_levels", "0s"),
        ("delay_levels", "32d"),
        ("delay_levels", "1s " * 64 + "1s"),
        ("timer_precision_ms", 0),
        ("timer_roll_window_slots", 1),
        ("timer_roll_window_slots", 604_741),
    ],
)
def test_nonsense_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        StoreConfig(path="/s", **{name: value})  # type: ignore[arg-type]


def test_every_apache_name_leads_to_a_setting() -> None:
    assert set(APACHE_NAMES.values()) <= {field.name for field in fields(StoreConfig)}


def test_apache_settings_are_parsed() -> None:
    config = apply_apache_settings(
        StoreConfig(path="/s"),
        {
            "maxIndexNum": "2000",
            "flushDiskType": "SYNC_FLUSH",
            "fileReservedTime": "48",
            "deleteWhen": "03",
            "messageIndexEnable": "false",
            "messageDelayLevel": "2s 3d",
            "storePathCommitLog": "/elsewhere",
        },
    )

    assert config.index_entries == 2000
    assert config.flush == "sync"
    assert config.retention_ms == 48 * 3_600_000
    assert config.delete_hour == 3
    assert config.index is False
    assert config.delay_levels_ms == (2_000, 259_200_000)
    assert config.log_folder == "/elsewhere"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("maxIndexNumber", "1", "no such store setting: maxIndexNumber. Known: .*maxIndexNum"),
        ("maxIndexNum", "many", "maxIndexNum=many: not a whole number"),
        ("flushDiskType", "NEVER", "use ASYNC_FLUSH or SYNC_FLUSH"),
        ("messageIndexEnable", "yes", "use true or false"),
    ],
)
def test_a_wrong_apache_setting_says_what_is_wrong(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_apache_settings(StoreConfig(path="/s"), {name: text})


def test_a_java_broker_that_accepts_larger_messages_has_settings_for_its_store() -> None:
    config = apply_apache_settings(StoreConfig(path="/s"), {"maxMessageSize": "8388608"})

    assert config.message_size_max_bytes == MESSAGE_SIZE_MAX
