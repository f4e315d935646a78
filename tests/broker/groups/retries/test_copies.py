"""The copies of failed messages: what they have in common with their originals, and with the copies that Java makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pocketmq.broker.groups.retries import Fate, copied_properties
from pocketmq.proto.errors import TopicNotFound
from pocketmq.proto.record import Host, Record
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.format.state_tables import GroupConfig

from ....recorded import recorded_store, settings
from ....runs import records_of
from .retrying import SCHEDULE, SECOND, TIMER, Retrying, origin_of


class TestCopies:
    """What the copy of a failed message is."""

    def test_it_waits_for_the_retry_topic_in_the_queue_of_its_level(self, broker: Retrying) -> None:
        original = broker.message()

        reply = broker.send_back(original)

        copy = broker.last(SCHEDULE, 2)
        assert copy.properties == {
            **origin_of(original),
            "WAIT": "false",
            "DELAY": "3",
            "REAL_TOPIC": "%RETRY%g",
            "REAL_QID": "0",
        }
        assert unchanged(copy) == unchanged(original)
        assert (reply.dead, reply.topic, reply.reconsume_times) == (False, "%RETRY%g", 1)
        assert (reply.log_offset, reply.due_ms) == (
            copy.log_offset,
            broker.clock.now_ms() + 10 * SECOND,
        )

    def test_a_dead_one_lies_in_the_dead_letters_at_once(self, broker: Retrying) -> None:
        original = broker.message()

        reply = broker.send_back(original, delay_level=-1, reason="no such\x01customer\n")

        copy = broker.last("%DLQ%g")
        assert copy.properties == {
            **origin_of(original),
            "WAIT": "false",
            "DELAY": "0",
            "DLQ_ORIGIN_TOPIC": "T",
            "DLQ_ORIGIN_MESSAGE_ID": original.message_id,
            "DLQ_REASON": "no such customer",
        }
        assert unchanged(copy) == unchanged(original)
        assert (reply.dead, reply.topic, reply.due_ms) == (True, "%DLQ%g", broker.clock.now_ms())

    def test_what_the_timer_left_is_gone_so_that_it_is_scheduled_anew(
        self, broker: Retrying
    ) -> None:
        broker.group("own", [15 * SECOND])
        now_ms = broker.clock.now_ms()
        left = {
            "KEYS": "k",
            "TIMER_DELIVER_MS": str(now_ms - 1),
            "TIMER_OUT_MS": "1",
            "TIMER_ENQUEUE_MS": "2",
            "TIMER_DEQUEUE_MS": "3",
            "TIMER_ROLL_TIMES": "4",
            "REAL_TOPIC": "T",
            "REAL_QID": "9",
            "DELAY": "2",
        }

        reply = broker.send_back(broker.message(properties=left), "own")

        assert reply.due_ms == now_ms + 15 * SECOND
        properties = broker.last(TIMER).properties
        assert {name: properties.get(name) for name in left} == {
            "KEYS": "k",
            "TIMER_DELIVER_MS": str(reply.due_ms),
            "TIMER_OUT_MS": str((reply.due_ms - 1) // 1_000 * 1_000),
            "TIMER_ENQUEUE_MS": None,
            "TIMER_DEQUEUE_MS": None,
            "TIMER_ROLL_TIMES": None,
            "REAL_TOPIC": "%RETRY%own",
            "REAL_QID": "0",
            "DELAY": None,
        }

    def test_topics_are_made_when_they_are_first_needed(self, broker: Retrying) -> None:
        broker.group("many", retry_queues=3)
        original = broker.message()

        broker.send_back(original, "many")
        made = broker.topics.get("%RETRY%many")
        assert (made.read_queues, made.write_queues, made.permission) == (3, 3, 6)
        with pytest.raises(TopicNotFound):
            broker.topics.get("%DLQ%many")
        broker.send_back(original, "many", delay_level=-1)
        made = broker.topics.get("%DLQ%many")
        assert (made.read_queues, made.write_queues, made.permission) == (1, 1, 6)

    def test_every_retry_queue_of_a_group_is_used(self, broker: Retrying) -> None:
        broker.group("many", retry_queues=3)
        original = broker.message()

        for _ in range(60):
            broker.send_back(original, "many", delay_level=1)

        queues = {record.properties["REAL_QID"] for record in records_of(broker.store, SCHEDULE, 0)}
        assert queues == {"0", "1", "2"}

    def test_a_group_of_a_java_broker_without_retry_queues_loses_nothing(
        self, broker: Retrying
    ) -> None:
        broker.groups.table.put("none", GroupConfig(name="none", retry_queues=0))

        assert broker.send_back(broker.message(), "none").topic == "%RETRY%none"

    def test_a_dead_letter_without_room_for_its_reason_does_without(self, broker: Retrying) -> None:
        original = broker.message(properties={"big": "x" * 32_500})

        broker.send_back(original, delay_level=-1, reason="y" * 500)

        assert broker.last("%DLQ%g").properties.keys() == {
            *("big", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "WAIT", "DELAY")
        }

    def test_a_record_that_claims_absurd_counts_is_copied_all_the_same(self) -> None:
        record = Record(topic="T", body=b"", reconsume_times=-3, store_host=Host.parse("::1", 1))

        assert copied_properties(record, Fate(level=1), 0)["ORIGIN_MESSAGE_ID"].endswith("0" * 16)


def unchanged(record: Record) -> tuple[object, ...]:
    """Return what a copy has in common with its original."""
    return (
        record.body,
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.body_crc,
    )


class TestJavasCopies:
    """Ours of the messages in Java's store are what Java made of them: property for property."""

    @pytest.fixture
    def java(self, tmp_path: Path) -> Iterator[Retrying]:
        path = recorded_store("consumption", tmp_path / "store")
        config = ApacheSettings.of(settings("consumption")).store_config(str(path))
        made = Retrying(path, config=config)
        yield made
        made.close()

    @pytest.mark.parametrize(("topics", "first"), [("Failing", 0), ("%RETRY%G_failing", 4)])
    def test_retries(self, java: Retrying, topics: str, first: int) -> None:
        theirs = records_of(java.store, SCHEDULE, 0)[first : first + 4]
        originals = {
            record.properties["UNIQ_KEY"]: record
            for queue in (0, 1)
            for record in records_of(java.store, topics, queue)
            if record.reconsume_times == first // 4
        }

        for copy in theirs:
            java.send_back(originals[copy.properties["UNIQ_KEY"]], "G_failing", delay_level=1)

        ours = records_of(java.store, SCHEDULE, 0)[8:]
        assert [settled(record) for record in ours] == [settled(record) for record in theirs]

    def test_dead_letters(self, java: Retrying) -> None:
        theirs = records_of(java.store, "%DLQ%G_failing", 0)
        retried = records_of(java.store, "%RETRY%G_failing", 0)[4:]
        added = {"DLQ_REASON", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"}

        for record in retried:
            java.send_back(record, "G_failing", retry_max_times=2)

        ours = [
            replace(
                record,
                properties={
                    name: value for name, value in record.properties.items() if name not in added
                },
            )
            for record in records_of(java.store, "%DLQ%G_failing", 0)[4:]
        ]
        assert len(ours) == 4
        assert [settled(record) for record in ours] == [settled(record) for record in theirs]


def settled(record: Record) -> Record:
    """Return RECORD without what the store fills in."""
    return replace(
        record,
        queue_offset=0,
        log_offset=0,
        store_timestamp_ms=0,
        store_host=Host(bytes(4), 0),
        total_size=0,
        properties=dict(record.properties),
    )
