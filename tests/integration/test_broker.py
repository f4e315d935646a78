"""A broker by its own protocol, on a real connection: sends, fetches, topics, offsets, look-ups, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.errors import (
    GroupNotFound,
    InvalidArgument,
    InvalidDelay,
    NotReadable,
    NotWritable,
    OffsetOutOfRange,
    PocketMQError,
    QueueNotFound,
    TopicExists,
    TopicNotFound,
)
from pocketmq.proto.errors_wire import from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.message_id import offset_message_id
from pocketmq.proto.record import Host, Record, decode_record, encode_record
from pocketmq.proto.record_run import walk

from .whole_broker import EOF, PATH, TOPIC, Peer, broker, run_of, store_config


def bodies_of(records: bytes) -> list[bytes]:
    return [decode_record(records, start).body for start in walk(records)[0].tolist()]


@asynccontextmanager
async def stream(peer: Peer, method: str, request: Any, reply: Any) -> AsyncIterator[Any]:
    """Open a stream of the broker's, and break it off in the end."""
    call = peer.channel.stream_stream(PATH + method, request.SerializeToString, reply.FromString)()
    try:
        yield call
    finally:
        call.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until CONDITION holds."""
    while not condition():  # noqa: ASYNC110 (a condition of the broker, not an event)
        await asyncio.sleep(0)


async def refused(peer: Peer, record: Record, **run: Any) -> PocketMQError:
    data = encode_record(record)
    return await peer.refusal(pb.ProduceRun(topic=TOPIC, records=data, sizes=[len(data)], **run))


# --- sending and fetching


async def test_what_was_sent_is_fetched_in_order(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        first = await peer.produce(run_of([b"a", b"bb"]))
        second = await peer.produce(run_of([b"ccc"]))

        reply = await peer.fetch()

        assert (first.first_queue_offset, second.first_queue_offset) == (0, 2)
        assert bodies_of(reply.records) == [b"a", b"bb", b"ccc"]
        assert (reply.min_offset, reply.next_offset, reply.max_offset) == (0, 3, 3)


async def test_a_stored_record_is_the_clients_but_for_the_brokers_fields(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (server, peer):
        await peer.create_topic()
        run = run_of([b"body"], queue=2)
        reply = await peer.produce(run)

        stored = decode_record((await peer.fetch(queue=2)).records)

        assert stored.log_offset == reply.first_log_offset
        assert stored.store_timestamp_ms == reply.store_timestamp_ms
        assert str(stored.store_host) == server.address == reply.store_host
        blank = replace(
            stored, store_host=Host(bytes(4), 0), store_timestamp_ms=0, log_offset=0, queue_offset=0
        )
        assert encode_record(blank) == run.records


async def test_runs_on_one_stream_are_pipelined(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        async with stream(peer, "Produce", pb.ProduceRun, pb.ProduceReply) as call:
            for number in range(300):
                durability = pb.DISK if number % 3 else pb.MEMORY
                run = run_of([b"x" * 10], run_id=number, durability=durability)
                await call.write(run)
            replies = [await call.read() for _ in range(300)]
            await call.done_writing()
            assert await call.read() is EOF

        assert {reply.run_id for reply in replies} == set(range(300))
        assert not any(reply.HasField("error") for reply in replies)
        assert {reply.first_queue_offset for reply in replies} == set(range(300))
        reached = {reply.run_id: reply.durability for reply in replies}
        assert all(reached[n] == (pb.DISK if n % 3 else pb.MEMORY) for n in range(300))


async def test_a_send_without_reply_is_stored_and_its_errors_are_told(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        async with stream(peer, "Produce", pb.ProduceRun, pb.ProduceReply) as call:
            await call.write(run_of([b"silent"], run_id=1, no_reply=True))
            await call.write(run_of([b"lost"], run_id=2, queue=99, no_reply=True))
            reply = await call.read()

        assert reply.run_id == 2
        assert isinstance(from_wire(reply.error), QueueNotFound)
        assert bodies_of((await peer.fetch()).records) == [b"silent"]


async def test_synchronous_flush_is_the_default_of_a_store_that_is_set_to_it(
    tmp_path: Path,
) -> None:
    async with broker(store_config(tmp_path, flush="sync")) as (server, peer):
        await peer.create_topic()

        reply = await peer.produce(run_of([b"a"]))

        assert reply.durability == pb.DISK
        assert server.store.flushed_offset == server.store.max_log_offset


async def test_a_long_poll_wakes_when_a_message_arrives(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        async with stream(peer, "Fetch", pb.FetchRequest, pb.FetchReply) as call:
            await call.write(
                pb.FetchRequest(fetch_id=7, topic=TOPIC, min_bytes=1, max_wait_ms=60_000)
            )
            answer = asyncio.ensure_future(call.read())
            await peer.produce(run_of([b"elsewhere"], queue=1))
            assert not answer.done()
            await peer.produce(run_of([b"here"]))
            reply = await answer

        assert reply.fetch_id == 7
        assert bodies_of(reply.records) == [b"here"]


async def test_a_long_poll_ends_empty_at_its_deadline(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        async with stream(peer, "Fetch", pb.FetchRequest, pb.FetchReply) as call:
            await call.write(pb.FetchRequest(fetch_id=7, topic=TOPIC, min_bytes=1, max_wait_ms=20))
            reply = await call.read()

        assert (reply.fetch_id, reply.records, reply.next_offset) == (7, b"", 0)


async def test_a_fetch_waits_for_the_bytes_that_it_asks_for(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        async with stream(peer, "Fetch", pb.FetchRequest, pb.FetchReply) as call:
            await call.write(pb.FetchRequest(topic=TOPIC, min_bytes=500, max_wait_ms=60_000))
            answer = asyncio.ensure_future(call.read())
            await peer.produce(run_of([b"small"]))
            assert not answer.done()
            await peer.produce(run_of([b"x" * 400]))

            assert len(bodies_of((await answer).records)) == 2


async def test_a_fetch_is_bounded_by_messages_and_bytes_but_brings_one_record(
    tmp_path: Path,
) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"x" * 1000] * 10))
        async with stream(peer, "Fetch", pb.FetchRequest, pb.FetchReply) as call:
            await call.write(pb.FetchRequest(topic=TOPIC, max_messages=3))
            by_count = await call.read()
            await call.write(pb.FetchRequest(topic=TOPIC, max_bytes=1))
            by_bytes = await call.read()

        assert by_count.next_offset == 3
        assert by_bytes.next_offset == 1
        assert bodies_of(by_bytes.records) == [b"x" * 1000]


@pytest.mark.parametrize("offset", [4, 10**12])
async def test_an_offset_outside_the_queue_is_told_with_its_bounds(
    tmp_path: Path, offset: int
) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"a", b"b", b"c"]))

        reply = await peer.fetch(offset)

        assert isinstance(from_wire(reply.error), OffsetOutOfRange)
        assert (reply.min_offset, reply.max_offset) == (0, 3)


# --- refusals


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_a_delay_that_makes_no_sense_is_refused(tmp_path: Path, name: str) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()

        error = await refused(peer, Record(topic=TOPIC, body=b"x", properties={name: "soon"}))

        assert isinstance(error, InvalidDelay)
        assert error.details["field"] == name


async def test_a_body_that_only_looks_like_a_delay_is_stored(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"\x02DELAY\x013\x02"]))

        assert len(bodies_of((await peer.fetch()).records)) == 1


async def test_topics_of_the_broker_itself_take_no_messages(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        data = encode_record(Record(topic="SCHEDULE_TOPIC_XXXX", body=b"x"))
        run = pb.ProduceRun(topic="SCHEDULE_TOPIC_XXXX", records=data, sizes=[len(data)])

        assert isinstance(await peer.refusal(run), NotWritable)


async def test_permissions_of_a_topic_are_kept(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"a"]))
        read_only = pb.TopicConfig(name=TOPIC, read_queues=4, write_queues=4, permission=4)
        await peer.ask(
            "CreateTopic", pb.CreateTopicRequest(topic=read_only, update=True), pb.TopicReply
        )
        assert isinstance(await peer.refusal(run_of([b"b"])), NotWritable)
        write_only = pb.TopicConfig(name=TOPIC, read_queues=4, write_queues=4, permission=2)
        await peer.ask(
            "CreateTopic", pb.CreateTopicRequest(topic=write_only, update=True), pb.TopicReply
        )

        assert isinstance(from_wire((await peer.fetch()).error), NotReadable)


async def test_a_record_with_room_for_an_ipv6_store_host_is_encoded_again(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        record = Record(
            topic=TOPIC,
            body=b"six",
            born_host=Host.parse("::1", 7),
            store_host=Host(bytes(16), 0),
            properties={"KEYS": "k"},
        )
        data = encode_record(record)
        reply = await peer.produce(pb.ProduceRun(topic=TOPIC, records=data, sizes=[len(data)]))

        stored = decode_record((await peer.fetch()).records)

        assert list(reply.log_offsets) == [reply.first_log_offset]
        assert (stored.body, stored.born_host) == (b"six", Host.parse("::1", 7))
        assert not stored.store_host.is_v6


# --- topics and groups


async def test_an_unknown_topic_is_made_by_sending_to_it(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.produce(run_of([b"a"], queue=3))

        described = await peer.ask(
            "DescribeTopic", pb.DescribeTopicRequest(topic=TOPIC), pb.DescribeTopicReply
        )

        assert (described.topic.write_queues, described.topic.permission) == (4, 6)
        assert [queue.max_offset for queue in described.queues] == [0, 0, 0, 1]


async def test_topics_are_not_made_where_that_is_switched_off(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path), auto_create_topics=False) as (_, peer):
        assert isinstance(await peer.refusal(run_of([b"a"])), TopicNotFound)


async def test_a_topic_that_exists_is_not_made_again(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        with pytest.raises(TopicExists):
            await peer.create_topic()


async def test_a_deleted_topic_is_gone_with_its_offsets(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"a"]))
        commit = pb.CommitOffsetsRequest(
            group="g", offsets=[pb.GroupOffset(topic=TOPIC, queue=0, offset=1)]
        )
        await peer.ask("CommitOffsets", commit, pb.CommitOffsetsReply)
        await peer.ask("DeleteTopic", pb.DeleteTopicRequest(topic=TOPIC), pb.DeleteTopicReply)

        known = await peer.ask(
            "GroupOffsets", pb.GroupOffsetsRequest(group="g"), pb.GroupOffsetsReply
        )

        assert not known.offsets
        assert isinstance(from_wire((await peer.fetch()).error), TopicNotFound)
        await peer.create_topic()
        assert (await peer.produce(run_of([b"new"]))).first_queue_offset == 0
        assert bodies_of((await peer.fetch()).records) == [b"new"]


async def test_groups_are_made_listed_and_deleted(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        group = pb.GroupConfig(name="g", retry_max_times=3, order=True, consume_enable=True)
        await peer.ask("CreateGroup", pb.CreateGroupRequest(group=group), pb.GroupReply)

        listed = await peer.ask("ListGroups", pb.GroupListRequest(), pb.GroupListReply)

        assert [(g.name, g.retry_max_times, g.order) for g in listed.groups] == [("g", 3, True)]
        await peer.ask("DeleteGroup", pb.DeleteGroupRequest(group="g"), pb.DeleteGroupReply)
        with pytest.raises(GroupNotFound):
            await peer.ask("DeleteGroup", pb.DeleteGroupRequest(group="g"), pb.DeleteGroupReply)


# --- offsets and look-ups


async def test_an_offset_beyond_the_queue_is_not_committed(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"a"]))
        offsets = [
            pb.GroupOffset(topic=TOPIC, queue=0, offset=1),
            pb.GroupOffset(topic=TOPIC, queue=1, offset=5),
        ]
        with pytest.raises(InvalidArgument, match="ends at 0"):
            await peer.ask(
                "CommitOffsets",
                pb.CommitOffsetsRequest(group="g", offsets=offsets),
                pb.CommitOffsetsReply,
            )

        asked = pb.GroupOffsetsRequest(group="g", queues=[pb.QueueId(topic=TOPIC, queue=0)])
        known = await peer.ask("GroupOffsets", asked, pb.GroupOffsetsReply)

        assert [one.offset for one in known.offsets] == [-1]


async def test_an_instant_is_found_in_a_queue(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        stored = [(await peer.produce(run_of([b"a"]))).store_timestamp_ms for _ in range(5)]

        async def at(time_ms: int) -> pb.QueueOffsets:
            request = pb.QueueOffsetsRequest(
                queues=[pb.QueueId(topic=TOPIC, queue=0)], time_ms=time_ms
            )
            reply = await peer.ask("QueueOffsets", request, pb.QueueOffsetsReply)
            found: pb.QueueOffsets = reply.offsets[0]
            return found

        assert (await at(0)).offset_at_time == 0
        assert (await at(stored[-1] + 1)).offset_at_time == 5
        assert (await at(stored[2])).offset_at_time == stored.index(stored[2])
        assert (await at(0)).min_store_time_ms == stored[0]


async def test_messages_are_found_by_key_tag_and_id(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (server, peer):
        await peer.create_topic()
        reply = await peer.produce(run_of([b"one", b"two", b"three"]))
        host = server.store.host
        message_id = offset_message_id(host.address, host.port, reply.first_log_offset)

        async def find(**by: Any) -> list[bytes]:
            found = await peer.ask("Lookup", pb.LookupRequest(**by), pb.LookupReply)
            return bodies_of(found.records)

        assert await find(topic=TOPIC, key="key") == [b"one", b"two", b"three"]
        assert await find(topic=TOPIC, key="key", max_messages=1) == [b"three"]
        assert await find(topic=TOPIC, tag="red") == [b"one", b"two", b"three"]
        assert await find(topic=TOPIC, key="other") == []
        assert await find(topic=TOPIC, key="key", end_ms=1) == []
        assert await find(message_id=message_id) == [b"one"]
        assert await find(topic=TOPIC, message_id=message_id.lower()) == [b"one"]
        assert await find(message_id="0" * 32) == []
        with pytest.raises(InvalidArgument, match="by"):
            await find(topic=TOPIC)


# --- stopping and starting


async def test_a_restarted_broker_has_everything(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic(queues=2)
        await peer.produce(run_of([b"a", b"b"]))
        commit = pb.CommitOffsetsRequest(
            group="g", offsets=[pb.GroupOffset(topic=TOPIC, queue=0, offset=1)]
        )
        await peer.ask("CommitOffsets", commit, pb.CommitOffsetsReply)

    assert not (tmp_path / "store" / "abort").exists()
    async with broker(store_config(tmp_path), auto_create_topics=False) as (server, peer):
        asked = pb.GroupOffsetsRequest(group="g")
        known = await peer.ask("GroupOffsets", asked, pb.GroupOffsetsReply)

        assert server.recovery.clean
        assert [one.offset for one in known.offsets] == [1]
        assert bodies_of((await peer.fetch()).records) == [b"a", b"b"]
        assert (await peer.produce(run_of([b"c"]))).first_queue_offset == 2


async def test_stopping_answers_those_who_wait(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (server, peer):
        await peer.create_topic()
        async with stream(peer, "Fetch", pb.FetchRequest, pb.FetchReply) as call:
            await call.write(pb.FetchRequest(fetch_id=1, topic=TOPIC, max_wait_ms=0))
            await call.read()
            await call.write(
                pb.FetchRequest(fetch_id=2, topic=TOPIC, min_bytes=1, max_wait_ms=60_000)
            )
            answer = asyncio.ensure_future(call.read())
            await until(lambda: server.waiting == 1)
            await server.stop()

            assert (await answer).fetch_id == 2


async def test_a_closed_fetch_stream_leaves_nothing_waiting(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (server, peer):
        await peer.create_topic()
        async with stream(peer, "Fetch", pb.FetchRequest, pb.FetchReply) as call:
            for number in range(20):
                await call.write(
                    pb.FetchRequest(fetch_id=number, topic=TOPIC, min_bytes=1, max_wait_ms=60_000)
                )
            await until(lambda: server.waiting == 20)
        await until(lambda: server.waiting == 0)


async def test_a_broker_says_how_it_is(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (server, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"a"]))

        status = await peer.ask("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)

        assert status.writable
        assert status.not_writable_because == ""
        assert status.max_log_offset == status.dispatched_offset == server.store.max_log_offset
        assert status.rss_bytes > 10_000_000
        assert status.store_path == str(tmp_path / "store")
