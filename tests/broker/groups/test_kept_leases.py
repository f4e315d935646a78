"""What the table of leases holds, and when it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ...fakes import FaultyDisk
from .lease_desk import LEASE_MS, TOPIC, Desk, LeaseCall


def written(path: Path) -> bytes:
    """Return what the journal holds."""
    files = sorted((path / "pocketmq" / "tables").glob("journal-*"))
    return b"".join(file.read_bytes().rstrip(b"\0") for file in files)


async def test_who_fetches_keeps_its_queue_and_nothing_is_written_for_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (token,) = desk.ask("a", 0).tokens or [0]
    await desk.clock.advance(1_000)
    before = written(tmp_path)

    for _ in range(10):
        await desk.clock.advance(LEASE_MS - 1_001)
        desk.fetch(0, token)

    assert desk.holders() == {0: "a"}
    assert written(tmp_path) == before
    await desk.timers.stop()


@pytest.mark.parametrize("by_fetch", [True, False], ids=["fetch", "renewal"])
async def test_a_lease_that_was_over_is_written_when_it_lives_again(
    tmp_path: Path, by_fetch: bool
) -> None:
    desk = Desk(tmp_path)
    (token,) = desk.ask("a", 0).tokens or [0]
    await desk.clock.advance(LEASE_MS)
    desk.kept.close()  # It is noted as over.
    assert Desk(tmp_path).holders() == {}

    if by_fetch:
        desk.fetch(0, token)
    else:
        request = pb.LeaseRequest(
            group="g",
            member_id="a",
            queues=[pb.QueueLease(topic=TOPIC, queue=0, token=token)],
        )
        desk.leases.lease(request, LeaseCall())

    assert desk.holders() == {0: "a"}
    desk.journal.close()
    await desk.timers.stop()


async def test_what_was_held_is_held_after_a_kill_and_what_was_released_is_free(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    desk.ask("a", 0, 1, 2)
    desk.release("a", 1)

    again = Desk(tmp_path)

    assert again.holders() == {0: "a", 2: "a"}
    (newer,) = again.ask("b", 1).tokens or [0]
    assert newer > 0
    await desk.timers.stop()
    await again.timers.stop()


async def test_leases_are_in_a_snapshot_as_well(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.ask("a", 0)
    desk.journal._due.add(1)
    desk.journal.tick()
    assert list((tmp_path / "pocketmq" / "tables").glob("snapshot-1-*"))

    assert Desk(tmp_path).holders() == {0: "a"}
    await desk.timers.stop()


async def test_a_disk_that_is_full_costs_no_lease(tmp_path: Path) -> None:
    disk = FaultyDisk()
    desk = Desk(tmp_path, disk)
    disk.break_writes("tables")
    desk.ask("a", 0)
    await desk.clock.advance(2_000)
    assert desk.holders() == {0: "a"}
    disk.heal()

    await desk.clock.advance(11_000)

    assert Desk(tmp_path, disk).holders() == {0: "a"}
    await desk.timers.stop()


@pytest.mark.parametrize("row", [[1], ["a", "", 1 << 63, 1_000, 2], "text", {}])
async def test_rows_that_cannot_be_read_are_as_none(tmp_path: Path, row: Any) -> None:
    desk = Desk(tmp_path)
    desk.kept._kept.put("g", f"0 {TOPIC}", row)
    await desk.timers.stop()

    again = Desk(tmp_path)

    assert again.ask("a", 0).tokens != [0]
    await again.timers.stop()
