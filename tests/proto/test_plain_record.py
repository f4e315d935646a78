"""Records read and written one at a stroke are what record.py makes of them."""

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import InvalidRecord, MessageTooLarge
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import (
    Host,
    Record,
    decode_record,
    encode_record,
    read_record,
    write_record,
)

_HOSTS = st.builds(
    Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.just(7)
)
_TEXT = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=9)
_TOPICS = st.sampled_from(["T", "x" * 127, "x" * 128, "ü" * 70])
_RECORDS = st.builds(
    Record,
    topic=_TOPICS,
    body=st.binary(max_size=20),
    queue_id=st.integers(0, 9),
    sys_flag=st.sampled_from([0, 1, 8]),
    queue_offset=st.integers(0, 2**62),
    log_offset=st.integers(0, 2**62),
    born_timestamp_ms=st.integers(0, 2**62),
    born_host=_HOSTS,
    store_timestamp_ms=st.integers(0, 2**62),
    store_host=_HOSTS,
    reconsume_times=st.integers(0, 20),
    properties=st.dictionaries(_TEXT, _TEXT, max_size=3),
)


@given(_RECORDS)
def test_a_record_says_the_same_either_way(record: Record) -> None:
    data = encode_record(record)

    plain, decoded = read_record(data), decode_record(data)

    assert plain.properties == decoded.properties
    assert plain[:2] + plain[3:] == (
        decoded.topic,
        decoded.body,
        decoded.queue_id,
        decoded.queue_offset,
        decoded.log_offset,
        decoded.sys_flag,
        decoded.born_timestamp_ms,
        decoded.born_host,
        decoded.store_timestamp_ms,
        decoded.store_host,
        decoded.reconsume_times,
    )


@given(_RECORDS)
def test_a_record_is_written_the_same_either_way(record: Record) -> None:
    written = write_record(
        record.topic,
        record.queue_id,
        record.body,
        encode_properties(record.properties),
        sys_flag=record.sys_flag,
        born_ms=record.born_timestamp_ms,
        born_host=record.born_host,
    )

    same = Record(
        topic=record.topic,
        queue_id=record.queue_id,
        body=record.body,
        properties=record.properties,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
    )
    assert written == encode_record(same)


@given(st.integers(0, 2**31 - 1), st.sampled_from([0, 84, 92, 94]))
def test_bytes_whose_lengths_do_not_agree_are_refused(value: int, at: int) -> None:
    good = encode_record(Record(topic="T", body=b"four", properties={"a": "b"}))
    width = {92: 1, 94: 2}.get(at, 4)
    part = (value % 256**width).to_bytes(width, "big")
    data = good[:at] + part + good[at + width :]

    if data == good:
        assert read_record(data).body == b"four"
    else:
        with pytest.raises(InvalidRecord):
            read_record(data)


@pytest.mark.parametrize("size", [0, 40, 95])
def test_a_torn_record_is_refused(size: int) -> None:
    with pytest.raises(InvalidRecord):
        read_record(encode_record(Record(topic="T", body=b"four"))[:size])


def test_two_records_are_not_one() -> None:
    with pytest.raises(InvalidRecord, match="give exactly one"):
        read_record(encode_record(Record(topic="T", body=b"x")) * 2)


def test_properties_have_a_limit() -> None:
    with pytest.raises(MessageTooLarge, match="32767"):
        write_record("T", 0, b"x", bytes(32768))
