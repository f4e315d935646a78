"""QueryRoute and QueryAssignment: the queues of a topic, and the queues from which a push consumer receives.

The answer has the queues of all brokers that have the topic: this broker's under the access point that the client used
(client_addresses.py), others' where they are registered. Brokers alternate, by name, because a simple consumer asks one
queue after the other, and waits at each. All brokers answer in the same order, because clients find the queue of a
message group by its position. Of each broker, queues that can be read and written come first, because Node.js clients
use only queue 0. An unknown topic is TOPIC_NOT_FOUND and is not created: clients ask before they send.

A group that is not orderly is assigned one queue per broker, with id −1. An orderly group is assigned every readable
queue.

Source: v2-protocol sections 3.3 and 4.2; the recordings query-route and query-assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import Message

from ...proto.errors import GroupNotFound, PocketMQError
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, MethodTable
from ...proto.topics import PERMISSION_ALL, PERMISSION_READ, PERMISSION_WRITE
from ..consumer_groups import Groups
from ..other_brokers import OtherBrokers, RemoteQueues
from ..topics import Topics
from .client_addresses import TAKE_ONE_ADDRESS, Reach, endpoints_of_replicas
from .heartbeats import LANGUAGE
from .messages import accepted_by, accepted_types
from .request_checks import group_name, topic_name
from .service import service, unary
from .statuses import OK, Refused, status_of, status_of_bug

#: Queue id that means all queues of a broker.
ALL_QUEUES: Final = -1


_Question: TypeAlias = v2.QueryRouteRequest | v2.QueryAssignmentRequest
Item = TypeVar("Item")


class RouteQueries:
    """Answers requests for routes. NAME is this broker."""

    def __init__(
        self, name: str, topics: Topics, groups: Groups, reach: Reach, other_brokers: OtherBrokers
    ) -> None:
        self._name = name
        self._topics = topics
        self._groups = groups
        self._reach = reach
        self._other_brokers = other_brokers

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

        def answer(others: Sequence[RemoteQueues]) -> v2.QueryRouteResponse:
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
                    for share, (queue, permission) in _alternating(
                        (share, _queues(share))
                        for share in self._shares(name, call, request, others)
                    )
                ],
            )

        return self._with_others(name, call, answer, v2.QueryRouteResponse)

    def assignment(self, request: v2.QueryAssignmentRequest, call: Call) -> Any:
        """Answer the queues from which a member of a group receives; they are the same for all members."""
        name = topic_name(request.topic)
        group = group_name(request.group, self._groups)

        def answer(others: Sequence[RemoteQueues]) -> v2.QueryAssignmentResponse:
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
                    for share, queue in _alternating(
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
        answer: Callable[[Sequence[RemoteQueues]], Message],
        reply_type: type[Any],
    ) -> Any:
        """Return what ANSWER makes of what other brokers have of topic NAME; or LATER, if that has to be asked for."""
        others = self._other_brokers.known(name)
        if others is not None:
            return answer(others)

        def told(found: Sequence[RemoteQueues]) -> None:
            try:
                reply = answer(found)
            except PocketMQError as error:
                reply = reply_type(status=status_of(error))
            except Exception as bug:  # Other waiters for the same answer must continue.
                reply = reply_type(status=status_of_bug(reply_type.DESCRIPTOR.name, bug))
            call.reply(reply)

        self._other_brokers.ask(name, told)
        return LATER

    def _shares(
        self, name: str, call: Call, request: _Question, others: Sequence[RemoteQueues]
    ) -> list[_Share]:
        """Return what each broker has of topic NAME, by their names, for a client that asks REQUEST by CALL.

        Raises TopicNotFound if none has anything.
        """
        topic = self._topics.find(name) if others else self._topics.get(name)
        dialled = request.endpoints
        reach = self._reach.of(dialled, self._other_brokers.addresses)
        takes_one = call.metadata.get(LANGUAGE, "").upper() in TAKE_ONE_ADDRESS
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


def _alternating(shares: Iterable[tuple[_Share, Iterable[Item]]]) -> Iterator[tuple[_Share, Item]]:
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
