"""Bodies that do not fit their CRC: none is handed out, none is stepped over in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from pocketmq.client import AsyncPullConsumer
from pocketmq.client.received_message import FetchedRun
from pocketmq.proto.errors import CorruptRecord
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record_run import walk

from .pull_world import World, numbers, store
from .push_world import World as PushWorld, number, store as push_store

BAD = 3
COUNT = 8
_BODY_AT = 88

Fetch = Callable[[pb.FetchRequest], pb.FetchReply]


def changed(records: bytes) -> bytes:
    """Return RECORDS with the body of message BAD changed, if it is among them."""
    starts, _ = walk(records)
    data = bytearray(records)
    for start in starts.tolist():
        if int.from_bytes(data[start + 20 : start + 28], "big") == BAD:
            data[start + _BODY_AT] ^= 1
    return bytes(data)


def damaged_in_the_store(fetch: Fetch) -> Fetch:
    """Return FETCH of a broker that sees damage when it is asked to compare, and then sets it aside for good."""
    found = False

    def damaged(request: pb.FetchRequest) -> pb.FetchReply:
        nonlocal found
        found |= request.check_crcs
        reply = fetch(request)
        if found:
            starts, end = walk(reply.records)
            edges = [*starts.tolist(), end]
            kept = [
                reply.records[begin:stop]
                for begin, stop in pairwise(edges)
                if int.from_bytes(reply.records[begin + 20 : begin + 28], "big") != BAD
            ]
            reply.lost_count = len(edges) - 1 - len(kept)
            reply.records = b"".join(kept)
        else:
            reply.records = changed(reply.records)
        return reply

    return damaged


def damaged_on_the_way(fetch: Fetch, times: int) -> Fetch:
    """Return FETCH of a broker whose bytes are sound, but arrive wrong the first TIMES."""
    left = times

    def damaged(request: pb.FetchRequest) -> pb.FetchReply:
        nonlocal left
        reply = fetch(request)
        if reply.records and left:
            left -= 1
            reply.records = changed(reply.records)
        return reply

    return damaged


@pytest.fixture
def world() -> World:
    world = World()
    store(world.broker, COUNT)
    return world


async def polled(reading: AsyncPullConsumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += numbers(await reading.poll(timeout_ms=0) or await reading.poll())
    return found


@pytest.mark.parametrize("by_column", [False, True])
async def test_what_the_broker_finds_damaged_is_stepped_over_with_a_count(
    world: World, monkeypatch: pytest.MonkeyPatch, by_column: bool
) -> None:
    monkeypatch.setattr(world.broker, "fetch", damaged_in_the_store(world.broker.fetch))

    async with world.consumer() as reading:
        batch = await reading.poll()
        got = (
            batch.columns.queue_offset.tolist()
            if by_column
            else [one.queue_offset for one in batch]
        )

    assert got == [one for one in range(COUNT) if one != BAD]
    assert reading.metrics().lost == 1
    assert world.committed() == COUNT


async def test_what_was_changed_on_the_way_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(world.broker, "fetch", damaged_on_the_way(world.broker.fetch, 1))

    async with world.consumer() as reading:
        assert numbers(await reading.poll()) == list(range(COUNT))

    assert reading.metrics().lost == 0
    assert "fetched messages are damaged" in caplog.text


async def test_what_always_arrives_wrong_raises_until_the_application_steps_over_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.broker, "fetch", damaged_on_the_way(world.broker.fetch, -1))

    async with world.consumer() as reading:
        assert await polled(reading, BAD) == list(range(BAD))
        for _ in range(2):
            polling = asyncio.create_task(reading.poll())
            await world.clock.advance(5_000)
            with pytest.raises(CorruptRecord, match=f"message {BAD} of orders") as caught:
                await polling
            assert caught.value.details["queue_offset"] == str(BAD)
        assert world.committed() in (None, BAD)
        (queue,) = await reading.assignment()
        await reading.seek(queue, BAD + 1)
        assert await polled(reading, COUNT - BAD - 1) == list(range(BAD + 1, COUNT))


async def test_without_the_check_it_is_handed_out_as_with_kafka(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.broker, "fetch", damaged_on_the_way(world.broker.fetch, -1))

    async with world.consumer(check_crcs=False) as reading:
        bodies = [message.body for message in await reading.poll()]

    assert bodies == [b"%d" % one if one != BAD else b"2" for one in range(COUNT)]


async def test_pull_at_an_offset_checks_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.broker, "fetch", damaged_on_the_way(world.broker.fetch, -1))

    async with world.consumer() as reading:
        pulled = await reading.pull("orders", 0, 0)
        assert (numbers(pulled.messages), pulled.next_offset) == (list(range(BAD)), BAD)
        with pytest.raises(CorruptRecord):
            await reading.pull("orders", 0, BAD)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_push_consumer_steps_over_what_the_broker_finds_damaged(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    world = PushWorld()
    push_store(world.broker, COUNT)
    monkeypatch.setattr(world.broker, "fetch", damaged_in_the_store(world.broker.fetch))
    seen: list[int] = []

    async def listener(message: Any) -> None:
        seen.append(number(message))

    async with world.consumer(listener, ordered=ordered) as consumer:
        await world.pass_ms(10_000)

    assert sorted(seen) == [one for one in range(COUNT) if one != BAD]
    assert world.broker.committed_of() == COUNT
    assert consumer.metrics().counts.lost == 1


async def test_a_push_consumer_waits_at_what_always_arrives_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = PushWorld()
    push_store(world.broker, COUNT)
    monkeypatch.setattr(world.broker, "fetch", damaged_on_the_way(world.broker.fetch, -1))
    seen: list[int] = []

    async def listener(message: Any) -> None:
        seen.append(number(message))

    async with world.consumer(listener):
        await world.pass_ms(30_000)

    assert seen == list(range(BAD))
    assert world.broker.committed_of() == BAD
    told = [one.message for one in caplog.records if one.message.startswith("messages not fetched")]
    assert told
    assert all("does not fit its CRC" in one for one in told)


def test_what_is_sound_in_front_of_a_wrong_body_is_told(world: World) -> None:
    records = world.broker.fetch(
        pb.FetchRequest(topic="orders", max_messages=9, max_bytes=9999)
    ).records

    with pytest.raises(CorruptRecord) as caught:
        FetchedRun("a", changed(records))

    starts, _ = walk(records)
    assert int(caught.value.details["sound_bytes"]) == int(starts[BAD])
    assert len(FetchedRun("a", changed(records), check_crcs=False)) == COUNT
