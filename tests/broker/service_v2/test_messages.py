"""What is sent is delivered as it was, and as Apache delivers it."""

import gzip
import hashlib
import zlib
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, strategies as st

from pocketmq.broker.service_v2.messages import delivered, property_string, record_of, type_of_sent
from pocketmq.broker.service_v2.request_checks import INTERNAL
from pocketmq.proto import private_pool
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.record import Host, Record, decode_record, encode_record
from pocketmq.proto.topics import MESSAGE_SIZE_MAX
from tests.recorded_v2 import recorded_group

TOPIC = v2.Resource(name="T")
NAME = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=8)
WORD = NAME.filter(lambda text: " " not in text)


def stored(message: v2.Message) -> bytes:
    """Return the record of MESSAGE as the store fills it in."""
    system = message.system_properties
    user, keys = dict(message.user_properties), list(system.keys)
    topic = message.topic.name
    properties = property_string(system, user, keys, topic=topic, kind=type_of_sent(system))
    data = record_of(message, message.body, properties, topic=topic, queue=3, born_ms=77)
    record = decode_record(data)
    return encode_record(
        Record(
            topic=record.topic,
            body=record.body,
            queue_id=record.queue_id,
            queue_offset=5,
            sys_flag=record.sys_flag,
            born_timestamp_ms=record.born_timestamp_ms,
            store_timestamp_ms=1_700_000_000_123,
            store_host=Host(bytes((127, 0, 0, 1)), 8081),
            properties=record.properties,
        )
    )


@given(
    st.builds(
        v2.Message,
        topic=st.just(TOPIC),
        body=st.binary(min_size=1, max_size=20),
        user_properties=st.dictionaries(NAME.filter(lambda name: name not in INTERNAL), NAME),
        system_properties=st.builds(
            v2.SystemProperties,
            message_id=NAME,
            tag=st.none() | NAME,
            keys=st.lists(WORD, max_size=3),
            body_encoding=st.sampled_from([v2.IDENTITY, v2.GZIP]),
            message_group=st.none() | NAME,
            trace_context=st.none() | NAME,
            delivery_timestamp=st.none() | st.just({"seconds": 1_700_000_000, "nanos": 5_000_000}),
            born_timestamp=st.just({"seconds": 1_600_000_000, "nanos": 1_000_000}),
            born_host=NAME,
            lite_topic=st.none() | NAME,
            priority=st.none() | st.integers(0, 2**31 - 1),
        ),
    )
)
def test_what_is_sent_is_delivered(sent: v2.Message) -> None:
    system = sent.system_properties
    system.message_type = type_of_sent(system)

    found = delivered(stored(sent), TOPIC, handle="h", attempt=2, invisible_ms=30_500)

    expected = v2.Message()
    expected.CopyFrom(sent)
    expected.system_properties.MergeFrom(
        v2.SystemProperties(
            body_digest={
                "type": v2.MD5,
                "checksum": hashlib.md5(sent.body).hexdigest().upper(),
            },
            store_timestamp={"seconds": 1_700_000_000, "nanos": 123_000_000},
            store_host="127.0.0.1:8081",
            queue_id=3,
            queue_offset=5,
            receipt_handle="h",
            delivery_attempt=2,
            invisible_duration={"seconds": 30, "nanos": 500_000_000},
        )
    )
    assert found == expected


def recorded_deliveries() -> list[Any]:
    """Return (id, what was sent, what Apache delivered) of all messages of the recording that were both."""
    sent: dict[str, Any] = {}
    pairs: dict[str, Any] = {}
    for group in ("send", "receive", "delay-recall", "transaction"):
        for case in recorded_group(group)["cases"]:
            for one in (case.get("request") or {}).get("messages", ()):
                sent.setdefault(one.get("system_properties", {}).get("message_id"), one)
            for reply in case.get("responses", ()):
                if (one := reply["body"].get("message")) is not None:
                    pairs.setdefault(one["system_properties"]["message_id"], one)
    return [
        pytest.param(sent[key], one, id=key)
        for key, one in pairs.items()
        if "@" not in str(sent[key])
    ]


#: Fields that depend on who stored the message, when and where; digests are those of the body.
_OF_THE_STORE = ("store_timestamp", "store_host", "queue_id", "queue_offset", "receipt_handle")


@pytest.mark.parametrize(("sent", "apache"), recorded_deliveries())
def test_messages_are_delivered_as_apache_delivers_them(
    sent: dict[str, Any], apache: dict[str, Any]
) -> None:
    message = json_format.ParseDict(sent, v2.Message(), descriptor_pool=private_pool.POOL)
    expected = json_format.ParseDict(apache, v2.Message(), descriptor_pool=private_pool.POOL)
    for name in INTERNAL & expected.user_properties.keys():
        del expected.user_properties[name]  # Apache leaks some.

    found = delivered(
        stored(message),
        expected.topic,
        attempt=expected.system_properties.delivery_attempt,
        handle="h",
    )

    for one in (found, expected):
        for field in _OF_THE_STORE:
            one.system_properties.ClearField(field)
    assert found == expected


def test_apaches_recording_has_messages_of_all_kinds() -> None:
    kinds = {
        param.values[1]["system_properties"]["message_type"] for param in recorded_deliveries()
    }

    assert {"NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY"} <= kinds


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_body_that_the_sender_compressed_is_delivered_byte_by_byte(compress: Any) -> None:
    body = compress(b"text")
    system = v2.SystemProperties(message_id="id", body_encoding=v2.GZIP)
    sent = v2.Message(topic=TOPIC, body=body, system_properties=system)

    found = delivered(stored(sent), TOPIC)

    assert found.body == body
    assert found.system_properties.body_encoding == v2.GZIP


def test_a_body_that_another_protocol_compressed_is_delivered_as_it_was_before() -> None:
    data = encode_record(Record(topic="T", body=zlib.compress(b"text"), sys_flag=0x301))

    found = delivered(data, TOPIC)

    assert found.body == b"text"
    assert found.system_properties.body_encoding == v2.IDENTITY


def test_a_body_that_cannot_be_decompressed_is_delivered_all_the_same() -> None:
    found = delivered(encode_record(Record(topic="T", body=b"junk", sys_flag=0x301)), TOPIC)

    assert found.body == b"junk"
    assert found.system_properties.body_encoding == v2.GZIP


def test_a_body_that_would_be_larger_than_any_may_be_is_delivered_as_it_is() -> None:
    bomb = zlib.compress(bytes(MESSAGE_SIZE_MAX + 1))
    found = delivered(encode_record(Record(topic="T", body=bomb, sys_flag=0x301)), TOPIC)

    assert found.body == bomb
    assert found.system_properties.body_encoding == v2.GZIP


def test_a_message_without_an_id_has_that_of_its_place() -> None:
    record = Record(
        topic="T", body=b"x", log_offset=255, store_host=Host(bytes((127, 0, 0, 1)), 8081)
    )

    found = delivered(encode_record(record), TOPIC).system_properties

    assert found.message_id == "7F00000100001F9100000000000000FF"
    assert found.born_host == "0.0.0.0"


def test_a_dead_letter_says_where_it_died() -> None:
    properties = {
        "DLQ_ORIGIN_TOPIC": "T",
        "DLQ_ORIGIN_MESSAGE_ID": "id",
        "DLQ_REASON": "16 failures",
        "own": "1",
    }

    found = delivered(
        encode_record(Record(topic="%DLQ%g", body=b"x", properties=properties)), TOPIC
    )

    assert found.system_properties.dead_letter_queue.topic == "T"
    assert found.system_properties.dead_letter_queue.message_id == "id"
    assert dict(found.user_properties) == {"own": "1"}


@pytest.mark.parametrize("value", ["x", "-1", "9" * 30, "²"])
def test_numbers_that_are_none_are_passed_over(value: str) -> None:
    properties = {"TIMER_DELIVER_MS": value, "_SYS_MSG_PRIORITY_": value}

    found = delivered(encode_record(Record(topic="T", body=b"x", properties=properties)), TOPIC)

    assert not found.system_properties.HasField("delivery_timestamp")
    assert not found.system_properties.HasField("priority")


def test_a_half_message_says_whose_it_is_and_how_long_it_is_not_asked_about() -> None:
    system = v2.SystemProperties(
        message_id="id",
        message_type=v2.TRANSACTION,
        orphaned_transaction_recovery_duration={"seconds": 9, "nanos": 1},
    )
    sent = v2.Message(topic=TOPIC, body=b"x", system_properties=system)

    properties = decode_record(stored(sent)).properties

    assert properties == {
        "UNIQ_KEY": "id",
        "TRAN_MSG": "true",
        "PGROUP": "T",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "9",
    }
