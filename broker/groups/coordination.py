"""The group coordinator, leases and fence of one broker: methods for members, and the state of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ...proto.access.listing import SeenNames
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import Call, MethodTable, bidi, service, unary
from ...proto.topics import check_group
from ..consume_stats import ConsumeStats
from ..topics import Topics
from .coordinator import Coordinator
from .hidden_topics import without_hidden_topics
from .kept_leases import LeaseStore
from .lease_guard import LeaseGuard
from .lease_table import Lease, QueueKey
from .leases import LeaseService
from .membership import GroupMembership


class OfficialMembers(Protocol):
    """The official clients of a broker."""

    def of_group(self, group: str) -> Sequence[pb.Member]:
        """Return the official clients that consume for GROUP."""
        ...

    def grace_left_ms(self, group: str) -> int | None:
        """Return the milliseconds until only the newest filter of GROUP is served; None: all clients have the same
        filter.
        """
        ...


class Coordination:
    """The coordinator, leases and fence of one broker. The event loop owns it."""

    def __init__(
        self,
        topics: Topics,
        coordinator: Coordinator,
        leases: LeaseService,
        kept: LeaseStore,
        lease_guard: LeaseGuard,
        consume_stats: ConsumeStats,
        official: OfficialMembers,
    ) -> None:
        self.coordinator = coordinator
        self.leases = leases
        self.lease_guard = lease_guard
        self._kept = kept
        self.consume_stats = consume_stats
        self._official = official
        self._topics = topics
        self._shapes = {name: self._shape(name) for name in topics.names()}

    def held(self) -> Iterator[tuple[str, QueueKey, Lease]]:
        """Yield (group, queue, lease) of each queue that has an owner."""
        return self._kept.table.live(self._kept.now_ms())

    def holder(self, group: str, key: QueueKey) -> Lease | None:
        """Return the lease of the owner of KEY for GROUP; None if there is no owner."""
        return self._kept.holder(group, key)

    def methods(self) -> MethodTable:
        """Return the methods for members, and the one that reports the state of a group."""
        own = service(
            "pocketmq.v1.Broker",
            {
                "JoinGroup": bidi(pb.MemberRequest, pb.MemberEvent, self.coordinator.stream),
                "GroupState": unary(pb.GroupStateRequest, pb.GroupStateReply, self.state),
            },
        )
        return own | self.leases.methods()

    def close(self) -> None:
        """Stop sending events to members, and store the leases."""
        self.coordinator.close()
        self._kept.close()

    def forget_group(self, group: str) -> None:
        """End the leases of GROUP, which was deleted, and forget its statistics."""
        self.leases.forget_group(group)
        self.consume_stats.forget_group(group)
        self.coordinator.forget_group(group)

    def forget_topic(self, topic: str) -> None:
        """End the leases of TOPIC's queues; the topic was deleted."""
        self.leases.forget_topic(topic)
        self.consume_stats.forget_topic(topic)

    def _shape(self, name: str) -> tuple[int, int] | None:
        """Return the properties of topic NAME that matter to its readers; None if there is no such topic."""
        topic = self._topics.find(name)
        return None if topic is None else (topic.read_queues, topic.permission)

    def topic_changed(self, name: str) -> None:
        """Rebalance the groups that consume topic NAME if its queues or its permission changed."""
        before, now = self._shapes.pop(name, None), self._shape(name)
        if now is not None:
            self._shapes[name] = now
        if before != now:
            self.coordinator.topics_changed({name})

    #     -

    def topics_of(self, group: str) -> set[str]:
        """Return the topics to which members and official clients of GROUP subscribe at present."""
        membership = self.coordinator.get(group)
        members = () if membership is None else membership.members.values()
        found = set[str]().union(*(one.subscriptions.topics for one in members))
        for client in self._official.of_group(group):
            found.update(one.topic for one in client.subscriptions)
        return found

    def state(self, request: pb.GroupStateRequest, call: Call) -> pb.GroupStateReply:
        """Answer the state of a group: members and assignment if this broker coordinates it, leases of its queues.

        Topics that the user may not see are left out.
        """
        name = check_group(request.group)
        reply = pb.GroupStateReply(
            leases=self.leases.of_group(name),
            filtered=self.consume_stats.of_group(name),
            official=self._official.of_group(name),
        )
        found = (self.coordinator.grace_left_ms(name), self._official.grace_left_ms(name))
        if left := [one for one in found if one is not None]:
            reply.grace_left_ms = min(left)
        membership = self.coordinator.get(name)
        if membership is not None:
            _add_membership(reply, membership)
        return without_hidden_topics(reply, SeenNames(call))


def _add_membership(reply: pb.GroupStateReply, membership: GroupMembership) -> None:
    """Add to REPLY the members and the assignment of a group that this broker coordinates."""
    reply.generation = membership.generation
    reply.leader = membership.leader
    reply.strategy = membership.strategy
    reply.each_for_itself = membership.each_for_itself
    reply.members.extend(membership.everyone())
    reply.rebalance_count = membership.rebalance_count
    for member_id, queues in (membership.shares or {}).items():
        reply.shares.add(member_id=member_id, queues=queues)
