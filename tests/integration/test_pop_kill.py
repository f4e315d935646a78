"""A server that is killed amid pops, as a process, and started again: what it had answered holds.

Its clock is virtual: no delivery ends before the test says so, however slow the machine.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from pocketmq.client import Admin
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.tools.server_process import ServerProcess

from .command import Shell

pytestmark = pytest.mark.processes

SERVICE = "/apache.rocketmq.v2.MessagingService/"
CLIENT = (("x-mq-client-id", "c"), ("x-mq-client-version", "5.1.2"), ("x-mq-language", "PYTHON"))
GROUP, TOPIC = v2.Resource(name="g"), v2.Resource(name="T")
COUNT = 64
INVISIBLE_S = 60


class Caller:
    """Calls the service at ADDRESS."""

    def __init__(self, address: str) -> None:
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
        message = v2.Message(topic=TOPIC, body=body, system_properties=properties)
        request = v2.SendMessageRequest(messages=[message])
        assert self.ask("SendMessage", request, v2.SendMessageResponse).status.code == v2.OK

    def receive(self) -> list[v2.Message]:
        call = self.channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )
        request = v2.ReceiveMessageRequest(
            group=GROUP,
            message_queue=v2.MessageQueue(topic=TOPIC, id=-1),
            batch_size=32,
            invisible_duration=timedelta(seconds=INVISIBLE_S),
            long_polling_timeout=timedelta(seconds=20),
        )
        replies = call(request, metadata=CLIENT, timeout=20)
        return [reply.message for reply in replies if reply.HasField("message")]

    def acknowledge(self, message: v2.Message) -> None:
        entry = v2.AckMessageEntry(receipt_handle=message.system_properties.receipt_handle)
        request = v2.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry])
        reply = self.ask("AckMessage", request, v2.AckMessageResponse)
        assert reply.status.code == v2.OK, reply


def received(caller: Caller, count: int) -> dict[bytes, v2.Message]:
    """Receive until there are COUNT."""
    found: dict[bytes, v2.Message] = {}
    while len(found) < count:
        found |= {message.body: message for message in caller.receive()}
    return found


def test_a_kill_brings_nothing_back_that_was_acknowledged(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", "--clock", "virtual") as server:
        caller = Caller(str(server.ready["broker"]))
        with Admin(server.nameserver) as admin:
            admin.create_topic("T", queues=2)
        for number in range(COUNT):
            caller.send(b"%d" % number)
        got = received(caller, COUNT)
        finished = [b"%d" % number for number in range(0, COUNT, 2)]
        for body in finished:
            caller.acknowledge(got.pop(body))
        server.kill()
        caller.channel.close()

    with ServerProcess(tmp_path / "store", "--clock", "virtual") as server:
        caller = Caller(str(server.ready["broker"]))
        by_old_handle = sorted(got)[:10]
        for body in by_old_handle:
            caller.acknowledge(got.pop(body))
        assert Shell(server.nameserver)("clock", "advance", f"{INVISIBLE_S}s").code == 0

        again = received(caller, len(got))

        assert set(again) == set(got)
        assert {one.system_properties.delivery_attempt for one in again.values()} == {2}
        assert server.stop() == 0
        caller.channel.close()
