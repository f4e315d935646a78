"""Timed messages on a full disk, a broken one, in a closed or read-only store."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pocketmq.proto.errors import DiskFailure, StoreClosed, StoreFull
from pocketmq.store.format.timer_log import RECORD_SIZE
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..fakes import FaultyDisk
from ..runs import Hand
from ..timed import (
    NOW,
    SECOND,
    enter,
    keys_of,
    messages,
    names,
    opened,
    put,
    send,
    slots_of,
    waiting,
)


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize("torn", [0, 100])
def test_what_does_not_fit_the_disk_changes_nothing(count: int, torn: int, tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = opened(tmp_path / "store", disk=disk)
    put(store, NOW, messages(19, NOW + 5 * SECOND))
    send(store, messages(count, NOW + 5 * SECOND, "late"))
    before = (slots_of(store.timers), store.timers.log.max_offset, store.timers.queue_offset)
    disk.torn_write = torn

    disk.run_full("timerlog")
    with pytest.raises(StoreFull):
        enter(store, NOW)

    assert (
        slots_of(store.timers),
        store.timers.log.max_offset,
        store.timers.queue_offset,
    ) == before
    disk.heal()
    assert enter(store, NOW) == count
    assert keys_of(store, NOW + 5 * SECOND) == names(19) + names(count, name="late")
    store.close()


def test_a_full_disk_keeps_wheel_and_checkpoint_back(tmp_path: Path) -> None:
    disk, clock = FaultyDisk(), Hand(NOW)
    store = opened(tmp_path / "store", clock, disk=disk)
    put(store, NOW, messages(3, NOW + 5 * SECOND))
    disk.run_full("timerwheel")
    for _ in range(4):
        clock.now_ms += SECOND
        store.tick()
    assert store.health.state == "open"
    assert store.timers.checkpoint.written.log_flushed == 0

    disk.heal()
    for _ in range(3):
        clock.now_ms += SECOND
        store.tick()

    assert store.timers.checkpoint.written.log_flushed == 3 * RECORD_SIZE
    store.close()


def test_a_broken_disk_stops_the_store(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = opened(tmp_path / "store", disk=disk)
    send(store, messages(1, NOW))
    disk.break_writes("timerlog")

    with pytest.raises(DiskFailure):
        enter(store, NOW)

    assert store.health.state == "failed"
    with pytest.raises(DiskFailure, match="takes no more writes"):
        enter(store, NOW)
    store.close()


def test_a_store_that_is_only_looked_at_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    put(store, NOW, messages(50, NOW + 5 * SECOND))
    store._close_files()
    os.unlink(path / "timerwheel")
    before = contents(path)

    seen = MessageStore.open(replace(store.config), disk=OsDisk(), now_ms=Hand(NOW), read_only=True)

    assert waiting(seen) == {NOW + 5 * SECOND: names(50)}
    with pytest.raises(StoreClosed):
        put(seen, NOW, messages(1, NOW))
    seen.close()
    assert contents(path) == before


def contents(path: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}
