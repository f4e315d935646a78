"""What `pocketmq group describe` makes of a group's report."""

from __future__ import annotations

from pocketmq.client import GroupMember, GroupReport
from pocketmq.tools.group_describe import conflicts, document


def member(name: str, *subscriptions: str) -> GroupMember:
    return GroupMember(
        member_id=name,
        instance_id="",
        peer="127.0.0.1:5",
        kind="push",
        room="",
        subscriptions=subscriptions,
        joined_ms=1,
        last_heard_ms=1,
        is_leader=False,
        queues=(),
    )


def report(members: tuple[GroupMember, ...], clients: tuple[GroupMember, ...]) -> GroupReport:
    return GroupReport(
        name="g",
        coordinator="",
        generation=0,
        leader="",
        strategy="",
        each_for_itself=False,
        rebalance_count=0,
        subscription_check="warn",
        members=members,
        queues=(),
        clients=clients,
    )


def test_members_that_want_the_same_in_any_order_are_no_conflict() -> None:
    alike = report((member("a", "x", "y:red"), member("b", "y:red", "x")), (member("new"),))
    assert conflicts(alike) == []


def test_who_wants_something_else_than_the_others_is_told_members_and_clients_together() -> None:
    found = report((member("a", "x:red"),), (member("c", "x"), member("b", "x")))

    told = document(found)["conflicts"]

    assert told == [
        {"subscriptions": ["x"], "members": ["b", "c"]},
        {"subscriptions": ["x:red"], "members": ["a"]},
    ]
