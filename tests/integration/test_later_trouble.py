"""What happens later than it was asked for, in trouble: stops amid work, clocks that went back, files that expired.

None of it may lose a message, or deliver one twice after a clean stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from pathlib import Path

import grpc.aio
import pytest

from pocketmq.broker.broker import Broker
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.errors import ConfigError, InvalidArgument, PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Host, Record, encode_record
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.retention import local_hour

from ..fakes import FaultyDisk
from ..runs import bodies_of, records_of
from ..served import broker_config
from .whole_broker import TOPIC, Peer, broker, store_config

START_MS = 1_700_000_000_250
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
HALF = {"TRAN_MSG": "true", "PGROUP": "P"}


def run(*messages: tuple[str, dict[str, str]], queue: int = 0, size: int = 0) -> pb.ProduceRun:
    """Return a run of MESSAGES: an id, which is the body too (filled up to SIZE), and properties."""
    encoded = [
        encode_record(
            Record(
                topic=TOPIC,
                queue_id=queue,
                body=name.encode().ljust(size, b"."),
                born_timestamp_ms=START_MS,
                properties={"UNIQ_KEY": name, **properties},
            )
        )
        for name, properties in messages
    ]
    sizes = [len(record) for record in encoded]
    records = b"".join(encoded)
    return pb.ProduceRun(run_id=1, topic=TOPIC, queue=queue, records=records, sizes=sizes)


def many(count: int, properties: dict[str, str], prefix: str = "") -> pb.ProduceRun:
    return run(*((f"{prefix}{number}", properties) for number in range(count)))


def bodies(server: Broker, queue: int = 0) -> list[str]:
    return [body.decode().rstrip(".") for body in bodies_of(server.store, TOPIC, queue)]


async def end(
    peer: Peer, unique: str, resolution: pb.Resolution = pb.COMMIT
) -> pb.EndTransactionReply:
    request = pb.EndTransactionRequest(
        group="P", topic=TOPIC, transaction_id=unique, resolution=resolution
    )
    reply: pb.EndTransactionReply = await peer.ask(
        "EndTransaction", request, pb.EndTransactionReply
    )
    return reply


# --- files that expired while the broker was down


@pytest.mark.parametrize(
    ("name", "properties", "arrives_in"),
    [
        ("level", {"DELAY": "18"}, TOPIC),
        ("timed", {"TIMER_DELAY_SEC": "7200"}, TOPIC),
        ("half", HALF, "TRANS_CHECK_MAX_TIME_TOPIC"),
    ],
)
async def test_what_waited_while_the_broker_was_down_outlasts_the_retention(
    tmp_path: Path, name: str, properties: dict[str, str], arrives_in: str
) -> None:
    now_ms = SystemClock().now_ms()  # Files expire by the time at which the disk says they changed.
    later_ms = now_ms + 5 * DAY_MS
    config = store_config(
        tmp_path,
        log_file_size_bytes=1 << 14,
        retention_ms=HOUR_MS,
        delete_hour=local_hour(later_ms),
    )
    clock = VirtualClock(now_ms)
    async with broker(config, clock=clock) as (_, peer):
        await peer.create_topic()
        await peer.produce(run((name, properties)))
        for number in range(10):
            await peer.produce(run((f"filler {number}", {}), size=4_000))

    clock.start_at(later_ms)
    async with broker(config, clock=clock) as (server, _):
        await server.advance("1s")
        assert bodies_of(server.store, arrives_in, 0)[-1] == name.encode()
        # Nobody waits any more, so the files may go.
        await server.advance("1m")
        assert server.store.min_log_offset > 0


# --- stops amid work


async def test_a_start_that_fails_amid_a_backlog_delivers_nothing_twice(tmp_path: Path) -> None:
    clock = VirtualClock(START_MS)
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        await peer.produce(many(2_000, {"DELAY": "1"}, "level "))
        await peer.produce(many(2_000, {"TIMER_DELAY_MS": "1500"}, "timed "))
    clock.start_at(START_MS + HOUR_MS)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = broker_config(port=taken.getsockname()[1], nameservers=())
        for _ in range(3):
            failing = Broker.build(config, store_config(tmp_path), disk=OsDisk(), clock=clock)
            with pytest.raises(ConfigError, match="in use"):
                await failing.start()

    async with broker(store_config(tmp_path), clock=clock) as (server, _):
        await server.advance("1m")
        found = Counter(bodies(server))
    assert len(found) == 4_000
    assert set(found.values()) == {1}


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 40])
async def test_a_stop_amid_a_backlog_leaves_what_was_not_delivered_and_no_more(
    tmp_path: Path, turns: int
) -> None:
    clock = VirtualClock(START_MS)
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        for second in range(1, 5):
            await peer.produce(many(800, {"TIMER_DELAY_MS": str(second * 1_000)}, f"t{second} "))
            await peer.produce(many(800, {"DELAY": str(second)}, f"l{second} "))
    clock.start_at(START_MS + HOUR_MS)
    for _ in range(3):
        async with broker(store_config(tmp_path), clock=clock):
            for _ in range(turns):
                await asyncio.sleep(0)

    async with broker(store_config(tmp_path), clock=clock) as (server, _):
        await server.advance("1m")
        found = Counter(bodies(server))
    assert len(found) == 6_400
    assert set(found.values()) == {1}


@pytest.mark.parametrize("turns", [1, 10, 50, 200])
async def test_a_stop_while_time_is_moved_loses_and_repeats_nothing(
    tmp_path: Path, turns: int
) -> None:
    clock, wall = VirtualClock(START_MS), SystemClock()
    async with broker(store_config(tmp_path), clock=clock, wall=wall) as (server, peer):
        await peer.create_topic()
        for number in range(300):
            delay = {"TIMER_DELAY_MS": str(1 + number * 137)}
            await peer.produce(many(3, delay, f"t{number} "))
        await peer.produce(many(300, {"DELAY": "4"}, "l"))
        moving = asyncio.ensure_future(server.advance("20s"))
        for _ in range(turns):
            await asyncio.sleep(0)
    await moving

    async with broker(store_config(tmp_path), clock=clock, wall=wall) as (server, _):
        await server.advance("2m")
        records = records_of(server.store, TOPIC, 0)
    found = Counter(record.body for record in records)
    assert len(found) == 1_200
    assert set(found.values()) == {1}


# --- clocks that went back


async def test_a_level_is_kept_also_where_the_clock_went_back_between_two_runs(
    tmp_path: Path,
) -> None:
    ahead = VirtualClock(START_MS + 5_000)
    async with broker(store_config(tmp_path), clock=ahead) as (_, peer):
        await peer.create_topic()
        await peer.produce(run(("ahead", {"DELAY": "1"})))
    (tmp_path / "store" / "pocketmq" / "clock.json").unlink()
    (tmp_path / "store" / "checkpoint").unlink()

    clock = VirtualClock(START_MS)
    async with broker(store_config(tmp_path), clock=clock) as (server, peer):
        assert clock.now_ms() == START_MS
        await peer.produce(run(("minute", {"DELAY": "5"})))
        await server.advance(59_999)
        assert "minute" not in bodies(server)
        await server.advance(1)
        assert "minute" in bodies(server)


async def test_a_broker_with_the_right_time_goes_on_where_one_of_the_far_future_was(
    tmp_path: Path,
) -> None:
    future = VirtualClock(START_MS + 400 * DAY_MS)
    async with broker(store_config(tmp_path), clock=future) as (server, peer):
        await peer.create_topic()
        await peer.produce(
            run(
                ("old level", {"DELAY": "9"}),
                ("old timed", {"TIMER_DELAY_SEC": "100"}),
                ("old half", HALF),
            )
        )
        await server.advance("1s")
    (tmp_path / "store" / "pocketmq" / "clock.json").unlink()
    (tmp_path / "store" / "checkpoint").unlink()

    clock = VirtualClock(START_MS)
    async with broker(store_config(tmp_path), clock=clock) as (server, peer):
        assert clock.now_ms() == START_MS
        await peer.produce(
            run(
                ("level", {"DELAY": "1"}),
                ("timed", {"TIMER_DELAY_SEC": "2"}),
                ("half", HALF),
            )
        )
        await server.advance(999)
        assert bodies(server) == ["old level"]
        await server.advance(1_001)
        assert bodies(server) == ["old level", "level", "timed"]
        await server.advance(60_000)
        halves = records_of(server.store, "RMQ_SYS_TRANS_HALF_TOPIC", 0)
        assert [record.properties.get("TRANSACTION_CHECK_TIMES") for record in halves].count(
            "1"
        ) == 2
        await end(peer, "half")
        await end(peer, "old half")
        assert bodies(server)[-2:] == ["half", "old half"]


# --- settings and tables that changed while messages wait


async def test_what_waits_for_a_level_that_there_is_no_more_still_comes(tmp_path: Path) -> None:
    clock = VirtualClock(START_MS)
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        await peer.produce(run(("hours", {"DELAY": "18"}), ("second", {"DELAY": "1"})))

    config = store_config(tmp_path, delay_levels="5s 2s")
    async with broker(config, clock=clock) as (server, peer):
        reply = await peer.produce(run(("highest", {"DELAY": "7"})))
        assert list(reply.due_ms) == [START_MS + 2_000]
        await server.advance(7_200_000)
        found = {
            record.body.decode(): record.store_timestamp_ms - START_MS
            for record in records_of(server.store, TOPIC, 0)
        }
        assert found == {"second": 1_000, "highest": 2_000, "hours": 7_200_000}


@pytest.mark.parametrize("precision_ms", [1_000, 100, 7, 1])
async def test_other_precisions_and_levels_keep_every_instant(
    tmp_path: Path, precision_ms: int
) -> None:
    clock = VirtualClock(START_MS)
    settings = {"timer_precision_ms": precision_ms, "delay_levels": "3s 1s"}
    waits = [1, 6, 7, 8, 99, 100, 101, 749, 750, 751, 1_000, 2_999, 3_600_000]
    async with broker(store_config(tmp_path, **settings), clock=clock) as (server, peer):
        await peer.create_topic()
        timed = [(f"t{wait}", {"TIMER_DELAY_MS": str(wait)}) for wait in waits]
        await peer.produce(run(*timed, ("l3000", {"DELAY": "1"}), ("l1000", {"DELAY": "2"})))
        await server.advance(600)
    async with broker(store_config(tmp_path, **settings), clock=clock) as (server, _):
        await server.advance(3_600_000)
        found = Counter(
            (record.body.decode()[1:], record.store_timestamp_ms - START_MS)
            for record in records_of(server.store, TOPIC, 0)
        )
    assert found == Counter([(str(wait), wait) for wait in (*waits, 3_000, 1_000)])


async def test_a_topic_and_a_group_may_go_while_their_messages_wait(tmp_path: Path) -> None:
    clock = VirtualClock(START_MS)
    async with broker(store_config(tmp_path), clock=clock) as (server, peer):
        await peer.create_topic()
        group = pb.GroupConfig(name="g", retry_max_times=1, retry_queues=1, consume_enable=True)
        await peer.ask("CreateGroup", pb.CreateGroupRequest(group=group), pb.GroupReply)
        reply = await peer.produce(
            run(("failed", {}), ("level", {"DELAY": "2"}), ("timed", {"TIMER_DELAY_SEC": "9"}))
        )
        back = pb.SendBackRequest(
            group="g", topic=TOPIC, queue_offset=0, log_offset=reply.log_offsets[0]
        )
        await peer.ask("SendBack", back, pb.SendBackReply)
        await peer.produce(run(("half", HALF)))
        await peer.ask("DeleteGroup", pb.DeleteGroupRequest(group="g"), pb.DeleteGroupReply)
        await peer.ask("DeleteTopic", pb.DeleteTopicRequest(topic=TOPIC), pb.DeleteTopicReply)
        await server.advance("5s")
        await peer.create_topic(queues=1)
        await end(peer, "half")
        await server.advance("5s")
        assert bodies(server) == ["level", "half", "timed"]
        assert bodies_of(server.store, "%RETRY%g", 0) == [b"failed"]


# --- records at their limits


@pytest.mark.parametrize(
    ("properties", "first_topic"),
    [({"DELAY": "1"}, TOPIC), ({"TIMER_DELAY_MS": "5"}, TOPIC), (HALF, TOPIC), ({}, TOPIC)],
)
async def test_the_largest_message_takes_every_way(
    tmp_path: Path, properties: dict[str, str], first_topic: str
) -> None:
    config = store_config(tmp_path, log_file_size_bytes=1 << 24)
    async with broker(config, clock=VirtualClock(START_MS)) as (server, peer):
        await peer.create_topic()
        group = pb.GroupConfig(name="g", retry_max_times=1, retry_queues=1, consume_enable=True)
        await peer.ask("CreateGroup", pb.CreateGroupRequest(group=group), pb.GroupReply)
        size = 4 * 1024 * 1024
        await peer.produce(run(("large", {"long": "x" * 32_000, **properties}), size=size))
        if properties is HALF:
            await end(peer, "large")
        await server.advance("1s")
        for topic in (TOPIC, "%RETRY%g"):
            (record,) = records_of(server.store, topic, 0)
            assert len(record.body) == size
            back = pb.SendBackRequest(group="g", topic=topic, log_offset=record.log_offset)
            await peer.ask("SendBack", back, pb.SendBackReply)
            await server.advance("10s")
        (dead,) = records_of(server.store, "%DLQ%g", 0)
        assert dead.properties["long"] == "x" * 32_000
        assert len(dead.body) == size


async def test_compressed_bodies_ipv6_hosts_and_long_topics_take_every_way(tmp_path: Path) -> None:
    topic = "%RETRY%" + "x" * 200
    async with broker(store_config(tmp_path), clock=VirtualClock(START_MS)) as (server, peer):
        config = pb.TopicConfig(name=topic, read_queues=1, write_queues=1, permission=6)
        await peer.ask("CreateTopic", pb.CreateTopicRequest(topic=config), pb.TopicReply)
        records = [
            encode_record(
                Record(
                    topic=topic,
                    body=name.encode(),
                    sys_flag=0x1,
                    flag=77,
                    born_timestamp_ms=START_MS,
                    born_host=Host.parse("2001:db8::7", 4_711),
                    store_host=Host.parse("::1", 1),
                    properties={"UNIQ_KEY": name, **properties},
                )
            )
            for name, properties in (
                ("level", {"DELAY": "1"}),
                ("timed", {"TIMER_DELAY_MS": "1500"}),
                ("half", HALF),
            )
        ]
        sizes = [len(record) for record in records]
        await peer.produce(
            pb.ProduceRun(run_id=1, topic=topic, records=b"".join(records), sizes=sizes)
        )
        await server.advance("2s")
        request = pb.EndTransactionRequest(
            group="P", topic=topic, transaction_id="half", resolution=pb.COMMIT
        )
        await peer.ask("EndTransaction", request, pb.EndTransactionReply)
        found = records_of(server.store, topic, 0)
        assert [record.body for record in found] == [b"level", b"timed", b"half"]
        for record in found:
            assert record.born_host == Host.parse("2001:db8::7", 4_711)
            assert (record.flag, record.sys_flag & 0x1) == (77, 1)


# --- a store that takes nothing


@pytest.mark.parametrize("stop", [False, True])
async def test_a_full_disk_delays_and_neither_loses_nor_repeats(
    tmp_path: Path, *, stop: bool
) -> None:
    clock, disk = VirtualClock(START_MS), FaultyDisk()
    async with broker(store_config(tmp_path), clock=clock, disk=disk) as (server, peer):
        await peer.create_topic()
        for second in range(1, 5):
            await peer.produce(many(300, {"TIMER_DELAY_MS": str(second * 1_000)}, f"t{second} "))
            await peer.produce(many(300, {"DELAY": str(second)}, f"l{second} "))
        await server.advance(1_500)
        disk.run_full("commitlog")
        await server.advance("4s")
        assert len(bodies(server)) == 600
        if not stop:
            disk.heal()
            await server.advance("1m")
    disk.heal()
    async with broker(store_config(tmp_path), clock=clock, disk=disk) as (server, _):
        await server.advance("1m")
        found = Counter(bodies(server))
        assert len(found) == 2_400
        assert set(found.values()) == {1}
        timed = [body for body in bodies(server) if body.startswith("t")]
        assert timed == [f"t{second} {number}" for second in range(1, 5) for number in range(300)]


# --- what only the broker may say


@pytest.mark.parametrize("group", ["CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_DEAD_LETTERS"])
async def test_nobody_moves_the_brokers_own_offsets(tmp_path: Path, group: str) -> None:
    clock = VirtualClock(START_MS)
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        await peer.produce(run(("half", HALF)))
        offsets = [pb.GroupOffset(topic="RMQ_SYS_TRANS_HALF_TOPIC", queue=0, offset=1)]
        with pytest.raises(InvalidArgument) as caught:
            await peer.ask(
                "CommitOffsets",
                pb.CommitOffsetsRequest(group=group, offsets=offsets),
                pb.CommitOffsetsReply,
            )
        assert caught.value.details["field"] == "group"
    async with broker(store_config(tmp_path), clock=clock) as (server, peer):
        await end(peer, "half")
        assert bodies(server) == ["half"]


@pytest.mark.parametrize("part", ["commitlog", "timerlog", "delayOffset", "consumerOffset"])
async def test_after_a_disk_that_failed_and_a_stop_all_come(tmp_path: Path, part: str) -> None:
    clock, disk = VirtualClock(START_MS), FaultyDisk()
    server = Broker.build(
        broker_config(port=0, nameservers=()), store_config(tmp_path), disk=disk, clock=clock
    )
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        peer = Peer(channel)
        await peer.create_topic()
        for second in range(1, 5):
            await peer.produce(many(50, {"TIMER_DELAY_MS": str(second * 1_000)}, f"t{second} "))
            await peer.produce(many(50, {"DELAY": str(second)}, f"l{second} "))
        await peer.produce(run(("half", HALF)))
        await server.advance(1_500)
        disk.break_writes(part)
        await server.advance("10s")
    with contextlib.suppress(PocketMQError):
        await server.stop()
    await server.stop()

    disk.heal()
    async with broker(store_config(tmp_path), clock=clock, disk=disk) as (server, peer):
        await server.advance("1m")
        await end(peer, "half")
        found = Counter(bodies(server))
        assert len(found) == 401
        assert max(found.values()) <= 2
