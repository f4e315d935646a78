"""The remoting protocol of a name server: classic clients and tools ask for routes, brokers and topics.

Source: remoting.md §3; the recordings in tests/fixtures/remoting.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ..proto.access.guard import Rule, any_user
from ..proto.access.listing import visible
from ..proto.access.policies import GET, LIST, OTHERS, Need, of_topic, to_see_topic
from ..proto.errors import InvalidName
from ..proto.remoting.codes import RequestCode, ResponseCode
from ..proto.remoting.fastjson import ObjectMap, dumps
from ..proto.remoting.requests import RemotingRequest
from ..proto.remoting.server import Handler
from ..proto.topics import AUTO_CREATE_TOPIC, check_topic
from .route_table import MASTER_ID, BrokerAddresses, RouteTable, TopicRoute

#: From this version on (4.9.4), clients read routes as standard JSON.
_STANDARD_JSON: Final = 401
_NO_ROUTE: Final = (
    "No topic route info in name server for the topic: {}\n"
    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
)


class RemotingRoutes:
    """Answers from TABLE."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
        }

    def route(self, request: RemotingRequest) -> None:
        """Answer the brokers and queues of a topic."""
        topic = request.text("topic")
        try:
            route = self._table.route(check_topic(topic))
        except InvalidName:
            route = None
        if route is None:
            shown = topic[:255]
            request.answer(code=ResponseCode.TOPIC_NOT_EXIST, remark=_NO_ROUTE.format(shown))
            return
        standard = request.command.version >= _STANDARD_JSON
        standard = standard or request.flag("acceptStandardJsonOnly")
        request.answer(dumps(_route(route, standard=standard)))

    def cluster(self, request: RemotingRequest) -> None:
        """Answer all brokers, and those of each cluster."""
        brokers = self._table.cluster()
        clusters: dict[str, list[str]] = {}
        for broker in brokers:
            clusters.setdefault(broker.cluster, []).append(broker.name)
        table = {one.name: _broker(one, standard=False) for one in brokers}
        request.answer(dumps({"brokerAddrTable": table, "clusterAddrTable": clusters}))

    def topics(self, request: RemotingRequest) -> None:
        """Answer the names of all topics."""
        request.answer(_topic_list(request, self._table.topics(include_system=True)))

    def topics_of_cluster(self, request: RemotingRequest) -> None:
        """Answer the names of the topics that brokers of a cluster have."""
        cluster = request.text("cluster")
        request.answer(_topic_list(request, self._table.topics_of_cluster(cluster)))


def _topic_list(request: RemotingRequest, topics: Iterable[str]) -> bytes:
    """Return those of TOPICS that the user of REQUEST may list."""
    return dumps({"topicList": visible(request.user.may, list(topics), str, of_topic)})


def _seen_topic(request: RemotingRequest) -> Iterable[Need]:
    """A producer of a new topic asks for the brokers that would create it: these, any user may know."""
    topic = request.text("topic")
    return () if topic == AUTO_CREATE_TOPIC else (to_see_topic(topic),)


def _listed_topics(request: RemotingRequest) -> Iterable[Need]:
    return (of_topic(OTHERS, LIST | GET),)


#: What each request needs: the same as the calls of the gRPC service.
RULES: Final[dict[int, Rule]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _seen_topic,
    RequestCode.GET_BROKER_CLUSTER_INFO: any_user,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _listed_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: _listed_topics,
}


def _route(route: TopicRoute, *, standard: bool) -> dict[str, Any]:
    return {
        "brokerDatas": [_broker(one, standard=standard) for one in route.brokers],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": name,
                "perm": queues.permission,
                "readQueueNums": queues.read_queues,
                "topicSysFlag": 0,
                "writeQueueNums": queues.write_queues,
            }
            for name, queues in route.queues.items()
        ],
    }


def _broker(broker: BrokerAddresses, *, standard: bool) -> dict[str, Any]:
    """Return BROKER with the address of its master: followers do not speak remoting. STANDARD: as standard JSON."""
    addresses = {
        number: address for number, address in broker.addresses.items() if number == MASTER_ID
    }
    written: object = ObjectMap(addresses.items())
    if standard or not addresses:
        written = {str(number): address for number, address in addresses.items()}
    return {
        "brokerAddrs": written,
        "brokerName": broker.name,
        "cluster": broker.cluster,
        "enableActingMaster": False,
    }
