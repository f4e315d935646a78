"""Java slaves of our broker: what they are sent and answered, as Apache's source says, and by our own follower."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.client import AsyncAdmin, AsyncProducer, Message
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import ConfigError, ConnectionLost, Unsupported
from pocketmq.proto.remoting.client import RemotingClient, open_tcp
from pocketmq.proto.remoting.codes import RequestCode
from pocketmq.proto.slave_protocol import ClassicFrames, classic_report
from pocketmq.store.checkpoints import TimerCheckpoint
from pocketmq.store.format.java_json import parse
from pocketmq.store.os_disk import OsDisk

from ...free_ports import free_port
from ...runs import small_config
from ...served import broker_config, nameserver_config


@asynccontextmanager
async def serving(path: Path, **settings: Any) -> AsyncIterator[tuple[Broker, str, int]]:
    """Yield a broker that Java slaves may follow, its name server's address, and their port."""
    system = SystemClock()
    names = NameServer.build(nameserver_config(port=0), clock=system)
    await names.start()
    port = free_port()
    config = broker_config(
        port=0, nameservers=(names.address,), java_slaves=True, java_slaves_port=port, **settings
    )
    broker = Broker.build(config, small_config(path), disk=OsDisk(), clock=system)
    await broker.start()
    assert await broker.registered(5)
    try:
        yield broker, names.address, port
    finally:
        await broker.stop()
        await names.stop()


async def log_of(port: int, begin: int, end: int) -> tuple[bytes, int]:
    """Return the log up to END that a slave which has it up to BEGIN is sent, and where that begins."""
    reader, writer = await open_tcp(f"127.0.0.1:{port + 1}", 60)
    writer.write(classic_report(begin))
    frames, got, first = ClassicFrames(), b"", begin
    async with asyncio.timeout(60):
        while first + len(got) < end:
            data = await reader.read(1 << 16)
            assert data
            for frame in frames.feed(data):
                first = frame.offset if not got else first
                assert frame.offset == first + len(got)
                assert len(frame.data) <= 32 << 10
                got += frame.data
                writer.write(classic_report(frame.offset + len(frame.data)))
    writer.close()
    return got, first


def log_bytes(broker: Broker, begin: int, end: int) -> bytes:
    files = broker.store.log.files.files
    whole = b"".join(file.read(0, file.size) for file in files)
    at = begin - files[0].start
    return whole[at : at + end - begin]


async def test_a_slave_is_sent_the_log_from_its_oldest_file_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, address, port):
        async with AsyncProducer(address, acks="disk") as producer:
            for number in range(40):
                await producer.send(Message("T", bytes([number]) * 1000))
        end = broker.store.max_log_offset
        assert len(broker.store.log.files.files) > 2
        for begin in (0, 1, end // 2, end):
            data, first = await log_of(port, begin, end)
            assert (data, first) == (log_bytes(broker, begin, end), begin)
            assert zlib.crc32(data) == zlib.crc32(log_bytes(broker, begin, end))


async def test_what_comes_later_is_sent_once_the_device_has_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, address, port):
        reader, writer = await open_tcp(f"127.0.0.1:{port + 1}", 60)
        writer.write(classic_report(0))
        frames, got, end = ClassicFrames(), b"", 0
        async with AsyncProducer(address, acks="disk") as producer, asyncio.timeout(60):
            for number in range(5):
                await producer.send(Message("T", bytes([number]) * 100))
                end = broker.store.max_log_offset
                while len(got) < end:
                    got += b"".join(frame.data for frame in frames.feed(await reader.read(1 << 16)))
                    assert len(got) <= broker.store.flushed_offset
        writer.close()
        assert got == log_bytes(broker, 0, end)


@pytest.mark.slow
async def test_what_replicas_have_not_agreed_on_is_not_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, address, port):
        async with AsyncProducer(address, acks="disk") as producer:
            for number in range(20):
                await producer.send(Message("T", bytes([number]) * 1000))
        end, confirmed = broker.store.max_log_offset, broker.store.max_log_offset // 2
        broker.store.confirm(confirmed)
        reader, writer = await open_tcp(f"127.0.0.1:{port + 1}", 60)
        writer.write(classic_report(0))
        frames, got = ClassicFrames(), b""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while True:
                    got += b"".join(frame.data for frame in frames.feed(await reader.read(1 << 16)))
        assert got == log_bytes(broker, 0, confirmed)
        broker.store.confirm(None)
        async with asyncio.timeout(60):
            while len(got) < end:
                got += b"".join(frame.data for frame in frames.feed(await reader.read(1 << 16)))
        assert got == log_bytes(broker, 0, end)
        writer.close()


@pytest.mark.parametrize("end", [10_000_000, 2**62])
async def test_a_slave_with_more_than_there_is_is_sent_away(end: int, tmp_path: Path) -> None:
    """Apache's masters believe it, and count it."""
    async with serving(tmp_path) as (_, _, port):
        reader, writer = await open_tcp(f"127.0.0.1:{port + 1}", 60)
        writer.write(classic_report(end))
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


async def test_the_requests_of_a_slave_are_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, address, port):
        async with AsyncAdmin(address) as admin:
            await admin.create_topic("orders", queues=3)
            await admin.create_group("billing", retry_max_times=4)
        for number in (port, port - 2):
            async with await RemotingClient.connect(f"127.0.0.1:{number}") as slave:
                told = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "1"}
                answer = await slave.call(RequestCode.REGISTER_BROKER, told)
                assert answer.fields == {
                    "masterAddr": f"127.0.0.1:{port}",
                    "haServerAddr": f"127.0.0.1:{port + 1}",
                }
                cluster = (await slave.call(106)).body.decode()
                assert f'"brokerAddrs":{{0:"127.0.0.1:{port}"}}' in cluster
                assert '"clusterAddrTable":{"DefaultCluster":["broker-a"]}' in cluster
                topics: Any = parse((await slave.call(21)).body.decode())
                assert topics["topicConfigTable"]["orders"]["readQueueNums"] == 3
                assert topics["topicConfigTable"]["TBW102"]["perm"] == 7
                assert topics["topicQueueMappingDetailMap"] == {}
                groups: Any = parse((await slave.call(201)).body.decode())
                assert groups["subscriptionGroupTable"]["billing"]["retryMaxTimes"] == 4
                for code in (43, 45):
                    found: Any = parse((await slave.call(code)).body.decode())
                    assert found["offsetTable"] == {}
                checkpoint = (await slave.call(RequestCode.GET_TIMER_CHECK_POINT)).body
                assert len(checkpoint) == 56
                assert TimerCheckpoint.parse(checkpoint) == broker.store.timers.checkpoint.written
                assert b"timingCount" in (await slave.call(61)).body
                assert (await slave.call(402)).body == b'{"messageRequestModeMap":{}}'
                await slave.call(RequestCode.UNREGISTER_BROKER, told)
                with pytest.raises(Unsupported, match="request type 310 not supported"):
                    await slave.call(310)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"brokerId": "0"}, "has a master here: set brokerId=1 or more"),
        ({"brokerName": "broker-b"}, "this is broker-a of DefaultCluster"),
        ({"clusterName": "Other"}, "this is broker-a of DefaultCluster"),
    ],
)
async def test_a_broker_that_is_no_slave_of_this_one_is_told_so(
    told: dict[str, str], message: str, tmp_path: Path
) -> None:
    right = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "1"}
    async with (
        serving(tmp_path) as (_, _, port),
        await RemotingClient.connect(f"127.0.0.1:{port}") as slave,
    ):
        with pytest.raises(Unsupported, match=message):
            await slave.call(RequestCode.REGISTER_BROKER, right | told)


async def test_junk_ends_its_connection_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, _, port):
        for number, junk in (
            (port, b"\xff" * 64),
            (port, b"\0\0\0\x08\0\0\0\x04junk"),
            (port + 1, b"\xff" * 8),
        ):
            reader, writer = await open_tcp(f"127.0.0.1:{number}", 60)
            writer.write(junk)
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()
        async with await RemotingClient.connect(f"127.0.0.1:{port}") as slave:
            await slave.call(RequestCode.GET_ALL_TOPIC_CONFIG)


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as (_, _, port):
        config = broker_config(port=0, java_slaves=True, java_slaves_port=port + 1)
        broker = Broker.build(
            config, small_config(tmp_path / "two"), disk=OsDisk(), clock=SystemClock()
        )
        with pytest.raises(
            ConfigError, match=rf"broker\.java_slaves_port {port + 1}: cannot listen"
        ):
            await broker.start()


async def test_a_broker_that_stops_sends_its_slaves_the_rest(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, address, port):
        reader, writer = await open_tcp(f"127.0.0.1:{port + 1}", 60)
        writer.write(classic_report(0))
        async with AsyncProducer(address, acks="memory") as producer:
            for _ in range(50):
                await producer.send(Message("T", b"x" * 1500))
        end = broker.store.max_log_offset
        stopping = asyncio.ensure_future(broker.stop())
        frames, got = ClassicFrames(), 0
        async with asyncio.timeout(60):
            while data := await reader.read(1 << 16):
                got += sum(len(frame.data) for frame in frames.feed(data))
        await stopping
        assert got == end
        writer.close()
        with pytest.raises(ConnectionLost):
            await RemotingClient.connect(f"127.0.0.1:{port}")
