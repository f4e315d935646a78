"""`pocketmq lint`: each kind of mistake is found, from files and from a cluster, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pocketmq.broker.broker_tables import BrokerTables
from pocketmq.broker.consume_stats import ConsumeStats
from pocketmq.broker.consumer_groups import Groups
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.queue_stats import EVERY, Filtering, ScanResult
from pocketmq.broker.topics import Topics
from pocketmq.client import Admin, Message, OffsetTarget, Producer, PullConsumer
from pocketmq.proto.clock import VirtualClock
from pocketmq.store.format.state_tables import GROUPS, TOPICS, GroupConfig, TopicConfig
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.tools.cli import run
from pocketmq.tools.lint.rules import (
    FilterUse,
    GroupShape,
    Mistake,
    TopicShape,
    is_nameable,
    of_filters,
    of_group,
    of_members,
    of_topic,
)

from ...integration.whole_broker import serving, store_config
from ...runs import make_run, open_store
from ...served import broker_config
from ..group_reports import member, report

Found = dict[str, list[str]]


class Store:
    """A store in FOLDER with topics, groups, messages and statistics."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "store"
        disk, config = OsDisk(), broker_config()
        store = open_store(self.root)
        self.store = store
        self.tables = BrokerTables.open(store, VirtualClock())
        topics, groups = (StateFile(disk, str(self.root), form.file) for form in (TOPICS, GROUPS))
        self.topics = Topics(topics, config, lambda: 1, changes=self.tables.topics)
        self.groups = Groups(groups, config, lambda: 1, self.tables.groups)
        self.offsets = Offsets(StateFile(disk, str(self.root), "consumerOffset.json"), lambda: 1)
        self.stats = ConsumeStats(lambda: 1_000, self.tables.statistics)

    def topic(self, name: str, queues: int = 1, **fields: object) -> None:
        made = TopicConfig(name=name, read_queues=queues, write_queues=queues, **fields)  # type: ignore[arg-type]
        self.topics.create(made, update=False)

    def send(self, topic: str, tags: Sequence[str], queue: int = 0, **properties: str) -> None:
        self.store.append(
            make_run(
                topic,
                queue,
                [b"x"] * len(tags),
                [{"TAGS": tag} | properties if tag else dict(properties) for tag in tags],
            )
        )

    def look(
        self, group: str, topic: str, begin: int, end: int, wanted: list[int], name: Filtering
    ) -> None:
        """Have GROUP look at [BEGIN, END) through the filter NAME, and commit that."""
        inside = np.array(wanted, np.int64)
        look = ScanResult(begin, end, inside, end - begin - len(wanted), 0)
        self.stats.look((group, topic, 0), look, queue_end=1_000, filtering=name, member="m")
        self.offsets.commit(topic, group, 0, end)

    def close(self) -> str:
        self.topics.table.close()
        self.groups.table.close()
        self.tables.journal.close()
        self.store.close()
        self.offsets.save()
        return str(self.root)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def linted(capsys: pytest.CaptureFixture[str], *arguments: str) -> Found:
    """Return the sentences of what is found, by rule."""
    code = run(["lint", *arguments, "--json"])
    found: Found = {}
    for line in capsys.readouterr().out.splitlines():
        document = json.loads(line)
        found.setdefault(document["rule"], []).append(document["text"])
    assert code == (1 if found else 0)
    return found


class TestStores:
    """What files tell."""

    def test_a_good_store_has_no_findings(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store.topic("T")
        store.topic("F", attributes={"message.type": "FIFO"})
        store.send("T", ["a", "b", ""])
        store.send("F", ["a"], __SHARDINGKEY="k")
        store.look("g", "T", 0, 3, [0], ("TAG", "a"))
        store.offsets.commit("T", "all", 0, 3)
        root = store.close()

        assert linted(capsys, root) == {}
        assert run(["lint", root]) == 0
        assert "no findings (" in capsys.readouterr().out

    def test_messages_that_every_group_stepped_over_are_told(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store.topic("T")
        store.send("T", ["a", "b", "c", "", "c", "c"])
        store.look("g", "T", 0, 5, [0], ("TAG", "a"))
        store.look("h", "T", 0, 6, [1], ("SQL", "TAGS = 'b'"))

        (text,) = linted(capsys, store.close())["never-wanted"]

        # The last c is one that g has not come to.
        assert text == (
            "queue 0: every group filtered out 3 messages, from offset 2 to 4 (tags: 'c' 2, '' 1)"
        )

    def test_what_one_group_wants_without_a_filter_is_wanted(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store.topic("T")
        store.send("T", ["a", "b"])
        store.look("g", "T", 0, 2, [0], ("TAG", "a"))
        store.look("h", "T", 0, 1, [0], ("TAG", "a"))
        store.look("h", "T", 1, 2, [1], EVERY)

        assert "never-wanted" not in linted(capsys, store.close())

    def test_several_filters_of_a_group_are_told(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store.topic("T")
        store.send("T", ["a", "b", "a"])
        store.look("g", "T", 0, 2, [0], ("TAG", "a"))
        store.look("g", "T", 2, 3, [], ("TAG", "b"))

        (text,) = linted(capsys, store.close())["filters"]

        assert text.startswith("read through 2 filters: 'a' filtered out 1 until 1970-01-01")
        assert "'b' filtered out 1" in text

    def test_tags_that_no_filter_can_name_are_told(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store.topic("T")
        store.send("T", ["a||b", "a||b", " c", "fine", "a|b", "*"])

        texts = linted(capsys, store.close())["tag"]

        assert [text.split(",")[0] for text in texts] == [
            "queue 0: 2 messages with the tag 'a||b'",
            "queue 0: 1 message with the tag ' c'",
            "queue 0: 1 message with the tag '*'",
        ]

    def test_fifo_messages_without_a_key_are_told(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store.topic("F", attributes={"message.type": "FIFO"})
        store.send("F", ["a", "b"])
        store.send("F", ["a"], __SHARDINGKEY="k")

        (text,) = linted(capsys, store.close())["no-key"]

        assert text.startswith("queue 0: 2 of 3 messages of a FIFO topic have no sharding key")

    def test_only_what_is_asked_for_is_looked_at(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store.topic("T")
        store.topic("U")
        store.send("T", ["a||b"] * 3)
        store.send("U", ["*"])
        root = store.close()

        assert list(linted(capsys, root, "--topic", "U")) == ["tag"]
        assert linted(capsys, root, "--messages", "0") == {}
        (text,) = linted(capsys, root, "--topic", "T", "--messages", "2")["tag"]
        assert text.startswith("queue 0: 2 messages")

    def test_queues_and_groups_that_are_shut_are_told(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store.topic("T", queues=2)
        store.send("T", ["a"], queue=1)
        store.topics.create(TopicConfig(name="T", read_queues=1, write_queues=2), update=True)
        store.groups.create(GroupConfig(name="off", consume_enable=False), update=False)
        store.offsets.commit("T", "off", 1, 0)

        found = linted(capsys, store.close())

        assert found["unreadable"][0].startswith(
            "no client can read the 1 message of queue 1: the topic has 1 read queue"
        )
        assert found["switched-off"] == [
            "delivery is off (consumeEnable is false), and the group has 1 unread message"
        ]


def make_mistakes(nameserver: str) -> None:
    with Admin(nameserver) as admin, Producer(nameserver) as producer:
        admin.create_topic("T", queues=1)
        admin.create_group("idle")
        admin.reset_offsets("idle", "T", OffsetTarget(first=True), create=True)
        for tag, count in (("a", 1), ("b", 1)):
            producer.send(Message("T", b"x", tag="a"))
            producer.send(Message("T", b"x", tag="b"))
            with PullConsumer("g", {"T": tag}, nameserver) as consumer:
                taken = 0
                while taken < count:
                    taken += len(consumer.poll(1))


async def test_a_cluster_tells_of_readers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(store_config(tmp_path)) as (nameserver, _):
        await asyncio.to_thread(make_mistakes, nameserver)
        found = await asyncio.to_thread(linted, capsys, "--nameserver", nameserver)

    assert sorted(found) == ["filters", "no-reader"]
    assert found["no-reader"][0].startswith(
        "the group has no consumer, and 4 unread messages in T. Start a consumer"
    )


def group(**fields: object) -> GroupShape:
    made: dict[str, object] = {
        "name": "g",
        "consume_enable": True,
        "unread": {"T": 0},
        "queues": {"T": 2},
        "members": {"T": 2},
        "clients": 0,
    }
    return GroupShape(**made | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "rules"),
    [
        (group(), []),
        (group(members={"T": 3}), ["too-many-members"]),
        (group(members={}, unread={"T": 5}), ["no-reader"]),
        (group(members={}, clients=1, unread={"T": 5}), []),
        (group(members=None, clients=None, unread={"T": 5}), []),
        (group(members={}, unread={"T": 0}), []),
    ],
)
def test_who_reads_for_a_group(shape: GroupShape, rules: list[str]) -> None:
    assert [finding.rule for finding in of_group(shape, None)] == rules


def test_a_topic_that_is_not_readable_holds_what_nobody_may_read() -> None:
    shape = TopicShape(
        name="T", broker="b", permission=2, read_queues=4, write_queues=4, messages={0: 3, 1: 0}
    )

    assert [finding.count for finding in of_topic(shape)] == [3]


def test_queues_that_are_written_and_not_read_are_told_without_knowing_what_they_hold() -> None:
    shape = TopicShape(
        name="T", broker="b", permission=6, read_queues=2, write_queues=4, messages={0: 3, 1: 0}
    )

    (found,) = of_topic(shape)

    assert found.text.startswith("4 queues are written, but the topic has 2 read queues")


def test_one_filter_in_many_queues_is_one() -> None:
    uses = [FilterUse(filter="a", count=1, until_ms=1)] * 3

    assert list(of_filters("g", "T", uses, None)) == []


def test_members_that_read_through_different_filters_now_are_told() -> None:
    found = report(
        "g",
        members=(member("old", "T: a", "U"), member("new", "T: b", "U")),
        clients=(member("client", "T: b"),),
        grace_left_ms=90_500,
    )

    (mistake,) = of_members(found, lambda topic: True)

    assert (mistake.rule, mistake.topic, mistake.group, mistake.count) == ("filters", "T", "g", 2)
    assert mistake.text == (
        "members read through 2 filters now: 'a' by 1 (old), 'b' by 2 (new);"
        " in 1m30s only the newest is served"
    )
    assert list(of_members(found, lambda topic: topic == "U")) == []


def test_a_finding_says_all_that_it_knows() -> None:
    finding = Mistake(rule="tag", text="t", topic="T", count=2)

    assert finding.document() == {
        "rule": "tag", "broker": None, "topic": "T", "group": None, "count": 2, "text": "t",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tag", "nameable"), [("a", True), ("a|b", True), ("a||b", False), ("*", False), (" a", False)]
)
def test_a_tag_is_nameable_if_a_filter_wants_it_alone(tag: str, nameable: bool) -> None:
    assert is_nameable(tag) is nameable
