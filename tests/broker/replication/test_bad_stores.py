"""Stores and disks that are not as they should be: what is said, what goes on meanwhile, and that nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pocketmq.broker.replication.device import ReplicaDevice
from pocketmq.proto.errors import ConfigError, StoreFull
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.format.replica_files import BrokerIdentity
from pocketmq.store.os_disk import OsDisk

from ...integration.whole_broker import TOPIC, run_of
from ...runs import bodies_of, make_run, open_store, small_config
from ...waiting import until
from .broker_roles import broker_set, peer_of
from .replica_set import Member, ReplicaSet, producers_of_broker, replica_set
from .state_pair import tables_at


def set_aside(folder: Path) -> list[Path]:
    return list(folder.glob("*.set-aside-*"))


def other_than(world: ReplicaSet, member: Member) -> Member:
    return next(one for one in world.up if one is not member)


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (BrokerIdentity("other", "orders", 1), "store of cluster 'c'.*start with broker.cluster c"),
        (BrokerIdentity("c", "bills", 1), "store of set 'orders'.*start with --replica-set orders"),
        (BrokerIdentity("c", "orders", 2), "store of replica 1.*start with --replica-id 1"),
    ],
)
def test_the_store_of_another_replica_is_refused_and_stays_as_it_is(
    identity: BrokerIdentity, words: str, tmp_path: Path
) -> None:
    def device(identity: BrokerIdentity) -> ReplicaDevice:
        config = small_config(tmp_path / "store")
        return ReplicaDevice(
            config,
            identity,
            disk=OsDisk(),
            unix_ms=lambda: 1,
            boot="b",
            producers_of=producers_of_broker,
        )

    first = device(BrokerIdentity("c", "orders", 1))
    first.open(was_led=False)
    first.close()
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    with pytest.raises(ConfigError, match=words):
        device(identity).open(was_led=False)
    assert before == {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}


async def test_a_store_with_another_history_is_set_aside_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica_set(tmp_path, count=2) as world:
        master = await world.whole()
        other = other_than(world, master)
        await other.stop()
        await master.roles.send(b"ours")
        stray = open_store(tmp_path / "stray")
        stray.append(make_run("A", 0, [b"somebody else's"]))
        stray.close()
        other.config = small_config(tmp_path / "stray")
        await other.start()
        await world.whole()

        assert bodies_of(other.store, "A", 0) == [b"ours"]
        assert "store replaced by an empty one" in caplog.text
        (aside,) = set_aside(tmp_path)
        assert str(aside) in caplog.text
    kept = open_store(aside)
    assert bodies_of(kept, "A", 0) == [b"somebody else's"]
    kept.close()


@pytest.mark.slow
async def test_a_follower_whose_disk_is_full_leaves_the_set_and_comes_back(tmp_path: Path) -> None:
    async with replica_set(tmp_path, replica_lag_ms=300) as world:
        master = await world.whole()
        full = other_than(world, master)
        full.disk.run_full("commitlog")
        for number in range(20):  # More than the file at hand has room for.
            assert await master.roles.send(b"%d" % number * 200) >= 2
        assert full.id not in world.cell.in_sync
        full.disk.heal()
        await world.whole()
        end = master.store.max_log_offset
        assert full.log(end) == master.log(end)


async def fill(master: Member) -> None:
    for _ in range(20):
        await master.roles.send(b"x" * 900)


async def test_a_master_whose_disk_is_full_refuses_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path) as world:
        master = await world.whole()
        assert await master.roles.send(b"first") == 3
        master.disk.run_full("commitlog")
        with pytest.raises(StoreFull, match="no space left"):
            await fill(master)
        stored = len(bodies_of(master.store, "A", 0))
        master.disk.heal()
        await until(lambda: len(world.masters) == 1)
        master = await world.whole()
        assert await master.roles.send(b"last") == 3
        assert bodies_of(master.store, "A", 0)[stored:] == [b"last"]


@pytest.mark.slow
async def test_a_topic_is_made_without_the_follower_that_cannot_keep_it(tmp_path: Path) -> None:
    async with broker_set(tmp_path, replica_lag_ms=300) as world:
        master = await world.whole()
        full = other_than(world, master)
        full.disk.run_full("pocketmq/tables")
        async with peer_of(master) as peer:
            async with asyncio.timeout(60):
                await peer.create_topic()
            assert TOPIC not in tables_at(full.path)["topics"]
            assert full.id not in world.cell.in_sync
            full.disk.heal()
            await world.whole()
            assert TOPIC in tables_at(full.path)["topics"]
            await peer.produce(run_of([b"one"], durability=pb.REPLICAS))
