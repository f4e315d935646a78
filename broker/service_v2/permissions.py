"""Permissions: what each call of `apache.rocketmq.v2` needs, and how a refused call is answered.

    SendMessage, RecallMessage, EndTransaction      Pub on the topic, of each message
    ReceiveMessage, AckMessage, QueryAssignment,    Sub on group and topic
    ForwardMessageToDeadLetterQueue, PullMessage,
    UpdateOffset, GetOffset; SyncLiteSubscription, if it names a topic
    QueryOffset                                     Sub on the topic: it names no group
    ChangeInvisibleDuration                         Sub on the group
    Heartbeat of a consumer                         Sub on the group
    NotifyClientTermination, if a group is named    Sub on the group
    QueryRoute                                      Pub or Sub on the topic
    Telemetry: settings                             a producer's Pub on each topic, a consumer's Sub on group and topics

Apache RocketMQ 5.5.0 does the same, except that it checks only the topic of the first message, and no calls of pull
consumers and offsets. A refusal is UNAUTHORIZED (40100), without a user or without a permission: in the reply, or as
the only message of a stream, which then ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import Message

from ...proto.access.guard import Guard, OwnRefusal, Refusal, Rule
from ...proto.access.method_rules import broker_rules
from ...proto.access.policies import PUB, SUB, Need, of_group, of_topic
from ...proto.errors import PocketMQError
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import Method, MethodTable, Stream
from .service import SERVICE
from .statuses import status_of

_PRODUCER: Final = v2.PRODUCER
Needs = Iterable[Need]


def _route(request: v2.QueryRouteRequest) -> Needs:
    yield of_topic(request.topic.name, PUB | SUB)._replace(apart=True)


def _send(request: v2.SendMessageRequest) -> Needs:
    for message in request.messages:
        yield of_topic(message.topic.name, PUB)


def _publish(request: v2.RecallMessageRequest | v2.EndTransactionRequest) -> Needs:
    yield of_topic(request.topic.name, PUB)


def _consume(request: v2.AckMessageRequest | v2.QueryAssignmentRequest) -> Needs:
    yield of_group(request.group.name)
    yield of_topic(request.topic.name, SUB)


def _consume_queue(request: v2.ReceiveMessageRequest | v2.PullMessageRequest) -> Needs:
    yield of_group(request.group.name)
    yield of_topic(request.message_queue.topic.name, SUB)


def _query_offset(request: v2.QueryOffsetRequest) -> Needs:
    yield of_topic(request.message_queue.topic.name, SUB)


def _group(request: v2.ChangeInvisibleDurationRequest) -> Needs:
    yield of_group(request.group.name)


def _named_group(request: v2.HeartbeatRequest | v2.NotifyClientTerminationRequest) -> Needs:
    if request.group.name:
        yield of_group(request.group.name)


def _heartbeat(request: v2.HeartbeatRequest) -> Needs:
    if request.client_type != _PRODUCER:
        yield from _named_group(request)


def _lite(request: v2.SyncLiteSubscriptionRequest) -> Needs:
    if request.lite_topic_set or request.topic.name or request.group.name:
        yield of_group(request.group.name)
        yield of_topic(request.topic.name, SUB)


def _telemetry(command: v2.TelemetryCommand) -> Needs:
    settings = command.settings
    kind = settings.WhichOneof("pub_sub")
    if kind == "publishing":
        for topic in settings.publishing.topics:
            yield of_topic(topic.name, PUB)
    elif kind == "subscription":
        yield of_group(settings.subscription.group.name)
        for entry in settings.subscription.subscriptions:
            yield of_topic(entry.topic.name, SUB)


_BY_METHOD: Final[dict[str, Rule]] = {
    "QueryRoute": _route,
    "Heartbeat": _heartbeat,
    "SendMessage": _send,
    "QueryAssignment": _consume,
    "ReceiveMessage": _consume_queue,
    "AckMessage": _consume,
    "ForwardMessageToDeadLetterQueue": _consume,
    "PullMessage": _consume_queue,
    "UpdateOffset": _consume_queue,
    "GetOffset": _consume_queue,
    "QueryOffset": _query_offset,
    "EndTransaction": _publish,
    "Telemetry": _telemetry,
    "NotifyClientTermination": _named_group,
    "ChangeInvisibleDuration": _group,
    "RecallMessage": _publish,
    "SyncLiteSubscription": _lite,
}
RULES: Final = {f"/{SERVICE}/{method}": rule for method, rule in _BY_METHOD.items()}


class OfficialRefusal(Refusal):
    """Answers a refused call with a status; on a stream it is the only message."""

    def unary(self, method: Method, error: PocketMQError) -> Message:
        reply: Any = method.reply_type
        answer: Message = reply(status=status_of(error))
        return answer

    def stream(self, method: Method, stream: Stream, error: PocketMQError) -> None:
        stream.send(self.unary(method, error))
        stream.finish()


def guarded(guard: Guard, table: MethodTable, cluster: str) -> MethodTable:
    """Return TABLE, the methods of a broker in CLUSTER, with permission checks by GUARD."""
    official = {method.path: method for method in table if method.path.startswith(f"/{SERVICE}/")}
    own = {method.path: method for method in table if method.path not in official}
    return guard.guarded(MethodTable(official), RULES, OfficialRefusal()) | guard.guarded(
        MethodTable(own), broker_rules(cluster), OwnRefusal()
    )
