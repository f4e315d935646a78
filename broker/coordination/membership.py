"""Who is in one group, and what its members agreed on: pure state, told what happens and when.

A generation is an agreement: these members, and who of them reads which queues. It begins with `begin`, which names
the leader (the one that has been in longest, and can be reached), and is complete with the leader's plan; a group in
which each allocates for itself needs no plan. Whatever changes who is in, or what they want, calls for the next one.

A static member (`instance_id`) keeps its place: whoever comes with its instance under another member_id inherits share
and rank within the same generation, and the member_id before it is out for good.

Bounds: `FENCED_MAX` member_ids that are out for good are remembered. Members are bounded by who admits them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from ...proto.gen import pocketmq_v1_pb2 as pb
from ..timers import Timers
from .subscriptions import Wishes

FENCED_MAX: Final = 1_000


@dataclass(slots=True, kw_only=True)
class Member:
    """One member: WIRE is what others are told of it."""

    wire: pb.Member
    wishes: Wishes
    session_timeout_ms: int
    #: When it was heard of, as an instant of the timers; WIRE has the time of day.
    last_heard_ms: int = 0
    #: The first generation that counts it in; 0: none yet.
    since: int = 0
    #: It led, and did not answer: others first.
    passed_over: bool = False

    @property
    def member_id(self) -> str:
        return self.wire.member_id

    @property
    def instance_id(self) -> str:
        return self.wire.instance_id

    @property
    def session_ends_ms(self) -> int:
        return self.last_heard_ms + self.session_timeout_ms

    def heard(self, timers: Timers) -> None:
        """Note a sign of life, now."""
        self.last_heard_ms = timers.now_ms()
        self.wire.last_heard_ms = timers.unix_ms()


class Membership:
    """One group."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.generation = 0
        #: The highest that a member ever told of.
        self._known = 0
        self.leader = ""
        self.rebalance_count = 0
        #: By member_id; who has been in longest comes first.
        self.members: dict[str, Member] = {}
        #: The plan of this generation, by member_id; None: there is none yet.
        self.shares: dict[str, list[pb.HeldQueue]] | None = None
        self._fenced: dict[str, None] = {}
        #: Members of this generation that were taken over: under which member_id they go on.
        self._goes_on_as: dict[str, str] = {}

    # --- who is in

    def is_fenced(self, member_id: str) -> bool:
        """Did another member take the place of MEMBER_ID?"""
        return member_id in self._fenced

    def of_instance(self, instance_id: str) -> Member | None:
        """Return the member whose place INSTANCE_ID is."""
        if not instance_id:
            return None
        found = (one for one in self.members.values() if one.instance_id == instance_id)
        return next(found, None)

    def other_than(self, *member_ids: str) -> Member | None:
        """Return who has been in longest but for MEMBER_IDS."""
        return next((one for name, one in self.members.items() if name not in member_ids), None)

    def add(self, member: Member) -> None:
        """Take MEMBER in: it has a share from the next generation on."""
        assert member.member_id not in self.members, "a member is in once"
        self.members[member.member_id] = member

    def replace(self, before: Member, member: Member) -> None:
        """Let MEMBER, of the same or of another member_id, have the place of BEFORE."""
        old, new = before.member_id, member.member_id
        member.since = before.since
        member.wire.joined_ms = before.wire.joined_ms
        # Its rank among the others stays as well.
        self.members = {
            (new if name == old else name): (member if name == old else one)
            for name, one in self.members.items()
        }
        if old == new:
            return
        self._fence(old)
        self._goes_on_as[old] = new
        if self.leader == old:
            self.leader = new
        if self.shares is not None and old in self.shares:
            self.shares[new] = self.shares.pop(old)

    def _fence(self, member_id: str) -> None:
        self._fenced[member_id] = None
        if len(self._fenced) > FENCED_MAX:
            del self._fenced[next(iter(self._fenced))]

    def remove(self, member_id: str) -> None:
        """Let MEMBER_ID go."""
        del self.members[member_id]

    # --- generations

    def heard_of(self, generation: int) -> None:
        """Note that a member knows of GENERATION, from another coordinator maybe: the next one is higher."""
        self._known = max(self._known, generation)

    def begin(self, reachable: Collection[str]) -> None:
        """Begin a generation with the present members, of whom REACHABLE can be told."""
        self.generation = max(self.generation, self._known) + 1
        self.rebalance_count += 1
        self.shares = None
        self._goes_on_as.clear()
        for member in self.members.values():
            member.since = member.since or self.generation
        self.leader = self._choose_leader(reachable)

    def _choose_leader(self, reachable: Collection[str]) -> str:
        candidates = [name for name in self.members if name in reachable] or list(self.members)
        fresh = [name for name in candidates if not self.members[name].passed_over]
        if candidates and not fresh:
            for name in candidates:
                self.members[name].passed_over = False
            fresh = candidates
        return fresh[0] if fresh else ""

    @property
    def each_for_itself(self) -> bool:
        """Do members allocate for themselves? As who has been in longest has it."""
        first = self.other_than()
        return first is not None and first.wishes.each_for_itself

    @property
    def strategy(self) -> str:
        """The strategy's name, as who has been in longest has it."""
        first = self.other_than()
        return first.wishes.strategy if first is not None else ""

    @property
    def is_waiting_for_plan(self) -> bool:
        return bool(self.generation) and self.shares is None and not self.each_for_itself

    def counts_in(self, member_id: str) -> bool:
        """Is MEMBER_ID part of the present generation?"""
        member = self.members.get(member_id)
        return member is not None and 0 < member.since <= self.generation

    def keep_plan(self, shares: Iterable[pb.Share]) -> list[str]:
        """Have SHARES be the plan of the present generation; return what was wrong with it, in words.

        A queue that is given twice is the first one's. Shares of those who are no members any more are nobody's.
        """
        kept: dict[str, list[pb.HeldQueue]] = {
            name: [] for name in self.members if self.counts_in(name)
        }
        given: dict[tuple[str, str, int], str] = {}
        wrong: list[str] = []
        for share in shares:
            name = self._goes_on_as.get(share.member_id, share.member_id)
            if name not in kept:
                wrong.append(f"{share.member_id[:64]!r} is not a member")
                continue
            for queue in share.queues:
                key = (queue.topic, queue.broker_name, queue.queue)
                if key in given:
                    wrong.append(
                        f"queue {queue.queue} of {queue.topic[:64]!r} on {queue.broker_name[:64]!r} is given"
                        f" to {given[key]!r} and to {name!r}"
                    )
                else:
                    given[key] = name
                    kept[name].append(queue)
        self.shares = kept
        return wrong

    def everyone(self) -> list[pb.Member]:
        """Return the members as a leader is told of them, by instance or else by member_id."""
        found = sorted(self.members.values(), key=lambda one: one.instance_id or one.member_id)
        return [member.wire for member in found]
