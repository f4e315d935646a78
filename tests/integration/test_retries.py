"""Retries and dead letters of a whole broker: by its own calls on a virtual clock, and as its users meet them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.client import Admin, Message, Producer, PullConsumer, ReceivedMessage
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.errors import GroupNotFound, InvalidArgument, MessageNotFound, PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Record, decode_record

from ..runs import records_of
from ..served import ServerProcess
from .command import Shell
from .whole_broker import EOF, PATH, TOPIC, Peer, broker, run_of, store_config

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
CLASSIC = [
    *(10 * SECOND, 30 * SECOND),
    *(minutes * MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
]


async def make_group(peer: Peer, **fields: Any) -> pb.GroupConfig:
    config = {"name": "g", "retry_max_times": 16, "retry_queues": 1, "consume_enable": True}
    group = pb.GroupConfig(**{**config, **fields})
    reply = await peer.ask("CreateGroup", pb.CreateGroupRequest(group=group), pb.GroupReply)
    made: pb.GroupConfig = reply.group
    return made


async def fetch(peer: Peer, topic: str, offset: int = 0) -> Record:
    """Return the message at OFFSET of queue 0 of TOPIC."""
    stream = peer.channel.stream_stream(
        PATH + "Fetch", pb.FetchRequest.SerializeToString, pb.FetchReply.FromString
    )()
    await stream.write(pb.FetchRequest(fetch_id=1, topic=topic, offset=offset, max_messages=1))
    reply: pb.FetchReply = await stream.read()
    await stream.done_writing()
    assert await stream.read() is EOF
    return decode_record(reply.records)


async def send_back(peer: Peer, record: Record, **fields: Any) -> pb.SendBackReply:
    place: dict[str, Any] = {
        "group": "g",
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "log_offset": record.log_offset,
    }
    request = pb.SendBackRequest(**{**place, **fields})
    reply: pb.SendBackReply = await peer.ask("SendBack", request, pb.SendBackReply)
    return reply


async def fail_until_dead(peer: Peer, clock: VirtualClock) -> list[int]:
    """Fail every delivery of the message in TOPIC; return the waits before each retry."""
    waits: list[int] = []
    record = await fetch(peer, TOPIC)
    while not (reply := await send_back(peer, record)).dead:
        wait_ms = reply.due_ms - clock.now_ms()
        waits.append(wait_ms)
        await clock.advance(wait_ms)
        record = await fetch(peer, "%RETRY%g", len(waits) - 1)
        assert (record.reconsume_times, record.store_timestamp_ms) == (len(waits), reply.due_ms)
    return waits


async def test_the_sixteen_retries_to_the_dead_letter_take_4_h_46_min_and_no_second(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock, wall=SystemClock()) as (_, peer):
        await peer.create_topic()
        await make_group(peer)
        await peer.produce(run_of([b"body"]))
        began_ms, processor = clock.now_ms(), time.process_time()

        waits = await fail_until_dead(peer, clock)

        assert time.process_time() - processor < 1  # Nothing waits for real time, nor for long.
        assert waits == CLASSIC
        assert clock.now_ms() - began_ms == 4 * HOUR + 45 * MINUTE + 40 * SECOND
        letters = await peer.ask(
            "DeadLetters", pb.DeadLettersRequest(group="g"), pb.DeadLettersReply
        )
        (letter,) = letters.letters
        assert (letter.reason, letter.origin_topic, letter.reconsume_times) == (
            "failed 17 times",
            TOPIC,
            17,
        )
        assert letter.died_ms == clock.now_ms()


async def test_own_intervals_and_their_number_are_kept(tmp_path: Path) -> None:
    clock = VirtualClock()
    own = [10 * SECOND, 1_500, 45 * MINUTE, 2 * HOUR]
    async with broker(store_config(tmp_path), clock=clock, wall=SystemClock()) as (_, peer):
        await peer.create_topic()
        made = await make_group(peer, retry_intervals_ms=own, retry_max_times=6)
        assert list(made.retry_intervals_ms) == own
        await peer.produce(run_of([b"body"]))

        assert await fail_until_dead(peer, clock) == [*own, 2 * HOUR, 2 * HOUR]


@pytest.mark.parametrize("interval", [10 * SECOND, 12_345], ids=["by level", "by timer"])
async def test_a_retry_and_a_purge_outlast_a_restart(tmp_path: Path, interval: int) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock, wall=SystemClock()) as (_, peer):
        await peer.create_topic()
        await make_group(peer, retry_intervals_ms=[interval])
        await peer.produce(run_of([b"1", b"2"]))
        reply = await send_back(peer, await fetch(peer, TOPIC, 0))
        for _ in range(3):
            await send_back(peer, await fetch(peer, TOPIC, 1), delay_level=-1, reason="no")
        await peer.ask(
            "PurgeDeadLetters",
            pb.PurgeDeadLettersRequest(group="g", below_offset=2),
            pb.PurgeDeadLettersReply,
        )
    clock = VirtualClock(clock.now_ms() + 1 * SECOND)
    async with broker(store_config(tmp_path), clock=clock) as (server, peer):
        await clock.advance(reply.due_ms - clock.now_ms() - 1)
        assert retried(server) == []
        await clock.advance(1)
        assert retried(server) == [b"1"]
        letters = await peer.ask(
            "DeadLetters", pb.DeadLettersRequest(group="g"), pb.DeadLettersReply
        )
        assert [letter.queue_offset for letter in letters.letters] == [2]


def retried(server: Broker) -> list[bytes]:
    return [record.body for record in records_of(server.store, "%RETRY%g", 0)]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": "nobody"}, GroupNotFound),
        ({"topic": "%RETRY%other"}, InvalidArgument),
        ({"queue_offset": 7}, MessageNotFound),
        ({"log_offset": 3}, InvalidArgument),
        ({"retry_max_times": -1}, InvalidArgument),
    ],
)
async def test_bad_requests_are_answered_and_nothing_is_stored(
    tmp_path: Path, fields: dict[str, Any], error: type[PocketMQError]
) -> None:
    async with broker(store_config(tmp_path), clock=VirtualClock()) as (server, peer):
        await peer.create_topic()
        await make_group(peer)
        await peer.produce(run_of([b"body"]))
        record = await fetch(peer, TOPIC)
        before = server.store.max_log_offset

        with pytest.raises(error):
            await send_back(peer, record, **fields)

        assert server.store.max_log_offset == before
        topics = await peer.ask("ListTopics", pb.BrokerTopicsRequest(), pb.BrokerTopicsReply)
        assert [topic.name for topic in topics.topics] == [TOPIC]


# ------------------------------------------------------------ as users and programs meet it


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "store", "--clock", "virtual") as running:
        yield running


def next_message(consumer: PullConsumer) -> ReceivedMessage:
    (message,) = consumer.poll(timeout_ms=20_000)
    return message


@pytest.mark.processes
def test_from_a_consumer_that_fails_to_the_command_that_sends_again(
    server: ServerProcess,
) -> None:
    call = Shell(server.nameserver)
    with Admin(server.nameserver) as admin:
        admin.create_topic("orders", queues=1)
    made = call("group", "create", "billing", "--retries", "2", "--retry-intervals", "10s,1h")
    assert made.out == "group billing: in any order, up to 2 retries, after 10s,1h\n"
    with Producer(server.nameserver) as producer:
        producer.send(Message("orders", b"order 1", key="k", tag="red"))

    with PullConsumer("billing", "orders", server.nameserver) as consumer:
        message = next_message(consumer)
        for times, step in ((1, "10s"), (2, "1h")):
            sent = consumer.send_back(message)
            assert (sent.dead, sent.reconsume_times) == (False, times)
            assert call("clock", "advance", step).code == 0
            message = next_message(consumer)
            assert (message.reconsume_times, message.origin_topic) == (times, "orders")
            assert (message.body, message.tag) == (b"order 1", "red")
        assert consumer.send_back(message, reason="no such customer").dead

        (letter,) = call.done("dead-letters", "list", "billing")
        assert (letter["offset"], letter["origin_topic"]) == (0, "orders")
        assert (letter["reason"], letter["reconsume_times"]) == ("no such customer", 3)
        again = call("dead-letters", "resend", "billing", "0")
        assert again.out.splitlines()[-1] == "1 of 1 resent"
        fresh = next_message(consumer)
        assert (fresh.topic, fresh.reconsume_times, fresh.queue_offset) == ("orders", 0, 1)
        assert fresh.properties.keys() <= {"KEYS", "TAGS", "UNIQ_KEY"}

    assert call("dead-letters", "purge", "billing", "--yes").out == (
        "dead letters of group billing purged: 1\n"
    )
    assert call.done("dead-letters", "list", "billing") == []
    assert call("dead-letters", "list", "nobody").code == 3
