"""A name server and brokers in memory, for the tests of the client.

`FakeCluster` answers what pocketmq.v1 asks, with no more rules than the tests need, and does wrong when it is told to
(`faults`). It is reached in two ways: `FakeConnections` call it directly, so that a virtual clock drives everything;
`serve` hangs it on the real carrier, so that streams, statuses and lost connections are gRPC's own.
"""

from __future__ import annotations

from typing import Any

from pocketmq.proto.carrier_grpcio import GrpcioCarrier
from pocketmq.proto.clock import Clock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import MethodTable, service, unary

from .fake_broker import FakeBroker, add_topic
from .fake_streams import MemoryConversation

NAME_SERVER = "127.0.0.1:9876"


class FakeCluster:
    """Brokers, and the routes to them."""

    def __init__(self, *brokers: FakeBroker) -> None:
        self.brokers = {broker.address: broker for broker in brokers}
        #: Addresses that cannot be reached.
        self.lost: set[str] = set()
        #: Conversations in the order in which they were opened.
        self.conversations: list[MemoryConversation] = []
        #: Addresses in the order in which they were asked.
        self.asked: list[str] = []

    @classmethod
    def of_one(cls, *topics: str, queues: int = 4) -> FakeCluster:
        broker = FakeBroker("broker-a", "127.0.0.1:8081")
        for topic in topics:
            add_topic(broker, topic, queues)
        return cls(broker)

    def live_by(self, clock: Clock) -> None:
        """Have leases end by CLOCK."""
        for broker in self.brokers.values():
            broker.sharing.clock = clock

    @property
    def broker(self) -> FakeBroker:
        """The first broker."""
        return next(iter(self.brokers.values()))

    def route(self, request: pb.RouteRequest, _: Any) -> pb.RouteReply:
        reply = pb.RouteReply()
        for topic in request.topics:
            holders = [broker for broker in self.brokers.values() if topic in broker.topics]
            if holders:
                reply.routes.append(self._route(topic, holders))
        return reply

    def _route(self, topic: str, holders: list[FakeBroker]) -> pb.TopicRoute:
        configs = [(broker.name, broker.topics[topic]) for broker in holders]
        return pb.TopicRoute(
            topic=topic,
            queues=[
                pb.QueueData(
                    broker_name=name,
                    read_queues=config.read_queues,
                    write_queues=config.write_queues,
                    permission=config.permission,
                )
                for name, config in configs
            ],
            brokers=[_broker_data(broker) for broker in holders],
        )

    def cluster(self, _: pb.ClusterRequest, __: Any) -> pb.ClusterReply:
        return pb.ClusterReply(brokers=[_broker_data(b) for b in self.brokers.values()])

    def list_topics(self, _: pb.TopicListRequest, __: Any) -> pb.TopicListReply:
        topics = {topic for broker in self.brokers.values() for topic in broker.topics}
        return pb.TopicListReply(topics=sorted(topics))

    def methods(self) -> MethodTable:
        return service(
            "pocketmq.v1.NameServer",
            {
                "Route": unary(pb.RouteRequest, pb.RouteReply, self.route),
                "Cluster": unary(pb.ClusterRequest, pb.ClusterReply, self.cluster),
                "ListTopics": unary(pb.TopicListRequest, pb.TopicListReply, self.list_topics),
            },
        )


def _broker_data(broker: FakeBroker) -> pb.BrokerData:
    return pb.BrokerData(
        cluster="DefaultCluster", broker_name=broker.name, addresses={0: broker.address}
    )


async def serve(cluster: FakeCluster, *, port: int = 0) -> tuple[GrpcioCarrier, int]:
    """Serve the name server and the first broker of CLUSTER on one port, which becomes the broker's address."""
    broker = cluster.broker
    carrier = GrpcioCarrier([cluster.methods(), broker.methods()])
    bound = await carrier.start("127.0.0.1", port)
    broker.address = f"127.0.0.1:{bound}"
    cluster.brokers = {broker.address: broker}
    return carrier, bound
