"""The gRPC service `pocketmq.v1.NameServer`: it decodes requests, calls the route table and encodes replies."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import count

from ..proto.access.listing import visible
from ..proto.access.policies import of_topic
from ..proto.clock import Clock
from ..proto.errors import InvalidArgument, InvalidName
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.rpc import Call, MethodTable, Stream, bidi, service, unary
from ..proto.topics import check_topic
from .config import NameServerConfig
from .registrations import check_count, read_registration
from .route_table import (
    BrokerAddresses,
    BrokerState,
    Role,
    RouteTable,
    TopicQueues,
    TopicRoute,
    Verdict,
)

logger = logging.getLogger(__name__)


class NameServerService:
    """The methods of a name server over TABLE."""

    def __init__(self, table: RouteTable, config: NameServerConfig, clock: Clock) -> None:
        self._table = table
        self._config = config
        self._clock = clock
        self._sessions = count(1)

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            "pocketmq.v1.NameServer",
            {
                "Register": bidi(pb.BrokerRegistration, pb.RegistrationReply, self.register),
                "Route": unary(pb.RouteRequest, pb.RouteReply, self.route),
                "Cluster": unary(pb.ClusterRequest, pb.ClusterReply, self.cluster),
                "ListTopics": unary(pb.TopicListRequest, pb.TopicListReply, self.list_topics),
            },
        )

    def register(self, stream: Stream) -> BrokerSession:
        """Open the session of a broker."""
        topics_max = self._config.topics_per_broker_max
        return BrokerSession(
            stream, self._table, self._clock, next(self._sessions), topics_max=topics_max
        )

    def route(self, request: pb.RouteRequest, call: Call) -> pb.RouteReply:
        """Return the routes of those of the requested topics that a live broker has."""
        limit = self._config.topics_per_route_max
        if len(request.topics) > limit:
            raise InvalidArgument(
                f"topics: {len(request.topics)} in one request, the limit is {limit}: ask in parts",
                field="topics",
                limit=limit,
                value=len(request.topics),
            )
        for index, topic in enumerate(request.topics):
            _check_topic(f"topics[{index}]", topic)
        found = (self._table.route(topic) for topic in request.topics)
        return pb.RouteReply(routes=[_route(route) for route in found if route is not None])

    def cluster(self, request: pb.ClusterRequest, call: Call) -> pb.ClusterReply:
        """Return all live brokers."""
        return pb.ClusterReply(brokers=[_broker(broker) for broker in self._table.cluster()])

    def list_topics(self, request: pb.TopicListRequest, call: Call) -> pb.TopicListReply:
        """Return the names of all topics."""
        every = self._table.topics(include_system=request.include_system)
        topics = visible(call.may, every, str, of_topic)
        return pb.TopicListReply(topics=topics)


class BrokerSession:
    """One open stream of a broker: each message registers, the end of the stream unregisters."""

    def __init__(
        self, stream: Stream, table: RouteTable, clock: Clock, number: int, *, topics_max: int
    ) -> None:
        self._stream = stream
        self._table = table
        self._clock = clock
        self._number = number
        self._topics_max = topics_max
        self._broker: tuple[str, int] | None = None
        #: Topics received so far of a complete state that is sent in several messages.
        self._parts: dict[str, TopicQueues] = {}
        self._superseded = False

    def on_message(self, message: pb.BrokerRegistration) -> None:
        state = read_registration(message, topics_max=self._topics_max)
        broker = (state.name, state.id)
        if self._broker not in (None, broker):
            raise InvalidArgument(
                f"broker_name, broker_id: this stream registered {self._broker}, not {broker}:"
                " open a stream for each broker",
                field="broker_name",
                value=state.name,
            )
        self._broker = broker
        state = self._joined(state, more=message.more)
        if message.more:
            self._stream.send(pb.RegistrationReply(takes_changes=True))
            return
        verdict = self._registered(state)
        self._note(verdict, state.address)
        send_topics = verdict is Verdict.SEND_TOPICS
        self._stream.send(pb.RegistrationReply(send_topics=send_topics, takes_changes=True))

    def _joined(self, state: BrokerState, *, more: bool) -> BrokerState:
        """Return STATE with the parts received before it; MORE: another part follows."""
        parts, self._parts = self._parts, {}
        if state.topics is None or state.changed_since is not None or not (parts or more):
            return state
        parts.update(state.topics)
        check_count(len(parts), self._topics_max)
        if more:
            self._parts = parts
        return replace(state, topics=parts)

    def _registered(self, state: BrokerState) -> Verdict:
        if state.changed_since is not None and state.topics is not None:
            known = self._table.topic_count(state.name, state.id)
            if known + len(state.topics) > self._topics_max:
                return (
                    Verdict.SEND_TOPICS
                )  # Only the complete state shows whether there are too many.
        return self._table.register(state, self._number, self._clock.now_ms())

    def _note(self, verdict: Verdict, address: str) -> None:
        superseded = verdict is Verdict.SUPERSEDED
        if superseded and not self._superseded:
            logger.warning(
                "registration ignored broker=%s address=%s: a newer broker of this name and id is registered",
                self._broker,
                address,
            )
        self._superseded = superseded

    def on_end(self) -> None:
        self._stream.finish()

    def on_close(self) -> None:
        if self._broker is not None and self._table.unregister(
            *self._broker, self._number, self._clock.now_ms()
        ):
            logger.info("broker unregistered broker=%s id=%d", *self._broker)


def _check_topic(field: str, topic: str) -> None:
    try:
        check_topic(topic)
    except InvalidName as error:
        raise InvalidName(
            f"{field}: {error.message}", **{**error.details, "field": field}
        ) from None


def _route(route: TopicRoute) -> pb.TopicRoute:
    return pb.TopicRoute(
        topic=route.topic,
        queues=[
            pb.QueueData(
                broker_name=name,
                read_queues=queues.read_queues,
                write_queues=queues.write_queues,
                permission=queues.permission,
                type=queues.type,
            )
            for name, queues in route.queues.items()
        ],
        brokers=[_broker(broker) for broker in route.brokers],
    )


def _broker(broker: BrokerAddresses) -> pb.BrokerData:
    return pb.BrokerData(
        cluster=broker.cluster,
        broker_name=broker.name,
        addresses=broker.addresses,
        replicas=[
            pb.Replica(
                replica_id=replica.id,
                address=replica.address,
                role=pb.MASTER if replica.role is Role.MASTER else pb.FOLLOWER,
                epoch=replica.epoch,
            )
            for replica in broker.replicas
        ],
    )
