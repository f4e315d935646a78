"""What belongs to a trace says so wherever it goes, whoever put it there: its sender, or an official client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.pop.receives import ReceiveRequest, ReceiveResult
from pocketmq.broker.service_v2.messages import delivered
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.properties import TRACE_CONTEXT, TRACEPARENT

from .serving import Served

OF_CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OF_SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
GROUP = "billing"


async def send(served: Served, topic: str, **system: Any) -> None:
    properties = v2.SystemProperties(message_id="id-0", trace_context=OF_CLIENT, **system)
    message = v2.Message(
        topic={"name": topic},
        body=b"a",
        user_properties={TRACEPARENT: OF_SENDER},
        system_properties=properties,
    )
    reply = await served.ask("SendMessage", v2.SendMessageRequest(messages=[message]))
    assert reply.status.code == v2.OK, reply


async def commit(served: Served, topic: str) -> None:
    request = v2.EndTransactionRequest(
        topic={"name": topic}, message_id="id-0", transaction_id="id-0", resolution=v2.COMMIT
    )
    reply = await served.ask("EndTransaction", request)
    assert reply.status.code == v2.OK, reply


def receive(served: Served, topic: str) -> list[Any]:
    popped: list[ReceiveResult] = []
    for _ in range(4):
        served.parts.pops.receive(
            ReceiveRequest(group=GROUP, topic=topic, client_id="me", batch=4, invisible_ms=10_000),
            popped.append,
        )
    return [one for answer in popped for one in answer.deliveries]


def check(properties: Mapping[str, str]) -> None:
    assert (properties[TRACE_CONTEXT], properties[TRACEPARENT]) == (OF_CLIENT, OF_SENDER)


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "TRANSACTION"])
async def test_a_trace_is_kept_to_the_consumer_and_among_the_dead(
    tmp_path: Path, kind: str
) -> None:
    async with Served(tmp_path) as served:
        served.topic("T", "" if kind == "NORMAL" else kind)
        system: dict[str, Any] = {"message_type": v2.MessageType.Value(kind)}
        if kind == "FIFO":
            system["message_group"] = "g"
        if kind == "DELAY":
            system["delivery_timestamp"] = {"seconds": served.clock.unix_ms() // 1000 + 60}
        await send(served, "T", **system)
        if kind == "TRANSACTION":
            await commit(served, "T")
        await served.clock.advance(70_000)
        (record,) = served.records("T")
        check(record.properties)

        (delivery,) = receive(served, "T")
        message = delivered(delivery.record, v2.Resource(name="T"), attempt=1)
        assert message.system_properties.trace_context == OF_CLIENT
        assert message.user_properties == {TRACEPARENT: OF_SENDER}

        served.parts.pops.forward_to_dead_letters(GROUP, "T", delivery.handle, "bad")
        (dead,) = served.records(f"%DLQ%{GROUP}", 1)
        check(dead.properties)
