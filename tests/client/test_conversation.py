"""Conversations over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pocketmq.client.connections import BROKER, GrpcConnection, GrpcConnections
from pocketmq.client.streams import Conversation
from pocketmq.proto.carrier_grpcio import GrpcioCarrier
from pocketmq.proto.errors import ConnectionLost, MemberFenced, Unsupported
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import Stream, bidi, service

Answer = Callable[[Stream, pb.MemberRequest], None]


class Hearing:
    """A receiver that has ANSWER deal with each message."""

    def __init__(self, stream: Stream, answer: Answer, closed: asyncio.Event) -> None:
        self._stream = stream
        self._answer = answer
        self._closed = closed

    def on_message(self, message: pb.MemberRequest) -> None:
        self._answer(self._stream, message)

    def on_end(self) -> None:
        self._stream.finish()

    def on_close(self) -> None:
        self._closed.set()


@asynccontextmanager
async def talking(
    answer: Answer, path: str = "JoinGroup"
) -> AsyncIterator[tuple[Conversation[pb.MemberRequest, pb.MemberEvent], asyncio.Event]]:
    """Open a conversation with a server that answers as ANSWER does; the event tells that it has heard the end."""
    closed = asyncio.Event()
    entry = bidi(pb.MemberRequest, pb.MemberEvent, lambda stream: Hearing(stream, answer, closed))
    carrier = GrpcioCarrier([service("pocketmq.v1.Broker", {"JoinGroup": entry})])
    port = await carrier.start("127.0.0.1", 0)
    connections = GrpcConnections()
    connection: GrpcConnection = connections.to(f"127.0.0.1:{port}")
    try:
        yield connection.converse(BROKER + path, pb.MemberRequest, pb.MemberEvent), closed
    finally:
        await connections.close()
        await carrier.stop(0)


def echo(stream: Stream, message: pb.MemberRequest) -> None:
    generation = message.replan.generation
    stream.send(pb.MemberEvent(assigned=pb.Assigned(generation=generation)))


async def test_both_sides_speak_in_order() -> None:
    async with talking(echo) as (conversation, _):
        for generation in range(20):
            await conversation.send(pb.MemberRequest(replan=pb.Replan(generation=generation)))
        heard = [await conversation.receive() for _ in range(20)]

    assert [event and event.assigned.generation for event in heard] == list(range(20))


async def test_many_may_speak_at_once() -> None:
    async with talking(echo) as (conversation, _):
        says = [pb.MemberRequest(replan=pb.Replan(generation=number)) for number in range(50)]
        await asyncio.gather(*map(conversation.send, says))
        heard = [await conversation.receive() for _ in range(50)]

    assert [event and event.assigned.generation for event in heard] == list(range(50))


async def test_what_the_server_ends_it_with_is_raised() -> None:
    def refuse(stream: Stream, _: pb.MemberRequest) -> None:
        stream.fail(MemberFenced("somebody else has its place", member="b"))

    async with talking(refuse) as (conversation, _):
        await conversation.send(pb.MemberRequest())
        with pytest.raises(MemberFenced, match="somebody else") as caught:
            await conversation.receive()

    assert caught.value.details == {"member": "b"}


async def test_an_end_without_an_error_is_none() -> None:
    async with talking(lambda stream, _: stream.finish()) as (conversation, _):
        await conversation.send(pb.MemberRequest())
        assert await conversation.receive() is None
        with pytest.raises(ConnectionLost, match="ended the stream"):
            await conversation.send(pb.MemberRequest())


async def test_the_server_hears_that_it_was_closed() -> None:
    async with talking(echo) as (conversation, closed):
        await conversation.send(pb.MemberRequest())
        await conversation.receive()
        conversation.close()
        await closed.wait()


async def test_a_server_without_the_method_says_so() -> None:
    async with talking(echo, "JoinNothing") as (conversation, _):
        with pytest.raises(Unsupported):
            await conversation.receive()


async def test_a_server_that_is_not_there_is_named() -> None:
    connections = GrpcConnections()
    conversation = connections.to("127.0.0.1:1").converse(
        BROKER + "JoinGroup", pb.MemberRequest, pb.MemberEvent
    )
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        await conversation.receive()
    await connections.close()
