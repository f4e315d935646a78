"""Replica sets in one process, over real sockets and stores: what is acknowledged is everywhere, and stays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from pocketmq.broker.replication.device import ReplicaDevice
from pocketmq.broker.replication.in_sync import InSync
from pocketmq.broker.replication.links import FollowerLink
from pocketmq.broker.replication.mastership import Mastership
from pocketmq.broker.replication.registry import LiveNode
from pocketmq.broker.replication.replica_state import ReplicaState
from pocketmq.broker.replication.running import TICK_MS
from pocketmq.proto.errors import ConfigError, DiskFailure, MasterFenced, NotEnoughReplicas
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import EOF, CallFailed, Channel, StreamCall, connect
from pocketmq.store.disk import DiskUsage
from pocketmq.store.os_disk import OsDisk

from ...free_ports import free_ports
from ...runs import bodies_of, open_store, small_config
from ...waiting import until
from .replica_set import Member, replica_set

pytestmark = pytest.mark.slow

MOVE = "/pocketmq.v1.Replication/MoveMaster"


async def test_what_is_acknowledged_is_on_all_replicas_byte_for_byte(tmp_path: Path) -> None:
    async with replica_set(tmp_path, min_in_sync=2) as world:
        master = await world.whole()
        for number in range(50):
            replicas = await master.roles.send(b"%d" % number * 100)
            assert replicas == 3
        await world.whole()
        end = master.store.max_log_offset
        assert end > 3 * master.config.log_file_size_bytes
        assert {member.log(end) for member in world.up} == {master.log(end)}
        assert {member.store.queue_bounds("A", 0) for member in world.up} == {(0, 50)}


async def test_another_replica_is_elected_when_the_master_is_killed_and_it_comes_back(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path, min_in_sync=2) as world:
        old = await world.whole()
        assert await old.roles.send(b"one") == 3
        await old.kill()

        new = await world.master()
        assert new is not old
        assert world.cell.epoch == 2
        assert await new.roles.send(b"two") == 2
        await old.start()
        assert await world.whole() is new
        end = new.store.max_log_offset
        assert {member.log(end) for member in world.up} == {new.log(end)}
        assert old.store.queue_bounds("A", 0) == (0, 2)


async def test_what_only_an_old_master_had_is_cut(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as world:
        old = await world.whole()
        assert await old.roles.send(b"kept") == 3
        whole = old.store.max_log_offset
        await world.whole()
        old.mute()
        for number in range(20):
            old.roles.append(b"lost %d" % number * 50)
        assert old.store.max_log_offset > whole
        await old.kill()

        new = await world.master()
        assert new.store.max_log_offset == whole
        assert await new.roles.send(b"new") == 2
        await old.start()
        await world.whole()
        end = new.store.max_log_offset
        assert {member.log(end) for member in world.up} == {new.log(end)}
        assert bodies_of(old.store, "A", 0) == [b"kept", b"new"]


async def test_a_master_whose_session_ends_is_fenced_and_may_stand_again(tmp_path: Path) -> None:
    async with replica_set(tmp_path, min_in_sync=2) as world:
        master = await world.whole()
        leadership = master.roles.mastership
        assert leadership is not None
        master.expire()
        await until(lambda: world.cell.epoch == 2)
        await until(lambda: is_fenced(leadership))
        assert await (await world.whole()).roles.send(b"one") == 3


async def test_a_master_that_the_registry_does_not_answer_refuses_what_only_it_would_answer(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path, session_ms=300) as world:
        master = await world.whole()
        leadership = master.roles.mastership
        assert leadership is not None
        assert not is_fenced(leadership)
        world.registry_is_away = True
        await until(lambda: is_fenced(leadership))
        world.registry_is_away = False
        await until(lambda: not is_fenced(leadership))
        assert world.cell.epoch == 1


async def test_a_new_master_is_followed_while_the_old_one_does_not_answer(tmp_path: Path) -> None:
    async with replica_set(tmp_path, min_in_sync=2) as world:
        old = await world.whole()
        dialled: list[int] = []

        def dial(member: Member, address: str) -> Channel:
            if address != f"127.0.0.1:{old.port}":
                return connect(address)
            dialled.append(member.id)
            return cast(Channel, Unreached())

        others = [member for member in world.up if member is not old]
        for member in others:
            member.dial = partial(dial, member)
        await old.close_port()
        await until(lambda: set(dialled) == {member.id for member in others})
        await old.kill()

        new = await world.master()
        assert new is not old
        await until(lambda: world.cell.in_sync == {member.id for member in others})
        assert await new.roles.send(b"one") == 2


class Unreached:
    """A channel to a machine that is cut off: it is never connected, and nothing tells."""

    def stream_stream(self, *_: object) -> Callable[[], Unreached]:
        return lambda: self

    async def wait_for_connection(self) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        """See `stream_stream`: the call is cancelled."""

    async def close(self) -> None:
        """Nothing was open."""


async def test_who_waits_for_replicas_is_sent_off_once_another_may_be_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica_set(tmp_path, count=2, session_ms=3_000) as world:
        master = await world.whole()
        # No link, not even one that a follower opens later, sends what the log holds.
        monkeypatch.setattr(FollowerLink, "_send_next", lambda self: None)
        waiting = asyncio.ensure_future(master.roles.send(b"one"))
        await asyncio.sleep(0)
        world.registry_is_away = True
        with pytest.raises(MasterFenced, match="got no answer from ZooKeeper for 2000 ms"):
            async with asyncio.timeout(60):
                await waiting


def is_fenced(leadership: Mastership) -> bool:
    """Is it refused to answer as master?"""
    try:
        leadership.check_master()
    except MasterFenced:
        return True
    return False


async def test_who_has_no_place_in_the_set_is_told_why(tmp_path: Path) -> None:
    async with replica_set(tmp_path, count=2) as world:
        master = await world.whole()
        one, two = world.members.values()
        other = two if master is one else one
        await other.stop()

        stranger = Member(world, 7, tmp_path / "7", free_ports(1)[0])
        with pytest.raises(ConfigError, match="has the replicas 1, 2, and no replica 7"):
            await stranger.start()
        moved = Member(world, other.id, tmp_path / "moved", free_ports(1)[0])
        with pytest.raises(ConfigError, match="in the metadata of the set, but this one is at"):
            await moved.start()
        twin = Member(world, master.id, tmp_path / "twin", master.port)
        with pytest.raises(ConfigError, match="runs already, at"):
            await twin.node_only(client_address="127.0.0.1:1").start()
        with pytest.raises(ConfigError, match="runs already, at"):
            await twin.node_only().start()  # At the same address, as behind a proxy: by its store.
        thief = Member(world, other.id, master.path, other.port)
        with pytest.raises(ConfigError, match=f"is the store of replica {master.id}"):
            await thief.start()
        world.ensemble.history.clear()
        with pytest.raises(ConfigError, match="there is no replica set 'orders' in cluster 'c'"):
            await other.start()


async def test_a_replica_whose_id_another_process_has_taken_waits_and_does_not_stand(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica_set(tmp_path, count=2) as world:
        master = await world.whole()
        (other,) = (one for one in world.members.values() if one is not master)
        assert other.node.is_live
        twin = world.ensemble.open()

        other.expire()
        node = LiveNode(address="127.0.0.1:1", epoch=0, end=0)
        world.ensemble.announce(twin, other.id, node)
        await until(lambda: other.node.refused is not None)
        assert not other.node.is_live
        await master.stop()
        core = other.running.core
        assert not core.may_be_candidate(world.cell)
        assert "live node refused by the metadata store" in caplog.text

        world.ensemble.expire(twin)
        await until(lambda: other.node.is_live and other.is_master)
        assert other.node.refused is None


async def test_a_replica_with_files_of_another_size_is_refused_and_told_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica_set(tmp_path, count=2) as world:
        master = await world.whole()
        other = next(one for one in world.up if one is not master)
        await other.stop()
        other.config = small_config(tmp_path / "other", log_file_size_bytes=8192)
        await other.start()
        await until(lambda: "file_size is 8192, and this replica's is 4096" in caplog.text)
        assert other.store.max_log_offset == 0


async def test_a_master_hands_over_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    async with replica_set(tmp_path, min_in_sync=2) as world:
        old = await world.whole()
        assert await old.roles.send(b"one") == 3
        to = next(one for one in world.up if one is not old)
        async with connect(f"127.0.0.1:{old.port}") as channel:
            move = channel.unary_unary(
                MOVE, pb.MoveMasterRequest.SerializeToString, pb.MoveMasterReply.FromString
            )
            reply = await move(pb.MoveMasterRequest(set="orders", to=to.id), timeout=10)
        assert reply.epoch == 2
        assert reply.refused_ms < 10_000
        assert await world.whole() is to
        assert world.cell.epoch == 3
        assert await to.roles.send(b"two") == 3
        assert [type(error) for error in old.roles.fenced] == [MasterFenced]


async def test_nothing_is_refused_for_a_replica_that_cannot_be_handed_over_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica_set(tmp_path) as world:
        master = await world.whole()
        to = next(one for one in world.up if one is not master)
        monkeypatch.setattr(InSync, "may_enter", lambda *_: False)
        await to.stop()
        await until(lambda: to.id not in world.cell.in_sync)
        await to.start()
        leadership = master.running.leadership
        assert leadership is not None
        await until(lambda: leadership.behind(to.id) == 0)

        moving = asyncio.ensure_future(master.node.hand_over(to.id, 300))
        while not moving.done():
            assert not leadership.transfer_to, "it is refused meanwhile"
            await asyncio.sleep(0.01)

        with pytest.raises(NotEnoughReplicas, match="was not in sync"):
            await moving


async def test_who_waits_for_replicas_when_a_hand_over_begins_is_answered_before_it_ends(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path, min_in_sync=2, session_ms=60_000) as world:
        old = await world.whole()
        to = next(one for one in world.up if one is not old)
        leadership = old.running.leadership
        assert leadership is not None
        sent: list[asyncio.Future[int]] = []
        for _ in range(20):
            sent = [asyncio.ensure_future(old.roles.send(b"x" * 100)) for _ in range(20)]
            await asyncio.sleep(0)
            if leadership.is_awaited:
                break
            await asyncio.gather(*sent)
        moving = asyncio.ensure_future(old.node.hand_over(to.id, 60_000))
        await until(lambda: bool(leadership.transfer_to))
        with pytest.raises(MasterFenced, match="transfers leadership"):
            leadership.check_open()

        assert await asyncio.gather(*sent) == [3] * len(sent)
        await moving
        assert world.cell.master == to.id


async def test_a_master_that_stops_hands_over_first(tmp_path: Path) -> None:
    async with replica_set(tmp_path, min_in_sync=2, session_ms=60_000) as world:
        old = await world.whole()
        assert await old.roles.send(b"one") == 3
        await old.stop()
        assert old.roles.left == ["open"], "the store is closed when the broker has stopped"
        new = await world.whole()
        assert world.cell.epoch == 3
        assert await new.roles.send(b"two") == 2


async def test_what_is_asked_of_another_set_or_replica_is_refused(tmp_path: Path) -> None:
    async with replica_set(tmp_path, count=2) as world:
        master = await world.whole()
        other = next(one for one in world.up if one is not master)

        async def move(asked: Member, set_name: str, to: int) -> str:
            async with connect(f"127.0.0.1:{asked.port}") as channel:
                call = channel.unary_unary(
                    MOVE, pb.MoveMasterRequest.SerializeToString, pb.MoveMasterReply.FromString
                )
                with pytest.raises(CallFailed) as failed:
                    await call(pb.MoveMasterRequest(set=set_name, to=to), timeout=10)
            return failed.value.details()

        assert "set is 'others', but this replica's is 'orders'" in await move(master, "others", 2)
        assert "to is 9: must be one of" in await move(master, "orders", 9)
        assert "is not the master" in await move(other, "orders", master.id)


async def test_a_follower_that_is_behind_the_masters_log_sets_its_store_aside_and_takes_it_whole(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path, count=2) as world:
        master = await world.whole()
        other = next(one for one in world.up if one is not master)
        await master.roles.send(b"old")
        await other.stop()
        await until(lambda: world.cell.in_sync == {master.id})
        for number in range(100):
            master.roles.append(b"%d" % number * 50)
        begin = 2 * master.config.log_file_size_bytes
        assert master.store.delete_before(begin) == 2

        await other.start()
        assert await world.whole() is master
        assert other.store.min_log_offset == begin
        end = master.store.max_log_offset
        assert other.log(end) == master.log(end)
        assert not other.running.core.unclean
        assert kept_in(tmp_path, f"{other.id}.set-aside-*") == [b"old"]


def kept_in(folder: Path, pattern: str) -> list[bytes]:
    """Return what the one store in FOLDER with a name of PATTERN holds."""
    (path,) = folder.glob(pattern)
    store = open_store(path)
    found = bodies_of(store, "A", 0)
    store.close()
    return found


async def test_followers_keep_what_their_master_has_however_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_full = DiskUsage(used_bytes=50, usable_bytes=50)
    monkeypatch.setattr(OsDisk, "usage", lambda *_: half_full)
    expired = {"retention_ms": 1, "disk_expire_percent": 1, "clean_interval_ms": 100}
    async with replica_set(tmp_path, count=2, store=expired) as world:
        master = await world.whole()
        other = next(one for one in world.up if one is not master)
        for number in range(100):
            master.roles.append(b"%d" % number * 50)
        await world.whole()
        size = master.config.log_file_size_bytes
        assert master.store.delete_before(size) == 1
        await until(lambda: other.store.min_log_offset == size)
        for _ in range(5):
            other.running._due_ms["clean"] = 0
            await asyncio.sleep(TICK_MS / 1000)
        assert other.store.min_log_offset == size


async def test_a_follower_whose_disk_is_full_leaves_the_set_and_comes_back(tmp_path: Path) -> None:
    async with replica_set(tmp_path, replica_lag_ms=500) as world:
        master = await world.whole()
        other = next(one for one in world.up if one is not master)
        other.store.health.set_full("the disk is full")
        send = asyncio.ensure_future(master.roles.send(b"waits for the set to shrink"))
        await until(lambda: world.cell.in_sync == world.members.keys() - {other.id})
        assert await send == 2
        await until(lambda: other.is_up and other.running.core.end == master.store.max_log_offset)
        await world.whole()
        assert await master.roles.send(b"again") == 3


async def test_a_replica_that_is_stopped_while_it_begins_again_leaves_its_store_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica_set(tmp_path, count=2) as world:
        master = await world.whole()
        other = next(one for one in world.up if one is not master)
        opening, may_open = threading.Event(), threading.Event()
        real = ReplicaDevice.open

        def slow_open(device: ReplicaDevice, *, was_led: bool) -> ReplicaState:
            opening.set()
            assert may_open.wait(10)
            return real(device, was_led=was_led)

        monkeypatch.setattr(ReplicaDevice, "open", slow_open)
        other.store.health.fail(DiskFailure("a device that fails once"))
        await until(opening.is_set)
        stopped = asyncio.ensure_future(other.stop())
        await asyncio.sleep(0.05)
        may_open.set()
        await stopped
        await other.start()
        await world.whole()


@pytest.mark.parametrize("how", ["epoch_seen", "ack"])
async def test_a_malformed_frame_with_a_huge_epoch_changes_nothing_in_the_set(
    tmp_path: Path, how: str
) -> None:
    async with replica_set(tmp_path, min_in_sync=2) as world:
        master = await world.whole()
        victim = next(one for one in world.up if one is not master)
        mine = master.node.settings
        hello = pb.FollowHello(
            cluster=mine.cluster,
            set=mine.set_name,
            replica_id=victim.id,
            file_size=mine.file_size,
            epoch_seen=2**31 - 1 if how == "epoch_seen" else 1,
        )
        for one in world.up:
            async with connect(f"127.0.0.1:{one.port}") as channel:
                call = channel.stream_stream(
                    "/pocketmq.v1.Replication/Follow",
                    pb.FollowRequest.SerializeToString,
                    pb.FollowReply.FromString,
                )()
                await call.write(pb.FollowRequest(hello=hello))
                if how == "ack":
                    ack = pb.FollowAck(epoch=2**31 - 1, written=0, synced=0)
                    await call.write(pb.FollowRequest(ack=ack))
                with pytest.raises(CallFailed):
                    await read_all(call)

        assert await world.whole() is master
        assert await master.roles.send(b"one") == 3
        assert world.cell.epoch == 1
        for one in list(world.up):
            await one.stop()
            await one.start()
        assert await (await world.whole()).roles.send(b"two") == 3


async def read_all(call: StreamCall) -> None:
    while await call.read() is not EOF:
        pass


async def test_a_hand_over_does_not_wait_without_end(tmp_path: Path) -> None:
    async with replica_set(tmp_path, count=2) as world:
        master = await world.whole()
        other = next(one for one in world.up if one is not master)
        async with connect(f"127.0.0.1:{master.port}") as channel:
            move = channel.unary_unary(
                MOVE, pb.MoveMasterRequest.SerializeToString, pb.MoveMasterReply.FromString
            )
            for timeout_ms in (-1, 2**31 - 1):
                request = pb.MoveMasterRequest(set="orders", to=other.id, timeout_ms=timeout_ms)
                with pytest.raises(CallFailed) as failed:
                    await move(request, timeout=10)
                assert f"timeout_ms is {timeout_ms}" in failed.value.details()
        assert await master.roles.send(b"one") == 2
