"""Connections over real gRPC on loopback: streams that break, brokers that restart, servers that are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, AsyncPullConsumer, Message
from pocketmq.client.connections import BROKER, NAME_SERVER, GrpcConnections
from pocketmq.proto.errors import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    OffsetOutOfRange,
    Overloaded,
    PocketMQError,
    RequestTimeout,
    ShuttingDown,
    TopicNotFound,
    Unsupported,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import NO_HOST, encode_run
from pocketmq.proto.rpc.channel import Http2Channel

from .fake_broker import bodies
from .fake_cluster import FakeCluster, serve


@asynccontextmanager
async def serving(cluster: FakeCluster, port: int = 0) -> AsyncIterator[str]:
    carrier, bound = await serve(cluster, port=port)
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await carrier.stop(0)


@asynccontextmanager
async def connecting() -> AsyncIterator[GrpcConnections]:
    connections = GrpcConnections()
    try:
        yield connections
    finally:
        await connections.close()


def run(topic: str = "orders", queue: int = 0) -> pb.ProduceRun:
    records, sizes = encode_run(
        topic, queue, [(b"body", b"")], born_timestamp_ms=1, born_host=NO_HOST
    )
    return pb.ProduceRun(topic=topic, queue=queue, records=records, sizes=sizes)


async def test_a_unary_error_keeps_its_class_and_details() -> None:
    async with serving(FakeCluster.of_one()) as address, connecting() as connections:
        with pytest.raises(TopicNotFound, match="'nowhere' is not here"):
            await connections.to(address).call(
                BROKER + "DescribeTopic",
                pb.DescribeTopicRequest(topic="nowhere"),
                pb.DescribeTopicReply,
                5_000,
            )
        with pytest.raises(Unsupported):
            await connections.to(address).call(
                NAME_SERVER + "Nothing", pb.RouteRequest(), pb.RouteReply, 5_000
            )


async def test_a_server_that_is_not_there_is_named() -> None:
    async with connecting() as connections:
        with pytest.raises(ConnectionLost, match=r"cannot reach 127\.0\.0\.1:1"):
            await connections.to("127.0.0.1:1").call(
                NAME_SERVER + "Cluster", pb.ClusterRequest(), pb.ClusterReply, 5_000
            )
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
            await connections.to("127.0.0.1:1").produce(run(), 5_000)


async def test_runs_are_pipelined_on_one_stream() -> None:
    cluster = FakeCluster.of_one("orders")

    async with serving(cluster) as address, connecting() as connections:
        connection = connections.to(address)
        replies = await asyncio.gather(*(connection.produce(run(), 5_000) for _ in range(50)))

    assert sorted(reply.first_queue_offset for reply in replies) == list(range(50))
    assert {reply.store_host for reply in replies} == {"127.0.0.1:8081"}


async def test_an_error_in_a_reply_leaves_the_stream_whole() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.faults.append(Overloaded("busy", limit=7))

    async with serving(cluster) as address, connecting() as connections:
        with pytest.raises(Overloaded, match="busy") as caught:
            await connections.to(address).produce(run(), 5_000)
        await connections.to(address).produce(run(), 5_000)

    assert caught.value.details == {"limit": "7"}


async def test_a_fetch_out_of_range_tells_the_range() -> None:
    async with serving(FakeCluster.of_one("orders")) as address, connecting() as connections:
        await connections.to(address).produce(run(), 5_000)
        request = pb.FetchRequest(topic="orders", queue=0, offset=9, max_messages=1)
        with pytest.raises(OffsetOutOfRange) as caught:
            await connections.to(address).fetch(request, 5_000)

    assert (caught.value.details["min_offset"], caught.value.details["max_offset"]) == ("0", "1")


async def test_a_broken_stream_fails_what_waits_and_the_next_request_opens_another() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.faults.append("lose")

    async with serving(cluster) as address, connecting() as connections:
        first, second = (
            asyncio.ensure_future(connections.to(address).produce(run(), 5_000)) for _ in range(2)
        )
        with pytest.raises(ConnectionLost):
            await first
        await asyncio.gather(second, return_exceptions=True)
        reply = await connections.to(address).produce(run(), 5_000)

    assert reply.first_queue_offset >= 1


async def test_what_could_not_leave_is_told_from_what_was_not_answered() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.faults.append("lose")
    cluster.broker.faults.append(ShuttingDown("the broker stops"))

    def refused(error: PocketMQError) -> None:
        raise AssertionError("nothing was sent") from error

    async with connecting() as connections:
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
            await connections.to("127.0.0.1:1").produce(run(), 5_000)
        with pytest.raises(ConnectFailed, match=r"192\.0\.2\.1"):
            await connections.to("192.0.2.1:1").produce(run(), 100)
        with pytest.raises(ConnectFailed):
            await connections.to("127.0.0.1:1").post(run(), 5_000, refused)
        async with serving(cluster) as address:
            with pytest.raises(ConnectionLost) as caught:
                await connections.to(address).produce(run(), 5_000)
            with pytest.raises(ShuttingDown):
                await connections.to(address).produce(run(), 5_000)

    assert not isinstance(caught.value, ConnectFailed)
    assert len(cluster.broker.queues["orders", 0]) == 1


async def test_a_stream_that_a_stopping_broker_ends_leaves_runs_unanswered() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.holding = True
    carrier, port = await serve(cluster)

    async with connecting() as connections:
        connection = connections.to(f"127.0.0.1:{port}")
        produced = asyncio.ensure_future(connection.produce(run(), 5_000))
        await cluster.broker.stored.wait()
        await carrier.stop(0)
        with pytest.raises(ConnectionLost) as caught:
            await produced

    assert not isinstance(caught.value, ConnectFailed)


async def test_a_posted_run_is_not_answered_and_its_refusal_is_heard() -> None:
    cluster = FakeCluster.of_one("orders")
    refusals: list[PocketMQError] = []
    heard = asyncio.Event()

    def refused(error: PocketMQError) -> None:
        refusals.append(error)
        heard.set()

    silent, bad = run(), run("nowhere")
    silent.no_reply = bad.no_reply = True
    async with serving(cluster) as address, connecting() as connections:
        await connections.to(address).post(silent, 5_000, refused)
        await connections.to(address).post(bad, 5_000, refused)
        await heard.wait()

    assert [type(error) for error in refusals] == [TopicNotFound]
    assert len(cluster.broker.queues["orders", 0]) == 1


async def test_a_silent_broker_is_given_up() -> None:
    async with serving(FakeCluster.of_one("orders")) as address, connecting() as connections:
        await connections.to(address).produce(run(), 5_000)
        request = pb.FetchRequest(topic="orders", offset=1, max_wait_ms=60_000)
        await connections.to(address).fetch(pb.FetchRequest(topic="orders"), 5_000)
        with pytest.raises(RequestTimeout, match=f"{address} did not answer within 200 ms"):
            await connections.to(address).fetch(request, 200)


async def test_closing_fails_what_waits() -> None:
    async with serving(FakeCluster.of_one("orders")) as address:
        connections = GrpcConnections()
        request = pb.FetchRequest(topic="orders", max_wait_ms=60_000)
        waiting = asyncio.ensure_future(connections.to(address).fetch(request, 60_000))
        await connections.to(address).produce(run(), 5_000)
        await connections.close()
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            connections.to(address)


# ------------------------------------------------------------ whole clients


async def test_a_lost_acknowledgement_is_repeated_over_grpc() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults.append("lose")

    async with serving(cluster) as address, AsyncProducer(address) as producer:
        receipt = await producer.send(Message("orders", b"x"))

    assert (receipt.queue_offset, receipt.repeated) == (0, True)


async def test_a_broker_that_restarts_amid_sending_loses_nothing() -> None:
    cluster = FakeCluster.of_one("orders", queues=2)
    sent = [Message("orders", b"%d" % number) for number in range(3_000)]

    carrier, port = await serve(cluster)
    async with AsyncProducer(
        f"127.0.0.1:{port}", batch_messages_max=100, retry_backoff_ms=1, retry_backoff_max_ms=20
    ) as producer:
        sending = producer.send_many_nowait(sent)
        await cluster.broker.stored.wait()
        await carrier.stop(0)
        async with serving(cluster, port):
            receipts = await sending

    stored = {body for queue in bodies(cluster.broker, "orders") for body in queue}
    assert len(receipts) == 3_000
    assert stored == {message.body for message in sent}


async def test_a_channel_that_does_not_come_back_is_dialled_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    dialled: list[str] = []

    def dial_elsewhere_first(address: str) -> Any:
        dialled.append(address)
        return Http2Channel("127.0.0.1:1" if len(dialled) == 1 else address)

    async def ask() -> None:
        await found.to(address).call(
            BROKER + "Nothing", pb.BrokerStatusRequest(), pb.BrokerStatusReply, 5_000
        )

    carrier, port = await serve(cluster)
    found, address = GrpcConnections(dial_elsewhere_first), f"127.0.0.1:{port}"
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            await ask()
    assert dialled == [address]
    monkeypatch.setattr("pocketmq.client.connections.REDIAL_S", 0.0)
    with pytest.raises(ConnectionLost):
        await ask()
    for _ in range(2):
        with pytest.raises(Unsupported):  # Somebody was reached, who does not know the call.
            await ask()
    assert dialled == [address, address]
    await found.close()
    await carrier.stop(0)


async def test_what_waits_when_a_channel_is_dialled_anew_is_told_of_a_loss() -> None:
    cluster = FakeCluster.of_one("orders")
    async with serving(cluster) as address, connecting() as connections:
        stuck = connections.to(address)
        await stuck.produce(run(), 5_000)
        request = pb.FetchRequest(topic="orders", offset=1, max_wait_ms=60_000)
        waiting = asyncio.ensure_future(stuck.fetch(request, 60_000))
        await asyncio.sleep(0)
        stuck.is_stuck = True

        assert connections.to(address) is not stuck

        with pytest.raises(ConnectionLost, match="connecting again"):
            await waiting
        with pytest.raises(ConnectionLost, match="connecting again"):
            await stuck.fetch(request, 60_000)


async def test_a_channel_that_reaches_somebody_again_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pocketmq.client.connections.REDIAL_S", 0.0)
    cluster = FakeCluster.of_one("orders")
    cluster.broker.faults += ["lose", "lose"]
    async with serving(cluster) as address, connecting() as connections:
        connection = connections.to(address)
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await connection.produce(run(), 5_000)

        await connection.produce(run(), 5_000)

        assert connections.to(address) is connection


async def test_a_consumer_outlives_a_restart_of_the_broker() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    carrier, port = await serve(cluster)
    address = f"127.0.0.1:{port}"

    consumer = AsyncPullConsumer("billing", "orders", address)
    await consumer.start()
    async with AsyncProducer(address) as producer:
        await producer.send(Message("orders", b"before"))
    assert [message.body for message in await consumer.poll(timeout_ms=10_000)] == [b"before"]
    await carrier.stop(0)
    async with serving(cluster, port):
        async with AsyncProducer(address) as producer:
            await producer.send(Message("orders", b"after"))
        received = await consumer.poll(timeout_ms=10_000)
        assert [message.body for message in received] == [b"after"]
        await consumer.close()


async def test_a_commit_that_fails_at_the_end_is_told_unless_another_error_is() -> None:
    async def leave(error: type[Exception] | None) -> None:
        cluster = FakeCluster.of_one("orders", queues=1)
        carrier, port = await serve(cluster)
        async with AsyncPullConsumer("billing", "orders", f"127.0.0.1:{port}") as consumer:
            cluster.broker.produce(run())
            cluster.broker.produce(run())
            await consumer.poll(1, timeout_ms=10_000)
            await consumer.poll(1, timeout_ms=10_000)
            await carrier.stop(0)
            if error is not None:
                raise error

    with pytest.raises(ConnectionLost):
        await leave(None)
    with pytest.raises(ZeroDivisionError):
        await leave(ZeroDivisionError)


async def test_the_loss_of_a_name_server_is_survived() -> None:
    cluster = FakeCluster.of_one("orders", "bills")

    async with (
        serving(cluster) as address,
        AsyncProducer(f"127.0.0.1:1,{address}") as producer,
    ):
        assert (await producer.send(Message("orders", b"x"))).queue_offset == 0
        assert (await producer.send(Message("bills", b"x"))).queue_offset == 0


async def test_two_clients_on_one_loop_log_no_errors(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster.of_one("orders")

    with caplog.at_level(logging.ERROR):
        async with (
            serving(cluster) as address,
            AsyncProducer(address) as one,
            AsyncProducer(address) as two,
        ):
            await asyncio.gather(
                *(client.send(Message("orders", b"x")) for client in (one, two) for _ in range(99))
            )

    assert caplog.records == []
