"""Topics and groups by their settings: create refuses what exists, and update changes only what is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketmq.client import AsyncAdmin
from pocketmq.proto.errors import GroupExists, GroupNotFound, InvalidArgument, TopicExists

from .command import Shell
from .test_client import running

#: Each setting, with two values that are not its default.
GROUP_SETTINGS: dict[str, tuple[Any, Any]] = {
    "retry_max_times": (3, 4),
    "retry_queues": (2, 3),
    "retry_intervals_ms": ((5_000,), (7_000, 9_000)),
    "order": (True, False),
    "consume_enable": (False, True),
    "subscription_check": ("warn", "refuse"),
}
TOPIC_SETTINGS: dict[str, tuple[Any, Any]] = {
    "queues": (3, 5),
    "type": ("FIFO", "NORMAL"),
    "permission": (4, 2),
    "order": (True, False),
    "attributes": ({"min_in_sync": "2"}, {"min_in_sync": "3"}),
}


def topic_settings(one: Any) -> dict[str, Any]:
    named = {name: getattr(one, name) for name in ("type", "permission", "order")}
    attributes = {key: value for key, value in one.attributes.items() if key != "message.type"}
    return named | {"queues": one.write_queues, "attributes": attributes}


async def test_an_update_of_a_group_leaves_every_other_setting(tmp_path: Path) -> None:
    first = {name: values[0] for name, values in GROUP_SETTINGS.items()}
    async with running(tmp_path) as cluster, AsyncAdmin(cluster.address) as admin:
        for name, (_, other) in GROUP_SETTINGS.items():
            group = f"changes-{name}"
            await admin.create_group(group, **first)
            await admin.update_group(group, **{name: other})
            (found,) = [one for one in await admin.groups() if one.name == group]
            assert {key: getattr(found, key) for key in first} == first | {name: other}


async def test_an_update_of_a_topic_leaves_every_other_setting(tmp_path: Path) -> None:
    first = {name: values[0] for name, values in TOPIC_SETTINGS.items()}
    async with running(tmp_path) as cluster, AsyncAdmin(cluster.address) as admin:
        for name, (_, other) in TOPIC_SETTINGS.items():
            topic = f"changes-{name}"
            await admin.create_topic(topic, **first)
            await admin.update_topic(topic, **{name: other})
            assert topic_settings(await admin.describe_topic(topic)) == first | {name: other}


async def test_what_exists_is_not_created(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, AsyncAdmin(cluster.address) as admin:
        await admin.create_group("billing", order=True)
        await admin.create_topic("orders", type="FIFO")
        others: list[dict[str, Any]] = [{}, {"order": True}]
        for settings in others:
            with pytest.raises(GroupExists, match="'billing' exists"):
                await admin.create_group("billing", **settings)
        for kind in ("FIFO", "NORMAL"):
            with pytest.raises(TopicExists, match="'orders' exists"):
                await admin.create_topic("orders", type=kind)
        differs = r"other settings \(read_queues is 8, not 4, write_queues is 8, not 4\)"
        with pytest.raises(TopicExists, match=differs):
            await admin.create_topic("orders", type="FIFO", queues=4)
        assert [one.order for one in await admin.groups() if one.name == "billing"] == [True]
        assert (await admin.describe_topic("orders")).type == "FIFO"


async def test_an_update_of_nothing_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, AsyncAdmin(cluster.address) as admin:
        await admin.create_group("billing")
        with pytest.raises(GroupNotFound):
            await admin.update_group("other", order=True)
        with pytest.raises(InvalidArgument, match="nothing to change"):
            await admin.update_group("billing")
        with pytest.raises(InvalidArgument, match="nothing to change"):
            await admin.update_topic("orders")


#: The options of a group: what sets each, and what sets it to something else.
OPTIONS: dict[str, tuple[list[str], list[str]]] = {
    "retry_max_times": (["--retries", "3"], ["--retries", "4"]),
    "retry_queues": (["--retry-queues", "2"], ["--retry-queues", "3"]),
    "retry_intervals_ms": (["--retry-intervals", "5s"], ["--retry-intervals", ""]),
    "order": (["--fifo"], ["--no-fifo"]),
    "consume_enable": (["--no-consume"], ["--consume"]),
    "subscription_check": (["--subscriptions", "warn"], ["--subscriptions", "refuse"]),
}


@pytest.mark.processes
def test_the_command_changes_what_is_given_alone(call: Shell) -> None:
    given = [word for options, _ in OPTIONS.values() for word in options]
    (before,) = call("group", "create", "optional", *given, "--json").documents
    for name, (first, other) in OPTIONS.items():
        (after,) = call("group", "update", "optional", *other, "--json").documents
        assert {key for key in before if before[key] != after[key]} == {name}
        assert call("group", "update", "optional", *first, "--json").documents == [before]


@pytest.mark.processes
def test_the_command_does_not_create_a_group_that_exists(call: Shell) -> None:
    (made,) = call("group", "create", "ordered", "--fifo", "--retries", "3", "--json").documents

    again = call("group", "create", "ordered", "--subscriptions", "warn")
    left = call("group", "create", "ordered", "--if-missing", "--json")

    assert again.code == 5
    assert "'ordered' exists" in again.err
    assert left.documents == [made]
    assert call("group", "update", "missing", "--fifo").code == 3
    assert call("group", "update", "ordered").code == 2
