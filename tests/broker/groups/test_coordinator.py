"""The coordinator: generations, leaders and plans, sessions, places of instances, subscriptions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.consumer_groups import SUBSCRIPTION_CHECK
from pocketmq.proto.access.policies import to_see_topic
from pocketmq.proto.errors import (
    InvalidArgument,
    InvalidFilter,
    InvalidName,
    MemberFenced,
    NotAuthorized,
    Overloaded,
    PocketMQError,
    SubscriptionMismatch,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ...fake_calls import FakeUser
from .coordinating import DELAY_MS, GROUP, SESSION_MS, TOPIC, FakeMember, Room, held


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    room = Room(tmp_path)
    yield room
    await room.close()


def tags(expression: str, topic: str = TOPIC) -> pb.Subscription:
    return pb.Subscription(topic=topic, filter=pb.Filter(kind=pb.Filter.TAG, expression=expression))


async def test_those_who_come_within_the_delay_are_of_one_generation(room: Room) -> None:
    a, b = room.join("a"), room.join("b")
    assert a.members is None

    await room.settle()

    assert a.members is not None
    assert (a.members.generation, len(a.members.members)) == (1, 2)
    assert b.members is not None
    assert b.members.leader == "a"


async def test_a_fleet_that_starts_shares_one_generation(room: Room) -> None:
    fleet = [room.join("a")]
    for name in "bcd":
        await room.clock.advance(DELAY_MS - 20)
        fleet.append(room.join(name))
    await room.clock.advance(DELAY_MS - 1)
    assert [one.members for one in fleet] == [None] * 4

    await room.clock.advance(1)

    told = [one.members for one in fleet]
    assert [one.generation for one in told if one is not None] == [1] * 4
    assert told[0] is not None
    assert len(told[0].members) == 4


async def test_members_that_never_stop_to_come_do_not_keep_a_group_from_beginning(
    room: Room,
) -> None:
    began_ms = room.clock.now_ms()
    first, came = room.join("m0"), 1
    while first.members is None and came < 100:
        await room.clock.advance(DELAY_MS // 2)
        room.join(f"m{came}")
        came += 1

    assert room.clock.now_ms() - began_ms <= 1_000 + DELAY_MS // 2
    assert first.members is not None
    assert len(first.members.members) == 20


async def test_a_group_that_works_waits_for_its_delay_alone(room: Room) -> None:
    a = room.join("a")
    await room.settle()
    room.join("b")
    await room.clock.advance(DELAY_MS - 20)
    room.join("c")
    await room.clock.advance(20)

    assert a.members is not None
    assert (a.members.generation, len(a.members.members)) == (2, 3)


async def test_a_join_that_is_alone_and_leaves_begins_nothing(room: Room) -> None:
    a = room.join("a")
    a.say(leave=pb.Leave())
    await room.settle()
    b = room.join("b")
    await room.clock.advance(DELAY_MS - 1)
    assert b.members is None
    await room.clock.advance(1)

    assert b.members is not None
    assert (b.members.generation, len(b.members.members)) == (1, 1)


async def test_a_plan_of_another_generation_or_member_is_not_heard(room: Room) -> None:
    a, b = room.join("a"), room.join("b")
    await room.settle()

    a.plan(0, {"a": [1]})
    b.plan(1, {"b": [1]})
    assert (a.assigned, b.assigned) == (None, None)
    a.plan(1, {"a": [1], "b": [2]})
    a.plan(1, {"b": [1], "a": [2]})

    assert (a.assigned, b.assigned) == ((1, [1]), (1, [2]))


async def test_a_queue_that_is_given_twice_is_the_first_ones_and_the_leader_hears_of_it(
    room: Room,
) -> None:
    a, b = room.join("a"), room.join("b")
    await room.settle()

    a.plan(1, {"a": [1, 2], "gone": [5], "b": [2, 3, 3]})

    assert (a.assigned, b.assigned) == ((1, [1, 2]), (1, [3]))
    (warning,) = [event.warning for event in a.stream.sent if event.HasField("warning")]
    assert "3 faults" in warning.message
    assert "'gone' is not a member" in warning.message


async def test_a_leader_that_does_not_answer_is_passed_over(room: Room) -> None:
    a, b = room.join("a"), room.join("b")
    await room.settle()
    for _ in range(3):
        await room.clock.advance(SESSION_MS // 2)
        a.say(heartbeat=pb.Heartbeat())
        b.say(heartbeat=pb.Heartbeat())

    assert b.members is not None
    assert (b.members.generation, b.members.leader) == (2, "b")
    a.plan(1, {"a": [1]})
    assert b.assigned is None
    b.plan(2, {"a": [1]})
    assert a.assigned == (2, [1])


async def test_a_leader_that_cannot_be_reached_is_passed_over_at_once(room: Room) -> None:
    a, b = room.join("a"), room.join("b")
    await room.settle()

    a.cut()
    await room.settle()

    assert b.members is not None
    assert (b.members.generation, b.members.leader) == (2, "b")


async def test_a_leader_that_comes_back_before_others_is_asked_again(room: Room) -> None:
    a = room.join("a")
    await room.settle()
    a.cut()
    await room.clock.advance(1_000)

    again = room.join("a")

    assert again.members is not None
    assert again.members.generation == 1
    again.plan(1, {"a": [4]})
    assert again.assigned == (1, [4])


async def test_who_comes_back_on_a_second_stream_ends_the_first(room: Room) -> None:
    first = room.join("a")
    await room.settle()
    first.plan(1, {"a": [7]})

    second = room.join("a")

    assert isinstance(first.stream.error, MemberFenced)
    assert second.assigned == (1, [7])
    first.cut()
    second.say(heartbeat=pb.Heartbeat())
    await room.settle()
    assert second.members is not None
    assert second.members.generation == 1


async def test_where_each_allocates_for_itself_all_are_told_of_all(room: Room) -> None:
    a = room.join("b", each_for_itself=True)
    b = room.join("a", each_for_itself=True)
    await room.settle()

    for one in (a, b):
        assert one.members is not None
        assert one.members.each_for_itself
        assert [member.member_id for member in one.members.members] == ["a", "b"]
    await room.clock.advance(SESSION_MS - 1)
    assert room.coordinator.get(GROUP).generation == 1  # type: ignore[union-attr]


async def test_generations_go_on_above_what_members_know(room: Room) -> None:
    a = room.join("a", generation=41)
    await room.settle()

    assert a.members is not None
    assert a.members.generation == 42


async def test_what_a_member_holds_is_told_to_the_leader(room: Room) -> None:
    a, b = room.join("a"), room.join("b", held=[held(3)], room="r1")
    b.say(heartbeat=pb.Heartbeat(held=[held(4)], held_changed=True))
    b.say(heartbeat=pb.Heartbeat(held=[held(9)]))
    await room.settle()

    assert a.members is not None
    told = a.members.members[1]
    assert ([one.queue for one in told.held], told.room) == ([4], "r1")


async def test_an_empty_session_ends_and_the_others_share_anew(room: Room) -> None:
    a = room.join("a", session_timeout_ms=2 * SESSION_MS)
    b = room.join("b")
    await room.clock.advance(SESSION_MS - 1)
    assert not b.stream.is_over

    await room.clock.advance(1)

    assert isinstance(b.stream.error, MemberFenced)
    await room.settle()
    assert a.members is not None
    assert [one.member_id for one in a.members.members] == ["a"]
    b.say(heartbeat=pb.Heartbeat())
    assert len(room.coordinator) == 1


async def test_a_plan_of_who_was_replaced_in_between_is_for_who_replaced_it(room: Room) -> None:
    a, b = room.join("a"), room.join("b", instance_id="i")
    await room.settle()
    assert a.members is not None

    c = room.join("c", instance_id="i")
    a.plan(1, {"a": [1], "b": [2]})

    assert c.assigned == (1, [2])
    assert isinstance(b.stream.error, MemberFenced)
    assert b.stream.error.details["because"] == "instance"


async def test_a_leaders_instance_goes_on_leading(room: Room) -> None:
    room.join("a", instance_id="i")
    b = room.join("b")
    await room.settle()

    c = room.join("c", instance_id="i")
    assert c.members is not None
    assert c.members.leader == "c"
    c.plan(1, {"b": [1], "c": [2]})

    assert b.assigned == (1, [1])
    # Nobody waits for the end of the session of who was replaced.
    for _ in range(3):
        await room.clock.advance(SESSION_MS // 2)
        b.say(heartbeat=pb.Heartbeat())
        c.say(heartbeat=pb.Heartbeat())
    assert c.members.generation == 1
    assert len(room.coordinator) == 2


async def test_a_static_member_that_leaves_keeps_its_place_for_its_session(room: Room) -> None:
    a, b = room.join("a"), room.join("b", instance_id="i")
    await room.settle()
    a.plan(1, {"a": [1], "b": [2]})

    b.say(leave=pb.Leave())
    assert b.stream.is_over
    await room.clock.advance(SESSION_MS - 1_000)
    a.say(heartbeat=pb.Heartbeat())
    c = room.join("c", instance_id="i")
    assert c.assigned == (1, [2])
    c.say(leave=pb.Leave())
    await room.clock.advance(SESSION_MS)

    assert len(room.coordinator) == 0


def set_check(room: Room, check: str) -> None:
    group = room.groups.ensure(GROUP)
    room.groups.create(replace(group, attributes={SUBSCRIPTION_CHECK: check}), update=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"subscriptions": []}, "topic 'T': not subscribed here, tags 'a || b' there"),
        ({"subscriptions": [tags("a")]}, "tags 'a' here, tags 'a || b' there"),
        ({"strategy": "ring"}, "strategy: 'ring' here, 'average' there"),
        ({"each_for_itself": True}, "each for itself here, by the leader there"),
        (
            {"subscriptions": [tags("a||b"), tags("*", "U")]},
            "topic 'U': every message here, not subscribed there",
        ),
    ],
    ids=["none", "tags", "strategy", "who", "more"],
)
async def test_who_differs_is_refused_with_both_names(
    room: Room, change: dict[str, Any], told: str
) -> None:
    set_check(room, "refuse")
    room.join("first", subscriptions=[tags("b || a")])

    late = room.join("late", **{"subscriptions": [tags("a||b")], **change})

    error = late.stream.error
    assert isinstance(error, SubscriptionMismatch)
    assert told in error.message
    assert "'late' (127.0.0.1:4)" in error.message
    assert "'first' (127.0.0.1:5)" in error.message
    assert (error.details["member"], error.details["other"]) == ("late", "first")
    assert len(room.coordinator) == 1


async def test_the_error_says_when_a_member_that_is_not_connected_is_forgotten(room: Room) -> None:
    set_check(room, "refuse")
    room.join("first", subscriptions=[tags("a")]).cut()
    await room.clock.advance(4_000)

    late = room.join("late")

    assert late.stream.error is not None
    assert "try again in 6000 ms" in late.stream.error.message
    await room.clock.advance(6_000)
    assert room.join("late").stream.error is None


async def test_a_member_that_is_alone_changes_what_it_wants(room: Room) -> None:
    a = room.join("a")
    await room.settle()
    a.say(join=pb.Join(group=GROUP, member_id="a", subscriptions=[tags("x")], strategy="average"))
    await room.settle()

    assert a.members is not None
    assert a.members.generation == 2
    assert room.join("b", subscriptions=[tags("x")]).stream.error is None


async def test_a_group_that_only_warns_tells_both(room: Room) -> None:
    set_check(room, "warn")
    a = room.join("a")

    b = room.join("b", subscriptions=[tags("x")])

    for one in (a, b):
        (event,) = one.news()
        assert event.warning.name == "SubscriptionMismatch"
    assert len(room.coordinator) == 2


GRACE_MS = 600_000


async def keep_alive(room: Room, *members: FakeMember, passes_ms: int) -> None:
    """Let PASSES_MS pass, in which MEMBERS that still have a stream say that they live."""
    while passes_ms > 0:
        await room.clock.advance(min(5_000, passes_ms))
        passes_ms -= 5_000
        for one in members:
            one.say(heartbeat=pb.Heartbeat())


class TestGrace:
    """Members with a new subscription join one by one, as in a rolling deployment."""

    async def test_both_are_in_and_then_the_newer_subscription_alone(self, room: Room) -> None:
        old = [room.join("old-1"), room.join("old-2")]
        await room.settle()
        new = room.join("new", subscriptions=[tags("x")])
        for one in (old[0], new):
            warning = next(event.warning for event in one.news() if event.HasField("warning"))
            assert warning.name == "SubscriptionMismatch"
            assert "both are served for 10m, then only the newer one" in warning.message
        await keep_alive(room, *old, new, passes_ms=GRACE_MS - 1_000)
        assert room.coordinator.grace_left_ms(GROUP) == 1_000
        assert len(room.coordinator) == 3
        assert all(one.stream.error is None for one in (*old, new))

        await keep_alive(room, *old, new, passes_ms=2_000)

        for one in old:
            assert isinstance(one.stream.error, SubscriptionMismatch)
            assert "the newer subscription is served" in one.stream.error.message
            assert one.stream.error.details["other"] == "new"
        assert new.stream.error is None
        assert new.members is not None
        assert [one.member_id for one in new.members.members] == ["new"]
        assert room.coordinator.grace_left_ms(GROUP) is None

    async def test_an_old_member_that_starts_again_is_no_new_deployment(self, room: Room) -> None:
        old = room.join("old")
        new = room.join("new", subscriptions=[tags("x")])
        await keep_alive(room, old, new, passes_ms=GRACE_MS + 1_000)

        for number in range(3):
            again = room.join(f"old-{number}")
            assert isinstance(again.stream.error, SubscriptionMismatch)
            await keep_alive(room, new, passes_ms=GRACE_MS - 5_000)
        assert len(room.coordinator) == 1

        await keep_alive(room, new, passes_ms=GRACE_MS)
        assert room.join("deployed").stream.error is None, "nobody tried for a grace period"

    async def test_a_deployment_that_ends_in_time_refuses_nobody(self, room: Room) -> None:
        old = room.join("old")
        new = room.join("new", subscriptions=[tags("x")])
        await keep_alive(room, old, new, passes_ms=GRACE_MS // 2)
        old.say(leave=pb.Leave())

        late = room.join("late", subscriptions=[tags("x")])
        await keep_alive(room, new, late, passes_ms=GRACE_MS * 2)

        assert (new.stream.error, late.stream.error) == (None, None)

    async def test_a_third_subscription_begins_a_period_of_its_own(self, room: Room) -> None:
        first = room.join("first")
        second = room.join("second", subscriptions=[tags("x")])
        await keep_alive(room, first, second, passes_ms=GRACE_MS // 2)
        third = room.join("third", subscriptions=[tags("y")])
        everyone = (first, second, third)

        await keep_alive(room, *everyone, passes_ms=GRACE_MS - 5_000)
        assert all(one.stream.error is None for one in everyone)
        await keep_alive(room, *everyone, passes_ms=10_000)

        assert [one.stream.error is None for one in everyone] == [False, False, True]

    async def test_the_setting_is_the_length_of_the_period(self, tmp_path: Path) -> None:
        room = Room(tmp_path, subscription_grace_ms=20_000)
        old = room.join("old")
        new = room.join("new", subscriptions=[tags("x")])
        await keep_alive(room, old, new, passes_ms=25_000)
        assert isinstance(old.stream.error, SubscriptionMismatch)
        assert new.stream.error is None

    async def test_a_group_that_warns_keeps_both_until_it_has_a_grace_period(
        self, room: Room
    ) -> None:
        set_check(room, "warn")
        old = room.join("old")
        new = room.join("new", subscriptions=[tags("x")])
        await keep_alive(room, old, new, passes_ms=GRACE_MS * 2)
        assert len(room.coordinator) == 2

        set_check(room, "grace")
        await keep_alive(room, old, new, passes_ms=70_000)

        assert (old.stream.error is None, new.stream.error is None) == (False, True)


async def test_a_change_of_topics_concerns_only_who_reads_them(room: Room) -> None:
    a = room.join("a")
    other = room.join("x", group="other", subscriptions=[pb.Subscription(topic="U")])
    await room.settle()

    room.coordinator.topics_changed({"U", "V"})
    await room.settle()

    assert (a.members.generation, other.members.generation) == (1, 2)  # type: ignore[union-attr]
    room.coordinator.topics_changed({"%RETRY%g"})
    await room.settle()
    assert (a.members.generation, other.members.generation) == (2, 2)  # type: ignore[union-attr]


async def test_members_are_bounded(tmp_path: Path) -> None:
    room = Room(tmp_path, group_members_max=1, members_max=2)
    a = room.join("a")
    b = room.join("b")
    room.join("c", group="h")
    d = room.join("d", group="i")

    assert isinstance(b.stream.error, Overloaded)
    assert b.stream.error.details["field"] == "group_members_max"
    assert isinstance(d.stream.error, Overloaded)
    assert d.stream.error.details["field"] == "members_max"
    # Who is in may come again.
    assert room.join("a").stream.error is None
    assert isinstance(a.stream.error, MemberFenced)
    await room.close()


@pytest.mark.parametrize(
    ("fields", "kind", "field"),
    [
        ({"group": ""}, InvalidName, "group"),
        ({"group": "CID_RMQ_SYS_x"}, InvalidName, "group"),
        ({"member_id": ""}, InvalidArgument, "member_id"),
        ({"member_id": "m" * 256}, InvalidArgument, "member_id"),
        ({"instance_id": "\x00"}, InvalidArgument, "instance_id"),
        ({"kind": "k" * 33}, InvalidArgument, "kind"),
        ({"session_timeout_ms": 5_999}, InvalidArgument, "session_timeout_ms"),
        ({"session_timeout_ms": 1_800_001}, InvalidArgument, "session_timeout_ms"),
        ({"generation": -1}, InvalidArgument, "generation"),
        ({"generation": 1 << 60}, InvalidArgument, "generation"),
        ({"subscriptions": [tags("a"), tags("b")]}, InvalidArgument, "subscriptions"),
        ({"subscriptions": [tags("a", "no/topic")]}, InvalidName, "topic"),
        ({"subscriptions": [tags("||")]}, InvalidFilter, "expression"),
        ({"held": [held(0)] * 10_001}, InvalidArgument, "held"),
        ({"held": [held(-1)]}, InvalidArgument, "queue"),
        ({"held": [pb.HeldQueue(topic=TOPIC)]}, InvalidArgument, "broker_name"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
async def test_a_bad_join_is_refused_by_field(
    room: Room, fields: dict[str, Any], kind: type[PocketMQError], field: str
) -> None:
    error = room.join(**{"member_id": "a", **fields}).stream.error

    assert isinstance(error, kind)
    assert error.details["field"] == field
    assert len(room.coordinator) == 0


async def test_a_stream_is_one_members(room: Room) -> None:
    a = room.join("a")
    a.say(join=pb.Join(group=GROUP, member_id="b"))
    assert isinstance(a.stream.error, InvalidArgument)

    c = room.join("c", instance_id="i")
    again = room.join("c", instance_id="j")

    assert isinstance(again.stream.error, InvalidArgument)
    assert c.stream.error is None


async def test_a_member_that_does_not_read_loses_its_stream(room: Room) -> None:
    a, b = room.join("a"), room.join("b")
    a.stream.waiting_bytes = 1 << 30

    await room.settle()

    assert isinstance(a.stream.error, Overloaded)
    await room.settle()
    assert b.members is not None
    assert b.members.leader == "b"


async def test_an_empty_group_that_was_deleted_is_forgotten(room: Room) -> None:
    a = room.join("a")
    room.coordinator.forget_group(GROUP)
    assert room.coordinator.get(GROUP) is not None

    a.say(leave=pb.Leave())
    room.coordinator.forget_group(GROUP)

    assert room.coordinator.get(GROUP) is None
    await room.settle()


async def test_another_user_takes_no_members_place_nor_that_of_its_instance(room: Room) -> None:
    alice, eve = FakeUser("alice"), FakeUser("eve")
    mine = room.join("a", user=alice, instance_id="i")
    await room.settle()
    for theirs in (
        room.join("a", user=eve, instance_id="i"),
        room.join("b", user=eve, instance_id="i"),
    ):
        assert isinstance(theirs.stream.error, NotAuthorized)
    assert not mine.stream.is_over
    again = room.join("c", user=alice, instance_id="i")
    assert not again.stream.is_over
    assert mine.stream.is_over


def topic(name: str) -> pb.Subscription:
    return pb.Subscription(topic=name)


def eve() -> FakeUser:
    return FakeUser("eve", to_see_topic("secret"))


async def test_who_may_see_all_topics_of_the_group_leads(room: Room) -> None:
    set_check(room, "warn")
    first = room.join("a", user=eve())
    second = room.join("b", user=FakeUser("bob"), subscriptions=[topic(TOPIC), topic("secret")])
    await room.settle()

    assert first.members is not None
    assert (first.members.leader, len(first.members.members)) == ("b", 0)
    assert second.members is not None
    read = [one.topic for member in second.members.members for one in member.subscriptions]
    assert read == [TOPIC, TOPIC, "secret"]


@pytest.mark.parametrize("each_for_itself", [False, True])
async def test_no_member_is_told_of_topics_that_its_user_may_not_see(
    room: Room, each_for_itself: bool
) -> None:
    set_check(room, "warn")
    first = room.join("a", user=eve(), each_for_itself=each_for_itself)
    room.join(
        "b",
        user=FakeUser("bob", to_see_topic(TOPIC)),
        subscriptions=[topic("secret")],
        held=[pb.HeldQueue(topic="secret", broker_name="broker-a")],
        each_for_itself=each_for_itself,
    )
    await room.settle()

    assert first.members is not None
    assert first.members.leader == "a"
    own, others = first.members.members
    assert [one.topic for one in own.subscriptions] == [TOPIC]
    assert (others.member_id, len(others.subscriptions), len(others.held)) == ("b", 0, 0)
    assert all("secret" not in str(event) for event in first.news())


@pytest.mark.parametrize("check", ["warn", "refuse"])
async def test_the_difference_does_not_name_topics_that_the_user_may_not_see(
    room: Room, check: str
) -> None:
    set_check(room, check)
    bob = room.join("b", user=FakeUser("bob"), subscriptions=[topic(TOPIC), topic("secret")])
    late = room.join("a", user=eve())

    if check == "refuse":
        assert late.stream.error is not None
        said = late.stream.error.message + str(late.stream.error.details)
    else:
        said = str(late.news())
        assert "secret" in str(bob.news())
    assert "1 topic that one of their users may not see" in said
    assert "secret" not in said


async def test_the_end_of_grace_does_not_name_topics_that_the_user_may_not_see(room: Room) -> None:
    late = room.join("a", user=eve())
    newest = room.join("b", user=FakeUser("bob"), subscriptions=[topic(TOPIC), topic("secret")])
    await keep_alive(room, late, newest, passes_ms=GRACE_MS + 1_000)

    assert isinstance(late.stream.error, SubscriptionMismatch)
    assert "1 topic that one of their users may not see" in late.stream.error.message
    assert "secret" not in late.stream.error.message + str(late.stream.error.details)
