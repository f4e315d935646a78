"""Groups that share queues, put together: the coordinator, the leases, the fence, and what people are told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import Call, MethodTable, bidi, service, unary
from ...proto.topics import check_group
from ..accounts.accounts import Accounts
from ..topics import Topics
from .coordinator import Coordinator
from .leases import Fence, KeptLeases, Lease, QueueKey
from .queue_leases import QueueLeases

#: Tells which official clients consume for a group.
OfficialMembers = Callable[[str], Sequence[pb.Member]]


class Coordination:
    """Coordinator, leases and fence of one broker. The event loop owns it."""

    def __init__(
        self,
        topics: Topics,
        coordinator: Coordinator,
        leases: QueueLeases,
        kept: KeptLeases,
        fence: Fence,
        accounts: Accounts,
        official: OfficialMembers,
    ) -> None:
        self.coordinator = coordinator
        self.leases = leases
        self.fence = fence
        self._kept = kept
        self.accounts = accounts
        self._official = official
        self._topics = topics
        self._shapes = {name: self._shape(name) for name in topics.names()}
        topics.on_change.append(self._topic_changed)

    def held(self) -> Iterator[tuple[str, QueueKey, Lease]]:
        """Yield (group, queue, lease) of each queue that somebody holds."""
        return self._kept.table.live(self._kept.now_ms())

    def holder(self, group: str, key: QueueKey) -> Lease | None:
        """Return the lease by which somebody holds KEY for GROUP."""
        return self._kept.holder(group, key)

    def methods(self) -> MethodTable:
        """Return the methods of members, and the one that tells of them."""
        own = service(
            "pocketmq.v1.Broker",
            {
                "JoinGroup": bidi(pb.MemberRequest, pb.MemberEvent, self.coordinator.stream),
                "GroupState": unary(pb.GroupStateRequest, pb.GroupStateReply, self.state),
            },
        )
        return own | self.leases.methods()

    def start(self) -> None:
        """Begin to keep the leases."""
        self._kept.start()

    def close(self) -> None:
        """Tell nobody anything any more, and write the leases down."""
        self.coordinator.close()
        self._kept.save()

    def forget_group(self, group: str) -> None:
        """Let go of what GROUP, which was deleted, holds, and forget what became of it."""
        self.leases.forget_group(group)
        self.accounts.forget_group(group)
        self.coordinator.forget_group(group)

    def forget_topic(self, topic: str) -> None:
        """Let go of the queues of TOPIC, which was deleted."""
        self.leases.forget_topic(topic)
        self.accounts.forget_topic(topic)

    # --- topics

    def _shape(self, name: str) -> tuple[int, int] | None:
        """Return what matters of topic NAME for who reads it; None if there is none."""
        topic = self._topics.find(name)
        return None if topic is None else (topic.read_queues, topic.permission)

    def _topic_changed(self, name: str) -> None:
        before, now = self._shapes.pop(name, None), self._shape(name)
        if now is not None:
            self._shapes[name] = now
        if before != now:
            self.coordinator.topics_changed({name})

    # --- telling

    def state(self, request: pb.GroupStateRequest, call: Call) -> pb.GroupStateReply:
        """Answer what this broker knows of a group: members and plan if it coordinates it, leases of its queues."""
        name = check_group(request.group)
        reply = pb.GroupStateReply(
            leases=self.leases.of_group(name),
            filtered=self.accounts.of_group(name),
            official=self._official(name),
        )
        membership = self.coordinator.get(name)
        if membership is None:
            return reply
        reply.generation = membership.generation
        reply.leader = membership.leader
        reply.strategy = membership.strategy
        reply.each_for_itself = membership.each_for_itself
        reply.members.extend(membership.everyone())
        reply.rebalance_count = membership.rebalance_count
        for member_id, queues in (membership.shares or {}).items():
            reply.shares.add(member_id=member_id, queues=queues)
        return reply
