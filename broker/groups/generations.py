"""One group as its coordinator runs it: the membership, the streams by which members are told, the generations.

    something changes ─► `schedule` ─ a delayed join ─► a generation begins: Members to each member
    the leader's Plan ─► `plan` ─► Assigned to each member

A leader that does not answer within its session is passed over, at once if it cannot be reached and others can.
The lists of members are told to who needs them: the leader, or all where each allocates for itself.

Who is in one group, what its members want, and what they agreed on: pure state, told what happens and when.

A generation is an agreement: these members, and who of them reads which queues. It begins with `begin`, which names
the leader (the one that has been in longest, and can be reached), and is complete with the leader's plan; a group in
which each allocates for itself needs no plan. Whatever changes who is in, or what they want, calls for the next one.

A static member (`instance_id`) keeps its place: whoever comes with its instance under another member_id inherits share
and rank within the same generation, and the member_id before it is out for good.

Members of a group share its queues: whoever wants something else than the others gets messages that they step over,
and they step over what it wants. So all of them want the same topics through the same filters, and allocate the same
way: what each wants is brought into a form that can be compared, and differences are told in words.

What members say is checked: a join becomes a `JoinedMember`, a plan is one that can be kept.

Bounds: `FENCED_MAX` member_ids that are out for good are remembered. Members are bounded by who admits them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, Protocol, TypeAlias

from ...proto.errors import (
    InvalidArgument,
    MemberFenced,
    NotAuthorized,
    Overloaded,
    PocketMQError,
    SubscriptionMismatch,
)
from ...proto.errors_wire import to_wire
from ...proto.filters.expressions import normalised
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import check_topic, retry_topic
from ..config import BrokerConfig
from ..consumer_groups import check_own_choice
from ..timing.purgatory import Purgatory, WatchedOperation
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from .grace import Grace
from .hidden_topics import seen_member

logger = logging.getLogger(__name__)

#: Bytes that may wait for one member; one that reads so little loses its stream.
_QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Faults of one plan that are told.
_FAULTS_TOLD_MAX: Final = 3


class Seat(Protocol):
    """The stream of a member."""

    @property
    def queued_bytes(self) -> int:
        """What was sent and has not left yet."""
        ...

    def sees(self, topic: str) -> bool:
        """May the user of the stream see TOPIC?"""
        ...

    def send(self, event: pb.MemberEvent) -> None:
        """Tell EVENT."""
        ...

    def end(self, error: PocketMQError | None) -> None:
        """End the stream, with ERROR or well."""
        ...


class _DelayedJoin:
    """The wait for those who come within the delay, and share a generation: an operation of the purgatory.

    It is over group_rebalance_delay_ms after the first change. Where a group begins (its members start, or come back to
    a coordinator that was restarted) it is prolonged by whoever comes meanwhile, up to group_initial_rebalance_max_ms.
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
        """When the generation begins, if nothing else changes."""
        return min(self._last_ms + self._delay_ms, self._ends_ms)

    def changed(self) -> None:
        """Note that something has changed again."""
        self._last_ms = self._timers.now_ms()

    def try_complete(self) -> bool:
        """Complete without a generation if nobody is left."""
        return self._group.nobody_joins()

    def on_deadline(self) -> None:
        self._group.join_is_due(self)


class Group:
    """One group: its membership, and the streams by which its members are told. JOINS: generations that wait.

    The first one is above FROM_GENERATION.
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
        self._seats: dict[str, Seat] = {}
        self._joins = joins
        #: What the next generation waits for; None: nothing has changed.
        self._joining: _DelayedJoin | None = None
        self._watched: WatchedOperation | None = None
        #: When the leader is passed over, and of which generation which leader that is.
        self._leader_silent: Timer | None = None
        self._awaited = (0, "")

    def is_reachable(self, member_id: str) -> bool:
        """Does MEMBER_ID have a stream?"""
        return member_id in self._seats

    def sees(self, member_id: str, topic: str) -> bool:
        """May MEMBER_ID be told of TOPIC? A topic of its own it may, and any one if it has no stream to be told by."""
        member, seat = self.membership.members.get(member_id), self._seats.get(member_id)
        is_own = member is not None and topic in member.wishes.topics
        return is_own or topic == retry_topic(self.name) or seat is None or seat.sees(topic)

    def close(self) -> None:
        """Let the timers go."""
        if self._watched is not None:
            self._watched.cancel()
        if self._leader_silent is not None:
            self._timers.cancel(self._leader_silent)

    # --- seats

    def take_place(self, before: JoinedMember, member: JoinedMember) -> None:
        """Let MEMBER have the place of BEFORE, of the same member_id or of the same instance."""
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

    def seat(self, seat: Seat, member: JoinedMember) -> None:
        """Tell MEMBER at SEAT from now on, and at once what was agreed on."""
        other, self._seats[member.member_id] = self._seats.get(member.member_id), seat
        if other is not None and other is not seat:
            other.end(
                MemberFenced(
                    f"member {member.member_id!r} of group {self.name!r} has come on another stream",
                    group=self.name,
                    member=member.member_id,
                    because="stream",
                )
            )
        if self._joining is None and self.membership.counts_in(member.member_id):
            self._tell_members(member.member_id)
            self._tell_assigned(member.member_id)
            self._await_plan()

    def unseat(self, member_id: str, error: PocketMQError | None) -> None:
        """End the stream of MEMBER_ID, if it has one, with ERROR, or well."""
        seat = self._seats.pop(member_id, None)
        if seat is not None:
            seat.end(error)
            self._await_plan()

    def left_seat(self, seat: Seat, member_id: str) -> None:
        """Know that the stream SEAT of MEMBER_ID is over."""
        if self._seats.get(member_id) is seat:
            del self._seats[member_id]
            self._await_plan()

    def tell(self, member_id: str, event: pb.MemberEvent) -> None:
        """Send EVENT to MEMBER_ID if it can be reached."""
        seat = self._seats.get(member_id)
        if seat is None:
            return
        if seat.queued_bytes > _QUEUED_BYTES_MAX:
            self.unseat(
                member_id,
                Overloaded(
                    f"{seat.queued_bytes} bytes wait for member {member_id!r}, the limit is"
                    f" {_QUEUED_BYTES_MAX}: read what the coordinator sends",
                    limit=_QUEUED_BYTES_MAX,
                    value=seat.queued_bytes,
                ),
            )
            return
        seat.send(event)

    # --- generations

    def schedule(self) -> None:
        """Have a new generation begin soon; what happens until then is part of it."""
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
        """Has nobody had a share here yet?"""
        return not any(one.since for one in self.membership.members.values())

    def _watch(self, joining: _DelayedJoin) -> None:
        self._watched = self._joins.watch(joining, self.name, joining.due_ms)

    def nobody_joins(self) -> bool:
        """Let the delayed join go if nobody is in the group; return whether it has gone."""
        if self.membership.members:
            return False
        self._joining = self._watched = None
        return True

    def join_is_due(self, joining: _DelayedJoin) -> None:
        """Begin the generation that JOINING waited for, or wait on because somebody came meanwhile."""
        if joining.due_ms > self._timers.now_ms():
            self._watch(joining)
        else:
            self._begin()

    def _begin(self) -> None:
        self._joining = self._watched = None
        membership = self.membership
        membership.begin(self._able_to_lead())
        logger.info(
            "generation begins group=%s generation=%d members=%d leader=%s",
            self.name,
            membership.generation,
            len(membership.members),
            membership.leader,
        )
        for member_id in list(self._seats):
            self._tell_members(member_id)
        self._await_plan()

    def _able_to_lead(self) -> Collection[str]:
        """Return the reachable members who may see all topics that the group reads; if none may, all reachable ones."""
        topics = set[str]().union(*(one.wishes.topics for one in self.membership.members.values()))
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
        """Pass the leader over if it does not answer in time, or cannot and somebody else could."""
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
                leader.session_timeout_ms, partial(self._pass_over, leader)
            )
        elif is_waiting:
            self.schedule()

    def _pass_over(self, leader: JoinedMember) -> None:
        self._leader_silent = None
        leader.passed_over = True
        logger.warning("leader passed over group=%s member=%s", self.name, leader.member_id)
        self.schedule()

    def plan(self, member_id: str, plan: pb.Plan) -> None:
        """Keep the PLAN of MEMBER_ID if it is the leader's and of this generation, and tell each member its share."""
        check_plan(plan)
        membership = self.membership
        if member_id != membership.leader or plan.generation != membership.generation:
            logger.debug("plan not heard group=%s generation=%d", self.name, plan.generation)
            return
        if not membership.is_waiting_for_plan:
            return
        wrong = membership.keep_plan(plan.shares)
        self._await_plan()
        if wrong:
            told = "; ".join(wrong[:_FAULTS_TOLD_MAX])
            logger.warning(
                "plan has faults group=%s count=%d first=%s", self.name, len(wrong), told
            )
            error = InvalidArgument(f"the plan has {len(wrong)} faults: {told}", field="plan")
            self.tell(member_id, pb.MemberEvent(warning=to_wire(error)))
        for name in list(self._seats):
            if membership.counts_in(name):
                self._tell_assigned(name)

    def replan(self, member_id: str, replan: pb.Replan) -> None:
        """Begin a new generation because the leader says so."""
        membership = self.membership
        if member_id == membership.leader and replan.generation == membership.generation:
            self.schedule()


def replaced(member_id: str, instance_id: str, group: str) -> MemberFenced:
    """Return the error for MEMBER_ID, whose place in GROUP another member of INSTANCE_ID has taken."""
    return MemberFenced(
        f"another member of group {group!r} has come as instance {instance_id!r}, which was the place of member"
        f" {member_id!r}: run one process of an instance",
        group=group,
        member=member_id,
        instance=instance_id,
        because="instance",
    )


# ---------------------------------------------------------------- who is in one group


#: Characters of a member's or an instance's id, of a strategy's or a room's name.
NAME_LENGTH_MAX: Final = 255


def check_name(field: str, value: str) -> str:
    """Return VALUE, which may be empty, if it is not too long and can be printed; raise InvalidArgument."""
    if len(value) > NAME_LENGTH_MAX:
        raise InvalidArgument(
            f"{field} has {len(value)} characters, the limit is {NAME_LENGTH_MAX}: {value[:40]!r}…",
            field=field,
            limit=NAME_LENGTH_MAX,
            value=len(value),
        )
    if not value.isprintable():
        raise InvalidArgument(
            f"{field} {value[:64]!r} holds characters that cannot be printed: leave them out",
            field=field,
            value=repr(value[:64]),
        )
    return value


def check_member(field: str, value: str) -> str:
    """Return VALUE if it is fit for an id; raise InvalidArgument."""
    if not value:
        raise InvalidArgument(f"{field} is empty: give the member a name", field=field, value="")
    return check_name(field, value)


def check_least(field: str, value: int, least: int) -> int:
    """Return VALUE if it is at least LEAST; raise InvalidArgument."""
    if value < least:
        raise InvalidArgument(
            f"{field} is {value}: must be at least {least}", field=field, limit=least, value=value
        )
    return value


def check_range(field: str, value: int, least: int, most: int) -> int:
    """Return VALUE if it lies between LEAST and MOST; raise InvalidArgument."""
    if not least <= value <= most:
        raise InvalidArgument(
            f"{field} is {value}: must be {least} to {most}", field=field, limit=most, value=value
        )
    return value


FENCED_MAX: Final = 1_000
SUBSCRIPTIONS_MAX: Final = 1_000
#: Topics whose difference is told; an expression is told up to so many characters.
_TOLD_MAX: Final = 5
_EXPRESSION_TOLD_MAX: Final = 60
SESSION_LEAST_MS: Final = 6_000
SESSION_MOST_MS: Final = 30 * 60_000
SESSION_DEFAULT_MS: Final = 30_000
#: Queues that one member may hold, and that one plan may give.
HELD_MAX: Final = 10_000
PLANNED_MAX: Final = 100_000
GENERATION_MAX: Final = 1 << 53
_KIND_LENGTH_MAX: Final = 32
_QUEUE_MAX: Final = (1 << 31) - 1


@dataclass(slots=True, kw_only=True)
class JoinedMember:
    """One member. WIRE is what it said; others are told besides since when it is in, and when it was heard of."""

    wire: pb.Member
    wishes: Wishes
    session_timeout_ms: int
    #: Times of day.
    joined_unix_ms: int
    last_heard_unix_ms: int = 0
    #: When it was heard of, as an instant of the timers.
    last_heard_ms: int = 0
    #: The first generation that counts it in; 0: none yet.
    since: int = 0
    #: It led, and did not answer: others first.
    passed_over: bool = False
    #: Whose member it is; "": the broker has no users.
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

    def heard(self, timers: Timers) -> None:
        """Note a sign of life, now."""
        self.last_heard_ms = timers.now_ms()
        self.last_heard_unix_ms = timers.unix_ms()

    def take_place_of(self, before: JoinedMember) -> None:
        """Be in since when BEFORE was."""
        self.since = before.since
        self.joined_unix_ms = before.joined_unix_ms

    def as_told(self) -> pb.Member:
        """Return what others are told of it."""
        told = pb.Member(joined_ms=self.joined_unix_ms, last_heard_ms=self.last_heard_unix_ms)
        told.MergeFrom(self.wire)
        return told


class GroupMembership:
    """One group. Its generations begin above FROM_GENERATION."""

    def __init__(self, group: str, from_generation: int = 0) -> None:
        self.group = group
        self.generation = 0
        #: The highest that a member ever told of.
        self._known = from_generation
        self.leader = ""
        self.rebalance_count = 0
        #: By member_id; who has been in longest comes first.
        self.members: dict[str, JoinedMember] = {}
        #: The plan of this generation, by member_id; None: there is none yet.
        self.shares: dict[str, list[pb.HeldQueue]] | None = None
        self._fenced: dict[str, None] = {}
        #: Members of this generation that were taken over: under which member_id they go on.
        self._goes_on_as: dict[str, str] = {}
        #: Which of the subscriptions of its members are served.
        self.grace: Grace[WishesKey] = Grace()

    # --- who is in

    def is_fenced(self, member_id: str) -> bool:
        """Did another member take the place of MEMBER_ID?"""
        return member_id in self._fenced

    def of_instance(self, instance_id: str) -> JoinedMember | None:
        """Return the member whose place INSTANCE_ID is."""
        if not instance_id:
            return None
        found = (one for one in self.members.values() if one.instance_id == instance_id)
        return next(found, None)

    def other_than(self, *member_ids: str) -> JoinedMember | None:
        """Return who has been in longest but for MEMBER_IDS."""
        return next((one for name, one in self.members.items() if name not in member_ids), None)

    def add(self, member: JoinedMember) -> None:
        """Take MEMBER in: it has a share from the next generation on."""
        assert member.member_id not in self.members, "a member is in once"
        self.members[member.member_id] = member

    def replace(self, before: JoinedMember, member: JoinedMember) -> None:
        """Let MEMBER, of the same or of another member_id, have the place of BEFORE."""
        old, new = before.member_id, member.member_id
        member.take_place_of(before)
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
        return [member.as_told() for member in found]


# --- what members want


#: Topics with their filters; strategy; does each member allocate for itself?
WishesKey: TypeAlias = tuple[tuple[tuple[str, tuple[int, str]], ...], str, bool]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What members of a group subscribe to, and how they allocate: the same, but while the group changes over."""

    #: By topic: kind and expression of the filter, in the one form of all that mean the same.
    topics: dict[str, tuple[int, str]]
    strategy: str
    each_for_itself: bool

    @property
    def key(self) -> WishesKey:
        """All of it in a form that can be compared and looked up."""
        return tuple(sorted(self.topics.items())), self.strategy, self.each_for_itself

    @classmethod
    def of(cls, join: pb.Join) -> Wishes:
        """Return what JOIN wants. Raises InvalidArgument, InvalidName or InvalidFilter."""
        check_range("subscriptions", len(join.subscriptions), 0, SUBSCRIPTIONS_MAX)
        topics: dict[str, tuple[int, str]] = {}
        for one in join.subscriptions:
            if check_topic(one.topic) in topics:
                raise InvalidArgument(
                    f"subscriptions: topic {one.topic!r} stands twice: name it once, with one filter",
                    field="subscriptions",
                    value=one.topic,
                )
            plain = normalised(one.filter)
            topics[one.topic] = (plain.kind, plain.expression)
        return cls(topics, check_name("strategy", join.strategy), join.each_for_itself)


def differences(
    mine: Wishes, others: Wishes, sees: Callable[[str], bool] = lambda topic: True
) -> list[str]:
    """Return in words how MINE differ from OTHERS, a topic each; none if they are the same.

    SEES says which topics the user who gets the words may see. The others are counted.
    """
    found = []
    hidden = 0
    for topic in sorted(mine.topics.keys() | others.topics.keys()):
        here, there = mine.topics.get(topic), others.topics.get(topic)
        if here != there and not sees(topic):
            hidden += 1
        elif here != there:
            found.append(
                f"topic {topic!r}: {want_in_words(here)} here, {want_in_words(there)} there"
            )
    if hidden:
        found.append(
            f"{hidden} topic{'s' if hidden > 1 else ''} that one of their users may not see"
        )
    if mine.strategy != others.strategy:
        found.append(f"strategy: {mine.strategy!r} here, {others.strategy!r} there")
    if mine.each_for_itself != others.each_for_itself:
        who = ("by the leader", "each for itself")
        found.append(
            f"allocated {who[mine.each_for_itself]} here, {who[others.each_for_itself]} there"
        )
    return found


def mismatch(
    group: str, mine: pb.Member, other: pb.Member, found: Sequence[str], advice: str
) -> SubscriptionMismatch:
    """Return the error that tells of the differences FOUND between two members of GROUP."""
    told = "; ".join(found[:_TOLD_MAX])
    more = f"; and {len(found) - _TOLD_MAX} more" if len(found) > _TOLD_MAX else ""
    return SubscriptionMismatch(
        f"member {mine.member_id!r} ({mine.peer}) wants something else of group {group!r} than member"
        f" {other.member_id!r} ({other.peer}): {told}{more}: {advice}",
        group=group,
        member=mine.member_id,
        member_peer=mine.peer,
        other=other.member_id,
        other_peer=other.peer,
        difference=told + more,
    )


def want_in_words(want: tuple[int, str] | None) -> str:
    """Return WANT, kind and expression of a filter, as people read it; None: there is no subscription."""
    if want is None:
        return "not subscribed"
    kind, expression = want
    if kind == pb.Filter.ALL:
        return "every message"
    short = expression[:_EXPRESSION_TOLD_MAX]
    short += "…" if len(expression) > _EXPRESSION_TOLD_MAX else ""
    return f"{'tags' if kind == pb.Filter.TAG else 'SQL'} {short!r}"


# --- what members say, checked


def others_member(member_id: str, instance_id: str, group: str) -> NotAuthorized:
    """Return how another user's member is refused: what it is in GROUP is known by its id, or by its instance's."""
    who = f"member {member_id[:64]!r}"
    if instance_id:
        who += f" or instance {instance_id[:64]!r}"
    return NotAuthorized(
        f"{who} of group {group!r} is another user's: take an id of your own",
        resource=f"Group:{group}",
        member=member_id[:64],
    )


def member_of(join: pb.Join, peer: str, timers: Timers, user: str = "") -> JoinedMember:
    """Return who joins with JOIN from PEER, as USER, now, by TIMERS.

    Raises InvalidArgument, InvalidName or InvalidFilter, which name the field.
    """
    check_own_choice(join.group)
    check_member("member_id", join.member_id)
    check_name("instance_id", join.instance_id)
    check_name("room", join.room)
    check_name("kind", join.kind[: _KIND_LENGTH_MAX + 1])
    check_range("kind", len(join.kind), 0, _KIND_LENGTH_MAX)
    check_range("generation", join.generation, 0, GENERATION_MAX)
    timeout_ms = join.session_timeout_ms or SESSION_DEFAULT_MS
    check_range("session_timeout_ms", timeout_ms, SESSION_LEAST_MS, SESSION_MOST_MS)
    wire = pb.Member(
        member_id=join.member_id,
        instance_id=join.instance_id,
        subscriptions=join.subscriptions,
        held=check_held(join.held),
        room=join.room,
        kind=join.kind,
        peer=peer,
    )
    member = JoinedMember(
        wire=wire,
        wishes=Wishes.of(join),
        session_timeout_ms=timeout_ms,
        joined_unix_ms=timers.unix_ms(),
        user=user,
    )
    member.heard(timers)
    return member


def check_held(queues: Sequence[pb.HeldQueue]) -> Sequence[pb.HeldQueue]:
    """Return QUEUES, which a member holds, if they are well-formed; raise InvalidArgument or InvalidName."""
    check_range("held", len(queues), 0, HELD_MAX)
    for queue in queues:
        _check_queue(queue)
    return queues


def check_plan(plan: pb.Plan) -> pb.Plan:
    """Return PLAN if it can be read; raise InvalidArgument or InvalidName."""
    check_range("generation", plan.generation, 0, GENERATION_MAX)
    check_range("shares", sum(len(share.queues) for share in plan.shares), 0, PLANNED_MAX)
    check_range("shares", len(plan.shares), 0, PLANNED_MAX)
    for share in plan.shares:
        check_member("member_id", share.member_id)
        for queue in share.queues:
            _check_queue(queue)
    return plan


def _check_queue(queue: pb.HeldQueue) -> None:
    check_topic(queue.topic)
    if not queue.broker_name:
        raise InvalidArgument(
            f"queue {queue.queue} of {queue.topic!r} names no broker: broker_name is empty",
            field="broker_name",
            value="",
        )
    check_name("broker_name", queue.broker_name)
    check_range("queue", queue.queue, 0, _QUEUE_MAX)
