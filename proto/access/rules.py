"""What each method of `pocketmq.v1`, and of the services beside it, needs. A method without a rule is not served.

    Broker       Topic              Group              Cluster
      Produce      Pub
      Fetch        Sub                Sub, if named
      …
    NameServer   Route: Pub, Sub or Get on each topic; Register: Update on the cluster

What lists or counts everything of a kind needs List or Get on all of that kind (`Topic:*`, `Group:*`), which rules for
prefixes do not cover, and what is denied of it denies. Where brokers are, whether one answers, and its time any user
may know. Health and reflection ask for nobody: probes have no secrets, and this file tells as much as reflection does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import Message

from ..errors import NotAuthenticated, PocketMQError
from ..errors_wire import to_wire
from ..gen import pocketmq_v1_pb2 as pb
from ..rpc import Method, Stream
from .guard import Refusal, Rule, any_user, anybody
from .policies import (
    CREATE,
    DELETE,
    GET,
    LIST,
    PUB,
    SUB,
    UPDATE,
    Need,
    of_cluster,
    of_group,
    of_topic,
)
from .signing import NO_USER

Needs = Iterable[Need]


def _topics(actions: int) -> Rule:
    """Return the rule that asks for ACTIONS on all of `topics`."""
    return lambda request: (of_topic(name, actions) for name in request.topics)


def _topic(actions: int) -> Rule:
    return lambda request: (of_topic(request.topic, actions),)


def _group(actions: int) -> Rule:
    return lambda request: (of_group(request.group, actions),)


def _every_topic(actions: int) -> Rule:
    return lambda request: (of_topic("*", actions),)


def _fetch(request: pb.FetchRequest) -> Needs:
    if request.group:
        yield of_group(request.group)
    yield of_topic(request.topic, SUB)


def _commit(request: pb.CommitOffsetsRequest) -> Needs:
    if request.force or request.moved_by:
        yield of_group(request.group, UPDATE)
        return
    yield of_group(request.group)
    for topic in {one.topic for one in request.offsets}:
        yield of_topic(topic, SUB)


def _queue_offsets(request: pb.QueueOffsetsRequest) -> Needs:
    return (of_topic(name, PUB | SUB | GET) for name in {one.topic for one in request.queues})


def _create_topic(request: pb.CreateTopicRequest) -> Needs:
    yield of_topic(request.topic.name, UPDATE if request.update else CREATE)


def _create_group(request: pb.CreateGroupRequest) -> Needs:
    yield of_group(request.group.name, UPDATE if request.update else CREATE)


def _lookup(request: pb.LookupRequest) -> Needs:
    yield of_topic(request.topic or "*", SUB | GET)


def _send_back(request: pb.SendBackRequest) -> Needs:
    yield of_group(request.group)
    yield of_topic(request.topic, SUB)


def _resend(request: pb.ResendDeadLettersRequest) -> Needs:
    yield of_group(request.group, UPDATE)
    yield of_topic(request.topic or "*", PUB)  # Without a topic each letter names its own.


def _end_transaction(request: pb.EndTransactionRequest) -> Needs:
    yield of_topic(request.topic, PUB)
    if (
        request.group != request.topic
    ):  # Official clients have no group of producers: it is the topic.
        yield of_group(request.group, PUB)


def _transaction_checks(request: pb.TransactionListener) -> Needs:
    yield of_group(
        request.group, PUB
    )  # Whoever listens for a group may be asked about all of its topics.
    for name in request.topics:
        yield of_topic(name, PUB)


def _commit_atomically(request: pb.AtomicCommitRequest) -> Needs:
    yield of_group(request.group)
    for topic in {one.topic for one in request.offsets}:
        yield of_topic(topic, SUB)
    for topic in {one.topic for one in request.runs}:
        yield of_topic(topic, PUB)


def _join(request: pb.MemberRequest) -> Needs:
    if request.WhichOneof("what") == "join":
        yield of_group(request.join.group)
        for one in request.join.subscriptions:
            yield of_topic(one.topic, SUB)


def _leases(request: pb.LeaseRequest | pb.ReleaseRequest) -> Needs:
    yield of_group(request.group)
    for topic in {one.topic for one in request.queues}:
        yield of_topic(topic, SUB)


def _register(request: pb.BrokerRegistration) -> Needs:
    yield of_cluster(request.cluster, UPDATE)


def _paths(service: str, rules: dict[str, Rule]) -> dict[str, Rule]:
    return {f"/{service}/{method}": rule for method, rule in rules.items()}


#: Of the services that stand beside a server's own.
BESIDE: Final = {
    **_paths("grpc.health.v1.Health", dict.fromkeys(("Check", "List", "Watch"), anybody)),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": anybody,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": anybody,
}
#: Of a name server; its cluster is any.
NAME_SERVER: Final = {
    **BESIDE,
    **_paths(
        "pocketmq.v1.NameServer",
        {
            "Register": _register,
            "Route": _topics(PUB | SUB | GET),
            "Cluster": any_user,
            "ListTopics": _every_topic(LIST | GET),
        },
    ),
    "/pocketmq.v1.Connections/List": lambda request: (of_cluster("*", GET),),
    "/pocketmq.v1.Settings/List": lambda request: (of_cluster("*", GET),),
    "/pocketmq.v1.Settings/Set": lambda request: (of_cluster("*", UPDATE),),
}


def broker_rules(cluster: str) -> dict[str, Rule]:
    """Return the rules of a broker in CLUSTER, but those of official clients."""

    def of_this(actions: int) -> Rule:
        return lambda request: (of_cluster(cluster, actions),)

    return {
        **BESIDE,
        **_paths(
            "pocketmq.v1.Broker",
            {
                "Produce": _topic(PUB),
                "Fetch": _fetch,
                "CommitOffsets": _commit,
                "GroupOffsets": _group(SUB | GET),
                "QueueOffsets": _queue_offsets,
                "CreateTopic": _create_topic,
                "DeleteTopic": _topic(DELETE),
                "DescribeTopic": _topic(PUB | SUB | GET),
                "ListTopics": _every_topic(LIST | GET),
                "CreateGroup": _create_group,
                "DeleteGroup": _group(DELETE),
                "ListGroups": lambda request: (of_group("*", LIST | GET),),
                "Lookup": _lookup,
                "Status": any_user,
                "Recall": _topic(PUB),
                "SendBack": _send_back,
                "DeadLetters": _group(SUB | GET),
                "ResendDeadLetters": _resend,
                "PurgeDeadLetters": _group(DELETE | UPDATE),
                "EndTransaction": _end_transaction,
                "TransactionChecks": _transaction_checks,
                "CommitAtomically": _commit_atomically,
                "JoinGroup": _join,
                "LeaseQueues": _leases,
                "ReleaseQueues": _leases,
                "GroupState": _group(SUB | GET),
                "ListClients": of_this(GET),
                "AskClient": of_this(UPDATE),
                "Now": any_user,
                "AdvanceClock": of_this(UPDATE),
            },
        ),
        "/pocketmq.v1.Connections/List": of_this(GET),
        "/pocketmq.v1.Settings/List": of_this(GET),
        "/pocketmq.v1.Settings/Set": of_this(UPDATE),
        "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": any_user,
        "/opencensus.proto.agent.metrics.v1.MetricsService/Export": any_user,
        **_paths(
            "opencensus.proto.agent.trace.v1.TraceService",
            dict.fromkeys(("Export", "Config"), any_user),
        ),
    }


def _explained(error: PocketMQError) -> PocketMQError:
    """Return ERROR, with what to do where nobody has signed."""
    if error.message != NO_USER:
        return error
    return NotAuthenticated(
        f"{NO_USER.rstrip('.')}: this server has users, name one by user= and secret=, or by POCKETMQ_USER and"
        " POCKETMQ_SECRET or POCKETMQ_SECRET_FILE"
    )


class OwnRefusal(Refusal):
    """How our own clients hear of it: of one run or fetch in its answer, and the stream goes on with the others."""

    def unary(self, method: Method, error: PocketMQError) -> Message:
        return super().unary(method, _explained(error))

    def stream(self, method: Method, stream: Stream, error: PocketMQError) -> None:
        super().stream(method, stream, _explained(error))

    def message(self, method: Method, stream: Stream, message: Any, error: PocketMQError) -> bool:
        if method.request_type is pb.ProduceRun:
            stream.send(pb.ProduceReply(run_id=message.run_id, error=to_wire(error)))
        elif method.request_type is pb.FetchRequest:
            stream.send(pb.FetchReply(fetch_id=message.fetch_id, error=to_wire(error)))
        else:
            return super().message(method, stream, message, error)
        return True
