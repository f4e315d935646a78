"""What a pull consumer's application hears of queues that come and go, and what of them counts as handled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from pocketmq.client import AsyncPullConsumer, Queue, RebalanceListener
from pocketmq.proto.errors import LeaseLost

from .pull_world import World, numbers, store


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


class Committing(RebalanceListener):
    """Commits what it is told has gone."""

    reading: AsyncPullConsumer

    async def on_lost(self, queues: Sequence[Queue]) -> None:
        await self.reading.commit_sync(dict.fromkeys(queues, 1))


async def test_who_turns_to_a_queue_that_went_hears_that_its_lease_is_lost() -> None:
    here, listener = World(queues=1), Committing()
    store(here.broker, 1)

    async with here.consumer(listener=listener, auto_commit=False) as reading:
        listener.reading = reading
        assert len(await reading.poll(1)) == 1
        for lease in here.broker.sharing.leases.values():
            lease.member_id, lease.token, lease.ends_ms = "another", 99, 1 << 62
        await here.clock.advance(25_000)

        with pytest.raises(LeaseLost, match="not assigned to this consumer any more"):
            await reading.poll(timeout_ms=0)


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
