"""What consumers of `apache.rocketmq.v2` ask, without a network: pops, and the handlers in front of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from pocketmq.broker.events import BrokerEvents
from pocketmq.broker.messages.fetch import Fetches
from pocketmq.broker.offset_updates import OffsetUpdates
from pocketmq.broker.pop.deliveries import KeptDeliveries
from pocketmq.broker.service_v2.acknowledging import Acknowledging
from pocketmq.broker.service_v2.lite_subscriptions import LiteSubscriptions
from pocketmq.broker.service_v2.pulling import PullConsumers
from pocketmq.broker.service_v2.receiving import Receiving
from pocketmq.broker.service_v2.service import SERVICE, ServedMethods, ServiceV2
from pocketmq.broker.service_v2.sessions import Sessions
from pocketmq.broker.service_v2.subscriptions import Subscriptions
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.flush import Waiter
from tests.fake_calls import FakeCall, FakeStream

from ..pop.popping import GROUP, TOPIC, Popping

CLIENT: Mapping[str, str] = {"x-mq-client-id": "c", "x-mq-client-version": "5.1.2"}
RETRY_DELAYS_MS = (1_000, 5_000, 10_000)


def resource(name: str) -> v2.Resource:
    return v2.Resource(name=name)


def seconds(value: float) -> timedelta:
    """Return a duration: messages take it for one."""
    return timedelta(seconds=value)


class SafeAtOnce(KeptDeliveries):
    """Deliveries that are written at once, so that answers do not wait for the end of the turn."""

    def when_safe(self, done: Waiter) -> None:
        self.write()
        done(None)


class Consuming(Popping):
    """Pops and their face."""

    deliveries_type = SafeAtOnce

    def __init__(self, path: Path, *, queues: int = 1, **settings: Any) -> None:
        super().__init__(path, queues=queues, **settings)
        self.streams: list[FakeStream] = []
        events = BrokerEvents()
        self.sessions = Sessions(self.timers, limit=lambda: 100, events=events)
        self.subscriptions = Subscriptions(self.config, self.groups, self.sessions, self.timers)
        events.client_gone.append(self.subscriptions.forget)

    def check_commit(self, group: str, offsets: object) -> None:
        """Take any offsets: nobody holds queues here."""

    def method(self, name: str) -> Any:
        fetches = Fetches(
            self.config,
            self.topics,
            self.offsets,
            self.store,
            self.purgatory,
            self.clock.now_ms,
            self.filters,
            self.groups,
        )
        updates = OffsetUpdates(self.groups, self.offsets, self.pops, self.check_commit)
        faces: list[ServedMethods] = [
            Receiving(self.pops, self.subscriptions, self.clock.now_ms, self.config),
            Acknowledging(self.pops, self.topics, self.groups, RETRY_DELAYS_MS),
            LiteSubscriptions(self.topics, self.groups, self.pops.lite, self.store, self.sessions),
            PullConsumers(self.store, self.topics, self.offsets, updates, fetches),
        ]
        return ServiceV2(faces).methods()[f"/{SERVICE}/{name}"].handler

    def call(self, name: str, request: Any, metadata: Mapping[str, str] = CLIENT) -> Any:
        """Return the reply to a unary call, which is answered at once."""
        return self.method(name)(request, FakeCall(metadata=metadata))

    def request(self, **fields: Any) -> v2.ReceiveMessageRequest:
        topic = fields.pop("topic", TOPIC)
        return v2.ReceiveMessageRequest(
            **{
                "group": resource(GROUP),
                "message_queue": v2.MessageQueue(topic=resource(topic), id=-1),
                "batch_size": 32,
                "invisible_duration": seconds(30),
                "long_polling_timeout": seconds(10),
                **fields,
            }
        )

    def receive(
        self,
        request: v2.ReceiveMessageRequest | None = None,
        *,
        deadline_ms: int | None = 13_000,
        metadata: Mapping[str, str] = CLIENT,
        **fields: Any,
    ) -> FakeStream:
        """Ask, and return the stream, over or not."""
        stream = FakeStream(metadata=metadata, deadline_ms=deadline_ms)
        self.method("ReceiveMessage")(request or self.request(**fields), stream)
        self.streams.append(stream)
        return stream

    def messages(self, **fields: Any) -> list[v2.Message]:
        """Receive what there is."""
        return messages_of(self.receive(**fields))

    def ack_message(self, *handles: str, topic: str = TOPIC, group: str = GROUP) -> Any:
        request = v2.AckMessageRequest(
            group=resource(group),
            topic=resource(topic),
            entries=[
                v2.AckMessageEntry(message_id=f"id{number}", receipt_handle=handle)
                for number, handle in enumerate(handles)
            ],
        )
        return self.call("AckMessage", request)

    def change(self, handle: str, invisible_s: float, **fields: Any) -> Any:
        request = v2.ChangeInvisibleDurationRequest(
            **{
                "group": resource(GROUP),
                "topic": resource(TOPIC),
                "receipt_handle": handle,
                "invisible_duration": seconds(invisible_s),
                **fields,
            }
        )
        return self.call("ChangeInvisibleDuration", request)

    def forward(self, handle: str, **fields: Any) -> Any:
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            **{
                "group": resource(GROUP),
                "topic": resource(TOPIC),
                "receipt_handle": handle,
                "delivery_attempt": 3,
                "max_delivery_attempts": 3,
                **fields,
            }
        )
        return self.call("ForwardMessageToDeadLetterQueue", request)

    async def passes(self, ms: int) -> None:
        """Let MS pass."""
        await self.clock.advance(ms)


def parts_of(stream: FakeStream) -> list[str]:
    """Return what STREAM, which has ended well, carried, in order."""
    assert stream.is_over
    assert stream.error is None
    return [reply.WhichOneof("content") for reply in stream.sent]


def messages_of(stream: FakeStream) -> list[v2.Message]:
    assert parts_of(stream)[0] == "status", stream.sent
    return [reply.message for reply in stream.sent if reply.HasField("message")]


def status_of_stream(stream: FakeStream) -> v2.Status:
    """Return the status of STREAM, which came first and only once; the delivery time came last."""
    parts = parts_of(stream)
    assert parts[0] == "status"
    assert parts[-1] == "delivery_timestamp"
    assert set(parts[1:-1]) <= {"message"}
    status: v2.Status = stream.sent[0].status
    return status


def handles_of(stream: FakeStream) -> list[str]:
    return [one.system_properties.receipt_handle for one in messages_of(stream)]


def bodies(stream: FakeStream) -> list[bytes]:
    return [message.body for message in messages_of(stream)]
