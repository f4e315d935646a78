"""Bodies that change on the device under a serving broker: none is delivered, looked up, or copied."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.metrics.pocketmq_families import figures
from pocketmq.broker.service_v2.service import SERVICE
from pocketmq.proto.errors import MessageNotFound
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.record import decode_record
from pocketmq.proto.record_run import walk
from pocketmq.proto.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

from ...damage import flip
from ...fake_calls import FakeCall, FakeStream
from ...runs import make_run, records_of
from ..service_v2.serving import ME, Served

BODIES = [b"zero", b"one", b"two"]
MINUTE = timedelta(minutes=1)


def filled(broker: Served) -> list[int]:
    """Have BROKER hold messages of BODIES in queue 0 of T; return their log offsets."""
    broker.topic("T", queues=1)
    appended = broker.store.append(make_run("T", 0, BODIES, {"KEYS": "k"}))
    return [int(offset) for offset in appended.log_offsets]


def fetched(broker: Served, **fields: Any) -> pb.FetchReply:
    replies: list[pb.FetchReply] = []
    broker.parts.fetches.fetch(pb.FetchRequest(topic="T", **fields), replies.append)
    (reply,) = replies
    return reply


def bodies(records: bytes) -> list[bytes]:
    return [decode_record(records, start).body for start in walk(records)[0].tolist()]


def streamed(broker: Served, method: str, **fields: Any) -> list[v2.Message]:
    """Return the messages that METHOD of apache.rocketmq.v2 streams; each bears the digest of its body."""
    stream = FakeStream(metadata=ME, deadline_ms=13_000)
    handler = broker.parts.methods()[f"/{SERVICE}/{method}"].handler
    handler(getattr(v2, f"{method}Request")(group={"name": "g"}, **fields), stream)
    found = [reply.message for reply in stream.sent if reply.HasField("message")]
    for message in found:
        digest = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
        assert message.system_properties.body_digest.checksum == digest
    return found


async def test_official_clients_get_the_others(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        flip(broker.store, filled(broker)[1])
        broker.parts.groups.ensure("g")
        queue = {"topic": {"name": "T"}, "id": 0}

        pulled = streamed(broker, "PullMessage", message_queue=queue, batch_size=32)
        received = streamed(
            broker, "ReceiveMessage", message_queue=queue, batch_size=32, invisible_duration=MINUTE
        )

        assert [one.body for one in pulled] == [b"zero", b"two"]
        assert [one.body for one in received] == [b"zero", b"two"]


async def test_a_receive_that_finds_it_first_gets_the_others_too(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        flip(broker.store, filled(broker)[1])
        broker.parts.groups.ensure("g")
        queue = {"topic": {"name": "T"}, "id": 0}

        received = streamed(
            broker, "ReceiveMessage", message_queue=queue, batch_size=32, invisible_duration=MINUTE
        )

        assert [one.body for one in received] == [b"zero", b"two"]
        assert broker.parts.consume_stats.lost == 1


async def test_a_fetch_that_asks_for_it_leaves_it_out_and_says_so(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        flip(broker.store, filled(broker)[1])

        unchecked = fetched(broker)
        checked = fetched(broker, check_crcs=True)
        afterwards = fetched(broker)

        assert (len(bodies(unchecked.records)), unchecked.lost_count) == (3, 0)
        for reply in (checked, afterwards):
            assert bodies(reply.records) == [b"zero", b"two"]
            assert (reply.next_offset, reply.lost_count) == (3, 1)


@pytest.mark.parametrize("tags", ["", "red"])
async def test_what_a_group_steps_over_is_counted_once(tmp_path: Path, tags: str) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("T", queues=1)
        offsets = broker.store.append(make_run("T", 0, BODIES, {"TAGS": "red"})).log_offsets
        flip(broker.store, int(offsets[1]))
        wanted = pb.Filter(kind=pb.Filter.TAG, expression=tags) if tags else None

        for group in ("a", "a", "b"):
            fetched(broker, check_crcs=True, group=group, filter=wanted)

        counts = broker.parts.consume_stats
        assert [one.lost_count for one in counts.of_group("a")] == [1]
        assert counts.lost == 2
        state = broker.parts.coordination.state(pb.GroupStateRequest(group="b"), FakeCall())
        assert [(one.topic, one.lost_count) for one in state.filtered] == [("T", 1)]
        page = figures(broker.parts, pb.BrokerStatusReply(), None, {})
        shown = {one.name: one.value for one in page}
        assert shown["pocketmq_broker_lost_messages_total"] == 2
        assert shown["pocketmq_store_damaged_records_total"] == 1


async def test_it_is_not_looked_up(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        offsets = filled(broker)
        record = records_of(broker.store, "T", 0)[1]
        flip(broker.store, offsets[1])

        by_key = await broker.parts.lookups.lookup(pb.LookupRequest(topic="T", key="k"))
        by_id = await broker.parts.lookups.lookup(pb.LookupRequest(message_id=record.message_id))

        assert bodies(by_key.records) == [b"zero", b"two"]
        assert by_id.records == b""


async def test_it_is_not_sent_back_for_a_retry(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        offsets = filled(broker)
        broker.parts.groups.ensure("g")
        flip(broker.store, offsets[1])
        end = broker.store.max_log_offset

        with pytest.raises(MessageNotFound):
            broker.parts.retries.send_back(
                pb.SendBackRequest(group="g", topic="T", queue_offset=1, log_offset=offsets[1])
            )

        assert broker.store.max_log_offset == end


@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TIMER_TOPIC])
async def test_it_is_not_delivered_after_a_delay(tmp_path: Path, topic: str) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("T", queues=1)
        asked = {"DELAY": "1"} if topic == SCHEDULE_TOPIC else {"TIMER_DELAY_SEC": "2"}
        for body in BODIES:
            run = make_run("T", 0, [body], asked)
            produced = pb.ProduceRun(topic="T", records=bytes(run.records), sizes=run.columns.sizes)
            broker.parts.sends.send(produced, lambda reply: None)
            await asyncio.sleep(0)
        waiting = records_of(broker.store, topic, 0)
        assert [one.body for one in waiting] == BODIES
        flip(broker.store, waiting[1].log_offset)

        await broker.clock.advance(10_000)

        assert [one.body for one in broker.records("T", 1)] == [b"zero", b"two"]


async def test_it_is_not_committed(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("X", "TRANSACTION", queues=1)
        await broker.send("X", b"half", message_type=v2.TRANSACTION)
        (half,) = records_of(broker.store, HALF_TOPIC, 0)
        flip(broker.store, half.log_offset)

        reply = await broker.ask(
            "EndTransaction",
            {
                "topic": {"name": "X"},
                "messageId": "id-0",
                "transactionId": "id-0",
                "source": "SOURCE_CLIENT",
                "resolution": "COMMIT",
            },
        )

        assert reply.status.code != v2.OK
        assert not broker.records("X", 1)
