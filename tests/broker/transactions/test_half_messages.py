"""Half messages, their outcomes and op messages are Apache's, property for property."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.transactions.records import (
    OP_BODY_BYTES_MAX,
    HalfCopies,
    op_parts,
    op_run,
    prepare,
    resolved_offsets,
)
from pocketmq.proto.errors import InvalidRecord, MessageTooLarge
from pocketmq.proto.record import Record, decode_record, encode_record
from pocketmq.proto.record_run import walk
from pocketmq.proto.run import Run
from pocketmq.proto.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from pocketmq.store.config import StoreConfig, apply_apache_settings
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ...recorded import recorded_store, settings
from ...runs import BORN, Hand, make_run, records_of

IN_TRANSACTION = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "ID", "KEYS": "k"}


def records_in(run: Run) -> list[Record]:
    data = bytes(run.records)
    return [decode_record(data, start) for start in walk(data)[0].tolist()]


def test_a_half_message_lies_in_the_half_topic_and_knows_where_it_is_for() -> None:
    run = make_run("T", 3, [b"one", b"two"], IN_TRANSACTION)

    halves = records_in(prepare(run))

    assert [half.body for half in halves] == [b"one", b"two"]
    for half in halves:
        assert (half.topic, half.queue_id, half.sys_flag) == (HALF_TOPIC, 0, 0)
        assert half.born_timestamp_ms == 1_600_000_000_000
        assert half.properties == IN_TRANSACTION | {
            "__transactionId__": "ID",
            "REAL_TOPIC": "T",
            "REAL_QID": "3",
        }


def test_the_senders_transaction_bits_are_cleared_and_others_kept() -> None:
    (sent,) = records_in(make_run("T", 0, [b"x"], IN_TRANSACTION))
    data = encode_record(
        Record(
            topic="T",
            body=sent.body,
            sys_flag=0x4 | 0x1,
            born_host=BORN,
            properties=IN_TRANSACTION
            | {"REAL_TOPIC": "elsewhere", "__transactionId__": "of nobody"},
        )
    )

    (half,) = records_in(prepare(Run.of("T", 0, [data])))

    assert half.sys_flag == 0x1
    assert half.properties["REAL_TOPIC"] == "T"
    assert half.properties["__transactionId__"] == "ID"


@pytest.mark.parametrize("missing", ["PGROUP", "UNIQ_KEY"])
def test_group_and_id_are_required(missing: str) -> None:
    lacking = {name: value for name, value in IN_TRANSACTION.items() if name != missing}

    with pytest.raises(InvalidRecord, match=missing) as caught:
        prepare(make_run("T", 0, [b"good", b"bad"], [IN_TRANSACTION, lacking]))

    assert caught.value.details["field"] == missing
    assert caught.value.details["index"] == "1"


@pytest.mark.parametrize("name", ["PGROUP", "UNIQ_KEY"])
def test_group_and_id_are_not_too_long_to_be_remembered(name: str) -> None:
    longest, too_long = (IN_TRANSACTION | {name: "x" * size} for size in (255, 256))
    prepare(make_run("T", 0, [b"good"], longest))

    with pytest.raises(InvalidRecord, match=f"{name} .* has 256 bytes, the limit is 255") as caught:
        prepare(make_run("T", 0, [b"good", b"bad"], [longest, too_long]))

    assert caught.value.details["field"] == name
    assert caught.value.details["index"] == "1"


def test_properties_need_room_for_those_of_the_transaction() -> None:
    full = IN_TRANSACTION | {"own": "x" * 32_680}

    with pytest.raises(MessageTooLarge, match="with those of the transaction"):
        prepare(make_run("T", 0, [b"x"], full))


# --- against Apache's


def of_java(tmp_path: Path) -> list[Record]:
    path = recorded_store("transactions", tmp_path / "java")
    config = apply_apache_settings(StoreConfig(path=str(path)), settings("transactions"))
    store = MessageStore.open(config, disk=OsDisk(), now_ms=Hand(), read_only=True)
    return [
        record
        for topic, queue in [
            (HALF_TOPIC, 0),
            (OP_HALF_TOPIC, 0),
            ("Transacted", 0),
            ("Transacted", 1),
        ]
        for record in records_of(store, topic, queue)
    ]


def same(ours: Record, java: Record) -> None:
    """Assert that OURS says what JAVA says, in all but the store's own fields."""
    for field in (
        "topic",
        "body",
        "queue_id",
        "flag",
        "sys_flag",
        "born_timestamp_ms",
        "born_host",
    ):
        assert getattr(ours, field) == getattr(java, field)
    assert ours.prepared_transaction_offset == java.prepared_transaction_offset
    assert ours.reconsume_times == java.reconsume_times
    assert dict(ours.properties) == dict(java.properties)


def test_what_java_stored_is_what_ours_would_store(tmp_path: Path) -> None:
    records = of_java(tmp_path)
    halves = {record.log_offset: record for record in records if record.topic == HALF_TOPIC}
    rows = list(halves.values())
    places = {offset: row for row, offset in enumerate(halves)}
    copies = HalfCopies([encode_record(half) for half in rows])
    first: dict[str, Record] = {}
    compared = Counter[str]()
    for record in records:
        unique = record.properties.get("UNIQ_KEY", "")
        times = record.properties.get("TRANSACTION_CHECK_TIMES")
        if record.sys_flag == 8:
            row = places[record.prepared_transaction_offset]
            same(decode_record(copies.committed(row, record.topic, record.queue_id)), record)
            compared["committed"] += 1
        elif record.topic == HALF_TOPIC and times is not None:
            checked = copies.checked(places[first[unique].log_offset], int(times))
            same(decode_record(checked), record)
            compared["checked"] += 1
        elif record.topic == HALF_TOPIC:
            first[unique] = record
            same(prepared_again(record), record)
            compared["half"] += 1
        else:
            offsets = resolved_offsets(record.body)
            run = op_run([offsets], record.born_timestamp_ms, record.born_host)
            same(records_in(run)[0], record)
            compared["op"] += 1

    assert compared == {"half": 30, "committed": 10, "checked": 55, "op": 3}


def prepared_again(half: Record) -> Record:
    """Return what `prepare` makes of the message that was sent for HALF."""
    broker_made = ("REAL_TOPIC", "REAL_QID", "__transactionId__")
    sent = replace(
        half,
        topic=half.properties["REAL_TOPIC"],
        queue_id=int(half.properties["REAL_QID"]),
        sys_flag=half.sys_flag | 0x4,
        properties={k: v for k, v in half.properties.items() if k not in broker_made},
    )
    return records_in(prepare(Run.of(sent.topic, sent.queue_id, [encode_record(sent)])))[0]


def test_what_was_given_up_keeps_all_its_properties() -> None:
    (half,) = records_in(prepare(make_run("T", 3, [b"x"], IN_TRANSACTION)))
    copies = HalfCopies([HalfCopies([encode_record(half)]).checked(0, 15)])

    given_up = decode_record(copies.given_up(0))

    assert (given_up.topic, given_up.queue_id, given_up.sys_flag) == (CHECK_MAX_TIME_TOPIC, 0, 0)
    assert given_up.properties == dict(half.properties) | {"TRANSACTION_CHECK_TIMES": "15"}


def test_a_check_without_room_for_its_count_leaves_the_message_as_it_is() -> None:
    full = encode_record(Record(topic=HALF_TOPIC, body=b"x", properties={"own": "x" * 32_750}))

    assert decode_record(HalfCopies([full]).checked(0, 1)).properties == {"own": "x" * 32_750}


# --- op messages


@given(st.lists(st.integers(0, 1 << 40), max_size=2000))
def test_op_messages_hold_all_offsets_in_order_and_are_bounded(offsets: list[int]) -> None:
    records = records_in(op_run(op_parts(offsets), 1_700_000_000_000, BORN)) if offsets else []

    assert [at for record in records for at in resolved_offsets(record.body)] == offsets
    assert all(len(record.body) <= OP_BODY_BYTES_MAX for record in records)
    assert all(record.topic == OP_HALF_TOPIC for record in records)


@given(st.binary(max_size=64))
def test_any_body_of_an_op_message_can_be_read(body: bytes) -> None:
    assert all(offset >= 0 for offset in resolved_offsets(body))


def test_what_is_no_offset_is_passed_over() -> None:
    assert resolved_offsets(b"12,x,-3,,15,99999999999999999999,7") == [12, 15, 7]
