"""QueryRoute and QueryAssignment: the queues of a topic, what a push consumer receives from, and where both are found.

The answer has the queues of all brokers that have the topic: ours under the access point that the client has dialled,
those of others where they are registered. Brokers take turns, by name: a simple consumer asks one queue after the
other, and waits at each for messages. Whichever broker is asked, the order is the same, since clients find the queue of
a message group by its place in it. Clients go to each broker by themselves: with settings and heartbeats,
for receives, and with what they got from it (receipt handles, transactions). A topic that does not exist anywhere is
TOPIC_NOT_FOUND and is not made by asking: the clients ask before they send, so that a misspelt name is noticed. Of each
broker, queues that can be read and written come first, since clients of Node.js use only the queue 0.

A group that is not orderly is assigned one queue a broker, with id −1, which stands for all of that broker, because
receiving looks into all of them anyway; an orderly one every queue to read.

A client says in its questions for routes, and in its settings, at which access point it found the broker. The answer
names the same one: whatever lies between (a forwarded port, a container's name, a service of Kubernetes, IPv6), the
client has just come that way. `broker.v2_endpoints` overrules that, for a balancer in front of several brokers. A
client that does not say is told the broker's own address. Of an access point that lists several brokers, ours is the
address that no other broker is registered under.

Of a replica set all that live are named, the master first, to whoever has dialled any of them: each takes calls, and a
client whose connection breaks finds the next one by itself. Where they are known by names, and not by addresses, it is
the master alone, since clients refuse several names. Clients of Node.js are told one address, the one that they have
dialled: of several they make one name that cannot be resolved. A replica that is not the master relays their calls.

Source: v2-protocol §3.3, §4.2; the recordings query-route and query-assignment.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import Message

from ...proto.errors import GroupNotFound, PocketMQError
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, MethodTable
from ...proto.topics import PERMISSION_ALL, PERMISSION_READ, PERMISSION_WRITE
from ..consumer_groups import Groups
from ..neighbours import Neighbours, OtherQueues
from ..topics import Topics
from .heartbeats import LANGUAGE
from .messages import accepted_by, accepted_types, group_name, topic_name
from .service import service, unary
from .statuses import OK, Refused, status_of, status_of_bug

#: The queue that stands for all queues of a broker.
ALL_QUEUES: Final = -1
#: Languages, as clients name them, that take one address alone; those of Node.js say HTTP.
_TAKE_ONE_ADDRESS: Final = frozenset({"HTTP", "NODE_JS"})
_PORT_MAX: Final = 65_535
_ADDRESSES_MAX: Final = 64


_Question: TypeAlias = v2.QueryRouteRequest | v2.QueryAssignmentRequest
Item = TypeVar("Item")


class RouteQueries:
    """The routes of the broker NAME."""

    def __init__(
        self, name: str, topics: Topics, groups: Groups, reach: Reach, neighbours: Neighbours
    ) -> None:
        self._name = name
        self._topics = topics
        self._groups = groups
        self._reach = reach
        self._neighbours = neighbours

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "QueryRoute": unary(v2.QueryRouteRequest, v2.QueryRouteResponse, self.route),
                "QueryAssignment": unary(
                    v2.QueryAssignmentRequest, v2.QueryAssignmentResponse, self.assignment
                ),
            }
        )

    def route(self, request: v2.QueryRouteRequest, call: Call) -> Any:
        """Answer the queues of a topic."""
        name = topic_name(request.topic)

        def answer(others: Sequence[OtherQueues]) -> v2.QueryRouteResponse:
            return v2.QueryRouteResponse(
                status=OK,
                message_queues=[
                    v2.MessageQueue(
                        topic=request.topic,
                        id=queue,
                        permission=permission,
                        broker=share.broker,
                        accept_message_types=share.accepted,
                    )
                    for share, (queue, permission) in _in_turns(
                        (share, _queues(share))
                        for share in self._shares(name, call, request, others)
                    )
                ],
            )

        return self._with_others(name, call, answer, v2.QueryRouteResponse)

    def assignment(self, request: v2.QueryAssignmentRequest, call: Call) -> Any:
        """Answer what a member of a group receives from: the same for all of them."""
        name = topic_name(request.topic)
        group = group_name(request.group, self._groups)

        def answer(others: Sequence[OtherQueues]) -> v2.QueryAssignmentResponse:
            shares = self._shares(name, call, request, others)
            readable = [share for share in shares if share.permission & PERMISSION_READ]
            if not readable:
                raise Refused(
                    v2.FORBIDDEN,
                    f"topic {name!r} has no queue to read: its permission, {shares[0].permission}, does not include"
                    " reading (4)",
                    topic=name,
                    permission=shares[0].permission,
                )
            is_orderly = self._is_orderly(group)
            return v2.QueryAssignmentResponse(
                status=OK,
                assignments=[
                    v2.Assignment(
                        message_queue=v2.MessageQueue(
                            topic=request.topic,
                            id=queue,
                            permission=_permission(share.permission),
                            broker=share.broker,
                        )
                    )
                    for share, queue in _in_turns(
                        (share, range(share.read_queues) if is_orderly else (ALL_QUEUES,))
                        for share in readable
                    )
                ],
            )

        return self._with_others(name, call, answer, v2.QueryAssignmentResponse)

    def _with_others(
        self,
        name: str,
        call: Call,
        answer: Callable[[Sequence[OtherQueues]], Message],
        reply_type: type[Any],
    ) -> Any:
        """Return what ANSWER makes of what other brokers have of topic NAME; or LATER, if that has to be asked for."""
        others = self._neighbours.known(name)
        if others is not None:
            return answer(others)

        def told(found: Sequence[OtherQueues]) -> None:
            try:
                reply = answer(found)
            except PocketMQError as error:
                reply = reply_type(status=status_of(error))
            except Exception as bug:  # The edge: others hear of the same answer.
                reply = reply_type(status=status_of_bug(reply_type.DESCRIPTOR.name, bug))
            call.reply(reply)

        self._neighbours.ask(name, told)
        return LATER

    def _shares(
        self, name: str, call: Call, request: _Question, others: Sequence[OtherQueues]
    ) -> list[_Share]:
        """Return what each broker has of topic NAME, by their names, for a client that asks REQUEST by CALL.

        Raises TopicNotFound if none has anything.
        """
        topic = self._topics.find(name) if others else self._topics.get(name)
        dialled = request.endpoints
        reach = self._reach.of(dialled, self._neighbours.addresses)
        takes_one = call.metadata.get(LANGUAGE, "").upper() in _TAKE_ONE_ADDRESS
        shares = [
            _Share(
                _broker(
                    other.broker, endpoints_of_replicas(other.addresses[: 1 if takes_one else None])
                ),
                other.read_queues,
                other.write_queues,
                other.permission,
                accepted_by(other.type),
            )
            for other in others
        ]
        if topic is not None:
            own = _Share(
                _broker(self._name, _one_of(reach, dialled) if takes_one else reach),
                topic.read_queues,
                topic.write_queues,
                topic.permission,
                accepted_types(topic),
            )
            shares.append(own)
        return sorted(shares, key=lambda share: share.broker.name)

    def _is_orderly(self, group: str) -> bool:
        try:
            return self._groups.get(group).consume_message_orderly
        except GroupNotFound:
            return False


class _Share(NamedTuple):
    """What one broker has of a topic."""

    broker: v2.Broker
    read_queues: int
    write_queues: int
    permission: int
    accepted: tuple[v2.MessageType, ...]


def _in_turns(shares: Iterable[tuple[_Share, Iterable[Item]]]) -> Iterator[tuple[_Share, Item]]:
    """Yield each share with each of its items: the first item of every share, the second of every share, …"""
    left = [(share, iter(items)) for share, items in shares]
    while left:
        going_on = []
        for share, items in left:
            for item in items:
                yield share, item
                going_on.append((share, items))
                break
        left = going_on


def _one_of(reach: v2.Endpoints, dialled: v2.Endpoints) -> v2.Endpoints:
    """Return one address of REACH, if possible one that was DIALLED."""
    known = [one for one in reach.addresses if one in dialled.addresses] or reach.addresses
    return v2.Endpoints(scheme=reach.scheme, addresses=known[:1])


def _broker(name: str, endpoints: v2.Endpoints) -> v2.Broker:
    # The clients take brokers with id 0 alone for masters.
    return v2.Broker(name=name, id=0, endpoints=endpoints)


def _queues(share: _Share) -> Iterator[tuple[int, v2.Permission]]:
    """Yield number and permission of every queue; at least one."""
    read = share.read_queues if share.permission & PERMISSION_READ else 0
    written = share.write_queues if share.permission & PERMISSION_WRITE else 0
    for queue in range(max(read, written)):
        both = (queue < read) * PERMISSION_READ + (queue < written) * PERMISSION_WRITE
        yield queue, _permission(both)
    if not read and not written:
        yield from ((queue, v2.NONE) for queue in range(max(1, share.read_queues)))


def _permission(bits: int) -> v2.Permission:
    return {
        PERMISSION_ALL: v2.READ_WRITE,
        PERMISSION_READ: v2.READ,
        PERMISSION_WRITE: v2.WRITE,
    }.get(bits & PERMISSION_ALL, v2.NONE)


# --- where clients are told to connect to


class Reach:
    """FIXED: "host:port" of the addresses that every client is told; none: as it dialled. OWN: the broker's address,
    and those of its replicas, if it has some, behind it.
    """

    def __init__(self, fixed: Sequence[str], own: Callable[[], Sequence[str]]) -> None:
        self._fixed = endpoints_at(fixed) if fixed else None
        self._own = own

    def of(self, dialled: v2.Endpoints, elsewhere: Collection[str] = ()) -> v2.Endpoints:
        """Return what a client that DIALLED an access point connects to; raise Refused (ILLEGAL_ACCESS_POINT).

        ELSEWHERE: the addresses of other brokers, "host:port".
        """
        if self._fixed is not None:
            return self._fixed
        own = self._own()
        if not dialled.addresses:
            return endpoints_of_replicas(own)
        _check(dialled)
        pairs = [(address.host, address.port) for address in dialled.addresses]
        ours = [pair for pair in pairs if _written(*pair) not in elsewhere]
        if not ours:  # It has dialled another broker, and comes here by a route: C++ asks any of one for assignments.
            return endpoints_of_replicas(own)
        if len(own) > 1 and all(_written(*pair) in own for pair in ours):
            return endpoints_of_replicas(own)
        if dialled.scheme and len(ours) == len(pairs):
            return dialled
        return _endpoints(ours)

    def of_settings(self, dialled: v2.Endpoints) -> v2.Endpoints:
        """Return the same for an access point that a client need not have: one that is none counts as not said."""
        try:
            found = self.of(dialled)
        except Refused:
            found = self.of(v2.Endpoints())
        if len(self._own()) > 1:  # What is measured goes to one of them.
            del found.addresses[1:]
        return found


def endpoints_at(addresses: Sequence[str]) -> v2.Endpoints:
    """Return the endpoints of ADDRESSES: "name:port", "127.0.0.1:8081", "[::1]:8081"."""
    split = [address.rpartition(":") for address in addresses]
    return _endpoints([(host.strip("[]"), int(port)) for host, _, port in split])


def endpoints_of_replicas(addresses: Sequence[str]) -> v2.Endpoints:
    """Return the endpoints of ADDRESSES, the master's first, as far as clients take several."""
    first = endpoints_at(addresses[:1])
    if first.scheme != v2.DOMAIN_NAME:
        for address in addresses[1:]:
            other = endpoints_at([address])
            if other.scheme == first.scheme:
                first.addresses.extend(other.addresses)
    return first


def _endpoints(addresses: Sequence[tuple[str, int]]) -> v2.Endpoints:
    schemes = {_scheme(host) for host, _ in addresses}
    return v2.Endpoints(
        scheme=schemes.pop() if len(schemes) == 1 else v2.DOMAIN_NAME,
        addresses=[v2.Address(host=host, port=port) for host, port in addresses],
    )


def _written(host: str, port: int) -> str:
    """Return HOST and PORT as registrations have them."""
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _scheme(host: str) -> v2.AddressScheme:
    try:
        version = ipaddress.ip_address(host.strip("[]")).version
    except ValueError:
        return v2.DOMAIN_NAME
    return v2.IPv4 if version == 4 else v2.IPv6


def _check(dialled: v2.Endpoints) -> None:
    if len(dialled.addresses) > _ADDRESSES_MAX:
        raise Refused(
            v2.ILLEGAL_ACCESS_POINT,
            f"endpoints: {len(dialled.addresses)} addresses, the limit is {_ADDRESSES_MAX}: name fewer",
            field="endpoints",
            limit=_ADDRESSES_MAX,
            value=len(dialled.addresses),
        )
    for address in dialled.addresses:
        if not address.host.strip() or not 0 < address.port <= _PORT_MAX:
            raise Refused(
                v2.ILLEGAL_ACCESS_POINT,
                f"endpoints: {address.host[:64]!r} port {address.port} is nothing to connect to: give a host, and a"
                f" port between 1 and {_PORT_MAX}",
                field="endpoints",
                value=f"{address.host[:64]}:{address.port}",
            )
