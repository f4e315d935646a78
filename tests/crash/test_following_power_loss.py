"""Power fails while a store follows: what it said is on disk is there, and it continues to the same store."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from pocketmq.store.message_store import MessageStore

from ..fakes import Crash, RecordingDisk
from ..runs import Hand, open_store, records_of
from ..store.following import assert_equal, frames, send, take


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_a_follower_goes_on_after_a_power_cut(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    clock = Hand()
    master = open_store(tmp_path / "master", now_ms=clock)
    send(master, rng, clock, 40)
    home = tmp_path / "follower"
    home.mkdir()
    synced = 0
    opened: list[MessageStore] = []
    for life in range(3):
        disk = RecordingDisk(str(home), seed)
        disk.crash_after = None if life == 2 else rng.randint(1, 150)
        with contextlib.suppress(Crash):
            follower = open_store(home, disk=disk, now_ms=clock, replica=True)
            opened.append(follower)
            follower.follow()
            assert follower.raw_end == follower.max_log_offset >= synced
            for data, at in frames(master, rng, follower.raw_end):
                clock.now_ms += rng.randint(0, 900)
                take(follower, data, at)
                follower.tick() if rng.random() < 0.1 else None
                if rng.random() < 0.1:
                    end, told = follower.max_log_offset, list[object]()
                    follower.request_sync(end, told.append)
                    assert told == [None]
                    synced = end
        if life < 2:
            home = tmp_path / f"left by {life}"
            disk.rebuild(str(home))
    follower = opened[-1]
    for name in master.queue_names():
        assert records_of(follower, *name) == records_of(master, *name)
    assert follower.lookup("A", "all") == master.lookup("A", "all") != []
    follower.close()
    master.close()
    assert_equal(home, tmp_path / "master", crashed=True)
