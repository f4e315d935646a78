"""Clients of a replica set that gets another master: told by a replica, by name servers, or by nobody for a while."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from pocketmq.client import AsyncAdmin, AsyncPullConsumer
from pocketmq.client.administration.brokers import Brokers
from pocketmq.client.config import ClientConfig
from pocketmq.client.follower_choice import MASTER_MS
from pocketmq.client.session import Session
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    ConfigError,
    ConnectFailed,
    MasterFenced,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    RequestTimeout,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_broker import bodies
from .fake_connections import FakeConnection, FakeConnections
from .fake_replica_set import FakeReplicaSet
from .producing import messages, producer, settle
from .pull_world import numbers, store

BEGAN_MS = VirtualClock().now_ms()


def session(replicas: FakeReplicaSet, clock: VirtualClock) -> Session:
    return Session(ClientConfig(nameservers="n1:1"), FakeConnections(replicas), clock, Random(1))


def fenced(by: FakeReplicaSet, master: int, epoch: int) -> MasterFenced:
    return MasterFenced("not the master", broker="broker-a", master=by.address(master), epoch=epoch)


# ---------------------------------------------------------------- routes


async def test_a_route_leads_to_the_master() -> None:
    replicas = FakeReplicaSet("orders")
    replicas.elect(3)
    routes = session(replicas, VirtualClock()).routes

    await routes.find("orders")

    assert routes.address("broker-a") == replicas.address(3)


async def test_between_two_masters_the_queues_stay_and_the_last_master_is_asked() -> None:
    replicas = FakeReplicaSet("orders", queues=4)
    routes = session(replicas, VirtualClock()).routes
    await routes.find("orders")
    replicas.told = replicas.data_of(0, 1)
    routes.forget("orders")

    assert len((await routes.find("orders")).writable) == 4
    assert routes.address("broker-a") == replicas.address(1)


async def test_who_comes_between_two_masters_asks_a_follower() -> None:
    replicas = FakeReplicaSet("orders", queues=4)
    replicas.lost.add(replicas.address(1))
    replicas.told = replicas.data_of(0, 1)
    routes = session(replicas, VirtualClock()).routes

    assert len((await routes.find("orders")).readable) == 4
    assert routes.address("broker-a") == replicas.address(2)


async def test_what_a_name_server_says_of_a_lower_epoch_is_not_heard() -> None:
    replicas = FakeReplicaSet("orders")
    routes = session(replicas, VirtualClock()).routes
    await routes.find("orders")
    old = replicas.as_told()
    replicas.elect(2)
    await routes.brokers()

    replicas.told = old
    await routes.brokers()

    assert routes.address("broker-a") == replicas.address(2)


async def test_a_replica_that_knows_of_a_higher_epoch_is_followed() -> None:
    replicas = FakeReplicaSet("orders")
    routes = session(replicas, VirtualClock()).routes
    await routes.find("orders")
    first, third = replicas.address(1), replicas.address(3)

    assert routes.note_error("broker-a", first, fenced(replicas, 3, 2))
    assert routes.address("broker-a") == third
    assert not routes.note_error("broker-a", third, fenced(replicas, 1, 1)), (
        "older than what is known"
    )
    assert routes.address("broker-a") == third
    assert routes.note_error("broker-a", first, fenced(replicas, 3, 2)), (
        "another call was there first"
    )
    assert not routes.note_error("broker-a", third, MasterFenced("nobody knows the master"))


async def test_who_cannot_be_reached_has_the_next_replica_asked() -> None:
    replicas = FakeReplicaSet("orders")
    routes = session(replicas, VirtualClock()).routes
    await routes.find("orders")
    asked = []
    for _ in range(4):
        asked.append(routes.address("broker-a"))
        assert not routes.note_error("broker-a", asked[-1], ConnectFailed("gone"))

    assert asked == [replicas.address(id) for id in (1, 2, 3, 1)]
    await routes.brokers()
    assert routes.address("broker-a") == replicas.address(2), "the name server tells nothing new"
    assert routes.note_error("broker-a", replicas.address(2), fenced(replicas, 1, 1))
    assert routes.address("broker-a") == replicas.address(1)


async def test_a_master_that_is_back_as_a_single_broker_is_asked_where_it_is() -> None:
    replicas = FakeReplicaSet("orders")
    routes = session(replicas, VirtualClock()).routes
    await routes.find("orders")

    replicas.told = pb.BrokerData(broker_name="broker-a", addresses={0: "127.0.0.9:9"})
    await routes.brokers()

    assert routes.address("broker-a") == "127.0.0.9:9"
    assert not routes.is_replicated("broker-a")


# ---------------------------------------------------------------- producers


async def test_a_producer_follows_to_the_new_master_at_once() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    async with producer(replicas, clock) as sending:
        await sending.send(messages(1)[0])
        replicas.told = replicas.as_told()  # The name servers have not heard of the election.
        replicas.elect(2)

        receipts = await sending.send_many(messages(5))

    assert clock.now_ms() == BEGAN_MS, "without a pause"
    assert len(receipts) == 5
    assert bodies(replicas.data, "orders") == [[b"0", b"0", b"1", b"2", b"3", b"4"]]
    assert replicas.asked.count("127.0.0.1:9876") == 1, "nor a question to a name server"


async def test_a_producer_waits_through_an_election_and_keeps_the_order() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    async with producer(replicas, clock, linger_ms=0) as sending:
        await sending.send(messages(1)[0])
        replicas.data.faults.append("lose")
        replicas.lost.add(replicas.address(1))
        replicas.master = 0
        sent = [asyncio.ensure_future(sending.send(message)) for message in messages(6)]
        for _ in range(20):
            await clock.advance(100)
        assert not any(one.done() for one in sent)

        replicas.elect(3)
        await clock.advance(1_100)
        await asyncio.gather(*sent)

    assert bodies(replicas.data, "orders") == [[b"0", *(b"%d" % number for number in range(6))]]


async def test_a_producer_does_not_wait_for_a_master_that_stands_still() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    async with producer(replicas, clock) as sending:
        await sending.send(messages(1)[0])
        replicas.data.gate = asyncio.Event()
        sent = asyncio.ensure_future(sending.send(messages(2)[1]))
        await settle()
        replicas.data.gate = None  # From here on another replica answers, this one does not.
        await clock.advance(2_000)
        assert not sent.done(), "nobody else is master"

        replicas.elect(2)
        await clock.advance(1_000)

        assert sent.done(), "it would wait for request_timeout_ms"
        assert (await sent).repeated

    assert bodies(replicas.data, "orders") == [[b"0", b"1"]]


async def test_who_answers_in_time_has_no_name_server_asked() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    async with producer(replicas, clock) as sending:
        for message in messages(30):
            await sending.send(message)
            await clock.advance(200)

    assert replicas.asked.count("127.0.0.1:9876") == 1


async def test_what_the_old_master_had_stored_is_not_stored_twice() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    async with producer(replicas, clock) as sending:
        await sending.send(messages(1)[0])
        replicas.data.faults.append("lose")
        lost = asyncio.ensure_future(sending.send(messages(2)[1]))
        await settle()
        replicas.elect(2)
        await clock.advance(100)

        assert (await lost).repeated
        assert sending.metrics().epochs == 0

    assert bodies(replicas.data, "orders") == [[b"0", b"1"]]


async def test_a_run_that_was_fenced_may_have_been_stored_and_goes_nowhere_else() -> None:
    replicas, clock = FakeReplicaSet("orders", queues=4), VirtualClock()
    async with producer(replicas, clock) as sending:
        await sending.send(messages(1)[0])
        replicas.data.faults.append(MasterFenced("the epoch is over"))
        sent = asyncio.ensure_future(sending.send_many(messages(3)))
        await clock.advance(100)
        receipts = await sent
        metrics = sending.metrics()

    assert len({receipt.queue for receipt in receipts}) == 1
    assert (metrics.moves, metrics.retries, metrics.epochs) == (0, 1, 0)


async def test_a_run_in_doubt_goes_nowhere_else() -> None:
    replicas, clock = FakeReplicaSet("orders", queues=4), VirtualClock()
    async with producer(replicas, clock, acks="replicas") as sending:
        replicas.data.faults.append(NotEnoughReplicasAfterAppend("a follower is gone"))
        sent = asyncio.ensure_future(sending.send_many(messages(3)))
        await clock.advance(100)
        await sent
        metrics = sending.metrics()

    assert (metrics.moves, metrics.retries, metrics.epochs) == (0, 1, 0)


async def test_too_few_replicas_are_waited_for() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    async with producer(replicas, clock, acks="replicas") as sending:
        replicas.data.faults += [NotEnoughReplicas("one of two")] * 3
        sent = asyncio.ensure_future(sending.send(messages(1)[0]))
        await clock.advance(1_000)

        receipt = await sent

    assert (receipt.durability, receipt.replicas) == ("replicas", 2)


# ---------------------------------------------------------------- questions


async def test_a_question_follows_to_the_new_master_at_once() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    here = session(replicas, clock)
    await here.routes.find("orders")
    replicas.elect(2)

    reply = await here.ask("broker-a", "Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply, 99)

    assert reply.broker_name == "broker-a"
    assert clock.now_ms() == BEGAN_MS


async def asked(replicas: FakeReplicaSet, clock: VirtualClock, **settings: Any) -> Any:
    """Begin to ask a set whose master has just gone; return the question."""
    here = session(replicas, clock)
    await here.routes.find("orders")
    replicas.lost.add(replicas.address(1))
    replicas.master = 0
    request = pb.BrokerStatusRequest()
    question = asyncio.ensure_future(
        here.ask("broker-a", "Status", request, pb.BrokerStatusReply, 5_000, **settings)
    )
    for _ in range(20):
        await clock.advance(100)
    return question


async def test_a_question_waits_through_an_election() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    question = await asked(replicas, clock)
    assert not question.done()

    replicas.elect(3)
    await clock.advance(200)

    assert (await question).broker_name == "broker-a"


async def test_a_question_does_not_wait_for_a_master_that_stands_still() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    here = session(replicas, clock)
    await here.routes.find("orders")
    epoch = here.routes.epoch("broker-a")
    first = replicas.address(1)
    waiting = asyncio.ensure_future(here.of_master("broker-a", first, asyncio.Event().wait()))
    await clock.advance(5_000)
    assert not waiting.done()

    replicas.elect(2)
    await clock.advance(1_000)

    with pytest.raises(MasterFenced, match=f"{first} does not answer, and .* in epoch 2"):
        await waiting
    assert epoch == 1
    assert here.routes.address("broker-a") == replicas.address(2)


async def test_a_question_does_not_wait_for_ever() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    question = await asked(replicas, clock)
    for _ in range(40):
        await clock.advance(100)

    with pytest.raises((MasterFenced, ConnectFailed)):
        await question


async def test_what_may_not_be_done_twice_is_not_asked_again_after_a_loss() -> None:
    question = await asked(FakeReplicaSet("orders"), VirtualClock(), repeatable=False)

    with pytest.raises(ConnectFailed):
        await question


async def test_an_admin_is_led_to_the_master() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    replicas.told = replicas.as_told()
    replicas.elect(3)
    async with AsyncAdmin(clock=clock, connections=FakeConnections(replicas)) as admin:
        await admin.create_group("billing")

    assert list(replicas.data.groups) == ["billing"]


# ---------------------------------------------------------------- consumers


def consumer(
    replicas: FakeReplicaSet, clock: VirtualClock, wanted: Any = "orders", **settings: Any
) -> AsyncPullConsumer:
    replicas.data.sharing.clock = clock
    connections = FakeConnections(replicas)
    return AsyncPullConsumer("billing", wanted, clock=clock, connections=connections, **settings)


async def test_a_consumer_reads_on_at_the_new_master() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    store(replicas.data, 3)
    async with consumer(replicas, clock) as reading:
        assert numbers(await reading.poll()) == [0, 1, 2]
        replicas.told = replicas.as_told()
        replicas.elect(2)
        store(replicas.data, 2)  # Whoever waited at the old master asks anew.

        assert numbers(await reading.poll()) == [3, 4]
        await reading.commit()

    assert clock.now_ms() == BEGAN_MS
    assert replicas.data.committed == {("billing", "orders", 0): 5}


async def test_a_consumer_waits_through_an_election_and_keeps_its_queues() -> None:
    replicas, clock = FakeReplicaSet("orders", queues=2), VirtualClock()
    store(replicas.data, 3)
    async with consumer(replicas, clock) as reading:
        assert numbers(await reading.poll()) == [0, 1, 2]
        replicas.lost.add(replicas.address(1))
        replicas.master = 0
        store(replicas.data, 2)
        waiting = asyncio.ensure_future(reading.poll(timeout_ms=60_000))
        for _ in range(20):
            await clock.advance(100)
        before = await reading.assignment()

        replicas.elect(2)
        for _ in range(10):
            await clock.advance(100)

        assert numbers(await waiting) == [3, 4]
        assert await reading.assignment() == before
        assert len(before) == 2
        await reading.commit()
    assert replicas.data.committed[("billing", "orders", 0)] == 5


async def test_a_consumer_does_not_wait_for_a_master_that_stands_still() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    store(replicas.data, 3)
    async with consumer(replicas, clock) as reading:
        assert numbers(await reading.poll()) == [0, 1, 2]
        await settle()
        replicas.data.waiting.clear()  # It is not told of what comes.
        replicas.elect(2)
        store(replicas.data, 2)
        waiting = asyncio.ensure_future(reading.poll(timeout_ms=60_000))
        for _ in range(52):
            await clock.advance(100)

        assert waiting.done(), "it would wait for fetch_max_wait_ms"
        assert numbers(await waiting) == [3, 4]


# ---------------------------------------------------------------- reads from any replica


async def test_a_consumer_may_read_from_followers_and_commits_to_the_master() -> None:
    replicas, clock = FakeReplicaSet("orders", queues=4), VirtualClock()
    for queue in range(4):
        store(replicas.data, 3, queue=queue)
    async with consumer(replicas, clock, read_from="any") as reading:
        found: list[int] = []
        while len(found) < 12:
            found += numbers(await reading.poll())
        await reading.commit()

    assert sorted(found) == sorted([0, 1, 2] * 4)
    followers = [replicas.replicas[id].fetches for id in (2, 3)]
    assert sum(followers) >= 4
    assert sorted(replicas.data.committed.values()) == [3, 3, 3, 3]


async def test_nobody_reads_from_followers_unasked() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    store(replicas.data, 3)
    async with consumer(replicas, clock) as reading:
        assert numbers(await reading.poll()) == [0, 1, 2]

    assert [replicas.replicas[id].fetches for id in (2, 3)] == [0, 0]


async def test_where_a_follower_lags_behind_the_group_the_master_is_read() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    store(replicas.data, 5)
    replicas.data.committed["billing", "orders", 0] = 4
    for id in (2, 3):
        replicas.replicas[id].has = 2
    async with consumer(replicas, clock, read_from="any") as reading:
        assert numbers(await reading.poll()) == [4]

    assert sum(replicas.replicas[id].fetches for id in (2, 3)) == 1


async def test_where_a_follower_is_lost_the_master_is_read_at_once() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    store(replicas.data, 3)
    replicas.lost |= {replicas.address(2), replicas.address(3)}
    replicas.told = replicas.data_of(1, 1)
    for id in (2, 3):
        replicas.told.replicas.add(replica_id=id, address=replicas.address(id), role=pb.FOLLOWER)
    async with consumer(replicas, clock, read_from="any") as reading:
        assert numbers(await reading.poll()) == [0, 1, 2]

    assert clock.now_ms() == BEGAN_MS


async def test_what_a_follower_has_filtered_the_master_is_told() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    store(replicas.data, 5)
    replicas.data.unwanted = {1, 2}
    async with consumer(replicas, clock, {"orders": "red"}, read_from="any") as reading:
        assert numbers(await reading.poll()) == [0, 3, 4]
        await settle()

    told, *_ = replicas.data.told
    looked = told.looked_at
    assert (told.group, told.offset, told.filter.expression) == ("billing", 0, "red")
    assert (looked.next_offset, list(looked.steps), looked.filtered_count) == (5, [1, 3, 1], 2)
    assert told.lease > 0


async def test_who_leaves_waits_until_the_master_has_heard_what_a_follower_has_filtered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    store(replicas.data, 5)
    replicas.data.unwanted = {1, 2}
    fetch = FakeConnection.fetch

    async def fetch_slowly(
        connection: FakeConnection, request: pb.FetchRequest, timeout_ms: float
    ) -> pb.FetchReply:
        for _ in range(200 * request.HasField("looked_at")):
            await asyncio.sleep(0)
        return await fetch(connection, request, timeout_ms)

    monkeypatch.setattr(FakeConnection, "fetch", fetch_slowly)
    async with consumer(replicas, clock, {"orders": "red"}, read_from="any") as reading:
        assert numbers(await reading.poll()) == [0, 3, 4]

    assert [told.looked_at.next_offset for told in replicas.data.told] == [5]


async def test_a_master_that_does_not_hear_what_was_filtered_is_not_told_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    store(replicas.data, 5)
    fetch = FakeConnection.fetch
    told: list[int] = []

    async def fetch_or_be_silent(
        connection: FakeConnection, request: pb.FetchRequest, timeout_ms: float
    ) -> pb.FetchReply:
        if request.HasField("looked_at"):
            told.append(request.offset)
            raise RequestTimeout("no answer in time")
        return await fetch(connection, request, timeout_ms)

    monkeypatch.setattr(FakeConnection, "fetch", fetch_or_be_silent)
    async with consumer(
        replicas, clock, {"orders": "red"}, read_from="any", fetch_messages_max=1
    ) as reading:
        found: list[int] = []
        while len(found) < 5:
            found += numbers(await reading.poll())
        assert (found, told) == ([0, 1, 2, 3, 4], [0])
        await clock.advance(MASTER_MS)
        await settle()
        store(replicas.data, 1)
        assert numbers(await reading.poll()) == [5]
        await settle()
        assert told == [0, 5]


async def test_one_fetch_may_be_of_a_follower_as_well() -> None:
    replicas, clock = FakeReplicaSet("orders"), VirtualClock()
    store(replicas.data, 3)
    async with consumer(replicas, clock, (), read_from="any") as reading:
        pulled = await reading.pull("orders", 0, 1)

    assert sum(replicas.replicas[id].fetches for id in (2, 3)) == 1
    assert (numbers(pulled.messages), pulled.next_offset) == ([1, 2], 3)


# ---------------------------------------------------------------- questions to any replica


class Asking:
    """An admin's questions for offsets, at a set of replicas with five messages."""

    def __init__(self) -> None:
        self.replicas, self.clock = FakeReplicaSet("orders"), VirtualClock()
        store(self.replicas.data, 5)
        self.replicas.data.committed["G", "orders", 0] = 2
        self.brokers = Brokers(session(self.replicas, self.clock), 1_000)

    async def ask(self) -> pb.GroupOffsetsReply:
        await self.brokers.addresses()
        request = pb.GroupOffsetsRequest(
            group="G", queues=[pb.QueueId(topic="orders")], from_any=True
        )
        reply = await self.brokers.ask("broker-a", "GroupOffsets", request, pb.GroupOffsetsReply)
        assert [one.offset for one in reply.offsets] == [2]
        return reply

    @property
    def looks(self) -> int:
        return sum(one.looks for one in self.replicas.replicas.values())


async def test_a_question_for_any_replica_goes_to_a_follower() -> None:
    asking = Asking()

    reply = await asking.ask()

    assert (reply.follows, reply.bounds[0].max_offset) == (True, 5)


async def test_what_a_follower_refuses_the_master_answers_and_others_are_asked_later() -> None:
    asking = Asking()
    for replica in asking.replicas.replicas.values():
        replica.is_behind = True

    assert not (await asking.ask()).follows
    assert not (await asking.ask()).follows
    assert asking.looks == 1, "it was asked once"

    for replica in asking.replicas.replicas.values():
        replica.is_behind = False
    await asking.clock.advance(MASTER_MS)
    assert (await asking.ask()).follows


async def test_where_followers_are_lost_or_lead_or_there_are_none_the_master_answers() -> None:
    lost, led, alone = Asking(), Asking(), Asking()
    await lost.brokers.addresses()
    lost.replicas.lost |= {lost.replicas.address(2), lost.replicas.address(3)}
    lost.replicas.told = lost.replicas.data_of(1, 1)
    for id in (2, 3):
        lost.replicas.told.replicas.add(
            replica_id=id, address=lost.replicas.address(id), role=pb.FOLLOWER
        )
    led.replicas.told = led.replicas.as_told()  # Name servers have not heard of it.
    led.replicas.elect(2)
    alone.replicas.told = alone.replicas.as_told()
    del alone.replicas.told.replicas[:]

    assert not (await lost.ask()).follows
    replies = [await led.ask() for _ in range(3)]
    assert not (await alone.ask()).follows
    assert len(replies) == 3
    assert alone.looks == 0


async def test_another_word_for_whom_to_ask_is_refused() -> None:
    replicas = FakeReplicaSet("orders")
    async with AsyncAdmin("n1:1", connections=FakeConnections(replicas)) as admin:
        with pytest.raises(ConfigError, match="must be one of master, any"):
            await admin.describe_group("G", read_from="slave")  # type: ignore[arg-type]
