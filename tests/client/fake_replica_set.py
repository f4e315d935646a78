"""A replica set in memory, for the tests of the client: one broker's data, served by whichever replica is master."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pocketmq.proto.errors import MasterFenced
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import Method, MethodTable

from .fake_broker import FakeBroker, add_topic
from .fake_cluster import FakeCluster


class FakeReplicaSet(FakeCluster):
    """Three replicas of broker-a, of which 1 is master in epoch 1, and the name servers that know them."""

    def __init__(self, *topics: str, queues: int = 1) -> None:
        self.data = FakeBroker("broker-a", "")
        for topic in topics:
            add_topic(self.data, topic, queues)
        self.master, self.epoch = 1, 1
        self.replicas = {id: FakeReplica(self, id) for id in (1, 2, 3)}
        super().__init__(*self.replicas.values())  # type: ignore[arg-type]
        #: What name servers say; None: as it is.
        self.told: pb.BrokerData | None = None

    @property
    def broker(self) -> FakeBroker:
        return self.data

    def address(self, id: int) -> str:
        return self.replicas[id].address

    def elect(self, id: int) -> None:
        """Have ID be the master in the next epoch."""
        self.master, self.epoch = id, self.epoch + 1

    def as_told(self) -> pb.BrokerData:
        """Return what a name server says now."""
        if self.told is not None:
            return self.told
        return self.data_of(self.master, self.epoch)

    def data_of(self, master: int, epoch: int) -> pb.BrokerData:
        """Return what a name server says while MASTER is it in EPOCH; 0: nobody is. Who is lost is left out."""
        told = pb.BrokerData(cluster="c", broker_name="broker-a")
        for id, replica in self.replicas.items():
            if replica.address in self.lost:
                continue
            is_master = id == master
            told.addresses[0 if is_master else id] = replica.address
            role = pb.MASTER if is_master else pb.FOLLOWER
            told.replicas.add(replica_id=id, address=replica.address, role=role, epoch=epoch)
        return told

    def route(self, request: pb.RouteRequest, _: Any) -> pb.RouteReply:
        reply = pb.RouteReply()
        for topic in request.topics:
            if topic in self.data.topics:
                route = self._route(topic, [self.data])
                del route.brokers[:]
                route.brokers.append(self.as_told())
                reply.routes.append(route)
        return reply

    def cluster(self, _: pb.ClusterRequest, __: Any) -> pb.ClusterReply:
        return pb.ClusterReply(brokers=[self.as_told()])


class FakeReplica:
    """One replica: the broker while it is master, else somebody who knows where that is."""

    def __init__(self, replicas: FakeReplicaSet, id: int) -> None:
        self._set = replicas
        self._id = id
        self.name = "broker-a"
        self.address = f"127.0.0.{id}:8081"
        #: Fetches and questions for offsets that it heard as a follower, and how many messages of a queue it has then.
        self.fetches = self.looks = 0
        self.has = 1 << 30
        #: May its master have more?
        self.is_behind = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._set.data, name)

    def check_master(self) -> None:
        there = self._set
        if there.master == self._id:
            return
        known = there.address(there.master) if there.master else ""
        raise MasterFenced(
            "not the master", broker=self.name, master=known, epoch=there.epoch if known else 0
        )

    def produce(self, run: pb.ProduceRun) -> pb.ProduceReply:
        self.check_master()
        return self._set.data.produce(run)

    def fetch(self, request: pb.FetchRequest) -> pb.FetchReply:
        there = self._set
        if not request.from_any or there.master == self._id:
            self.check_master()
            return there.data.fetch(request)
        self.fetches += 1
        key = request.topic, request.queue
        rows = there.data.queues.get(key, [])
        if self.has <= request.offset < len(rows):
            self.check_master()  # Its master has more than it has.
        there.data.queues[key] = rows[: self.has]
        try:
            return there.data.fetch(request)
        finally:
            there.data.queues[key] = rows

    def _group_offsets(self, request: pb.GroupOffsetsRequest) -> pb.GroupOffsetsReply:
        """Answer as a follower that has `has` messages of each queue."""
        self.looks += 1
        if self.is_behind:
            raise MasterFenced("ask the master")
        reply = self._set.data.group_offsets(request, None)
        reply.follows = True
        for one in request.queues:
            count = len(self._set.data.queues.get((one.topic, one.queue), []))
            reply.bounds.add(topic=one.topic, queue=one.queue, max_offset=min(count, self.has))
        return reply

    def methods(self) -> MethodTable:
        return MethodTable({method.path: method for method in self._methods()})

    def _methods(self) -> Iterator[Method]:
        for method in self._set.data.methods():
            handler = self._checked(method.handler)
            yield Method(method.path, method.kind, method.request_type, method.reply_type, handler)

    def _checked(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any) -> Any:
            request = arguments[0]
            if self._set.master == self._id or not getattr(request, "from_any", False):
                self.check_master()
                return handler(*arguments)
            return self._group_offsets(request)

        return checked
