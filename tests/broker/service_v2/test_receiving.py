"""ReceiveMessage: what a stream carries, how long it waits, and what is refused."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from pocketmq.broker.service_v2.messages import deliver
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.format.state_tables import TopicConfig
from tests.recorded_v2 import recorded_group

from ..pop.popping import GROUP, TOPIC
from .consuming import (
    Consuming,
    bodies,
    handles_of,
    messages_of,
    parts_of,
    resource,
    seconds,
    status_of_stream,
)

NO_SQL = v2.FilterExpression(type=v2.SQL, expression="n >")
NOTHING_NEW = v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message")


class TestStream:
    """The order of a stream, and what a message says."""

    async def test_the_status_comes_first_and_the_delivery_time_last(
        self, consuming: Consuming
    ) -> None:
        consuming.send(b"1", b"2")

        stream = consuming.receive()

        assert parts_of(stream) == ["status", "message", "message", "delivery_timestamp"]
        assert stream.sent[0].status == v2.Status(code=v2.OK, message="OK")
        assert stream.sent[-1].delivery_timestamp.ToMilliseconds() == consuming.clock.now_ms()

    async def test_what_is_there_is_delivered_at_once_and_32_at_most(
        self, consuming: Consuming
    ) -> None:
        for _ in range(3):
            consuming.send(*[b"x"] * 20)

        taken = [len(consuming.messages(batch_size=1000)) for _ in range(3)]

        assert max(taken) <= 32
        assert sum(taken) >= 40

    async def test_a_message_has_the_fields_of_apaches(self, consuming: Consuming) -> None:
        consuming.send(b"hello", properties={"UNIQ_KEY": "01AABBCCDDEEFF44020A01034700000002"})
        recorded = case("receive-09")["responses"][1]["body"]

        stream = consuming.receive()

        (message,) = messages_of(stream)
        system = message.system_properties
        mine = json_format.MessageToDict(stream.sent[1], preserving_proto_field_name=True)
        theirs = recorded["message"]["system_properties"]
        ours = mine["message"]["system_properties"]
        assert set(theirs) <= set(ours)
        # What Apache leaves out, and is of use.
        assert set(ours) - set(theirs) == {"invisible_duration"}
        for field in ("message_id", "body_digest", "body_encoding", "message_type"):
            assert ours[field] == theirs[field]
        assert ours["delivery_attempt"] == theirs["delivery_attempt"] == 1
        assert system.HasField("queue_offset")
        assert system.queue_offset == 0
        assert system.invisible_duration.ToMilliseconds() == 30_000
        assert mine["message"]["topic"] == {"name": TOPIC}
        assert mine["message"]["body"] == base64.b64encode(b"hello").decode()

    async def test_the_topic_is_echoed_with_its_namespace(self, consuming: Consuming) -> None:
        consuming.send(b"1")
        named = v2.Resource(resource_namespace="space", name=TOPIC)

        (message,) = consuming.messages(message_queue=v2.MessageQueue(topic=named))

        assert message.topic == named

    async def test_queue_and_broker_of_the_request_do_not_matter(
        self, consuming: Consuming
    ) -> None:
        consuming.send(b"1")
        queue = v2.MessageQueue(topic=resource(TOPIC), id=7, broker=v2.Broker(name="unknown"))

        assert [one.body for one in consuming.messages(message_queue=queue)] == [b"1"]

    async def test_each_delivery_counts_and_has_its_own_handle(self, consuming: Consuming) -> None:
        consuming.send(b"1")
        first = consuming.receive(invisible_duration=seconds(10))
        await consuming.passes(10_100)

        second = consuming.receive()

        attempts = [
            message.system_properties.delivery_attempt
            for stream in (first, second)
            for message in messages_of(stream)
        ]
        assert attempts == [1, 2]
        assert handles_of(first) != handles_of(second)

    async def test_auto_renewed_messages_are_invisible_for_a_minute_whatever_is_asked(
        self, consuming: Consuming
    ) -> None:
        consuming.send(b"1")

        (message,) = consuming.messages(auto_renew=True, invisible_duration=seconds(1))

        assert message.system_properties.invisible_duration.ToMilliseconds() == 60_000

    async def test_a_record_that_is_damaged_holds_up_no_other(
        self,
        consuming: Consuming,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        consuming.send(b"11", b"22", b"33")

        def reads(message: v2.Message, data: bytes, topic: v2.Resource, **fields: Any) -> None:
            deliver(message, data[:-1] if b"22" in data else data, topic, **fields)

        monkeypatch.setattr("pocketmq.broker.service_v2.receiving.deliver", reads)

        assert bodies(consuming.receive()) == [b"11", b"33"]
        assert "record cannot be delivered topic=T queue=0 offset=1" in caplog.text


class TestWaiting:
    """How long a receive waits, by what it asks and what its caller gives it."""

    @pytest.mark.parametrize(
        ("name", "left_out_ms"),
        [
            ("receive-11", 0),
            ("receive-12", 0),
            ("receive-13", 0),
            ("receive-14", 0),
            # Half a second is kept, where Apache's answer may come after the deadline.
            ("receive-15", 0),
            ("receive-16", 500),
            ("receive-19", 0),
        ],
    )
    async def test_nothing_comes_when_apaches_wait_is_over(
        self, consuming: Consuming, name: str, left_out_ms: int
    ) -> None:
        recorded = case(name)
        request = parsed(recorded["request"])
        request.message_queue.topic.name = TOPIC
        took_ms = recorded["responses"][0]["at_ms"]
        stream = consuming.receive(request, deadline_ms=int(recorded["deadline_s"] * 1000))

        await consuming.passes(took_ms - left_out_ms - 250)
        assert not stream.sent
        await consuming.passes(500)

        assert status_of_stream(stream) == NOTHING_NEW
        assert parts_of(stream) == ["status", "delivery_timestamp"]

    @pytest.mark.parametrize(
        ("polling_s", "deadline_ms", "waits_ms"),
        [(20, None, 20_000), (60, None, 20_000), (None, None, 20_000), (10, 10_000, 9_500)],
    )
    async def test_a_wait_is_over_half_a_second_before_the_deadline(
        self,
        consuming: Consuming,
        polling_s: float | None,
        deadline_ms: int | None,
        waits_ms: int,
    ) -> None:
        request = consuming.request()
        request.ClearField("long_polling_timeout")
        if polling_s is not None:
            request.long_polling_timeout.FromTimedelta(timedelta(seconds=polling_s))

        stream = consuming.receive(request, deadline_ms=deadline_ms)

        # Long waits end in bunches, up to 1/64 later.
        await consuming.passes(waits_ms - 1)
        assert not stream.sent
        await consuming.passes(waits_ms // 64 + 1)
        assert status_of_stream(stream) == NOTHING_NEW

    async def test_what_arrives_meanwhile_is_delivered_at_once(self, consuming: Consuming) -> None:
        stream = consuming.receive()
        await consuming.passes(2_000)

        consuming.send(b"late")

        assert bodies(stream) == [b"late"]

    @pytest.mark.parametrize("name", ["receive-17", "receive-18"])
    async def test_less_time_than_the_shortest_wait_is_refused_as_the_client_knows_it(
        self, consuming: Consuming, name: str
    ) -> None:
        recorded = case(name)
        consuming.send(b"1")

        stream = consuming.receive(
            deadline_ms=int(recorded["deadline_s"] * 1000),
            metadata=recorded["metadata"],
        )

        expected = recorded["responses"][0]["body"]["status"]["code"]
        assert v2.Code.Name(status_of_stream(stream).code) == expected

    async def test_a_caller_that_goes_does_not_wait_any_more(self, consuming: Consuming) -> None:
        stream = consuming.receive()
        assert len(consuming.purgatory) == 1

        stream.cancel()
        consuming.send(b"1")

        assert len(consuming.purgatory) == 0
        assert [one.body for one in consuming.messages()] == [b"1"]

    async def test_too_many_that_wait_are_told_so(self, tmp_path: Path) -> None:
        consuming = Consuming(tmp_path, fetches_waiting_max=1)
        consuming.receive()

        stream = consuming.receive()

        assert status_of_stream(stream).code == v2.TOO_MANY_REQUESTS
        await consuming.stop()

    async def test_dead_letters_alone_are_no_match(self, consuming: Consuming) -> None:
        consuming.group(retry_times_max=0)
        consuming.send(b"1")
        consuming.receive(invisible_duration=seconds(10))
        await consuming.passes(10_100)

        stream = consuming.receive()

        assert status_of_stream(stream).message == "no match message"
        assert consuming.dead() == [(b"1", 2)]


class TestRefusals:
    """What is refused, with which code."""

    @pytest.mark.parametrize(
        "name",
        [
            # Not the waits above, nor where ours is better (31, 38, 46, 52).
            *("receive-23", "receive-24", "receive-27", "receive-28", "receive-39", "receive-43"),
            *("receive-47", "receive-48", "receive-49", "receive-50"),
        ],
    )
    async def test_codes_are_apaches(self, consuming: Consuming, name: str) -> None:
        recorded = case(name)
        request = parsed(recorded["request"])
        if request.message_queue.topic.name.startswith("R-"):
            request.message_queue.topic.name = TOPIC

        stream = consuming.receive(request)

        expected = recorded["responses"][0]["body"]["status"]["code"]
        assert v2.Code.Name(status_of_stream(stream).code) == expected

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": "nowhere"}, v2.TOPIC_NOT_FOUND),
            ({"filter_expression": NO_SQL}, v2.ILLEGAL_FILTER_EXPRESSION),
        ],
    )
    async def test_where_apache_fails_the_code_says_why(
        self, consuming: Consuming, fields: dict[str, Any], code: v2.Code
    ) -> None:
        assert status_of_stream(consuming.receive(**fields)).code == code

    async def test_a_group_that_is_switched_off_and_a_topic_that_is_not_read_are_forbidden(
        self, consuming: Consuming
    ) -> None:
        consuming.group("off", consume_enable=False)
        consuming.topics._put(TopicConfig(name="W", read_queues=1, write_queues=1, permission=2))

        off = status_of_stream(consuming.receive(group=resource("off")))
        unread = status_of_stream(consuming.receive(topic="W"))

        assert (off.code, unread.code) == (v2.FORBIDDEN, v2.FORBIDDEN)
        assert "consumption is switched off" in off.message

    async def test_a_call_without_a_client_gets_its_status_alone(
        self, consuming: Consuming
    ) -> None:
        stream = consuming.receive(metadata={})

        assert parts_of(stream) == ["status"]
        assert stream.sent[0].status.code == v2.CLIENT_ID_REQUIRED

    @pytest.mark.parametrize(
        "filters", [{}, {"expression": "*"}, {"type": v2.TAG}, {"type": v2.TAG, "expression": "*"}]
    )
    async def test_a_filter_that_says_nothing_wants_everything(
        self, consuming: Consuming, filters: dict[str, Any]
    ) -> None:
        consuming.send(b"1")

        stream = consuming.receive(filter_expression=v2.FilterExpression(**filters))

        assert bodies(stream) == [b"1"]

    async def test_filters_choose_for_good(self, consuming: Consuming) -> None:
        tagged = [{"TAGS": "A", "n": "1"}, {"TAGS": "B", "n": "2"}, {"n": "3"}]
        consuming.send(b"1", b"2", b"3", properties=tagged)
        tags = v2.FilterExpression(type=v2.TAG, expression="B || C")
        numbers = v2.FilterExpression(
            type=v2.SQL, expression="n BETWEEN 2 AND 3 AND TAGS IS NOT NULL"
        )

        assert bodies(consuming.receive(filter_expression=tags)) == [b"2"]
        other = consuming.receive(filter_expression=numbers, group=resource("other"))
        assert bodies(other) == [b"2"]
        assert not consuming.receive().sent

    async def test_a_batch_of_nothing_gets_nothing_and_is_in_nobodys_way(
        self, consuming: Consuming
    ) -> None:
        consuming.send(b"1")

        assert status_of_stream(consuming.receive(batch_size=0)) == NOTHING_NEW
        assert bodies(consuming.receive()) == [b"1"]

    async def test_a_fault_of_ours_is_a_status_and_tells_nothing_of_the_inside(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object) -> None:
            raise ZeroDivisionError("the inside")

        consuming.send(b"1")
        monkeypatch.setattr("pocketmq.broker.service_v2.receiving.deliver", fails)

        status = status_of_stream(consuming.receive())

        assert status.code == v2.INTERNAL_SERVER_ERROR
        assert "inside" not in status.message


def case(name: str) -> dict[str, Any]:
    """Return the recorded case NAME."""
    group = name.rsplit("-", 1)[0]
    found: dict[str, Any] = next(one for one in recorded_group(group)["cases"] if one["id"] == name)
    return found


def parsed(request: dict[str, Any]) -> v2.ReceiveMessageRequest:
    """Return the recorded REQUEST, of a group that is ours."""
    made: v2.ReceiveMessageRequest = json_format.ParseDict(request, v2.ReceiveMessageRequest())
    if made.group.name.startswith("R-"):
        made.group.name = GROUP
    return made
