"""Calls of `apache.rocketmq.v2` on a broker in another process, as one consumer group's client makes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import grpc

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

SERVICE = "/apache.rocketmq.v2.MessagingService/"
CLIENT = (("x-mq-client-id", "c"), ("x-mq-client-version", "5.1.2"), ("x-mq-language", "PYTHON"))
GROUP, TOPIC = v2.Resource(name="g"), v2.Resource(name="T")
#: How long what was received stays away.
INVISIBLE_S = 60


class Caller:
    """A client of GROUP, of TOPIC, at the broker of ADDRESS."""

    def __init__(
        self, address: str, topic: v2.Resource = TOPIC, group: v2.Resource = GROUP
    ) -> None:
        self.topic = topic
        self.group = group
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )

    def ask(self, name: str, request: Any, reply_type: Any) -> Any:
        call = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply_type.FromString,
        )
        return call(request, metadata=CLIENT, timeout=20)

    def send(self, body: bytes) -> None:
        properties = v2.SystemProperties(message_id=body.decode(), message_type=v2.NORMAL)
        message = v2.Message(topic=self.topic, body=body, system_properties=properties)
        request = v2.SendMessageRequest(messages=[message])
        assert self.ask("SendMessage", request, v2.SendMessageResponse).status.code == v2.OK

    def receive(self) -> list[v2.Message]:
        call = self.channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )
        request = v2.ReceiveMessageRequest(
            group=self.group,
            message_queue=v2.MessageQueue(topic=self.topic, id=-1),
            batch_size=32,
            invisible_duration=timedelta(seconds=INVISIBLE_S),
            long_polling_timeout=timedelta(seconds=20),
        )
        replies = call(request, metadata=CLIENT, timeout=20)
        return [reply.message for reply in replies if reply.HasField("message")]

    def acknowledge(self, message: v2.Message) -> None:
        entry = v2.AckMessageEntry(receipt_handle=message.system_properties.receipt_handle)
        request = v2.AckMessageRequest(group=self.group, topic=self.topic, entries=[entry])
        reply = self.ask("AckMessage", request, v2.AckMessageResponse)
        assert reply.status.code == v2.OK, reply
