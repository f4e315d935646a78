"""The synchronous push consumer over real gRPC on loopback: threads, ends, and what it leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pocketmq.client import PushConsumer, PushMetrics
from pocketmq.client.loop_thread import LoopThread
from pocketmq.proto.errors import ClientClosed, SubscriptionMismatch

from .fake_cluster import FakeCluster, serve
from .push_world import TakingBroker, broker_with, number, store


@pytest.fixture
def cluster() -> Iterator[tuple[TakingBroker, str]]:
    """A served broker with topic "orders" of three queues, and the address of its name server."""
    broker = broker_with(queues=3)
    served = FakeCluster(broker)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    carrier, port = asyncio.run_coroutine_threadsafe(serve(served), loop).result()
    yield broker, f"127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(carrier.stop(0), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Count:
    """A listener that knows when it has had COUNT messages."""

    def __init__(self, count: int) -> None:
        self.numbers: list[int] = []
        self.threads: set[str] = set()
        self._count = count
        self.done = threading.Event()

    def __call__(self, message: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.numbers.append(number(message))
        if len(self.numbers) == self._count:
            self.done.set()


def test_messages_are_handled_and_no_thread_is_left(cluster: tuple[TakingBroker, str]) -> None:
    broker, address = cluster
    for queue in range(3):
        store(broker, 1_000, queue)
    listener = Count(3_000)
    before = set(threading.enumerate())

    with PushConsumer("billing", "orders", listener, address) as consumer:
        assert listener.done.wait(30)
        metrics = consumer.metrics()

    assert sorted(listener.numbers) == sorted([*range(1_000)] * 3)
    assert isinstance(metrics, PushMetrics)
    assert sum(broker.committed.values()) == 3_000
    assert all(name.startswith("pocketmq-billing-") for name in listener.threads)
    assert set(threading.enumerate()) == before
    assert LoopThread._shared is None


def test_a_coroutine_listener_is_awaited_in_the_background(
    cluster: tuple[TakingBroker, str],
) -> None:
    broker, address = cluster
    store(broker, 10)
    count = Count(10)

    async def listener(message: Any) -> None:
        await asyncio.sleep(0)
        count(message)

    with PushConsumer("billing", "orders", listener, address):
        assert count.done.wait(30)

    assert count.numbers == list(range(10))
    assert count.threads == {"pocketmq-client"}


def test_run_ends_when_another_thread_closes(cluster: tuple[TakingBroker, str]) -> None:
    broker, address = cluster
    store(broker, 5)
    consumer = PushConsumer("billing", {"orders": None}, nameservers=address)
    count = Count(5)
    consumer.listener(count)

    running = threading.Thread(target=consumer.run)
    running.start()
    assert count.done.wait(30)
    consumer.close()
    running.join(30)

    assert not running.is_alive()
    assert broker.committed_of() == 5


def test_what_is_not_started_or_is_closed_says_so() -> None:
    consumer = PushConsumer("billing", "orders", print, "127.0.0.1:1")

    with pytest.raises(ClientClosed, match="not started"):
        consumer.wait()
    with pytest.raises(ClientClosed, match="not started"):
        consumer.metrics()
    consumer.close()
    with consumer:
        pass
    consumer.close()
    with pytest.raises(ClientClosed, match="is closed"):
        consumer.start()
    assert LoopThread._shared is None


def test_a_refusal_by_the_group_ends_the_wait(cluster: tuple[TakingBroker, str]) -> None:
    broker, address = cluster
    broker.sharing.refusals.append(SubscriptionMismatch("others want something else"))

    with (
        PushConsumer("billing", "orders", print, address) as consumer,
        pytest.raises(SubscriptionMismatch, match="something else"),
    ):
        consumer.wait()
