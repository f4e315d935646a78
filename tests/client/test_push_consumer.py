"""Push consumers in any order: each message is handled, what fails comes again, what is finished is committed."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pocketmq.client import AsyncPushConsumer, PushConsumer
from pocketmq.proto.errors import ClientClosed, ConfigError, InvalidName

from .push_seen import Seen
from .push_world import World, number, store


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def seen() -> Seen:
    return Seen()


async def test_every_message_is_handled_once_and_committed(world: World, seen: Seen) -> None:
    store(world.broker, 2_000)

    async with world.consumer(seen, fetch_messages_max=700):
        await world.pass_ms(10)
        store(world.broker, 3)
        await world.pass_ms(10)
        assert seen.numbers == list(range(2_003))
        assert world.broker.committed_of() is None
        await world.pass_ms(5_000)
        assert world.broker.committed_of() == 2_003


async def test_a_broker_that_forgot_a_commit_hears_it_again(world: World, seen: Seen) -> None:
    store(world.broker, 5)
    address = world.broker.address

    async with world.consumer(seen):
        await world.pass_ms(6_000)
        assert world.broker.committed_of() == 5
        world.cluster.lost.add(address)
        world.broker.wake()
        await world.pass_ms(100)
        world.broker.committed.clear()
        world.cluster.lost.clear()
        await world.pass_ms(6_000)
        assert world.broker.committed_of() == 5

    assert seen.numbers == list(range(5))


async def test_a_message_that_is_at_work_holds_the_offset(world: World, seen: Seen) -> None:
    store(world.broker, 100)
    event = seen.gate(3)

    async with world.consumer(seen) as consumer:
        await world.pass_ms(10_000)
        assert sorted(seen.numbers) == list(range(100))
        assert world.broker.committed_of() == 3
        assert consumer.metrics().handled == 99
        event.set()
        await world.pass_ms(5_000)
        assert world.broker.committed_of() == 100
        assert consumer.metrics().handled == 100


async def test_listeners_that_wait_are_called_beside_each_other_up_to_the_bound(
    world: World, seen: Seen
) -> None:
    store(world.broker, 50)
    event = seen.gate(*range(50))

    async with world.consumer(seen, concurrency=7):
        await world.pass_ms(1)
        assert seen.at_once == 1
        await world.pass_ms(100)
        assert seen.at_once == 7
        event.set()
        await world.pass_ms(100)
        assert (seen.most_at_once, len(seen.numbers)) == (7, 50)


async def test_a_batch_listener_gets_lists(world: World) -> None:
    store(world.broker, 1_000)
    batches: list[list[int]] = []

    async def listener(messages: list[Any]) -> None:
        batches.append([number(message) for message in messages])

    async with world.consumer(listener, listener_batch_size=300):
        await world.pass_ms(1)

    assert [len(batch) for batch in batches] == [300, 212, 300, 188]
    assert [n for batch in batches for n in batch] == list(range(1_000))
    assert world.broker.committed_of() == 1_000


async def test_a_lost_queue_is_neither_committed_nor_sent_back(world: World, seen: Seen) -> None:
    store(world.broker, 10)
    event = seen.gate(5)
    async with world.consumer(seen) as consumer:
        await world.pass_ms(20)
        assert consumer._pushing is not None
        (queue,) = [q for q in consumer._pushing._intakes if q.topic == "orders"]

        await consumer._pushing.end(queue, lost=True)
        event.set()
        await world.pass_ms(10_000)

    assert world.broker.committed_of() is None
    assert world.broker.sent_back == []


async def test_a_topic_that_was_made_anew_is_read_from_its_start(world: World, seen: Seen) -> None:
    world.broker.committed["billing", "orders", 0] = 100
    store(world.broker, 5)

    async with world.consumer(seen):
        await world.pass_ms(1)
        assert seen.numbers == []
        store(world.broker, 2)
        await world.pass_ms(1)

    assert seen.numbers == [5, 6]
    assert world.broker.committed_of() == 7


async def test_metrics_tell_of_lag_and_times(world: World, seen: Seen) -> None:
    store(world.broker, 10)
    event = seen.gate(4)

    async with world.consumer(seen) as consumer:
        await world.pass_ms(20)
        metrics = consumer.metrics()
        event.set()
        await world.pass_ms(20)
        later = consumer.metrics()

    assert sum(lag for queue, lag in metrics.lag.items() if queue.topic == "orders") == 6
    assert metrics.in_process == 1
    assert later.in_process == 0
    assert later.handled == sum(later.listener_ms_counts) == 10
    assert len(later.listener_ms_counts) == len(later.listener_ms_bounds) + 1


async def test_a_listener_is_needed(world: World, seen: Seen) -> None:
    consumer = world.consumer(None)

    with pytest.raises(ConfigError, match="no listener"):
        await consumer.start()
    with pytest.raises(ClientClosed, match="not started"):
        consumer.metrics()
    consumer.listener(seen)
    store(world.broker, 1)
    async with consumer:
        await world.pass_ms(1)
    assert seen.numbers == [0]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": 1_001}, "1 to 1000"),
        ({"suspend_current_queue_ms": 9}, "10 to 30000"),
        ({"suspend_current_queue_ms": 30_001}, "10 to 30000"),
        ({"listener_batch_size": 0}, "listener_batch_size"),
        ({"delivery": "exactly_once"}, "at_most_once"),
        ({"max_reconsume_times": -1}, "max_reconsume_times"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        PushConsumer("billing", "orders", print, **settings)


def test_names_are_checked() -> None:
    with pytest.raises(InvalidName):
        PushConsumer("bil/ling", "orders", print)
    with pytest.raises(InvalidName):
        PushConsumer("billing", {"or/ders": "a"}, print)


def test_both_faces_offer_the_same() -> None:
    def offers(face: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(face) if not name.startswith("_")}

    assert offers(AsyncPushConsumer) == offers(PushConsumer)
    ours = set(inspect.signature(AsyncPushConsumer.__init__).parameters)
    assert ours - set(inspect.signature(PushConsumer.__init__).parameters) == {
        "clock",
        "connections",
        "random",
    }
