"""What an application says to a pull consumer: where to read, what not, and what it hears of its queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pocketmq.client import AsyncPullConsumer, PullConsumer, Queue, RebalanceListener, Sql
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    ConfigError,
    Disconnected,
    InvalidArgument,
    InvalidFilter,
    PocketMQError,
    SubscriptionMismatch,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_broker import add_topic
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections
from .test_pull_consumer import numbers, store


def q(number: int, topic: str = "orders") -> Queue:
    return Queue(topic, "broker-a", number)


class World:
    """A cluster of one broker, and consumers of one group."""

    def __init__(self, queues: int = 1) -> None:
        self.cluster = FakeCluster.of_one("orders", queues=queues)
        self.clock = VirtualClock()
        self.cluster.live_by(self.clock)
        self.broker = self.cluster.broker

    def consumer(self, topics: Any = "orders", **settings: Any) -> AsyncPullConsumer:
        connections = FakeConnections(self.cluster)
        return AsyncPullConsumer(
            "billing", topics, clock=self.clock, connections=connections, **settings
        )

    def committed(self, number: int = 0) -> int | None:
        return self.broker.committed.get(("billing", "orders", number))


# ------------------------------------------------------------ where


async def test_seek_goes_back_and_forth() -> None:
    here = World()
    store(here.broker, 20)

    async with here.consumer() as reading:
        assert numbers(await reading.poll(5)) == [0, 1, 2, 3, 4]
        await reading.seek(q(0), 12)
        assert await reading.position(q(0)) == 12
        assert numbers(await reading.poll(2)) == [12, 13]
        await reading.seek(q(0), 3)
        assert numbers(await reading.poll(1)) == [3]

    assert here.committed() == 4


async def test_what_was_handed_out_before_a_seek_does_not_count() -> None:
    here = World()
    store(here.broker, 20)

    async with here.consumer() as reading:
        await reading.poll()
        await reading.seek(q(0), 5)
        await reading.commit()
        assert here.committed() == 5
        assert numbers(await reading.poll(1)) == [5]


async def test_seeking_to_the_ends_and_to_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(queues=2)
    store(here.broker, 20)
    asked: list[int] = []

    def offsets(request: pb.QueueOffsetsRequest, _: Any) -> pb.QueueOffsetsReply:
        asked.append(request.time_ms)
        row = pb.QueueOffsets(max_offset=20, min_offset=2, offset_at_time=11)
        return pb.QueueOffsetsReply(offsets=[row])

    async with here.consumer() as reading:
        await reading.poll(1)
        monkeypatch.setattr(here.broker, "queue_offsets", offsets)
        assert await reading.seek_to_last([q(0)]) == {q(0): 20}
        assert await reading.seek_to_first([q(0)]) == {q(0): 2}
        when = datetime(2024, 1, 2, tzinfo=UTC)
        assert await reading.seek_to_time(None, when) == {q(0): 11, q(1): 11}
        assert numbers(await reading.poll(1)) == [11]

    assert asked[2:] == [1_704_153_600_000] * 2


async def test_only_what_is_read_can_be_steered() -> None:
    async with World().consumer() as reading:
        await reading.poll(timeout_ms=0)
        for wrong in (reading.seek(q(7), 0), reading.pause([q(7)]), reading.position(q(7))):
            with pytest.raises(InvalidArgument, match="not read by this consumer"):
                await wrong


async def test_positions_and_commits_are_told() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer() as reading:
        assert await reading.committed(q(0)) is None
        await reading.poll(3)
        assert await reading.position(q(0)) == 3
        assert await reading.committed(q(0)) is None
        await reading.commit_sync()
        assert await reading.committed(q(0)) == 3
        assert await reading.assignment() == [q(0)]


async def test_own_offsets_are_committed_alone() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(auto_commit=False) as reading:
        await reading.poll()
        await reading.commit_sync({q(0): 4})
        assert here.committed() == 4
        with pytest.raises(InvalidArgument):
            await reading.commit_sync({q(9): 4})

    assert here.committed() == 4


async def test_commits_that_nobody_waits_for_tell_their_outcome() -> None:
    here = World()
    store(here.broker, 10)
    heard: list[PocketMQError | None] = []

    async with here.consumer(auto_commit=False) as reading:
        await reading.poll(4)
        await reading.commit_async(heard.append)
        await here.clock.advance(1)
        here.cluster.lost.add(here.broker.address)
        await reading.poll(4)
        await reading.commit_async(heard.append)
        await here.clock.advance(1)
        here.cluster.lost.clear()

    assert heard[0] is None
    assert isinstance(heard[1], Disconnected)
    assert here.committed() == 4


@pytest.mark.parametrize("start", [datetime(2024, 1, 2, tzinfo=UTC), 1_704_153_600_000])
async def test_a_new_group_starts_at_a_time(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = World()
    store(here.broker, 20)

    def offsets(request: pb.QueueOffsetsRequest, _: Any) -> pb.QueueOffsetsReply:
        assert request.time_ms == 1_704_153_600_000
        return pb.QueueOffsetsReply(offsets=[pb.QueueOffsets(max_offset=20, offset_at_time=7)])

    monkeypatch.setattr(here.broker, "queue_offsets", offsets)
    async with here.consumer(start=start) as reading:
        assert numbers(await reading.poll(1)) == [7]


async def test_a_start_that_passes_over_commits_counts_once() -> None:
    here = World()
    store(here.broker, 20)
    here.broker.committed["billing", "orders", 0] = 15

    async with here.consumer(start="earliest") as first:
        assert numbers(await first.poll(2)) == [0, 1]
        async with here.consumer(start="earliest") as second:
            await first.close()
            await here.clock.advance(100)
            assert numbers(await second.poll(2)) == [2, 3]


# ------------------------------------------------------------ when not


async def test_a_paused_queue_hands_out_nothing_and_goes_on_where_it_was() -> None:
    here = World(queues=2)
    store(here.broker, 10, queue=0)

    async with here.consumer() as reading:
        assert numbers(await reading.poll(4)) == [0, 1, 2, 3]
        await reading.pause([q(0)])
        await here.clock.advance(100)
        assert await reading.poll(timeout_ms=0) == []
        store(here.broker, 1, queue=1)
        assert (await reading.poll())[0].queue == 1
        await reading.resume([q(0)])
        assert numbers(await reading.poll()) == [4, 5, 6, 7, 8, 9]


async def test_a_pause_lasts_when_the_queue_goes_and_comes_again() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer() as reading:
        await reading.poll(4)
        await reading.pause([q(0)])
        await reading.commit()
        here.broker.sharing.leases["billing", "orders", 0].token = 99
        await here.clock.advance(15_000)
        assert await reading.assignment() == [q(0)]
        assert await reading.poll(timeout_ms=0) == []
        await reading.resume([q(0)])
        assert numbers(await reading.poll(1)) == [4]


# ------------------------------------------------------------ what is read


async def test_subscribing_anew_reads_other_topics() -> None:
    here = World()
    add_topic(here.broker, "bills", 1)
    store(here.broker, 5, "orders")
    store(here.broker, 5, "bills")

    async with here.consumer() as reading:
        assert (await reading.poll())[0].topic == "orders"
        await reading.subscribe(["bills"])
        assert (await reading.poll())[0].topic == "bills"
        assert {queue.topic for queue in await reading.assignment()} == {"bills"}


async def test_filters_travel_with_every_fetch_and_join() -> None:
    here = World()
    fetched: list[pb.Filter] = []
    real = here.broker.fetch

    def fetch(request: pb.FetchRequest) -> pb.FetchReply:
        fetched.append(request.filter)
        return real(request)

    here.broker.fetch = fetch  # type: ignore[method-assign]
    async with here.consumer({"orders": "b || a"}) as reading:
        await reading.poll(timeout_ms=0)
        await here.clock.advance(1)
        await reading.subscribe({"orders": Sql("amount > 5")})
        await here.clock.advance(1)

    assert (fetched[0].kind, fetched[0].expression) == (pb.Filter.TAG, "a || b")
    assert fetched[-1].kind == pb.Filter.SQL
    (wanted,) = [s for s in here.broker.sharing.joins[0].subscriptions if s.topic == "orders"]
    assert wanted.filter == fetched[0]
    with pytest.raises(InvalidFilter):
        here.consumer({"orders": Sql("amount >")})


async def test_what_a_filter_steps_over_is_committed_and_counted() -> None:
    here = World()
    store(here.broker, 10)
    real = here.broker.fetch

    def fetch(request: pb.FetchRequest) -> pb.FetchReply:
        reply = real(request)
        if request.offset >= 4:
            reply.records, reply.filtered_count = b"", reply.next_offset - request.offset
        return reply

    here.broker.fetch = fetch  # type: ignore[method-assign]
    async with here.consumer({"orders": "x"}, fetch_messages_max=2) as reading:
        for _ in range(2):
            await reading.poll()
        waiting = asyncio.ensure_future(reading.poll(timeout_ms=6_000))
        await here.clock.advance(6_000)
        assert await waiting == []
        assert here.committed() == 10
        assert reading.metrics().filtered == 6


async def test_assigned_queues_are_read_beside_the_group() -> None:
    here = World(queues=3)
    for number in range(3):
        store(here.broker, 5, queue=number)
    here.broker.committed["billing", "orders", 1] = 2

    async with here.consumer(()) as reading:
        await reading.assign([q(1)])
        assert numbers(await reading.poll()) == [2, 3, 4]
        await reading.assign([q(2)])
        assert (await reading.poll())[0].queue == 2
        with pytest.raises(InvalidArgument, match="assigned"):
            await reading.subscribe("orders")

    assert (here.committed(1), here.committed(2)) == (5, 5)
    assert here.broker.sharing.joins == []
    assert here.broker.sharing.leases == {}


async def test_name_servers_are_asked_for_no_route_while_nothing_fails() -> None:
    here = World()
    store(here.broker, 5)

    async with here.consumer(()) as reading:
        await reading.assign([q(0)])
        await reading.poll()
        here.cluster.asked.clear()
        for _ in range(3):
            await here.clock.advance(60_000)
            store(here.broker, 1)
            assert len(await reading.poll()) == 1

        assert set(here.cluster.asked) == {here.broker.address}


async def test_who_subscribes_cannot_be_assigned() -> None:
    async with World().consumer() as reading:
        with pytest.raises(InvalidArgument, match="subscribes"):
            await reading.assign([q(0)])


async def test_broadcasting_reads_everything_and_keeps_its_own_offsets(tmp_path: Path) -> None:
    here = World(queues=2)
    for number in range(2):
        store(here.broker, 5, queue=number)
    settings = {"broadcasting": True, "offsets_folder": str(tmp_path)}

    for expected in (5, 5):
        async with (
            here.consumer(**settings, instance_id="one") as one,
            here.consumer(**settings, instance_id="two") as two,
        ):
            for reading in (one, two):
                assert len(await reading.poll()) == len(await reading.poll()) == expected
            with pytest.raises(InvalidArgument, match="retries off"):
                await one.send_back((await one.pull("orders", 0, 0)).messages[0])
        for number in range(2):
            store(here.broker, 5, queue=number)

    assert here.broker.committed == {}
    assert here.broker.sharing.joins == []


# ------------------------------------------------------------ promises


async def test_at_most_once_commits_before_it_hands_out() -> None:
    here = World()
    store(here.broker, 10)

    reading = here.consumer(delivery="at_most_once", fetch_messages_max=4)
    await reading.start()
    assert len(await reading.poll()) == 4
    assert here.committed() == 4

    await reading.close(finished=False)
    assert here.committed() == 4


async def test_at_most_once_gives_back_what_it_did_not_hand_out() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(delivery="at_most_once") as reading:
        await reading.poll(3)
        assert here.committed() == 10

    assert here.committed() == 3


async def test_at_most_once_hands_out_nothing_that_it_cannot_commit() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(delivery="at_most_once") as reading:
        await here.clock.advance(100)
        here.cluster.lost.add(here.broker.address)
        with pytest.raises(Disconnected):
            await reading.poll()
        here.cluster.lost.clear()
        assert numbers(await reading.poll()) == list(range(10))


async def test_at_most_once_needs_commits() -> None:
    with pytest.raises(ConfigError, match="auto_commit"):
        World().consumer(delivery="at_most_once", auto_commit=False)


async def test_bodies_become_values() -> None:
    here = World()
    store(here.broker, 3)

    async with here.consumer(value_deserializer="json") as reading:
        assert [message.value for message in await reading.poll()] == [0, 1, 2]


async def test_max_poll_records_bounds_a_poll() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(max_poll_records=4) as reading:
        assert [len(await reading.poll()) for _ in range(3)] == [4, 4, 2]


async def test_who_does_not_come_for_more_leaves_until_it_does() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(max_poll_interval_ms=8_000) as slow:
        assert len(await slow.poll(4)) == 4
        async with here.consumer() as other:
            await here.clock.advance(10_500)
            assert numbers(await other.poll()) == list(range(10))
            assert slow.metrics().repeats == 10
            waiting = asyncio.ensure_future(slow.poll())
            await here.clock.advance(500)
            assert here.broker.sharing.left
            waiting.cancel()
        store(here.broker, 1)
        assert numbers(await slow.poll()) == [10]


async def test_who_goes_through_a_batch_message_by_message_is_there() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(max_poll_interval_ms=8_000) as slow:
        count = 0
        async for _ in slow:
            await here.clock.advance(3_000)
            count += 1
            if count == 10:
                break
        assert here.broker.sharing.left == []


async def test_a_mismatch_is_raised_at_the_next_poll() -> None:
    here = World()
    here.broker.sharing.refusals = [SubscriptionMismatch("b wants something else")]

    async with here.consumer() as reading:
        with pytest.raises(SubscriptionMismatch, match="b wants"):
            await reading.poll()


# ------------------------------------------------------------ queues that come and go


class Hearing(RebalanceListener):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[int]]] = []

    def on_assigned(self, queues: Sequence[Queue]) -> None:
        self.heard.append(("assigned", sorted(queue.number for queue in queues)))

    async def on_revoked(self, queues: Sequence[Queue]) -> None:
        await asyncio.sleep(0)
        self.heard.append(("revoked", sorted(queue.number for queue in queues)))

    def on_lost(self, queues: Sequence[Queue]) -> None:
        self.heard.append(("lost", sorted(queue.number for queue in queues)))


async def test_a_listener_hears_of_queues_before_their_messages() -> None:
    here = World(queues=2)
    for number in range(2):
        store(here.broker, 4, queue=number)
    hearing = Hearing()

    async with here.consumer(listener=hearing) as reading:
        await here.clock.advance(10)
        assert len(await reading.poll(1)) == 1
        assert hearing.heard == [("assigned", [0, 1])]
        async with here.consumer() as other:
            for _ in range(4):
                await here.clock.advance(100)
                await reading.poll(timeout_ms=0)
            await here.clock.advance(100)
            assert len(await other.assignment()) == 1
            assert hearing.heard[1][0] == "revoked"
        await here.clock.advance(100)
        await reading.poll(timeout_ms=0)
        for lease in here.broker.sharing.leases.values():
            lease.token = 99
        await here.clock.advance(25_000)
        await reading.poll(timeout_ms=0)

    lost = [number for kind, numbers in hearing.heard if kind == "lost" for number in numbers]
    assert sorted(lost) == [0, 1]
    assert [kind for kind, _ in hearing.heard[:4]] == ["assigned", "revoked", "assigned", "lost"]
    assert hearing.heard[-1] == ("revoked", [0, 1])


class Fixed(Random):
    """Always the same number, so that members have an order."""

    def getrandbits(self, k: int, /) -> int:
        return self.number

    number = 0


async def test_what_was_handed_out_is_finished_before_its_queue_goes() -> None:
    here = World()
    store(here.broker, 10)
    late = Fixed()
    late.number = (1 << 48) - 1

    async with here.consumer(random=late) as first:
        assert len(await first.poll(3)) == 3
        async with here.consumer(random=Fixed()) as second:
            await here.clock.advance(1_000)
            assert await second.assignment() == []
            assert await first.poll(timeout_ms=0) == []
            await here.clock.advance(1_000)
            assert here.committed() == 3
            assert numbers(await second.poll()) == [3, 4, 5, 6, 7, 8, 9]
        assert first.metrics().repeats == 0


async def test_what_was_finished_when_a_queue_was_lost_does_not_come_again() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer() as reading:
        await reading.poll(4)
        await reading.commit()
        await reading.poll(4)
        waiting = asyncio.ensure_future(reading.poll(1))
        await here.clock.advance(0)
        here.broker.sharing.leases.clear()
        assert numbers(await waiting) == [8]
        await here.clock.advance(15_000)

        assert numbers(await reading.poll()) == [8, 9]
        assert reading.metrics().repeats == 10

    assert here.committed() == 10


FOR_THE_OTHER_FACE = {"take", "heard", "cursor", "check_open", "farewell", "disconnect"}


def test_the_two_faces_have_the_same_methods() -> None:
    def methods(face: type) -> set[str]:
        return {name for name in vars(face) if not name.startswith("_")}

    only_async = methods(AsyncPullConsumer) - methods(PullConsumer)
    assert only_async == {"start", *FOR_THE_OTHER_FACE}
    assert methods(PullConsumer) <= methods(AsyncPullConsumer)
