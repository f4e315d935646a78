"""Every field of a registration is checked, and the refusal names field, limit and value."""

from __future__ import annotations

import pytest

from pocketmq.nameserver.registrations import read_registration
from pocketmq.nameserver.route_table import BrokerState, Role, TopicQueues
from pocketmq.proto.errors import InvalidArgument, InvalidName
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb


def registration(**changes: object) -> pb.BrokerRegistration:
    fields: dict[str, object] = {
        "cluster": "DefaultCluster",
        "broker_name": "broker-a",
        "broker_id": 0,
        "address": "127.0.0.1:8081",
        "data_version": 3,
        "topics": [pb.TopicConfig(name="T", read_queues=8, write_queues=4, permission=6)],
    }
    return pb.BrokerRegistration(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_registration_becomes_a_state() -> None:
    assert read_registration(registration(), topics_max=1) == BrokerState(
        "DefaultCluster", "broker-a", 0, "127.0.0.1:8081", 3, {"T": TopicQueues(8, 4, 6)}
    )


def test_a_replica_says_its_role_and_its_epoch() -> None:
    for role, said in ((pb.MASTER, Role.MASTER), (pb.FOLLOWER, Role.FOLLOWER)):
        message = registration(role=role, epoch=2**31 - 1, broker_id=3)
        state = read_registration(message, topics_max=1)
        assert (state.id, state.role, state.epoch) == (3, said, 2**31 - 1)
    new = read_registration(registration(role=pb.FOLLOWER, broker_id=1), topics_max=1)
    assert (new.role, new.epoch) == (Role.FOLLOWER, 0)


def test_a_heartbeat_has_no_topics() -> None:
    assert read_registration(registration(unchanged=True), topics_max=1).topics is None


@pytest.mark.parametrize("address", ["[::1]:8081", "broker-a.example.org:1", "10.0.0.1:65535"])
def test_an_address_may_be_a_name_or_a_number(address: str) -> None:
    assert read_registration(registration(address=address), topics_max=1).address == address


def topic(**changes: object) -> list[pb.TopicConfig]:
    good = {"name": "T", "read_queues": 1, "write_queues": 1, "permission": 6}
    return [pb.TopicConfig(**{**good, **changes})]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"cluster": ""}, "cluster", "empty"),
        ({"cluster": "a b"}, "cluster", "' '"),
        ({"broker_name": "x" * 128}, "broker_name", "128 characters, the limit is 127"),
        ({"broker_name": "%RETRY%" + "x" * 121}, "broker_name", "128 characters"),
        ({"broker_id": -1}, "broker_id", "-1 is out of range"),
        ({"data_version": -7}, "data_version", "-7"),
        ({"address": ""}, "address", "host:port"),
        ({"address": "127.0.0.1"}, "address", "host:port"),
        ({"address": "127.0.0.1:0"}, "address", "65535"),
        ({"address": "127.0.0.1:65536"}, "address", "65535"),
        ({"address": "::1:8081"}, "address", "host:port"),
        ({"address": "h:" + "1" * 300}, "address", "302 characters, the limit is 255"),
        ({"address": "a b:1"}, "address", "host:port"),
        ({"address": "user@h:1"}, "address", "host:port"),
        ({"role": 3}, "role", "3 is out of range, it must be 0 to 2"),
        ({"role": pb.MASTER, "epoch": 1}, "broker_id", "0 is out of range, it must be at least 1"),
        ({"role": pb.MASTER, "broker_id": 1}, "epoch", "0 is out of range, it must be at least 1"),
        ({"role": pb.FOLLOWER, "broker_id": 1, "epoch": -1}, "epoch", "-1 is out of range"),
        ({"epoch": 1}, "epoch", "1 is out of range, it must be 0 to 0"),
        ({"topics": topic() * 2}, "topics", "the broker has 2, the limit is 1"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        read_registration(registration(**changes), topics_max=1)

    assert raised.value.details["field"] == field
    assert field in raised.value.message
    assert words in raised.value.message


def test_a_topic_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"topics\[1\]\.name: T is given twice"):
        read_registration(registration(topics=topic() * 2), topics_max=2)


def test_a_bad_name_of_a_broker_is_an_invalid_name() -> None:
    with pytest.raises(InvalidName):
        read_registration(registration(broker_name="a/b"), topics_max=1)


@pytest.mark.parametrize("name", ["localhost.localdomain", "a b", "ü", "x" * 200])
def test_a_topic_that_no_new_one_could_be_called_like_is_taken(name: str) -> None:
    state = read_registration(registration(topics=topic(name=name)), topics_max=1)

    assert state.topics is not None
    assert list(state.topics) == [name]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a@b", "x" * 256, "tab\t"])
def test_a_topic_that_no_store_can_hold_is_left_out_alone(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [*topic(name=name), *topic(name="good")]

    state = read_registration(registration(topics=topics), topics_max=2)

    assert state.topics is not None
    assert list(state.topics) == ["good"]
    assert "topic not registered broker=broker-a" in caplog.text


def test_numbers_out_of_range_are_brought_into_it() -> None:
    odd = topic(read_queues=-1, write_queues=2**31 - 1, permission=15)

    state = read_registration(registration(topics=odd), topics_max=1)

    assert state.topics is not None
    (queues,) = state.topics.values()
    assert (queues.read_queues, queues.write_queues, queues.permission) == (0, 65_536, 7)
