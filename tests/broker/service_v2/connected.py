"""Clients without a wire, over the topics and groups that were there when Apache's traffic was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.consumer_groups import Groups
from pocketmq.broker.events import BrokerEvents
from pocketmq.broker.other_brokers import OtherBrokers
from pocketmq.broker.service_v2.routes import RouteQueries
from pocketmq.broker.service_v2.service import SERVICE, ServiceV2
from pocketmq.broker.service_v2.telemetry import Clients
from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.broker.transactions.checks import Listeners
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.topics import MESSAGE_SIZE_MAX
from pocketmq.store.config import StoreConfig
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...fake_calls import PEER, FakeCall, FakeStream
from ...recorded_names import named_groups, named_topics, save_tables
from ...recorded_v2 import recorded_group

OWN = "127.0.0.1:8081"
TOPICS = named_topics(
    "R-",
    [
        "R-normal",
        "R-fifo",
        "R-delay",
        "R-tx",
        "R-mixed",
        "R-untyped",
        "R-lite",
        "R-priority",
        "R-readonly",
        "R-writeonly",
    ],
)
GROUPS = named_groups(
    "R-", ["R-g", "R-g2", "R-g3", "R-tele", "R-orderly", "R-disabled", "R-once", "R-exp", "R-liteg"]
)


class Connected:
    """The clients of a broker that keeps its tables in FOLDER; time stands still until it is moved."""

    def __init__(
        self,
        folder: Path,
        own: Sequence[str] = (OWN,),
        *,
        body_max: int = MESSAGE_SIZE_MAX,
        **settings: Any,
    ) -> None:
        self.clock = VirtualClock()
        self.timers = Timers(self.clock)
        config = BrokerConfig(**settings)
        save_tables(str(folder), TOPICS, GROUPS)
        topics, groups = (
            StateFile(OsDisk(), str(folder), name)
            for name in ("topics.json", "subscriptionGroup.json")
        )
        self.topics = Topics(topics, config, self.clock.now_ms)
        self.groups = Groups(groups, config, self.clock.now_ms)
        store = StoreConfig(path=str(folder), message_size_max_bytes=body_max)
        self.listeners = Listeners()
        self.events = BrokerEvents()
        self.clients = Clients(
            config, store, self.groups, self.timers, lambda: own, self.listeners, self.events
        )
        neighbours = OtherBrokers(config.name, (), Http2Channel, self.clock.now_ms)
        routes = RouteQueries(config.name, self.topics, self.groups, self.clients.reach, neighbours)
        self.sessions = self.clients.sessions
        self.clients.start()
        self._methods = ServiceV2([self.clients, routes]).methods()

    def ask(
        self, rpc: str, request: Any, metadata: dict[str, str] | None = None, **caller: Any
    ) -> Any:
        """Return the answer to a unary call of client "c", or of whom METADATA says; CALLER: its peer and user."""
        named = {"x-mq-client-id": "c"} if metadata is None else metadata
        call = FakeCall(metadata=named, **caller)
        return self._methods[f"/{SERVICE}/{rpc}"].handler(request, call)

    def ask_recorded(self, case: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to the call of a recorded CASE, as its body would have been recorded."""
        method = self._methods[f"/{SERVICE}/{case['rpc']}"]
        request = json_format.ParseDict(case["request"], method.request_type())
        reply = method.handler(request, FakeCall(metadata=case["metadata"]))
        return json_format.MessageToDict(reply, preserving_proto_field_name=True)

    def open(
        self, who: str | None = "c", *, user: Any = None, peer: Any = PEER, **metadata: Any
    ) -> Peer:
        """Open a Telemetry stream for client WHO of USER, at PEER."""
        named = {} if who is None else {"x-mq-client-id": who}
        stream = FakeStream(peer, metadata=named | metadata, user=user)
        return Peer(stream, self._methods[f"/{SERVICE}/Telemetry"].handler(stream))


class Peer:
    """A client's end of a Telemetry stream."""

    def __init__(self, stream: FakeStream, receiver: Any) -> None:
        self.stream = stream
        self.receiver = receiver

    def say(self, settings: v2.Settings) -> v2.Settings:
        """Send SETTINGS; return the answer."""
        self.receiver.on_message(v2.TelemetryCommand(settings=settings))
        answer = self.stream.sent[-1]
        assert answer.status.code == v2.OK
        return answer.settings  # type: ignore[no-any-return]

    def close(self) -> None:
        """Break off."""
        self.stream.cancel()
        self.receiver.on_close()


def cases(name: str, *rpcs: str) -> list[Any]:
    """Return the cases of recording NAME, of RPCS only if some are named, as parameters of a test."""
    found = recorded_group(name)["cases"]
    return [pytest.param(one, id=one["id"]) for one in found if not rpcs or one["rpc"] in rpcs]


PRODUCER = v2.Settings(
    client_type=v2.PRODUCER, publishing=v2.Publishing(topics=[v2.Resource(name="R-normal")])
)


def consumer(group: str = "R-g", **fields: Any) -> v2.Settings:
    """Return the settings of a consumer of GROUP."""
    settings = v2.Settings(client_type=v2.PUSH_CONSUMER, **fields)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add().topic.name = "R-normal"
    return settings
