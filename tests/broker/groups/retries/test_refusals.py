"""Sending back what cannot be sent back: a clear error, and nothing stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import (
    CorruptRecord,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    MessageNotFound,
    MessageTooLarge,
    NotWritable,
    PocketMQError,
    StoreFull,
    Unsupported,
)
from pocketmq.proto.record import SYS_INNER_BATCH, Record, encode_record
from pocketmq.proto.record_run import parse_run, starts_of
from pocketmq.proto.run import Run
from pocketmq.store.format.state_tables import TopicConfig

from .retrying import Retrying, request_for


class TestBadInput:
    """A clear error, and nothing stored: no record, no topic."""

    @pytest.mark.parametrize(
        ("changes", "error", "field"),
        [
            ({"group": "nobody"}, GroupNotFound, None),
            ({"group": ""}, InvalidName, "group"),
            ({"group": "a/b"}, InvalidName, "group"),
            ({"topic": ""}, MessageNotFound, None),
            ({"topic": "Another"}, MessageNotFound, None),
            ({"topic": "%RETRY%other"}, InvalidArgument, "topic"),
            ({"topic": "SCHEDULE_TOPIC_XXXX"}, InvalidArgument, "topic"),
            ({"topic": "rmq_sys_wheel_timer"}, InvalidArgument, "topic"),
            ({"queue": 1}, MessageNotFound, None),
            ({"queue": -1}, MessageNotFound, None),
            ({"queue_offset": 1}, MessageNotFound, None),
            ({"queue_offset": -1}, MessageNotFound, None),
            ({"queue_offset": 1 << 62}, MessageNotFound, None),
            ({"log_offset": 1}, InvalidArgument, "log_offset"),
            ({"log_offset": -1}, InvalidArgument, "log_offset"),
            ({"retry_max_times": -1}, InvalidArgument, "retry_max_times"),
        ],
    )
    def test_what_is_wrong_is_refused(
        self,
        broker: Retrying,
        changes: dict[str, Any],
        error: type[PocketMQError],
        field: str | None,
    ) -> None:
        request = request_for(broker.message(), **changes)
        before = state_of(broker)

        with pytest.raises(error) as caught:
            broker.retries.send_back(request)

        assert field is None or caught.value.details["field"] == field
        assert all(str(value) in caught.value.message for value in changes.values())
        assert state_of(broker) == before

    @pytest.mark.parametrize("level", [0, -1])
    def test_properties_without_room_are_refused(self, broker: Retrying, level: int) -> None:
        original = broker.message(properties={"big": "x" * 32_750})
        before = state_of(broker)

        with pytest.raises(MessageTooLarge):
            broker.send_back(original, delay_level=level)

        assert state_of(broker) == before

    def test_a_retry_topic_that_takes_no_messages_is_refused(self, broker: Retrying) -> None:
        broker.topics.create(TopicConfig(name="%RETRY%g", permission=4), update=False)
        original = broker.message()
        before = state_of(broker)

        with pytest.raises(NotWritable):
            broker.send_back(original)

        assert state_of(broker) == before

    def test_what_the_store_refuses_is_the_answer(
        self, broker: Retrying, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = broker.message()
        monkeypatch.setattr(broker.appends, "append", lambda runs: [StoreFull("the disk is full")])

        with pytest.raises(StoreFull):
            broker.send_back(original)

    def test_a_batch_is_not_sent_back_as_one_message(self, broker: Retrying) -> None:
        batch = encode_record(Record(topic="T", body=b"", sys_flag=SYS_INNER_BATCH))
        columns = parse_run(batch, starts_of([len(batch)]))
        broker.store.append(Run(topic="T", queue=0, records=batch, columns=columns))

        with pytest.raises(Unsupported, match="batch"):
            broker.send_back(broker.last("T"))

    def test_a_damaged_message_is_not_passed_on(
        self, broker: Retrying, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = broker.message()
        found = broker.store.read_queue("T", 0, 0, 1, 1)
        damaged = replace(found, records=found.records[:-1])
        monkeypatch.setattr(broker.store, "read_queue", lambda *place: damaged)

        with pytest.raises(CorruptRecord):
            broker.send_back(original)

    def test_no_request_breaks_anything(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        broker = Retrying(tmp_path_factory.mktemp("store"))
        broker.group()
        original = broker.message()
        numbers = st.sampled_from([0, 1, -1, 17, (1 << 31) - 1, -(1 << 31)])
        names = st.sampled_from(["", "g", "T", "%RETRY%g", "%DLQ%g", "\0", "x" * 300, "é"])

        @given(
            st.fixed_dictionaries(
                {},
                optional={
                    "group": names,
                    "topic": names,
                    "queue": numbers,
                    "queue_offset": numbers,
                    "log_offset": numbers,
                    "delay_level": numbers,
                    "retry_max_times": numbers,
                    "reason": st.text(st.characters(codec="utf-8")),
                },
            )
        )
        def try_one(changes: dict[str, Any]) -> None:
            before = broker.store.max_log_offset
            try:
                broker.retries.send_back(request_for(original, **changes))
            except PocketMQError:
                assert broker.store.max_log_offset == before
            else:
                assert broker.store.max_log_offset > before

        try_one()
        broker.close()


def state_of(broker: Retrying) -> tuple[int, list[TopicConfig]]:
    return broker.store.max_log_offset, broker.topics.all(include_system=True)
