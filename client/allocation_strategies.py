"""The strategies by which a group's queues are divided, and how a setting names one.

    strategy = strategy_named("sticky")
    shares = allocated(strategy, [Member("a", topics=topics), Member("b", topics=topics)], queues)

| name | a member gets |
|---|---|
| `average` | of each topic a piece without gaps; RocketMQ's default |
| `average-by-circle` | of each topic every n-th queue |
| `consistent-hash` | the queues whose hash falls before one of its points on a ring: a change of members moves few |
| `machine-room` | of each topic its part of the queues in the rooms that were named |
| `machine-room-nearby` | the queues of its own room, and its part of those in rooms without a member |
| `configured` | what a table says |
| `sticky` | what it has, as far as all have the same number; over all topics at once |

All but the last two compute what Apache RocketMQ 5.5 computes for members and queues of the same names.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final

from ..proto.errors import ConfigError
from .allocation import (
    Member,
    Shares,
    Strategy,
    java_order,
    ordered_members,
    ordered_queues,
    topic_by_topic,
)
from .queue import Queue
from .sticky_allocation import Sticky

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

VIRTUAL_NODES: Final = 10
VIRTUAL_NODES_MAX: Final = 100_000
#: A package announces strategies in `[project.entry-points."pocketmq.allocation"]`, as name = "module:Class".
ENTRY_POINTS: Final = "pocketmq.allocation"
_NEARBY: Final = "machine-room-nearby"


class Average:
    """Strategy `average`: each topic in pieces without gaps, the first ones longer by one.

    It is RocketMQ's "AVG", its default. It balances topic by topic: with many topics of few queues the first members
    get more than the last.
    """

    name = "average"

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(_pieces, members, queues)


def _pieces(members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
    least, longer = divmod(len(queues), len(members))
    starts = [at * least + min(at, longer) for at in range(len(members) + 1)]
    return [queues[start:end] for start, end in pairwise(starts)]


class AverageByCircle:
    """Strategy `average-by-circle`: the queues of each topic are dealt out one by one. RocketMQ's "AVG_BY_CIRCLE".

    Neighbours, which often are on one broker, go to different members.
    """

    name = "average-by-circle"

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(_dealt, members, queues)


def _dealt(members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
    return [queues[at :: len(members)] for at in range(len(members))]


class ConsistentHash:
    """Strategy `consistent-hash`: members and queues on one ring; who comes or goes moves only queues of its own.

    A member is at VIRTUAL_NODES points, the hashes of "<name>-<number>"; a queue belongs to the member at the first
    point at or after the hash of "MessageQueue [topic=…, brokerName=…, queueId=…]", or else at the first of all. The
    hash is the first four bytes of MD5 as a number. These texts and this hash are those of RocketMQ's
    "CONSISTENT_HASH".

    The price of moving little is balance: with RocketMQ's ten points shares differ by a third and more; take more, up
    to VIRTUAL_NODES_MAX. Raises ConfigError for another number.
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
    """Strategy `machine-room`: only queues of brokers in ROOMS; None: of all that name one. RocketMQ's "MACHINE_ROOM".

    The room of a broker is in its name: "<room>@<name>". Queues of brokers without, and of other rooms, go to
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

    RocketMQ's "MACHINE_ROOM_NEARBY": another strategy divides the queues of a room among the members of that room;
    those of a room without members it divides among all. Members say their room, brokers have it in their names
    ("<room>@<name>"). Who names none is in a room of its own kind, without a name: nothing is left out.

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
    """Strategy `configured`: a table says who reads what. RocketMQ's "CONFIG", with one table for the whole group.

    SHARES: queues by instance id, or by member id for members without one. What it leaves out goes to no member.

    Queues that do not exist, or whose topic the member does not subscribe to, are passed over. Raises ConfigError for a
    queue that it has twice.
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
