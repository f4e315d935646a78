"""What goes wrong around a whole broker: the disk, the port, a second broker. Each is told, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import ConfigError, DiskFailure, StoreFull, StoreLocked
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record_run import parse_run, walk
from pocketmq.store.os_disk import OsDisk

from ..fakes import FaultyDisk
from ..served import broker_config
from .whole_broker import Peer, broker, run_of, store_config


async def bodies_of(peer: Peer) -> list[bytes]:
    data = (await peer.fetch()).records
    starts, _ = walk(data)
    columns = parse_run(data, starts)
    return [
        data[begin : begin + size]
        for begin, size in zip(columns.body_start, columns.body_size, strict=True)
    ]


async def test_the_second_broker_on_a_store_refuses(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        second = Broker.build(
            broker_config(port=0, nameservers=()),
            store_config(tmp_path),
            disk=OsDisk(),
            clock=SystemClock(),
        )

        with pytest.raises(StoreLocked, match="store"):
            await second.start()
        await second.stop()

        await peer.produce(run_of([b"one"]))
        assert await bodies_of(peer) == [b"one"]


async def test_a_port_in_use_is_named_and_the_store_is_let_go(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path / "first")) as (first, _):
        port = int(first.address.rpartition(":")[2])
        second = Broker.build(
            broker_config(port=port, nameservers=()),
            store_config(tmp_path / "second"),
            disk=OsDisk(),
            clock=SystemClock(),
        )
        with pytest.raises(ConfigError, match=f"{port}: Address already in use"):
            await second.start()
        await second.stop()

        async with broker(store_config(tmp_path / "second")) as (_, peer):
            await peer.create_topic()
            await peer.produce(run_of([b"one"]))


async def test_a_full_disk_refuses_sends_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with broker(store_config(tmp_path), disk=disk) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"one"]))
        disk.run_full("commitlog")

        refused = await peer.refusal(run_of([b"two"]))

        assert isinstance(refused, StoreFull), refused
        assert "space" in refused.message or "full" in refused.message
        assert await bodies_of(peer) == [b"one"]

    disk.heal()
    async with broker(store_config(tmp_path), disk=disk) as (_, peer):
        assert await bodies_of(peer) == [b"one"]
        await peer.produce(run_of([b"three"]))
        assert await bodies_of(peer) == [b"one", b"three"]


async def test_a_failed_write_stops_acknowledging_until_a_restart(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with broker(store_config(tmp_path), disk=disk) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"one"]))
        disk.torn_write = 40
        disk.break_writes("commitlog")
        assert isinstance(await peer.refusal(run_of([b"two"])), DiskFailure)
        disk.heal()

        again = await peer.refusal(run_of([b"three"]))

        assert "input/output error" in again.message or "restart" in again.message, again
        status = await peer.ask("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)
        assert not status.writable
        assert status.not_writable_because

    async with broker(store_config(tmp_path), disk=disk) as (_, peer):
        assert await bodies_of(peer) == [b"one"]
        await peer.produce(run_of([b"four"]))
        assert await bodies_of(peer) == [b"one", b"four"]


async def test_a_failed_sync_is_never_acknowledged_and_stops_the_writes(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with broker(store_config(tmp_path), disk=disk) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"one"], durability=pb.DISK))
        disk.break_syncs("commitlog")

        refused = await peer.refusal(run_of([b"two"], durability=pb.DISK))
        assert isinstance(refused, DiskFailure), refused
        disk.heal()
        again = await peer.refusal(run_of([b"three"]))
        assert isinstance(again, DiskFailure), again

    async with broker(store_config(tmp_path), disk=disk) as (_, peer):
        assert (await bodies_of(peer))[0] == b"one"
        reply = await peer.produce(run_of([b"four"], durability=pb.DISK))
        assert reply.durability == pb.DISK


async def test_above_the_limit_of_the_disk_writes_are_refused_and_reads_go_on(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    disk.used_percent = 50
    async with broker(store_config(tmp_path), disk=disk) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"one"]))

    disk.used_percent = 95
    async with broker(store_config(tmp_path), disk=disk) as (_, peer):
        refused = await peer.refusal(run_of([b"two"]))

        assert isinstance(refused, StoreFull), refused
        assert "90" in refused.message
        assert await bodies_of(peer) == [b"one"]
