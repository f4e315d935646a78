"""What lies beside the log is there after a failover: whole brokers, real replicas, stores and sockets."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from pocketmq.broker.replication import node, state_sink
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.tools.lag.cold import store_rows
from pocketmq.tools.stores.cold_store import open_cold
from pocketmq.tools.stores.locations import StoreLocation

from ...integration.test_later_trouble import run
from ...integration.v2_caller import Caller
from ...integration.whole_broker import TOPIC, Peer, broker, run_of
from ...runs import bodies_of
from ...waiting import until
from .broker_roles import broker_of, broker_set, peer_of
from .replica_set import Member, ReplicaSet
from .state_pair import tables_at

pytestmark = pytest.mark.slow


async def ask_offset(peer: Peer, group: str = "g") -> int:
    queues = [pb.QueueId(topic=TOPIC, queue=0)]
    asked = pb.GroupOffsetsRequest(group=group, queues=queues)
    reply = await peer.ask("GroupOffsets", asked, pb.GroupOffsetsReply)
    return int(reply.offsets[0].offset)


async def commit(peer: Peer, offset: int, *, force: bool = False) -> None:
    offsets = [pb.GroupOffset(topic=TOPIC, queue=0, offset=offset)]
    asked = pb.CommitOffsetsRequest(group="g", offsets=offsets, force=force)
    await peer.ask("CommitOffsets", asked, pb.CommitOffsetsReply)


async def next_master(world: ReplicaSet, old: Member) -> Member:
    await old.kill()
    return await world.master()


async def test_what_was_answered_is_there_after_a_failover(tmp_path: Path) -> None:
    async with broker_set(tmp_path, min_in_sync=2) as world:
        old = await world.whole()
        async with peer_of(old) as peer:
            await peer.create_topic(queues=3)
            group = pb.GroupConfig(name="g", retry_max_times=3, retry_queues=2, consume_enable=True)
            await peer.ask("CreateGroup", pb.CreateGroupRequest(group=group), pb.GroupReply)
        for follower in world.up:
            if follower is not old:
                found = tables_at(follower.path)
                assert found["topics"][TOPIC].read_queues == 3
                assert found["groups"]["g"].retry_times_max == 3
        new = await next_master(world, old)
        async with peer_of(new) as peer:
            asked = pb.DescribeTopicRequest(topic=TOPIC)
            told = await peer.ask("DescribeTopic", asked, pb.DescribeTopicReply)
            assert told.topic.read_queues == 3
            groups = await peer.ask("ListGroups", pb.GroupListRequest(), pb.GroupListReply)
            assert [one.retry_max_times for one in groups.groups if one.name == "g"] == [3]


async def test_a_message_of_all_replicas_has_its_topic_after_a_failover(tmp_path: Path) -> None:
    """The topic is made by the send; the next master knows it."""
    async with broker_set(tmp_path, min_in_sync=3) as world:
        old = await world.whole()
        async with peer_of(old) as peer:
            await peer.produce(run_of([b"one"], durability=pb.REPLICAS))
        new = await next_master(world, old)
        async with peer_of(new) as peer:
            assert (await peer.fetch()).records


async def test_a_group_that_was_moved_back_stands_there_after_a_failover(tmp_path: Path) -> None:
    async with broker_set(tmp_path, min_in_sync=2) as world:
        old = await world.whole()
        async with peer_of(old) as peer:
            await peer.create_topic()
            await peer.produce(run_of([b"m"] * 9, durability=pb.REPLICAS))
            await commit(peer, 9)
            await commit(peer, 2, force=True)
        new = await next_master(world, old)
        async with peer_of(new) as peer:
            assert await ask_offset(peer) == 2


async def test_a_group_that_was_deleted_has_no_statistics_on_followers(tmp_path: Path) -> None:
    async with broker_set(tmp_path, min_in_sync=3) as world:
        master = await world.whole()
        followers = [member for member in world.up if member is not master]

        def counted() -> list[bool]:
            return [("g", TOPIC, 0) in tables_at(one.path)["statistics"] for one in followers]

        async with peer_of(master) as peer:
            await peer.create_topic()
            await peer.produce(run_of([b"m"] * 9, durability=pb.REPLICAS))
            group = pb.GroupConfig(name="g", retry_queues=1, consume_enable=True)
            for _ in range(5):
                await peer.ask("CreateGroup", pb.CreateGroupRequest(group=group), pb.GroupReply)
                wanted = pb.Filter(kind=pb.Filter.TAG, expression="none")
                request = pb.FetchRequest(
                    fetch_id=1, topic=TOPIC, group="g", max_messages=9, filter=wanted
                )
                assert (await peer.fetch_of(request)).filtered_count == 9
                await until(lambda: all(counted()))

                gone = pb.DeleteGroupRequest(group="g")
                await peer.ask("DeleteGroup", gone, pb.DeleteGroupReply)

                assert not any(counted())


async def test_a_tenth_of_a_second_of_progress_comes_again_at_most(tmp_path: Path) -> None:
    async with broker_set(tmp_path, min_in_sync=2) as world:
        old = await world.whole()
        committed: list[tuple[float, int]] = []
        now = asyncio.get_running_loop().time
        async with peer_of(old) as peer:
            await peer.create_topic()
            await peer.produce(run_of([b"m"] * 90, durability=pb.REPLICAS))
            for offset in range(1, 61):
                await commit(peer, offset)
                committed.append((now(), offset))
                await asyncio.sleep(0.01)
            killed = now()
            new = await next_master(world, old)
        async with peer_of(new) as peer:
            found = await ask_offset(peer)
        # All happens on this loop: on a machine that is busy ticks come as late as commits do.
        late = max(after - at for (at, _), (after, _) in pairwise(committed))
        safe = max((offset for at, offset in committed if at < killed - 0.3 - 3 * late), default=0)
        assert safe <= found <= 60


async def test_nothing_comes_again_after_a_hand_over_which_waits_for_no_regular_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_sink, "_SAVE_MS", 3_600_000)
    monkeypatch.setattr(node, "_STATE_MS", 3_600_000)
    async with broker_set(tmp_path, min_in_sync=2) as world:
        old = await world.whole()
        async with peer_of(old) as peer:
            await peer.create_topic()
            await peer.produce(run_of([b"m"] * 90, durability=pb.REPLICAS))
            await commit(peer, 30)
            other = next(one for one in world.up if one is not old)
            await until(lambda: old.running.has_state(other.id))
            await commit(peer, 60)
        await old.node.hand_over(other.id, 10_000)
        assert await world.master() is other
        async with peer_of(other) as peer:
            assert await ask_offset(peer) == 60


async def test_a_broker_alone_finds_the_tables_on_a_followers_store(tmp_path: Path) -> None:
    async with broker_set(tmp_path, min_in_sync=2) as world:
        master = await world.whole()
        async with peer_of(master) as peer:
            await peer.create_topic(queues=3)
            await peer.produce(run_of([b"m"] * 9, durability=pb.REPLICAS))
            await commit(peer, 5, force=True)
        follower = next(one for one in world.up if one is not master)
        await follower.stop()
    async with broker(follower.config) as (_, alone):
        told = await alone.ask(
            "DescribeTopic", pb.DescribeTopicRequest(topic=TOPIC), pb.DescribeTopicReply
        )
        assert told.topic.read_queues == 3
        assert await ask_offset(alone) == 5


async def test_who_comes_back_has_what_happened_meanwhile_before_it_is_in_sync(
    tmp_path: Path,
) -> None:
    async with broker_set(tmp_path) as world:
        master = await world.whole()
        away = next(one for one in world.up if one is not master)
        await away.kill()
        async with peer_of(master) as peer:
            await peer.create_topic()
        await away.start()
        assert await world.whole() is master
        assert TOPIC in tables_at(away.path)["topics"]


@pytest.mark.parametrize("count", [1, 2, 7])
async def test_a_topic_that_is_made_anew_begins_anew_on_followers(
    tmp_path: Path, count: int
) -> None:
    async with broker_set(tmp_path, min_in_sync=3) as world:
        old = await world.whole()
        async with peer_of(old) as peer:
            await peer.create_topic()
            for queue in range(2):
                await peer.produce(run_of([b"of before"] * 5, queue=queue, durability=pb.REPLICAS))
            asked = pb.DeleteTopicRequest(topic=TOPIC)
            await peer.ask("DeleteTopic", asked, pb.DeleteTopicReply)
            await peer.create_topic()
            await peer.produce(run_of([b"new"] * count, durability=pb.REPLICAS))
        await world.whole()
        for member in world.up:
            assert bodies_of(member.store, TOPIC, 0) == [b"new"] * count
        await until(lambda: not any(bodies_of(one.store, TOPIC, 1) for one in world.up))
        new = await next_master(world, old)
        assert bodies_of(new.store, TOPIC, 0) == [b"new"] * count


async def test_lag_is_read_from_the_store_of_a_follower_while_it_follows(tmp_path: Path) -> None:
    async with broker_set(tmp_path, min_in_sync=2) as world:
        master = await world.whole()
        async with peer_of(master) as peer:
            await peer.create_topic(queues=1)
            await peer.produce(run_of([b"m"] * 9, durability=pb.REPLICAS))
            await commit(peer, 4, force=True)
        await world.whole()
        lags = []
        for member in world.up:
            location = StoreLocation(str(member.path), str(member.path), "broker-a")
            given = {"mappedFileSizeCommitLog": "4096", "mappedFileSizeConsumeQueue": "400"}
            now_ms = world.clock.unix_ms()
            rows = store_rows(open_cold(location, now_ms=now_ms, given=given), now_ms)
            lags += [row.lag for row in rows if row.facts.topic == TOPIC]
        assert lags == [5, 5, 5]


@pytest.mark.long
async def test_delayed_messages_are_delivered_once_by_one_master_or_the_next(
    tmp_path: Path,
) -> None:
    store = {"delay_levels": "1s 4s", "timer_precision_ms": 100}
    async with broker_set(tmp_path, store=store, min_in_sync=2) as world:
        old = await world.whole()
        async with peer_of(old) as peer:
            await peer.create_topic()
            await peer.produce(
                run(
                    ("timed soon", {"TIMER_DELAY_MS": "500"}),
                    ("timed late", {"TIMER_DELAY_MS": "4000"}),
                    ("level soon", {"DELAY": "1"}),
                    ("level late", {"DELAY": "2"}),
                )
            )
        await until(lambda: len(bodies_of(old.store, TOPIC, 0)) == 2)
        await asyncio.sleep(0.6)  # The slot is over by then, and followers have heard of it.
        new = await next_master(world, old)
        await until(lambda: new.is_master and len(bodies_of(new.store, TOPIC, 0)) >= 4)
        await asyncio.sleep(0.5)
        found = sorted(bodies_of(new.store, TOPIC, 0))
        assert found == [b"level late", b"level soon", b"timed late", b"timed soon"]


async def test_deliveries_go_on_where_they_were(tmp_path: Path) -> None:
    async with broker_set(tmp_path, min_in_sync=2) as world:
        old = await world.whole()
        async with peer_of(old) as peer:
            await peer.create_topic(queues=1)
            await peer.produce(run(*((f"m{number}", {}) for number in range(4))))
        caller = Caller(broker_of(old).address)
        got = {one.body: one for one in await asyncio.to_thread(caller.receive)}
        assert set(got) == {b"m0", b"m1", b"m2", b"m3"}
        await asyncio.to_thread(caller.acknowledge, got[b"m1"])
        caller.channel.close()
        await asyncio.sleep(0.5)
        new = await next_master(world, old)
        running = broker_of(new)._running
        assert running is not None
        pops = running.parts.pops
        assert pops.in_flight == 3
        caller = Caller(broker_of(new).address)
        await asyncio.to_thread(caller.acknowledge, got[b"m0"])
        assert pops.in_flight == 2
        caller.channel.close()


async def test_what_was_delivered_of_a_second_does_not_come_again(tmp_path: Path) -> None:
    async with broker_set(tmp_path, min_in_sync=2) as world:
        old = await world.whole()
        second = (world.clock.unix_ms() // 1_000 + 2) * 1_000
        soon = [f"soon {number}" for number in range(20)]
        late = [f"late {number}" for number in range(20)]
        async with peer_of(old) as peer:
            await peer.create_topic()
            due = [(name, {"TIMER_DELIVER_MS": str(second + 50)}) for name in soon]
            due += [(name, {"TIMER_DELIVER_MS": str(second + 999)}) for name in late]
            await peer.produce(run(*due))
        others = [one for one in world.up if one is not old]
        await until(lambda: all(one.store.timers.begun for one in others))
        begun_ms = world.clock.unix_ms()
        new = await next_master(world, old)
        await until(lambda: new.is_master and len(bodies_of(new.store, TOPIC, 0)) >= 40)
        await asyncio.sleep(0.3)
        if begun_ms < second + 900:  # On a machine that is very busy the second was over.
            found = [body.decode() for body in bodies_of(new.store, TOPIC, 0)]
            assert sorted(found) == sorted([*soon, *late])
