"""A message that breaks a rule of `apache.rocketmq.v2` is refused with the rule's code, as Apache refuses it."""

from typing import Any
from unittest.mock import Mock

import pytest

from pocketmq.broker.service_v2 import request_checks
from pocketmq.broker.service_v2.request_checks import INTERNAL, RESERVED
from pocketmq.broker.service_v2.statuses import Refused
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


def message(body: bytes = b"x", user: dict[str, str] | None = None, **system: Any) -> v2.Message:
    fields: dict[str, Any] = {"message_id": "id"} | system
    return v2.Message(
        body=body, user_properties=user, system_properties=v2.SystemProperties(**fields)
    )


def check(sent: v2.Message) -> None:
    request_checks.check_message(
        sent,
        sent.body,
        dict(sent.user_properties),
        list(sent.system_properties.keys),
        now_ms=NOW_MS,
        delay_max_ms=DAY_MS,
    )


def due(at_ms: int) -> dict[str, Any]:
    return {"delivery_timestamp": {"seconds": at_ms // 1000, "nanos": at_ms % 1000 * 1_000_000}}


def recovery(seconds: int) -> dict[str, Any]:
    return {"orphaned_transaction_recovery_duration": {"seconds": seconds}}


@pytest.mark.parametrize(
    "sent",
    [
        message(),
        message(b"x" * 4 * 1024 * 1024),
        message(tag=""),
        message(keys=[""]),
        message(message_group=""),
        message(message_group="g" * 63),
        message(message_id="x" * 200),
        message(user={"": "x", "empty": "", "ü": "ünï"}),
        message(user={f"k{number}": "v" for number in range(128)}),
        message(user={"k": "v" * 16_380}, tag="t", keys=["k1"]),
        message(**due(NOW_MS + DAY_MS)),
        message(**due(0)),
        message(**recovery(3600)),
        message(lite_topic="a-B_" + "9" * 60),
        message(priority=0),
    ],
    ids=lambda sent: str(sent.system_properties)[:40] or "plain",
)
def test_what_is_within_the_limits_is_taken(sent: v2.Message) -> None:
    check(sent)


@pytest.mark.parametrize(
    ("sent", "code", "field"),
    [
        (message(b""), v2.MESSAGE_BODY_EMPTY, "body"),
        (message(b"x" * (4 * 1024 * 1024 + 1)), v2.MESSAGE_BODY_TOO_LARGE, "body"),
        (message(message_id=""), v2.ILLEGAL_MESSAGE_ID, "message_id"),
        (message(message_id="  "), v2.ILLEGAL_MESSAGE_ID, "message_id"),
        (message(message_id="a\x02b"), v2.ILLEGAL_MESSAGE_ID, "message_id"),
        (message(tag="  "), v2.ILLEGAL_MESSAGE_TAG, "tag"),
        (message(tag="a|b"), v2.ILLEGAL_MESSAGE_TAG, "tag"),
        (message(tag="a\x01"), v2.ILLEGAL_MESSAGE_TAG, "tag"),
        (message(keys=["k", "  "]), v2.ILLEGAL_MESSAGE_KEY, "keys"),
        (message(keys=["a\x9f"]), v2.ILLEGAL_MESSAGE_KEY, "keys"),
        (message(message_group="  "), v2.ILLEGAL_MESSAGE_GROUP, "message_group"),
        (message(message_group="a\x01"), v2.ILLEGAL_MESSAGE_GROUP, "message_group"),
        (message(message_group="g" * 64), v2.ILLEGAL_MESSAGE_GROUP, "message_group"),
        (message(message_group="ü" * 32), v2.ILLEGAL_MESSAGE_GROUP, "message_group"),
        (message(user={"a\x01": "x"}), v2.ILLEGAL_MESSAGE_PROPERTY_KEY, "user_properties"),
        (message(user={"a": "x\ny"}), v2.ILLEGAL_MESSAGE_PROPERTY_KEY, "user_properties"),
        (
            message(user={f"k{number}": "v" for number in range(129)}),
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            "user_properties",
        ),
        (
            message(user={"k": "v" * 16_381}, tag="t", keys=["k1"]),
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            "user_properties",
        ),
        (message(**due(NOW_MS + DAY_MS + 1)), v2.ILLEGAL_DELIVERY_TIME, "delivery_timestamp"),
        (message(**recovery(3601)), v2.BAD_REQUEST, "orphaned_transaction_recovery_duration"),
        (message(**recovery(-1)), v2.BAD_REQUEST, "orphaned_transaction_recovery_duration"),
        (message(lite_topic=""), v2.ILLEGAL_LITE_TOPIC, "lite_topic"),
        (message(lite_topic="a.b"), v2.ILLEGAL_LITE_TOPIC, "lite_topic"),
        (message(lite_topic="x" * 65), v2.ILLEGAL_LITE_TOPIC, "lite_topic"),
        (message(priority=-1), v2.BAD_REQUEST, "priority"),
        (message(trace_context="a\x01"), v2.BAD_REQUEST, "trace_context"),
        (message(born_host="\x00"), v2.BAD_REQUEST, "born_host"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_what_breaks_a_rule_is_refused_and_the_text_names_the_field(
    sent: v2.Message, code: v2.Code, field: str
) -> None:
    with pytest.raises(Refused) as caught:
        check(sent)

    assert caught.value.code == code
    assert caught.value.details["field"] == field
    assert field.split("_")[-1][:7] in caught.value.message


@pytest.mark.parametrize("name", sorted(INTERNAL))
def test_names_of_the_broker_are_no_user_properties(name: str) -> None:
    with pytest.raises(Refused, match="the broker uses this name") as caught:
        check(message(user={"good": "1", name: "x"}))

    assert caught.value.code == v2.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_apaches_reserved_names_are_all_known() -> None:
    assert len(RESERVED) == 51
    assert {"KEYS", "1ST_POP_TIME", "__CRC32#"} <= RESERVED


NO_GROUPS = Mock(find=lambda name: None)


@pytest.mark.parametrize(
    "name",
    ["R-normal", "%RETRY%g", "%DLQ%" + "g" * 250, "a|b", "localhost.localdomain", "a b", "é"],
)
def test_names_of_topics_are_taken(name: str) -> None:
    assert request_checks.topic_name(v2.Resource(resource_namespace="ns", name=name)) == name


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "..", "a@b", "x" * 256, "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "TBW102"],
)
def test_names_that_are_none_and_those_of_the_system_are_no_topics(name: str) -> None:
    with pytest.raises(Refused) as caught:
        request_checks.topic_name(v2.Resource(name=name))

    assert caught.value.code == v2.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["", " ", "a.b", "x" * 121, "a/b", "CID_RMQ_SYS_TRANS"])
def test_names_that_are_none_and_those_of_the_system_are_no_groups(name: str) -> None:
    with pytest.raises(Refused) as caught:
        request_checks.group_name(v2.Resource(name=name), NO_GROUPS)

    assert caught.value.code == v2.ILLEGAL_CONSUMER_GROUP


def test_a_group_that_exists_may_have_any_name() -> None:
    groups = Mock(find=lambda name: name)
    assert request_checks.group_name(v2.Resource(name="a.b"), groups) == "a.b"
    with pytest.raises(Refused):
        request_checks.group_name(v2.Resource(name="a/b"), groups)


def test_a_group_is_taken() -> None:
    assert request_checks.group_name(v2.Resource(name="g" * 120), NO_GROUPS) == "g" * 120
