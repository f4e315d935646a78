"""Reports of groups, as an admin describes them, in which a test says what it is about."""

from __future__ import annotations

from typing import Any

from pocketmq.client import GroupMember, GroupStatus, Queue


def member(name: str, *subscriptions: str, queues: tuple[Queue, ...] = ()) -> GroupMember:
    return GroupMember(
        member_id=name,
        instance_id="",
        peer="127.0.0.1:1",
        kind="pull",
        room="",
        subscriptions=subscriptions,
        joined_ms=0,
        last_heard_ms=0,
        is_leader=False,
        queues=queues,
    )


def report(name: str, **told: Any) -> GroupStatus:
    """Return a report of group NAME in which nobody is, but for what is TOLD."""
    plain: dict[str, Any] = {
        "coordinator": "",
        "generation": 0,
        "leader": "",
        "strategy": "",
        "assigned_by_clients": False,
        "rebalance_count": 0,
        "subscription_check": "grace",
        "members": (),
        "queues": (),
    }
    return GroupStatus(name=name, **plain | told)
