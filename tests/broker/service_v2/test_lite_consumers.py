"""Consumers of lite topics, over all parts of a broker: subscriptions, order, attempts, eviction, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.service_v2.service import CLIENT_ID, SERVICE
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.format.state_tables import GroupConfig

from ...fake_calls import FakeCall, FakeStream
from .serving import Served, answered

CHAT, GROUP = "Chat", "agents"


class Lite(Served):
    """A broker with a topic of lite topics, and groups that belong to it."""

    def bind(self, group: str = GROUP, **attributes: str) -> None:
        named = {name.replace("_", "."): value for name, value in attributes.items()}
        config = GroupConfig(name=group, attributes={"lite.bind.topic": CHAT, **named})
        self.parts.groups.table.put(group, config)

    async def put(self, lite_topic: str, *bodies: bytes) -> None:
        await self.send(CHAT, *bodies, lite_topic=lite_topic)

    async def call(self, method: str, request: Any, client: str) -> Any:
        call = FakeCall(metadata={CLIENT_ID: client})
        answer = self._methods[f"/{SERVICE}/{method}"].handler(request, call)
        if hasattr(answer, "status"):
            call.reply(answer)
        await answered(call)
        return call.answer

    async def sync(
        self,
        client: str,
        *names: str,
        action: v2.LiteSubscriptionAction = v2.PARTIAL_ADD,
        group: str = GROUP,
        topic: str = CHAT,
        **fields: Any,
    ) -> int:
        request = v2.SyncLiteSubscriptionRequest(
            action=action,
            topic={"name": topic},
            group={"name": group},
            lite_topic_set=names,
            **fields,
        )
        return int((await self.call("SyncLiteSubscription", request, client)).status.code)

    def begin_receive(self, client: str, *, group: str = GROUP, **fields: Any) -> FakeStream:
        stream = FakeStream(metadata={CLIENT_ID: client}, deadline_ms=30_000)
        request = v2.ReceiveMessageRequest(
            **{
                "group": {"name": group},
                "message_queue": {"topic": {"name": CHAT}, "id": -1},
                "batch_size": 32,
                "invisible_duration": {"seconds": 30},
                "long_polling_timeout": {"seconds": 10},
                **fields,
            }
        )
        self._methods[f"/{SERVICE}/ReceiveMessage"].handler(request, stream)
        return stream

    async def receive(self, client: str, **fields: Any) -> list[v2.Message]:
        """Receive what there is now."""
        stream = self.begin_receive(client, **fields)
        if not stream.sent:
            await asyncio.sleep(0)
        found = messages(stream)
        if not stream.sent:
            stream.cancel()
        return found

    async def ack(self, client: str, message: v2.Message, *, group: str = GROUP, **f: Any) -> int:
        system = message.system_properties
        entry = v2.AckMessageEntry(
            message_id=system.message_id, receipt_handle=system.receipt_handle, **f
        )
        request = v2.AckMessageRequest(group={"name": group}, topic={"name": CHAT}, entries=[entry])
        return int((await self.call("AckMessage", request, client)).entries[0].status.code)

    async def change(self, client: str, message: v2.Message, seconds: int, **fields: Any) -> Any:
        request = v2.ChangeInvisibleDurationRequest(
            group={"name": GROUP},
            topic={"name": CHAT},
            receipt_handle=message.system_properties.receipt_handle,
            invisible_duration={"seconds": seconds},
            **fields,
        )
        return await self.call("ChangeInvisibleDuration", request, client)

    def committed(self, lite_topic: str, group: str = GROUP) -> int | None:
        return self.parts.offsets.committed(f"%LMQ%${CHAT}${lite_topic}", group, 0)


def messages(stream: FakeStream) -> list[v2.Message]:
    return [one.message for one in stream.sent if one.HasField("message")]


def told(found: list[v2.Message]) -> list[tuple[str, bytes, int]]:
    """Return lite topic, body and attempt of each message."""
    return [
        (one.system_properties.lite_topic, one.body, one.system_properties.delivery_attempt)
        for one in found
    ]


@pytest.fixture
async def lite(tmp_path: Path) -> AsyncIterator[Lite]:
    async with Lite(tmp_path) as served:
        served.topic(CHAT, "LITE")
        served.bind()
        yield served


async def test_a_client_gets_only_what_it_subscribes_to_in_order(lite: Lite) -> None:
    await lite.put("bob", b"0", b"1")
    await lite.put("eve", b"x")
    assert await lite.sync("a", "bob") == v2.OK

    found = await lite.receive("a")

    assert told(found) == [("bob", b"0", 1), ("bob", b"1", 1)]
    system = found[1].system_properties
    assert (system.queue_offset, system.message_type) == (1, v2.LITE)
    assert found[0].topic.name == CHAT
    assert not found[0].user_properties
    assert await lite.receive("a") == []
    await lite.put("bob", b"2")
    assert await lite.receive("a") == []  # The batch is in flight.
    for one in found:
        assert await lite.ack("a", one, lite_topic="bob") == v2.OK
    assert told(await lite.receive("a")) == [("bob", b"2", 1)]
    assert lite.committed("bob") == 2
    assert lite.committed("eve") is None


async def test_a_waiting_receive_gets_a_new_message(lite: Lite) -> None:
    await lite.sync("a", "bob")
    other = lite.begin_receive("b")
    await lite.sync("b", "eve")
    waiting = lite.begin_receive("a")

    await lite.put("bob", b"0")
    await asyncio.sleep(0)

    assert told(messages(waiting)) == [("bob", b"0", 1)]
    assert other.sent == []


async def test_a_message_goes_to_one_of_two_subscribers(lite: Lite) -> None:
    for client in ("a", "b"):
        await lite.sync(client, "bob")
    streams = [lite.begin_receive("a"), lite.begin_receive("b")]

    await lite.put("bob", b"0")
    await asyncio.sleep(0)

    assert sum(len(messages(stream)) for stream in streams) == 1


async def test_a_returned_message_comes_again_as_the_next_attempt_before_later_ones(
    lite: Lite,
) -> None:
    await lite.sync("a", "bob")
    await lite.put("bob", b"0", b"1")
    zero, one = await lite.receive("a")
    assert await lite.ack("a", one) == v2.OK

    # Clients of Java 5.2.0 send no lite_topic here.
    assert (await lite.change("a", zero, 10)).status.code == v2.OK
    await lite.clock.advance(9_000)
    assert await lite.receive("a") == []
    await lite.clock.advance(2_000)

    assert told(await lite.receive("a")) == [("bob", b"0", 2), ("bob", b"1", 2)]


async def test_a_suspended_message_keeps_its_attempt(lite: Lite) -> None:
    await lite.sync("a", "bob")
    await lite.put("bob", b"0")
    (zero,) = await lite.receive("a")

    await lite.change("a", zero, 5, suspend=True, lite_topic="bob")
    await lite.clock.advance(6_000)

    assert told(await lite.receive("a")) == [("bob", b"0", 1)]


async def test_a_handle_of_another_lite_topic_is_refused(lite: Lite) -> None:
    await lite.sync("a", "bob-1")
    await lite.put("bob-1", b"0")
    (zero,) = await lite.receive("a")

    assert await lite.ack("a", zero, lite_topic="1") == v2.INVALID_RECEIPT_HANDLE
    assert (await lite.change("a", zero, 5, lite_topic="eve")).status.code == (
        v2.INVALID_RECEIPT_HANDLE
    )
    assert await lite.ack("a", zero, lite_topic="bob-1") == v2.OK
    assert await lite.ack("a", zero) == v2.OK


async def test_the_last_attempt_ends_in_the_dead_letter_queue_and_nothing_is_poisoned(
    lite: Lite,
) -> None:
    lite.parts.groups.table.put(
        GROUP, GroupConfig(name=GROUP, retry_times_max=1, attributes={"lite.bind.topic": CHAT})
    )
    await lite.sync("a", "bob")
    await lite.put("bob", b"0", b"1")
    for attempt in (1, 2):
        found = await lite.receive("a")
        assert told(found) == [("bob", b"0", attempt), ("bob", b"1", attempt)]
        if attempt == 2:
            await lite.ack("a", found[1])
        await lite.clock.advance(31_000)
    await lite.put("bob", b"2")
    await lite.receive("a")  # It moves the message.
    await asyncio.sleep(0)

    (dead,) = lite.records(f"%DLQ%{GROUP}", 1)
    assert (dead.body, dead.properties["__LITE_TOPIC"]) == (b"0", "bob")
    assert "INNER_MULTI_DISPATCH" not in dead.properties
    assert lite.store.queue_bounds("%LMQ%$Chat$bob", 0) == (0, 3)


async def test_a_repeated_receive_gets_the_same_messages_at_once(lite: Lite) -> None:
    await lite.sync("a", "bob", "eve")
    await lite.put("bob", b"0")
    await lite.put("eve", b"1")
    first = await lite.receive("a", attempt_id="x", auto_renew=True)

    again = await lite.receive("a", attempt_id="x", auto_renew=True)

    assert told(again) == told(first) == [("bob", b"0", 1), ("eve", b"1", 1)]
    for one in first:
        assert await lite.ack("a", one) == v2.OK


async def test_a_complete_set_replaces_the_subscriptions(lite: Lite) -> None:
    await lite.sync("a", "bob", "eve")
    await lite.sync("a", "eve", "joe", action=v2.COMPLETE_ADD)
    for name in ("bob", "eve", "joe"):
        await lite.put(name, name.encode())

    assert [one.body for one in await lite.receive("a")] == [b"eve", b"joe"]
    await lite.sync("a", "bob")
    assert [one.body for one in await lite.receive("a")] == [b"bob"]
    await lite.sync("a", action=v2.COMPLETE_REMOVE)
    await lite.put("joe", b"more")
    assert await lite.receive("a") == []


async def test_what_was_unsubscribed_can_be_acknowledged_and_continues_later(lite: Lite) -> None:
    await lite.sync("a", "bob")
    await lite.put("bob", b"0")
    (zero,) = await lite.receive("a")
    await lite.sync("a", "bob", action=v2.PARTIAL_REMOVE)
    await lite.put("bob", b"1")

    assert await lite.ack("a", zero, lite_topic="bob") == v2.OK
    assert await lite.receive("a") == []
    await lite.sync("a", "bob")
    assert told(await lite.receive("a")) == [("bob", b"1", 1)]


async def test_a_client_that_closes_leaves_its_messages_to_others(lite: Lite) -> None:
    for client in ("a", "b"):
        await lite.sync(client, "bob")
    await lite.put("bob", b"0")
    await lite.receive("a", auto_renew=True)

    await lite.call("NotifyClientTermination", v2.NotifyClientTerminationRequest(), "a")
    await lite.clock.advance(2_000)

    assert told(await lite.receive("b")) == [("bob", b"0", 2)]
    assert lite.parts.pops.lite.subscription_count == 1


async def test_a_silent_client_loses_its_subscriptions(lite: Lite) -> None:
    await lite.sync("a", "bob")
    await lite.clock.advance(170_000)
    assert lite.parts.pops.lite.subscription_count == 1
    await lite.clock.advance(90_000)
    assert lite.parts.pops.lite.subscription_count == 0


async def test_the_newer_client_of_an_exclusive_group_wins(lite: Lite) -> None:
    lite.bind(lite_sub_model="Exclusive")
    evicted: list[tuple[str, str, str]] = []
    lite.parts.pops.lite.evicted = lambda *told: evicted.append(told)
    await lite.sync("a", "bob")
    await lite.sync("a", "bob")
    assert evicted == []
    await lite.sync("b", "bob")

    assert evicted == [("a", GROUP, "bob")]
    await lite.put("bob", b"0")
    assert await lite.receive("a") == []
    await lite.sync("a", "bob", action=v2.COMPLETE_ADD)
    assert evicted == [("a", GROUP, "bob")] * 2
    assert await lite.receive("a") == []
    assert told(await lite.receive("b")) == [("bob", b"0", 1)]


async def test_an_evicted_client_is_told_on_its_telemetry_stream(lite: Lite) -> None:
    lite.bind(lite_sub_model="Exclusive")
    settings = v2.Settings(
        client_type=v2.LITE_PUSH_CONSUMER,
        subscription={"group": {"name": GROUP}, "subscriptions": [{"topic": {"name": CHAT}}]},
    )
    stream = FakeStream(metadata={CLIENT_ID: "a"})
    opened = lite._methods[f"/{SERVICE}/Telemetry"].handler(stream)
    opened.on_message(v2.TelemetryCommand(settings=settings))
    await lite.sync("a", "bob")
    await lite.sync("b", "bob")

    last = stream.sent[-1]
    assert last.notify_unsubscribe_lite_command.lite_topic == "bob"
    answer = stream.sent[0].settings.subscription
    assert (answer.lite_subscription_quota, answer.max_lite_topic_size) == (2000, 64)


async def test_a_wildcard_group_gets_all_lite_topics(lite: Lite) -> None:
    lite.bind(lite_sub_wildcard="true")
    await lite.put("bob", b"0")
    assert await lite.sync("a", "bob") == v2.BAD_REQUEST
    assert await lite.sync("a", action=v2.COMPLETE_ADD) == v2.OK
    await lite.put("eve", b"1")

    assert [one.body for one in await lite.receive("a")] == [b"0", b"1"]


@pytest.mark.parametrize(
    ("option", "first"),
    [
        ({}, b"0"),
        ({"policy": v2.OffsetOption.LAST}, b"0"),
        ({"policy": v2.OffsetOption.MIN}, b"0"),
        ({"policy": v2.OffsetOption.MAX}, b"new"),
        ({"offset": 2}, b"2"),
        ({"offset": 99}, b"new"),
        ({"tail_n": 1}, b"3"),
        ({"tail_n": 99}, b"0"),
        ({"timestamp": 0}, b"0"),
        ({"timestamp": 1 << 60}, b"new"),
    ],
)
async def test_the_offset_option_chooses_the_first_message(
    option: dict[str, Any], first: bytes, lite: Lite
) -> None:
    await lite.put("bob", b"0", b"1", b"2", b"3")
    await lite.sync("a", "bob", offset_option=v2.OffsetOption(**option))
    await lite.put("bob", b"new")

    assert (await lite.receive("a"))[0].body == first


async def test_the_tail_counts_from_the_progress(lite: Lite) -> None:
    await lite.put("bob", b"0", b"1", b"2")
    await lite.sync("a", "bob")
    for one in await lite.receive("a", batch_size=2):
        await lite.ack("a", one)
    await lite.sync("a", "bob", offset_option=v2.OffsetOption(tail_n=1))

    assert [one.body for one in await lite.receive("a")] == [b"1", b"2"]


async def test_unsubscribing_may_reset_the_progress(lite: Lite) -> None:
    lite.bind(lite_sub_reset_offset_unsubscribe="true")
    await lite.put("bob", b"0")
    await lite.sync("a", "bob")
    for one in await lite.receive("a"):
        await lite.ack("a", one)
    await lite.sync("a", "bob", action=v2.PARTIAL_REMOVE)
    await lite.sync("a", "bob")

    assert told(await lite.receive("a")) == [("bob", b"0", 1)]


async def test_a_client_has_a_quota(lite: Lite) -> None:
    lite.bind(lite_sub_client_quota="10")
    names = [f"t{number}" for number in range(311)]

    assert await lite.sync("a", *names) == v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await lite.sync("a", *names[:310]) == v2.OK
    assert await lite.sync("a", "more") == v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await lite.sync("a", *names, action=v2.COMPLETE_ADD) == (
        v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    )
    lite.bind(lite_sub_client_quota="-1")
    assert await lite.sync("a", *names) == v2.OK


async def test_groups_and_topics_must_fit(lite: Lite) -> None:
    lite.topic("Other", "LITE")
    lite.topic("Plain")
    lite.parts.groups.table.put("plain", GroupConfig(name="plain"))

    assert await lite.sync("a", "bob", group="nobody") == v2.ILLEGAL_TOPIC
    assert await lite.sync("a", "bob", group="plain") == v2.ILLEGAL_TOPIC
    assert await lite.sync("a", "bob", topic="Other") == v2.ILLEGAL_TOPIC
    assert await lite.sync("a", "bob", topic="Plain") == v2.ILLEGAL_TOPIC
    assert await lite.sync("a", "a.b") == v2.ILLEGAL_LITE_TOPIC
    stream = lite.begin_receive("a", message_queue={"topic": {"name": "Other"}, "id": -1})
    assert stream.sent[0].status.code == v2.ILLEGAL_TOPIC


@pytest.mark.parametrize(
    ("kind", "group"), [(v2.PUSH_CONSUMER, GROUP), (v2.LITE_PUSH_CONSUMER, "plain")]
)
async def test_settings_must_fit_the_group(kind: v2.ClientType, group: str, lite: Lite) -> None:
    lite.parts.groups.table.put("plain", GroupConfig(name="plain"))
    settings = v2.Settings(client_type=kind, subscription={"group": {"name": group}})

    with pytest.raises(Exception, match=r"lite"):
        lite.parts.clients.telemetry.settle(
            lite.parts.clients.sessions.record_activity("a"), settings
        )


async def test_a_deleted_group_begins_again(lite: Lite) -> None:
    await lite.sync("a", "bob")
    await lite.put("bob", b"0")
    await lite.receive("a")

    lite.parts.pops.forget_group(GROUP)
    lite.parts.offsets.forget_group(GROUP)
    assert lite.parts.pops.in_flight == 0
    await lite.sync("a", "bob")
    assert told(await lite.receive("a")) == [("bob", b"0", 1)]


@pytest.mark.parametrize("acknowledged", [False, True])
async def test_a_restart_keeps_progress_attempts_and_order(
    acknowledged: bool, tmp_path: Path
) -> None:
    async with Lite(tmp_path) as lite:
        lite.topic(CHAT, "LITE")
        lite.bind()
        await lite.sync("a", "bob")
        await lite.put("bob", b"0", b"1", b"2")
        zero, one = await lite.receive("a", batch_size=2)
        assert await lite.ack("a", one) == v2.OK
        if acknowledged:
            assert await lite.ack("a", zero) == v2.OK
    async with Lite(tmp_path) as lite:
        await lite.sync("a", "bob")
        if acknowledged:
            assert told(await lite.receive("a")) == [("bob", b"2", 1)]
            return
        assert await lite.receive("a") == []  # The lease continues.
        await lite.clock.advance(31_000)
        assert (await lite.receive("a"))[0].body == b"0"
        assert lite.committed("bob") == 0


async def test_tables_exist_only_while_something_is_in_flight(lite: Lite) -> None:
    names = [f"t{number}" for number in range(50)]
    await lite.sync("a", *names)
    for name in names:
        await lite.put(name, b"x")
    found = [*await lite.receive("a"), *await lite.receive("a")]
    assert len(found) == 50
    for one in found:
        await lite.ack("a", one)

    assert not [key for key in lite.parts.pops._tables if key[1].startswith("%LMQ%")]
    assert lite.parts.pops.in_flight == 0
    assert all(lite.committed(name) == 1 for name in names)


async def test_progress_is_in_both_offset_files(tmp_path: Path) -> None:
    async with Lite(tmp_path) as lite:
        lite.topic(CHAT, "LITE")
        lite.bind()
        await lite.sync("a", "bob")
        await lite.put("bob", b"0")
        for one in await lite.receive("a"):
            await lite.ack("a", one)
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        assert f'"%LMQ%$Chat$bob@{GROUP}"' in (tmp_path / "store" / "config" / name).read_text()
