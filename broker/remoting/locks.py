"""Queue locks of orderly consumers: LOCK_BATCH_MQ and UNLOCK_BATCH_MQ.

An orderly consumer reads a queue only while it holds the queue's lock. A lock lasts `LOCK_MS`; its holder renews it
every 20 s. The locks of a client end when it disconnects. They are in memory: after a restart consumers lock again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...proto.errors import InvalidArgument
from ...proto.remoting.codes import RequestCode
from ...proto.remoting.fastjson import dumps
from ...proto.remoting.requests import RemotingRequest
from ...proto.remoting.server import Handler
from ..topics import Topics
from .members import Members

#: As in Apache RocketMQ (rocketmq.broker.rebalance.lockMaxLiveTime).
LOCK_MS: Final = 60_000

#: Topic and queue.
Queue = tuple[str, int]


class QueueLocks:
    """The locks of the groups of MEMBERS on the queues of broker BROKER. NOW_MS is the machine's time."""

    def __init__(
        self, broker: str, topics: Topics, members: Members, now_ms: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._members = members
        self._now_ms = now_ms
        #: By group and queue: the client, and when its lock ends.
        self._locks: dict[str, dict[Queue, tuple[str, int]]] = {}

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def lock(self, request: RemotingRequest) -> None:
        """Lock queues for a client, and answer which of them it holds now."""
        said = request.json()
        group, client_id, queues = self._asked(said)
        self._members.check_allowed(group)
        now_ms = self._now_ms()
        held = []
        self._forget_groups()
        # Only a member may hold locks: they end with it. Other connections do not act for it.
        if self._members.is_own(request.connection, group, client_id):
            locks = self._locks.setdefault(group, {})
            for topic, queue in queues:
                holder, until_ms = locks.get((topic, queue), (client_id, 0))
                is_held = until_ms > now_ms and self._members.is_member(group, holder)
                free = holder == client_id or not is_held
                if free and self._topics.has_queue(topic, queue):
                    locks[topic, queue] = client_id, now_ms + LOCK_MS
                    held.append((topic, queue))
        found = [
            {"brokerName": self._broker, "queueId": queue, "topic": topic} for topic, queue in held
        ]
        request.answer(dumps({"lockOKMQSet": found}))

    def unlock(self, request: RemotingRequest) -> None:
        """Give up the locks of a client on queues."""
        group, client_id, queues = self._asked(request.json())
        locks = self._locks.get(group, {})
        is_own = self._members.is_own(request.connection, group, client_id)
        for queue in queues if is_own else ():
            if locks.get(queue, ("", 0))[0] == client_id:
                del locks[queue]
        if not locks:
            self._locks.pop(group, None)
        request.answer()

    def _asked(self, said: dict[str, Any]) -> tuple[str, str, list[Queue]]:
        """Return group, client id, and those queues in SAID that are on this broker."""
        group, client_id, queues = asked_queues(said)
        own = [(topic, queue) for broker, topic, queue in queues if broker == self._broker]
        return group, client_id, own

    def _forget_groups(self) -> None:
        """Forget the locks of groups that have no members any more."""
        for group in [one for one in self._locks if not self._members.has_members(one)]:
            del self._locks[group]


def asked_queues(said: dict[str, Any]) -> tuple[str, str, list[tuple[object, str, int]]]:
    """Return group, client id and queues in SAID, each with the name of its broker; raise InvalidArgument."""
    group, client_id, queues = said.get("consumerGroup"), said.get("clientId"), said.get("mqSet")
    if not (isinstance(group, str) and isinstance(client_id, str) and isinstance(queues, list)):
        raise InvalidArgument(
            "consumerGroup, clientId or mqSet is missing, or of another type", field="mqSet"
        )
    found = []
    for one in queues:
        if not isinstance(one, dict):
            raise InvalidArgument("mqSet is not a list of queues", field="mqSet")
        topic, queue = one.get("topic"), one.get("queueId")
        if isinstance(topic, str) and type(queue) is int:
            found.append((one.get("brokerName"), topic, queue))
    return group, client_id, found
