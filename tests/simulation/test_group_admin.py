"""Groups as an admin sees and moves them, on two brokers: members, positions, lag and rates, offsets set elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf.message import Message as Message_

from pocketmq.client import AsyncAdmin, AsyncProducer, Message, OffsetTarget, Queue
from pocketmq.client.connections import BROKER
from pocketmq.proto.errors import (
    GroupInUse,
    GroupNotFound,
    InvalidArgument,
    LeaseLost,
    QueueNotFound,
    TopicNotFound,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .cluster import Cluster, cluster_of
from .virtual_loop import run

TOPIC = "orders"
GROUP = "billing"
A0, A1, B0, B1 = (Queue(TOPIC, broker, n) for broker in ("broker-a", "broker-b") for n in (0, 1))
SENT = 10


@dataclass
class Scene:
    """A topic of two queues on each of two brokers, with messages, an admin, and a member of the group."""

    cluster: Cluster
    admin: AsyncAdmin

    async def send(self, count: int = SENT) -> None:
        """Send COUNT messages to each queue."""
        client = self.cluster.client("producer")
        async with AsyncProducer(
            self.cluster.addresses, clock=client.machine.clock, connections=client.connections()
        ) as producer:
            for queue in (A0, A1, B0, B1):
                for number in range(count):
                    await producer.send(Message(TOPIC, b"%d" % number, queue=queue))

    async def ask(
        self, broker: int, method: str, request: Message_, reply: type[Message_]
    ) -> Message_:
        client = self.cluster.client("member")
        connections = client.connections()
        try:
            return await connections.to(self.cluster.brokers[broker].address).call(
                BROKER + method, request, reply, 5_000
            )
        finally:
            await connections.close()

    async def lease(self, queue: Queue, member_id: str = "m") -> int:
        """Hold QUEUE as MEMBER_ID; return the token."""
        request = pb.LeaseRequest(
            group=GROUP,
            member_id=member_id,
            queues=[pb.QueueLease(topic=queue.topic, queue=queue.number)],
        )
        broker = ("broker-a", "broker-b").index(queue.broker)
        reply = await self.ask(broker, "LeaseQueues", request, pb.LeaseReply)
        assert isinstance(reply, pb.LeaseReply)
        return reply.queues[0].token

    async def commit(self, queue: Queue, offset: int, token: int) -> None:
        one = pb.GroupOffset(topic=queue.topic, queue=queue.number, offset=offset, lease=token)
        broker = ("broker-a", "broker-b").index(queue.broker)
        request = pb.CommitOffsetsRequest(group=GROUP, offsets=[one])
        await self.ask(broker, "CommitOffsets", request, pb.CommitOffsetsReply)

    @asynccontextmanager
    async def member(self) -> AsyncIterator[None]:
        """Be the only member, and have planned all of queue 0."""
        client = self.cluster.client("member")
        connections = client.connections()
        stream = connections.to(self.cluster.brokers[1].address).converse(
            BROKER + "JoinGroup", pb.MemberRequest, pb.MemberEvent
        )
        join = pb.Join(
            group=GROUP,
            member_id="m",
            kind="push",
            strategy="sticky",
            subscriptions=[
                pb.Subscription(
                    topic=TOPIC, filter=pb.Filter(kind=pb.Filter.TAG, expression="a||b")
                ),
                pb.Subscription(topic="%RETRY%billing"),
            ],
        )
        await stream.send(pb.MemberRequest(join=join))
        told = await stream.receive()
        assert told is not None
        held = [
            pb.HeldQueue(topic=TOPIC, broker_name=broker, queue=0)
            for broker in ("broker-a", "broker-b")
        ]
        share = pb.Share(member_id="m", queues=held)
        plan = pb.Plan(generation=told.members.generation, shares=[share])
        await stream.send(pb.MemberRequest(plan=plan))
        await stream.receive()
        yield
        stream.close()
        await connections.close()


def play(folder: Path, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with cluster_of(folder, seed=1) as cluster, cluster.admin() as admin:
            await admin.create_topic(TOPIC, queues=2)
            scene = Scene(cluster, admin)
            await scene.send()
            await admin.create_group(GROUP)
            await scenario(scene)

    run(whole())


def test_a_group_is_described_with_members_leases_and_positions(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.admin.set_group_offsets(GROUP, {A0: 4, B1: 10})
        await scene.cluster.sleep(60_000)
        async with scene.member():
            await scene.lease(A0)
            found = await scene.admin.describe_group(GROUP)

        assert (found.coordinator, found.generation, found.leader) == ("broker-b", 1, "m")
        assert (found.strategy, found.rebalance_count, found.subscription_check) == (
            "sticky",
            1,
            "grace",
        )
        (member,) = found.members
        assert member.is_leader
        assert member.subscriptions == ("orders: a||b", "%RETRY%billing")
        assert member.queues == (A0, B0)
        by_queue = {one.queue: one for one in found.queues}
        assert list(by_queue) == [A0, A1, B0, B1]
        assert [one.lag for one in found.queues] == [6, 10, 10, 0]
        assert found.lag == 26
        assert [one.offset for one in found.queues] == [4, -1, -1, 10]
        assert [one.owner for one in found.queues] == ["m", "", "", ""]
        assert [one.assigned_to for one in found.queues] == ["m", "", "m", ""]
        assert by_queue[B1].oldest_unread_ms == 0
        assert 60_000 <= by_queue[A1].oldest_unread_ms <= by_queue[A0].oldest_unread_ms < 61_000
        assert found.oldest_unread_ms == by_queue[A0].oldest_unread_ms
        assert found.catches_up_s is None

    play(tmp_path, scenario)


def test_two_looks_tell_how_fast_a_group_is(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        async def works() -> None:
            await scene.cluster.sleep(1_000)
            token = await scene.lease(A0)
            await scene.commit(A0, 8, token)
            await scene.commit(B0, 10, await scene.lease(B0))
            await scene.commit(A1, 10, await scene.lease(A1))

        working = asyncio.ensure_future(works())
        found = await scene.admin.describe_group(GROUP, topic=TOPIC, interval_ms=4_000)
        await working

        rates = [one.processed_per_s for one in found.queues]
        assert rates == pytest.approx([2.0, 2.5, 2.5, 0.0], rel=0.05)
        assert found.processed_per_s == pytest.approx(7.0, rel=0.05)
        assert found.arrived_per_s == 0
        assert found.queues[0].catches_up_s == pytest.approx(1.0, rel=0.05)
        assert found.queues[1].catches_up_s == 0
        assert found.catches_up_s is None, "one queue stands still"

    play(tmp_path, scenario)


def test_a_group_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        with pytest.raises(GroupNotFound):
            await scene.admin.describe_group("nobody")
        with pytest.raises(GroupNotFound):
            await scene.admin.update_group("nobody", subscription_check="warn")
        with pytest.raises(TopicNotFound):
            await scene.admin.describe_group(GROUP, topic="nothing")
        with pytest.raises(InvalidArgument):
            await scene.admin.describe_group(GROUP, interval_ms=-1)

    play(tmp_path, scenario)


def test_the_check_of_subscriptions_is_set_on_all_brokers(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        made = await scene.admin.update_group(GROUP, subscription_check="warn")

        assert made.subscription_check == "warn"
        for broker in scene.cluster.brokers:
            assert broker.broker._running is not None
            attributes = broker.broker._running.parts.groups.get(GROUP).attributes
            assert list(attributes.values()) == ["warn"]
        with pytest.raises(InvalidArgument, match="'warn' or 'refuse'"):
            await scene.admin.update_group(GROUP, subscription_check="perhaps")

    play(tmp_path, scenario)


def test_offsets_are_set_to_first_last_an_offset_and_a_time(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        admin = scene.admin
        await admin.set_group_offsets(GROUP, {A0: 4, A1: 4, B0: 4})
        await scene.cluster.sleep(60_000)
        now_ms = scene.cluster.clock.now_ms()
        await scene.send(3)

        preview = await admin.reset_offsets(GROUP, TOPIC, OffsetTarget(first=True), dry_run=True)
        assert [one.repeated for one in preview] == [4, 4, 4, 0]
        assert [one.skipped for one in preview] == [0, 0, 0, 0]
        assert [one.offset for one in await admin.group_offsets(GROUP, TOPIC)] == [4, 4, 4, -1]

        moves = await admin.reset_offsets(GROUP, TOPIC, OffsetTarget(last=True), queues=[0, A1])
        assert [(one.queue, one.from_offset, one.to_offset, one.skipped) for one in moves] == [
            (A0, 4, 13, 9),
            (A1, 4, 13, 9),
            (B0, 4, 13, 9),
        ]
        await admin.reset_offsets(GROUP, TOPIC, OffsetTarget(time_ms=now_ms), queues=[A0, B1])
        await admin.reset_offsets(GROUP, TOPIC, OffsetTarget(offset=99), queues=[B0])
        await admin.reset_offsets(GROUP, TOPIC, OffsetTarget(offset=7), queues=[A1])

        offsets = {one.queue: one.offset for one in await admin.group_offsets(GROUP, TOPIC)}
        assert offsets == {A0: 10, A1: 7, B0: 13, B1: 10}
        with pytest.raises(QueueNotFound):
            await admin.reset_offsets(GROUP, TOPIC, OffsetTarget(first=True), queues=[5])
        with pytest.raises(TopicNotFound):
            await admin.reset_offsets(GROUP, "nothing", OffsetTarget(first=True))

    play(tmp_path, scenario)


def test_members_that_are_on_keep_a_group_where_it_is_unless_it_is_forced(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        async with scene.member():
            token = await scene.lease(A0)
            await scene.commit(A0, 5, token)
            with pytest.raises(GroupInUse, match=r"connected members: m\."):
                await scene.admin.reset_offsets(GROUP, TOPIC, OffsetTarget(first=True))
            with pytest.raises(LeaseLost):
                await scene.admin.set_group_offsets(GROUP, {A0: 0})
            assert await scene.admin.reset_offsets(
                GROUP, TOPIC, OffsetTarget(first=True), dry_run=True
            )

            await scene.admin.reset_offsets(GROUP, TOPIC, OffsetTarget(first=True), force=True)

            # The member cannot undo it: it has to take the queue anew, and begins there.
            with pytest.raises(LeaseLost):
                await scene.commit(A0, 6, token)
            assert await scene.lease(A0) > token
            positions = await scene.admin.group_offsets(GROUP, TOPIC)
            assert [one.offset for one in positions] == [0, 0, 0, 0]

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "given", [{}, {"first": True, "last": True}, {"offset": -1}, {"time_ms": -5}]
)
def test_a_target_is_one_place(given: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        OffsetTarget(**given)  # type: ignore[arg-type]
