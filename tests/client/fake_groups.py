"""What a fake broker knows of groups that share queues: members, plans, leases. Few rules: each change is told at once.

The real ones stand in broker/groups; tests/simulation runs them. Here a test sees every step, and can do wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pocketmq.client.tasks import Alarm, TaskGroup
from pocketmq.proto.clock import Clock, VirtualClock
from pocketmq.proto.errors import LeaseLost, PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import Stream

LEASE_MS = 30_000
Key = tuple[str, str, int]


@dataclass
class FakeLease:
    """Who holds a queue."""

    member_id: str
    token: int
    ends_ms: int = 1 << 62
    lease_ms: int = LEASE_MS


@dataclass
class FakeGroups:
    """Members and leases of all groups, at one broker."""

    members: dict[str, dict[str, pb.Member]] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    each_for_itself: bool = False
    strategy: str = ""
    leases: dict[Key, FakeLease] = field(default_factory=dict)
    #: What members said, in order.
    joins: list[pb.Join] = field(default_factory=list)
    heartbeats: list[pb.Heartbeat] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    requests: list[pb.LeaseRequest] = field(default_factory=list)
    #: Topic and number of queues that the broker has no more; leases of them are not renewed.
    removed_queues: set[tuple[str, int]] = field(default_factory=set)
    #: What the next joins meet.
    refusals: list[PocketMQError] = field(default_factory=list)
    tokens: Any = field(default_factory=lambda: count(1))
    waiting: list[Alarm] = field(default_factory=list)
    clock: Clock = field(default_factory=VirtualClock)

    # ------------------------------------------------------------ members

    def stream(self, stream: Stream) -> FakeSeat:
        return FakeSeat(self, stream)

    def join(self, seat: FakeSeat, join: pb.Join) -> None:
        self.joins.append(join)
        if self.refusals:
            raise self.refusals.pop(0)
        seat.group, seat.member_id = join.group, join.member_id
        self.each_for_itself = join.each_for_itself
        self.strategy = join.strategy
        self.streams[join.member_id] = seat.stream
        self.members.setdefault(join.group, {})[join.member_id] = pb.Member(
            member_id=join.member_id,
            instance_id=join.instance_id,
            subscriptions=join.subscriptions,
            held=join.held,
        )
        self.begin(join.group)

    def begin(self, group: str) -> None:
        """Begin a new generation of GROUP."""
        members = self.members[group]
        generation = self.generations[group] = self.generations.get(group, 0) + 1
        leader = next(iter(members), "")
        for name in members:
            plans = self.each_for_itself or name == leader
            event = pb.Members(
                generation=generation,
                leader=leader,
                members=members.values() if plans else (),
                strategy=self.strategy,
                each_for_itself=self.each_for_itself,
            )
            self.streams[name].send(pb.MemberEvent(members=event))

    def drop(self, member_id: str) -> None:
        """Let MEMBER_ID go, as when its session is over."""
        for group, members in self.members.items():
            if members.pop(member_id, None) and members:
                self.begin(group)

    def plan(self, seat: FakeSeat, plan: pb.Plan) -> None:
        if plan.generation != self.generations[seat.group]:
            return
        for share in plan.shares:
            event = pb.Assigned(generation=plan.generation, queues=share.queues)
            if share.member_id in self.streams:
                self.streams[share.member_id].send(pb.MemberEvent(assigned=event))

    # ------------------------------------------------------------ leases

    async def lease(self, request: pb.LeaseRequest, committed: Callable[[Key], int]) -> Any:
        """Grant what is free; wait where nothing is."""
        self.requests.append(request)
        tasks = TaskGroup()
        deadline_ms = self.clock.now_ms() + request.wait_ms
        while True:
            reply = self._granted(request, committed)
            if self.clock.now_ms() >= deadline_ms or any(queue.token for queue in reply.queues):
                return reply
            ends = [lease.ends_ms for lease in self.leases.values()]
            alarm = Alarm(self.clock, tasks)
            self.waiting.append(alarm)
            await alarm.wait_until(min(deadline_ms, *ends))

    def _granted(self, request: pb.LeaseRequest, committed: Callable[[Key], int]) -> pb.LeaseReply:
        reply = pb.LeaseReply(lease_ms=request.lease_ms or LEASE_MS)
        ends_ms = self.clock.now_ms() + reply.lease_ms
        for row in request.queues:
            key = (request.group, row.topic, row.queue)
            lease = self.leases.get(key)
            answer = reply.queues.add(topic=row.topic, queue=row.queue)
            is_live = lease is not None and lease.ends_ms > self.clock.now_ms()
            is_removed = (row.topic, row.queue) in self.removed_queues
            if (
                lease is not None
                and is_live
                and (is_removed or lease.member_id != request.member_id)
            ):
                answer.holder = lease.member_id
                continue
            if row.token and (lease is None or lease.token != row.token):
                continue
            token = row.token or next(self.tokens)
            self.leases[key] = FakeLease(request.member_id, token, ends_ms, reply.lease_ms)
            answer.token, answer.committed = token, committed(key)
        return reply

    def release(self, request: pb.ReleaseRequest, _: Any) -> pb.ReleaseReply:
        for row in request.queues:
            key = (request.group, row.topic, row.queue)
            lease = self.leases.get(key)
            if lease is not None and lease.token == row.token:
                del self.leases[key]
        waiting, self.waiting = self.waiting, []
        for alarm in waiting:
            alarm.ring()
        return pb.ReleaseReply()

    def renew(self, key: Key, token: int) -> None:
        """Renew the lease of a queue, as a fetch does. Raises LeaseLost."""
        self.check(key, token)
        lease = self.leases[key]
        lease.ends_ms = self.clock.now_ms() + lease.lease_ms

    def check(self, key: Key, token: int) -> None:
        """Raise LeaseLost unless TOKEN is the one by which the queue is held."""
        lease = self.leases.get(key)
        held = 0 if lease is None or lease.ends_ms <= self.clock.now_ms() else lease.token
        if token != held:
            raise LeaseLost(f"{key} is held under {held}, not {token}", topic=key[1], queue=key[2])


class FakeSeat:
    """The receiving half of a member's stream."""

    def __init__(self, groups: FakeGroups, stream: Stream) -> None:
        self._groups = groups
        self.stream = stream
        self.group = self.member_id = ""

    def on_message(self, message: pb.MemberRequest) -> None:
        what = message.WhichOneof("what")
        groups = self._groups
        if what == "join":
            groups.join(self, message.join)
        elif what == "heartbeat":
            groups.heartbeats.append(message.heartbeat)
            if message.heartbeat.held_changed and self.member_id in groups.members[self.group]:
                member = groups.members[self.group][self.member_id]
                del member.held[:]
                member.held.extend(message.heartbeat.held)
        elif what == "plan":
            groups.plan(self, message.plan)
        elif what == "replan":
            groups.begin(self.group)
        elif what == "leave":
            groups.left.append(self.member_id)
            self.stream.finish()
            groups.streams.pop(self.member_id, None)
            groups.drop(self.member_id)

    def on_end(self) -> None:
        self.stream.finish()

    def on_close(self) -> None:
        if self._groups.streams.get(self.member_id) is self.stream:
            del self._groups.streams[self.member_id]
            self._groups.drop(self.member_id)
