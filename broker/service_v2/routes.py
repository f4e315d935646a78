"""QueryRoute and QueryAssignment: the queues of a topic, and what a push consumer receives from.

The broker answers for itself alone. A topic that does not exist is TOPIC_NOT_FOUND and is not made by asking: the
clients ask before they send, so that a misspelt name is noticed. Queues that can be read and written come first, since
clients of Node.js use only the queue 0 of a broker.

A group that is not orderly is assigned one queue with id −1, which stands for all of this broker, because receiving
looks into all of them anyway; an orderly one every queue to read.

Source: v2-protocol §3.3, §4.2; the recordings query-route and query-assignment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...proto.errors import GroupNotFound
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import Call, MethodTable
from ...proto.topics import PERMISSION_ALL, PERMISSION_READ, PERMISSION_WRITE
from ...store.state_tables import TopicConfig
from ..groups import Groups
from ..topics import Topics
from .checks import group_name, topic_name
from .endpoints import Reach
from .message_types import accepted_types
from .service import service, unary
from .statuses import OK, Refused

#: The queue that stands for all queues of a broker.
ALL_QUEUES: Final = -1


class Routes:
    """The routes of the broker NAME."""

    def __init__(self, name: str, topics: Topics, groups: Groups, reach: Reach) -> None:
        self._name = name
        self._topics = topics
        self._groups = groups
        self._reach = reach

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

    def route(self, request: v2.QueryRouteRequest, call: Call) -> v2.QueryRouteResponse:
        """Answer the queues of a topic."""
        topic = self._topics.get(topic_name(request.topic))
        broker = self._broker(request.endpoints)
        accepted = accepted_types(topic)
        return v2.QueryRouteResponse(
            status=OK,
            message_queues=[
                v2.MessageQueue(
                    topic=request.topic,
                    id=queue,
                    permission=permission,
                    broker=broker,
                    accept_message_types=accepted,
                )
                for queue, permission in _queues(topic)
            ],
        )

    def assignment(
        self, request: v2.QueryAssignmentRequest, call: Call
    ) -> v2.QueryAssignmentResponse:
        """Answer what a member of a group receives from: the same for all of them."""
        name = topic_name(request.topic)
        group = group_name(request.group)
        topic = self._topics.get(name)
        if not topic.permission & PERMISSION_READ:
            raise Refused(
                v2.FORBIDDEN,
                f"topic {name!r} has no queue to read: its permission, {topic.permission}, does not include reading"
                " (4)",
                topic=name,
                permission=topic.permission,
            )
        broker = self._broker(request.endpoints)
        queues = range(topic.read_queues) if self._is_orderly(group) else (ALL_QUEUES,)
        return v2.QueryAssignmentResponse(
            status=OK,
            assignments=[
                v2.Assignment(
                    message_queue=v2.MessageQueue(
                        topic=request.topic,
                        id=queue,
                        permission=_permission(topic.permission),
                        broker=broker,
                    )
                )
                for queue in queues
            ],
        )

    def _broker(self, dialled: v2.Endpoints) -> v2.Broker:
        # The clients take brokers with id 0 alone for masters.
        return v2.Broker(name=self._name, id=0, endpoints=self._reach.of(dialled))

    def _is_orderly(self, group: str) -> bool:
        try:
            return self._groups.get(group).consume_message_orderly
        except GroupNotFound:
            return False


def _queues(topic: TopicConfig) -> Iterator[tuple[int, v2.Permission]]:
    """Yield number and permission of every queue; at least one."""
    read = topic.read_queues if topic.permission & PERMISSION_READ else 0
    written = topic.write_queues if topic.permission & PERMISSION_WRITE else 0
    for queue in range(max(read, written)):
        both = (queue < read) * PERMISSION_READ + (queue < written) * PERMISSION_WRITE
        yield queue, _permission(both)
    if not read and not written:
        yield from ((queue, v2.NONE) for queue in range(max(1, topic.read_queues)))


def _permission(bits: int) -> v2.Permission:
    return {
        PERMISSION_ALL: v2.READ_WRITE,
        PERMISSION_READ: v2.READ,
        PERMISSION_WRITE: v2.WRITE,
    }.get(bits & PERMISSION_ALL, v2.NONE)
