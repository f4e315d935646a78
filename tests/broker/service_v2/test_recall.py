"""RecallMessage: a delayed message is had back by its handle, as long as it waits."""

from pathlib import Path

import pytest

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.recall_handle import encode_handle

from .serving import Served


async def send_delayed(broker: Served) -> str:
    broker.topic("D", "DELAY")
    due = {"seconds": broker.clock.now_ms() // 1000 + 60}
    reply = await broker.send("D", b"x", delivery_timestamp=due)
    return str(reply.entries[0].recall_handle)


async def recall(broker: Served, handle: str, topic: str = "D") -> v2.RecallMessageResponse:
    request = v2.RecallMessageRequest(topic={"name": topic}, recall_handle=handle)
    found: v2.RecallMessageResponse = await broker.ask("RecallMessage", request)
    return found


async def test_a_recalled_message_never_comes_and_may_be_recalled_again(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        handle = await send_delayed(broker)

        replies = [await recall(broker, handle) for _ in range(2)]

        ok = v2.Status(code=v2.OK, message="OK")
        assert replies == [v2.RecallMessageResponse(status=ok, message_id="id-0")] * 2
        await broker.clock.advance(62_000)
        assert not broker.records("D")


async def test_a_message_that_was_delivered_is_not_found(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        handle = await send_delayed(broker)
        await broker.clock.advance(62_000)

        reply = await recall(broker, handle)

        assert reply.status.code == v2.NOT_FOUND
        assert not reply.message_id


@pytest.mark.parametrize(
    ("handle", "topic", "code"),
    [
        ("nonsense", "D", v2.BAD_REQUEST),
        ("", "D", v2.BAD_REQUEST),
        (None, "other", v2.BAD_REQUEST),
        (None, "normal", v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (None, "nowhere", v2.TOPIC_NOT_FOUND),
        (None, "a.b", v2.ILLEGAL_TOPIC),
    ],
)
async def test_a_handle_that_means_nothing_is_refused(
    tmp_path: Path, handle: str | None, topic: str, code: v2.Code
) -> None:
    async with Served(tmp_path) as broker:
        good = await send_delayed(broker)
        broker.topic("other", "DELAY")
        broker.topic("normal")

        reply = await recall(broker, good if handle is None else handle, topic)

        assert reply.status.code == code


async def test_a_message_that_was_never_sent_is_not_found(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("D", "DELAY")
        handle = encode_handle("D", "broker-a", broker.clock.now_ms() + 9_000, "never")

        assert (await recall(broker, handle)).status.code == v2.NOT_FOUND
