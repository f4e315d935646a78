"""Topics of a broker: who may do what with which, and what the file keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.events import BrokerEvents
from pocketmq.broker.topics import Topics
from pocketmq.proto.errors import (
    DiskFailure,
    InvalidArgument,
    InvalidName,
    NotReadable,
    NotWritable,
    Overloaded,
    PocketMQError,
    QueueNotFound,
    TopicExists,
    TopicNotFound,
    Unsupported,
)
from pocketmq.proto.topics import system_topic_queues
from pocketmq.store.disk import Disk
from pocketmq.store.format.state_tables import TopicConfig, TopicTable, parse_topics, render_topics
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ..fakes import FaultyDisk
from ..runs import Hand
from ..store.table_worlds import open_changes


def topics_at(
    path: Path, *, disk: Disk | None = None, events: BrokerEvents | None = None, **settings: object
) -> Topics:
    """Return the topics that a broker on the store at PATH has."""
    file = StateFile(disk or OsDisk(), str(path), "topics.json")
    changes, _ = open_changes(path, disk=disk)
    return Topics(file, BrokerConfig(**settings), Hand(), events, changes)  # type: ignore[arg-type]


def topic(name: str = "T", **fields: object) -> TopicConfig:
    return TopicConfig(**{"name": name, "read_queues": 4, "write_queues": 4, **fields})  # type: ignore[arg-type]


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    return topics_at(tmp_path)


def test_the_topics_of_the_system_are_there_from_the_start(topics: Topics) -> None:
    made = {one.name: one for one in topics.all(include_system=True)}

    for name, queues, permission in system_topic_queues("DefaultCluster", "broker-a"):
        assert (made[name].read_queues, made[name].write_queues) == (queues, queues)
        assert made[name].permission == permission
    assert topics.all(include_system=False) == []


def test_what_the_file_says_of_a_topic_of_the_system_wins(tmp_path: Path) -> None:
    table = TopicTable(topics={"TBW102": topic("TBW102", read_queues=2, write_queues=2)})
    StateFile(OsDisk(), str(tmp_path), "topics.json").save(render_topics(table))

    assert topics_at(tmp_path).get("TBW102").write_queues == 2


def test_a_topic_is_there_after_a_restart(tmp_path: Path, topics: Topics) -> None:
    made = topics.create(topic(attributes={"message.type": "FIFO"}, order=True), update=False)

    assert topics_at(tmp_path).get("T") == made


def test_creating_twice_is_refused_and_updating_changes(topics: Topics) -> None:
    topics.create(topic(attributes={"message.type": "NORMAL"}), update=False)

    with pytest.raises(TopicExists):
        topics.create(topic(), update=False)
    changed = topics.create(topic(write_queues=8, read_queues=8), update=True)

    assert changed.write_queues == topics.get("T").write_queues == 8
    assert changed.attributes == {"message.type": "NORMAL"}, "what is not given stays"


def test_an_update_of_nothing_is_refused(topics: Topics) -> None:
    with pytest.raises(TopicNotFound):
        topics.create(topic(), update=True)


@pytest.mark.parametrize(
    ("bad", "error", "field"),
    [
        (topic(read_queues=0), InvalidArgument, "read_queues"),
        (topic(write_queues=1025), InvalidArgument, "write_queues"),
        (topic(permission=8), InvalidArgument, "permission"),
        (topic(attributes={"message.type": "ODD"}), InvalidArgument, "type"),
        (topic(attributes={"queue.type": "BatchCQ"}), InvalidArgument, "queue.type"),
        (topic(attributes={"colour": "red"}), InvalidArgument, "attributes"),
        (topic("a b"), InvalidName, "topic"),
        (topic("TBW102"), InvalidName, "name"),
        (topic("broker-a"), InvalidName, "name"),
        (topic("rmq_sys_mine"), InvalidName, "name"),
    ],
    ids=lambda value: value.name if isinstance(value, TopicConfig) else str(value),
)
def test_what_is_out_of_range_is_named(
    topics: Topics, bad: TopicConfig, error: type[PocketMQError], field: str
) -> None:
    with pytest.raises(error) as raised:
        topics.create(bad, update=False)

    assert raised.value.details["field"] == field


def test_a_foreign_attribute_survives_an_update(tmp_path: Path) -> None:
    table = TopicTable(topics={"T": topic(attributes={"reserve.time": "3600000"})})
    StateFile(OsDisk(), str(tmp_path), "topics.json").save(render_topics(table))
    topics = topics_at(tmp_path)

    changed = topics.create(
        topic(read_queues=9, attributes={"reserve.time": "3600000"}), update=True
    )

    assert changed.attributes == {"reserve.time": "3600000"}


def test_the_number_of_topics_is_bounded(tmp_path: Path) -> None:
    system = len(topics_at(tmp_path).all(include_system=True))
    topics = topics_at(tmp_path, topics_max=system + 1)
    topics.create(topic("A"), update=False)

    with pytest.raises(Overloaded, match="topics_max"):
        topics.create(topic("B"), update=False)


def test_the_number_of_all_queues_is_bounded_whatever_the_topics(tmp_path: Path) -> None:
    system = sum(
        max(one.read_queues, one.write_queues)
        for one in topics_at(tmp_path).all(include_system=True)
    )
    topics = topics_at(tmp_path, queues_max=system + 10)
    topics.create(topic("A", read_queues=6, write_queues=4), update=False)

    with pytest.raises(Overloaded, match=rf"8 more queues.*{system + 6:,}.*queues_max"):
        topics.create(topic("B", read_queues=8, write_queues=8), update=False)
    with pytest.raises(Overloaded, match="queues_max"):
        topics.create(topic("A", read_queues=11, write_queues=4), update=True)
    topics.create(topic("A", read_queues=2, write_queues=2), update=True)
    topics.create(topic("B", read_queues=8, write_queues=8), update=False)
    topics.delete("B")
    topics.create(topic("C", read_queues=8, write_queues=8), update=False)


class TestSending:
    """What `for_writing` allows."""

    def test_an_unknown_topic_is_made_as_apache_makes_it(self, topics: Topics) -> None:
        made = topics.for_writing("New", 3)

        assert (made.read_queues, made.write_queues, made.permission) == (4, 4, 6)
        assert topics.get("New") == made

    @pytest.mark.parametrize(("default", "queues"), [(2, 2), (16, 8)], ids=["fewer", "at most 8"])
    def test_the_smaller_number_of_queues_counts(
        self, tmp_path: Path, default: int, queues: int
    ) -> None:
        topics = topics_at(tmp_path, default_topic_queues=default)

        assert topics.for_writing("New", 0).write_queues == queues

    def test_nothing_is_made_when_that_is_switched_off(self, tmp_path: Path) -> None:
        topics = topics_at(tmp_path, auto_create_topics=False)

        with pytest.raises(TopicNotFound, match="create it"):
            topics.for_writing("New", 0)

    @pytest.mark.parametrize("name", ["%RETRY%g", "%DLQ%g", "rmq_sys_x"])
    def test_no_topic_of_the_system_is_made(self, topics: Topics, name: str) -> None:
        with pytest.raises(TopicNotFound):
            topics.for_writing(name, 0)

    def test_a_queue_beyond_the_last_makes_no_topic(self, topics: Topics) -> None:
        with pytest.raises(QueueNotFound):
            topics.for_writing("New", 4)
        with pytest.raises(TopicNotFound):
            topics.get("New")

    @pytest.mark.parametrize("queue", [-1, 4])
    def test_a_queue_that_is_not_there_is_refused(self, topics: Topics, queue: int) -> None:
        topics.create(topic(), update=False)

        with pytest.raises(QueueNotFound, match="0 to 3"):
            topics.for_writing("T", queue)
        with pytest.raises(QueueNotFound):
            topics.for_reading("T", queue)

    def test_permissions_are_kept(self, topics: Topics) -> None:
        topics.create(topic("ReadOnly", permission=4), update=False)
        topics.create(topic("WriteOnly", permission=2), update=False)

        with pytest.raises(NotWritable):
            topics.for_writing("ReadOnly", 0)
        with pytest.raises(NotReadable):
            topics.for_reading("WriteOnly", 0)
        assert topics.for_reading("ReadOnly", 0)
        assert topics.for_writing("WriteOnly", 0)

    @pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
    def test_topics_that_only_the_broker_writes_are_refused(
        self, topics: Topics, name: str
    ) -> None:
        with pytest.raises(NotWritable):
            topics.for_writing(name, 0)

    def test_a_topic_with_batch_queues_is_refused(self, tmp_path: Path) -> None:
        table = TopicTable(topics={"B": topic("B", attributes={"queue.type": "BatchCQ"})})
        StateFile(OsDisk(), str(tmp_path), "topics.json").save(render_topics(table))

        with pytest.raises(Unsupported, match="BatchCQ"):
            topics_at(tmp_path).for_writing("B", 0)


def test_a_deleted_topic_is_gone_for_good(tmp_path: Path, topics: Topics) -> None:
    topics.create(topic(), update=False)

    topics.delete("T")

    for table in (topics, topics_at(tmp_path)):
        with pytest.raises(TopicNotFound):
            table.get("T")


def test_a_topic_of_the_system_cannot_be_deleted(topics: Topics) -> None:
    with pytest.raises(NotWritable):
        topics.delete("TBW102")


def test_every_change_moves_the_version_and_is_reported(tmp_path: Path) -> None:
    events = BrokerEvents()
    topics = topics_at(tmp_path, events=events)
    versions = [topics.version]
    events.topic_changed.append(lambda name: versions.append(topics.version))

    topics.create(topic(), update=False)
    topics.create(topic(read_queues=5), update=True)
    topics.delete("T")

    assert versions == sorted(set(versions))
    assert len(versions) == 4


def test_a_change_that_cannot_be_saved_does_not_count(tmp_path: Path) -> None:
    disk = FaultyDisk()
    topics = topics_at(tmp_path, disk=disk)
    disk.break_writes("tables")

    with pytest.raises(DiskFailure):
        topics.create(topic(), update=False)

    with pytest.raises(TopicNotFound):
        topics.get("T")


class TestTopicsOfGroups:
    """Retry and dead-letter topics are made when they are first needed."""

    def test_one_is_created_and_reported_once(self, tmp_path: Path) -> None:
        events = BrokerEvents()
        topics = topics_at(tmp_path, events=events)
        told: list[None] = []
        events.topic_changed.append(lambda name: told.append(None))

        made = topics.for_group("%RETRY%g", 2)

        assert (made.read_queues, made.write_queues, made.permission) == (2, 2, 6)
        assert topics.for_group("%RETRY%g", 1) is made
        assert len(told) == 1

    def test_one_with_too_few_queues_gets_as_many_as_are_asked_for(self, topics: Topics) -> None:
        topics.for_group("%RETRY%g", 1)

        assert topics.for_group("%RETRY%g", 3).read_queues == 3
        assert topics.get("%RETRY%g").write_queues == 3

    def test_one_that_takes_no_messages_is_refused(self, topics: Topics) -> None:
        topics.create(topic("%DLQ%g", permission=4), update=False)

        with pytest.raises(NotWritable):
            topics.for_group("%DLQ%g", 1)


def test_what_the_file_holds_is_served_as_far_as_it_can_be_and_stays_in_it(tmp_path: Path) -> None:
    odd = {
        name: topic(name) for name in ("localhost.localdomain", "a b", "t" * 200, "../up", "a@b")
    }
    odd |= {"p": topic("p", permission=15, read_queues=-1, write_queues=2**31 - 1)}
    text = render_topics(TopicTable(topics=odd)).replace(
        '"topicConfigTable":{', '"topicConfigTable":{"wrong":{"perm":"x"},', 1
    )
    file = StateFile(OsDisk(), str(tmp_path), "topics.json")
    file.save(text)

    topics = topics_at(tmp_path)
    made = topics.create(topic("new"), update=False)
    topics.create(replace(topics.get("a b"), read_queues=2), update=True)

    names = {one.name for one in topics.all(include_system=False)}
    assert names == {"localhost.localdomain", "a b", "t" * 200, "p", made.name}
    served = topics.get("p")
    assert (served.permission, served.read_queues, served.write_queues) == (7, 0, 65_536)
    for missing in ("../up", "a@b", "wrong"):
        assert topics.find(missing) is None
    said = " ".join(topics.unusual())
    assert all(repr(name) in said for name in ("../up", "a b", "p", "wrong"))
    kept = file.load(parse_topics).value
    assert kept is not None
    assert kept.topics["../up"] == odd["../up"]
    assert kept.topics["p"] == odd["p"]
    assert kept.unread["wrong"].bean == {"perm": "x"}
