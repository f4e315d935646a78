"""The members of a group, and their agreement in each generation: pure state.

A generation is an agreement: these members, and the queues that each of them reads. `begin` starts one and names the
leader: the reachable member that has been in the group longest. The leader's plan (the assignment of queues) completes
it. A group whose members allocate for themselves needs no plan. Each change of the members or their subscriptions
requires a new generation.

A static member (`instance_id`) keeps its place: a member with the same instance and another member_id inherits its
assignment and rank within the same generation, and the old member_id is fenced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from ...proto.gen import pocketmq_v1_pb2 as pb
from ..timing.timers import Timers
from .grace import Grace
from .member_subscriptions import MemberSubscriptions, SubscriptionsKey

FENCED_MAX: Final = 1_000


@dataclass(slots=True, kw_only=True)
class JoinedMember:
    """One member. WIRE is its description without the times: when it joined, and its last sign of life."""

    wire: pb.Member
    subscriptions: MemberSubscriptions
    session_timeout_ms: int
    #: Unix times.
    joined_unix_ms: int
    last_heard_unix_ms: int = 0
    #: Its last sign of life, in timer time.
    last_heard_ms: int = 0
    #: The first generation that includes it; 0: none yet.
    since: int = 0
    #: Whether it led and did not answer: others are preferred.
    did_not_answer: bool = False
    #: User of the member; "": the broker has no users.
    user: str = ""

    @property
    def member_id(self) -> str:
        return self.wire.member_id

    @property
    def instance_id(self) -> str:
        return self.wire.instance_id

    @property
    def session_ends_ms(self) -> int:
        return self.last_heard_ms + self.session_timeout_ms

    def record_sign_of_life(self, timers: Timers) -> None:
        """Record a sign of life at the present time."""
        self.last_heard_ms = timers.now_ms()
        self.last_heard_unix_ms = timers.unix_ms()

    def inherit_from(self, before: JoinedMember) -> None:
        """Take the join time and rank of BEFORE."""
        self.since = before.since
        self.joined_unix_ms = before.joined_unix_ms

    def to_message(self) -> pb.Member:
        """Return its description for other members."""
        told = pb.Member(joined_ms=self.joined_unix_ms, last_heard_ms=self.last_heard_unix_ms)
        told.MergeFrom(self.wire)
        return told


class GroupMembership:
    """The members of one group. Its generations start above FROM_GENERATION."""

    def __init__(self, group: str, from_generation: int = 0) -> None:
        self.group = group
        self.generation = 0
        #: The highest generation that a member reported.
        self._known = from_generation
        self.leader = ""
        self.rebalance_count = 0
        #: Members by member_id, in the order in which they joined.
        self.members: dict[str, JoinedMember] = {}
        #: The plan of this generation, by member_id; None: there is none yet.
        self.shares: dict[str, list[pb.HeldQueue]] | None = None
        self._fenced: dict[str, None] = {}
        #: Replaced members of this generation, and the member_id of the replacement.
        self._replaced_by: dict[str, str] = {}
        #: Which of the subscriptions of its members are served.
        self.grace: Grace[SubscriptionsKey] = Grace()

    def is_fenced(self, member_id: str) -> bool:
        """Return whether another member took the place of MEMBER_ID."""
        return member_id in self._fenced

    def of_instance(self, instance_id: str) -> JoinedMember | None:
        """Return the member with INSTANCE_ID."""
        if not instance_id:
            return None
        found = (one for one in self.members.values() if one.instance_id == instance_id)
        return next(found, None)

    def other_than(self, *member_ids: str) -> JoinedMember | None:
        """Return the member that joined first, except MEMBER_IDS."""
        return next((one for name, one in self.members.items() if name not in member_ids), None)

    def add(self, member: JoinedMember) -> None:
        """Add MEMBER; it is assigned queues from the next generation on."""
        assert member.member_id not in self.members, "a member joins once"
        self.members[member.member_id] = member

    def replace(self, before: JoinedMember, member: JoinedMember) -> None:
        """Let MEMBER, with the same or another member_id, take the place of BEFORE."""
        old, new = before.member_id, member.member_id
        member.inherit_from(before)
        # It keeps the rank among the others.
        self.members = {
            (new if name == old else name): (member if name == old else one)
            for name, one in self.members.items()
        }
        if old == new:
            return
        self._fence(old)
        self._replaced_by[old] = new
        if self.leader == old:
            self.leader = new
        if self.shares is not None and old in self.shares:
            self.shares[new] = self.shares.pop(old)

    def _fence(self, member_id: str) -> None:
        self._fenced[member_id] = None
        if len(self._fenced) > FENCED_MAX:
            del self._fenced[next(iter(self._fenced))]

    def remove(self, member_id: str) -> None:
        """Remove MEMBER_ID."""
        del self.members[member_id]

    def note_generation(self, generation: int) -> None:
        """Record that a member knows GENERATION, perhaps of another coordinator: the next one is higher."""
        self._known = max(self._known, generation)

    def begin(self, reachable: Collection[str]) -> None:
        """Start a generation with the present members. REACHABLE members can lead it."""
        self.generation = max(self.generation, self._known) + 1
        self.rebalance_count += 1
        self.shares = None
        self._replaced_by.clear()
        for member in self.members.values():
            member.since = member.since or self.generation
        self.leader = self._choose_leader(reachable)

    def _choose_leader(self, reachable: Collection[str]) -> str:
        candidates = [name for name in self.members if name in reachable] or list(self.members)
        fresh = [name for name in candidates if not self.members[name].did_not_answer]
        if candidates and not fresh:
            for name in candidates:
                self.members[name].did_not_answer = False
            fresh = candidates
        return fresh[0] if fresh else ""

    @property
    def each_for_itself(self) -> bool:
        """Return whether members allocate for themselves, by the setting of the longest member."""
        first = self.other_than()
        return first is not None and first.subscriptions.each_for_itself

    @property
    def strategy(self) -> str:
        """Return the name of the strategy, by the setting of the longest member."""
        first = self.other_than()
        return first.subscriptions.strategy if first is not None else ""

    @property
    def is_waiting_for_plan(self) -> bool:
        return bool(self.generation) and self.shares is None and not self.each_for_itself

    def includes(self, member_id: str) -> bool:
        """Return whether MEMBER_ID is part of the present generation."""
        member = self.members.get(member_id)
        return member is not None and 0 < member.since <= self.generation

    def keep_plan(self, shares: Iterable[pb.Share]) -> list[str]:
        """Store SHARES as the plan of the present generation; return its faults in words.

        A queue that is assigned twice goes to the first member. Queues of unknown members are not assigned.
        """
        kept: dict[str, list[pb.HeldQueue]] = {
            name: [] for name in self.members if self.includes(name)
        }
        given: dict[tuple[str, str, int], str] = {}
        wrong: list[str] = []
        for share in shares:
            name = self._replaced_by.get(share.member_id, share.member_id)
            if name not in kept:
                wrong.append(f"{share.member_id[:64]!r} is not a member")
                continue
            for queue in share.queues:
                key = (queue.topic, queue.broker_name, queue.queue)
                if key in given:
                    wrong.append(
                        f"queue {queue.queue} of {queue.topic[:64]!r} on {queue.broker_name[:64]!r} is assigned"
                        f" to {given[key]!r} and to {name!r}"
                    )
                else:
                    given[key] = name
                    kept[name].append(queue)
        self.shares = kept
        return wrong

    def everyone(self) -> list[pb.Member]:
        """Return the members as a leader gets them, sorted by instance id or else by member id."""
        found = sorted(self.members.values(), key=lambda one: one.instance_id or one.member_id)
        return [member.to_message() for member in found]
