"""Leases on two clocks: how long they last is in messages' time, whether an owner lives in the machine's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from pocketmq.broker.pop.deliveries import PopKey
from pocketmq.broker.pop.entries import PopEntry, PopLease, PopQueue
from pocketmq.broker.pop.leases import RENEWED_MAX_MS, RENEWED_MS, PopLeases
from pocketmq.broker.timing.timers import Timers
from pocketmq.proto.clock import VirtualClock


@dataclass
class Desk:
    """Leases, and those that have expired."""

    messages: VirtualClock = field(default_factory=VirtualClock)
    wall: VirtualClock = field(default_factory=VirtualClock)
    expired: list[PopLease] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timers = Timers(self.messages)
        self.leases = PopLeases(self.timers, self.wall.now_ms)

    def grant(self, count: int = 1, *, owner: str = "c", renews: bool = True) -> PopLease:
        queue = PopQueue(PopKey("g", "T", 0), 0)
        entries = [PopEntry(queue, offset) for offset in range(count)]
        now_ms = self.messages.now_ms()
        return self.leases.grant(
            entries,
            now_ms + RENEWED_MS,
            owner,
            self.expired.append,
            renews_until_ms=now_ms + RENEWED_MAX_MS if renews else 0,
        )

    def check_nothing_is_left(self) -> None:
        assert len(self.timers) == 0
        assert not self.leases._by_owner
        assert not self.leases._heard_ms


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    made.timers.start()
    yield made
    await made.timers.stop()


async def test_time_that_is_moved_does_not_take_it_from_an_owner_that_lives(desk: Desk) -> None:
    desk.grant()

    await desk.messages.advance(RENEWED_MAX_MS - 1)
    assert desk.expired == []
    await desk.messages.advance(1)

    assert len(desk.expired) == 1
    desk.check_nothing_is_left()


async def test_an_owner_that_is_silent_loses_it_at_the_next_look(desk: Desk) -> None:
    desk.grant()
    await desk.wall.advance(RENEWED_MS)

    await desk.messages.advance(RENEWED_MS)

    assert len(desk.expired) == 1
    desk.check_nothing_is_left()


async def test_one_that_does_not_renew_ends_in_messages_time(desk: Desk) -> None:
    desk.grant(renews=False)
    await desk.wall.advance(RENEWED_MS)
    assert desk.expired == []

    await desk.messages.advance(RENEWED_MS)

    assert len(desk.expired) == 1


async def test_the_last_message_ends_it(desk: Desk) -> None:
    lease = desk.grant(3)

    for entry in lease.entries[:2]:
        desk.leases.release(entry)
    assert len(desk.timers) == 1
    desk.leases.release(lease.entries[2])
    desk.leases.release(lease.entries[2])

    assert lease.live == 0
    desk.check_nothing_is_left()


async def test_an_owner_that_goes_loses_all_of_its_own_in_a_second(desk: Desk) -> None:
    for owner in ("c", "c", "d"):
        desk.grant(owner=owner)

    desk.leases.gone("c")
    desk.leases.gone("nobody")
    await desk.messages.advance(1_000)

    assert [lease.owner for lease in desk.expired] == ["c", "c"]
    assert list(desk.leases._by_owner) == ["d"]


async def test_an_owner_that_goes_gets_no_more_time_by_it(desk: Desk) -> None:
    desk.grant()
    await desk.messages.advance(RENEWED_MS - 1)

    desk.leases.gone("c")
    await desk.messages.advance(1)

    assert len(desk.expired) == 1
