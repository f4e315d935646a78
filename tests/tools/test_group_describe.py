"""What `pocketmq group describe` makes of a group's report."""

from __future__ import annotations

from pocketmq.tools.group_description import conflicts, document

from .group_reports import member, report


def test_members_that_want_the_same_in_any_order_are_no_conflict() -> None:
    members = member("a", "x", "y:red"), member("b", "y:red", "x")
    alike = report("g", members=members, clients=(member("new"),))
    assert conflicts(alike) == []


def test_who_wants_something_else_than_the_others_is_told_members_and_clients_together() -> None:
    clients = member("c", "x"), member("b", "x")
    found = report("g", members=(member("a", "x:red"),), clients=clients)

    told = document(found)["conflicts"]

    assert told == [
        {"subscriptions": ["x"], "members": ["b", "c"]},
        {"subscriptions": ["x:red"], "members": ["a"]},
    ]
