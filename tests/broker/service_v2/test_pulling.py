"""Consumers that keep their own place: pulls, and offsets of groups and queues."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.proto.errors import DiskFailure, LeaseLost
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import LATER
from pocketmq.store.flush import Waiter
from tests.fake_calls import FakeCall, FakeStream

from ..pop.popping import GROUP, TOPIC
from .consuming import CLIENT, Consuming, bodies, resource, seconds


def queue(number: int = 0, topic: str = TOPIC) -> v2.MessageQueue:
    return v2.MessageQueue(topic=resource(topic), id=number)


def pull(consuming: Consuming, offset: int = 0, **fields: Any) -> FakeStream:
    stream = FakeStream(metadata=CLIENT, deadline_ms=fields.pop("deadline_ms", 13_000))
    request = v2.PullMessageRequest(
        **{
            "group": resource(GROUP),
            "message_queue": queue(),
            "offset": offset,
            "batch_size": 32,
            **fields,
        }
    )
    consuming.method("PullMessage")(request, stream)
    return stream


def end_of(stream: FakeStream) -> tuple[v2.Code, int]:
    """Return code and next offset of STREAM, which is over; they come first and last."""
    assert stream.is_over
    assert stream.error is None
    return stream.sent[0].status.code, stream.sent[-1].next_offset


def update(consuming: Consuming, offset: int, **fields: Any) -> v2.Status:
    request = v2.UpdateOffsetRequest(
        **{"group": resource(GROUP), "message_queue": queue(), "offset": offset, **fields}
    )
    status: v2.Status = consuming.call("UpdateOffset", request).status
    return status


def got(consuming: Consuming, **fields: Any) -> tuple[v2.Code, int]:
    request = v2.GetOffsetRequest(**{"group": resource(GROUP), "message_queue": queue(), **fields})
    reply = consuming.call("GetOffset", request)
    return reply.status.code, reply.offset


def queried(consuming: Consuming, policy: v2.QueryOffsetPolicy, **fields: Any) -> Any:
    request = v2.QueryOffsetRequest(
        **{"message_queue": queue(), "query_offset_policy": policy, **fields}
    )
    reply = consuming.call("QueryOffset", request)
    return reply.status.code, reply.offset


class TestPulling:
    """PullMessage."""

    async def test_status_messages_and_where_to_go_on(self, consuming: Consuming) -> None:
        consuming.send(b"1", b"2", b"3")

        stream = pull(consuming, 1)

        assert bodies(stream) == [b"2", b"3"]
        assert end_of(stream) == (v2.OK, 3)
        message = stream.sent[1].message
        assert message.system_properties.queue_offset == 1
        assert message.system_properties.delivery_attempt == 1
        assert not message.system_properties.HasField("receipt_handle")

    async def test_a_batch_is_as_large_as_asked_for(self, consuming: Consuming) -> None:
        consuming.send(b"1", b"2", b"3")

        stream = pull(consuming, batch_size=2)

        assert bodies(stream) == [b"1", b"2"]
        assert end_of(stream) == (v2.OK, 2)

    async def test_a_filter_steps_over_the_rest(self, consuming: Consuming) -> None:
        consuming.send(b"1", b"2", b"3", properties=[{"TAGS": "A"}, {"TAGS": "B"}, {"TAGS": "A"}])
        tag = v2.FilterExpression(type=v2.TAG, expression="B")

        stream = pull(consuming, filter_expression=tag)

        assert bodies(stream) == [b"2"]
        assert end_of(stream) == (v2.OK, 3)

    async def test_it_waits_for_what_comes(self, consuming: Consuming) -> None:
        stream = pull(consuming, long_polling_timeout=seconds(10))
        await consuming.passes(2_000)
        assert not stream.sent

        consuming.send(b"late")

        assert bodies(stream) == [b"late"]

    @pytest.mark.parametrize(("asked_s", "waits_ms"), [(0, 0), (4, 4_000), (8, 5_500)])
    async def test_it_ends_with_nothing_when_its_wait_or_its_deadline_is_over(
        self, consuming: Consuming, asked_s: float, waits_ms: int
    ) -> None:
        consuming.send(b"1")
        stream = pull(consuming, 1, long_polling_timeout=seconds(asked_s), deadline_ms=6_000)

        if waits_ms:
            await consuming.passes(waits_ms - 100)
            assert not stream.sent
            await consuming.passes(200)

        assert end_of(stream) == (v2.MESSAGE_NOT_FOUND, 1)

    async def test_a_caller_that_goes_does_not_wait_any_more(self, consuming: Consuming) -> None:
        stream = pull(consuming, long_polling_timeout=seconds(10))
        assert len(consuming.purgatory) == 1

        stream.cancel()

        assert len(consuming.purgatory) == 0

    async def test_outside_the_queue_it_says_where_the_queue_is(self, consuming: Consuming) -> None:
        consuming.send(b"1")

        assert end_of(pull(consuming, 7)) == (v2.ILLEGAL_OFFSET, 1)

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"group": resource("")}, v2.ILLEGAL_CONSUMER_GROUP),
            ({"message_queue": queue(topic="a.b")}, v2.ILLEGAL_TOPIC),
            ({"message_queue": queue(topic="nowhere")}, v2.TOPIC_NOT_FOUND),
            ({"message_queue": queue(7)}, v2.NOT_FOUND),
            ({"batch_size": -1}, v2.BAD_REQUEST),
            ({"offset": -1}, v2.ILLEGAL_OFFSET),
            (
                {"filter_expression": v2.FilterExpression(type=v2.SQL)},
                v2.ILLEGAL_FILTER_EXPRESSION,
            ),
        ],
    )
    async def test_what_is_wrong_has_its_code(
        self, consuming: Consuming, fields: dict[str, Any], code: v2.Code
    ) -> None:
        offset = fields.pop("offset", 0)

        stream = pull(consuming, offset, **fields)

        assert [reply.status.code for reply in stream.sent] == [code]
        assert stream.is_over


class TestOffsets:
    """UpdateOffset, GetOffset and QueryOffset."""

    async def test_what_is_updated_is_got(self, consuming: Consuming) -> None:
        consuming.send(b"1", b"2")
        assert got(consuming) == (v2.OFFSET_NOT_FOUND, 0)

        assert update(consuming, 1).code == v2.OK

        assert got(consuming) == (v2.OK, 1)

    async def test_a_step_back_is_answered_once_it_is_saved(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saving: list[Waiter] = []
        monkeypatch.setattr(
            type(consuming.offsets), "when_saved", lambda _, done: saving.append(done)
        )
        consuming.send(b"1", b"2")
        assert update(consuming, 2).code == v2.OK
        call = FakeCall(metadata=CLIENT)
        request = v2.UpdateOffsetRequest(group=resource(GROUP), message_queue=queue(), offset=1)

        assert consuming.method("UpdateOffset")(request, call) is LATER
        assert call.answers == []
        saving.pop()(None)
        assert call.answer.status.code == v2.OK

        request.offset = 0
        call = FakeCall(metadata=CLIENT)
        consuming.method("UpdateOffset")(request, call)
        saving.pop()(DiskFailure("gone"))
        assert call.answer.status.message == "gone"

    async def test_a_reset_of_a_group_that_pops_is_answered_once_its_messages_in_flight_are_on_disk(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consuming.send(b"1", b"2")
        consuming.ack(*consuming.pop())
        syncing: list[Waiter] = []
        monkeypatch.setattr(consuming.pops, "when_durable", syncing.append)
        monkeypatch.setattr(type(consuming.offsets), "when_saved", lambda _, done: done(None))
        call = FakeCall(metadata=CLIENT)
        request = v2.UpdateOffsetRequest(group=resource(GROUP), message_queue=queue(), offset=1)

        assert consuming.method("UpdateOffset")(request, call) is LATER
        assert call.answers == []
        syncing.pop()(None)
        assert call.answer.status.code == v2.OK

    @pytest.mark.parametrize("offset", [-1, 3])
    async def test_an_offset_outside_the_queue_is_refused(
        self, consuming: Consuming, offset: int
    ) -> None:
        consuming.send(b"1", b"2")

        status = update(consuming, offset)

        assert status.code == v2.ILLEGAL_OFFSET
        assert "0 to 2" in status.message

    async def test_a_group_that_pops_goes_on_there(self, consuming: Consuming) -> None:
        consuming.send(b"1", b"2", b"3")
        assert len(consuming.messages()) == 3

        update(consuming, 1)

        assert bodies(consuming.receive()) == [b"2", b"3"]

    async def test_a_queue_that_a_member_holds_is_not_moved_by_others(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuses(*_: object) -> None:
            raise LeaseLost("a member holds it")

        consuming.send(b"1")
        monkeypatch.setattr(consuming, "check_commit", refuses)

        assert update(consuming, 1) == v2.Status(code=v2.FORBIDDEN, message="a member holds it")
        assert got(consuming) == (v2.OFFSET_NOT_FOUND, 0)

    async def test_a_queue_is_asked_for_its_bounds_and_for_an_instant(
        self, consuming: Consuming
    ) -> None:
        consuming.send(b"1")
        await consuming.passes(10_000)
        between_ms = consuming.clock.now_ms()
        await consuming.passes(10_000)
        consuming.send(b"2")
        later = v2.QueryOffsetRequest().timestamp
        later.FromMilliseconds(between_ms)

        assert queried(consuming, v2.BEGINNING) == (v2.OK, 0)
        assert queried(consuming, v2.END) == (v2.OK, 2)
        assert queried(consuming, v2.TIMESTAMP, timestamp=later.ToDatetime()) == (v2.OK, 1)

    async def test_an_instant_that_is_not_given_is_asked_for(self, consuming: Consuming) -> None:
        assert queried(consuming, v2.TIMESTAMP) == (v2.BAD_REQUEST, 0)

    @pytest.mark.parametrize(
        ("where", "code"), [(queue(topic="nowhere"), v2.TOPIC_NOT_FOUND), (queue(9), v2.NOT_FOUND)]
    )
    async def test_a_queue_that_is_not_there_is_said(
        self, consuming: Consuming, where: v2.MessageQueue, code: v2.Code
    ) -> None:
        assert got(consuming, message_queue=where)[0] == code
        assert queried(consuming, v2.END, message_queue=where)[0] == code
        assert update(consuming, 0, message_queue=where).code == code
