"""The permissions that each method of PocketMQ's services requires."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.message import Message

from ..gen import pocketmq_v1_pb2 as pb
from . import policies
from .guard import Rule, any_user, anybody

Needs = Iterable[policies.Need]


def _seen_topics(request: pb.RouteRequest) -> Needs:
    return map(policies.to_see_topic, request.topics)


def _topic(actions: int) -> Rule:
    return lambda request: (policies.of_topic(request.topic, actions),)


def _group(actions: int) -> Rule:
    return lambda request: (policies.of_group(request.group, actions),)


def _listed_topics(request: Message) -> Needs:
    """The handler leaves out topics that single rules deny."""
    return (policies.of_topic(policies.OTHERS, policies.LIST | policies.GET),)


def _listed_groups(request: Message) -> Needs:
    return (policies.of_group(policies.OTHERS, policies.LIST | policies.GET),)


def _fetch(request: pb.FetchRequest) -> Needs:
    if request.group:
        yield policies.of_group(request.group)
    yield policies.of_topic(request.topic, policies.SUB)


def _commit(request: pb.CommitOffsetsRequest) -> Needs:
    topics = {one.topic for one in request.offsets}
    if request.force or request.moved_by:
        yield policies.of_group(request.group, policies.UPDATE)
        for topic in topics:  # A refusal contains the end of the queue, which takes Get.
            yield policies.to_see_topic(topic)
        return
    yield policies.of_group(request.group)
    for topic in topics:
        yield policies.of_topic(topic, policies.SUB)


def _group_offsets(request: pb.GroupOffsetsRequest) -> Needs:
    """If the request names no queues, the handler leaves out topics that the user may not see."""
    yield policies.to_see_group(request.group)
    yield from _queue_offsets(request)


def _queue_offsets(request: pb.GroupOffsetsRequest | pb.QueueOffsetsRequest) -> Needs:
    return (policies.to_see_topic(name) for name in {one.topic for one in request.queues})


def _create_topic(request: pb.CreateTopicRequest) -> Needs:
    yield policies.of_topic(
        request.topic.name, policies.UPDATE if request.update else policies.CREATE
    )


def _create_group(request: pb.CreateGroupRequest) -> Needs:
    yield policies.of_group(
        request.group.name, policies.UPDATE if request.update else policies.CREATE
    )


def _lookup(cluster: str) -> Rule:
    """Return the rule of look-ups. An id without a topic can belong to any record of the log."""
    reading = policies.SUB | policies.GET

    def rule(request: pb.LookupRequest) -> Needs:
        if request.topic:
            return (policies.of_topic(request.topic, reading),)
        return policies.of_all_messages(cluster, reading)

    return rule


def _ask_client(cluster: str) -> Rule:
    """Return the rule of questions to clients. A refusal to try a message contains the end of its queue."""

    def rule(request: pb.AskClientRequest) -> Needs:
        yield policies.of_cluster(cluster, policies.UPDATE)
        if request.HasField("try_message"):
            yield policies.to_see_topic(request.try_message.topic)

    return rule


def _send_back(request: pb.SendBackRequest) -> Needs:
    yield policies.of_group(request.group)
    yield policies.of_topic(request.topic, policies.SUB)


def _resend(request: pb.ResendDeadLettersRequest) -> Needs:
    yield policies.of_group(request.group, policies.UPDATE)
    yield policies.of_topic(
        request.topic or "*", policies.PUB
    )  # Without a topic, each dead letter names its own.


def _end_transaction(request: pb.EndTransactionRequest) -> Needs:
    yield policies.of_topic(request.topic, policies.PUB)
    if (
        request.group != request.topic
    ):  # Official clients have no producer group: they send the topic instead.
        yield policies.of_group(request.group, policies.PUB)


def _transaction_checks(request: pb.TransactionListener) -> Needs:
    yield policies.of_group(
        request.group, policies.PUB
    )  # A listener of a group may get transaction checks for all of its topics.
    for name in request.topics:
        yield policies.of_topic(name, policies.PUB)


def _commit_atomically(request: pb.AtomicCommitRequest) -> Needs:
    yield policies.of_group(request.group)
    for topic in {one.topic for one in request.offsets}:
        yield policies.of_topic(topic, policies.SUB)
    for topic in {one.topic for one in request.runs}:
        yield policies.of_topic(topic, policies.PUB)


def _join(request: pb.MemberRequest) -> Needs:
    if request.WhichOneof("what") == "join":
        yield policies.of_group(request.join.group)
        for one in request.join.subscriptions:
            yield policies.of_topic(one.topic, policies.SUB)


def _leases(request: pb.LeaseRequest | pb.ReleaseRequest) -> Needs:
    yield policies.of_group(request.group)
    for topic in {one.topic for one in request.queues}:
        yield policies.of_topic(topic, policies.SUB)


def _register(request: pb.BrokerRegistration) -> Needs:
    yield policies.of_cluster(request.cluster, policies.UPDATE)


def _paths(service: str, rules: dict[str, Rule]) -> dict[str, Rule]:
    return {f"/{service}/{method}": rule for method, rule in rules.items()}


#: For the services that every server has in addition to its own.
BESIDE: Final = {
    **_paths("grpc.health.v1.Health", dict.fromkeys(("Check", "List", "Watch"), anybody)),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": anybody,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": anybody,
}
#: For a name server, which serves any cluster.
NAME_SERVER: Final = {
    **BESIDE,
    **_paths(
        "pocketmq.v1.NameServer",
        {
            "Register": _register,
            "Route": _seen_topics,
            "Cluster": any_user,
            "ListTopics": _listed_topics,
        },
    ),
    "/pocketmq.v1.Connections/List": lambda request: (policies.of_cluster("*", policies.GET),),
    "/pocketmq.v1.Settings/List": lambda request: (policies.of_cluster("*", policies.GET),),
    "/pocketmq.v1.Settings/Set": lambda request: (policies.of_cluster("*", policies.UPDATE),),
}


def broker_rules(cluster: str) -> dict[str, Rule]:
    """Return the rules of a broker in CLUSTER, except those for official clients."""

    def of_this(actions: int) -> Rule:
        return lambda request: (policies.of_cluster(cluster, actions),)

    return {
        **BESIDE,
        **_paths(
            "pocketmq.v1.Broker",
            {
                "Produce": _topic(policies.PUB),
                "Fetch": _fetch,
                "CommitOffsets": _commit,
                "GroupOffsets": _group_offsets,
                "QueueOffsets": _queue_offsets,
                "CreateTopic": _create_topic,
                "DeleteTopic": _topic(policies.DELETE),
                "DescribeTopic": lambda request: (policies.to_see_topic(request.topic),),
                "ListTopics": _listed_topics,
                "CreateGroup": _create_group,
                "DeleteGroup": _group(policies.DELETE),
                "ListGroups": _listed_groups,
                "Lookup": _lookup(cluster),
                "Status": any_user,
                "Recall": _topic(policies.PUB),
                "SendBack": _send_back,
                "DeadLetters": _group(policies.SUB | policies.GET),
                "ResendDeadLetters": _resend,
                "PurgeDeadLetters": _group(policies.DELETE | policies.UPDATE),
                "EndTransaction": _end_transaction,
                "TransactionChecks": _transaction_checks,
                "CommitAtomically": _commit_atomically,
                "JoinGroup": _join,
                "LeaseQueues": _leases,
                "ReleaseQueues": _leases,
                "GroupState": _group(policies.SUB | policies.GET),
                "ListClients": of_this(policies.GET),
                "AskClient": _ask_client(cluster),
                "Now": any_user,
                "AdvanceClock": of_this(policies.UPDATE),
            },
        ),
        "/pocketmq.v1.Connections/List": of_this(policies.GET),
        "/pocketmq.v1.Settings/List": of_this(policies.GET),
        "/pocketmq.v1.Settings/Set": of_this(policies.UPDATE),
        "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": any_user,
        "/opencensus.proto.agent.metrics.v1.MetricsService/Export": any_user,
        **_paths(
            "opencensus.proto.agent.trace.v1.TraceService",
            dict.fromkeys(("Export", "Config"), any_user),
        ),
    }
