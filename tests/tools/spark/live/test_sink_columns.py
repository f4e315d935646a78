"""Rows become messages."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pocketmq.client.message import Message
from pocketmq.client.queue import Queue
from pocketmq.proto.errors import ConfigError, InvalidArgument
from pocketmq.tools.spark.live.row_keys import SPARK_SEQUENCE, row_key
from pocketmq.tools.spark.live.sink_columns import COLUMNS, IGNORED, Rows, sink_columns

pa = pytest.importorskip("pyarrow")

TASK = 7
MAP = pa.map_(pa.string(), pa.string())


def messages(option: str = "t", first_row: int = 0, **columns: Any) -> list[Message]:
    batch = pa.RecordBatch.from_pydict(columns)
    places = {name: index for index, name in enumerate(columns)}
    return list(Rows(places, option, TASK).messages(batch, first_row))


def test_columns_are_found_where_they_stand() -> None:
    fields = [("key", "string"), ("queue_offset", "bigint"), ("value", "binary")]

    assert sink_columns(fields, "t") == {"keys": 0, "body": 2}


def test_every_column_of_the_sink_and_of_the_source_is_taken() -> None:
    fields = [(name, kinds[0]) for name, kinds in COLUMNS.items()]
    fields += [(name, "whatever") for name in sorted(IGNORED)]

    assert set(sink_columns(fields, "", keep_queues=True)) == set(COLUMNS)


def test_rows_keep_their_queues_only_where_that_is_asked_for() -> None:
    fields = [("body", "binary"), ("queue", "int"), ("broker", "string")]

    assert set(sink_columns(fields, "t")) == {"body"}
    assert set(sink_columns(fields, "t", keep_queues=True)) == {"body", "queue", "broker"}


@pytest.mark.parametrize(
    ("fields", "topic", "words"),
    [
        ([("body", "binary"), ("tag", "string")], "t", ("'tag'", "tags")),
        ([("body", "binary"), ("value", "binary")], "t", ("'body'", "twice")),
        ([("body", "bigint")], "t", ("'body'", "binary or string", "cast")),
        ([("topic", "string")], "t", ("'body' is missing",)),
        ([("body", "binary")], "", ("'topic' is missing", "option")),
    ],
    ids=["unknown", "twice", "type", "body", "topic"],
)
def test_a_wrong_column_is_named(
    fields: list[tuple[str, str]], topic: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        sink_columns(fields, topic)

    for word in words:
        assert word in refusal.value.message


def test_a_row_is_a_message_with_all_that_it_says() -> None:
    (message,) = messages(
        option="",
        first_row=41,
        **{
            "body": [b"b"],
            "topic": ["orders"],
            "tags": ["paid"],
            "keys": ["k1 k2"],
            "queue": pa.array([2], pa.int32()),
            "broker": ["broker-a"],
            "properties": pa.array([[("colour", "red")]], MAP),
        },
    )

    assert (message.topic, message.body, message.tag, message.keys) == (
        "orders",
        b"b",
        "paid",
        ("k1", "k2"),
    )
    assert message.queue == Queue("orders", "broker-a", 2)
    assert dict(message.properties) == {"colour": "red", SPARK_SEQUENCE: row_key(TASK, 41)}


def test_the_option_goes_before_the_column() -> None:
    columns = sink_columns([("body", "string"), ("topic", "string")], "other")
    batch = pa.RecordBatch.from_pydict({"body": ["é"], "topic": ["orders"]})

    (message,) = Rows(columns, "other", TASK).messages(batch, 0)

    assert (message.topic, message.body) == ("other", "é".encode())


def test_what_was_read_is_written_without_what_is_the_brokers() -> None:
    read = [
        ("UNIQ_KEY", "01AA"),
        ("TAGS", "paid"),
        ("KEYS", "k"),
        ("__SHARDINGKEY", "s"),
        ("PRODUCER_SEQUENCE", "1:0:0:1"),
        ("TIMER_OUT_MS", "5"),
        (SPARK_SEQUENCE, "an old one"),
        ("colour", "red"),
        ("empty", None),
    ]

    (message,) = messages(body=[b"b"], properties=pa.array([read], MAP))

    assert (message.tag, message.keys, message.sharding_key) == ("paid", ("k",), "s")
    assert dict(message.properties) == {"colour": "red", SPARK_SEQUENCE: row_key(TASK, 0)}


def test_a_column_goes_before_the_property_of_its_name() -> None:
    properties = pa.array([[("TAGS", "old"), ("KEYS", "old")]], MAP)

    (message,) = messages(
        body=[b"b"], tags=["new"], keys=pa.array([None], pa.string()), properties=properties
    )

    assert (message.tag, message.keys) == ("new", ())


def test_a_time_is_milliseconds_or_a_timestamp() -> None:
    instant = datetime(2030, 1, 1, tzinfo=UTC)
    at_ms = 1_893_456_000_000

    stamps = [
        messages(body=[b"b"], deliver_timestamp=pa.array([value], kind))[0].deliver_at_ms
        for value, kind in (
            (at_ms, pa.int64()),
            (instant, pa.timestamp("us", "UTC")),
            (instant.replace(tzinfo=None), pa.timestamp("us")),
            (None, pa.int64()),
        )
    ]

    assert stamps == [at_ms, at_ms, at_ms, 0]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": [b"a", None]}, ("row 11", "'body' is null")),
        ({"body": [b"a", b""]}, ("row 11", "empty")),
        ({"body": [b"a", b"b"], "tags": ["x", "a\x01b"]}, ("row 11",)),
        ({"body": [b"a", b"b"], "queue": [0, -1]}, ("row 11", "-1")),
    ],
    ids=["null", "empty", "tag", "queue"],
)
def test_a_row_that_is_no_message_is_named(columns: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        messages(first_row=10, **columns)

    for word in words:
        assert word in refusal.value.message


def test_a_row_without_a_topic_is_named() -> None:
    with pytest.raises(InvalidArgument, match="'topic' is null"):
        messages(option="", body=[b"a"])


def test_a_priority_is_a_column_or_else_a_property() -> None:
    number = pa.array([[("_SYS_MSG_PRIORITY_", "5")]], MAP)
    none = pa.array([None], pa.int32())

    (column,) = messages(body=[b"b"], priority=pa.array([3], pa.int32()), properties=number)
    (null,) = messages(body=[b"b"], priority=none, properties=number)
    (read,) = messages(body=[b"b"], properties=number)
    (keyed,) = messages(body=[b"b"], sharding_key=["s"], properties=number)

    assert [one.priority for one in (column, null, read, keyed)] == [3, None, 5, None]
