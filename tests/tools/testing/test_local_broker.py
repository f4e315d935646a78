"""The test kit's broker does to a user's consumers what a broker does, within a test's time."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from pocketmq.client import (
    AsyncProducer,
    AsyncPushConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from pocketmq.proto.errors import (
    ClientClosed,
    ConfigError,
    InvalidArgument,
    RequestTimeout,
    Unsupported,
)
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.tools.testing import LocalBroker
from pocketmq.tools.testing.servers import BrokerOptions

from ... import served

HOUR_MS = 3_600_000


def send(broker: LocalBroker, topic: str, *bodies: bytes, **parts: str) -> None:
    with Producer(broker.nameserver) as producer:
        for body in bodies:
            producer.send(Message(topic, body, **parts))  # type: ignore[arg-type]  # All parts given here are texts.


def fail(message: ReceivedMessage) -> None:
    raise ValueError("no such account")


def test_a_message_fails_seventeen_times_and_is_a_dead_letter_in_one_move_of_the_clock(
    broker: LocalBroker,
) -> None:
    topic, group = broker.create_topic(), broker.fresh_name("group")
    tries: list[int] = []

    def listener(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        fail(message)

    with PushConsumer(group, topic, listener, broker.nameserver):
        send(broker, topic, b"order 1")
        before_ms = broker.now()
        after_ms = broker.advance("5h")
        broker.wait_consumed(group)

    assert tries == list(range(17))
    assert after_ms == before_ms + 5 * HOUR_MS
    (letter,) = broker.dead_letters(group)
    assert (letter.message.body, letter.reason) == (b"order 1", "ValueError: no such account")


async def test_consumers_on_the_loop_of_a_test_go_on_while_it_moves_the_clock(
    broker: LocalBroker,
) -> None:
    moved = broker.for_coroutines
    group = await moved.create_group(retries=2, retry_intervals=["1m"])
    topic = await moved.create_topic(queues=1)
    tries: list[int] = []

    async def listener(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        fail(message)

    async with AsyncPushConsumer(group, topic, listener, moved.nameserver):
        async with AsyncProducer(moved.nameserver) as producer:
            await producer.send(Message(topic, b"order 1", delay="2h"))
        assert await moved.messages(topic) == []
        await moved.advance("3h")
        await moved.wait_consumed(group)

    assert tries == [0, 1, 2]
    assert len(await moved.dead_letters(group)) == 1
    with pytest.raises(InvalidArgument, match="await that of the fixture pocketmq_async_broker"):
        broker.now()


def test_what_was_sent_is_found_and_what_was_not_is_told_with_what_is_there(
    broker: LocalBroker,
) -> None:
    topic = broker.create_topic()
    send(broker, topic, b"one", b"two", tag="new", key="k1")

    (found,) = broker.assert_sent(topic, body="two", tag="new", key="k1")
    assert found.body == b"two"
    assert [one.body for one in broker.assert_sent(topic, count=2)] == [b"one", b"two"]
    with pytest.raises(AssertionError) as told:
        broker.assert_sent(topic, body="two", tag="old")
    first, second, *there = str(told.value).splitlines()
    assert first == f"no message of {topic} with body b'two' and tag 'old'"
    assert second == f"{topic} has 2 messages:"
    assert [line.rpartition(",")[0] for line in there] == [
        "  b'one', tag 'new', key 'k1'",
        "  b'two', tag 'new', key 'k1'",
    ]
    with pytest.raises(AssertionError, match=r"^2 messages of \S+ with tag 'new', 3 wanted"):
        broker.assert_sent(topic, tag="new", count=3)


def test_a_topic_that_is_not_there_is_told_with_those_that_are_and_with_what_waits(
    broker: LocalBroker,
) -> None:
    topic = broker.create_topic()
    with Producer(broker.nameserver) as producer:
        producer.send(Message(topic, b"later", delay="1h"))

    with pytest.raises(AssertionError, match=rf"1 message .* advance\(\) it\ntopics: .*{topic}"):
        broker.assert_sent("nowhere", body=b"later")

    broker.advance("1h")
    broker.assert_sent(topic, body=b"later")


def test_a_group_that_has_not_finished_is_told_with_what_is_left(broker: LocalBroker) -> None:
    topic, group = broker.create_topic(queues=1), broker.fresh_name("group")
    send(broker, topic, b"1", b"2", b"3")
    with pytest.raises(RequestTimeout, match="no consumer of it reads a topic"):
        broker.wait_consumed(group, timeout_s=0)

    with PullConsumer(group, topic, broker.nameserver, auto_commit=False) as consumer:
        assert len(consumer.poll(2, None)) == 2
        consumer.commit()
        with pytest.raises(RequestTimeout, match=rf"{topic}\S*: 1 of 3 unfinished"):
            broker.wait_consumed(group, timeout_s=0)
        assert len(consumer.poll(2, None)) == 1
        consumer.commit()

    broker.wait_consumed(group)


def test_official_clients_find_it_at_its_endpoint(broker: LocalBroker) -> None:
    topic = broker.create_topic()
    message = v2.Message(
        topic=v2.Resource(name=topic),
        body=b"hello",
        system_properties=v2.SystemProperties(message_id="1", message_type=v2.NORMAL),
    )
    with grpc.insecure_channel(broker.endpoint) as channel:
        call = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            request_serializer=v2.SendMessageRequest.SerializeToString,
            response_deserializer=v2.SendMessageResponse.FromString,
        )
        reply = call(
            v2.SendMessageRequest(messages=[message]),
            metadata=(("x-mq-client-id", "c"),),
            timeout=20,
        )

    assert reply.status.code == v2.OK
    broker.assert_sent(topic, body=b"hello")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_acknowledged_is_there_after(end: str, tmp_path: Path) -> None:
    with LocalBroker(tmp_path, BrokerOptions(broker={"grpc": served.chosen()})) as broker:
        topic = broker.create_topic()
        addresses = broker.nameserver, broker.endpoint
        with Producer(broker.nameserver) as producer:
            producer.send(Message(topic, b"before"))
            now_ms = broker.advance("1h")
            getattr(broker, end)()
            with pytest.raises(ClientClosed, match=r"restart\(\)"):
                broker.messages(topic)
            broker.restart()
            producer.send(Message(topic, b"after"))

        assert [one.body for one in broker.messages(topic)] == [b"before", b"after"]
        assert broker.now() == now_ms
        assert (broker.nameserver, broker.endpoint) == addresses


@pytest.mark.processes
def test_a_process_of_its_own_is_killed(tmp_path: Path) -> None:
    options = BrokerOptions(
        process=True, clock="system", broker={"grpc": served.chosen(), "name": "apart"}
    )
    with LocalBroker(tmp_path, options) as broker:
        topic = broker.create_topic()
        with Producer(broker.nameserver) as producer:
            producer.send(Message(topic, b"before"))
            broker.kill()
            broker.restart()
            producer.send(Message(topic, b"after"))

        found = broker.messages(topic)
        assert [(one.body, one.broker) for one in found] == [
            (b"before", "apart"),
            (b"after", "apart"),
        ]
        with pytest.raises(Unsupported, match="--clock virtual"):
            broker.advance("1s")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"clok": "virtual"}, "no option 'clok'.*clock"),
        ({"clock": "sundial"}, "'sundial', but must be virtual or system"),
        ({"process": "perhaps"}, "'perhaps', but must be true or false"),
        ({"broker": 1}, "a dict of settings"),
    ],
)
def test_options_that_are_none_are_told(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        BrokerOptions.of(given)


def test_settings_that_are_none_are_told(tmp_path: Path) -> None:
    options = BrokerOptions(broker={"grcp": "own"})
    with pytest.raises(ConfigError, match="broker has no setting 'grcp'"):
        LocalBroker(tmp_path, options)
