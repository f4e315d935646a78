"""Messages with a priority: sent by PocketMQ's client, received by official ones, shown by the tools."""

from __future__ import annotations

import json

import pytest

from pocketmq.client import Admin, Message, Producer
from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from ..served import ServerProcess
from .command import Shell
from .v2_caller import Caller

pytestmark = pytest.mark.processes

TOPIC = "urgent"


@pytest.fixture(scope="module", autouse=True)
def topic(server: ServerProcess) -> None:
    with Admin(server.nameserver) as admin:
        admin.create_topic(TOPIC, queues=4, type="PRIORITY")
        admin.create_group("workers")


def test_official_consumers_receive_the_highest_priority_first_and_tools_show_it(
    server: ServerProcess, call: Shell
) -> None:
    priorities = (1, 0, 3, 2, 7)
    with Producer(server.nameserver) as producer:
        receipts = [producer.send(TOPIC, b"%d" % one, priority=one) for one in priorities]
    assert [receipt.queue for receipt in receipts] == [1, 0, 3, 2, 3]

    workers = Caller(server.ready["broker"], v2.Resource(name=TOPIC), v2.Resource(name="workers"))
    received: list[v2.Message] = []
    while len(received) < len(priorities):
        received += workers.receive()

    assert [int(one.body) for one in received] == [3, 7, 2, 1, 0]
    assert [one.system_properties.priority for one in received] == [3, 7, 2, 1, 0]
    assert {one.system_properties.message_type for one in received} == {v2.PRIORITY}

    consumed = call("consume", TOPIC, "--limit", "5", "--json").out.splitlines()
    assert sorted(json.loads(line)["priority"] for line in consumed) == [0, 1, 2, 3, 7]
    formatted = call("consume", TOPIC, "--limit", "5", "--format", "{body}:{priority}").out
    assert sorted(formatted.split()) == ["0:0", "1:1", "2:2", "3:3", "7:7"]
    shown = call("find", "--topic", TOPIC, "--queue", "2", "--offset", "0").out
    assert (
        dict(line.split(None, 1) for line in shown.splitlines() if " " in line)["priority"] == "2"
    )


def test_a_topic_of_type_priority_refuses_messages_without_one(
    server: ServerProcess, call: Shell
) -> None:
    with (
        Producer(server.nameserver) as producer,
        pytest.raises(InvalidArgument, match="send it with priority=…"),
    ):
        producer.send(TOPIC, b"x")
    with (
        Producer(server.nameserver, group="p", checker=lambda _: True) as producer,
        pytest.raises(InvalidArgument, match="cannot have a priority"),
    ):
        producer.transaction(Message(TOPIC, b"x", priority=1))
    refused = call("send", TOPIC, "x")
    assert (refused.code, "PRIORITY messages (message.type)" in refused.err) == (2, True)
    assert call("send", TOPIC, "x", "--priority", "1").code == 0
