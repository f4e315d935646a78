"""The strategies that Apache has as well give what Apache's own classes gave; see apache_5_5.jsh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pocketmq.client import Queue
from pocketmq.client.allocation import Member, ordered_members, ordered_queues
from pocketmq.client.allocation_strategies import MachineRoom, strategy_named

TABLES = [
    json.loads(line)
    for line in Path(__file__)
    .with_name("apache_5_5.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]


def parsed(topic: str, name: str) -> Queue:
    broker, _, number = name.rpartition(":")
    return Queue(topic, broker, int(number))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table['strategy']}-{table['topic']}")
def test_the_same_names_get_the_same_queues_as_from_apache(table: dict[str, Any]) -> None:
    topic, name = table["topic"], table["strategy"]
    members = [
        Member(client, room=client.partition("@")[0], topics=frozenset({topic}))
        for client in reversed(table["shares"])
    ]
    queues = [parsed(topic, queue) for queue in reversed(table["queues"])]
    # The oracle was set to these two rooms.
    strategy = MachineRoom(["room0", "room2"]) if name == "machine-room" else strategy_named(name)

    shares = strategy.allocate(members, queues)

    assert shares == {
        client: [parsed(topic, queue) for queue in share]
        for client, share in table["shares"].items()
    }


def test_there_is_a_table_for_every_strategy_that_apache_has() -> None:
    assert {table["strategy"] for table in TABLES} == {
        "average",
        "average-by-circle",
        "consistent-hash",
        "machine-room",
        "machine-room-nearby",
        "machine-room-nearby-consistent-hash",
    }


def test_names_are_ordered_as_java_orders_strings() -> None:
    by_code_point = ["\uff5e", "\U00010000"]

    members = ordered_members([Member(name) for name in by_code_point])
    queues = ordered_queues([Queue("t", name, 0) for name in by_code_point])

    assert [member.member_id for member in members] == ["\U00010000", "\uff5e"]
    assert [queue.broker for queue in queues] == ["\U00010000", "\uff5e"]


def test_queues_are_ordered_by_number_and_not_by_its_digits() -> None:
    assert ordered_queues([Queue("t", "b", 10), Queue("t", "b", 9)])[0].number == 9
