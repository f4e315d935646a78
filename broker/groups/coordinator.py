"""The group coordinator: it accepts members, starts generations, and stores the assignments of leaders.

    a member joins, leaves, times out, or changes its subscription; its topics change; the leader asks for it
        └─ a delayed join, for all changes until its end ─► generation n + 1 begins
             Members to each ─► the leader answers with a Plan ─► Assigned to each

The members choose the broker that coordinates a group. Its decisions are proposals: the broker of a queue decides which
member may read it (leases.py). So two coordinators at once, or one that lost its state in a restart, cost a rebalance,
and never give a queue to two members.

When a stream ends, its member stays in the group until its session times out. Times are the machine's. Nothing survives
a restart: members join again, and generations continue above the latest one that members report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from ...proto.access.policies import to_see_topic
from ...proto.errors import (
    InvalidArgument,
    MemberFenced,
    Overloaded,
    PocketMQError,
    SubscriptionMismatch,
)
from ...proto.errors_wire import to_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import Stream
from ...proto.topics import retry_topic
from ..config import BrokerConfig
from ..consumer_groups import GRACE, REFUSE, WARN, Groups, subscription_check
from ..timing.purgatory import Purgatory
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from .generations import Group, replaced
from .grace import STEPPED_OVER, SUPERSEDED, served_for
from .lease_table import EPOCH_SHIFT
from .member_checks import check_held, member_of, others_member
from .member_subscriptions import SubscriptionsKey, differences, mismatch
from .membership import GroupMembership, JoinedMember

logger = logging.getLogger(__name__)

#: How soon the grace period is checked again in a group that only logs mismatches: its setting may
#: have changed.
_GRACE_SCAN_MS: Final = 60_000


class Coordinator:
    """All groups with members. The event loop owns it."""

    def __init__(
        self,
        config: BrokerConfig,
        groups: Groups,
        timers: Timers,
        check_join: Callable[[str], None] = lambda group: None,
        epoch: int = 0,
    ) -> None:
        """CHECK_JOIN raises GroupInUse for a group that uses pop.

        EPOCH, for a master of a replica set: its generations are higher than those of all masters before.
        """
        self._from_generation = epoch << EPOCH_SHIFT
        self._check_join = check_join
        self._config = config
        self._configs = groups
        self._timers = timers
        self._groups: dict[str, Group] = {}
        self._sessions = Purgatory(timers, limit=lambda: config.members_max + 1)
        self._joins = Purgatory(timers, limit=lambda: config.groups_max + 1)
        #: Timers for the end of grace periods, by group.
        self._graces: dict[str, Timer] = {}
        #: The number of members of all groups.
        self._count = 0

    def __len__(self) -> int:
        """Return the number of members of all groups."""
        return self._count

    def stream(self, stream: Stream) -> MemberStream:
        """Accept a member's stream."""
        return MemberStream(self, stream)

    def get(self, name: str) -> GroupMembership | None:
        """Return group NAME if it ever had a member here."""
        group = self._groups.get(name)
        return group.membership if group is not None else None

    def has_members(self, name: str) -> bool:
        """Return whether group NAME has members."""
        group = self._groups.get(name)
        return group is not None and bool(group.membership.members)

    def read_topics(self) -> Iterator[tuple[str, set[str]]]:
        """Yield each group that has members, and the topics that it reads, including its retry topic."""
        for name, group in self._groups.items():
            if members := group.membership.members.values():
                yield (
                    name,
                    {retry_topic(name)}.union(*(one.subscriptions.topics for one in members)),
                )

    def member_counts(self) -> Iterator[tuple[str, int]]:
        """Yield each group that has members, and their number."""
        for name, group in self._groups.items():
            if group.membership.members:
                yield name, len(group.membership.members)

    def topics_changed(self, topics: set[str]) -> None:
        """Start a new generation of every group that reads one of TOPICS."""
        for group in self._groups.values():
            members = group.membership.members.values()
            if any(topics & one.subscriptions.topics.keys() for one in members) or (
                members and retry_topic(group.name) in topics
            ):
                group.schedule()

    def forget_group(self, name: str) -> None:
        """Forget group NAME, unless it has members."""
        group = self._groups.get(name)
        if group is not None and not group.membership.members:
            group.close()
            del self._groups[name]
            if (grace := self._graces.pop(name, None)) is not None:
                self._timers.cancel(grace)

    def close(self) -> None:
        """Stop all timers and send no more events."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()
        for grace in self._graces.values():
            self._timers.cancel(grace)
        self._graces.clear()

    def join(self, seat: MemberStream, join: pb.Join) -> Group:
        """Add the member of JOIN, or accept it again, with the stream SEAT; return its group."""
        member = member_of(join, seat.peer, self._timers, seat.user)
        self._check_join(join.group)
        config = self._configs.ensure(join.group)
        group = self._groups.get(join.group) or Group(
            join.group, self._config, self._timers, self._joins, self._from_generation
        )
        membership = group.membership
        if membership.is_fenced(member.member_id):
            raise replaced(member.member_id, member.instance_id, join.group)
        before = _before(membership, member)
        if before is None:
            self._check_room(membership)
        sees = partial(_sees, seat, member)
        warned = self._differing(group, member, before, subscription_check(config), sees)
        self._groups[join.group] = group
        membership.note_generation(join.generation)
        if before is None:
            membership.add(member)
            self._count += 1
            logger.info("member joined group=%s member=%s", join.group, member.member_id)
        else:
            self._sessions.notify((group.name, before.member_id))
            group.replace_member(before, member)
        group.seat(seat, member)
        self._watch(group, member)
        if before is None or differences(member.subscriptions, before.subscriptions):
            group.schedule()
        for one, error in warned:
            group.tell(one.member_id, pb.MemberEvent(warning=to_wire(error)))
        self._await_end_of_grace(group)
        return group

    def _check_room(self, membership: GroupMembership) -> None:
        for count, limit, field in (
            (len(membership.members), self._config.group_members_max, "group_members_max"),
            (self._count, self._config.members_max, "members_max"),
        ):
            if count >= limit:
                where = "the group has" if field == "group_members_max" else "the broker has"
                raise Overloaded(
                    f"{where} {count} members, the limit is {limit} (broker.{field}): stop some, or raise the limit",
                    field=field,
                    limit=limit,
                    value=count,
                )

    def _differing(
        self,
        group: Group,
        member: JoinedMember,
        before: JoinedMember | None,
        check: str,
        sees: Callable[[str], bool],
    ) -> list[tuple[JoinedMember, SubscriptionMismatch]]:
        """Return the members to warn because MEMBER has another subscription than another member; raise
        SubscriptionMismatch.

        CHECK is the group's setting for such members. SEES returns whether MEMBER may see a topic.
        """
        membership, now_ms = group.membership, self._timers.now_ms()
        place = before or member
        others = [one for one in membership.members.values() if one.member_id != place.member_id]
        keys = [one.subscriptions.key for one in others]
        if before is not None and before.subscriptions.key == member.subscriptions.key:
            keys.append(member.subscriptions.key)
        grace_ms = self._config.subscription_grace_ms
        won = membership.grace.winner(member.subscriptions.key, keys, now_ms, grace_ms)
        other = next(
            (one for one in others if one.subscriptions.key != member.subscriptions.key), None
        )
        if other is None:
            return []
        if check == REFUSE or (check == GRACE and won is not None):
            raise self._refused(group, member, others, won if check == GRACE else None, sees)
        advice = served_for(grace_ms) if check == GRACE else STEPPED_OVER

        def error(sees: Callable[[str], bool]) -> SubscriptionMismatch:
            found = differences(member.subscriptions, other.subscriptions, sees)
            return mismatch(group.name, member.wire, other.wire, found, advice)

        logger.warning("subscriptions differ reason=%s", error(lambda topic: True).message)
        return [(member, error(sees)), (other, error(partial(group.sees, other.member_id)))]

    def _refused(
        self,
        group: Group,
        member: JoinedMember,
        others: Sequence[JoinedMember],
        won: SubscriptionsKey | None,
        sees: Callable[[str], bool],
    ) -> SubscriptionMismatch:
        """Return the error for MEMBER. WON is the subscription that is served instead; None: all different ones are
        refused.

        SEES returns whether MEMBER may see a topic.
        """
        other = next(
            one
            for one in others
            if one.subscriptions.key != member.subscriptions.key
            and won in (None, one.subscriptions.key)
        )
        advice = "use the same subscription, or a group of its own" if won is None else SUPERSEDED
        if not group.is_reachable(other.member_id):
            left_ms = max(0, other.session_ends_ms - self._timers.now_ms())
            advice += (
                f" (that member is not connected: if it has stopped, try again in {left_ms} ms)"
            )
        found = differences(member.subscriptions, other.subscriptions, sees)
        return mismatch(group.name, member.wire, other.wire, found, advice)

    def _await_end_of_grace(self, group: Group) -> None:
        """Set the timer at which members of GROUP with an older subscription are removed."""
        ends_ms = self.grace_ends_ms(group.name)
        if ends_ms is not None and group.name not in self._graces:
            wait_ms = max(0, ends_ms - self._timers.now_ms())
            self._graces[group.name] = self._timers.after(wait_ms, partial(self._end_grace, group))

    def grace_ends_ms(self, name: str) -> int | None:
        """Return the timer time at which the newest subscription of group NAME wins; None: there is only one."""
        group = self._groups.get(name)
        if group is None:
            return None
        keys = [one.subscriptions.key for one in group.membership.members.values()]
        grace_ms = self._config.subscription_grace_ms
        return group.membership.grace.ends_ms(keys, self._timers.now_ms(), grace_ms)

    def grace_left_ms(self, name: str) -> int | None:
        """Return the ms until only the newest subscription of group NAME is served; None: there is only one."""
        ends_ms = self.grace_ends_ms(name)
        if ends_ms is None or subscription_check(self._configs.ensure(name)) != GRACE:
            return None
        return max(0, ends_ms - self._timers.now_ms())

    def _end_grace(self, group: Group) -> None:
        """Remove the members of GROUP with an older subscription if the grace period has ended."""
        self._graces.pop(group.name, None)
        membership, ends_ms = group.membership, self.grace_ends_ms(group.name)
        if ends_ms is None or self._groups.get(group.name) is not group:
            return
        check = subscription_check(self._configs.ensure(group.name))
        left_ms = ends_ms - self._timers.now_ms()
        if check == WARN or left_ms > 0:
            wait_ms = left_ms if left_ms > 0 else _GRACE_SCAN_MS
            self._graces[group.name] = self._timers.after(wait_ms, partial(self._end_grace, group))
            return
        newest = membership.grace.newest
        members = list(membership.members.values())
        for member in members:
            if member.subscriptions.key != newest:
                sees = partial(group.sees, member.member_id)
                error = self._refused(group, member, members, newest, sees)
                logger.warning("member refused, its subscription is superseded %s", error.message)
                group.end_stream(member.member_id, error)
                self._remove(group, member)
                self._sessions.notify((group.name, member.member_id))

    def record_sign_of_life(self, group: Group, member_id: str) -> None:
        """Record a sign of life of MEMBER_ID in GROUP."""
        member = group.membership.members[member_id]
        member.record_sign_of_life(self._timers)
        self._watch(group, member)

    def _watch(self, group: Group, member: JoinedMember) -> None:
        """Complete the wait for the end of MEMBER's last session, and wait for the end of its new session."""
        key = (group.name, member.member_id)
        self._sessions.notify(key)
        self._sessions.complete_or_watch(_Session(self, group, member), key, member.session_ends_ms)

    def end_session(self, group: Group, member: JoinedMember) -> None:
        """Remove MEMBER, whose session has timed out."""
        logger.warning(
            "member session timed out group=%s member=%s session_timeout_ms=%d",
            group.name,
            member.member_id,
            member.session_timeout_ms,
        )
        group.end_stream(
            member.member_id,
            MemberFenced(
                f"member {member.member_id!r} sent nothing for {member.session_timeout_ms} ms: its session"
                f" in group {group.name!r} has timed out. Join again",
                group=group.name,
                member=member.member_id,
                because="session",
            ),
        )
        self._remove(group, member)

    def leave(self, group: Group, member_id: str) -> None:
        """Remove MEMBER_ID at once; a static member keeps its place until its session times out."""
        member = group.membership.members[member_id]
        group.end_stream(member_id, None)
        if member.instance_id:
            return
        logger.info("member left group=%s member=%s", group.name, member_id)
        self._remove(group, member)
        self._sessions.notify((group.name, member_id))

    def _remove(self, group: Group, member: JoinedMember) -> None:
        group.membership.remove(member.member_id)
        self._count -= 1
        group.schedule()


class _Session:
    """Waits until a member is silent for its session timeout: an operation of the purgatory."""

    __slots__ = ("_coordinator", "_group", "_is_watched", "_member")

    def __init__(self, coordinator: Coordinator, group: Group, member: JoinedMember) -> None:
        self._coordinator = coordinator
        self._group = group
        self._member = member
        self._is_watched = False

    def try_complete(self) -> bool:
        """Complete at the first event: a new sign of life of the member, or its removal."""
        was_watched, self._is_watched = self._is_watched, True
        return was_watched

    def on_deadline(self) -> None:
        self._coordinator.end_session(self._group, self._member)


class MemberStream:
    """One open JoinGroup stream: requests of a member in, events for it out."""

    def __init__(self, coordinator: Coordinator, stream: Stream) -> None:
        self._coordinator = coordinator
        self._stream = stream
        self._group: Group | None = None
        self._member_id = ""
        self._is_over = False

    @property
    def peer(self) -> str:
        return self._stream.peer

    @property
    def user(self) -> str:
        """The user of the stream; "": the broker has no users."""
        return self._stream.user.name

    def sees(self, topic: str) -> bool:
        """Return whether the user of the stream may see TOPIC."""
        return self._stream.user.may(self._stream, to_see_topic(topic))

    @property
    def queued_bytes(self) -> int:
        return self._stream.queued_bytes

    def on_message(self, message: pb.MemberRequest) -> None:
        if self._is_over:
            return
        what = message.WhichOneof("what")
        if what == "join":
            self._join(message.join)
            return
        if self._group is None or what is None:
            raise InvalidArgument(
                f"what: the first message is {what or 'empty'}, it must be a join: join the group first",
                field="what",
                value=what or "",
            )
        if what == "leave":
            self._coordinator.leave(self._group, self._member_id)
            return
        self._coordinator.record_sign_of_life(self._group, self._member_id)
        if what == "heartbeat":
            if message.heartbeat.held_changed:
                member = self._group.membership.members[self._member_id]
                del member.wire.held[:]
                member.wire.held.extend(check_held(message.heartbeat.held))
        elif what == "plan":
            self._group.plan(self._member_id, message.plan)
        else:
            self._group.replan(self._member_id, message.replan)

    def _join(self, join: pb.Join) -> None:
        if self._group is not None and (
            (join.group, join.member_id) != (self._group.name, self._member_id)
        ):
            raise InvalidArgument(
                f"this stream belongs to member {self._member_id!r} of group {self._group.name!r}:"
                " open another stream for another member",
                field="member_id",
                value=join.member_id[:64],
            )
        self._group = self._coordinator.join(self, join)
        self._member_id = join.member_id

    def send(self, event: pb.MemberEvent) -> None:
        self._stream.send(event)

    def end(self, error: PocketMQError | None) -> None:
        """End the stream, with ERROR or normally."""
        self._is_over = True
        if error is None:
            self._stream.finish()
        else:
            self._stream.fail(error)

    def on_end(self) -> None:
        self._detach()
        self._stream.finish()

    def on_close(self) -> None:
        self._detach()

    def _detach(self) -> None:
        if self._group is not None and not self._is_over:
            self._is_over = True
            self._group.stream_ended(self, self._member_id)


def _sees(seat: MemberStream, member: JoinedMember, topic: str) -> bool:
    """Return whether MEMBER at SEAT may see TOPIC."""
    return topic in member.subscriptions.topics or seat.sees(topic)


def _before(membership: GroupMembership, member: JoinedMember) -> JoinedMember | None:
    """Return the member whose place MEMBER takes: its own, or that of its instance. Raises InvalidArgument,
    NotAuthorized.
    """
    before = membership.members.get(member.member_id)
    if before is not None and before.instance_id != member.instance_id:
        raise InvalidArgument(
            f"member {member.member_id!r} is in group {membership.group!r} as instance"
            f" {before.instance_id!r}, not {member.instance_id!r}: leave first, or use another member_id",
            field="instance_id",
            value=member.instance_id,
        )
    before = before or membership.of_instance(member.instance_id)
    if before is not None and before.user != member.user:
        raise others_member(member.member_id, member.instance_id, membership.group)
    return before
