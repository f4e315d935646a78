"""Which member of a group reads which queues: strategies, pure functions of members and queues.

    strategy = strategy_named("sticky")
    shares = allocated(strategy, [Member("a", topics=topics), Member("b", topics=topics)], queues)

| name | a member gets |
|---|---|
| `average` | of each topic a piece without gaps; Apache's default |
| `average-by-circle` | of each topic every n-th queue |
| `consistent-hash` | the queues whose hash falls before one of its points on a ring: who comes or goes moves few |
| `machine-room` | of each topic its part of the queues in the rooms that were named |
| `machine-room-nearby` | the queues of its own room, and its part of those in rooms without a member |
| `configured` | what a table says |
| `sticky` | what it has, as far as all have the same number; over all topics at once |

All but the last two compute what Apache RocketMQ 5.5 computes for members and queues of the same names. Members and
queues are counted in Apache's order, so that the same names give the same result: members by their names, queues by
topic, broker and number, strings compared as Java compares them (by UTF-16 units).

An own strategy is any object with a `name` and `allocate`: see `Strategy`. A group must not suffer from its faults:
`allocated` finds them.

`sticky` is made after Kafka's sticky assignor. Where all members subscribe to the same topics, their numbers of queues
differ by one at most and no balanced division moves fewer queues. Where subscriptions differ, no member could be
relieved by one that has at least two fewer, not even over others; few queues move, though not always the fewest. Cost:
O(queues · log members); with differing subscriptions O(members² · topics) on top.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from sortedcontainers import SortedList

from ..proto.errors import ConfigError
from .queue import Queue

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_NOBODY: Final = -1


class Sticky:
    """Members keep what they say they hold (`Member.held`); two that say the same: the first by name."""

    name = "sticky"

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        present = ordered_members(members)
        table = _Table(present, ordered_queues(queues))
        table.hand_out()
        table.even_out_equals()
        if table.has_differing_members:
            table.even_out_over_others()
        return {
            member.member_id: ordered_queues(share)
            for member, share in zip(present, table.shares, strict=True)
        }


class _Table:
    """A division under way. Members are known by their index in MEMBERS; *equals* subscribe to the same topics."""

    def __init__(self, members: list[Member], queues: list[Queue]) -> None:
        self._queues = queues
        topics = {queue.topic for queue in queues}
        self._wants = [member.topics & topics for member in members]
        self.shares: list[list[Queue]] = [[] for _ in members]
        #: Of each set of equals: (number of queues, index), fewest first.
        self._equals: dict[frozenset[str], SortedList] = {}
        for at, wants in enumerate(self._wants):
            self._equals.setdefault(wants, SortedList()).add((0, at))
        self._takers = {
            topic: [equals for wants, equals in self._equals.items() if topic in wants]
            for topic in topics
        }
        self._holder = self._holders(members)

    def _holders(self, members: list[Member]) -> dict[Queue, int]:
        """Return who holds a queue now, and may go on."""
        there = set(self._queues)
        holders: dict[Queue, int] = {}
        for at, member in enumerate(members):
            for queue in member.held:
                if queue in there and queue.topic in self._wants[at]:
                    holders.setdefault(queue, at)
        return holders

    @property
    def has_differing_members(self) -> bool:
        return len(self._equals) > 1

    def _give(self, queue: Queue, at: int) -> None:
        self._count(at, 1)
        self.shares[at].append(queue)

    def _count(self, at: int, by: int) -> None:
        equals, number = self._equals[self._wants[at]], len(self.shares[at])
        equals.remove((number, at))
        equals.add((number + by, at))

    def _move(self, queue: Queue, source: int, target: int) -> None:
        self._count(source, -1)
        self.shares[source].remove(queue)
        self._give(queue, target)

    def hand_out(self) -> None:
        """Leave queues where they are, and give the others to whoever has the fewest."""
        for queue, at in self._holder.items():
            self._give(queue, at)
        for queue in self._queues:
            if queue not in self._holder and self._takers[queue.topic]:
                self._give(queue, min(equals[0] for equals in self._takers[queue.topic])[1])

    def even_out_equals(self) -> None:
        """Move queues among equals until they have the same number, or one more."""
        for equals in self._equals.values():
            while equals[-1][0] - equals[0][0] > 1:
                source, target = equals[-1][1], equals[0][1]
                self._move(self._loosest(source, None), source, target)

    def _loosest(self, source: int, topic: str | None) -> Queue:
        """Return the queue of SOURCE, of TOPIC if given, whose move costs least: one that it does not hold yet."""
        share = [queue for queue in self.shares[source] if topic in (None, queue.topic)]
        strange = (queue for queue in reversed(share) if self._holder.get(queue, _NOBODY) != source)
        return next(strange, share[-1])

    def even_out_over_others(self) -> None:
        """Hand queues along chains of members from one with many to one with at least two fewer."""
        while any(self._relieve(source) for source in self._by_number()):
            pass

    def _by_number(self) -> list[int]:
        return sorted(range(len(self.shares)), key=lambda at: (-len(self.shares[at]), at))

    def _relieve(self, source: int) -> bool:
        """Take one queue off SOURCE if a chain leads to a member with at least two fewer; return whether."""
        came_from = dict(self._reachable(source))
        end = min(came_from, key=lambda at: (len(self.shares[at]), at), default=source)
        if len(self.shares[source]) - len(self.shares[end]) < 2:
            return False
        while end != source:
            giver, topic = came_from[end]
            self._move(self._loosest(giver, topic), giver, end)
            end = giver
        return True

    def _reachable(self, source: int) -> Iterator[tuple[int, tuple[int, str]]]:
        """Yield each member that a queue of SOURCE's can end at, nearest first, with its giver and the topic."""
        seen = {source}
        row = [source]
        for giver in row:
            for topic in sorted({queue.topic for queue in self.shares[giver]}):
                for taker in sorted(at for equals in self._takers[topic] for _, at in equals):
                    if taker not in seen:
                        seen.add(taker)
                        row.append(taker)
                        yield taker, (giver, topic)


# ---------------------------------------------------------------- strategies


VIRTUAL_NODES: Final = 10
VIRTUAL_NODES_MAX: Final = 100_000
#: A package announces strategies in `[project.entry-points."pocketmq.allocation"]`, as name = "module:Class".
ENTRY_POINTS: Final = "pocketmq.allocation"
_NEARBY: Final = "machine-room-nearby"


class Average:
    """Strategy `average`: each topic in pieces without gaps, the first ones longer by one. Apache's "AVG", its default.

    It balances topic by topic: with many topics of few queues the first members get more than the last.
    """

    name = "average"

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(_pieces, members, queues)


def _pieces(members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
    least, longer = divmod(len(queues), len(members))
    starts = [at * least + min(at, longer) for at in range(len(members) + 1)]
    return [queues[start:end] for start, end in pairwise(starts)]


class AverageByCircle:
    """Strategy `average-by-circle`: the queues of each topic are dealt out one by one. Apache's "AVG_BY_CIRCLE".

    Neighbours, which often lie on one broker, go to different members.
    """

    name = "average-by-circle"

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(_dealt, members, queues)


def _dealt(members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
    return [queues[at :: len(members)] for at in range(len(members))]


class ConsistentHash:
    """Strategy `consistent-hash`: members and queues on one ring; who comes or goes moves only queues of its own.

    A member stands at VIRTUAL_NODES points, the hashes of "<name>-<number>"; a queue belongs to the member at the first
    point at or after the hash of "MessageQueue [topic=…, brokerName=…, queueId=…]", or else at the first of all. The
    hash is the first four bytes of MD5 as a number. These texts and this hash are those of Apache's "CONSISTENT_HASH".

    The price of moving little is balance: with Apache's ten points shares differ by a third and more; take more, up to
    VIRTUAL_NODES_MAX. Raises ConfigError for another number.
    """

    name = "consistent-hash"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if not 1 <= virtual_nodes <= VIRTUAL_NODES_MAX:
            raise ConfigError(
                f"virtual_nodes is {virtual_nodes}, but must be 1 to {VIRTUAL_NODES_MAX}",
                field="virtual_nodes",
                limit=VIRTUAL_NODES_MAX,
                value=virtual_nodes,
            )
        self._virtual_nodes = virtual_nodes

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(self._by_ring, members, queues)

    def _by_ring(self, members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
        # A point that two members share belongs to the later one.
        ring = {
            _hash(f"{member.place}-{number}"): at
            for at, member in enumerate(members)
            for number in range(self._virtual_nodes)
        }
        points = sorted(ring)
        shares: list[list[Queue]] = [[] for _ in members]
        for queue in queues:
            at = bisect_left(points, _hash(_java_text(queue)))
            shares[ring[points[at % len(points)]]].append(queue)
        return shares


def _java_text(queue: Queue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.number}]"


def _hash(text: str) -> int:
    digest = hashlib.md5(text.encode(errors="replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4])


def room_of_broker(broker: str) -> str:
    """Return the room in BROKER's name; empty: it names none."""
    room, at, name = broker.partition("@")
    return room if at and name and "@" not in name else ""


class MachineRoom:
    """Strategy `machine-room`: only queues of brokers in ROOMS; None: of all that name one. Apache's "MACHINE_ROOM".

    The room of a broker stands in its name: "<room>@<name>". Queues of brokers without, and of other rooms, go to
    nobody: members elsewhere are meant to read them.
    """

    name = "machine-room"

    def __init__(self, rooms: Iterable[str] | None = None) -> None:
        self._rooms = None if rooms is None else frozenset(rooms)

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(_divided, members, [one for one in queues if self._is_here(one)])

    def _is_here(self, queue: Queue) -> bool:
        room = room_of_broker(queue.broker)
        return bool(room) if self._rooms is None else room in self._rooms


def _divided(members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
    """Return pieces of equal length, and what is over, one each, to the first members."""
    length = len(queues) // len(members)
    even = length * len(members)
    return [
        queues[at * length : (at + 1) * length] + queues[even + at : even + at + 1]
        for at in range(len(members))
    ]


class MachineRoomNearby:
    """Strategy `machine-room-nearby`: queues stay in their machine room as long as a member lives there.

    Apache's "MACHINE_ROOM_NEARBY": another strategy divides the queues of a room among the members of that room; those
    of a room without members it divides among all. Members say their room, brokers have it in their names
    ("<room>@<name>"). Who names none stands in a room of its own kind, without a name: nothing is left out.

    Divides by WITHIN (default: `average`) what each room has; ROOM_OF tells a broker's room from its name.
    """

    def __init__(
        self, within: Strategy | None = None, room_of: Callable[[str], str] = room_of_broker
    ) -> None:
        self._within = within or Average()
        self._room_of = room_of
        self.name = "machine-room-nearby" + (f"-{within.name}" if within else "")

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(self._by_room, members, queues)

    def _by_room(self, members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
        shares: Shares = {member.member_id: [] for member in members}
        far: list[tuple[list[Queue], Sequence[Member]]] = []
        for room, queues_there in self._rooms(queues):
            members_there = [member for member in members if member.room == room]
            if members_there:
                self._divide(members_there, queues_there, shares)
            else:
                far.append((queues_there, members))
        for queues_there, everybody in far:
            self._divide(everybody, queues_there, shares)
        return [shares[member.member_id] for member in members]

    def _rooms(self, queues: list[Queue]) -> list[tuple[str, list[Queue]]]:
        def room(queue: Queue) -> bytes:
            return java_order(self._room_of(queue.broker))

        by_room = groupby(sorted(queues, key=room), key=lambda queue: self._room_of(queue.broker))
        return [(name, list(group)) for name, group in by_room]

    def _divide(self, members: Sequence[Member], queues: list[Queue], shares: Shares) -> None:
        for member_id, share in self._within.allocate(ordered_members(members), queues).items():
            shares[member_id].extend(share)


class Configured:
    """Strategy `configured`: a table says who reads what. Apache's "CONFIG", with one table for the whole group.

    SHARES: queues by instance id, or by member id for members without one. What it leaves out goes to nobody.

    Queues that do not exist, or whose topic the member does not subscribe to, are passed over. Raises ConfigError for a
    queue that stands there twice.
    """

    name = "configured"

    def __init__(self, shares: Mapping[str, Iterable[Queue]]) -> None:
        self._owners: dict[Queue, str] = {}
        for place, queues in shares.items():
            for queue in queues:
                owner = self._owners.setdefault(queue, place)
                if owner != place:
                    raise ConfigError(
                        f"queue {queue} is configured for {owner!r} and for {place!r}: leave one of them",
                        field="shares",
                        value=queue,
                    )

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        present = ordered_members(members)
        by_place = {member.place: member for member in present}
        shares: Shares = {member.member_id: [] for member in present}
        for queue in ordered_queues(queues):
            owner = by_place.get(self._owners.get(queue, ""))
            if owner is not None and queue.topic in owner.topics:
                shares[owner.member_id].append(queue)
        return shares


# --- names

_KNOWN: Final[dict[str, Callable[..., Strategy]]] = {
    "average": Average,
    "average-by-circle": AverageByCircle,
    "consistent-hash": ConsistentHash,
    "machine-room": MachineRoom,
    _NEARBY: MachineRoomNearby,
    "configured": Configured,
    "sticky": Sticky,
}


def strategy_named(wanted: str | type[Strategy] | Strategy) -> Strategy:
    """Return the strategy that WANTED is or names.

    A name is one of this package's, "machine-room-nearby-" and another's, an entry point's, or "module:Class" of a
    class that needs no arguments. Raises ConfigError, which lists the names that are known.
    """
    if isinstance(wanted, str):
        return _by_name(wanted)
    if isinstance(wanted, type):
        return _made(wanted, wanted.__name__)
    return _checked(wanted, repr(wanted))


def known_strategies() -> list[str]:
    """Return the names of this package's strategies, then those of entry points."""
    return [
        *_KNOWN,
        *sorted({point.name for point in _points()} - set(_KNOWN)),
    ]


def _points(name: str | None = None) -> tuple[EntryPoint, ...]:
    """Return the entry points of strategies, or those called NAME."""
    from importlib.metadata import entry_points  # As long as a fifth of all other imports.

    found = entry_points(group=ENTRY_POINTS)
    return tuple(found if name is None else found.select(name=name))


def _by_name(name: str) -> Strategy:
    if name in _KNOWN:
        return _made(_KNOWN[name], name)
    if name.startswith(_NEARBY + "-"):
        return MachineRoomNearby(_by_name(name.removeprefix(_NEARBY + "-")))
    if points := _points(name):
        return _made(_loaded(points[0].value, name), name)
    if ":" in name:
        return _made(_loaded(name, name), name)
    raise _refused(name, f"is not known: choose {', '.join(known_strategies())}, or module:Class")


def _loaded(path: str, name: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module.strip()), attribute.strip())
    except (ImportError, AttributeError, ValueError) as error:
        raise _refused(name, f"cannot be loaded from {path!r}: {error}") from error


def _made(kind: Any, name: str) -> Strategy:
    """Return what KIND, a class, makes; what is no class is the strategy itself."""
    if not callable(kind):
        return _checked(kind, name)
    try:
        made = kind()
    except TypeError as error:
        raise _refused(
            name, f"needs {_arguments(kind)}: hand over an object that has them"
        ) from error
    return _checked(made, name)


def _arguments(kind: Callable[..., Any]) -> str:
    """Return what KIND must be given, in words."""
    try:
        needed = [
            one.name
            for one in signature(kind).parameters.values()
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):  # Classes of C may not tell.
        needed = []
    return f"arguments ({', '.join(needed)})" if needed else "arguments"


def _checked(strategy: Any, name: str) -> Strategy:
    if not isinstance(getattr(strategy, "name", None), str) or not callable(
        getattr(strategy, "allocate", None)
    ):
        raise _refused(name, "is no strategy: it needs a `name` and `allocate(members, queues)`")
    result: Strategy = strategy
    return result


def _refused(name: str, why: str) -> ConfigError:
    return ConfigError(f"allocation strategy {name!r} {why}", field="strategy", value=name)


# ---------------------------------------------------------------- an allocation strategy


@dataclass(frozen=True, slots=True)
class Member:
    """One member: MEMBER_ID is unique among the living, INSTANCE_ID outlives a restart and may be empty.

    ROOM is the machine room it stands in, HELD what it reads now, TOPICS what it subscribes to.
    """

    member_id: str
    instance_id: str = ""
    room: str = ""
    held: tuple[Queue, ...] = ()
    topics: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """The name by which strategies know it: the same after a restart if it has an instance id."""
        return self.instance_id or self.member_id


def java_order(text: str) -> bytes:
    """Return a key that sorts as Java's String.compareTo does."""
    return text.encode("utf-16-be", "surrogatepass")


def ordered_members(members: Iterable[Member]) -> list[Member]:
    """Return MEMBERS ordered by place."""
    return sorted(members, key=lambda one: (java_order(one.place), java_order(one.member_id)))


def ordered_queues(queues: Iterable[Queue]) -> list[Queue]:
    """Return QUEUES ordered as Java's MessageQueue.compareTo orders them."""
    return sorted(
        queues, key=lambda queue: (java_order(queue.topic), java_order(queue.broker), queue.number)
    )


#: The queues of each member, by member id.
Shares: TypeAlias = dict[str, list[Queue]]
#: One topic: from the members that subscribe to it and its queues, both in order and not empty, one share a member.
Rule: TypeAlias = Callable[[list[Member], list[Queue]], Sequence[list[Queue]]]


class Strategy(Protocol):
    """Divides queues among members. The same input, in whatever order, gives the same result everywhere."""

    @property
    def name(self) -> str:
        """What it is called in settings and by the coordinator."""
        ...

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        """Return the queues of each member; QUEUES are those of all topics that anybody subscribes to.

        A queue goes to one member at most, and only to one that subscribes to its topic.
        """
        ...


def topic_by_topic(rule: Rule, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
    """Return what RULE makes of each topic by itself, among the members that subscribe to it."""
    present = ordered_members(members)
    shares: Shares = {member.member_id: [] for member in present}
    for topic, group in groupby(ordered_queues(queues), key=lambda queue: queue.topic):
        takers = [member for member in present if topic in member.topics]
        if not takers:
            continue
        for member, share in zip(takers, rule(takers, list(group)), strict=True):
            shares[member.member_id].extend(share)
    return shares


def allocated(strategy: Strategy, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
    """Return what STRATEGY gives each of MEMBERS, an entry for each, also where it gave none.

    Raises ConfigError if it gave a queue twice, one that is not there, one to a stranger, or one to a member that does
    not subscribe to its topic. Queues that it gave to nobody are no fault.
    """
    shares = strategy.allocate(members, queues)
    topics = {member.member_id: member.topics for member in members}
    there = set(queues)
    owners: dict[Queue, str] = {}
    for member_id, share in shares.items():
        for queue in share:
            if member_id not in topics:
                raise _fault(strategy, queue, f"to {member_id!r}, which is no member")
            if queue not in there:
                raise _fault(strategy, queue, f"to {member_id!r}, but there is no such queue")
            if queue.topic not in topics[member_id]:
                raise _fault(strategy, queue, f"to {member_id!r}, which does not subscribe to it")
            if queue in owners:
                raise _fault(strategy, queue, f"to {owners[queue]!r} and to {member_id!r}")
            owners[queue] = member_id
    return {member_id: list(shares.get(member_id, ())) for member_id in topics}


def _fault(strategy: Strategy, queue: Queue, where: str) -> ConfigError:
    return ConfigError(
        f"allocation strategy {strategy.name!r} gave queue {queue} {where}: correct the strategy",
        field="strategy",
        value=strategy.name,
        queue=queue,
    )


class Move(NamedTuple):
    """QUEUE goes from member SOURCE to member TARGET; empty: nobody has it before, or afterwards."""

    queue: Queue
    source: str
    target: str


def moves(
    before: Mapping[str, Iterable[Queue]], after: Mapping[str, Iterable[Queue]]
) -> list[Move]:
    """Return what moves from the shares BEFORE to those AFTER, queues in order."""
    old = {queue: member for member, share in before.items() for queue in share}
    new = {queue: member for member, share in after.items() for queue in share}
    return [
        Move(queue, old.get(queue, ""), new.get(queue, ""))
        for queue in ordered_queues(old.keys() | new.keys())
        if old.get(queue, "") != new.get(queue, "")
    ]
