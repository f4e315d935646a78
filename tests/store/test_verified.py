"""What is noted as verified while a store runs: a recovery reads only what is newer."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from pocketmq.store.consume_queues import ConsumeQueues
from pocketmq.store.recovery.verified import Verified

from ..runs import Device, Hand, bodies_of, make_run, open_store

_MINUTE_MS = 60_000


def _crashed_copy(tmp_path: Path, name: str) -> Path:
    """Return the files of the running store as a kill would leave them."""
    target = tmp_path / name
    shutil.copytree(tmp_path / "store", target)
    return target


def test_a_recovery_reads_what_is_newer_than_the_last_minute(tmp_path: Path) -> None:
    clock = Hand()
    store = open_store(tmp_path / "store", now_ms=clock)
    store.append(make_run("T", 0, [b"old"] * 50, {"KEYS": "k"}))
    store.tick()
    clock.now_ms += _MINUTE_MS
    store.tick()
    clock.now_ms += 1_000
    store.tick()
    store.append(make_run("T", 0, [b"new"] * 3, {"KEYS": "k"}))

    recovered = open_store(_crashed_copy(tmp_path, "copy"), now_ms=clock)

    assert not recovered.recovery.clean
    assert recovered.recovery.scanned_records == 3
    assert bodies_of(recovered, "T", 0) == [b"old"] * 50 + [b"new"] * 3
    assert len(recovered.lookup("T", "k")) == 53
    recovered.close()
    store.close()


def test_before_the_first_minute_everything_is_read(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    store.append(make_run("T", 0, [b"old"] * 50))
    store.tick()

    recovered = open_store(_crashed_copy(tmp_path, "copy"))

    assert recovered.recovery.scanned_records == 50
    recovered.close()
    store.close()


def test_nothing_is_noted_before_the_log_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Hand()
    store = open_store(tmp_path / "store", now_ms=clock)
    store.tick()
    store.append(make_run("T", 0, [b"old"] * 50))
    device = Device()
    monkeypatch.setattr(store.flusher, "submit", device.submit)

    def noted() -> int:
        found = Verified.load(store.disk, store.config.own_folder)
        return 0 if found is None else found.log_end

    for _ in range(3):
        clock.now_ms += _MINUTE_MS
        store.tick()
    assert noted() == 0
    device.do_next()
    clock.now_ms += _MINUTE_MS
    store.tick()

    assert noted() == store.max_log_offset
    monkeypatch.undo()
    store.close()


def test_a_deleted_topic_is_noted_with_the_next_flush(tmp_path: Path) -> None:
    clock = Hand()
    store = open_store(tmp_path / "store", now_ms=clock)
    store.append(make_run("Gone", 0, [b"x"] * 5))
    store.append(make_run("Stays", 0, [b"y"] * 5))
    store.delete_topic("Gone")
    for _ in range(3):
        clock.now_ms += 1_000
        store.tick()

    recovered = open_store(_crashed_copy(tmp_path, "copy"), now_ms=clock)

    assert recovered.queue_names() == [("Stays", 0)]
    assert recovered.recovery.scanned_records == 0
    recovered.close()
    store.close()


def test_a_damaged_index_has_the_whole_log_read(tmp_path: Path) -> None:
    clock = Hand()
    store = open_store(tmp_path / "store", now_ms=clock)
    store.append(make_run("T", 0, [b"old"] * 50, {"KEYS": "k"}))
    store.tick()
    clock.now_ms += _MINUTE_MS
    store.tick()
    clock.now_ms += 1_000
    store.tick()
    store.append(make_run("T", 0, [b"new"] * 3, {"KEYS": "k"}))
    left = _crashed_copy(tmp_path, "copy")
    assert (left / "pocketmq" / "verified.json").exists()
    (path,) = (left / "index").iterdir()
    content = bytearray(path.read_bytes())
    entries_at = 40 + 50 * 4
    content[entries_at + 20 * 10 : entries_at + 20 * 30] = bytes(20 * 20)
    path.write_bytes(content)

    recovered = open_store(left, now_ms=clock)

    assert recovered.recovery.scanned_records == 53
    assert len(recovered.lookup("T", "k")) == 53
    assert not (left / "pocketmq" / "verified.json").exists()  # Until all of it is on the device.
    recovered.close()
    assert (left / "pocketmq" / "verified.json").exists()
    store.close()


def test_a_stop_is_clean_where_queues_cannot_be_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    store.append(make_run("T", 0, [b"one"]))

    def unread(queues: ConsumeQueues) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(ConsumeQueues, "update_sums", unread)
        store.close()

    assert "verified snapshot not saved" in caplog.text
    store = open_store(tmp_path)
    assert store.recovery.clean
    assert bodies_of(store, "T", 0) == [b"one"]
    store.close()
