"""What a broker does by the clock, driven by one that is moved by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import StoreFull
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.state_tables import parse_consumer_offsets

from ..fakes import FaultyDisk
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
        assert "periodic work failed" in caplog.text
        disk.heal()

        await clock.advance(5_000)

        assert parse_consumer_offsets(file.read_text()).offsets == {f"{TOPIC}@g": {0: 0}}


async def test_what_memory_acknowledged_is_on_the_device_within_the_interval(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock) as (server, peer):
        await peer.create_topic()
        flushed = asyncio.Event()
        server.store.on_flushed(lambda offset: flushed.set())
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
