"""What consumers go on from at a new master: what they have finished, unless somebody else has committed meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketmq.client import AsyncPullConsumer, AsyncPushConsumer
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import RequestTimeout

from .fake_connections import FakeConnections
from .fake_groups import FakeLease
from .fake_replica_set import FakeReplicaSet
from .pull_world import numbers, store
from .push_world import number

KEY = ("billing", "orders", 0)


class FailoverWorld:
    """A replica set, whose next master knows no lease, and consumers of one group."""

    def __init__(self) -> None:
        self.replicas, self.clock = FakeReplicaSet("orders"), VirtualClock()
        self.replicas.data.sharing.clock = self.clock
        self.handled: list[int] = []

    def settings(self) -> dict[str, Any]:
        return {"clock": self.clock, "connections": FakeConnections(self.replicas)}

    def push(self, **settings: Any) -> AsyncPushConsumer:
        return AsyncPushConsumer("billing", "orders", self._handle, **self.settings(), **settings)

    async def _handle(self, message: Any) -> None:
        self.handled.append(number(message))

    def pull(self, **settings: Any) -> AsyncPullConsumer:
        return AsyncPullConsumer("billing", "orders", **self.settings(), **settings)

    @property
    def committed(self) -> int | None:
        return self.replicas.data.committed.get(KEY)

    def fail_over(self, committed: int | None = None) -> None:
        """Have replica 2 be master; COMMITTED is what it has heard of, None: all."""
        self.replicas.elect(2)
        self.replicas.data.sharing.leases.clear()
        if committed is not None:
            self.replicas.data.committed[KEY] = committed
        self.wake()

    async def fail_over_late(self, committed: int | None) -> None:
        """Do as `fail_over` 2.5 s after the master has died."""
        dead = self.replicas.address(self.replicas.master)
        self.replicas.lost.add(dead)
        self.replicas.master = 0
        self.wake()
        await self.pass_ms(2_500)
        self.replicas.lost.discard(dead)
        self.fail_over(committed)
        if committed is None:
            self.replicas.data.committed.pop(KEY, None)

    def wake(self) -> None:
        """Have whoever waits at the old master ask anew."""
        waiting, self.replicas.data.waiting = self.replicas.data.waiting, []
        for try_again in waiting:
            try_again()

    async def pass_ms(self, duration_ms: int) -> None:
        for _ in range(0, duration_ms, 50):
            await self.clock.advance(50)


@pytest.fixture
def world() -> FailoverWorld:
    return FailoverWorld()


# ---------------------------------------------------------------- push consumers


async def test_a_push_consumer_goes_on_behind_what_it_has_finished_and_commits_that_first(
    world: FailoverWorld,
) -> None:
    store(world.replicas.data, 6)
    async with world.push():
        await world.pass_ms(200)
        assert world.handled == [0, 1, 2, 3, 4, 5]
        assert world.committed is None, "it is not time"

        world.fail_over()
        await world.pass_ms(2_000)
        assert world.committed == 6
        store(world.replicas.data, 2)
        await world.pass_ms(200)

        assert world.handled == [0, 1, 2, 3, 4, 5, 6, 7]


async def test_what_the_new_master_had_not_heard_of_is_committed_again(
    world: FailoverWorld,
) -> None:
    store(world.replicas.data, 3)
    async with world.push(auto_commit_interval_ms=500):
        await world.pass_ms(600)
        assert world.committed == 3
        store(world.replicas.data, 3)
        await world.pass_ms(450)
        assert world.committed == 6

        world.fail_over(committed=3)
        store(world.replicas.data, 1)
        await world.pass_ms(2_000)

        assert world.handled == [0, 1, 2, 3, 4, 5, 6]
        assert world.committed == 7


@pytest.mark.parametrize(("committed", "then"), [(2, [2, 3, 4, 5, 6, 7]), (7, [7])])
async def test_where_somebody_else_has_committed_meanwhile_that_counts(
    world: FailoverWorld, committed: int, then: list[int]
) -> None:
    """Another member has had the queue, or somebody has moved the group."""
    store(world.replicas.data, 6)
    async with world.push():
        await world.pass_ms(200)
        store(world.replicas.data, 2)
        world.handled.clear()
        world.fail_over(committed=committed)
        await world.pass_ms(2_000)
        assert world.handled == then


@pytest.mark.parametrize(("finishes", "then"), [(True, [4, 5]), (False, [3, 4, 5])])
async def test_what_a_listener_is_at_is_finished_when_it_has_ended(
    world: FailoverWorld, finishes: bool, then: list[int]
) -> None:
    """What it ends while the queue is away counts; what it does not comes again, and nothing is passed over."""
    ends = asyncio.Event()

    async def listen(message: Any) -> None:
        world.handled.append(number(message))
        if number(message) == 3:
            await ends.wait()

    store(world.replicas.data, 5)
    async with AsyncPushConsumer("billing", "orders", listen, **world.settings()):
        await world.pass_ms(200)
        before = world.handled
        world.handled = []
        world.fail_over()
        free_ms = world.clock.now_ms() + 1_000
        world.replicas.data.sharing.leases[KEY] = FakeLease("other", 1 << 40, free_ms)
        await world.pass_ms(200)
        if finishes:
            ends.set()
        store(world.replicas.data, 1)
        await world.pass_ms(2_000)
        ends.set()
        await world.pass_ms(200)
    assert before == [0, 1, 2, 3]
    assert world.handled == then


async def test_where_a_loss_was_accepted_the_position_behind_the_end_is_not_committed(
    world: FailoverWorld,
) -> None:
    store(world.replicas.data, 6)
    async with world.push():
        await world.pass_ms(200)
        del world.replicas.data.queues["orders", 0][4:]
        world.fail_over()
        await world.pass_ms(2_000)
        assert world.committed in (None, 4)


async def test_a_queue_that_was_away_for_long_begins_where_it_was_committed(
    world: FailoverWorld,
) -> None:
    store(world.replicas.data, 2)
    async with world.push(rebalance_timeout_ms=1_000):
        await world.pass_ms(200)
        assert world.handled == [0, 1]
        sharing = world.replicas.data.sharing
        world.fail_over()
        # Somebody who has the queue for long, and commits nothing.
        sharing.leases[KEY] = FakeLease("other", 1 << 40)
        await world.pass_ms(3_000)
        del sharing.leases[KEY]
        await world.pass_ms(12_000)
        assert world.handled == [0, 1, 0, 1]


# ---------------------------------------------------------------- pull consumers


async def test_a_pull_consumer_goes_on_behind_what_it_has_finished_and_commits_that_first(
    world: FailoverWorld,
) -> None:
    store(world.replicas.data, 3)
    async with world.pull() as reading:
        assert numbers(await reading.poll()) == [0, 1, 2]
        assert not await reading.poll(timeout_ms=0)
        world.fail_over()
        await world.pass_ms(2_000)
        store(world.replicas.data, 2)
        assert numbers(await reading.poll()) == [3, 4]
        assert world.committed == 3


async def test_a_pull_consumer_goes_on_though_the_new_master_lacks_its_last_commit(
    world: FailoverWorld,
) -> None:
    store(world.replicas.data, 3)
    async with world.pull() as reading:
        assert numbers(await reading.poll()) == [0, 1, 2]
        await reading.commit()
        store(world.replicas.data, 2)
        assert numbers(await reading.poll()) == [3, 4]
        await reading.commit()
        assert world.committed == 5
        world.fail_over(committed=3)
        await world.pass_ms(2_000)
        store(world.replicas.data, 1)
        assert numbers(await reading.poll()) == [5]


async def test_a_pull_consumer_begins_where_somebody_else_has_committed(
    world: FailoverWorld,
) -> None:
    store(world.replicas.data, 5)
    async with world.pull() as reading:
        assert numbers(await reading.poll()) == [0, 1, 2, 3, 4]
        await reading.commit()
        await world.pass_ms(2_000)
        world.fail_over(committed=2)
        await world.pass_ms(2_000)
        assert numbers(await reading.poll()) == [2, 3, 4]


async def test_what_was_committed_when_the_master_died_counts_however_long_the_election_takes(
    world: FailoverWorld,
) -> None:
    """The next master has not heard of that commit, which nobody but the consumer knows of then."""
    store(world.replicas.data, 3)
    async with world.pull() as pulling:
        assert numbers(await pulling.poll()) == [0, 1, 2]
        await world.pass_ms(2_000)
        await pulling.commit()
        store(world.replicas.data, 2)
        assert numbers(await pulling.poll()) == [3, 4]
        await world.pass_ms(2_000)
        await pulling.commit()
        await world.fail_over_late(committed=3)
        await world.pass_ms(2_000)
        store(world.replicas.data, 1)
        await world.pass_ms(1_000)
        assert numbers(await pulling.poll(timeout_ms=0)) == [5]
        assert world.committed == 5


async def test_of_a_push_consumer_too(world: FailoverWorld) -> None:
    store(world.replicas.data, 3)
    async with world.push(auto_commit_interval_ms=3_000):
        await world.pass_ms(3_100)
        store(world.replicas.data, 3)
        await world.pass_ms(2_950)
        assert world.committed == 6
        await world.fail_over_late(committed=3)
        store(world.replicas.data, 1)
        await world.pass_ms(3_000)
        assert world.handled == [0, 1, 2, 3, 4, 5, 6]


async def test_a_commit_that_was_taken_and_never_answered_is_ones_own(world: FailoverWorld) -> None:
    store(world.replicas.data, 5)
    async with world.pull() as pulling:
        assert numbers(await pulling.poll(max_messages=3)) == [0, 1, 2]
        world.replicas.lost.add(world.replicas.address(1))
        committing = asyncio.create_task(pulling.commit())
        await world.pass_ms(50)
        assert numbers(await pulling.poll()) == [3, 4]
        assert not await pulling.poll(timeout_ms=0)
        await world.fail_over_late(committed=3)
        await world.pass_ms(3_000)
        await committing
        store(world.replicas.data, 1)
        await world.pass_ms(1_000)
        assert numbers(await pulling.poll(timeout_ms=0)) == [5]


async def test_a_consumer_of_the_latest_skips_nothing_that_comes_while_there_is_no_master(
    world: FailoverWorld,
) -> None:
    """It has read nothing yet, and nobody has committed: it goes on where it began, not at the end of then."""
    store(world.replicas.data, 3)
    async with world.pull(start="latest") as pulling:
        assert not await pulling.poll(timeout_ms=0)
        await world.pass_ms(1_000)
        assert not await pulling.poll(timeout_ms=0)
        store(world.replicas.data, 2)
        await world.fail_over_late(committed=None)
        await world.pass_ms(2_000)
        assert numbers(await pulling.poll(timeout_ms=0)) == [3, 4]


async def test_a_group_that_is_moved_back_by_force_stands_where_it_committed_before(
    world: FailoverWorld,
) -> None:
    """The master is the same, so it is somebody else who has it stand there."""
    store(world.replicas.data, 3)
    async with world.pull() as pulling:
        assert numbers(await pulling.poll()) == [0, 1, 2]
        await pulling.commit()
        store(world.replicas.data, 2)
        assert numbers(await pulling.poll()) == [3, 4]
        await pulling.commit()
        world.replicas.data.sharing.leases.clear()
        world.replicas.data.committed[KEY] = 3
        world.wake()
        await world.pass_ms(3_000)
        assert numbers(await pulling.poll(timeout_ms=0)) == [3, 4]


async def test_nor_does_an_answer_that_came_late_long_before_hide_who_moves_it_back(
    world: FailoverWorld,
) -> None:
    """The master has answered since, so it is the same."""
    store(world.replicas.data, 3)
    async with world.pull(auto_commit=False) as pulling:
        assert numbers(await pulling.poll()) == [0, 1, 2]
        await pulling.commit()
        store(world.replicas.data, 2)
        assert numbers(await pulling.poll()) == [3, 4]
        await pulling.commit()
        session = pulling._reading._session
        session.routes.note_error("broker-a", "", RequestTimeout("no answer in time"))
        await world.pass_ms(60_000)
        world.replicas.data.sharing.leases.clear()
        world.replicas.data.committed[KEY] = 3
        world.wake()
        await world.pass_ms(3_000)
        assert numbers(await pulling.poll(timeout_ms=0)) == [3, 4]
        assert world.committed == 3


async def test_a_consumer_that_has_read_nothing_commits_nothing_behind_the_end_after_a_loss(
    world: FailoverWorld,
) -> None:
    store(world.replicas.data, 6)
    async with world.pull(start="latest") as pulling:
        assert not await pulling.poll(timeout_ms=0)
        await world.pass_ms(1_000)
        del world.replicas.data.queues["orders", 0][4:]
        world.fail_over()
        await world.pass_ms(8_000)
        assert world.committed == 4
        store(world.replicas.data, 1)
        await world.pass_ms(1_000)
        assert numbers(await pulling.poll(timeout_ms=0)) == [4]
    assert world.committed == 5
