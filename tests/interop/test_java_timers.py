"""Apache's broker opens stores in which we keep timed messages, and finds the same slots, records and progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketmq.proto.clock import SystemClock
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..recorded import recorded_store, settings
from ..runs import Hand
from ..timed import TOPIC, Message, put, waiting
from .java_oracle import dumps, require_java, verify_start

pytestmark = [pytest.mark.long, pytest.mark.java, pytest.mark.timeout(1800)]

SECOND = 1000
SMALL = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "mappedFileSizeTimerLog": "2000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}


def opened(path: Path, given: dict[str, str], clock: Hand) -> MessageStore:
    config = ApacheSettings.of(given).store_config(str(path))
    return MessageStore.open(config, disk=OsDisk(), now_ms=clock)


def fill(store: MessageStore, clock: Hand) -> None:
    """Enter messages for near, far and past times and recalls, and hand some on."""
    base = clock.now_ms // SECOND * SECOND
    for part in range(6):
        ahead = [1 + part % 2, 30, 30, 600, 86_400, 3 * 86_400 + part, 6 * 86_400]
        made = [
            Message(f"{part}-{number}", base + seconds * SECOND)
            for number, seconds in enumerate(ahead)
        ]
        made.append(Message(f"{part}-recall", base + 600 * SECOND, deletes=f"{part}-3"))
        put(store, clock.now_ms, made)
        for message in made:
            store.timers.metrics.add(TOPIC, -1 if message.deletes else 1)
        clock.now_ms += 400
    store.timers.delivered_up_to(base + 3 * SECOND)


def require_same(java: dict[str, Any], store: Path, given: dict[str, str], clock: Hand) -> None:
    """Apache says of the timers what we say."""
    assert java["accepted"], java["log"]
    mine = opened(store, given, clock)
    timers = mine.timers
    found = java["timer"]
    assert found["commitQueueOffset"] == timers.queue_offset
    assert found["checkpoint"] == {
        "lastReadTimeMs": timers.read_ms,
        "lastTimerLogFlushPos": timers.log.max_offset,
        "lastTimerQueueOffset": timers.queue_offset,
        "masterTimerQueueOffset": timers.queue_offset,
    }
    slots = {
        slot["timeMs"]: (slot["firstPos"], slot["lastPos"], slot["num"])
        for slot in found["slots"]
        if slot["timeMs"] >= timers.read_ms
    }
    times = timers.ring.pending_times().tolist()
    assert slots == {time * SECOND: timers.ring.get(time) for time in times}
    chains = {one["pos"]: one for one in found["log"]}
    for slot_ms, (_, last, _) in slots.items():
        positions = []
        while last != -1:
            positions.append(last)
            last = chains[last]["prevPos"]
        ours = timers.slot(slot_ms)
        while not ours.read(100):
            pass
        assert positions[::-1] == ours.records().positions.tolist()
    assert found["pendingByTopic"] == timers.metrics.counts
    mine._close_files()


@pytest.mark.parametrize("clean", [True, False])
def test_a_store_of_ours(clean: bool, tmp_path: Path) -> None:
    require_java()
    clock = Hand(SystemClock().now_ms())
    store = opened(tmp_path / "store", SMALL, clock)
    fill(store, clock)
    if clean:
        store.close()
    else:
        store.flush()
        store._close_files()

    [java] = dumps([(tmp_path / "store", SMALL)], tmp_path / "java")

    assert len(java["timer"]["log"]) >= 48
    require_same(java, tmp_path / "store", SMALL, clock)
    assert verify_start(tmp_path / "store", SMALL)["healthy"]


def test_a_store_that_was_stopped_amid_a_slot(tmp_path: Path) -> None:
    require_java()
    clock = Hand(SystemClock().now_ms())
    store = opened(tmp_path / "store", SMALL, clock)
    fill(store, clock)
    slot_ms = store.timers.next_slot(0)
    assert slot_ms is not None
    store.timers.delivered_up_to(slot_ms)
    slot = store.timers.slot(slot_ms)
    while not slot.read(100):
        pass
    store.timers.replace_slot(slot_ms, slot.records().positions[5:])
    left = waiting(store)
    store.close()

    [java] = dumps([(tmp_path / "store", SMALL)], tmp_path / "java")

    require_same(java, tmp_path / "store", SMALL, clock)
    again = opened(tmp_path / "store", SMALL, clock)
    assert waiting(again) == left
    again.close()


def test_a_store_of_apaches_that_we_went_on_with(tmp_path: Path) -> None:
    require_java()
    given = settings("delays")
    path = recorded_store("delays", tmp_path / "store")
    clock = Hand(SystemClock().now_ms())
    store = opened(path, given, clock)
    timers = store.timers
    # What Apache left was due long ago: Java looks at nothing that is older than a week.
    assert timers.pending
    slot_ms = clock.now_ms // SECOND * SECOND
    timers.delivered_up_to(slot_ms)
    put(store, timers.read_ms, [Message(f"n{n}", slot_ms + n * SECOND) for n in range(30)])
    timers.metrics.add(TOPIC, 30)
    timers.replace_slot(slot_ms, np.empty(0, np.int64))
    store.close()

    [java] = dumps([(path, given)], tmp_path / "java")

    require_same(java, path, given, clock)
