"""What Apache's broker left waiting on its delay levels comes as it would have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pocketmq.broker.delay.levels import CHUNK_MESSAGES
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.topics import SCHEDULE_TOPIC
from pocketmq.store.config import StoreConfig, apply_apache_settings

from ...recorded import recorded_store, settings as recorded_settings
from ...runs import records_of
from .leveling import HOUR_MS, LEVELS_MS, Leveling, offsets_in


async def test_what_apache_left_waiting_comes_as_it_would_have(tmp_path: Path) -> None:
    path = recorded_store("delays", tmp_path / "s")
    config = apply_apache_settings(StoreConfig(path=str(path)), recorded_settings("delays"))
    positions = offsets_in(path)
    clock = VirtualClock(1_795_226_140_000)  # some seconds after its last message
    reader = Leveling(path, clock, config=config)
    waiting = {}
    for level in range(1, 19):
        low, high = reader.store.queue_bounds(SCHEDULE_TOPIC, level - 1)
        if low < high:
            stored = records_of(reader.store, SCHEDULE_TOPIC, level - 1)
            for record in stored[positions.get(level, 0) :]:
                waiting[record.properties["KEYS"]] = record
    assert len(waiting) > 8
    before = {
        name: reader.store.queue_bounds(*name)[1] for name in (("Delayed", 0), ("Delayed", 1))
    }
    reader.start()

    await clock.advance(3 * HOUR_MS)

    found = {}
    for (topic, queue), end in before.items():
        for copy in records_of(reader.store, topic, queue)[end:]:
            assert copy.properties["KEYS"] not in found, "once"
            found[copy.properties["KEYS"]] = copy
    assert found.keys() == waiting.keys()
    for key, copy in found.items():
        waited = waiting[key]
        delay_ms = LEVELS_MS[int(waited.properties["DELAY"]) - 1]
        assert copy.store_timestamp_ms == waited.store_timestamp_ms + delay_ms
        assert copy.properties == waited.properties
        assert (copy.body, copy.born_timestamp_ms) == (waited.body, waited.born_timestamp_ms)
    ends = {level: reader.store.queue_bounds(SCHEDULE_TOPIC, level - 1)[1] for level in positions}
    await reader.stop()
    assert offsets_in(path) == ends


@pytest.mark.parametrize("copies", [1, 3, CHUNK_MESSAGES + 5])
async def test_where_records_were_lost_the_one_behind_comes_once(
    tmp_path: Path, copies: int
) -> None:
    """Recovery has the entries of lost records tell of the next record of the queue."""
    rig = Leveling(tmp_path / "s")
    rig.send(1, b"a")
    rig.send(1, b"b")
    queue = rig.store.queues.find_or_make(SCHEDULE_TOPIC, 0)
    log_offsets, sizes, codes = (column[-1:] for column in queue.entries(0, 2))
    queue.append(
        2, np.repeat(log_offsets, copies), np.repeat(sizes, copies), np.repeat(codes, copies)
    )
    rig.start()
    await rig.clock.advance(1_000)
    rig.send(1, b"c")

    await rig.clock.advance(1_000)

    assert rig.bodies == [b"a", b"b", b"c"]
    assert rig.levels.waiting == 0
    await rig.stop()
