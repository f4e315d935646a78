"""Push consumers in any order: each message is handled, what fails comes again, what is finished is committed."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from typing import Any

import pytest

from pocketmq.client import AsyncPushConsumer, PushConsumer, Reject, Retry
from pocketmq.proto.errors import ClientClosed, ConfigError, Disconnected, InvalidName

from .push_world import DEAD, RETRIES, World, number, store


class Seen:
    """A coroutine listener that notes what it gets, and waits where it is told to."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.messages: list[Any] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.at_once = self.most_at_once = 0

    def gate(self, *numbers: int) -> asyncio.Event:
        """Have the listener wait at NUMBERS until the event is set."""
        event = asyncio.Event()
        self.gates |= dict.fromkeys(numbers, event)
        return event

    async def __call__(self, message: Any) -> None:
        self.numbers.append(number(message))
        self.messages.append(message)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if event := self.gates.get(number(message)):
                await event.wait()
        finally:
            self.at_once -= 1


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


async def test_what_is_finished_is_committed_at_the_end(world: World, seen: Seen) -> None:
    store(world.broker, 5)

    async with world.consumer(seen):
        await world.pass_ms(1)

    assert world.broker.committed_of() == 5


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


@pytest.mark.parametrize(
    ("answer", "level", "reason"),
    [
        (False, 0, "the listener returned False"),
        (Retry("later", delay_level=5), 5, "later"),
        (Reject("nonsense"), -1, "nonsense"),
        (ZeroDivisionError("by zero"), 0, "ZeroDivisionError: by zero"),
        ("yes", 0, "the listener returned 'yes', which means nothing"),
    ],
    ids=["false", "retry", "reject", "exception", "odd"],
)
@pytest.mark.parametrize("raising", [True, False])
async def test_a_failed_message_is_sent_back_as_the_listener_says(
    world: World, answer: Any, level: int, reason: str, raising: bool
) -> None:
    store(world.broker, 3)

    async def listener(message: Any) -> Any:
        if number(message) != 1 or message.reconsume_times:
            return True
        if raising and isinstance(answer, BaseException):
            raise answer
        return answer

    async with world.consumer(listener) as consumer:
        await world.pass_ms(10_000)
        (request,) = world.broker.sent_back
        metrics = consumer.metrics()

    assert (request.queue_offset, request.delay_level) == (1, level)
    assert request.reason.startswith(reason)
    assert not request.HasField("retry_max_times")
    assert world.broker.committed_of() == 3
    assert (metrics.failed, metrics.sent_back + metrics.dead) == (1, 1)


async def test_a_message_comes_again_under_its_own_topic_until_it_is_dead(world: World) -> None:
    store(world.broker, 1)
    seen: list[tuple[str, str, int]] = []

    async def listener(message: Any) -> bool:
        seen.append((message.topic, message.stored_topic, message.reconsume_times))
        return False

    async with world.consumer(listener, max_reconsume_times=2) as consumer:
        await world.pass_ms(30_000)
        metrics = consumer.metrics()

    assert seen == [("orders", "orders", 0), ("orders", RETRIES, 1), ("orders", RETRIES, 2)]
    assert len(world.broker.queues[DEAD, 0]) == 1
    assert (metrics.sent_back, metrics.dead, metrics.handled, metrics.failed) == (2, 1, 0, 3)
    assert world.broker.committed_of(RETRIES) == 2


async def test_a_message_that_cannot_be_sent_back_is_kept_and_tried_here(world: World) -> None:
    store(world.broker, 2)
    world.broker.refusals.extend([Disconnected("no"), Disconnected("no")])
    times: list[int] = []

    async def listener(message: Any) -> bool:
        if number(message) == 1:
            return True
        times.append(message.reconsume_times)
        return len(times) == 3

    async with world.consumer(listener) as consumer:
        await world.pass_ms(4_999)
        assert times == [0]
        await world.pass_ms(1)
        assert times == [0, 1]
        assert world.broker.committed_of() == 0
        await world.pass_ms(5_000)
        assert times == [0, 1, 2]
        await world.pass_ms(5_000)
        assert world.broker.committed_of() == 2
        assert consumer.metrics().handled == 2
    assert world.broker.sent_back == []


async def test_a_slow_message_is_sent_back_and_its_outcome_not_heard(
    world: World, seen: Seen
) -> None:
    store(world.broker, 3)
    event = seen.gate(1)

    async with world.consumer(seen, consume_timeout_ms=10_000) as consumer:
        await world.pass_ms(9_000)
        assert world.broker.sent_back == []
        await world.pass_ms(3_000)
        (request,) = world.broker.sent_back
        assert (request.queue_offset, request.delay_level) == (1, 3)
        await world.pass_ms(5_000)
        assert world.broker.committed_of() == 3
        assert consumer.metrics().slow == 1
        event.set()
        await world.pass_ms(20_000)
        assert len(world.broker.sent_back) == 1


async def test_a_slow_message_that_cannot_be_sent_back_is_not_handled_twice_here(
    world: World, seen: Seen
) -> None:
    store(world.broker, 1)
    event = seen.gate(0)
    world.broker.refusals.append(Disconnected("no"))

    async with world.consumer(seen, consume_timeout_ms=10_000):
        await world.pass_ms(12_000)
        assert world.broker.committed_of() == 0
        await world.pass_ms(10_000)
        assert len(world.broker.sent_back) == 1
        assert world.broker.committed_of() == 1
        event.set()


@pytest.mark.parametrize(
    ("settings", "metric", "reads"),
    [
        ({}, "paused_by_messages", 1_500),
        ({"queue_messages_max": 99}, "paused_by_messages", 500),
        ({"queue_messages_max": 10_000, "queue_bytes_max": 49_000}, "paused_by_bytes", 500),
        ({"queue_messages_max": 10_000}, "paused_by_span", 2_500),
    ],
    ids=["default", "messages", "bytes", "span"],
)
async def test_a_queue_that_holds_much_is_not_read_on(
    world: World, seen: Seen, settings: dict[str, int], metric: str, reads: int
) -> None:
    store(world.broker, 5_000)
    event = seen.gate(*range(5_000))

    async with world.consumer(seen, fetch_messages_max=500, **settings) as consumer:
        await world.pass_ms(1_000)
        fetches = world.broker.fetches
        assert fetches[-1].offset + 500 == reads
        assert getattr(consumer.metrics(), metric) == 1
        assert consumer.metrics().held == reads
        event.set()
        await world.pass_ms(1_000)
        assert sorted(seen.numbers) == list(range(5_000))
        assert consumer.metrics().held_bytes == 0


async def test_one_slow_message_stops_reading_when_the_span_is_too_long(
    world: World, seen: Seen
) -> None:
    store(world.broker, 5_000)
    event = seen.gate(10)

    async with world.consumer(seen, fetch_messages_max=500, close_timeout_ms=1):
        await world.pass_ms(1_000)
        assert sorted(seen.numbers) == list(range(2_500))
        event.set()
        await world.pass_ms(1_000)
        assert len(seen.numbers) == 5_000


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


async def test_only_the_messages_of_a_batch_that_are_named_come_again(world: World) -> None:
    store(world.broker, 10)
    again: list[int] = []

    async def listener(messages: list[Any]) -> Any:
        if messages[0].reconsume_times:
            again.extend(map(number, messages))
            return True
        return Retry(messages=[m for m in messages if number(m) % 3 == 0])

    async with world.consumer(listener, listener_batch_size=10) as consumer:
        await world.pass_ms(10_000)
        assert again == [0, 3, 6, 9]
        assert consumer.metrics().handled == 10


async def test_a_batch_fails_as_a_whole(world: World) -> None:
    store(world.broker, 4)

    async def listener(messages: list[Any]) -> bool:
        return bool(messages[0].reconsume_times)

    async with world.consumer(listener, listener_batch_size=4):
        await world.pass_ms(1)

    assert [request.queue_offset for request in world.broker.sent_back] == [0, 1, 2, 3]


async def test_at_most_once_commits_before_the_call_and_retries_nothing(world: World) -> None:
    store(world.broker, 3)
    committed: list[int | None] = []

    async def listener(message: Any) -> bool:
        committed.append(world.broker.committed_of())
        return False

    async with world.consumer(listener, delivery="at_most_once") as consumer:
        await world.pass_ms(20_000)
        assert (consumer.metrics().dropped, consumer.metrics().failed) == (3, 3)

    assert committed == [3, 3, 3]
    assert world.broker.sent_back == []
    assert world.broker.committed_of() == 3


async def test_at_most_once_waits_for_the_commit(world: World, seen: Seen) -> None:
    store(world.broker, 3)
    world.broker.commit_refusals.append(Disconnected("no"))

    async with world.consumer(seen, delivery="at_most_once"):
        await world.pass_ms(999)
        assert seen.numbers == []
        await world.pass_ms(1)
        assert seen.numbers == [0, 1, 2]


async def test_closing_ends_what_is_at_work_and_starts_nothing_more(
    world: World, seen: Seen
) -> None:
    store(world.broker, 100)
    event = seen.gate(*range(100))
    consumer = world.consumer(seen, concurrency=1)
    await consumer.start()
    await world.pass_ms(1)

    closing = asyncio.ensure_future(consumer.close())
    await world.pass_ms(1_000)
    assert not closing.done()
    event.set()
    await closing

    assert seen.numbers == [0]
    assert world.broker.committed_of() == 1


async def test_a_listener_that_does_not_end_is_left_at_the_deadline(
    world: World, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    store(world.broker, 10)
    seen.gate(4)
    consumer = world.consumer(seen, close_timeout_ms=2_000)
    await consumer.start()
    await world.pass_ms(6_000)

    closing = asyncio.ensure_future(consumer.close())
    await world.pass_ms(2_000)
    await closing

    assert "still at work" in caplog.text
    assert world.broker.committed_of() == 4
    assert world.broker.sent_back == []


async def test_what_fails_while_closing_is_sent_back_before_the_end(world: World) -> None:
    store(world.broker, 1)
    event = asyncio.Event()

    async def listener(message: Any) -> bool:
        await event.wait()
        return False

    consumer = world.consumer(listener)
    await consumer.start()
    await world.pass_ms(1)
    closing = asyncio.ensure_future(consumer.close())
    await world.pass_ms(1)
    event.set()
    await closing

    assert len(world.broker.sent_back) == 1
    assert world.broker.committed_of() == 1


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


async def test_a_listener_that_cancels_itself_has_failed(world: World) -> None:
    store(world.broker, 3)
    times: list[int] = []

    async def listener(message: Any) -> None:
        times.append(number(message))
        if len(times) == 1:
            raise asyncio.CancelledError

    async with world.consumer(listener):
        await world.pass_ms(10_000)

    assert sorted(times) == [0, 0, 1, 2]
    assert world.broker.committed_of() == 3


async def test_a_failed_listener_is_logged_with_its_error(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    store(world.broker, 1)

    async def listener(message: Any) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.WARNING):
        async with world.consumer(listener, max_reconsume_times=0):
            await world.pass_ms(1)

    assert "ZeroDivisionError" in caplog.text
    assert len(world.broker.queues[DEAD, 0]) == 1


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


class TestThreads:
    """Listeners that are called, not awaited."""

    async def test_they_are_called_on_threads_and_none_is_left(self, world: World) -> None:
        store(world.broker, 3_000)
        seen: list[int] = []
        names: set[str] = set()

        def listener(message: Any) -> None:
            seen.append(number(message))
            names.add(threading.current_thread().name)

        before = threading.enumerate()
        async with world.consumer(listener):
            await world.pass_ms(100)

        assert sorted(seen) == list(range(3_000))
        assert world.broker.committed_of() == 3_000
        assert all(name.startswith("pocketmq-billing-") for name in names)
        assert threading.enumerate() == before

    async def test_they_are_called_beside_each_other_when_they_wait(self, world: World) -> None:
        store(world.broker, 40)
        together = threading.Barrier(4, timeout=30)
        done = threading.Event()

        def listener(message: Any) -> None:
            together.wait()
            if number(message) == 39:
                done.set()

        async with AsyncPushConsumer(
            "billing", "orders", listener, connections=connections(world), concurrency=4
        ) as consumer:
            await asyncio.to_thread(done.wait, 30)
            assert consumer.metrics().failed == 0

    @pytest.mark.parametrize("size", [1, 5])
    async def test_what_fails_is_sent_back(self, world: World, size: int) -> None:
        store(world.broker, 20)

        def listener(given: Any) -> bool:
            messages = given if size > 1 else [given]
            if number(messages[0]) == 10 and not messages[0].reconsume_times:
                raise SystemExit
            return True

        async with world.consumer(listener, listener_batch_size=size):
            await world.pass_ms(100)

        assert len(world.broker.sent_back) == size
        assert world.broker.committed_of() == 20

    async def test_one_that_does_not_end_is_left_with_a_warning(
        self, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pocketmq.client.pushing.workers._THREADS_END_S", 0.01)
        store(world.broker, 2)
        event, begun = threading.Event(), threading.Event()

        def listener(message: Any) -> None:
            begun.set()
            event.wait(30)

        consumer = AsyncPushConsumer(
            "billing", "orders", listener, connections=connections(world), close_timeout_ms=10
        )
        await consumer.start()
        await asyncio.to_thread(begun.wait, 30)
        await consumer.close()
        event.set()

        assert "listeners run on" in caplog.text
        assert world.broker.committed_of() in (None, 0)


def connections(world: World) -> Any:
    from .fake_cluster import FakeConnections

    return FakeConnections(world.cluster)


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


async def test_run_goes_on_until_it_is_closed(world: World, seen: Seen) -> None:
    store(world.broker, 2)
    consumer = world.consumer(seen)

    running = asyncio.ensure_future(consumer.run())
    await world.pass_ms(1)
    assert not running.done()
    await consumer.close()
    await running
    await consumer.close()

    assert seen.numbers == [0, 1]


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
        PushConsumer("bil ling", "orders", print)
    with pytest.raises(InvalidName):
        PushConsumer("billing", {"or ders": "a"}, print)


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
