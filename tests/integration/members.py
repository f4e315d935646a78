"""Members of groups by bare calls: one stream each, and what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.errors_wire import from_rpc_error
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .whole_broker import EOF, PATH, TOPIC, Peer

GROUP = "g"


def join_of(member_id: str, **fields: Any) -> pb.Join:
    """Return the join of MEMBER_ID, that reads TOPIC."""
    given: dict[str, Any] = {
        "group": GROUP,
        "member_id": member_id,
        "subscriptions": [pb.Subscription(topic=TOPIC)],
        "strategy": "average",
        "kind": "push",
    }
    return pb.Join(**{**given, **fields})


def held(*numbers: int, broker: str = "broker-a") -> list[pb.HeldQueue]:
    """Return queues of TOPIC by their numbers."""
    return [pb.HeldQueue(topic=TOPIC, broker_name=broker, queue=number) for number in numbers]


def plan_of(generation: int, **shares: Sequence[int]) -> pb.MemberRequest:
    """Return a plan: the numbers of the queues of TOPIC by member_id."""
    return pb.MemberRequest(
        plan=pb.Plan(
            generation=generation,
            shares=[pb.Share(member_id=name, queues=held(*of)) for name, of in shares.items()],
        )
    )


class Member:
    """One member's stream."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def say(self, **what: Any) -> None:
        await self._call.write(pb.MemberRequest(**what))

    async def send(self, message: pb.MemberRequest) -> None:
        await self._call.write(message)

    async def hear(self) -> pb.MemberEvent:
        """Return what it is told next; raise what ends the stream."""
        try:
            async with asyncio.timeout(10):
                event: Any = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        assert event is not EOF, "the stream is over"
        return event  # type: ignore[no-any-return]

    async def members(self) -> pb.Members:
        event = await self.hear()
        assert event.WhichOneof("what") == "members", event
        return event.members

    async def assigned(self) -> tuple[int, list[int]]:
        """Return generation and numbers of the queues that it is assigned next."""
        event = await self.hear()
        assert event.WhichOneof("what") == "assigned", event
        return event.assigned.generation, [queue.queue for queue in event.assigned.queues]

    async def fate(self) -> PocketMQError | None:
        """Return the error with which the stream ends; None: it ends well."""
        try:
            async with asyncio.timeout(10):
                while await self._call.read() is not EOF:
                    pass
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
        return None

    def cut(self) -> None:
        """Have the stream be lost."""
        self._call.cancel()


@asynccontextmanager
async def member(peer: Peer, join: pb.Join) -> AsyncIterator[Member]:
    """Join with JOIN."""
    call = peer.channel.stream_stream(
        PATH + "JoinGroup", pb.MemberRequest.SerializeToString, pb.MemberEvent.FromString
    )()
    one = Member(call)
    await one.say(join=join)
    try:
        yield one
    finally:
        call.cancel()


async def lease(
    peer: Peer, member_id: str, *queues: int, tokens: Sequence[int] = (), **fields: Any
) -> list[tuple[int, str]]:
    """Ask for QUEUES of TOPIC; return (token, holder) of each."""
    request = pb.LeaseRequest(
        group=GROUP,
        member_id=member_id,
        queues=[
            pb.QueueLease(topic=TOPIC, queue=queue, token=tokens[at] if tokens else 0)
            for at, queue in enumerate(queues)
        ],
        **fields,
    )
    reply = await peer.ask("LeaseQueues", request, pb.LeaseReply)
    return [(one.token, one.holder) for one in reply.queues]


async def release(peer: Peer, member_id: str, queue: int, token: int) -> None:
    queues = [pb.QueueLease(topic=TOPIC, queue=queue, token=token)]
    request = pb.ReleaseRequest(group=GROUP, member_id=member_id, queues=queues)
    await peer.ask("ReleaseQueues", request, pb.ReleaseReply)


async def commit(peer: Peer, offset: int, *, lease: int = 0, force: bool = False) -> None:
    one = pb.GroupOffset(topic=TOPIC, queue=0, offset=offset, lease=lease)
    request = pb.CommitOffsetsRequest(group=GROUP, offsets=[one], force=force)
    await peer.ask("CommitOffsets", request, pb.CommitOffsetsReply)


async def state(peer: Peer) -> pb.GroupStateReply:
    reply: pb.GroupStateReply = await peer.ask(
        "GroupState", pb.GroupStateRequest(group=GROUP), pb.GroupStateReply
    )
    return reply
