"""Push consumers whose listeners are called on threads, not awaited."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pocketmq.client import AsyncPushConsumer

from .push_world import World, number, store


@pytest.fixture
def world() -> World:
    return World()


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

        assert "consumer closed while listeners are running" in caplog.text
        assert world.broker.committed_of() in (None, 0)


def connections(world: World) -> Any:
    from .fake_connections import FakeConnections

    return FakeConnections(world.cluster)
