"""Counts of waiting messages and the timer checkpoint, held against what Apache's broker wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pocketmq.store.checkpoints import TimerCheckpoint, TimerCheckpointFile, read_timer_checkpoint
from pocketmq.store.format.state_tables import COUNTER_MAX, DataVersion
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.timers.store import TimerMetrics

from ..recorded import expected, recorded_store
from ..runs import Hand

NOW = 1_700_000_000_000


@pytest.mark.parametrize("name", ["delays", "consumption", "basic"])
def test_recorded_counts_are_read_and_written_to_the_byte(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    path = store / "config" / "timermetrics"
    wanted = path.read_bytes()
    metrics = TimerMetrics(OsDisk(), str(store), Hand(NOW))

    assert metrics.counts == expected(name)["timer"]["pendingByTopic"]
    assert metrics.take_text() is None
    version = metrics._version
    metrics.add("T", 1)
    metrics.remove("T")
    metrics._version = version
    text = metrics.take_text()
    assert text is not None
    assert text.encode() == wanted


def test_counts_are_kept(tmp_path: Path) -> None:
    clock = Hand(NOW)
    metrics = TimerMetrics(OsDisk(), str(tmp_path), clock)
    assert metrics.add("T", 5) == 5
    clock.now_ms += 7
    assert metrics.add("标", 2) == 2
    assert metrics.add("T", -1) == 4
    text = metrics.take_text()
    assert text == (
        '{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000007},"timingCount":'
        '{"T":{"count":4,"timeStamp":1700000000007},"\\u6807":{"count":2,"timeStamp":1700000000007}}}'
    )
    metrics.save(text)

    again = TimerMetrics(OsDisk(), str(tmp_path), clock)
    assert again.counts == {"T": 4, "标": 2}
    assert (again.count("T"), again.count("U")) == (4, 0)
    again.add("T", 1 << 40)
    text = again.take_text()
    assert text is not None
    assert f'"count":{COUNTER_MAX},' in text


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"timingCount":3}',
        '{"timingCount":{"T":1}}',
        '{"timingCount":{"T":{"count":""}}}',
    ],
)
def test_counts_that_cannot_be_read_begin_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "timermetrics").write_text(text)

    metrics = TimerMetrics(OsDisk(), str(tmp_path), Hand(NOW))

    assert metrics.counts == {}
    metrics.add("T", 1)
    metrics.save(metrics.take_text() or "")
    assert TimerMetrics(OsDisk(), str(tmp_path), Hand(NOW)).counts == {"T": 1}


@pytest.mark.parametrize("name", ["delays", "consumption", "basic"])
def test_a_recorded_checkpoint_is_read_and_written_to_the_byte(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    data = (store / "config" / "timercheck").read_bytes()

    found = TimerCheckpoint.parse(data)

    assert found.pack() == data[:56]
    wanted = expected(name)["timer"]["checkpoint"]
    assert found.queue_offset == wanted["lastTimerQueueOffset"]
    assert found.master_queue_offset == wanted["masterTimerQueueOffset"]


def test_a_checkpoint_counts_its_changes() -> None:
    begin = TimerCheckpoint(1000, 52, 1, 1, DataVersion(4, 0, 10))

    assert begin.advanced(1000, 104, 1, 99).version == begin.version
    assert begin.advanced(2000, 52, 1, 99).version == DataVersion(5, 0, 99)
    assert begin.advanced(1000, 52, 2, 99) == replace(
        begin, queue_offset=2, master_queue_offset=2, version=DataVersion(5, 0, 99)
    )


@pytest.mark.parametrize("data", [None, b"", b"\0\0\1"])
def test_a_missing_or_short_checkpoint_says_nothing(data: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    path.parent.mkdir()
    if data is not None:
        path.write_bytes(data)
    file = TimerCheckpointFile(OsDisk(), str(path))
    if not data:
        assert file.written.is_empty

    file.open()
    file.write(TimerCheckpoint(1000, 52, 1, 1))
    file.close()

    assert path.stat().st_size == 4096
    assert read_timer_checkpoint(OsDisk(), str(path)) == TimerCheckpoint(1000, 52, 1, 1)


def test_what_a_kill_forgot_makes_no_negative_count_in_the_file(tmp_path: Path) -> None:
    metrics = TimerMetrics(OsDisk(), str(tmp_path), Hand(NOW))

    metrics.add("T", -3)

    assert '"T":{"count":0,' in (metrics.take_text() or "")
