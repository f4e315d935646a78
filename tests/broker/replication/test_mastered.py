"""A broker that serves as the master of a replica set: what it acknowledges, and how it ends."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from threading import Event

import pytest

from pocketmq.proto.errors import (
    FlushTimeout,
    MasterFenced,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    PocketMQError,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.store.flush import FlushJob

from ...numbered import numbered_run
from ...runs import bodies_of, make_run
from .mastered import FENCED, TOPIC, Fetcher, Mastered, Sender

V2 = "apache.rocketmq.v2.MessagingService"


# --- beginning


async def test_it_serves_once_all_that_the_store_has_is_confirmed(tmp_path: Path) -> None:
    mastered = Mastered(tmp_path)
    mastered.store.append(make_run("A", 0, [b"1", b"2"]))
    mastered.store.confirm(0)
    broker = mastered.build()
    starting = asyncio.ensure_future(
        broker.start(store=mastered.store, mastership=mastered.mastership)
    )
    await mastered.turns()
    mastered.mastership.raise_confirm(100)
    await mastered.turns()
    assert not starting.done()

    mastered.mastership.raise_confirm()
    await starting

    assert broker.port == 10911
    mastered.mastership.end()
    await broker.stop()
    mastered.store.close()


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_mastership_that_ends_ends_the_start(tmp_path: Path, is_late: bool) -> None:
    mastered = Mastered(tmp_path)
    mastered.store.append(make_run("A", 0, [b"1"]))
    mastered.store.confirm(0)
    broker = mastered.build()
    starting = asyncio.ensure_future(
        broker.start(store=mastered.store, mastership=mastered.mastership)
    )
    if is_late:
        await mastered.turns()
    asyncio.get_running_loop().call_soon(mastered.mastership.end)

    with pytest.raises(MasterFenced, match="replica 2 is the master"):
        await starting

    mastered.store.append(make_run("A", 0, [b"2"]))  # It is open.
    mastered.store.close()


# --- acks="replicas"


async def test_a_send_to_replicas_is_answered_when_they_have_it(tmp_path: Path) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        sender = Sender(mastered)
        first = await sender.send(b"1", acks=pb.REPLICAS)
        second = await sender.send(b"2", acks=pb.MEMORY)
        assert sender.answer(first) is None
        memory = sender.answer(second)
        assert memory is not None
        assert (memory.durability, memory.replicas) == (pb.MEMORY, 0)

        mastered.mastership.acknowledge(replicas=3)

        reply = sender.answer(first)
        assert reply is not None
        assert (reply.durability, reply.replicas, reply.first_queue_offset) == (pb.REPLICAS, 3, 0)


async def test_who_does_not_say_otherwise_sends_to_replicas(tmp_path: Path) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        sender = Sender(mastered)
        run = await sender.send(b"1", acks=pb.DURABILITY_UNSPECIFIED)
        message = v2.Message(
            topic={"name": TOPIC},
            body=b"2",
            system_properties=v2.SystemProperties(message_id="id-1"),
        )
        call = mastered.begin("SendMessage", v2.SendMessageRequest(messages=[message]), V2)
        await mastered.turns()
        assert sender.answer(run) is None
        assert call.answers == []
        assert bodies_of(mastered.store, TOPIC, 0) == []

        mastered.mastership.acknowledge()

        reply = sender.answer(run)
        assert reply is not None
        assert reply.durability == pb.REPLICAS
        assert call.answer.status.code == v2.OK


async def test_too_few_replicas_refuse_before_anything_is_stored(tmp_path: Path) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        await mastered.topic("safe", min_in_sync="3")
        sender = Sender(mastered)
        end = mastered.store.max_log_offset

        assert isinstance(
            sender.error(await sender.send(b"1", acks=pb.REPLICAS, topic="safe")), NotEnoughReplicas
        )
        mastered.mastership.in_sync = 0
        assert isinstance(
            sender.error(await sender.send(b"1", acks=pb.REPLICAS)), NotEnoughReplicas
        )
        assert mastered.store.max_log_offset == end
        assert sender.error(await sender.send(b"1", acks=pb.MEMORY, topic="safe")) is None


async def test_a_set_that_shrank_meanwhile_leaves_it_in_doubt(tmp_path: Path) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        await mastered.topic("safe", min_in_sync="2")
        sender = Sender(mastered)

        run = await sender.send(b"1", acks=pb.REPLICAS)
        mastered.mastership.acknowledge(0, NotEnoughReplicasAfterAppend("only 1 in sync"))
        error = sender.error(run)
        assert isinstance(error, NotEnoughReplicasAfterAppend)
        assert error.retriable

        # All in sync have it, as many as the set needs, but not as many as its topic does.
        run = await sender.send(b"1", acks=pb.REPLICAS, topic="safe")
        mastered.mastership.acknowledge(1)
        error = sender.error(run)
        assert isinstance(error, NotEnoughReplicasAfterAppend)
        assert "topic 'safe' requires 2 (min_in_sync)" in error.message


async def test_replicas_that_say_nothing_are_not_waited_for_without_end(tmp_path: Path) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        sender = Sender(mastered)
        run = await sender.send(b"1", acks=pb.REPLICAS)

        await mastered.clock.advance(mastered.config.flush_timeout_ms)
        error = sender.error(run)

        assert isinstance(error, FlushTimeout)
        assert "not on all replicas" in error.message
        mastered.mastership.acknowledge()
        assert len(sender.stream.sent) == 1


async def test_a_repeat_waits_as_the_first_try_does(tmp_path: Path) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        sender = Sender(mastered)
        await sender.put(numbered_run([b"1"], 0, durability=pb.REPLICAS))
        end = mastered.store.max_log_offset

        again = await sender.put(numbered_run([b"1"], 0, durability=pb.REPLICAS))

        assert sender.answer(again) is None
        assert mastered.store.max_log_offset == end
        assert [one for one, _ in mastered.mastership.waiting] == [end, end]
        mastered.mastership.acknowledge()
        reply = sender.answer(again)
        assert reply is not None
        assert (reply.repeated_count, reply.first_queue_offset) == (1, 0)


# --- ending


async def test_nothing_is_stored_or_acknowledged_from_the_turn_of_the_end_on(
    tmp_path: Path,
) -> None:
    """Each kind of call is under way: all fail at once, with where to ask, and the log stays as it is."""
    async with Mastered(tmp_path, flush="sync") as mastered:
        await mastered.topic()
        sender, fetcher = Sender(mastered), Fetcher(mastered)
        mastered.parts.groups.ensure("g")
        early = await sender.send(b"0", acks=pb.MEMORY)
        mastered.mastership.raise_confirm()
        fetcher.wait(offset=1)
        replicas = await sender.send(b"1", acks=pb.REPLICAS)
        send_back = mastered.begin(
            "SendBack", pb.SendBackRequest(group="g", topic=TOPIC, queue_offset=0)
        )
        receive = mastered.begin(
            "QueryAssignment", v2.QueryAssignmentRequest(topic={"name": TOPIC}), V2
        )
        assert receive.answer is not None  # Nothing waits there.
        asked = pb.LeaseRequest(
            group="g",
            member_id="m",
            queues=[pb.QueueLease(topic=TOPIC, queue=0)],
            wait_ms=5_000,
        )
        lease = mastered.begin("LeaseQueues", asked)
        assert lease.answer is not None
        asked.member_id = "n"
        other = mastered.begin("LeaseQueues", asked)
        await mastered.turns()
        end = mastered.store.max_log_offset
        # In the very turn of the end: this is not appended yet.
        late = sender.begin(Sender.run(b"2", acks=pb.MEMORY))

        mastered.mastership.end()
        await mastered.turns()

        first = sender.answer(early)
        assert first is not None
        assert not first.error.name
        for run in (replicas, late):
            error = sender.error(run)
            assert isinstance(error, MasterFenced)
            assert error.details == {"address": "b:1", "epoch": "8"}
        assert isinstance(send_back.error, MasterFenced)
        assert isinstance(other.error, MasterFenced)
        assert isinstance(fetcher.stream.error, MasterFenced)
        assert mastered.store.max_log_offset == end

        # And whatever comes now.
        assert isinstance(
            mastered.begin("GroupOffsets", pb.GroupOffsetsRequest()).error, MasterFenced
        )
        for acks in (pb.MEMORY, pb.DISK, pb.REPLICAS):
            assert isinstance(sender.error(await sender.send(b"3", acks=acks)), MasterFenced)
        status = mastered.begin("Status", pb.BrokerStatusRequest()).answer
        assert (status.epoch, status.in_sync, status.broker_id) == (7, 2, 1)
        assert mastered.store.max_log_offset == end


class Held:
    """Something whose sync ends when the test says so; what is to be synced behind it waits."""

    def __init__(self, goes_on: Event) -> None:
        self._goes_on = goes_on

    def sync(self) -> None:
        self._goes_on.wait()


async def test_what_the_device_has_is_not_acknowledged_by_who_is_master_no_more(
    tmp_path: Path,
) -> None:
    """A send to disk is under way when the lease ends: the answer says nothing of stored."""
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        sender = Sender(mastered)
        mastered.mastership.over = None
        goes_on = Event()
        mastered.store.flusher.submit(FlushJob([Held(goes_on)], lambda _: None))
        try:
            run = await sender.send(b"1", acks=pb.DISK)
            assert sender.answer(run) is None
            mastered.mastership.over = FENCED  # By its lease: nobody was told.
        finally:
            goes_on.set()

        while sender.answer(run) is None:  # noqa: ASYNC110 (a thread has to come round first)
            await asyncio.sleep(0.001)

        assert isinstance(sender.error(run), MasterFenced)
        mastered.mastership.over = None


async def test_stop_is_quick_and_leaves_the_store_open(tmp_path: Path) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        listeners = len(mastered.store.events.flushed)
        sender = Sender(mastered)
        for number in range(3):
            await sender.send(b"%d" % number, acks=pb.REPLICAS)
        mastered.mastership.raise_confirm()
        began_s = time.process_time()

        mastered.mastership.end()
        await mastered.broker.stop()

        assert time.process_time() - began_s < 0.5
        assert mastered.store.health.state == "open"
        assert mastered.store.flushed_offset == mastered.store.max_log_offset
        assert listeners > len(mastered.store.events.flushed)
        # It is master again, with what it has.
        mastered._epoch = 9
        await mastered.start()
        fetcher = Fetcher(mastered)
        fetcher.fetch()
        assert fetcher.bodies == [[b"0", b"1", b"2"]]


async def test_listeners_of_the_store_are_as_before(tmp_path: Path) -> None:
    mastered = Mastered(tmp_path)
    flushed: list[int] = []
    mastered.store.events.flushed.append(flushed.append)
    before = list(mastered.store.events.flushed)
    async with mastered:
        assert len(mastered.store.events.flushed) > len(before)
        mastered.mastership.end()
        await mastered.broker.stop()
        assert mastered.store.events.flushed == before


# --- what earlier masters granted


async def test_leases_and_generations_of_a_new_master_are_above_all_before(tmp_path: Path) -> None:
    tokens: list[int] = []
    generations: list[int] = []
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        for epoch in (8, 9):
            queue = pb.QueueLease(topic=TOPIC, queue=0)
            for _ in range(2):
                request = pb.LeaseRequest(group="g", member_id="m", queues=[queue])
                tokens.append(mastered.begin("LeaseQueues", request).answer.queues[0].token)
            offset = pb.GroupOffset(topic=TOPIC, queue=0, offset=0, lease=tokens[0])
            commit = mastered.begin(
                "CommitOffsets", pb.CommitOffsetsRequest(group="g", offsets=[offset])
            )
            assert (
                type(commit.error).__name__ == "LeaseLost"
            )  # Granted again, or by another master.
            stream, receiver = mastered.stream("JoinGroup")
            receiver.on_message(
                pb.MemberRequest(
                    join=pb.Join(
                        group="other",
                        member_id="m",
                        generation=max(generations, default=0),
                        subscriptions=[pb.Subscription(topic=TOPIC)],
                        strategy="average",
                    )
                )
            )
            await mastered.clock.advance(60_000)
            generations.append(stream.sent[0].members.generation)
            mastered.mastership.end()
            await mastered.broker.stop()
            mastered._epoch = epoch
            await mastered.start()

    assert tokens == [(7 << 32) + 1, (7 << 32) + 2, (8 << 32) + 1, (8 << 32) + 2]
    assert [generation >> 32 for generation in generations] == [7, 8]


async def test_receipt_handles_of_another_master_are_refused_or_finished_already(
    tmp_path: Path,
) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        for handle in ("p0-0-1f", "p0-7-1f", "r0-0-1", "p3-0-1", "nonsense"):
            call = mastered.begin(
                "AckMessage",
                v2.AckMessageRequest(
                    group={"name": "g"},
                    topic={"name": TOPIC},
                    entries=[v2.AckMessageEntry(message_id="id", receipt_handle=handle)],
                ),
                V2,
            )
            await mastered.turns()
            assert call.error is None
            codes = {entry.status.code for entry in call.answer.entries}
            assert codes <= {v2.OK, v2.INVALID_RECEIPT_HANDLE}, handle


def test_the_errors_are_told_apart_by_their_classes() -> None:
    before, after = NotEnoughReplicas("x"), NotEnoughReplicasAfterAppend("x")
    assert not isinstance(after, type(before))
    assert all(isinstance(one, PocketMQError) and one.retriable for one in (before, after, FENCED))
