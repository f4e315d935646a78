"""Random bytes, odd messages and damaged records to every method of a whole broker.

Each is answered, well or with a status that names the field; the broker lives, and nothing stored before is lost.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import grpc
import grpc.aio
import pytest

from pocketmq.proto.errors import InvalidArgument, PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.record_run import parse_run, walk

from ..wire_fuzz import SERVERS_FAULT, Fuzzer
from .whole_broker import TOPIC, Peer, broker, run_of, store_config

ROUNDS = 25
BODIES = [b"one", b"two" * 100, b"three"]

_QUEUE = pb.QueueId(topic=TOPIC, queue=1)
_FILTER = pb.Filter(kind=pb.Filter.TAG, expression="a || b")
_HELD = pb.HeldQueue(topic=TOPIC, broker_name="broker-a", queue=1)
_TOPIC = pb.TopicConfig(name="U", read_queues=4, write_queues=4, permission=6, type="NORMAL")
GOOD = (
    run_of(BODIES),
    run_of(BODIES, queue=2, durability=pb.DISK),
    pb.FetchRequest(fetch_id=1, topic=TOPIC, max_messages=10, max_wait_ms=5, min_bytes=1),
    pb.CommitOffsetsRequest(group="g", offsets=[pb.GroupOffset(topic=TOPIC, queue=1, offset=1)]),
    pb.GroupOffsetsRequest(group="g", queues=[_QUEUE]),
    pb.QueueOffsetsRequest(queues=[_QUEUE], time_ms=1_700_000_000_000),
    pb.CreateTopicRequest(topic=_TOPIC, update=True),
    pb.DeleteTopicRequest(topic="U"),
    pb.DescribeTopicRequest(topic=TOPIC),
    pb.BrokerTopicsRequest(include_system=True),
    pb.CreateGroupRequest(
        group=pb.GroupConfig(name="g", retry_max_times=16, retry_queues=1, consume_enable=True),
        update=True,
    ),
    pb.DeleteGroupRequest(group="g"),
    pb.LookupRequest(topic=TOPIC, key="key", max_messages=5),
    pb.MemberRequest(
        join=pb.Join(
            group="g",
            member_id="m",
            instance_id="i",
            subscriptions=[pb.Subscription(topic=TOPIC, filter=_FILTER)],
            strategy="average",
            session_timeout_ms=6_000,
            held=[_HELD],
        )
    ),
    pb.MemberRequest(heartbeat=pb.Heartbeat(held=[_HELD], held_changed=True)),
    pb.MemberRequest(plan=pb.Plan(generation=1, shares=[pb.Share(member_id="m", queues=[_HELD])])),
    pb.LeaseRequest(
        group="g",
        member_id="m",
        queues=[pb.QueueLease(topic=TOPIC), pb.QueueLease(topic=TOPIC, queue=1, token=5)],
        wait_ms=5,
        generation=1,
    ),
    pb.ReleaseRequest(group="g", member_id="m", queues=[pb.QueueLease(topic=TOPIC, token=5)]),
    pb.GroupStateRequest(group="g"),
)


async def stored_bodies(peer: Peer) -> list[bytes]:
    """Return the bodies at the head of queue 3."""
    data = (await peer.fetch(queue=3)).records
    starts, _ = walk(data)
    columns = parse_run(data, starts)
    return [
        data[begin : begin + size]
        for begin, size in zip(columns.body_start, columns.body_size, strict=True)
    ]


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_bad_request_is_answered_with_its_field(tmp_path: Path, seed: int) -> None:
    # A request may ask for a long wait, which is no fault.
    async with broker(store_config(tmp_path), fetch_wait_max_ms=2_000) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of(BODIES, queue=3))
        fuzzer = Fuzzer(seed, peer.channel, GOOD)
        methods = pb.DESCRIPTOR.services_by_name["Broker"].methods
        complaints = [
            complaint
            for _ in range(ROUNDS)
            for method in methods
            if method.name != "DeleteTopic"
            if (complaint := await fuzzer.assault(method))
        ]
        assert complaints == [], f"seed {seed}"
        assert await fuzzer.lives("/pocketmq.v1.Broker/Status")
        assert (await stored_bodies(peer))[: len(BODIES)] == BODIES


async def test_a_request_with_too_many_items_is_refused_before_anything_of_it_is_done(
    tmp_path: Path,
) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        entries = [v2.AckMessageEntry(receipt_handle="p0-0-1")] * 1_025
        ask = peer.channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/AckMessage",
            v2.AckMessageRequest.SerializeToString,
            v2.AckMessageResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(v2.AckMessageRequest(entries=entries), metadata=(("x-mq-client-id", "c"),))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "AckMessageRequest.entries: 1025 in one request" in (caught.value.details() or "")


async def test_questions_about_many_queues_are_answered_over_several_turns(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of(BODIES))
        queues = [pb.QueueId(topic=TOPIC, queue=at % 4) for at in range(250)]
        bounds = await peer.ask(
            "QueueOffsets", pb.QueueOffsetsRequest(queues=queues), pb.QueueOffsetsReply
        )
        request = pb.GroupOffsetsRequest(group="g", queues=queues, with_times=True)
        offsets = await peer.ask("GroupOffsets", request, pb.GroupOffsetsReply)
    assert [one.queue for one in bounds.offsets] == [one.queue for one in queues]
    assert [one.queue for one in offsets.offsets] == [one.queue for one in queues]
    stored = {one.queue: one.min_store_time_ms for one in bounds.offsets}
    assert {one.queue: one.unread_store_time_ms for one in offsets.offsets} == stored


async def test_every_bad_deletion_is_answered(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        fuzzer = Fuzzer(3, peer.channel, (pb.DeleteTopicRequest(topic=TOPIC),))
        method = pb.DESCRIPTOR.services_by_name["Broker"].methods_by_name["DeleteTopic"]
        for _ in range(ROUNDS):
            assert await fuzzer.assault(method) is None


@pytest.mark.parametrize("seed", range(4))
async def test_a_damaged_record_is_refused_by_name_or_stored_as_it_is(
    tmp_path: Path, seed: int
) -> None:
    chooser = random.Random(seed)
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of(BODIES, queue=3))
        refused = 0
        for _ in range(40):
            run = run_of(BODIES, queue=chooser.randrange(4))
            damaged = bytearray(run.records)
            for _ in range(chooser.choice((1, 1, 2, 8))):
                damaged[chooser.randrange(len(damaged))] ^= 1 << chooser.randrange(8)
            run.records = bytes(damaged)
            try:
                await peer.produce(run)
            except PocketMQError as error:
                assert error.status not in SERVERS_FAULT, (seed, error)
                assert "field" in error.details, (seed, error)
                refused += 1
        assert refused > 20, "most bytes of a record are checked"
        assert (await stored_bodies(peer))[: len(BODIES)] == BODIES


def with_size(run: pb.ProduceRun, index: int, size: int) -> pb.ProduceRun:
    run.sizes[index] = size
    return run


def with_int(run: pb.ProduceRun, at: int, value: int) -> pb.ProduceRun:
    """Return RUN with the 32-bit integer at AT of its first record replaced."""
    records = bytearray(run.records)
    struct.pack_into(">i", records, at, value)
    run.records = bytes(records)
    return run


@pytest.mark.parametrize(
    "run",
    [
        with_size(run_of(BODIES), 0, 0),
        with_size(run_of(BODIES), 0, -1),
        with_size(run_of(BODIES), 1, 2**31 - 1),
        with_int(run_of(BODIES), 0, 2**31 - 1),
        with_int(run_of(BODIES), 0, 0),
        with_int(run_of(BODIES), 4, 0x12345678),
        with_int(run_of(BODIES), 8, 1),
        with_int(run_of(BODIES), 12, 3),
        pb.ProduceRun(run_id=1, topic=TOPIC),
        pb.ProduceRun(run_id=1, topic=TOPIC, records=b"x", sizes=[1]),
        pb.ProduceRun(run_id=1, topic=TOPIC, records=bytes(200)),
        pb.ProduceRun(run_id=1, topic="a b", records=bytes(200), sizes=[200]),
    ],
    ids=[
        "size 0",
        "size -1",
        "size huge",
        "total size huge",
        "total size 0",
        "magic",
        "crc",
        "queue",
        "empty",
        "one byte",
        "no sizes",
        "bad topic",
    ],
)
async def test_a_wrong_field_of_a_run_is_named(tmp_path: Path, run: pb.ProduceRun) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()

        error = await peer.refusal(run)

        assert isinstance(error, InvalidArgument), error
        assert error.details.get("field"), error
        assert (await peer.produce(run_of(BODIES))).first_queue_offset == 0
