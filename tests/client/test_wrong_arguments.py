"""What clients say of wrong settings, types and parts: the name, the value, what is wanted, and the nearest word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pocketmq.client import (
    Admin,
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
)
from pocketmq.client.name_server_addresses import NAMESERVER_VARIABLE
from pocketmq.proto.errors import ConfigError, InvalidArgument, PocketMQError

producer: Any = Producer
puller: Any = PullConsumer
pusher: Any = PushConsumer
message: Any = Message


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: producer(linger=5), "no setting 'linger'; did you mean 'linger_ms'?"),
        (
            lambda: puller("g", "t", fetch_wait=5),
            "no setting 'fetch_wait'; did you mean 'fetch_max_wait_ms'?",
        ),
        (
            lambda: pusher("g", "t", concurency=5),
            "no setting 'concurency'; did you mean 'concurrency'?",
        ),
        (lambda: producer(linger_ms="5"), "linger_ms is '5', but must be a whole number"),
        (lambda: producer(linger_ms=5.5), "linger_ms is 5.5, but must be a whole number"),
        (lambda: producer(linger_ms=True), "linger_ms is True, but must be a whole number"),
        (lambda: producer(ordered="yes"), "ordered is 'yes', but must be True or False"),
        (
            lambda: producer(9876),
            'nameservers is 9876, but must be text, as in "10.0.0.1:9876,10.0.0.2:9876"',
        ),
        (lambda: producer(["a:1"]), "nameservers is ['a:1'], but must be text, as in"),
        (
            lambda: pusher("g", "t", concurrency="3"),
            "concurrency is '3', but must be a whole number",
        ),
        (lambda: pusher("g", "t", max_reconsume_times="3"), "must be a whole number or None"),
        (
            lambda: producer(acks=-1),
            "Kafka's acks=-1 is 'replicas' in PocketMQ, which needs a replica set. Use \"disk\" for a",
        ),
        (
            lambda: producer(acks="all"),
            'acks is \'all\': use "none", "memory", "disk", "replicas" or',
        ),
        (lambda: producer(acks=1), "Kafka's acks=1 is 'memory' in PocketMQ"),
        (lambda: producer(acks=[]), "acks is []: use"),
        (lambda: puller("g", 5), "topics is 5, but must be a topic's name, several, or a mapping"),
        (lambda: puller("g", ["t", 4]), "the topic's name is 4 (int), but must be text"),
        (lambda: puller(5, "t"), "the group's name is 5 (int), but must be text"),
        (lambda: pusher("g", {"t": 5}), "a filter is 5, but must be tags as text"),
        (lambda: message("t", b"x", key=4), "key is 4 (int), but must be text: write str(…)"),
        (lambda: message("t", b"x", tag=4), "tag is 4 (int), but must be text: write str(…)"),
        (lambda: message("t", b"x", sharding_key=4), "sharding_key is 4 (int), but must be text"),
        (
            lambda: message("t", b"x", queue="1"),
            "queue is '1', but must be a queue's number, or a Queue",
        ),
        (
            lambda: message("t", b"x", queue=1.5),
            "queue is 1.5, but must be a queue's number, or a Queue",
        ),
        (lambda: message(4, b"x"), "the topic's name is 4 (int), but must be text"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_wanted(make: Callable[[], object], says: str) -> None:
    with pytest.raises(PocketMQError) as caught:
        make()

    assert says in caught.value.message
    assert caught.value.details["field"]


async def test_a_misspelt_part_of_a_message_is_named() -> None:
    async with AsyncProducer() as sending:
        nowait: Any = sending.send_nowait
        with pytest.raises(InvalidArgument, match=r"no part 'tagg'; did you mean 'tag'\?"):
            nowait("t", b"x", tagg="new")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda it: it.create_topic("t", queues="4"), "queues is '4', but must be a whole number"),
        (lambda it: it.create_topic("t", queues=4.5), "queues is 4.5, but must be a whole number"),
        (
            lambda it: it.create_topic("t", queues=1 << 31),
            "queues is 2147483648, but must be a whole",
        ),
        (lambda it: it.create_topic("t", type=1), "type is 1, but must be text"),
        (lambda it: it.create_topic("t", order="no"), "order is 'no', but must be True or False"),
        (lambda it: it.create_topic("t", attributes={"a": 1}), "must be a mapping of text to text"),
        (lambda it: it.create_topic("t", attributes=5), "attributes is 5, but must be a mapping"),
        (lambda it: it.update_topic("t", queues="4"), "queues is '4', but must be a whole number"),
        (
            lambda it: it.update_topic("t", read_queues="4"),
            "read_queues is '4', but must be a whole",
        ),
        (lambda it: it.update_topic("t", attributes={1: "a"}), "must be a mapping of text to text"),
        (
            lambda it: it.create_group("g", retry_max_times="3"),
            "retry_max_times is '3', but must be",
        ),
        (
            lambda it: it.create_group("g", retry_intervals_ms=3),
            "but must be a list of values",
        ),
        (lambda it: it.update_group("g", order="y"), "order is 'y', but must be True or False"),
        (lambda it: it.lookup("t", key=5), "key is 5, but must be text"),
        (
            lambda it: it.lookup("t", "k", begin_ms="0"),
            "begin_ms is '0', but must be a whole number",
        ),
    ],
)
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_an_admin_names_the_argument_that_is_of_a_wrong_type(
    face: str, asked: Callable[[Any], Any], says: str
) -> None:
    ask = asked_of_an_admin if face == "sync" else asked_of_an_async_admin
    with pytest.raises(InvalidArgument) as caught:
        await ask(asked)

    assert says in caught.value.message
    assert caught.value.details["field"] in says or "mapping" in says or "list" in says


async def asked_of_an_admin(asked: Callable[[Any], Any]) -> None:
    with Admin() as admin:
        await asyncio.to_thread(asked, admin)


async def asked_of_an_async_admin(asked: Callable[[Any], Any]) -> None:
    async with AsyncAdmin() as admin:
        await asked(admin)


def test_the_environment_names_the_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AsyncProducer().config.nameservers == "127.0.0.1:9876"
    monkeypatch.setenv(NAMESERVER_VARIABLE, "10.0.0.1:9876,10.0.0.2:9876")

    for made in (AsyncProducer(), AsyncPullConsumer("g"), PushConsumer("g", "t")):
        assert made.config.nameservers == "10.0.0.1:9876,10.0.0.2:9876"
    assert AsyncProducer("h:1").config.nameservers == "h:1"
    assert str(AsyncAdmin()._session.name_servers) == "10.0.0.1:9876, 10.0.0.2:9876"

    monkeypatch.setenv(NAMESERVER_VARIABLE, "nowhere")
    for client in (Producer, Admin):
        with pytest.raises(ConfigError, match=r"\$POCKETMQ_NAMESERVER: 'nowhere' is no host:port"):
            client()
