"""What the file of leases holds, and when it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ...fakes import FaultyDisk
from .lease_desk import LEASE_MS, TOPIC, Desk, LeaseCall


async def test_who_fetches_keeps_its_queue_and_the_table_is_not_written_for_it(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    (token,) = desk.ask("a", 0).tokens or [0]
    await desk.clock.advance(1_000)
    file = tmp_path / "pocketmq" / "leases.json"
    file.unlink()

    for _ in range(10):
        await desk.clock.advance(LEASE_MS - 1_001)
        desk.fetch(0, token)

    assert desk.holders() == {0: "a"}
    assert not file.exists()
    await desk.timers.stop()


@pytest.mark.parametrize("by_fetch", [True, False], ids=["fetch", "renewal"])
async def test_a_lease_that_was_over_when_the_table_was_written_is_written_when_it_lives_again(
    tmp_path: Path, by_fetch: bool
) -> None:
    desk = Desk(tmp_path)
    (token,) = desk.ask("a", 0).tokens or [0]
    await desk.clock.advance(LEASE_MS)
    desk.ask("b", 1)
    await desk.clock.advance(1_000)

    if by_fetch:
        desk.fetch(0, token)
    else:
        request = pb.LeaseRequest(
            group="g",
            member_id="a",
            queues=[pb.QueueLease(topic=TOPIC, queue=0, token=token)],
        )
        desk.leases.lease(request, LeaseCall())
    await desk.clock.advance(1_000)

    assert Desk(tmp_path).holders() == {0: "a", 1: "b"}
    await desk.timers.stop()


async def test_a_disk_that_is_full_costs_no_lease(tmp_path: Path) -> None:
    disk = FaultyDisk()
    desk = Desk(tmp_path, disk)
    desk.ask("a", 0)
    disk.break_writes("leases")
    await desk.clock.advance(2_000)
    assert desk.holders() == {0: "a"}
    disk.heal()

    await desk.clock.advance(2_000)

    assert Desk(tmp_path, disk).holders() == {0: "a"}
    await desk.timers.stop()


@pytest.mark.parametrize(
    "text",
    [
        '{"leases":3',
        '{"token":1,"floor":0,"leases":[["g","T",0,"a","",9223372036854775808,1000,2]]}',
        '{"token":9223372036854775808,"floor":0,"leases":[]}',
    ],
)
async def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "pocketmq").mkdir()
    (tmp_path / "pocketmq" / "leases.json").write_text(text)

    desk = Desk(tmp_path)

    assert desk.ask("a", 0).tokens != [0]
    await desk.timers.stop()
