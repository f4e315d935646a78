"""What a topic received is written as lines, and sent again as it was, at its pace or faster."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

from pocketmq.client import Message, Producer
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import InvalidArgument, PocketMQError
from pocketmq.tools.record import message_of, read, record, replay, resend, speed_of
from pocketmq.tools.testing import LocalBroker

words = st.text("abcxyzß-", min_size=1, max_size=5)


def fields(broker: LocalBroker, topic: str) -> list[tuple[Any, ...]]:
    return sorted(
        (one.body, one.keys, one.tag or "", one.properties.get("own", ""))
        for one in broker.messages(topic)
    )


def test_a_record_is_sent_again_as_it_was(broker: LocalBroker, tmp_path: Path) -> None:
    topic, again, file = broker.create_topic(), broker.create_topic(), tmp_path / "orders.jsonl"
    with Producer(broker.nameserver) as producer:
        producer.send(Message(topic, "größe".encode(), keys=["k1", "k2"], tag="new"))
        broker.advance("1s")
        producer.send(Message(topic, b"\xff\x00", sharding_key="s", properties={"own": "ä"}))

    assert broker.record(file, topic) == 2
    first, second = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert (first["body"], first["keys"], first["tag"]) == ("größe", ["k1", "k2"], "new")
    assert (second["body"], second["body_base64"]) == (None, "/wA=")
    assert second["stored_ms"] == first["stored_ms"] + 1_000
    assert second["properties"] == {"own": "ä"}

    assert broker.replay(file, topic=again) == 2
    assert fields(broker, again) == fields(broker, topic)


def test_the_commands_record_and_replay(broker: LocalBroker, tmp_path: Path) -> None:
    topic, again, file = broker.create_topic(), broker.create_topic(), tmp_path / "orders.jsonl"
    with Producer(broker.nameserver) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(1_500)])
    server = ["--nameserver", broker.nameserver]

    written = CliRunner().invoke(record, [topic, str(file), *server], catch_exceptions=False)
    assert written.output == f"1,500 messages of {topic} in {file}\n"
    sent = CliRunner().invoke(
        replay, [str(file), "--speed", "10x", "--topic", again, *server], catch_exceptions=False
    )

    assert sent.output == f"1,500 messages of {file} sent\n"
    assert fields(broker, again) == fields(broker, topic)
    there = CliRunner().invoke(record, [topic, str(file), *server])
    assert isinstance(there.exception, PocketMQError)
    assert "exists already" in there.exception.message


class Producing:
    """Takes batches, and notes when by CLOCK."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.begin_ms = clock.now_ms()
        self.sent: list[tuple[int, bytes]] = []

    async def send_many(self, messages: list[Message]) -> None:
        now_ms = self.clock.now_ms() - self.begin_ms
        self.sent += [(now_ms, message.body) for message in messages]


@pytest.mark.parametrize(
    ("speed", "at_ms"), [(1.0, [0, 1_000, 1_000, 5_000]), (10.0, [0, 100, 100, 500])]
)
async def test_messages_are_as_far_apart_as_they_were_divided_by_the_speed(
    speed: float, at_ms: list[int]
) -> None:
    clock = VirtualClock()
    producer: Any = Producing(clock)
    recorded = [(10_000 + ms, Message("T", b"x")) for ms in (0, 1_000, 900, 5_000)]

    work = resend(recorded, producer, speed, clock)
    count, _ = await both(work, clock.advance(5_000))

    assert count == 4
    assert [when for when, _ in producer.sent] == at_ms


async def both(*work: Any) -> list[Any]:
    return await asyncio.gather(*work)


@given(
    body=st.binary(min_size=1, max_size=20), keys=st.lists(words, max_size=3), tag=st.none() | words
)
@settings(max_examples=50)
def test_a_line_says_a_message_whole(body: bytes, keys: list[str], tag: str | None) -> None:
    line = json.dumps(
        {
            "topic": "T",
            "body": None,
            "body_base64": base64.b64encode(body).decode(),
            "keys": keys,
            "tag": tag,
            "stored_ms": 7,
        }
    )
    stored_ms, message = message_of(line, "f:1", "U")
    assert (stored_ms, message.topic, message.body) == (7, "U", body)
    assert (list(message.keys), message.tag) == (keys, tag)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '"x"',
        "{}",
        '{"topic":"T","body":"x"}',
        '{"topic":"T","body":"x","stored_ms":"1"}',
        '{"topic":"T","body":1,"stored_ms":1}',
        '{"topic":"T","body":null,"body_base64":"?","stored_ms":1}',
        '{"topic":"","body":"x","stored_ms":1}',
        '{"topic":"T","body":"x","stored_ms":1,"properties":{"DELAY":"1"}}',
        '{"topic":"T","body":"x","stored_ms":1,"properties":[1]}',
        '{"topic":"T","body":"x","stored_ms":1,"keys":7}',
    ],
)
def test_a_line_that_is_none_is_told_with_its_place(line: str) -> None:
    lines = io.StringIO('{"topic":"T","body":"x","stored_ms":1}\n\n' + line + "\n")
    found = read(lines, "orders.jsonl", None)
    next(found)
    with pytest.raises(InvalidArgument, match=r"^orders\.jsonl:3"):
        next(found)


@pytest.mark.parametrize("text", ["fast", "0x", "-1x", "1y", ""])
def test_a_speed_that_is_none_is_told(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"10x, 0\.5x, or max"):
        speed_of(text)


def test_a_priority_is_recorded_and_sent_again(broker: LocalBroker, tmp_path: Path) -> None:
    topic, again = broker.create_topic(type="PRIORITY"), broker.create_topic(type="PRIORITY")
    with Producer(broker.nameserver) as producer:
        producer.send_many([Message(topic, b"%d" % one, priority=one) for one in (0, 2, 9)])

    assert broker.record(tmp_path / "urgent", topic) == 3
    assert broker.replay(tmp_path / "urgent", topic=again) == 3
    found = sorted((one.body, one.priority, one.queue) for one in broker.messages(again))
    assert found == [(b"0", 0, 0), (b"2", 2, 2), (b"9", 9, 3)]


def test_a_line_of_an_earlier_version_has_its_priority_among_the_properties() -> None:
    line = {"topic": "T", "body": "x", "stored_ms": 1, "properties": {"_SYS_MSG_PRIORITY_": "7"}}

    _, message = message_of(json.dumps(line), "line 1")

    assert (message.priority, dict(message.properties)) == (7, {})
