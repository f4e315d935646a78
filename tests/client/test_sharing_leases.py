"""The leases of a member: renewed, lost, asked for anew."""

from __future__ import annotations

import pytest

from pocketmq.client.consuming.held_queue import HeldQueue
from pocketmq.client.queue import QUEUES_AT_ONCE, Queue

from .fake_broker import FakeBroker, add_topic
from .sharing_world import world


async def test_leases_are_renewed_in_one_request_and_kept() -> None:
    async with world() as here:
        member = await here.join()
        tokens = {held.token for held in member.reader.held.values()}
        here.groups.requests.clear()

        await here.clock.advance(300_000)

        assert {held.token for held in member.reader.held.values()} == tokens
        assert len(here.groups.requests) == 300_000 // 22_500
        assert all(len(request.queues) == 4 for request in here.groups.requests)
        assert member.reader.ended == []


async def test_a_fetch_that_was_answered_renews_from_when_it_was_sent() -> None:
    async with world() as here:
        member = await here.join()
        held = list(member.reader.held.values())
        here.groups.requests.clear()

        for _ in range(10):
            sent_ms = here.clock.now_ms()
            await here.clock.advance(11_000)
            for one in held:
                member.sharing.fetched(one, sent_ms)
            # What was answered late says nothing of an earlier time.
            member.sharing.fetched(held[0], sent_ms - 9_000)
        assert here.groups.requests == []
        for lease in here.groups.leases.values():
            lease.ends_ms = here.clock.now_ms() + 19_000
        await here.clock.advance(11_600)

        (request,) = here.groups.requests
        assert len(request.queues) == 4
        assert member.reader.ended == []


async def test_only_the_present_lease_is_renewed_by_a_fetch() -> None:
    async with world() as here:
        member = await here.join()
        queue = Queue("orders", "broker-a", 1)
        here.groups.requests.clear()

        await here.clock.advance(11_000)
        member.sharing.fetched(HeldQueue(queue, 77, -1), here.clock.now_ms())
        await here.clock.advance(12_000)

        assert len(here.groups.requests) == 1


async def test_after_a_broken_connection_leases_are_renewed_at_once_and_once() -> None:
    async with world() as here:
        member = await here.join()
        here.groups.requests.clear()

        for held in member.reader.held.values():
            member.sharing.doubt(held)
        await here.clock.advance(1_000)

        (request,) = here.groups.requests
        assert len(request.queues) == 4
        assert member.reader.ended == []


async def test_what_cannot_be_renewed_is_lost_before_it_can_be_anybody_elses() -> None:
    async with world() as here:
        member = await here.join()
        last_ms = here.groups.leases["billing", "orders", 0].ends_ms
        here.cluster.lost.add(here.cluster.broker.address)

        await here.clock.advance(last_ms - here.clock.now_ms() - 3_100)
        assert member.reader.ended == []
        await here.clock.advance(200)

        assert sorted(q.number for q, lost in member.reader.ended if lost) == [0, 1, 2, 3]
        assert member.parts.counts.queues_lost == 4
        assert member.sharing.held(Queue("orders", "broker-a", 0)) is None
        here.cluster.lost.clear()
        await here.clock.advance(3_000)
        assert member.numbers == [0, 1, 2, 3]


async def test_a_lease_that_is_refused_is_lost_and_asked_for_anew() -> None:
    async with world() as here:
        member = await here.join()
        here.groups.leases["billing", "orders", 1].token = 99

        await here.clock.advance(23_000)

        queue = Queue("orders", "broker-a", 1)
        assert member.reader.ended == [(queue, True)]
        assert member.reader.held[queue].token > 4


async def test_the_log_says_of_a_lost_queue_that_it_was_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its broker names the member itself as the holder: it cannot grant a queue that is gone."""
    async with world() as here:
        await here.join()
        here.groups.removed_queues.add(("orders", 1))

        await here.clock.advance(23_000)

        (line,) = [text for text in caplog.messages if text.startswith("queue lost")]
        assert "the queue was removed from its topic" in line
        assert "queue=orders[broker-a:1]" in line


async def test_what_a_broker_says_of_an_old_lease_is_not_heard() -> None:
    async with world() as here:
        member = await here.join()
        queue = Queue("orders", "broker-a", 1)

        member.sharing.lost(HeldQueue(queue, 77, -1))
        assert member.reader.ended == []
        member.sharing.lost(member.reader.held[queue])
        await here.clock.advance(10)

        assert member.reader.ended == [(queue, True)]
        assert member.numbers == [0, 1, 2, 3]


@pytest.mark.slow
async def test_leases_of_very_many_queues_are_asked_for_renewed_and_returned_in_parts() -> None:
    broker = FakeBroker("broker-a", "127.0.0.1:1")
    add_topic(broker, "orders", 2 * QUEUES_AT_ONCE + 500)
    async with world(broker) as here:
        member = await here.join()
        asked = [len(request.queues) for request in here.groups.requests]
        here.groups.requests.clear()

        await here.clock.advance(30_000)
        renewed = [len(request.queues) for request in here.groups.requests]
        held = len(member.reader.held)
        await member.close()

        assert held == 2 * QUEUES_AT_ONCE + 500
        assert asked == renewed == [QUEUES_AT_ONCE, QUEUES_AT_ONCE, 500]
        assert here.groups.leases == {}
