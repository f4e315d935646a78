"""Clients of a replica set go on through failovers without being told: real replicas, brokers and sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.service_v2.client_addresses import endpoints_at
from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import Channel
from pocketmq.proto.rpc.channel import Http2Channel

from ..waiting import until
from .served_set import ServedSet, served_set


async def registered(world: ServedSet) -> dict[int, tuple[int, str]]:
    """Return role and address of each replica that the name server knows, by id."""
    async with Http2Channel(world.name_server.address) as channel:
        ask = channel.unary_unary(
            "/pocketmq.v1.NameServer/Cluster",
            pb.ClusterRequest.SerializeToString,
            pb.ClusterReply.FromString,
        )
        reply = await ask(pb.ClusterRequest(), timeout=30.0)
    return {
        one.replica_id: (one.role, one.address)
        for broker in reply.brokers
        for one in broker.replicas
    }


async def until_registered(world: ServedSet) -> None:
    """Return once the name server knows all replicas in their roles."""
    (master,) = world.masters

    async def as_expected() -> bool:
        found = await registered(world)
        return found == {
            one.id: (pb.MASTER if one is master else pb.FOLLOWER, world.served(one.id).address)
            for one in world.members.values()
        }

    async with asyncio.timeout(60):
        while not await as_expected():  # noqa: ASYNC110 (a question to a server, not an event)
            await asyncio.sleep(0.05)


async def test_all_replicas_are_on_the_route_in_their_roles(tmp_path: Path) -> None:
    async with served_set(tmp_path) as world:
        await until_registered(world)


@pytest.mark.long
async def test_a_producer_and_a_consumer_go_through_failovers(tmp_path: Path) -> None:
    async with served_set(tmp_path, min_in_sync=2) as world:
        servers = world.name_server.address
        async with AsyncAdmin(servers) as admin:
            await admin.create_topic("bills", queues=2)
        sent: list[str] = []
        ending = asyncio.Event()

        async def send() -> None:
            async with AsyncProducer(servers, acks="replicas") as producer:
                while not ending.is_set():
                    body = f"{len(sent)}"
                    receipt = await producer.send(Message("bills", body.encode()))
                    assert receipt.durability == "replicas"
                    assert receipt.replicas >= 2
                    sent.append(body)

        sending = asyncio.create_task(send())
        received: list[str] = []
        async with AsyncPullConsumer("billing", "bills", nameservers=servers) as consumer:

            async def receive() -> None:
                while True:
                    batch = await consumer.poll(timeout_ms=200)
                    received.extend(message.body.decode() for message in batch)
                    await consumer.commit()

            receiving = asyncio.create_task(receive())
            for _ in range(3):
                before = len(sent)
                await until(lambda before=before: len(sent) > before + 50)  # type: ignore[misc]
                await world.fail_over()
            before = len(sent)
            await until(lambda: len(sent) > before + 50)
            ending.set()
            await sending
            await until(lambda: set(sent) <= set(received))
            receiving.cancel()
            await asyncio.wait((receiving,))
        async with AsyncAdmin(servers) as admin:
            queues = await admin.queue_offsets("bills")
    assert sum(queue.max_offset for queue in queues) == len(sent), "each is stored once"
    assert sorted(set(received), key=int) == [str(number) for number in range(len(sent))]


async def test_a_consumer_reads_from_a_follower_what_all_have(tmp_path: Path) -> None:
    # A follower that is kept from its work for two thirds of a session would send it to the master.
    async with served_set(tmp_path, session_ms=60_000) as world:
        await until_registered(world)
        servers = world.name_server.address
        async with AsyncAdmin(servers) as admin:
            await admin.create_topic("bills", queues=1)
        (master,) = world.masters
        async with (
            AsyncProducer(servers) as producer,
            AsyncPullConsumer("billing", "bills", nameservers=servers, read_from="any") as consumer,
        ):
            for number in range(20):
                await producer.send(Message("bills", b"%d" % number))
            found: list[bytes] = []
            async with asyncio.timeout(60):
                while len(found) < 20:
                    found += [message.body for message in await consumer.poll(timeout_ms=200)]
            await consumer.commit()
            paths = {
                one.id: [
                    open_.last_path
                    for open_ in world.served(one.id).port_of_clients._carrier.connection_figures(
                        1, 99
                    )
                ]
                for one in world.members.values()
            }

    assert found == [b"%d" % number for number in range(20)]
    readers = [id for id, last in paths.items() if any("Broker/Fetch" in path for path in last)]
    assert readers
    assert master.id not in readers


# ---------------------------------------------------------------- official clients

V2 = "/apache.rocketmq.v2.MessagingService/"
CLIENT = (("x-mq-client-id", "c"), ("x-mq-client-version", "5.1.2"))


async def asked(channel: Channel, method: str, request: Any, reply_type: Any) -> Any:
    ask = channel.unary_unary(V2 + method, type(request).SerializeToString, reply_type.FromString)
    return await ask(request, timeout=30.0, metadata=CLIENT)


def message(number: int) -> v2.SendMessageRequest:
    return v2.SendMessageRequest(
        messages=[
            v2.Message(
                topic=v2.Resource(name="bills"),
                system_properties=v2.SystemProperties(
                    message_id=f"{number:032X}", message_type=v2.NORMAL
                ),
                body=b"%d" % number,
            )
        ]
    )


async def test_official_clients_are_told_of_all_replicas_by_any(tmp_path: Path) -> None:
    async with served_set(tmp_path) as world:
        async with AsyncAdmin(world.name_server.address) as admin:
            await admin.create_topic("bills", queues=1)
        (master,) = world.masters
        addresses = [world.served(master.id).address]
        addresses += [
            world.served(one.id).address for one in world.members.values() if one is not master
        ]
        for address in addresses:
            async with Http2Channel(address) as channel:
                request = v2.QueryRouteRequest(
                    topic=v2.Resource(name="bills"), endpoints=endpoints_at([address])
                )
                reply = await asked(channel, "QueryRoute", request, v2.QueryRouteResponse)
            (queue,) = reply.message_queues
            assert queue.broker.endpoints == endpoints_at(addresses)


async def test_who_stays_with_one_follower_is_served_through_a_failover(tmp_path: Path) -> None:
    async with served_set(tmp_path, session_ms=1_000) as world:
        async with AsyncAdmin(world.name_server.address) as admin:
            await admin.create_topic("bills", queues=1)
        (master,) = world.masters
        follower = next(one for one in world.members.values() if one is not master)
        async with Http2Channel(world.served(follower.id).address) as channel:
            sent = await asked(channel, "SendMessage", message(1), v2.SendMessageResponse)
            assert sent.status.code == v2.OK

            await world.whole()
            await master.kill()
            asking = asyncio.create_task(
                asked(channel, "SendMessage", message(2), v2.SendMessageResponse)
            )
            await asyncio.sleep(0.3)
            master.expire()
            sent = await asking

        assert sent.status.code == v2.OK
        assert sent.entries[0].offset == 1


@pytest.mark.parametrize("through", ["the master", "a follower"])
async def test_no_call_of_an_official_client_fails_while_the_master_hands_over(
    tmp_path: Path, through: str
) -> None:
    async with served_set(tmp_path, min_in_sync=2) as world:
        async with AsyncAdmin(world.name_server.address) as admin:
            await admin.create_topic("bills", queues=1)
        master = await world.whole()
        first, second = (one for one in world.members.values() if one is not master)
        asked_of = master if through == "the master" else first
        codes: list[int] = []
        is_over = False

        async def send(channel: Channel, sender: int) -> None:
            number = 0
            while not is_over:
                number += 1
                request = message(sender * 1_000_000 + number)
                reply = await asked(channel, "SendMessage", request, v2.SendMessageResponse)
                codes.append(reply.status.code)

        async with Http2Channel(world.served(asked_of.id).address) as channel:
            sending = [asyncio.create_task(send(channel, sender)) for sender in range(8)]
            for to in (second, first, master):
                moved = await world.master()
                count = len(codes)
                await until(lambda count=count: len(codes) > count + 20)  # type: ignore[misc]
                await moved.node.hand_over(to.id, 60_000)
                await until(lambda to=to: world.masters == [to])  # type: ignore[misc]
                await world.whole()
            is_over = True
            await asyncio.gather(*sending)

        assert set(codes) == {v2.OK}
        assert (await world.whole()).store.queue_bounds("bills", 0) == (0, len(codes))
