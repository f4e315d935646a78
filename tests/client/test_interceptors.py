"""Interceptors: what they see, what they change, and that they never fail a send."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, Interceptor, Message, Receipt, UnserializedMessage
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    BufferFull,
    ConfigError,
    PocketMQError,
    RouteNotFound,
    SerializationFailed,
    StoreLocked,
)

from .fake_broker import bodies, property_of
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections


class Recording:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.sent: list[Message | UnserializedMessage] = []
        self.told: list[
            tuple[Receipt | None, BaseException | None, Message | UnserializedMessage]
        ] = []
        self.closed = 0

    def on_send(self, message: Message | UnserializedMessage) -> Message | UnserializedMessage:
        self.sent.append(message)
        return message

    def on_acknowledgement(
        self,
        receipt: Receipt | None,
        error: BaseException | None,
        message: Message | UnserializedMessage,
    ) -> None:
        self.told.append((receipt, error, message))

    def close(self) -> None:
        self.closed += 1


class Stamping:
    """Adds a property."""

    def __init__(self, value: str) -> None:
        self._value = value

    def on_send(self, message: Message | UnserializedMessage) -> Message | UnserializedMessage:
        stamps = message.properties.get("stamps", "") + self._value
        return message.replace(properties={**message.properties, "stamps": stamps})


class Raising:
    def on_send(self, message: Message) -> Message:
        raise ZeroDivisionError("on_send")

    def on_acknowledgement(self, *arguments: object) -> None:
        raise ZeroDivisionError("on_acknowledgement")

    def close(self) -> None:
        raise ZeroDivisionError("close")


def producer(cluster: FakeCluster, *interceptors: object, **settings: Any) -> AsyncProducer:
    return AsyncProducer(
        clock=VirtualClock(),
        connections=FakeConnections(cluster),
        random=Random(7),
        interceptors=interceptors,
        **settings,
    )


async def test_a_chain_changes_messages_in_its_order() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster, Stamping("a"), Stamping("b")) as sending:
        await sending.send(Message("orders", b"one"))
        await sending.send("orders", b"two", key="k")
        await sending.send_nowait(Message("orders", b"three"))
        await sending.send_many([Message("orders", b"four")])

    assert property_of(cluster.broker, "orders", "stamps") == ["ab"] * 4
    assert bodies(cluster.broker, "orders") == [[b"one", b"two", b"three", b"four"]]


async def test_each_message_is_acknowledged_with_its_receipt_before_the_sender_hears() -> None:
    seen = Recording()

    async with producer(FakeCluster.of_one("orders", queues=1), seen) as sending:
        receipt = await sending.send(Message("orders", b"one"))
        assert seen.told == [(receipt, None, seen.sent[0])]
        many = await sending.send_many([Message("orders", b"%d" % n) for n in range(3)])
        value = await sending.send("orders", b"value")

    assert [told[0] for told in seen.told] == [receipt, *many, value]
    assert [told[2] for told in seen.told] == seen.sent
    assert isinstance(seen.sent[-1], UnserializedMessage)
    assert seen.sent[-1].value == b"value"
    assert seen.closed == 1


async def test_an_error_is_told() -> None:
    seen = Recording()
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults.append(StoreLocked("not now"))

    async with producer(cluster, seen, buffer_memory=1_000) as sending:
        with pytest.raises(StoreLocked):
            await sending.send(Message("orders", b"one"))
        with pytest.raises(SerializationFailed):
            await sending.send("orders", {"not": "bytes"})
        first = sending.send_nowait(Message("orders", b"x" * 500))
        with pytest.raises(BufferFull):
            sending.send_nowait(Message("orders", b"x" * 500))
        await first

    errors = [type(error) for receipt, error, _ in seen.told if receipt is None]
    assert errors == [StoreLocked, SerializationFailed, BufferFull]
    assert [told[2] for told in seen.told].count(seen.sent[0]) == 1


async def test_of_a_list_that_fails_in_part_each_message_hears_its_own_end() -> None:
    seen = Recording()
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults += ["", StoreLocked("not now"), ""]
    row = [Message("orders", b"%d" % number) for number in range(6)]

    async with producer(cluster, seen, batch_messages_max=2) as sending:
        with pytest.raises(StoreLocked):
            await sending.send_many(row)

    told = {m.body: receipt is not None for receipt, _, m in seen.told if isinstance(m, Message)}
    assert [told[message.body] for message in row] == [True, True, False, False, True, True]
    assert len(seen.told) == 6


async def test_one_that_raises_is_logged_and_skipped(caplog: pytest.LogCaptureFixture) -> None:
    seen = Recording()
    cluster = FakeCluster.of_one("orders", queues=1)

    with caplog.at_level(logging.ERROR):
        async with producer(cluster, Raising(), seen) as sending:
            receipt = await sending.send(Message("orders", b"one"))

    assert receipt.queue_offset == 0
    assert seen.told == [(receipt, None, seen.sent[0])]
    assert seen.closed == 1
    failed = [record for record in caplog.records if "interceptor failed" in record.message]
    assert [str(record.exc_info[1]) for record in failed if record.exc_info] == [
        "on_send",
        "on_acknowledgement",
        "close",
    ]


async def test_one_that_returns_no_message_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful:
        def on_send(self, message: Message) -> None:
            return None

    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster, Forgetful()) as sending:
        await sending.send(Message("orders", b"one"))

    assert bodies(cluster.broker, "orders") == [[b"one"]]
    assert "interceptor returned no message" in caplog.text


async def test_a_cancelled_send_is_told_all_the_same() -> None:
    seen = Recording()
    cluster = FakeCluster.of_one("orders", queues=1)
    gate = cluster.broker.gate = asyncio.Event()

    async with producer(cluster, seen) as sending:
        task = asyncio.ensure_future(sending.send(Message("orders", b"one")))
        await cluster.broker.stored.wait()
        task.cancel()
        gate.set()
        await sending.flush()

    assert [receipt is not None for receipt, _, _ in seen.told] == [True]


async def test_interceptors_come_before_the_route_and_serializers_after_it() -> None:
    seen = Recording()
    serialized: list[object] = []

    def serialize(value: object) -> bytes:
        serialized.append(value)
        return b"x"

    cluster = FakeCluster()
    async with producer(cluster, seen, value_serializer=serialize, route_timeout_ms=1) as sending:
        with pytest.raises(RouteNotFound):
            await sending.send("orders", 17)

    assert len(seen.sent) == 1
    assert serialized == []
    assert isinstance(seen.told[0][1], RouteNotFound)


async def test_the_base_class_does_nothing() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster, Interceptor()) as sending:
        receipt = await sending.send(Message("orders", b"one", tag="t"))

    assert property_of(cluster.broker, "orders", "UNIQ_KEY") == [receipt.message_id]


async def test_half_messages_pass_through_interceptors() -> None:
    seen = Recording()
    cluster = FakeCluster.of_one("orders", queues=1)

    async with (
        producer(cluster, Stamping("a"), seen, group="shop") as sending,
        sending.transaction("orders", b"one", key="k") as transaction,
    ):
        pass

    assert property_of(cluster.broker, "orders", "stamps") == ["a"]
    assert seen.told == [(transaction.receipt, None, seen.sent[0])]


def test_what_has_no_method_of_an_interceptor_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"none of the methods on_send, on_acknowledgement, close"
    ):
        AsyncProducer(interceptors=[print])


async def test_values_that_wait_for_a_route_keep_their_order() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster, value_serializer="str") as sending:
        await asyncio.gather(*(sending.send("orders", str(number)) for number in range(50)))

    assert bodies(cluster.broker, "orders") == [[b"%d" % number for number in range(50)]]


async def test_all_who_wait_for_a_route_that_is_not_there_hear_it_at_once() -> None:
    async with producer(FakeCluster(), route_timeout_ms=1) as sending:
        outcomes = await asyncio.gather(
            *(sending.send("orders", b"x") for _ in range(10)), return_exceptions=True
        )

    assert {type(outcome) for outcome in outcomes} == {RouteNotFound}
    assert all(isinstance(outcome, PocketMQError) for outcome in outcomes)
