"""Messages that came: fields equal those of the record, whatever its encoding."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import Admin, Receipt, received_message
from pocketmq.client.delivery_time import INSTANT_MAX_MS
from pocketmq.client.received_message import FetchedRun, ReceivedMessage, RetriedMessage
from pocketmq.proto.errors import CorruptRecord
from pocketmq.proto.properties import decode_properties
from pocketmq.proto.record import COMPRESSION_ZLIB, SYS_COMPRESSED, Host, Record, encode_record

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=9)
hosts = st.builds(
    Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.just(7)
)
records = st.builds(
    Record,
    topic=st.sampled_from(["orders", "%RETRY%" + "g" * 130]),
    body=st.binary(min_size=1, max_size=40),
    queue_id=st.integers(0, 9),
    queue_offset=st.integers(0, 2**40),
    log_offset=st.integers(0, 2**40),
    born_timestamp_ms=st.integers(0, 2**41),
    store_timestamp_ms=st.integers(0, 2**41),
    born_host=hosts,
    store_host=hosts,
    reconsume_times=st.integers(0, 16),
    properties=st.dictionaries(texts, texts, max_size=3),
)


@given(st.lists(records, min_size=1, max_size=5))
def test_every_field_is_that_of_the_record(rows: list[Record]) -> None:
    run = FetchedRun("broker-a", b"".join(map(encode_record, rows)))

    messages = run.messages()

    assert len(messages) == len(rows)
    for message, row in zip(messages, rows, strict=True):
        assert message.broker == "broker-a"
        assert message.topic == row.topic
        assert message.body == row.body
        assert message.queue == row.queue_id
        assert message.queue_offset == row.queue_offset
        assert message.log_offset == row.log_offset
        assert message.born_timestamp_ms == row.born_timestamp_ms
        assert message.store_timestamp_ms == row.store_timestamp_ms
        assert message.reconsume_times == row.reconsume_times
        assert message.properties == row.properties
        assert message.offset_message_id == row.message_id


def test_the_sharding_key_comes_from_the_properties() -> None:
    for properties, key in (({"__SHARDINGKEY": "customer-7"}, "customer-7"), ({}, None)):
        data = encode_record(Record(topic="orders", body=b"x", properties=properties))
        (message,) = FetchedRun("b", data).messages()
        assert message.sharding_key == key


@pytest.mark.parametrize(
    ("title", "kind", "others"),
    [
        ("## ReceivedMessage", ReceivedMessage, set()),
        ("## Receipt", Receipt, {"count", "index"}),  # A tuple's.
        ("## Admin", Admin, {"run"}),
    ],
)
def test_the_docs_list_every_field_and_method(
    title: str, kind: type[object], others: set[str]
) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "client-objects.md").read_text(encoding="utf-8")
    part = docs.partition(f"{title}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)(?:\(\))?`", row)}

    assert listed == {name for name in dir(kind) if not name.startswith("_")} - others


def test_keys_tag_and_id_come_from_the_properties() -> None:
    properties = {"KEYS": "a  b", "TAGS": "t", "UNIQ_KEY": "0123"}
    data = encode_record(Record(topic="orders", body=b"x", properties=properties))

    (message,) = FetchedRun("broker-a", data).messages()

    assert message.keys == ("a", "b")
    assert message.key == "a"
    assert message.tag == "t"
    assert message.message_id == "0123"


def test_without_properties_there_are_no_keys_and_the_id_is_the_offset_id() -> None:
    data = encode_record(Record(topic="orders", body=b"x", log_offset=172))

    (message,) = FetchedRun("broker-a", data).messages()

    assert (message.keys, message.key, message.tag) == ((), None, None)
    assert message.message_id == "000000000000000000000000000000AC"


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({}, 0),
        ({"TIMER_OUT_MS": "5000", "TIMER_DELIVER_MS": "5001"}, 5_001),
        ({"TIMER_OUT_MS": "5000", "TIMER_DELIVER_MS": "6000"}, 6_000),
        ({"TIMER_OUT_MS": "5000", "TIMER_DELIVER_MS": "6001"}, 6_000),  # a delay was given, too
        ({"TIMER_OUT_MS": "5000", "TIMER_DELIVER_MS": "5000"}, 6_000),
        ({"TIMER_OUT_MS": "5000", "TIMER_DELAY_MS": "77"}, 6_000),  # by Java, to the second
        ({"TIMER_OUT_MS": "5000", "TIMER_DELIVER_MS": "soon"}, 6_000),
        ({"TIMER_OUT_MS": "²"}, 0),
        ({"TIMER_OUT_MS": "9" * 19}, INSTANT_MAX_MS),
        ({"TIMER_OUT_MS": "9" * 5_000}, 0),
        ({"TIMER_DELIVER_MS": "5000"}, 0),  # it was past: delivered at once
        ({"DELAY": "3", "REAL_TOPIC": "orders"}, 0),
    ],
)
def test_a_delayed_message_tells_when_it_was_due(properties: dict[str, str], due_ms: int) -> None:
    data = encode_record(Record(topic="orders", body=b"x", properties=properties))

    (message,) = FetchedRun("broker-a", data).messages()

    assert message.due_ms == due_ms


@pytest.mark.parametrize(("text", "level"), [("3", 3), ("18", 18), ("-1", 0), ("x", 0)])
def test_the_delay_level_is_told(text: str, level: int) -> None:
    data = encode_record(Record(topic="orders", body=b"x", properties={"DELAY": text}))

    (message,) = FetchedRun("broker-a", data).messages()

    assert message.delay_level == level


@pytest.mark.parametrize(
    ("topic", "properties", "origin"),
    [
        ("orders", {}, "orders"),
        ("%RETRY%g", {"RETRY_TOPIC": "orders"}, "orders"),
        ("%DLQ%g", {"DLQ_ORIGIN_TOPIC": "orders", "RETRY_TOPIC": "%RETRY%g"}, "orders"),
        ("%RETRY%g", {}, "%RETRY%g"),
    ],
)
def test_a_message_that_comes_again_tells_where_it_was_sent_to(
    topic: str, properties: dict[str, str], origin: str
) -> None:
    data = encode_record(Record(topic=topic, body=b"x", properties=properties))

    (message,) = FetchedRun("broker-a", data).messages()

    assert message.origin_topic == origin


def test_a_compressed_body_is_decompressed_when_it_is_read() -> None:
    flags = SYS_COMPRESSED | COMPRESSION_ZLIB
    rows = [
        Record(topic="orders", body=zlib.compress(b"a" * 99), sys_flag=flags),
        Record(topic="orders", body=b"plain"),
        Record(topic="orders", body=b"no zlib", sys_flag=flags),
    ]

    first, second, third = FetchedRun("broker-a", b"".join(map(encode_record, rows))).messages()

    assert first.body == b"a" * 99
    assert second.body == b"plain"
    with pytest.raises(CorruptRecord, match="compressed"):
        _ = third.body


@pytest.mark.parametrize("cut", [1, 50, 91])
def test_a_cut_run_is_refused(cut: int) -> None:
    data = encode_record(Record(topic="orders", body=b"x" * 30))

    with pytest.raises(CorruptRecord, match="broker-a sent"):
        FetchedRun("broker-a", data + data[:cut])


def test_the_first_wanted_message_is_found_by_queue_offset() -> None:
    rows = [Record(topic="orders", body=b"x", queue_offset=offset) for offset in (5, 6, 9)]
    run = FetchedRun("broker-a", b"".join(map(encode_record, rows)))

    assert [run.first_at_or_after(offset) for offset in (0, 5, 6, 7, 9, 10)] == [0, 0, 1, 2, 2, 3]


def test_a_message_that_comes_again_is_handed_out_under_its_own_topic() -> None:
    properties = {"RETRY_TOPIC": "orders"}
    record = Record(topic="%RETRY%billing", body=b"x", properties=properties)
    run = FetchedRun("broker-a", encode_record(record))

    message = RetriedMessage(run, 0)

    assert (message.topic, message.stored_topic) == ("orders", "%RETRY%billing")
    assert run.messages()[0].topic == "%RETRY%billing"


def test_properties_are_decoded_once_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"KEYS": "a b", "TAGS": "new", "UNIQ_KEY": "AC11", "DELAY": "3"}
    run = FetchedRun("a", encode_record(Record(topic="t", body=b"x", properties=properties)))
    decoded = []

    def decode(data: bytes) -> dict[str, str]:
        decoded.append(data)
        return decode_properties(data)

    monkeypatch.setattr(received_message, "decode_properties", decode)
    (message,) = run.messages()
    assert (message.key, message.keys, message.tag) == ("a", ("a", "b"), "new")
    assert (message.message_id, message.delay_level, message.due_ms) == ("AC11", 3, 0)
    assert message.origin_topic == "t"
    message.properties["TAGS"] = "other"

    assert message.properties["TAGS"] == message.tag == "new"
    assert len(decoded) == 1
