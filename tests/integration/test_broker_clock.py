"""What a broker does by the clock, driven by one that is moved by hand."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.errors import InvalidArgument, StoreFull, StoreMismatch, Unsupported
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.format.state_tables import parse_consumer_offsets

from ..fakes import FaultyDisk
from .test_broker import until
from .whole_broker import TOPIC, Peer, broker, run_of, store_config


async def commit(peer: Peer, offset: int) -> None:
    offsets = [pb.GroupOffset(topic=TOPIC, queue=0, offset=offset)]
    request = pb.CommitOffsetsRequest(group="g", offsets=offsets)
    await peer.ask("CommitOffsets", request, pb.CommitOffsetsReply)


async def test_committed_offsets_are_saved_every_five_seconds(tmp_path: Path) -> None:
    clock = VirtualClock()
    file = tmp_path / "store" / "config" / "consumerOffset.json"
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"a", b"b"]))
        await commit(peer, 2)
        assert not file.exists()

        await clock.advance(5_000)

        await until(file.exists)  # Once the log is on the device, which a thread sees to.
        assert parse_consumer_offsets(file.read_text()).offsets == {f"{TOPIC}@g": {0: 2}}


async def test_a_save_that_fails_is_told_and_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, disk = VirtualClock(), FaultyDisk()
    file = tmp_path / "store" / "config" / "consumerOffset.json"
    async with broker(store_config(tmp_path), clock=clock, disk=disk) as (_, peer):
        await peer.create_topic()
        await commit(peer, 0)
        disk.break_writes("consumerOffset")
        await clock.advance(5_000)
        await until(lambda: "offsets not saved" in caplog.text)
        disk.heal()

        await clock.advance(5_000)

        await until(file.exists)
        assert parse_consumer_offsets(file.read_text()).offsets == {f"{TOPIC}@g": {0: 0}}


async def test_what_memory_acknowledged_is_on_the_device_within_the_interval(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock) as (server, peer):
        await peer.create_topic()
        flushed = asyncio.Event()
        server.store.events.flushed.append(lambda offset: flushed.set())
        await peer.produce(run_of([b"a"]))
        assert server.store.flushed_offset < server.store.max_log_offset

        await clock.advance(500)
        await flushed.wait()

        assert server.store.flushed_offset == server.store.max_log_offset


async def test_a_disk_that_fills_up_is_noticed_and_forgiven(tmp_path: Path) -> None:
    clock, disk = VirtualClock(), FaultyDisk()
    disk.used_percent = 50
    async with broker(store_config(tmp_path), clock=clock, disk=disk) as (_, peer):
        await peer.create_topic()
        disk.used_percent = 91
        await clock.advance(10_000)

        assert isinstance(await peer.refusal(run_of([b"a"])), StoreFull)

        disk.used_percent = 60
        await clock.advance(10_000)
        await peer.produce(run_of([b"b"]))


# ---------------------------------------------------------------- moving the time, and the store that says so


async def test_time_is_told_and_moved_over_the_wire(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock, wall=SystemClock()) as (server, peer):
        before = await peer.ask("Now", pb.ClockRequest(), pb.ClockReply)
        moved = await peer.ask(
            "AdvanceClock", pb.AdvanceClockRequest(by_ms=7_200_000), pb.ClockReply
        )
        await peer.create_topic()
        stored_ms = (await peer.produce(run_of([b"a"]))).store_timestamp_ms

        assert before == pb.ClockReply(now_ms=1_700_000_000_000, virtual=True)
        assert moved == pb.ClockReply(now_ms=1_700_007_200_000, virtual=True)
        assert stored_ms == moved.now_ms
        assert await server.advance("1m") == moved.now_ms + 60_000
        with pytest.raises(InvalidArgument, match="by_ms is -1"):
            await peer.ask("AdvanceClock", pb.AdvanceClockRequest(by_ms=-1), pb.ClockReply)


async def test_the_machine_s_time_is_told_and_not_moved(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (server, peer):
        now = await peer.ask("Now", pb.ClockRequest(), pb.ClockReply)

        assert abs(now.now_ms - SystemClock().now_ms()) < 60_000
        assert not now.virtual
        with pytest.raises(Unsupported, match="--clock virtual"):
            await peer.ask("AdvanceClock", pb.AdvanceClockRequest(by_ms=1), pb.ClockReply)
        with pytest.raises(Unsupported):
            await server.advance("1s")
    assert not (tmp_path / "store" / "pocketmq" / "clock.json").exists()


@pytest.mark.long
async def test_a_store_of_virtual_time_goes_on_where_it_stood_and_refuses_the_machine_s(
    tmp_path: Path,
) -> None:
    store = store_config(tmp_path)
    async with broker(store, clock=VirtualClock()) as (server, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"a"]))
        stood_ms = await server.advance("5h")

    with pytest.raises(StoreMismatch, match="2023-11-15 03:13:20"):
        async with broker(store, clock=SystemClock()):
            pass

    async with broker(store, clock=VirtualClock()) as (server, peer):
        now = await peer.ask("Now", pb.ClockRequest(), pb.ClockReply)
        assert now.now_ms == stood_ms
        assert server.recovery.clean


@pytest.mark.long
async def test_without_its_own_folder_a_store_of_virtual_time_has_lost_nothing(
    tmp_path: Path,
) -> None:
    store = store_config(tmp_path)
    async with broker(store, clock=VirtualClock()) as (server, peer):
        await peer.create_topic()
        await server.advance("5h")
        await peer.produce(run_of([b"a", b"b"]))
    shutil.rmtree(tmp_path / "store" / "pocketmq")

    clock = VirtualClock()
    async with broker(store, clock=clock) as (_, peer):
        assert clock.now_ms() == 1_700_000_000_000 + 5 * 3_600_000
        assert (await peer.fetch()).next_offset == 2


@pytest.mark.long
async def test_hours_of_an_idle_broker_pass_in_no_time(tmp_path: Path) -> None:
    """4 h 46 min, all 16 retries of a message: flushes and saves in between are tens of thousands of instants."""
    async with broker(store_config(tmp_path), clock=VirtualClock()) as (server, peer):
        await peer.create_topic()
        started = asyncio.get_running_loop().time()

        await server.advance("4h46m")

        assert asyncio.get_running_loop().time() - started < 120  # Measured: 1 s.


async def test_moves_while_clients_send_follow_each_other(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock, wall=SystemClock()) as (server, peer):
        await peer.create_topic()

        async def send(number: int) -> int:
            return (await peer.produce(run_of([b"%d" % number]))).store_timestamp_ms

        times = await asyncio.gather(
            *(send(number) for number in range(20)),
            *(server.advance(60_000) for _ in range(20)),
        )

        assert clock.now_ms() == 1_700_000_000_000 + 20 * 60_000
        assert sorted(times[20:]) == list(times[20:])
        assert (await peer.fetch()).next_offset == 20
