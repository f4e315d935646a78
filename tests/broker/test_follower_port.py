"""What our own clients hear at the port of a follower."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.follower_port import FollowerReads, follower_methods
from pocketmq.broker.relays import KnownMaster, Relays
from pocketmq.client.connections import BROKER, GrpcConnections
from pocketmq.proto.errors import MasterFenced
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import MethodTable, service, unary
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.store.message_store import MessageStore

from ..runs import make_run, open_store
from .following import Follower, followed

MASTER = KnownMaster("10.0.0.2:8081", 7)


@asynccontextmanager
async def asked(**bounds: Any) -> AsyncIterator[tuple[Follower, GrpcConnections]]:
    async with followed(**bounds) as (follower, _):
        follower.master = MASTER
        connections = GrpcConnections()
        try:
            yield follower, connections
        finally:
            await connections.close()


def names_the_master(error: MasterFenced) -> bool:
    return error.details == {"broker": "orders", "master": "10.0.0.2:8081", "epoch": "7"}


async def test_a_question_is_told_where_the_master_is() -> None:
    async with asked() as (follower, connections):
        with pytest.raises(
            MasterFenced, match=r"master of epoch 7 is at 10\.0\.0\.2:8081"
        ) as fenced:
            await connections.to(follower.address).call(
                BROKER + "CommitOffsets", pb.CommitOffsetsRequest(), pb.CommitOffsetsReply, 1_000
            )
        assert names_the_master(fenced.value)


async def test_runs_and_fetches_are_told_each() -> None:
    async with asked() as (follower, connections):
        connection = connections.to(follower.address)
        answers = await asyncio.gather(
            *(connection.produce(pb.ProduceRun(topic="t"), 1_000) for _ in range(3)),
            *(connection.fetch(pb.FetchRequest(topic="t"), 1_000) for _ in range(3)),
            return_exceptions=True,
        )

        assert [type(answer) for answer in answers] == [MasterFenced] * 6
        assert all(names_the_master(answer) for answer in answers[:3])  # type: ignore[arg-type]
        assert all(answer.details["master"] for answer in answers)  # type: ignore[union-attr]


async def test_a_run_that_asks_for_no_answer_is_refused_all_the_same() -> None:
    async with asked() as (follower, connections):
        heard: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        await connections.to(follower.address).post(
            pb.ProduceRun(topic="t", no_reply=True), 1_000, heard.set_result
        )

        assert isinstance(await heard, MasterFenced)


async def test_a_member_and_a_listener_are_told_by_the_end_of_their_streams() -> None:
    async with asked() as (follower, connections):
        connection = connections.to(follower.address)
        talk = connection.converse(BROKER + "JoinGroup", pb.MemberRequest, pb.MemberEvent)
        await talk.send(pb.MemberRequest(join=pb.Join(group="g")))

        with pytest.raises(MasterFenced) as fenced:
            await talk.receive()
        assert names_the_master(fenced.value)
        checks = connection.listen(pb.TransactionListener(group="g"))
        with pytest.raises(MasterFenced):
            await anext(aiter(checks))


async def test_amid_an_election_all_are_answered_once_the_master_is_known() -> None:
    async with asked() as (follower, connections):
        follower.master = None
        connection = connections.to(follower.address)
        waiting = [
            asyncio.ensure_future(connection.produce(pb.ProduceRun(topic="t"), 3_000)),
            asyncio.ensure_future(
                connection.call(
                    BROKER + "GroupOffsets",
                    pb.GroupOffsetsRequest(),
                    pb.GroupOffsetsReply,
                    3_000,
                )
            ),
        ]
        await asyncio.sleep(0.2)
        assert not any(one.done() for one in waiting)

        follower.master = MASTER

        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(answer, MasterFenced)
            assert names_the_master(answer)


async def test_without_a_master_the_answer_names_none() -> None:
    async with asked(wait_s=0.1) as (follower, connections):
        follower.master = None

        with pytest.raises(MasterFenced, match="knows of no master") as fenced:
            await connections.to(follower.address).produce(pb.ProduceRun(topic="t"), 3_000)
        assert fenced.value.details == {"broker": "orders"}


async def test_every_method_of_a_broker_is_there() -> None:
    relays = Relays("orders", lambda: None, Http2Channel)

    table = follower_methods(relays)

    for module, name in ((pb, "Broker"), (v2, "MessagingService")):
        described = module.DESCRIPTOR.services_by_name[name]
        for method in described.methods:
            found = table[f"/{described.full_name}/{method.name}"]
            assert found.request_type.DESCRIPTOR is method.input_type
            assert found.reply_type.DESCRIPTOR is method.output_type
    assert "opencensus.proto.agent.trace.v1.TraceService" in table.services()


async def test_what_a_follower_serves_itself_is_not_refused() -> None:
    entry = unary(pb.BrokerStatusRequest, pb.BrokerStatusReply, lambda request, call: None)  # type: ignore[arg-type]
    own: MethodTable = service("pocketmq.v1.Broker", {"Status": entry})

    table = follower_methods(Relays("orders", lambda: None, Http2Channel), own)

    assert table[BROKER + "Status"].handler is entry.handler


# ---------------------------------------------------------------- reads


async def test_a_follower_hands_out_what_is_confirmed_and_waits_for_more(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    try:
        ends = [store.append(make_run("A", 0, [body])).end_offset for body in (b"1", b"2")]
        store.confirm(ends[0])
        reads = FollowerReads(BrokerConfig(), lambda: store)
        fetch = pb.FetchRequest(topic="A", from_any=True, min_bytes=1, max_wait_ms=5_000)
        assert reads.serves(fetch)

        reply = await reads.answer(fetch)
        assert reply is not None
        assert (reply.next_offset, reply.max_offset) == (1, 1)

        fetch.offset = 1
        waiting = asyncio.create_task(reads.answer(fetch))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        store.confirm(ends[1])
        reply = await waiting
        assert reply is not None
        assert (reply.next_offset, len(reply.records) > 0) == (2, True)

        fetch.offset = 7
        reply = await reads.answer(fetch)
        assert reply is not None
        assert reply.error.name == "OffsetOutOfRange"
    finally:
        store.close()


def test_what_a_follower_does_not_read_for_others() -> None:
    open_ = FollowerReads(BrokerConfig(), lambda: cast("MessageStore", object()))
    closed = FollowerReads(BrokerConfig(), lambda: None)
    any_ = pb.FetchRequest(topic="A", from_any=True)

    assert open_.serves(any_)
    assert not closed.serves(any_)
    assert not open_.serves(pb.FetchRequest(topic="A"))
    assert not open_.serves(pb.ProduceRun(topic="A"))
    assert not open_.serves(
        pb.FetchRequest(topic="A", from_any=True, filter=pb.Filter(kind=pb.Filter.TAG))
    )
