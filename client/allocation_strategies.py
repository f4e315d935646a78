"""The strategies that assign a group's queues to its members, and how a setting names a strategy.

    strategy = strategy_named("sticky")
    shares = allocated(strategy, [Member("a", topics=topics), Member("b", topics=topics)], queues)

| name | queues of a member |
|---|---|
| `average` | a contiguous part of each topic; RocketMQ's default |
| `average-by-circle` | every n-th queue of each topic |
| `consistent-hash` | the queues whose hash is before one of its points on a ring: few queues move |
| `machine-room` | its part of the queues in the configured data centers, for each topic |
| `machine-room-nearby` | its part of the queues in its own data center, and in data centers without a member |
| `configured` | as a table says |
| `sticky` | the queues that it has, as far as all members get the same number; over all topics |

For the same names of members and queues, all but the last two give the same result as Apache RocketMQ 5.5.
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
#: A package registers strategies in `[project.entry-points."pocketmq.allocation"]`, as name = "module:Class".
ENTRY_POINTS: Final = "pocketmq.allocation"
_NEARBY: Final = "machine-room-nearby"


class Average:
    """Strategy `average`: a contiguous part of each topic per member; the first parts may have one queue more.

    This is "AVG" of RocketMQ, the default. It balances each topic by itself. With many topics of few queues, the first
    members get more queues than the last.
    """

    name = "average"

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(_pieces, members, queues)


def _pieces(members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
    least, longer = divmod(len(queues), len(members))
    starts = [at * least + min(at, longer) for at in range(len(members) + 1)]
    return [queues[start:end] for start, end in pairwise(starts)]


class AverageByCircle:
    """Strategy `average-by-circle`: the queues of each topic go to the members in turn.

    This is "AVG_BY_CIRCLE" of RocketMQ. Neighbouring queues, often of one broker, go to different members.
    """

    name = "average-by-circle"

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(_dealt, members, queues)


def _dealt(members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
    return [queues[at :: len(members)] for at in range(len(members))]


class ConsistentHash:
    """Strategy `consistent-hash`: a new or leaving member moves only its own queues.

    Each member has VIRTUAL_NODES points on a ring, the hashes of "<name>-<number>". A queue belongs to the member at
    the first point at or after the hash of "MessageQueue [topic=…, brokerName=…, queueId=…]", or else at the first
    point of all. The hash is the first four bytes of MD5 as a number. These texts and this hash are those of
    "CONSISTENT_HASH" of RocketMQ.

    The result is less balanced. With ten points, as in RocketMQ, the numbers of queues differ by a third or more. Use
    more points, up to VIRTUAL_NODES_MAX. Raises ConfigError for a number outside the limits.
    """

    name = "consistent-hash"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if not 1 <= virtual_nodes <= VIRTUAL_NODES_MAX:
            raise ConfigError(
                f"virtual_nodes is {virtual_nodes}: it must be 1 to {VIRTUAL_NODES_MAX}",
                field="virtual_nodes",
                limit=VIRTUAL_NODES_MAX,
                value=virtual_nodes,
            )
        self._virtual_nodes = virtual_nodes

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(self._by_ring, members, queues)

    def _by_ring(self, members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
        # If two members have the same point, it belongs to the later one.
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
    """Return the data center in the name of BROKER; empty: the name has none."""
    room, at, name = broker.partition("@")
    return room if at and name and "@" not in name else ""


class MachineRoom:
    """Strategy `machine-room`: only queues of brokers in `rooms`; None: of all brokers whose name has a data center.

    This is "MACHINE_ROOM" of RocketMQ. The data center of a broker is in its name: "<data center>@<name>". Queues of
    other brokers are not assigned, because members in other data centers are meant to read them.
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
    """Return parts of equal length; the first members get one of the remaining queues each."""
    length = len(queues) // len(members)
    even = length * len(members)
    return [
        queues[at * length : (at + 1) * length] + queues[even + at : even + at + 1]
        for at in range(len(members))
    ]


class MachineRoomNearby:
    """Strategy `machine-room-nearby`: queues are assigned to members in the same data center, if there are any.

    This is "MACHINE_ROOM_NEARBY" of RocketMQ. Another strategy, WITHIN (default: `average`), assigns the queues of a
    data center to its members. The queues of a data center without members are assigned to all members. The data center
    of a member is its setting `room`. The one of a broker is in its name ("<data center>@<name>"); `room_of` finds it.
    Members and brokers without a data center belong together, so that every queue is assigned.
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
        for queues_there, all_members in far:
            self._divide(all_members, queues_there, shares)
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
    """Strategy `configured`: a table has the queues of each member.

    This is "CONFIG" of RocketMQ, with one table for the whole group. SHARES has queues by instance id, or by member id
    for members without one. Other queues are not assigned. Queues that do not exist, or whose topic the member does not
    subscribe to, are ignored. Raises ConfigError if a queue is assigned to two members.
    """

    name = "configured"

    def __init__(self, shares: Mapping[str, Iterable[Queue]]) -> None:
        self._owners: dict[Queue, str] = {}
        for place, queues in shares.items():
            for queue in queues:
                owner = self._owners.setdefault(queue, place)
                if owner != place:
                    raise ConfigError(
                        f"queue {queue} is configured for {owner!r} and for {place!r}: remove one of them",
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
    """Return the strategy WANTED: an object, a class, or a name.

    A name is one of the table above, `machine-room-nearby-` plus another name, the name of an entry point, or
    "module:Class" of a class without required arguments. Raises ConfigError, which lists the known names.
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
    from importlib.metadata import entry_points  # Here, because it takes long to import.

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
    raise _refused(name, f"is unknown: use {', '.join(known_strategies())}, or module:Class")


def _loaded(path: str, name: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module.strip()), attribute.strip())
    except (ImportError, AttributeError, ValueError) as error:
        raise _refused(name, f"cannot be loaded from {path!r}: {error}") from error


def _made(kind: Any, name: str) -> Strategy:
    """Return an object of the class KIND. If KIND is not callable, it is the strategy itself."""
    if not callable(kind):
        return _checked(kind, name)
    try:
        made = kind()
    except TypeError as error:
        raise _refused(
            name, f"needs {_arguments(kind)}: pass an object instead of a class or name"
        ) from error
    return _checked(made, name)


def _arguments(kind: Callable[..., Any]) -> str:
    """Return the names of the required arguments of KIND, for an error message."""
    try:
        needed = [
            one.name
            for one in signature(kind).parameters.values()
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):  # Classes in C may have no signature.
        needed = []
    return f"arguments ({', '.join(needed)})" if needed else "arguments"


def _checked(strategy: Any, name: str) -> Strategy:
    if not isinstance(getattr(strategy, "name", None), str) or not callable(
        getattr(strategy, "allocate", None)
    ):
        raise _refused(name, "has no `name` or no `allocate(members, queues)`: add both")
    result: Strategy = strategy
    return result


def _refused(name: str, why: str) -> ConfigError:
    return ConfigError(f"allocation strategy {name!r} {why}", field="strategy", value=name)
