"""Replicas whose folders go back: an older copy, or a log without its end, is not elected, and nothing is lost."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from pocketmq.store.format.replica_files import parse_note, render_note

from ...waiting import until
from .replica_set import Member, ReplicaSet, replica_set

pytestmark = pytest.mark.slow


async def fill(world: ReplicaSet, count: int) -> int:
    """Send COUNT messages, wait until the mark has them, and return where the log ends."""
    master = await world.whole()
    assert await master.roles.send(*(b"%d" % n for n in range(count))) == 3
    end = master.running.core.end

    def is_marked() -> bool:
        found = world.ensemble.read_mark()
        return found is not None and found.mark.end == end

    await until(is_marked)
    return end


async def kill_all(world: ReplicaSet) -> None:
    """Kill all at once: the registry goes on naming all of them as in sync."""
    world.registry_is_away = True
    await asyncio.gather(*(member.kill() for member in world.members.values()))
    world.registry_is_away = False
    assert world.cell.in_sync == {1, 2, 3}


def lose_end(member: Member, end: int, lost: int) -> None:
    """Have the log of MEMBER end LOST bytes before END, and its folder not know of it."""
    files = sorted((member.path / "commitlog").iterdir())
    for file in files:
        start = int(file.name)
        data = bytearray(file.read_bytes())
        keep = max(0, min(len(data), end - lost - start))
        file.write_bytes(bytes(data[:keep]) + bytes(len(data) - keep))
    path = member.path / "pocketmq" / "replica.json"
    note = parse_note(path.read_text())
    path.write_text(render_note(note._replace(synced=0, confirm=0, unclean=False)))


async def check_waits_and_catches_up(world: ReplicaSet, old: Member, end: int) -> None:
    """Start OLD first and alone, then the others: it is not elected, and has all in the end."""
    await old.start()
    await until(lambda: bool(old.running.core.unclean_reason))
    assert f"acknowledged records reach {end:,}" in old.running.core.unclean_reason
    assert old.running.status().unclean_reason == old.running.core.unclean_reason
    for _ in range(20):
        await asyncio.sleep(0.02)
        assert not world.masters

    await asyncio.gather(*(one.start() for one in world.members.values() if one is not old))
    master = await world.whole()
    assert master is not old
    assert master.running.core.end >= end
    assert old.log(end) == master.log(end)
    assert not old.running.core.unclean
    assert not list(old.path.parent.glob("*.set-aside-*"))


async def test_a_replica_from_an_older_copy_waits_for_those_that_have_all(tmp_path: Path) -> None:
    async with replica_set(tmp_path, store={"flush": "sync"}) as world:
        await fill(world, 20)
        old = next(one for one in world.members.values() if not one.is_master)
        await old.stop()
        shutil.copytree(old.path, tmp_path / "copy")
        await old.start()
        end = await fill(world, 30)
        await kill_all(world)
        shutil.rmtree(old.path)
        (tmp_path / "copy").rename(old.path)

        await check_waits_and_catches_up(world, old, end)


async def test_a_replica_that_lost_the_end_of_its_log_waits_for_those_that_have_all(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path, store={"flush": "sync"}) as world:
        end = await fill(world, 50)
        old = next(one for one in world.members.values() if not one.is_master)
        await kill_all(world)
        lose_end(old, end, 1_000)

        await check_waits_and_catches_up(world, old, end)


async def test_a_loss_that_is_accepted_makes_it_master_and_the_others_follow(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path, store={"flush": "sync"}) as world:
        end = await fill(world, 50)
        old = next(one for one in world.members.values() if not one.is_master)
        await kill_all(world)
        lose_end(old, end, 1_000)
        await old.start()
        await until(lambda: old.running.core.unclean)

        old.running.accept_loss()
        assert await world.master() is old
        mark = world.ensemble.read_mark()
        assert mark is not None
        assert mark.mark.accepted == old.running.epoch
        await asyncio.gather(*(one.start() for one in world.members.values() if one is not old))
        assert await world.whole() is old
        assert {one.log(end)[:40] for one in world.members.values()} == {old.log(end)[:40]}


async def test_all_killed_at_once_go_on_from_whoever_comes_first(tmp_path: Path) -> None:
    async with replica_set(tmp_path, store={"flush": "sync"}) as world:
        end = await fill(world, 20)
        await kill_all(world)
        first = world.members[2]

        await first.start()
        assert await world.master() is first
        assert not first.running.core.unclean_reason
        assert first.running.core.end >= end


async def test_a_clean_stop_of_a_lone_master_writes_the_mark(tmp_path: Path) -> None:
    async with replica_set(tmp_path, count=1, store={"flush": "sync"}) as world:
        master = await world.whole()
        for n in range(5):
            await master.roles.send(b"%d" % n)
        end = master.running.core.end
        await master.stop()

        found = world.ensemble.read_mark()
        assert found is not None
        assert found.mark.end == end


@pytest.mark.parametrize("epoch", [2**31 - 1, 2**31])
async def test_a_set_whose_replicas_all_noted_an_epoch_that_cannot_be_goes_on(
    tmp_path: Path, epoch: int
) -> None:
    async with replica_set(tmp_path, store={"flush": "sync"}) as world:
        end = await fill(world, 20)
        before = world.cell.epoch
        await kill_all(world)
        for member in world.members.values():
            for name in ("replica.json", "replica.json.bak"):
                path = member.path / "pocketmq" / name
                note = parse_note(path.read_text())
                old = f'"epochSeen":{note.epoch_seen}'
                path.write_text(render_note(note).replace(old, f'"epochSeen":{epoch}'))
        await asyncio.gather(*(member.start() for member in world.members.values()))

        master = await world.whole()

        assert before < world.cell.epoch < before + 100
        assert master.running.core.end >= end
        assert await master.roles.send(b"after") == 3
