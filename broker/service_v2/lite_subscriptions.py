"""SyncLiteSubscription: consumers of single lite topics are refused.

A topic of type LITE accepts messages, each with its lite topic. Ordinary consumers get all of them, with `lite_topic`.
A well-formed request for single lite topics gets NOT_IMPLEMENTED with a remedy. Brokers of Apache RocketMQ refuse them
as well, unless its proxy runs in cluster mode.

Source: v2-protocol.md §4.10; fixtures v2/lite and v2/cluster-lite.
"""

from __future__ import annotations

from typing import NoReturn

from ...proto import errors
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.properties import LITE_TOPIC
from ...proto.rpc import Call, MethodTable
from ..topics import (
    TYPE_ATTRIBUTE,
    Topics,
)
from .request_checks import check_lite_topic, checked_group, checked_topic
from .service import service, unary
from .statuses import Refused
from .subscriptions import LITE


class LiteSubscriptions:
    """Refuses subscriptions to lite topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "SyncLiteSubscription": unary(
                    v2.SyncLiteSubscriptionRequest, v2.SyncLiteSubscriptionResponse, self.sync
                )
            }
        )

    def sync(self, request: v2.SyncLiteSubscriptionRequest, call: Call) -> NoReturn:
        """Raise Unsupported for a valid REQUEST; Refused or TopicNotFound for an invalid one."""
        checked_group(request.group.name)
        topic = self._topics.get(checked_topic(request.topic.name))
        if topic.attributes.get(TYPE_ATTRIBUTE) != LITE:
            raise Refused(
                v2.ILLEGAL_TOPIC,
                f"topic {topic.name!r} has no lite topics: its {TYPE_ATTRIBUTE} is not {LITE}",
                field="topic",
                value=topic.name,
            )
        for name in request.lite_topic_set:
            check_lite_topic(name)
        if request.action not in v2.LiteSubscriptionAction.values():
            raise errors.InvalidArgument(
                f"action is {request.action}: must be one of PARTIAL_ADD (0) to COMPLETE_REMOVE (3)",
                field="action",
                value=request.action,
            )
        raise errors.Unsupported(
            f"consumers of single lite topics are not supported: subscribe to {topic.name!r} with a push or simple"
            " consumer, which gets the messages of all its lite topics, or, in a separate group, of one with the"
            f" SQL filter {LITE_TOPIC} = 'name'",
            topic=topic.name,
        )
