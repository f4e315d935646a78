"""One group at its coordinator: its membership, the streams of its members, and its generations.

    something changes ─► `schedule` ─ a delayed join ─► a generation begins: Members to each member
    the leader's Plan ─► `plan` ─► Assigned to each member

A leader that does not answer within its session is skipped, at once if it is unreachable and other members are
reachable. The list of members goes to the leader, or to all members if each allocates for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import cache, partial
from typing import Final, Protocol

from ...proto.errors import InvalidArgument, MemberFenced, Overloaded, PocketMQError
from ...proto.errors_wire import to_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import retry_topic
from ..config import BrokerConfig
from ..timing.purgatory import Purgatory, WatchedOperation
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from .hidden_topics import seen_member
from .member_checks import check_plan
from .membership import GroupMembership, JoinedMember

logger = logging.getLogger(__name__)

#: Limit of unsent bytes per member; a member that reads too slowly loses its stream.
_QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Faults of one assignment that are reported.
_FAULTS_TOLD_MAX: Final = 3


class MemberConnection(Protocol):
    """The stream of a member."""

    @property
    def queued_bytes(self) -> int:
        """The number of bytes that are not sent yet."""
        ...

    def sees(self, topic: str) -> bool:
        """Return whether the user of the stream may see TOPIC."""
        ...

    def send(self, event: pb.MemberEvent) -> None:
        """Send EVENT."""
        ...

    def end(self, error: PocketMQError | None) -> None:
        """End the stream, with ERROR or normally."""
        ...


class _DelayedJoin:
    """The wait for further members that join the same generation: an operation of the purgatory.

    It ends group_rebalance_delay_ms after the first change. In a new group (its members start, or return to a restarted
    coordinator), each further change prolongs it, up to group_initial_rebalance_max_ms.
    """

    __slots__ = ("_delay_ms", "_ends_ms", "_group", "_last_ms", "_timers")

    def __init__(self, group: Group, timers: Timers, delay_ms: int, most_ms: int) -> None:
        self._group = group
        self._timers = timers
        self._delay_ms = delay_ms
        self._last_ms = timers.now_ms()
        self._ends_ms = self._last_ms + most_ms

    @property
    def due_ms(self) -> int:
        """When the generation begins if nothing else changes."""
        return min(self._last_ms + self._delay_ms, self._ends_ms)

    def changed(self) -> None:
        """Record a further change."""
        self._last_ms = self._timers.now_ms()

    def try_complete(self) -> bool:
        """Complete without a generation if the group has no members."""
        return self._group.cancel_if_empty()

    def on_deadline(self) -> None:
        self._group.begin_after_delay(self)


class Group:
    """One group: its membership, and the streams to its members. JOINS holds delayed joins.

    Its first generation is above FROM_GENERATION.
    """

    def __init__(
        self,
        name: str,
        config: BrokerConfig,
        timers: Timers,
        joins: Purgatory,
        from_generation: int = 0,
    ) -> None:
        self.name = name
        self.membership = GroupMembership(name, from_generation)
        self._config = config
        self._timers = timers
        self._seats: dict[str, MemberConnection] = {}
        self._joins = joins
        #: The delayed join before the next generation; None: nothing has changed.
        self._joining: _DelayedJoin | None = None
        self._watched: WatchedOperation | None = None
        #: The timer that ends the wait for a leader's assignment, and that generation and leader.
        self._leader_silent: Timer | None = None
        self._awaited = (0, "")

    def is_reachable(self, member_id: str) -> bool:
        """Return whether MEMBER_ID has an open stream."""
        return member_id in self._seats

    def sees(self, member_id: str, topic: str) -> bool:
        """Return whether MEMBER_ID may see TOPIC. True for its own topics, and for all topics if it has no stream."""
        member, seat = self.membership.members.get(member_id), self._seats.get(member_id)
        is_own = member is not None and topic in member.subscriptions.topics
        return is_own or topic == retry_topic(self.name) or seat is None or seat.sees(topic)

    def close(self) -> None:
        """Stop the timers."""
        if self._watched is not None:
            self._watched.cancel()
        if self._leader_silent is not None:
            self._timers.cancel(self._leader_silent)

    def replace_member(self, before: JoinedMember, member: JoinedMember) -> None:
        """Let MEMBER take the place of BEFORE, which has the same member_id or the same instance."""
        self.membership.replace(before, member)
        if before.member_id != member.member_id:
            logger.info(
                "member replaced group=%s instance=%s member=%s by=%s",
                self.name,
                member.instance_id,
                before.member_id,
                member.member_id,
            )
            seat = self._seats.pop(before.member_id, None)
            if seat is not None:
                seat.end(replaced(before.member_id, member.instance_id, self.name))

    def seat(self, seat: MemberConnection, member: JoinedMember) -> None:
        """Use the stream SEAT for MEMBER, and send it the present assignment."""
        other, self._seats[member.member_id] = self._seats.get(member.member_id), seat
        if other is not None and other is not seat:
            other.end(
                MemberFenced(
                    f"member {member.member_id!r} of group {self.name!r} has opened another stream",
                    group=self.name,
                    member=member.member_id,
                    because="stream",
                )
            )
        if self._joining is None and self.membership.includes(member.member_id):
            self._tell_members(member.member_id)
            self._tell_assigned(member.member_id)
            self._await_plan()

    def end_stream(self, member_id: str, error: PocketMQError | None) -> None:
        """End the stream of MEMBER_ID, if it has one, with ERROR or normally."""
        seat = self._seats.pop(member_id, None)
        if seat is not None:
            seat.end(error)
            self._await_plan()

    def stream_ended(self, seat: MemberConnection, member_id: str) -> None:
        """Record that the stream SEAT of MEMBER_ID has ended."""
        if self._seats.get(member_id) is seat:
            del self._seats[member_id]
            self._await_plan()

    def tell(self, member_id: str, event: pb.MemberEvent) -> None:
        """Send EVENT to MEMBER_ID if it has a stream."""
        seat = self._seats.get(member_id)
        if seat is None:
            return
        if seat.queued_bytes > _QUEUED_BYTES_MAX:
            self.end_stream(
                member_id,
                Overloaded(
                    f"{seat.queued_bytes} bytes are unsent to member {member_id!r}, the limit is"
                    f" {_QUEUED_BYTES_MAX}: read the events of the coordinator faster",
                    limit=_QUEUED_BYTES_MAX,
                    value=seat.queued_bytes,
                ),
            )
            return
        seat.send(event)

    def schedule(self) -> None:
        """Schedule a new generation; it includes all changes until it begins."""
        if self._joining is not None:
            if self._is_new():
                self._joining.changed()
            self._joins.notify(self.name)
            return
        if not self.membership.members:
            return
        delay_ms = most_ms = self._config.group_rebalance_delay_ms
        if self._is_new():
            most_ms = max(delay_ms, self._config.group_initial_rebalance_max_ms)
        self._joining = _DelayedJoin(self, self._timers, delay_ms, most_ms)
        self._watch(self._joining)

    def _is_new(self) -> bool:
        """Return whether no member has had an assignment here yet."""
        return not any(one.since for one in self.membership.members.values())

    def _watch(self, joining: _DelayedJoin) -> None:
        self._watched = self._joins.watch(joining, self.name, joining.due_ms)

    def cancel_if_empty(self) -> bool:
        """Cancel the delayed join if the group has no members; return whether it is cancelled."""
        if self.membership.members:
            return False
        self._joining = self._watched = None
        return True

    def begin_after_delay(self, joining: _DelayedJoin) -> None:
        """Start the generation of JOINING, or prolong the wait because another member joined meanwhile."""
        if joining.due_ms > self._timers.now_ms():
            self._watch(joining)
        else:
            self._begin()

    def _begin(self) -> None:
        self._joining = self._watched = None
        membership = self.membership
        membership.begin(self._possible_leaders())
        logger.info(
            "generation started group=%s generation=%d members=%d leader=%s",
            self.name,
            membership.generation,
            len(membership.members),
            membership.leader,
        )
        for member_id in list(self._seats):
            self._tell_members(member_id)
        self._await_plan()

    def _possible_leaders(self) -> Collection[str]:
        """Return the reachable members who may see all topics of the group, or all reachable ones if there are none."""
        topics = set[str]().union(
            *(one.subscriptions.topics for one in self.membership.members.values())
        )
        able = [name for name in self._seats if all(self.sees(name, topic) for topic in topics)]
        return able or self._seats.keys()

    def _tell_members(self, member_id: str) -> None:
        membership = self.membership
        sees = cache(partial(self.sees, member_id))
        plans = membership.each_for_itself or member_id == membership.leader
        self.tell(
            member_id,
            pb.MemberEvent(
                members=pb.Members(
                    generation=membership.generation,
                    leader=membership.leader,
                    members=[seen_member(one, sees) for one in membership.everyone()]
                    if plans
                    else (),
                    strategy=membership.strategy,
                    each_for_itself=membership.each_for_itself,
                )
            ),
        )

    def _tell_assigned(self, member_id: str) -> None:
        membership = self.membership
        if membership.shares is None:
            return
        queues = membership.shares.get(member_id, ())
        assigned = pb.Assigned(generation=membership.generation, queues=queues)
        self.tell(member_id, pb.MemberEvent(assigned=assigned))

    def _await_plan(self) -> None:
        """Skip the leader if it does not answer in time, or at once if it is unreachable and another member is
        reachable.
        """
        membership = self.membership
        is_waiting = membership.is_waiting_for_plan and bool(self._seats)
        leader = membership.members.get(membership.leader)
        can_answer = leader is not None and leader.member_id in self._seats
        awaited = (membership.generation, membership.leader)
        if self._leader_silent is not None:
            if is_waiting and can_answer and awaited == self._awaited:
                return
            self._timers.cancel(self._leader_silent)
            self._leader_silent = None
        if is_waiting and leader is not None and can_answer:
            self._awaited = awaited
            self._leader_silent = self._timers.after(
                leader.session_timeout_ms, partial(self._skip_leader, leader)
            )
        elif is_waiting:
            self.schedule()

    def _skip_leader(self, leader: JoinedMember) -> None:
        self._leader_silent = None
        leader.did_not_answer = True
        logger.warning(
            "leader skipped, it did not answer group=%s member=%s", self.name, leader.member_id
        )
        self.schedule()

    def plan(self, member_id: str, plan: pb.Plan) -> None:
        """Store the PLAN of MEMBER_ID if it leads the present generation, and send each member its assignment."""
        check_plan(plan)
        membership = self.membership
        if member_id != membership.leader or plan.generation != membership.generation:
            logger.debug("outdated plan ignored group=%s generation=%d", self.name, plan.generation)
            return
        if not membership.is_waiting_for_plan:
            return
        wrong = membership.keep_plan(plan.shares)
        self._await_plan()
        if wrong:
            shown = "; ".join(wrong[:_FAULTS_TOLD_MAX])
            logger.warning(
                "plan has faults group=%s count=%d first=%s", self.name, len(wrong), shown
            )
            error = InvalidArgument(f"the plan has {len(wrong)} faults: {shown}", field="plan")
            self.tell(member_id, pb.MemberEvent(warning=to_wire(error)))
        for name in list(self._seats):
            if membership.includes(name):
                self._tell_assigned(name)

    def replan(self, member_id: str, replan: pb.Replan) -> None:
        """Start a new generation at the request of the leader."""
        membership = self.membership
        if member_id == membership.leader and replan.generation == membership.generation:
            self.schedule()


def replaced(member_id: str, instance_id: str, group: str) -> MemberFenced:
    """Return the error for MEMBER_ID, whose place in GROUP a new member of INSTANCE_ID has taken."""
    return MemberFenced(
        f"another member of group {group!r} joined as instance {instance_id!r} and replaced member"
        f" {member_id!r}: run only one process per instance",
        group=group,
        member=member_id,
        instance=instance_id,
        because="instance",
    )
