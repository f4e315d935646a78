"""What groups did not read is told by filter and by whom, in every view, and outlives a kill of the broker."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen

import grpc

from pocketmq.broker.consume_stats import stats_in
from pocketmq.client import Admin, GroupQueue, Message, OffsetTarget, Producer, PullConsumer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.lag.cold import store_rows
from pocketmq.tools.stores.cold_store import open_cold
from pocketmq.tools.stores.locations import locate

from ..served import need_own
from .command import Shell
from .v2_caller import SERVICE
from .whole_broker import serving, store_config


def receive(address: str, client: str, tag: str) -> int:
    """Receive messages with TAG for the group "popping", as official CLIENT; return how many came."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )
        topic = v2.Resource(name="T")
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name="popping"),
            message_queue=v2.MessageQueue(topic=topic, id=-1),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression=tag),
            batch_size=32,
            invisible_duration=timedelta(seconds=60),
            long_polling_timeout=timedelta(seconds=20),
        )
        metadata = (("x-mq-client-id", client), ("x-mq-client-version", "5.1.2"))
        return sum(one.HasField("message") for one in call(request, metadata=metadata, timeout=20))


def use(nameserver: str, broker: str) -> None:
    """Send ten messages with the tags a and b, and have two groups read those with a."""
    with Admin(nameserver) as admin, Producer(nameserver) as producer:
        admin.create_topic("T", queues=1)
        for number in range(10):
            producer.send(Message("T", b"%d" % number, tag="ab"[number % 2]))
        with PullConsumer("pulling", {"T": "a"}, nameserver) as consumer:
            taken = 0
            while taken < 5:
                taken += len(consumer.poll(1))
            consumer.commit()
        assert receive(broker, "official-1", " a ") == 5


def queue_of(nameserver: str, group: str) -> GroupQueue:
    with Admin(nameserver) as admin:
        found = [one for one in admin.describe_group(group).queues if one.queue.topic == "T"]
    return found[0]


def told(queue: GroupQueue) -> list[tuple[str, int, int, int]]:
    return [(one.filter, one.count, one.first, one.last) for one in queue.skipped]


async def test_what_filters_stepped_over_is_told_everywhere_and_stays(tmp_path: Path) -> None:
    need_own("a port of grpcio has no /metrics")
    store = store_config(tmp_path)
    async with serving(store) as (nameserver, broker):
        await asyncio.to_thread(use, nameserver, broker.address)
        pulling = await asyncio.to_thread(queue_of, nameserver, "pulling")
        popping = await asyncio.to_thread(queue_of, nameserver, "popping")
        assert told(pulling) == told(popping) == [("a", 5, 1, 9)]
        assert len(pulling.skipped[0].members) == 1
        assert popping.skipped[0].members == ("official-1",)
        page = await asyncio.to_thread(_page, broker.address)
        assert 'pocketmq_group_skipped_messages{group="popping",topic="T"} 5.0' in page
        assert "pocketmq_broker_skipped_messages_total 10.0" in page
        shown = await asyncio.to_thread(
            Shell(nameserver), "group", "describe", "popping", "--interval", "0s"
        )
        assert "official-1" in shown.out
        assert "by filter" in shown.out

    shell = Shell("127.0.0.1:1")
    story = json.loads(shell("trace", "T/0/3", store.path, "--json").out)
    views = {one["group"]: one for one in story["groups"]}
    assert views["pulling"]["verdict"] == "filtered"
    assert views["pulling"]["text"].startswith("filtered out in pulling by ")
    assert views["pulling"]["text"].endswith(", with filter 'a'")
    wanted = json.loads(shell("trace", "T/0/2", store.path, "--json").out)
    assert {one["group"]: one["verdict"] for one in wanted["groups"]}["pulling"] == "read"
    now_ms = SystemClock().now_ms()
    (location,) = locate([store.path])
    rows = store_rows(open_cold(location, now_ms=now_ms), now_ms)
    assert {row.key[3]: row.facts.skipped for row in rows} == {"pulling": 5, "popping": 5}

    async with serving(store) as (nameserver, _):
        assert told(await asyncio.to_thread(queue_of, nameserver, "popping")) == [("a", 5, 1, 9)]


def _page(address: str) -> str:
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def reset(nameserver: str, offset: int) -> None:
    with Admin(nameserver) as admin:
        admin.reset_offsets("fresh", "T", OffsetTarget(offset=offset), create=True)


async def test_an_administrators_move_is_told_and_is_no_reading(tmp_path: Path) -> None:
    store = store_config(tmp_path)
    async with serving(store) as (nameserver, broker):
        await asyncio.to_thread(use, nameserver, broker.address)
        await asyncio.to_thread(reset, nameserver, 8)
        await asyncio.to_thread(reset, nameserver, 6)
        queue = await asyncio.to_thread(queue_of, nameserver, "fresh")
        # It is on the device before the answer: no stop is needed.
        assert "fresh" in {group for group, _, _ in stats_in(OsDisk(), store.path) or ()}

    moves = [(one.from_offset, one.to_offset) for one in queue.moves]
    assert moves == [(None, 8), (8, 6)]
    assert "@" in queue.moves[0].who
    shell = Shell("127.0.0.1:1")
    verdicts = {}
    for offset in (5, 7):
        story = json.loads(shell("trace", f"T/0/{offset}", store.path, "--json").out)
        verdicts[offset] = {one["group"]: one["verdict"] for one in story["groups"]}["fresh"]
    assert verdicts == {5: "moved", 7: "not yet"}
