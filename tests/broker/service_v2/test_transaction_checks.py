"""Who is asked what became of a transaction, and what he is told."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from pocketmq.broker.service_v2.transaction_checks import CheckCommands
from pocketmq.broker.transactions.checks import Answering
from pocketmq.proto import properties as names
from pocketmq.proto.access.policies import PUB, of_topic
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.record import Host, Record, encode_record
from pocketmq.proto.topics import HALF_TOPIC

from ...fake_calls import FakeUser
from ...recorded_v2 import recorded_group
from .connected import Connected, Peer

TOPIC = "R-tx"
ID = "01AABBCCDDEEFF44020A0103F60000007C"


@pytest.fixture
def connected(tmp_path: Path) -> Connected:
    return Connected(tmp_path)


def producer(*topics: str, namespace: str = "") -> v2.Settings:
    return v2.Settings(
        client_type=v2.PRODUCER,
        publishing=v2.Publishing(
            topics=[v2.Resource(name=name, resource_namespace=namespace) for name in topics]
        ),
    )


def connect(connected: Connected, who: str, *topics: str, user: FakeUser | None = None) -> Peer:
    peer = connected.open(who, user=user)
    peer.say(producer(*topics))
    return peer


def choose(connected: Connected, transaction_id: str = ID) -> Answering | None:
    return connected.listeners.choose(TOPIC, TOPIC, transaction_id)


def asked(connected: Connected, *peers: Peer) -> list[int]:
    """Have four transactions checked; return how often each of PEERS was asked."""
    before = [len(peer.stream.sent) for peer in peers]
    for _ in range(4):
        chosen = choose(connected)
        if chosen is not None:
            chosen.send(pb.TransactionCheck(transaction_id=ID, topic=TOPIC, record=half_message()))
    return [len(peer.stream.sent) - count for peer, count in zip(peers, before, strict=True)]


def half_message() -> bytes:
    """Return the half message that Apache asked about in the recording."""
    return encode_record(
        Record(
            topic=HALF_TOPIC,
            queue_id=0,
            queue_offset=106,
            body=b"open",
            born_timestamp_ms=1_795_228_555_468,
            store_timestamp_ms=1_795_228_555_470,
            store_host=Host.parse("127.0.0.1", 11511),
            properties={
                names.UNIQ_KEY: ID,
                names.TRANSACTION_PREPARED: "true",
                names.PRODUCER_GROUP: TOPIC,
                names.REAL_TOPIC: TOPIC,
                names.REAL_QUEUE_ID: "0",
                names.BORN_HOST: "127.0.0.1",
                names.TRANSACTION_CHECK_TIMES: "1",
            },
        )
    )


def recorded_command() -> dict[str, Any]:
    events = [
        event["body"]
        for case in recorded_group("transaction")["cases"]
        for event in case.get("events", ())
    ]
    found = next(body for body in events if "recover_orphaned_transaction_command" in body)
    return deepcopy(found)  # The recording is everybody's.


def test_the_command_is_apaches_without_what_is_the_brokers_own(connected: Connected) -> None:
    peer = connect(connected, "c", TOPIC)
    chosen = choose(connected)
    assert chosen is not None

    chosen.send(pb.TransactionCheck(transaction_id=ID, topic=TOPIC, record=half_message()))

    recorded = recorded_command()
    del recorded["recover_orphaned_transaction_command"]["message"]["user_properties"]
    told = json_format.MessageToDict(peer.stream.sent[-1], preserving_proto_field_name=True)
    for one in (told, recorded):
        system = one["recover_orphaned_transaction_command"]["message"]["system_properties"]
        del system["born_timestamp"], system["store_timestamp"]
    assert told == recorded


def test_producers_of_the_topic_have_their_turns(connected: Connected) -> None:
    one, two = connect(connected, "one", TOPIC), connect(connected, "two", "R-normal", TOPIC)
    other = connect(connected, "other", "R-normal")

    assert asked(connected, one, two, other) == [2, 2, 0]


def test_who_has_sent_transactions_goes_before_who_has_not(connected: Connected) -> None:
    plain, sender = connect(connected, "plain", TOPIC), connect(connected, "sender", TOPIC)
    connected.clients.checks.remember("sender", TOPIC, "another")

    assert asked(connected, plain, sender) == [0, 4]


def test_the_sender_of_the_half_message_is_asked_while_it_is_there(connected: Connected) -> None:
    sender, other = connect(connected, "sender", TOPIC), connect(connected, "other", TOPIC)
    connected.clients.checks.remember("other", TOPIC, "another")
    connected.clients.checks.remember("sender", TOPIC, ID)

    assert asked(connected, sender, other) == [4, 0]
    sender.close()

    assert asked(connected, sender, other) == [0, 4]


def test_a_sender_without_settings_is_asked_once_it_listens(connected: Connected) -> None:
    connected.clients.checks.remember("c", TOPIC, ID)
    assert choose(connected) is None

    peer = connect(connected, "c", "R-normal")

    assert asked(connected, peer) == [4]


def test_a_topic_that_is_named_no_more_is_nobodys(connected: Connected) -> None:
    peer = connect(connected, "c", TOPIC)
    peer.say(producer("R-normal"))

    assert choose(connected) is None


def test_nobody_is_asked_who_has_said_goodbye(connected: Connected) -> None:
    connect(connected, "c", TOPIC)

    connected.ask("NotifyClientTermination", v2.NotifyClientTerminationRequest())

    assert choose(connected) is None
    assert not len(connected.listeners)


def test_a_client_hears_the_topic_as_it_names_it_itself(connected: Connected) -> None:
    peer = connected.open()
    peer.say(producer(TOPIC, namespace="ns"))
    asked(connected, peer)

    command = peer.stream.sent[-1].recover_orphaned_transaction_command
    assert command.message.topic == v2.Resource(name=TOPIC, resource_namespace="ns")


def test_a_client_that_does_not_read_is_passed_over(connected: Connected) -> None:
    peer = connect(connected, "c", TOPIC)
    peer.stream.waiting_bytes = 256 * 1024

    assert choose(connected) is None


def test_senders_are_remembered_up_to_a_bound(connected: Connected) -> None:
    checks = CheckCommands(connected.sessions, connected.listeners, limit=lambda: 2)
    for number in range(3):
        checks.remember("c", TOPIC, str(number))

    assert [checks.sender(str(number)) for number in range(3)] == [None, "c", "c"]


def test_a_sender_beyond_the_bound_of_clients_is_not_asked(tmp_path: Path) -> None:
    connected = Connected(tmp_path, clients_max=1)
    connect(connected, "c", TOPIC)

    connected.clients.checks.remember("other", TOPIC, ID)

    chosen = choose(connected)
    assert chosen is not None
    assert not chosen.sent(ID)


def test_who_may_not_send_to_the_topic_any_more_is_not_given_a_message_of_it(
    connected: Connected,
) -> None:
    user = FakeUser("alice")
    peer, other = connect(connected, "a", TOPIC, user=user), connect(connected, "b", TOPIC)
    assert asked(connected, peer, other) == [2, 2]
    user.denied.add(of_topic(TOPIC, PUB))
    assert asked(connected, peer, other) == [0, 4]


def test_another_user_with_the_senders_client_id_is_not_asked(connected: Connected) -> None:
    mine = connect(connected, "a", TOPIC, user=FakeUser("alice"))
    connected.clients.checks.remember("alice/a", TOPIC, ID)
    theirs = connect(connected, "a", "R-other", user=FakeUser("eve"))
    assert asked(connected, mine, theirs) == [4, 0]
