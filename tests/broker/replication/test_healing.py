"""Damage in the log of one replica: the others have what stood there, it takes its place, and nobody misses it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.replication import healing
from pocketmq.proto.errors import NotEnoughReplicas
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import CallFailed, connect

from ...damage import flip, flip_stopped, log_offset_of
from ...runs import bodies_of
from ...waiting import until
from .replica_set import TOPIC, Member, ReplicaSet, replica_set

pytestmark = pytest.mark.slow

BODIES = [b"message %d" % number * 20 for number in range(12)]
#: Where a record says how long it is.
SIZE_AT = 0


def others_of(world: ReplicaSet, member: Member) -> list[Member]:
    return [one for one in world.members.values() if one is not member]


def places(member: Member) -> dict[int, int]:
    known = member.store.damages.known
    assert known is not None
    return known.places


def healed(member: Member) -> int:
    known = member.store.damages.known
    assert known is not None
    return known.healed


def seen(member: Member) -> list[bytes]:
    """Read the topic once, from beginning to end; return what a consumer gets, in its order."""
    found: list[bytes] = []
    offset, end = 0, member.store.queue_bounds(TOPIC, 0)[1]
    read = member.store.read_queue(TOPIC, 0, offset, 100, 1 << 20)
    for start, size in zip([0, *read.sizes.cumsum().tolist()], read.sizes.tolist(), strict=False):
        found.append(read.records[start : start + size])
    assert read.lost == 0
    assert end
    return found


async def given_up(member: Member) -> list[bytes]:
    """Return what consumers get, once nothing is awaited any more."""
    await until(lambda: len(member.store.read_queue(TOPIC, 0, 0, 100, 1 << 20)) > 4)
    return bodies_of(member.store, TOPIC, 0)


async def filled(world: ReplicaSet) -> Member:
    """Return the master, once all have all messages."""
    master = await world.whole()
    for body in BODIES:
        await master.roles.send(body)
    return await world.whole()


async def equal(world: ReplicaSet) -> None:
    """Return once the logs of all are the same, byte by byte."""
    end = world.masters[0].store.max_log_offset
    await until(lambda: len({one.log(end) for one in world.up}) == 1)
    assert all(not places(one) for one in world.up)


async def test_consumers_of_a_moved_master_get_a_message_that_was_damaged_while_it_was_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica_set(tmp_path, min_in_sync=2) as world:
        master = await filled(world)
        damaged = others_of(world, master)[0]
        at = log_offset_of(damaged.store, 4, TOPIC)
        await damaged.stop()
        flip_stopped(damaged.path, at)
        await damaged.start()
        await world.whole()
        await master.node.hand_over(damaged.id, 5_000)
        assert await world.whole() is damaged

        assert len(seen(damaged)) == 4
        await until(lambda: not places(damaged))

        assert bodies_of(damaged.store, TOPIC, 0) == BODIES
        await equal(world)
        assert "damage in the log repaired from another replica" in caplog.text
        status = damaged.running.status()
        assert (status.damaged, status.healed) == (0, 1)


async def test_a_damaged_record_of_the_master_is_not_copied_to_a_new_follower(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path, min_in_sync=2) as world:
        master = await world.whole()
        new = others_of(world, master)[0]
        await new.stop()
        await until(lambda: new.id not in world.cell.in_sync)
        for body in BODIES:
            await master.roles.send(body)
        flip(master.store, log_offset_of(master.store, 4, TOPIC))
        await new.start()
        await world.whole()

        await until(lambda: healed(new) == 1)
        assert bodies_of(new.store, TOPIC, 0) == BODIES
        await until(lambda: healed(master) == 1)
        await equal(world)


async def test_a_follower_that_meets_bytes_that_are_no_records_has_its_master_healed(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path, min_in_sync=2) as world:
        master = await world.whole()
        new = others_of(world, master)[0]
        await new.stop()
        await until(lambda: new.id not in world.cell.in_sync)
        for body in BODIES:
            await master.roles.send(body)
        flip(master.store, log_offset_of(master.store, 4, TOPIC), SIZE_AT)
        await new.start()
        await world.whole()

        assert healed(master) == 1
        assert bodies_of(new.store, TOPIC, 0) == BODIES
        await equal(world)


async def test_what_nobody_has_is_covered_and_the_set_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica_set(tmp_path, count=2) as world:
        master = await world.whole()
        (new,) = others_of(world, master)
        await new.stop()
        await until(lambda: new.id not in world.cell.in_sync)
        for body in BODIES:
            await master.roles.send(body)
        of_body, head = (log_offset_of(master.store, number, TOPIC) for number in (2, 4))
        flip(master.store, of_body)
        flip(master.store, head, SIZE_AT)
        await new.start()
        await world.whole()

        rest = [BODIES[n] for n in range(12) if n not in (2, 4)]
        assert await given_up(master) == rest
        assert await given_up(new) == rest
        assert bodies_of(new.store, TOPIC, 0) == rest
        assert await master.roles.send(b"more") == 2
        assert list(places(master)) == list(places(new)) == [of_body]
        kept = list((master.path / "pocketmq/broken").iterdir())
        assert [path.name for path in kept] == [f"log-{head:020d}"]
        assert "no replica has them" in caplog.text


async def test_a_replica_with_damage_is_not_elected_while_a_healthy_one_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing.LogHealer, "_put", lambda *_: False)
    async with replica_set(tmp_path, min_in_sync=2) as world:
        master = await filled(world)
        damaged, healthy = others_of(world, master)
        flip(damaged.store, at := log_offset_of(damaged.store, 4, TOPIC))
        assert damaged.store.read_at(at) is None
        await until(lambda: master.running.core.live[damaged.id].damaged == 1)
        assert healthy.running.core.live[damaged.id].damaged == 1

        leadership = master.running.leadership
        assert leadership is not None
        assert not leadership.may_be_next(damaged.id)
        assert leadership.may_be_next(healthy.id)
        with pytest.raises(NotEnoughReplicas, match="is damaged in 1 places"):
            await master.node.hand_over(damaged.id, 5_000)
        await master.kill()

        assert await world.master() is healthy
        await healthy.kill()
        await damaged.stop()
        await damaged.start()
        assert places(damaged), "it is known after a restart, too"
        assert await world.master() is damaged, "it may be, where no healthy one can"


async def test_a_replica_of_another_history_gives_nothing(tmp_path: Path) -> None:
    async with replica_set(tmp_path, count=2) as world:
        master = await filled(world)
        at = log_offset_of(master.store, 4, TOPIC)

        async def ask(**changes: Any) -> pb.ReadLogReply:
            values = {"cluster": "c", "set": "orders", "offset": at, "size_max": 1, **changes}
            async with connect(f"127.0.0.1:{master.port}") as channel:
                call = channel.unary_unary(
                    healing.READ_LOG,
                    pb.ReadLogRequest.SerializeToString,
                    pb.ReadLogReply.FromString,
                )
                reply: pb.ReadLogReply = await call(pb.ReadLogRequest(**values), timeout=10)
            return reply

        known = master.running.core.epochs.at(at)
        assert known is not None
        epoch = pb.EpochStart(epoch=known.epoch, start=known.start)
        assert (await ask(epoch=epoch)).data
        for other in (pb.EpochStart(epoch=known.epoch + 1, start=known.start), None):
            assert not (await ask(epoch=other)).data
        for offset in (at + 1, master.store.max_log_offset, 2**63 - 1):
            assert not (await ask(epoch=epoch, offset=offset)).data
        assert len((await ask(epoch=epoch, size_max=2**31 - 1)).data) < 1_048_576
        for changes in ({"offset": -1}, {"size_max": 0}, {"set": "x"}, {"cluster": "x"}):
            with pytest.raises(CallFailed):
                await ask(epoch=epoch, **changes)
        await asyncio.sleep(0)
        assert not places(master) or min(places(master)) == at + 1
