"""Copies of delayed records: what they keep, what they get, where they go, and what cannot go anywhere."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from pocketmq.broker.delay.deliveries import (
    DELIVERED,
    NEVER_ENQUEUED,
    SKIPPED,
    TRY_AGAIN,
    DelayedDeliveries,
    TimedStamps,
)
from pocketmq.broker.messages.appender import Appender
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import SYS_BORN_V6, Host, Record, decode_record, encode_record
from pocketmq.proto.record_run import RunColumns, parse_run, starts_of
from pocketmq.proto.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pocketmq.store.config import StoreConfig, apply_apache_settings
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ...fakes import FaultyDisk
from ...recorded import recorded_store, settings
from ...runs import Hand, bodies_of, open_store, records_of

BORN = Host.parse("10.1.2.3", 4711)


def _record(body: bytes, topic: str, **properties: str) -> Record:
    return Record(
        topic=topic,
        body=body,
        flag=7,
        born_timestamp_ms=1_600_000_000_123,
        born_host=BORN,
        reconsume_times=2,
        properties=properties,
    )


def _timed(body: bytes, real_topic: str = "T", queue: str = "0", **properties: str) -> bytes:
    real = {"TIMER_OUT_MS": "1700000005000", "REAL_TOPIC": real_topic, "REAL_QID": queue}
    return encode_record(_record(body, TIMER_TOPIC, **(properties | real)))


def _parsed(records: list[bytes]) -> tuple[bytes, RunColumns]:
    data = b"".join(records)
    return data, parse_run(data, starts_of([len(record) for record in records]))


def _stamps(count: int, *rolled: int, enqueued_ms: int = 1_700_000_000_000) -> TimedStamps:
    flags = np.zeros(count, np.bool_)
    flags[list(rolled)] = True
    return TimedStamps(np.full(count, enqueued_ms, np.int64), flags, 1_700_000_005_007)


def _deliveries(store: MessageStore) -> DelayedDeliveries:
    return DelayedDeliveries(Appender(store, lambda key: None))


def test_a_copy_of_a_level_keeps_everything_but_its_place(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    waiting = _record(b"body", SCHEDULE_TOPIC, DELAY="3", TAGS="A", REAL_TOPIC="T", REAL_QID="2")

    done = _deliveries(store).deliver(*_parsed([encode_record(waiting)]))

    assert done.states.tolist() == [DELIVERED]
    assert done.complete
    assert done.end_offset == store.max_log_offset
    (copy,) = records_of(store, "T", 2)
    assert (copy.topic, copy.queue_id, copy.queue_offset) == ("T", 2, 0)
    assert dict(copy.properties) == dict(waiting.properties)
    assert (copy.body, copy.flag, copy.born_timestamp_ms, copy.born_host, copy.reconsume_times) == (
        b"body",
        7,
        1_600_000_000_123,
        BORN,
        2,
    )
    assert copy.store_timestamp_ms == Hand().now_ms
    store.close()


def test_each_queue_gets_its_records_in_their_order_and_one_write_takes_all(tmp_path: Path) -> None:
    store = open_store(tmp_path, log_file_size_bytes=1 << 20)
    told: list[tuple[str, int]] = []
    deliveries = DelayedDeliveries(Appender(store, told.append))
    records = [_timed(b"%d" % i, f"T{i % 3}", str(i % 2)) for i in range(60)]

    done = deliveries.deliver(*_parsed(records), _stamps(60))

    assert (done.states == DELIVERED).all()
    assert len(told) == 6
    for topic in range(3):
        for queue in range(2):
            wanted = [b"%d" % i for i in range(60) if i % 3 == topic and i % 2 == queue]
            assert bodies_of(store, f"T{topic}", queue) == wanted
    store.close()


def test_a_timed_copy_says_when_it_came_and_went(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    records = [
        _timed(b"1", TAGS="A"),
        _timed(b"2", TIMER_ENQUEUE_MS="5", TIMER_ROLL_TIMES="2", TIMER_DEQUEUE_MS="6"),
    ]

    _deliveries(store).deliver(*_parsed(records), _stamps(2, enqueued_ms=NEVER_ENQUEUED))

    first, second = records_of(store, "T", 0)
    common = {"TIMER_OUT_MS": "1700000005000", "REAL_TOPIC": "T", "REAL_QID": "0"}
    stamps = {
        "TIMER_ENQUEUE_MS": "9223372036854775807",
        "TIMER_DEQUEUE_MS": "1700000005007",
    }
    assert dict(first.properties) == {"TAGS": "A"} | common | stamps
    assert dict(second.properties) == common | stamps | {"TIMER_ROLL_TIMES": "2"}
    store.close()


def test_rolled_ones_go_back_into_the_timer_topic(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    records = [
        _timed(b"1"),
        _timed(b"2"),
        _timed(b"3", TIMER_ROLL_TIMES="4"),
        _timed(b"0", TIMER_DEL_UNIQKEY="K"),
    ]

    done = _deliveries(store).deliver(*_parsed(records), _stamps(4, 1, 2, 3))

    assert (done.states == DELIVERED).all()
    assert bodies_of(store, "T", 0) == [b"1"]
    rolled = records_of(store, TIMER_TOPIC, 0)
    assert [record.body for record in rolled] == [b"2", b"3", b"0"]
    assert [record.properties["TIMER_ROLL_TIMES"] for record in rolled] == ["1", "5", "1"]
    assert all(record.properties["REAL_TOPIC"] == "T" for record in rolled)
    assert rolled[2].properties["TIMER_DEL_UNIQKEY"] == "K"
    store.close()


def test_what_was_rolled_twice_has_each_property_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    deliveries = _deliveries(store)
    record = _timed(b"1")
    for _ in range(3):
        deliveries.deliver(*_parsed([record]), _stamps(1, 0))
        record = encode_record(records_of(store, TIMER_TOPIC, 0)[-1])
    offset = store.queue_bounds(TIMER_TOPIC, 0)[1] - 1
    raw = store.read_queue(TIMER_TOPIC, 0, offset, 1, 9999).records
    for name in (b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS", b"TIMER_ROLL_TIMES\x013\x02"):
        assert raw.count(name) == 1
    store.close()


@pytest.mark.parametrize(
    ("real_topic", "queue"),
    [
        (HALF_TOPIC, "0"),
        (TIMER_TOPIC, "0"),
        (SCHEDULE_TOPIC, "1"),
        ("", "0"),
        ("../../up", "0"),
        ("T", ""),
        ("T", "-1"),
        ("T", "one"),
        ("T", "2147483648"),
        ("T", "1_0"),
    ],
)
def test_what_has_no_real_queue_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, real_topic: str, queue: str
) -> None:
    store = open_store(tmp_path)
    pairs = f"REAL_TOPIC\x01{real_topic}\x02REAL_QID\x01{queue}\x02".encode()
    odd = encode_record(_record(b"odd", TIMER_TOPIC), property_string=pairs)

    with caplog.at_level(logging.WARNING):
        done = _deliveries(store).deliver(*_parsed([_timed(b"1"), odd, _timed(b"2")]), _stamps(3))

    assert done.states.tolist() == [DELIVERED, SKIPPED, DELIVERED]
    assert done.complete
    assert bodies_of(store, "T", 0) == [b"1", b"2"]
    assert len(caplog.records) == 1
    assert store.queue_names() == [("T", 0)]
    store.close()


def test_a_recall_that_is_due_and_damaged_bytes_are_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    prepared = bytearray(_timed(b"p"))
    prepared[36:40] = (4).to_bytes(4, "big")
    damaged = bytearray(_timed(b"damaged"))
    damaged[84:88] = b"\x7f\xff\xff\xff"
    records = [_timed(b"0", TIMER_DEL_UNIQKEY="K"), bytes(prepared), bytes(damaged), _timed(b"1")]

    done = _deliveries(store).deliver(*_parsed(records), _stamps(4))

    assert done.states.tolist() == [SKIPPED, SKIPPED, SKIPPED, DELIVERED]
    assert bodies_of(store, "T", 0) == [b"1"]
    store.close()


def test_one_that_no_file_takes_leaves_the_others_of_its_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    records = [_timed(b"1"), _timed(b"x" * 5000), _timed(b"2")]

    done = _deliveries(store).deliver(*_parsed(records), _stamps(3))

    assert done.states.tolist() == [DELIVERED, SKIPPED, DELIVERED]
    assert bodies_of(store, "T", 0) == [b"1", b"2"]
    store.close()


def test_properties_that_leave_no_room_are_kept_as_they_are(tmp_path: Path) -> None:
    store = open_store(tmp_path, log_file_size_bytes=1 << 20)
    real = encode_properties({"REAL_TOPIC": "T", "REAL_QID": "0"})
    full = encode_properties({"A": "x" * (32_767 - len(real) - 3)}) + real
    record = encode_record(_record(b"1", TIMER_TOPIC), property_string=full)

    done = _deliveries(store).deliver(*_parsed([record]), _stamps(1))

    assert done.states.tolist() == [DELIVERED]
    (copy,) = records_of(store, "T", 0)
    assert sorted(copy.properties) == ["A", "REAL_QID", "REAL_TOPIC"]
    store.close()


def test_a_checksum_of_the_properties_does_not_go_along(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    waiting = _record(
        b"1", SCHEDULE_TOPIC, DELAY="1", REAL_TOPIC="T", REAL_QID="0", **{"__CRC32#": "0123456789"}
    )

    _deliveries(store).deliver(*_parsed([encode_record(waiting)]))

    (copy,) = records_of(store, "T", 0)
    assert dict(copy.properties) == {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}
    store.close()


def test_hosts_of_sixteen_bytes_and_property_strings_without_an_end(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    host = Host.parse("2001:db8::1", 5)
    record = Record(topic=TIMER_TOPIC, body=b"1", born_host=host, sys_flag=SYS_BORN_V6)
    string = b"A\x01b\x02REAL_QID\x010\x02REAL_TOPIC\x01T"

    _deliveries(store).deliver(
        *_parsed([encode_record(record, property_string=string)]), _stamps(1)
    )

    (copy,) = records_of(store, "T", 0)
    assert copy.born_host == host
    assert copy.properties["REAL_TOPIC"] == "T"
    assert copy.properties["TIMER_ENQUEUE_MS"] == "1700000000000"
    store.close()


def test_a_full_store_means_try_again_and_nothing_is_passed_over(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk)
    deliveries = _deliveries(store)
    data, columns = _parsed([_timed(b"%d" % i, "T", str(i % 2)) for i in range(6)])
    disk.run_full("commitlog")

    done = deliveries.deliver(data, columns, _stamps(6))

    assert (done.states == TRY_AGAIN).all()
    assert not done.complete
    disk.heal()
    assert deliveries.deliver(data, columns, _stamps(6)).complete
    assert bodies_of(store, "T", 0) == [b"0", b"2", b"4"]
    store.close()


def test_copies_are_those_that_apache_made(tmp_path: Path) -> None:
    """Deliver the waiting records of the store `delays` again and compare with what Java delivered."""
    path = recorded_store("delays", tmp_path / "delays")
    config = apply_apache_settings(StoreConfig(path=str(path)), settings("delays"))
    java = MessageStore.open(config, disk=OsDisk(), now_ms=Hand(), read_only=True)
    by_java = {
        record.properties["UNIQ_KEY"]: record
        for topic in ("Delayed", "Timed")
        for queue in (0, 1)
        for record in records_of(java, topic, queue)
        if "REAL_TOPIC" in record.properties
    }
    ours = open_store(tmp_path / "ours", log_file_size_bytes=1 << 20)
    deliveries = _deliveries(ours)
    for level in range(18):
        if ("SCHEDULE_TOPIC_XXXX", level) in java.queue_names():
            slices = java.read_queue(SCHEDULE_TOPIC, level, 0, 100, 1 << 20)
            deliveries.deliver(slices.records, parse_run(slices.records, starts_of(slices.sizes)))
    slices = java.read_queue(TIMER_TOPIC, 0, 0, 100, 1 << 20)
    columns = parse_run(slices.records, starts_of(slices.sizes))
    for row in range(len(columns)):
        waiting = decode_record(slices.records, int(columns.starts[row]))
        like = by_java.get(waiting.properties["UNIQ_KEY"], waiting).properties
        stamps = TimedStamps(
            np.array([int(like.get("TIMER_ENQUEUE_MS", 0))]),
            np.zeros(1, np.bool_),
            int(like.get("TIMER_DEQUEUE_MS", 0)),
        )
        deliveries.deliver(slices.records, columns.take(slice(row, row + 1)), stamps)
    compared = 0
    for topic in ("Delayed", "Timed"):
        for queue in (0, 1):
            for copy in records_of(ours, topic, queue):
                theirs = by_java.get(copy.properties["UNIQ_KEY"])
                if theirs is not None:
                    assert _kept(copy) == _kept(theirs)
                    compared += 1
    assert compared == len(by_java) > 20
    java.close()
    ours.close()


def _kept(record: Record) -> tuple[object, ...]:
    return (
        record.topic,
        record.queue_id,
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.body,
        record.body_crc,
        dict(record.properties),
    )
