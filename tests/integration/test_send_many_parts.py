"""`send_many` with every kind of part, in both forms and on both faces: all messages arrive, each once, when due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, Interceptor, Message, Producer
from pocketmq.proto.errors import InvalidArgument
from pocketmq.tools.testing import LocalBroker
from pocketmq.tools.testing.servers import BrokerOptions

from .. import served

COUNT = 150  # As many as are encoded by the column, and more.


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    options = BrokerOptions(broker={"grpc": served.chosen()})
    with LocalBroker(tmp_path_factory.mktemp("kit"), options) as running:
        yield running


TIMES: dict[str, Callable[[LocalBroker], dict[str, Any]]] = {
    "at once": lambda _: {},
    "delay": lambda _: {"delay": "90s"},
    "deliver_at": lambda broker: {
        "deliver_at": datetime.fromtimestamp(broker.now() / 1000 + 90, UTC)
    },
    "delay_level": lambda _: {"delay_level": 5},
}
PARTS: dict[str, dict[str, Any]] = {
    "nothing else": {},
    "tag and properties": {"tag": "t", "properties": {"p": "q"}},
    "sharding key": {"sharding_key": "s"},
    "queue": {"queue": 1},
    "keys": {"keys": [f"k{number}" for number in range(COUNT)]},
    "all": {
        "tag": "t",
        "properties": {"p": "q"},
        "sharding_key": "s",
        "keys": [f"k{number}" for number in range(COUNT)],
    },
}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "not idempotent": {"idempotence": False},
    "without order": {"ordered": False},
    "compressed": {"compress_above_bytes": 8},
    "small runs": {"batch_messages_max": 7},
    "interceptor": {"interceptors": [Interceptor()]},
}


def bodies() -> list[bytes]:
    return [b"%06d" % number * 3 for number in range(COUNT)]


def as_messages(topic: str, parts: dict[str, Any]) -> list[Message]:
    shared = {name: part for name, part in parts.items() if name != "keys"}
    keys = parts.get("keys") or [None] * COUNT
    return [
        Message(topic, body, keys=[key] if key else (), **shared)
        for body, key in zip(bodies(), keys, strict=True)
    ]


def send(
    broker: LocalBroker, face: str, topic: str, parts: dict[str, Any], settings: dict[str, Any]
) -> int:
    """Send all bodies with PARTS; return how many receipts there are."""
    arguments: tuple[Any, ...] = (topic, bodies())
    if face == "messages":
        arguments, parts = (as_messages(topic, parts),), {}

    async def sent() -> int:
        async with AsyncProducer(broker.nameserver, **settings) as producer:
            return len(await producer.send_many(*arguments, **parts))

    if face == "asynchronous":
        return asyncio.run(sent())
    with Producer(broker.nameserver, **settings) as producer:
        return len(producer.send_many(*arguments, **parts))


def check(broker: LocalBroker, topic: str, parts: dict[str, Any], *, is_late: bool) -> None:
    """All bodies are in TOPIC once, with PARTS; if IS_LATE, not before their time."""
    if is_late:
        assert len(broker.messages(topic)) == 0
        broker.advance("2m")
    found = broker.messages(topic)
    assert sorted(message.body for message in found) == bodies()
    assert {message.tag for message in found} == {parts.get("tag")}
    assert {message.properties.get("p") for message in found} == {
        parts.get("properties", {}).get("p")
    }
    if "queue" in parts or "sharding_key" in parts:
        assert [message.body for message in found] == bodies()
    if "keys" in parts:
        found = sorted(found, key=lambda message: message.body)
        assert [message.keys for message in found] == [(key,) for key in parts["keys"]]


@pytest.mark.parametrize("face", ["synchronous", "asynchronous", "messages"])
@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("rest", PARTS)
def test_messages_with_each_pair_of_parts_arrive(
    broker: LocalBroker, face: str, time: str, rest: str
) -> None:
    topic = broker.create_topic()
    parts = TIMES[time](broker) | PARTS[rest]
    assert send(broker, face, topic, parts, {}) == COUNT
    check(broker, topic, parts, is_late=time != "at once")


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("face", ["synchronous", "messages"])
def test_they_arrive_with_each_setting_of_the_producer(
    broker: LocalBroker, face: str, time: str, settings: str
) -> None:
    topic = broker.create_topic()
    parts = TIMES[time](broker) | PARTS["all"]
    assert send(broker, face, topic, parts, SETTINGS[settings]) == COUNT
    check(broker, topic, parts, is_late=time != "at once")


@pytest.mark.parametrize("count", [1, 2, 127, 128])
def test_lists_of_each_length_wait_for_their_time(broker: LocalBroker, count: int) -> None:
    topic = broker.create_topic()
    with Producer(broker.nameserver) as producer:
        receipts = producer.send_many(topic, bodies()[:count], delay="90s")
    assert len({receipt.recall_handle for receipt in receipts}) == count
    check_count(broker, topic, count)


def check_count(broker: LocalBroker, topic: str, count: int) -> None:
    assert len(broker.messages(topic)) == 0
    broker.advance("2m")
    assert len(broker.messages(topic)) == count


def test_two_times_are_refused(broker: LocalBroker) -> None:
    topic = broker.create_topic()
    with Producer(broker.nameserver) as producer, pytest.raises(InvalidArgument):
        producer.send_many(topic, bodies(), delay="90s", delay_level=3)
