"""What official clients are told of two brokers behind one name server, whichever of them they ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from pocketmq.broker.broker import Broker
from pocketmq.broker.other_brokers import FRESH_MS
from pocketmq.broker.service_v2.client_addresses import endpoints_at
from pocketmq.client import AsyncAdmin, AsyncProducer, Receipt
from pocketmq.nameserver import NameServer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import DeliveryTimeout
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.os_disk import OsDisk

from ..served import broker_config, nameserver_config
from .whole_broker import store_config

SERVICE = "/apache.rocketmq.v2.MessagingService/"
CLIENT = (("x-mq-client-id", "c"), ("x-mq-client-version", "5.1.2"))


class Cluster:
    """A name server and brokers."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.server = NameServer.build(nameserver_config(port=0), clock=SystemClock())

    async def start(self) -> None:
        await self.server.start()
        self._stack.push_async_callback(self.server.stop, 0)

    async def broker(self, name: str, **settings: Any) -> Broker:
        config = broker_config(
            name=name, port=0, nameservers=(self.server.address,), stop_grace_ms=0, **settings
        )
        store = store_config(self._folder / name)
        broker = Broker.build(config, store, disk=OsDisk(), clock=SystemClock())
        await broker.start()
        self._stack.push_async_callback(broker.stop)
        assert await broker.registered(5)
        return broker

    async def topic(self, name: str, **settings: Any) -> None:
        """Make a topic on all brokers."""
        async with AsyncAdmin(self.server.address) as admin:
            await admin.create_topic(name, **settings)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        found = Cluster(tmp_path, stack)
        await found.start()
        yield found


async def ask(broker: Broker, method: str, request: Any, reply_type: Any) -> Any:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.port}") as channel:
        call = channel.unary_unary(
            SERVICE + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply_type.FromString,
        )
        return await call(request, metadata=CLIENT, timeout=10)


async def route(broker: Broker, topic: str, *dialled: str) -> Any:
    request = v2.QueryRouteRequest(
        topic=v2.Resource(name=topic), endpoints=endpoints_at(dialled or [broker.address])
    )
    return await ask(broker, "QueryRoute", request, v2.QueryRouteResponse)


def brokers_in(reply: Any) -> dict[str, list[str]]:
    """Return under which addresses REPLY names each broker."""
    return {
        queue.broker.name: [f"{one.host}:{one.port}" for one in queue.broker.endpoints.addresses]
        for queue in reply.message_queues
    }


async def test_a_route_has_the_queues_of_all_brokers_and_names_our_own_as_it_was_dialled(
    cluster: Cluster,
) -> None:
    a, b = await cluster.broker("a"), await cluster.broker("b")
    await cluster.topic("orders", queues=2, type="FIFO")

    reply = await route(a, "orders", "forwarded:18081")
    other = await route(b, "orders", b.address)

    queues = [(queue.broker.name, queue.id) for queue in reply.message_queues]
    assert queues == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert [(queue.broker.name, queue.id) for queue in other.message_queues] == queues
    assert brokers_in(reply) == {"a": ["forwarded:18081"], "b": [b.address]}
    assert brokers_in(other) == {"a": [a.address], "b": [b.address]}
    for queue in [*reply.message_queues, *other.message_queues]:
        assert (queue.permission, list(queue.accept_message_types)) == (v2.READ_WRITE, [v2.FIFO])


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_push_consumer_receives_from_each_broker(cluster: Cluster, ordered: bool) -> None:
    a, _ = await cluster.broker("a"), await cluster.broker("b")
    await cluster.topic("orders", queues=2)
    async with AsyncAdmin(cluster.server.address) as admin:
        await admin.create_group("g", order=ordered)
    request = v2.QueryAssignmentRequest(
        topic=v2.Resource(name="orders"), group=v2.Resource(name="g")
    )

    reply = await ask(a, "QueryAssignment", request, v2.QueryAssignmentResponse)

    found = [(one.message_queue.broker.name, one.message_queue.id) for one in reply.assignments]
    each = (0, 1) if ordered else (-1,)
    assert found == [(name, queue) for queue in each for name in "ab"]


async def test_a_topic_that_only_another_broker_has_is_found_there(cluster: Cluster) -> None:
    await cluster.broker("b")
    await cluster.topic("there", queues=1, type="DELAY")
    a = await cluster.broker("a")

    reply = await route(a, "there")
    nowhere = await route(a, "nowhere")

    (queue,) = reply.message_queues
    assert (queue.broker.name, list(queue.accept_message_types)) == ("b", [v2.DELAY])
    assert nowhere.status.code == v2.TOPIC_NOT_FOUND


async def test_a_topic_that_was_asked_for_before_it_was_made_is_known_on_all_at_once(
    cluster: Cluster,
) -> None:
    a, _ = await cluster.broker("a"), await cluster.broker("b")
    assert (await route(a, "orders")).status.code == v2.TOPIC_NOT_FOUND

    await cluster.topic("orders", queues=1)

    assert set(brokers_in(await route(a, "orders"))) == {"a", "b"}


async def test_of_an_access_point_with_both_brokers_each_is_named_its_own(
    cluster: Cluster,
) -> None:
    a, b = await cluster.broker("a"), await cluster.broker("b")
    await cluster.topic("orders", queues=1)

    for one in (a, b):
        reply = await route(one, "orders", a.address, b.address)
        assert brokers_in(reply) == {"a": [a.address], "b": [b.address]}


async def test_who_has_dialled_another_broker_is_named_our_own_address(cluster: Cluster) -> None:
    a, b = await cluster.broker("a"), await cluster.broker("b")
    await cluster.topic("orders", queues=1)
    async with AsyncAdmin(cluster.server.address) as admin:
        await admin.create_group("g")
    where = {"a": [a.address], "b": [b.address]}
    request = v2.QueryAssignmentRequest(
        topic=v2.Resource(name="orders"),
        group=v2.Resource(name="g"),
        endpoints=endpoints_at([a.address]),
    )

    reply = await route(b, "orders", a.address)
    assigned = await ask(b, "QueryAssignment", request, v2.QueryAssignmentResponse)

    assert brokers_in(reply) == where
    brokers = [one.message_queue.broker for one in assigned.assignments]
    assert {
        one.name: [f"{at.host}:{at.port}" for at in one.endpoints.addresses] for one in brokers
    } == where


async def test_a_broker_is_named_its_own_address_also_for_a_topic_that_no_other_has(
    cluster: Cluster,
) -> None:
    a = await cluster.broker("a")
    await cluster.topic("mine", queues=1)
    b = await cluster.broker("b")

    for dialled in ([a.address, b.address], [b.address]):
        assert brokers_in(await route(a, "mine", *dialled)) == {"a": [a.address]}


@pytest.mark.parametrize(
    ("everywhere", "gone"), [(True, v2.INVALID_TRANSACTION_ID), (False, v2.TOPIC_NOT_FOUND)]
)
async def test_an_outcome_finds_the_broker_of_its_half_message(
    cluster: Cluster, everywhere: bool, gone: v2.Code
) -> None:
    a = await cluster.broker("a") if everywhere else None
    b = await cluster.broker("b")
    await cluster.topic("paid", queues=1, type="TRANSACTION")
    a = a or await cluster.broker("a")
    message = v2.Message(
        topic=v2.Resource(name="paid"),
        system_properties=v2.SystemProperties(
            message_id="id-0", message_type=v2.TRANSACTION, body_encoding=v2.IDENTITY
        ),
        body=b"half",
    )
    sent = await ask(
        b, "SendMessage", v2.SendMessageRequest(messages=[message]), v2.SendMessageResponse
    )
    transaction_id = sent.entries[0].transaction_id

    async def end(broker: Broker, transaction_id: str) -> v2.Status:
        request = v2.EndTransactionRequest(
            topic=v2.Resource(name="paid"),
            message_id="id-0",
            transaction_id=transaction_id,
            source=v2.SOURCE_CLIENT,
            resolution=v2.COMMIT,
        )
        reply = await ask(broker, "EndTransaction", request, v2.EndTransactionResponse)
        status: v2.Status = reply.status
        return status

    assert [(await end(one, transaction_id)).code for one in (a, a, b)] == [v2.OK] * 3
    counts = [one.store.queue_bounds("paid", 0)[1] for one in (a, b)]
    assert counts == [0, 1]

    unknown = await end(a, "id-1")

    assert unknown.code == v2.INVALID_TRANSACTION_ID
    await b.stop()
    status = await end(a, "id-1")
    assert status.code == gone, "b has left the routes"


@pytest.mark.parametrize(
    ("settings", "own"),
    [({"v2_cluster": False}, "dialled:1"), ({"v2_endpoints": ("balanced:1",)}, "balanced:1")],
)
async def test_a_broker_can_be_told_to_answer_for_itself_alone(
    cluster: Cluster, settings: dict[str, Any], own: str
) -> None:
    a, _ = await cluster.broker("a", **settings), await cluster.broker("b")
    await cluster.topic("orders", queues=1)

    assert brokers_in(await route(a, "orders", "dialled:1")) == {"a": [own]}


async def test_a_broker_that_stops_leaves_the_routes_and_a_name_server_takes_none_with_it(
    cluster: Cluster,
) -> None:
    a, b = await cluster.broker("a"), await cluster.broker("b")
    c = await cluster.broker("c")
    await cluster.topic("orders", queues=1)
    assert set(brokers_in(await route(a, "orders"))) == {"a", "b", "c"}

    await b.stop()
    await asyncio.sleep(FRESH_MS / 1000)
    assert set(brokers_in(await route(a, "orders"))) == {"a", "c"}

    await cluster.server.stop(0)
    await asyncio.sleep(FRESH_MS / 1000)
    assert brokers_in(await route(a, "orders")) == {"a": [a.address], "c": [c.address]}


async def changed(broker: Broker, topic: str, before: Any) -> Any:
    """Return the route of TOPIC once it is another one than BEFORE."""
    for _ in range(600):
        found = await route(broker, topic)
        if found.message_queues != before.message_queues:
            return found
        await asyncio.sleep(0.1)
    raise AssertionError("the route did not change within a minute")


@pytest.mark.long
async def test_message_groups_wait_for_a_broker_that_is_away(cluster: Cluster) -> None:
    a, b = await cluster.broker("a"), await cluster.broker("b")
    await cluster.topic("ordered", queues=2, type="FIFO")
    await cluster.topic("normal", queues=2, type="NORMAL")
    before, normal = await route(a, "ordered"), await route(a, "normal")
    await b.stop()
    # The broker asks a name server again once its answer is a second old.
    after = await changed(a, "ordered", before)

    def places(reply: Any) -> list[tuple[str, int]]:
        return [(queue.broker.name, queue.id) for queue in reply.message_queues]

    assert places(after) == places(before) == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert [one.permission for one in after.message_queues] == [v2.READ_WRITE, v2.WRITE] * 2
    assert brokers_in(after) == {"a": [a.address], "b": [b.address]}
    assert places(await changed(a, "normal", normal)) == [("a", 0), ("a", 1)]
    async with AsyncProducer(cluster.server.address, delivery_timeout_ms=8_000) as producer:
        sent = [producer.send_nowait("ordered", b"x", sharding_key=key) for key in "abcdefgh"]
        done = await asyncio.gather(*sent, return_exceptions=True)
    assert {type(one) for one in done} == {Receipt, DeliveryTimeout}, "some wait for the other"
    assert {one.broker for one in done if isinstance(one, Receipt)} == {"a"}
    async with AsyncAdmin(cluster.server.address) as admin:
        await admin.delete_topic("ordered")
    assert (await route(a, "ordered")).status.code == v2.TOPIC_NOT_FOUND


async def test_a_topic_that_is_made_by_sending_is_made_on_all_brokers(cluster: Cluster) -> None:
    await cluster.broker("a")
    await cluster.broker("b")
    await cluster.broker("c")
    async with (
        AsyncProducer(cluster.server.address) as producer,
        AsyncAdmin(cluster.server.address) as admin,
    ):
        await producer.send("made", b"x")
        made = await admin.describe_topic("made")
        for _ in range(600):
            if len(made.brokers) > 2:
                break
            await asyncio.sleep(0.1)
            made = await admin.describe_topic("made")

    assert made.brokers == ("a", "b", "c")
    assert {one.max_offset for one in made.queues} == {0, 1}
    shapes = {(one.queue.broker, one.queue.number) for one in made.queues}
    assert shapes == {(name, number) for name in made.brokers for number in range(made.read_queues)}
