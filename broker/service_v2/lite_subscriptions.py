"""SyncLiteSubscription: which lite topics a client of a lite group receives.

A client adds or removes names, or sends its complete set, as official clients do every 30 s. The first offset of a
group in a lite topic is the oldest message. An offset option in a request that adds names changes the group's progress:

    LAST             nothing changes
    MIN, MAX         the oldest message, or after the newest
    offset           that one, up to the end
    tail_n           so many messages before the end; with progress, before that
    timestamp        the first message that was stored then or later

An evicted client of an exclusive group gets NotifyUnsubscribeLiteCommand on its Telemetry stream.

Source: Apache RocketMQ 5.5 with a proxy in cluster mode, where tail_n and timestamp do nothing without progress, and a
quota counts the names of one request.
"""

from __future__ import annotations

from typing import Final

from ...proto import errors
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.lite_topics import LITE, LITE_QUEUE
from ...proto.rpc import Call, MethodTable
from ...store.format.state_tables import GroupConfig
from ...store.message_store import MessageStore
from ..consumer_groups import Groups
from ..pop.lite_receives import (
    RESET_ON_UNSUBSCRIBE,
    SUBSCRIPTIONS_MAX,
    WILDCARD,
    LiteClient,
    LiteGroup,
    LiteReceives,
    lite_queue_names,
)
from ..topics import TYPE_ATTRIBUTE, Topics
from .client_settings import check_parent, lite_quota
from .request_checks import check_lite_topic, checked_group, checked_topic
from .service import client_id, service, unary
from .sessions import Sessions
from .statuses import OK, Refused

#: A client may have so many lite topics more than its quota, as in RocketMQ.
_QUOTA_SPARE: Final = 300
_ACTIONS: Final = frozenset(v2.LiteSubscriptionAction.values())


class LiteSubscriptions:
    """Answers SyncLiteSubscription for the clients of SESSIONS."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        lite: LiteReceives,
        store: MessageStore,
        sessions: Sessions,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._lite = lite
        self._store = store
        self._sessions = sessions
        lite.on_eviction(self._tell_evicted)

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "SyncLiteSubscription": unary(
                    v2.SyncLiteSubscriptionRequest, v2.SyncLiteSubscriptionResponse, self.sync
                )
            }
        )

    def sync(
        self, request: v2.SyncLiteSubscriptionRequest, call: Call
    ) -> v2.SyncLiteSubscriptionResponse:
        """Change the subscriptions of a client. Raises Refused, TopicNotFound or InvalidArgument."""
        config, topic = self._checked(request)
        names = lite_queue_names(topic, dict.fromkeys(request.lite_topic_set))
        group = self._lite.group(config)
        client = self._lite.client(group, client_id(call))
        if request.action == v2.PARTIAL_ADD:
            if WILDCARD in config.attributes:
                raise errors.InvalidArgument(
                    f"group {config.name!r} receives all lite topics ({WILDCARD}): do not subscribe to single ones",
                    field="action",
                    value=request.action,
                )
            self._check_quota(config, client, len(client.names.keys() | names))
            self._lite.add(group, client, names, config)
            if request.HasField("offset_option"):
                for name in names:
                    self._start_at(group, name, request.offset_option)
        elif request.action == v2.COMPLETE_ADD:
            self._check_quota(config, client, len(names))
            self._lite.complete(group, client, names, config)
        else:
            if request.action == v2.COMPLETE_REMOVE:
                names = list(client.names)
                client.is_wild = False
            self._remove(config, group, client, names)
        return v2.SyncLiteSubscriptionResponse(status=OK)

    def _checked(self, request: v2.SyncLiteSubscriptionRequest) -> tuple[GroupConfig, str]:
        """Return group and topic of a valid REQUEST."""
        name = checked_group(request.group.name)
        topic = self._topics.get(checked_topic(request.topic.name))
        if topic.attributes.get(TYPE_ATTRIBUTE) != LITE:
            raise Refused(
                v2.ILLEGAL_TOPIC,
                f"topic {topic.name!r} has no lite topics: its {TYPE_ATTRIBUTE} is not {LITE}",
                field="topic",
                value=topic.name,
            )
        for one in request.lite_topic_set:
            check_lite_topic(one)
        if request.action not in _ACTIONS:
            raise errors.InvalidArgument(
                f"action is {request.action}: must be one of PARTIAL_ADD (0) to COMPLETE_REMOVE (3)",
                field="action",
                value=request.action,
            )
        group = self._groups.find(name)
        if group is None:
            raise Refused(
                v2.ILLEGAL_TOPIC,  # As RocketMQ's proxy answers for a group without a parent topic.
                f"group {name!r} does not exist: create it with `pocketmq group create {name} --lite {topic.name}`",
                field="group",
                value=name,
            )
        check_parent(group, topic.name)
        return group, topic.name

    def _check_quota(self, config: GroupConfig, client: LiteClient, count: int) -> None:
        """Raise Refused if CLIENT would have more than its quota, or all clients too many."""
        quota = lite_quota(config)
        total = self._lite.subscription_count - len(client.names) + count
        if 0 <= quota < count - _QUOTA_SPARE:
            limit, value, where = quota, count, f"a client of group {config.name!r}"
        elif total > SUBSCRIPTIONS_MAX:
            limit, value, where = SUBSCRIPTIONS_MAX, total, "the broker"
        else:
            return
        raise Refused(
            v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
            f"{value} subscriptions to lite topics, the limit of {where} is {limit}: subscribe to fewer",
            field="lite_topic_set",
            limit=limit,
            value=value,
        )

    def _remove(
        self, config: GroupConfig, group: LiteGroup, client: LiteClient, names: list[str]
    ) -> None:
        client.evicted.difference_update(names)
        self._lite.remove(group, client, names)
        if config.attributes.get(RESET_ON_UNSUBSCRIBE, "").lower() == "true":
            for name in names:
                self._lite.reset(group, name, 0)

    def _start_at(self, group: LiteGroup, name: str, option: v2.OffsetOption) -> None:
        low, end = self._store.queue_bounds(name, LITE_QUEUE)
        kind = option.WhichOneof("offset_type")
        if kind == "policy" and option.policy == v2.OffsetOption.MIN:
            self._lite.reset(group, name, low)
        elif kind == "policy" and option.policy == v2.OffsetOption.MAX:
            self._lite.reset(group, name, end)
        elif kind == "offset" and option.offset >= 0:
            self._lite.reset(group, name, option.offset)
        elif kind == "tail_n" and option.tail_n >= 0:
            committed = self._lite.committed(group, name)
            self._lite.reset(group, name, (end if committed is None else committed) - option.tail_n)
        elif kind == "timestamp" and end:
            at = self._store.offset_by_time(name, LITE_QUEUE, option.timestamp)
            self._lite.reset(group, name, at)

    def _tell_evicted(self, client: str, group: str, lite_topic: str) -> None:
        """Tell CLIENT, if it has a Telemetry stream, that another client of GROUP took over LITE_TOPIC."""
        session = self._sessions.find(client)
        stream = None if session is None else session.stream
        if stream is not None and stream.has_room:
            command = v2.NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
            stream.send(v2.TelemetryCommand(notify_unsubscribe_lite_command=command))
