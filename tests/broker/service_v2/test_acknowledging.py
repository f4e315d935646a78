"""Acknowledging, changing when a message comes again, and giving it up."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from tests.fake_calls import FakeStream

from ..pop.popping import GROUP, TOPIC
from .consuming import RETRY_DELAYS_MS, Consuming, handles_of, messages_of, resource, seconds

OK = v2.Status(code=v2.OK, message="OK")
HALF_A_MINUTE = 30_100


def lent(consuming: Consuming, *bodies: bytes, **fields: Any) -> list[str]:
    """Send BODIES, receive them, and return their handles."""
    consuming.send(*bodies)
    return handles_of(consuming.receive(**fields))


def seen(stream: FakeStream) -> list[tuple[bytes, int]]:
    """Return body and attempt of each message."""
    return [(one.body, one.system_properties.delivery_attempt) for one in messages_of(stream)]


class TestAcknowledging:
    """AckMessage."""

    async def test_each_entry_has_its_own_with_what_it_said(self, consuming: Consuming) -> None:
        handles = lent(consuming, b"1", b"2")

        reply = consuming.ack_message(*handles)

        assert reply.status == OK
        assert [(one.message_id, one.receipt_handle, one.status) for one in reply.entries] == [
            ("id0", handles[0], OK),
            ("id1", handles[1], OK),
        ]
        assert consuming.committed() == 2

    async def test_again_is_fine(self, consuming: Consuming) -> None:
        handles = lent(consuming, b"1")
        consuming.ack_message(*handles)

        assert consuming.ack_message(*handles).status == OK

    async def test_what_is_acknowledged_does_not_come_again(self, consuming: Consuming) -> None:
        (first, _) = lent(consuming, b"1", b"2")
        consuming.ack_message(first)

        await consuming.passes(HALF_A_MINUTE)

        assert seen(consuming.receive()) == [(b"2", 2)]

    @pytest.mark.parametrize("handle", ["nonsense", "", "0 1600000000000 10000 0 0 broker-a 0 0 0"])
    async def test_a_handle_that_never_was_is_invalid(
        self, consuming: Consuming, handle: str
    ) -> None:
        lent(consuming, b"1")

        reply = consuming.ack_message(handle)

        assert reply.status.code == v2.INVALID_RECEIPT_HANDLE
        assert reply.status.message.startswith("INVALID_RECEIPT_HANDLE: receipt handle")
        (entry,) = reply.entries
        assert entry.status == reply.status
        assert entry.receipt_handle == handle

    async def test_an_expired_handle_is_invalid_also_once_the_message_came_again(
        self, consuming: Consuming
    ) -> None:
        (old,) = lent(consuming, b"1")
        await consuming.passes(HALF_A_MINUTE)

        assert consuming.ack_message(old).status.code == v2.INVALID_RECEIPT_HANDLE
        (new,) = handles_of(consuming.receive())
        assert consuming.ack_message(old).status.code == v2.INVALID_RECEIPT_HANDLE
        assert consuming.ack_message(new).status == OK

    async def test_entries_with_different_ends_are_multiple_results(
        self, consuming: Consuming
    ) -> None:
        (good,) = lent(consuming, b"1")

        reply = consuming.ack_message(good, "nonsense")

        assert reply.status.code == v2.MULTIPLE_RESULTS
        assert reply.status.message.startswith("MULTIPLE_RESULTS: ")
        codes = [one.status.code for one in reply.entries]
        assert codes == [v2.OK, v2.INVALID_RECEIPT_HANDLE]

    async def test_another_groups_handle_is_none_of_this_groups(self, consuming: Consuming) -> None:
        (handle,) = lent(consuming, b"1")

        reply = consuming.ack_message(handle, group="other")

        assert reply.status.code == v2.INVALID_RECEIPT_HANDLE
        assert consuming.ack_message(handle).status == OK

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            # As recorded, but for the first and the last one: with Apache they are faults of the server.
            ({}, v2.BAD_REQUEST),
            ({"group": resource("")}, v2.ILLEGAL_CONSUMER_GROUP),
            ({"topic": resource("a.b")}, v2.ILLEGAL_TOPIC),
            ({"topic": resource("nowhere")}, v2.TOPIC_NOT_FOUND),
        ],
    )
    async def test_what_is_no_request_is_refused_whole(
        self, consuming: Consuming, fields: dict[str, Any], code: v2.Code
    ) -> None:
        request = v2.AckMessageRequest(
            **{"group": resource(GROUP), "topic": resource(TOPIC), **fields}
        )

        reply = consuming.call("AckMessage", request)

        assert reply.status.code == code
        assert not reply.entries

    async def test_a_call_names_its_client(self, consuming: Consuming) -> None:
        reply = consuming.call("AckMessage", v2.AckMessageRequest(), {})

        assert reply.status.code == v2.CLIENT_ID_REQUIRED


class TestChanging:
    """ChangeInvisibleDuration."""

    async def test_it_counts_from_now_and_gives_a_new_handle(self, consuming: Consuming) -> None:
        (old,) = lent(consuming, b"1")

        reply = consuming.change(old, 15)

        assert reply.status == OK
        assert reply.receipt_handle not in ("", old)
        await consuming.passes(14_900)
        assert not consuming.receive().sent
        await consuming.passes(200)
        assert seen(consuming.streams[-1]) == [(b"1", 2)]

    async def test_the_old_handle_is_dead(self, consuming: Consuming) -> None:
        (old,) = lent(consuming, b"1")
        new = consuming.change(old, 15).receipt_handle

        again = consuming.change(old, 15)

        assert again.status.code == v2.INVALID_RECEIPT_HANDLE
        assert again.receipt_handle == old
        assert consuming.ack_message(old).status.code == v2.INVALID_RECEIPT_HANDLE
        assert consuming.ack_message(new).status == OK

    async def test_a_simple_consumer_has_it_back_at_once_by_saying_0(
        self, consuming: Consuming
    ) -> None:
        (handle,) = lent(consuming, b"1")

        assert consuming.change(handle, 0).status == OK

        assert seen(consuming.receive()) == [(b"1", 2)]

    async def test_suspended_the_next_delivery_is_the_same_attempt(
        self, consuming: Consuming
    ) -> None:
        (handle,) = lent(consuming, b"1")

        consuming.change(handle, 0, suspend=True)

        assert seen(consuming.receive()) == [(b"1", 1)]

    @pytest.mark.parametrize("asked_s", [0, 0.005])
    async def test_a_push_consumer_that_is_in_haste_waits_for_its_groups_back_off(
        self, consuming: Consuming, asked_s: float
    ) -> None:
        (handle,) = lent(consuming, b"1", auto_renew=True)
        for number, delay_ms in enumerate([*RETRY_DELAYS_MS, RETRY_DELAYS_MS[-1]]):
            consuming.change(handle, asked_s)
            waits = seconds(20)
            stream = consuming.receive(
                auto_renew=True, deadline_ms=None, long_polling_timeout=waits
            )
            await consuming.passes(delay_ms - 100)
            assert not stream.sent
            await consuming.passes(200)
            assert seen(stream) == [(b"1", number + 2)]
            (handle,) = handles_of(stream)

    async def test_a_group_with_intervals_of_its_own_backs_off_by_these(
        self, consuming: Consuming
    ) -> None:
        consuming.groups.create(
            consuming.groups.ensure(GROUP), update=True, retry_intervals_ms=[3_000, 9_000]
        )
        (handle,) = lent(consuming, b"1", auto_renew=True)

        consuming.change(handle, 0)
        stream = consuming.receive()
        await consuming.passes(2_900)
        assert not stream.sent
        await consuming.passes(200)

        assert seen(stream) == [(b"1", 2)]

    async def test_a_second_is_long_enough_for_a_push_consumer(self, consuming: Consuming) -> None:
        (handle,) = lent(consuming, b"1", auto_renew=True)
        for attempt in (2, 3):
            consuming.change(handle, 1)
            stream = consuming.receive(auto_renew=True)
            await consuming.passes(1_100)
            assert seen(stream) == [(b"1", attempt)]
            (handle,) = handles_of(stream)

    async def test_what_a_push_consumer_fails_for_the_last_time_is_dead_at_once(
        self, consuming: Consuming
    ) -> None:
        consuming.group(retry_times_max=1)
        (handle,) = lent(consuming, b"1", auto_renew=True)
        consuming.change(handle, 1)
        await consuming.passes(1_100)
        (handle,) = handles_of(consuming.receive(auto_renew=True))

        reply = consuming.change(handle, 3600)

        assert (reply.status, reply.receipt_handle) == (OK, handle)
        assert consuming.dead() == [(b"1", 2)]
        assert consuming.ack_message(handle).status == OK

    async def test_a_simple_consumer_may_take_its_time_at_the_last_attempt(
        self, consuming: Consuming
    ) -> None:
        consuming.group(retry_times_max=0)
        (handle,) = lent(consuming, b"1")

        later = consuming.change(handle, 3600).receipt_handle

        assert consuming.dead() == []
        assert consuming.ack_message(later).status == OK

    async def test_who_suspends_a_message_has_not_failed_it(self, consuming: Consuming) -> None:
        consuming.group(retry_times_max=0)
        (handle,) = lent(consuming, b"1", auto_renew=True)

        consuming.change(handle, 0, suspend=True)

        assert seen(consuming.receive(auto_renew=True)) == [(b"1", 1)]
        assert consuming.dead() == []

    @pytest.mark.parametrize(
        ("seconds_asked", "bound"),
        [(-1, "too small. min is 0"), (43_201, "too large. max is 43200000")],
    )
    async def test_a_time_out_of_bounds_is_refused_and_the_handle_stays_good(
        self, consuming: Consuming, seconds_asked: float, bound: str
    ) -> None:
        (handle,) = lent(consuming, b"1")

        reply = consuming.change(handle, seconds_asked)

        assert reply.status.code == v2.ILLEGAL_INVISIBLE_TIME
        assert reply.status.message.startswith(f"the invisibleTime is {bound}")
        assert reply.receipt_handle == handle
        assert consuming.ack_message(handle).status == OK

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"receipt_handle": "nonsense"}, v2.INVALID_RECEIPT_HANDLE),
            ({"receipt_handle": ""}, v2.INVALID_RECEIPT_HANDLE),
            ({"topic": resource("nowhere")}, v2.TOPIC_NOT_FOUND),
            ({"group": resource("a.b")}, v2.ILLEGAL_CONSUMER_GROUP),
        ],
    )
    async def test_whatever_is_wrong_the_handle_is_in_the_reply(
        self, consuming: Consuming, fields: dict[str, Any], code: v2.Code
    ) -> None:
        lent(consuming, b"1")

        reply = consuming.change("p0-0-1", 10, **fields)

        assert reply.status.code == code
        assert reply.receipt_handle == fields.get("receipt_handle", "p0-0-1")

    async def test_a_call_names_its_client_and_keeps_its_handle(self, consuming: Consuming) -> None:
        request = v2.ChangeInvisibleDurationRequest(
            receipt_handle="h", invisible_duration=seconds(1)
        )

        reply = consuming.call("ChangeInvisibleDuration", request, {})

        assert reply.status.code == v2.CLIENT_ID_REQUIRED
        assert reply.receipt_handle == "h"

    async def test_a_fault_of_ours_keeps_the_handle_too(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(type(consuming.pops), "renewed_attempt")

        reply = consuming.change("h", 10)

        assert reply.status.code == v2.INTERNAL_SERVER_ERROR
        assert reply.receipt_handle == "h"


class TestGivingUp:
    """ForwardMessageToDeadLetterQueue."""

    async def test_it_becomes_a_dead_letter_with_the_reason(self, consuming: Consuming) -> None:
        (handle,) = lent(consuming, b"1")

        assert consuming.forward(handle).status == OK

        (letter,) = consuming.messages(group=resource("reader"), topic=f"%DLQ%{GROUP}")
        assert letter.body == b"1"
        assert letter.topic.name == f"%DLQ%{GROUP}"
        assert letter.system_properties.dead_letter_queue.topic == TOPIC
        assert consuming.committed() == 1

    async def test_again_is_fine_and_makes_no_second_copy(self, consuming: Consuming) -> None:
        (handle,) = lent(consuming, b"1")

        assert consuming.forward(handle).status == OK
        assert consuming.forward(handle).status == OK
        assert consuming.ack_message(handle).status == OK

        assert len(consuming.dead()) == 1

    async def test_an_expired_handle_forwards_nothing(self, consuming: Consuming) -> None:
        (handle,) = lent(consuming, b"1")
        await consuming.passes(HALF_A_MINUTE)

        assert consuming.forward(handle).status.code == v2.INVALID_RECEIPT_HANDLE
        assert consuming.dead() == []

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": resource("nowhere")}, v2.TOPIC_NOT_FOUND),
            ({"group": resource("a.b")}, v2.ILLEGAL_CONSUMER_GROUP),
        ],
    )
    async def test_names_are_checked(
        self, consuming: Consuming, fields: dict[str, Any], code: v2.Code
    ) -> None:
        assert consuming.forward("p0-0-1", **fields).status.code == code
