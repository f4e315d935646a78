"""Each kind of fault does to a careless consumer what it promises, and to a careful one nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pocketmq.client import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from pocketmq.proto.errors import InvalidArgument, Unsupported
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.tools import cli
from pocketmq.tools.faults import CHANCES, SINGLE, parse_faults
from pocketmq.tools.testing import LocalBroker
from pocketmq.tools.testing.servers import BrokerOptions

from ... import served
from ...waiting import wait_until

CLIENT = (("x-mq-client-id", "c"), ("x-mq-client-version", "5.1.2"))


class Official:
    """An official client's simple consumer and producer of TOPIC, by bare calls."""

    def __init__(self, broker: LocalBroker, topic: str, group: str) -> None:
        self.channel = grpc.insecure_channel(
            broker.endpoint, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.topic, self.group = v2.Resource(name=topic), v2.Resource(name=group)

    def ask(self, name: str, request: object, reply_type: type) -> object:
        call = self.channel.unary_unary(
            f"/apache.rocketmq.v2.MessagingService/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply_type.FromString,  # type: ignore[attr-defined]
        )
        return call(request, metadata=CLIENT, timeout=20)

    def send(self, body: bytes) -> int:
        system = v2.SystemProperties(message_id=body.decode(), message_type=v2.NORMAL)
        message = v2.Message(topic=self.topic, body=body, system_properties=system)
        reply = self.ask(
            "SendMessage", v2.SendMessageRequest(messages=[message]), v2.SendMessageResponse
        )
        assert isinstance(reply, v2.SendMessageResponse)
        return reply.status.code

    def receive(self, batch: int = 32) -> list[v2.Message]:
        call = self.channel.unary_stream(
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )
        request = v2.ReceiveMessageRequest(
            group=self.group,
            message_queue=v2.MessageQueue(topic=self.topic, id=-1),
            batch_size=batch,
        )
        request.invisible_duration.FromMilliseconds(60_000)
        request.long_polling_timeout.FromMilliseconds(20_000)
        replies = call(request, metadata=CLIENT, timeout=20)
        return [reply.message for reply in replies if reply.HasField("message")]

    def acknowledge(self, message: v2.Message) -> int:
        system = message.system_properties
        entry = v2.AckMessageEntry(
            message_id=system.message_id, receipt_handle=system.receipt_handle
        )
        request = v2.AckMessageRequest(group=self.group, topic=self.topic, entries=[entry])
        reply = self.ask("AckMessage", request, v2.AckMessageResponse)
        assert isinstance(reply, v2.AckMessageResponse)
        return reply.status.code


@pytest.fixture
def official(broker: LocalBroker) -> Iterator[Official]:
    client = Official(broker, broker.create_topic(queues=1), broker.fresh_name("group"))
    yield client
    client.channel.close()


def sent(broker: LocalBroker, topic: str, *bodies: bytes) -> None:
    with Producer(broker.nameserver) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def test_a_consumer_that_counts_twice_what_it_is_handed_twice_is_found(
    broker: LocalBroker,
) -> None:
    topic, group = broker.create_topic(queues=1), broker.fresh_name("group")
    handled: list[bytes] = []
    with (
        broker.faults("redeliver=100%", seed=7) as counts,
        PushConsumer(group, topic, lambda message: handled.append(message.body), broker.nameserver),
    ):
        sent(broker, topic, b"order 1")
        # The first commit counts until the broker moves the group back.
        wait_until(lambda: len(handled) == 2)
        broker.wait_consumed(group)

    assert handled == [b"order 1", b"order 1"]
    assert counts["redeliver"] == 1


def test_an_acknowledgement_of_an_official_client_is_lost_twice_at_most(
    broker: LocalBroker, official: Official
) -> None:
    official.send(b"order 1")
    attempts = []
    with broker.faults("redeliver=100%"):
        for _ in range(3):
            (message,) = official.receive()
            attempts.append(message.system_properties.delivery_attempt)
            assert official.acknowledge(message) == v2.OK

    assert attempts == [1, 1, 1], "no attempt is lost by faults"
    broker.wait_consumed(official.group.name)


def test_a_send_is_stored_twice(broker: LocalBroker, official: Official) -> None:
    with broker.faults("duplicate=100%"):
        official.send(b"order 1")
        with Producer(broker.nameserver, idempotence=False) as producer:
            producer.send(Message(official.topic.name, b"order 2"))
        with Producer(broker.nameserver) as producer:
            producer.send(Message(official.topic.name, b"order 3"))
            producer.send(Message(official.topic.name, b"order 4", delay="1s"))
        broker.advance("1s")

    bodies = [message.body for message in broker.messages(official.topic.name)]
    assert bodies == [b"order 1"] * 2 + [b"order 2"] * 2 + [b"order 3", b"order 4"]


def test_a_batch_comes_in_another_order(broker: LocalBroker, official: Official) -> None:
    bodies = [b"order %d" % number for number in range(10)]
    for body in bodies:
        official.send(body)

    with broker.faults("reorder", seed=7):
        received = [message.body for message in official.receive()]

    assert received != bodies
    assert sorted(received) == bodies


def test_an_acknowledgement_comes_late(broker: LocalBroker, official: Official) -> None:
    official.send(b"order 1")
    with broker.faults("late-ack=100%") as counts:
        (message,) = official.receive()
        assert official.acknowledge(message) == v2.OK

    assert counts == {"late-ack": 1}
    broker.wait_consumed(official.group.name)


def test_a_stream_breaks_off_and_nothing_is_lost(broker: LocalBroker, official: Official) -> None:
    official.send(b"order 1")
    with broker.faults("cut-streams=100%"):
        with pytest.raises(grpc.RpcError) as told:
            official.receive()
        assert told.value.code() == grpc.StatusCode.UNAVAILABLE
        (message,) = official.receive()

    assert (message.body, message.system_properties.delivery_attempt) == (b"order 1", 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_own_clients_get_everything_in_order_under_all_faults_at_once(
    broker: LocalBroker, seed: int
) -> None:
    topic, group = broker.create_topic(queues=2), broker.fresh_name("group")
    handled: dict[str, list[int]] = defaultdict(list)

    def listener(message: ReceivedMessage) -> None:
        handled[message.properties["KEYS"]].append(int(message.body))

    text = "redeliver=30%,duplicate=30%,reorder,late-ack=30%,cut-streams=20%"
    with (
        broker.faults(text, seed=seed) as counts,
        PushConsumer(group, topic, listener, broker.nameserver, ordered=True),
        Producer(broker.nameserver) as producer,
    ):
        for number in range(1, 21):
            for key in "ab":
                producer.send(Message(topic, b"%d" % number, key=key, sharding_key=key))
        broker.wait_consumed(group, timeout_s=60)

    for numbers in handled.values():
        assert set(numbers) == set(range(1, 21))
        # A repeat goes back, and on from there: nothing is skipped.
        assert all(then <= before + 1 for before, then in zip([0, *numbers], numbers, strict=False))
    assert set(map(len, map(set, handled.values()))) == {20}
    assert counts["cut-streams"] + counts["redeliver"] + counts["late-ack"] + counts["reorder"] > 0
    assert len(broker.messages(topic)) == 40, "what is numbered is stored once"


def test_the_next_three_sends_are_refused(broker: LocalBroker, official: Official) -> None:
    broker.fail_next("refuse-send", 3, topic=official.topic.name)
    codes = [official.send(b"1") for _ in range(4)]

    assert codes == [v2.TOO_MANY_REQUESTS] * 3 + [v2.OK]
    broker.fail_next("refuse-send", 3, topic=official.topic.name)
    sent(broker, official.topic.name, b"2")  # Our own producer tries again.
    assert len(broker.messages(official.topic.name)) == 2


def test_the_answer_to_a_send_is_lost(broker: LocalBroker, official: Official) -> None:
    broker.fail_next("lose-send-answer", 2, topic=official.topic.name)
    with pytest.raises(grpc.RpcError):
        official.send(b"1")
    sent(broker, official.topic.name, b"2")  # Numbered: the broker knows the second try.

    assert [one.body for one in broker.messages(official.topic.name)] == [b"1", b"2"]


def test_one_acknowledgement_is_lost(broker: LocalBroker, official: Official) -> None:
    official.send(b"1")
    broker.fail_next("lose-ack", group="another")
    broker.fail_next("lose-ack", group=official.group.name)
    for _ in range(2):
        (message,) = official.receive()
        official.acknowledge(message)
    broker.wait_consumed(official.group.name)

    group = broker.fresh_name("group")
    broker.fail_next("lose-ack", group=group)
    with PullConsumer(group, official.topic.name, broker.nameserver, auto_commit=False) as consumer:
        for _ in range(2):
            assert [one.body for one in consumer.poll(timeout_ms=None)] == [b"1"]
            consumer.commit()
    broker.wait_consumed(group)


def test_one_stream_is_cut(broker: LocalBroker, official: Official) -> None:
    sent(broker, official.topic.name, b"1")
    broker.fail_next("cut-stream", topic=official.topic.name)
    with pytest.raises(grpc.RpcError):
        official.receive()
    assert [message.body for message in official.receive()] == [b"1"]


def test_what_is_asked_for_is_read_as_it_is_written() -> None:
    assert parse_faults("redeliver=10%, duplicate = 2.5 %,reorder") == {
        "redeliver": 0.1,
        "duplicate": 0.025,
        "reorder": 1.0,
    }
    assert parse_faults(" ") == {}
    assert parse_faults(",".join(CHANCES)) == dict(CHANCES)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("redelivery", "unknown kind 'redelivery'; did you mean 'redeliver'"),
        ("reorder=101%", "up to 100%"),
        ("reorder=10", "write reorder, or reorder=10%"),
        ("reorder,", "unknown kind ''"),
    ],
)
def test_an_unknown_fault_is_told(text: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        parse_faults(text)


def test_a_single_fault_that_there_is_not_is_told(broker: LocalBroker) -> None:
    with pytest.raises(InvalidArgument, match=f"there are: {', '.join(SINGLE)}"):
        broker.fail_next("refuse-sends")
    with pytest.raises(InvalidArgument, match="times is 0"):
        broker.fail_next("refuse-send", 0)


@pytest.mark.processes
def test_a_process_does_what_it_was_started_with(tmp_path: Path) -> None:
    options = BrokerOptions(
        process=True, faults="duplicate=100%", seed=7, broker={"grpc": served.chosen()}
    )
    with LocalBroker(tmp_path, options) as broker:
        client = Official(broker, broker.create_topic(), "g")
        client.send(b"1")
        client.channel.close()
        assert len(broker.messages(client.topic.name)) == 2
        with (
            pytest.raises(Unsupported, match="gets its faults when it starts"),
            broker.faults("reorder"),
        ):
            pass


def test_the_command_refuses_an_unknown_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["serve", "--faults", "redelivery=10%"]) == cli.USAGE
    assert "did you mean 'redeliver'" in capsys.readouterr().err
