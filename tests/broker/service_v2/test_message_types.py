"""A message's type is what it asks for, and a topic takes its own."""

from typing import Any

import pytest

from pocketmq.broker.service_v2.messages import (
    accepted_types,
    check_type,
    type_of_sent,
    type_of_stored,
)
from pocketmq.broker.service_v2.statuses import Refused
from pocketmq.broker.topics import TYPES
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.format.state_tables import TopicConfig

SOON = {"seconds": 1}


def topic(kind: str | None) -> TopicConfig:
    attributes = {} if kind is None else {"message.type": kind}
    return TopicConfig(name="T", read_queues=1, write_queues=1, permission=6, attributes=attributes)


@pytest.mark.parametrize(
    ("system", "kind"),
    [
        ({}, v2.NORMAL),
        ({"message_type": v2.FIFO}, v2.NORMAL),
        ({"message_group": ""}, v2.NORMAL),
        ({"message_group": "g"}, v2.FIFO),
        ({"delivery_timestamp": SOON}, v2.DELAY),
        ({"delivery_timestamp": SOON, "message_group": "g"}, v2.DELAY),
        ({"message_type": v2.TRANSACTION, "message_group": "g"}, v2.TRANSACTION),
        ({"priority": 0}, v2.PRIORITY),
        ({"lite_topic": "user-1"}, v2.LITE),
    ],
)
def test_the_type_of_what_is_sent_is_derived(system: dict[str, Any], kind: v2.MessageType) -> None:
    assert type_of_sent(v2.SystemProperties(**system)) == kind


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"UNIQ_KEY": "x"}, v2.NORMAL),
        ({"__SHARDINGKEY": "g"}, v2.FIFO),
        ({"TIMER_DELIVER_MS": "5", "__SHARDINGKEY": "g"}, v2.DELAY),
        ({"DELAY": "3"}, v2.DELAY),
        ({"TRAN_MSG": "true"}, v2.TRANSACTION),
        ({"TRAN_MSG": "no"}, v2.NORMAL),
        ({"_SYS_MSG_PRIORITY_": "3"}, v2.PRIORITY),
        ({"__LITE_TOPIC": "user-1"}, v2.LITE),
    ],
)
def test_the_type_of_what_is_stored_is_derived(
    properties: dict[str, str], kind: v2.MessageType
) -> None:
    assert type_of_stored(properties) == kind


@pytest.mark.parametrize("kind", [None, *TYPES])
def test_a_topic_takes_what_its_route_says_and_nothing_else(kind: str | None) -> None:
    accepted = accepted_types(topic(kind))

    assert accepted
    assert v2.MESSAGE_TYPE_UNSPECIFIED not in accepted
    for sent in (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION, v2.LITE, v2.PRIORITY):
        if sent in accepted or kind == "MIXED":
            check_type(topic(kind), sent)
        else:
            with pytest.raises(Refused, match=r"accepts [A-Z]+ messages") as caught:
                check_type(topic(kind), sent)
            assert caught.value.code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_a_topic_without_a_type_is_normal() -> None:
    assert accepted_types(topic(None)) == accepted_types(topic("NORMAL")) == (v2.NORMAL,)


def test_routes_of_mixed_topics_name_only_what_old_clients_know() -> None:
    assert set(accepted_types(topic("MIXED"))) == {v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION}
