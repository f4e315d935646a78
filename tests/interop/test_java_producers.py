"""Apache's broker has the store in between: what our producers had stored is known afterwards, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.apache.settings import ApacheSettings

from ..integration.whole_broker import broker
from ..numbered import bodies, numbered_run
from .java_oracle import require_java, verify_start

pytestmark = [pytest.mark.long, pytest.mark.java, pytest.mark.timeout(600)]

SMALL: Final = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}


async def test_repeats_are_known_after_a_java_broker_had_the_store(tmp_path: Path) -> None:
    require_java()
    settings = ApacheSettings.of(SMALL)
    delayed = numbered_run(
        bodies(30, 2), 30, properties=[{"TIMER_DELAY_SEC": "1"}, {"DELAY": "1"}], each=True
    )
    async with broker(settings.store_config(str(tmp_path / "ours"))) as (_server, peer):
        await peer.create_topic()
        for first in range(0, 30, 10):
            await peer.produce(numbered_run(bodies(first, 10), first))
        await peer.produce(delayed)
        known = await peer.produce(numbered_run(bodies(20, 10), 20))

    verdict = verify_start(tmp_path / "ours", SMALL, keep=tmp_path / "java")
    assert verdict["healthy"], verdict["log"]

    async with broker(settings.store_config(str(tmp_path / "java"))) as (server, peer):
        assert server.store.max_log_offset > known.log_offsets[-1] + 1_000, "it has appended"
        again = await peer.produce(numbered_run(bodies(20, 10), 20))
        later = await peer.produce(delayed)
        following: pb.ProduceReply = await peer.produce(numbered_run(bodies(32, 3), 32))

        assert (again.repeated_count, again.first_queue_offset) == (10, known.first_queue_offset)
        assert list(again.log_offsets) == list(known.log_offsets)
        assert later.repeated_count == 2
        assert following.repeated_count == 0
        assert server._running is not None
        assert server._running.parts.producers.unknown_before is None
