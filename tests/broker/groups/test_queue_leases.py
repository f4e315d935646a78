"""Requests for leases that wait: who is answered when, and that nobody is forgotten."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from pocketmq.proto.errors import NotAuthorized, Overloaded
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ...fake_calls import FakeUser
from .lease_desk import LEASE_MS, QUEUES, TOPIC, Desk, LeaseCall


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    await desk.timers.stop()


async def test_who_came_first_has_it_first(desk: Desk) -> None:
    desk.ask("a", 0)
    b, c = desk.ask("b", 0, wait_ms=9_000), desk.ask("c", 0, wait_ms=9_000)

    desk.release("a", 0)

    assert b.tokens is not None
    assert c.tokens is None
    assert desk.holders() == {0: "b"}
    desk.release("b", 0)
    assert c.tokens is not None


async def test_another_user_takes_and_ends_no_lease_by_a_members_or_an_instances_name(
    tmp_path: Path,
) -> None:
    alice, eve = FakeUser("alice"), FakeUser("eve")
    desk = Desk(tmp_path)
    mine = desk.ask("a", 0, user=alice, instance_id="i")
    assert mine.tokens is not None
    for _ in range(2):
        with pytest.raises(NotAuthorized, match="is another user's"):
            desk.ask("a", 0, user=eve)
        with pytest.raises(NotAuthorized, match="is another user's"):
            desk.ask("b", 0, user=eve, instance_id="i")
        with pytest.raises(NotAuthorized, match="is another user's"):
            desk.release("a", 0, user=eve)
        assert desk.holders() == {0: "a"}
        desk.fetch(0, mine.tokens[0])
        await desk.timers.stop()
        desk = Desk(tmp_path)  # Leases outlast a restart, and so does whose they are.
    desk.release("a", 0, user=alice)
    assert desk.ask("b", 0, user=eve, instance_id="i").tokens is not None
    await desk.timers.stop()


async def test_who_waits_for_several_is_answered_with_the_first_that_comes_free(desk: Desk) -> None:
    desk.ask("a", 0, 1, 2)
    b = desk.ask("b", 0, 1, wait_ms=9_000)

    desk.release("a", 1)

    assert b.tokens is not None
    assert b.tokens[0] == 0
    assert b.tokens[1] > 0
    assert b.answer.queues[0].holder == "a"


async def test_a_request_that_has_waited_does_not_fence_what_its_member_got_meanwhile(
    desk: Desk,
) -> None:
    desk.ask("a", 0)
    first = desk.ask("b", 0, wait_ms=5_000)
    second = desk.ask("b", 0, wait_ms=9_000)
    desk.release("a", 0)
    assert first.tokens is not None

    await desk.clock.advance(9_000)

    assert second.tokens == [0]
    assert [lease.token for lease in desk.leases.of_group("g")] == first.tokens


async def test_a_member_that_has_not_heard_of_its_lease_is_granted_it_anew(desk: Desk) -> None:
    unheard = desk.ask("a", 0)

    again = desk.ask("a", 0, wait_ms=5_000)

    assert unheard.tokens is not None
    assert again.tokens is not None
    assert again.tokens > unheard.tokens


async def test_a_caller_that_went_away_is_granted_nothing(desk: Desk) -> None:
    desk.ask("a", 0)
    b = desk.ask("b", 0, wait_ms=9_000)
    b.cancel()

    desk.release("a", 0)

    assert desk.holders() == {}
    assert desk.leases.waiting == 0


async def test_who_asks_when_a_lease_is_over_is_behind_those_who_wait(desk: Desk) -> None:
    desk.ask("a", 0)
    b = desk.ask("b", 0, wait_ms=60_000)
    desk.clock._now_ms += LEASE_MS  # The timers have not heard of it yet.

    late = desk.ask("c", 0)

    assert late.tokens == [0]
    assert b.tokens is not None


async def test_a_renewal_alone_never_waits(desk: Desk) -> None:
    (token,) = desk.ask("a", 0).tokens or [0]
    call = LeaseCall()
    request = pb.LeaseRequest(
        group="g",
        member_id="b",
        queues=[pb.QueueLease(topic=TOPIC, queue=0, token=token)],
        wait_ms=9_000,
    )
    desk.leases.lease(request, call)

    assert call.tokens == [0]


async def test_waiting_requests_are_bounded(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lease_waits_max=1)
    desk.ask("a", 0)
    first, second = desk.ask("b", 0, wait_ms=9_000), desk.ask("c", 0, wait_ms=9_000)

    assert first.tokens is None
    assert second.tokens == [0]
    desk.leases.wind_down()
    assert first.tokens == [0]
    await desk.timers.stop()


async def test_too_many_leases_are_an_error_of_the_request(tmp_path: Path) -> None:
    desk = Desk(tmp_path, leases_max=1)
    desk.ask("a", 0)

    assert isinstance(desk.ask("a", 1).error, Overloaded)
    await desk.timers.stop()


async def test_queues_of_a_topic_or_group_that_is_deleted_come_free(desk: Desk) -> None:
    desk.ask("a", 0, 1)
    b = desk.ask("b", 0, wait_ms=9_000)
    desk.leases.forget_group("g")
    assert b.tokens is not None
    c = desk.ask("c", 0, wait_ms=9_000)
    desk.topics.delete(TOPIC)

    desk.leases.forget_topic(TOPIC)
    await desk.clock.advance(9_000)

    assert c.tokens == [0]


async def test_who_holds_a_queue_has_it_anew_though_a_newer_generation_waits(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    desk.ask("b", 0, generation=1)
    waiting = desk.ask("a", 0, wait_ms=5_000, generation=2)

    again = desk.ask("b", 0, wait_ms=1, generation=1)

    assert again.tokens is not None
    assert again.tokens != [0]
    assert waiting.tokens is None
    await desk.timers.stop()


Step = tuple[str, str, tuple[int, ...], int]
steps = st.tuples(
    st.sampled_from(["ask", "ask", "release", "gone", "wait", "fetch"]),
    st.sampled_from("abc"),
    st.lists(st.integers(0, QUEUES - 1), min_size=1, max_size=QUEUES, unique=True).map(tuple),
    st.sampled_from([0, 1, 5_000, 19_999, 20_000, 40_000]),
)


@dataclass
class Pending:
    """A request that waits."""

    call: LeaseCall
    member_id: str
    queues: tuple[int, ...]
    deadline_ms: int
    #: The highest token that was granted before it.
    since_token: int

    def waits_for(self, lease: pb.HeldLease) -> bool:
        """May it wait for the end of LEASE: somebody else's, or one that its member got meanwhile?"""
        return lease.member_id != self.member_id or lease.token > self.since_token


async def play(path: Path, plan: list[Step]) -> None:
    desk = Desk(path)
    calls: list[LeaseCall] = []
    pending: list[Pending] = []
    for what, name, queues, number in plan:
        if what == "ask":
            since_token = max((token for call in calls for token in call.tokens or ()), default=0)
            calls.append(desk.ask(name, *queues, wait_ms=number, generation=number % 7))
            deadline_ms = desk.clock.now_ms() + number
            pending.append(Pending(calls[-1], name, queues, deadline_ms, since_token))
        elif what == "release":
            desk.release(name, queues[0])
        elif what == "fetch":
            desk.fetch_all(name, queues)
        elif what == "gone":
            for one in pending:
                if one.member_id == name:
                    one.call.cancel()
            pending = [one for one in pending if one.member_id != name]
        else:
            await desk.clock.advance(number)
        pending = [one for one in pending if one.call.tokens is None]
        assert desk.leases.waiting == len(pending)
        held = {lease.queue: lease for lease in desk.leases.of_group("g")}
        for one in pending:
            assert one.deadline_ms > desk.clock.now_ms()
            assert all(queue in held and one.waits_for(held[queue]) for queue in one.queues)
    await desk.clock.advance(80_000)
    assert all(one.call.tokens is not None for one in pending)
    assert desk.leases.waiting == 0
    assert len(desk.timers) == 1, "only the saving is left"
    await desk.timers.stop()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(plan=st.lists(steps, max_size=25))
@example(plan=[("ask", "a", (0,), 0), ("ask", "b", (0,), 40_000), ("wait", "a", (0,), 20_000)])
@example(plan=[("ask", "b", (0,), 0), ("ask", "a", (0,), 5_000), ("ask", "b", (0,), 1)])
@example(
    plan=[
        ("ask", "a", (0,), 0),
        ("ask", "b", (0,), 1),
        ("ask", "b", (0,), 1),
        ("release", "a", (0,), 0),
    ]
)
def test_who_waits_could_have_nothing_when_it_asked_and_is_answered_in_time(
    plan: list[Step],
) -> None:
    with tempfile.TemporaryDirectory(prefix="pocketmq-leases-") as folder:
        asyncio.run(play(Path(folder), plan))
