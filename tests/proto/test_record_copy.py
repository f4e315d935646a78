"""A record copied under another address is the one that decoding, changing and encoding it would give."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import MessageTooLarge
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import NO_HOST, Host, Record, decode_record, encode_record
from pocketmq.proto.record_copy import RecordCopier
from pocketmq.proto.record_run import parse_run, starts_of

_hosts = st.sampled_from(
    [Host.parse("127.0.0.1", 5), Host.parse("::1", 6), Host.parse("10.0.0.9", 65535)]
)
_names = st.text("abcXYZ_-%", min_size=1, max_size=200)
_records = st.builds(
    Record,
    topic=_names,
    body=st.binary(min_size=1, max_size=40),
    queue_id=st.integers(0, 99),
    flag=st.integers(-5, 5),
    sys_flag=st.sampled_from([0, 1, 8, 0x301]),
    born_timestamp_ms=st.integers(0, 1 << 60),
    born_host=_hosts,
    store_host=_hosts,
    reconsume_times=st.integers(0, 20),
    prepared_transaction_offset=st.integers(0, 1 << 60),
    properties=st.dictionaries(_names, _names, max_size=3),
)
_kept = st.none()


@given(
    st.lists(_records, min_size=1, max_size=4),
    _names,
    st.integers(0, 1000),
    st.dictionaries(_names, _names, max_size=3),
    _kept | st.sampled_from([0, 8]),
    _kept | st.integers(0, 1 << 30),
    _kept | st.integers(0, 1 << 60),
)
def test_a_copy_is_what_encoding_again_gives(
    records: list[Record],
    topic: str,
    queue_id: int,
    properties: dict[str, str],
    sys_flag: int | None,
    reconsume_times: int | None,
    prepared_offset: int | None,
) -> None:
    encoded = [encode_record(record) for record in records]
    data = b"".join(encoded)
    copier = RecordCopier(data, parse_run(data, starts_of([len(one) for one in encoded])))
    own = encode_properties(properties)
    for index, bytes_of_one in enumerate(encoded):
        record = decode_record(bytes_of_one)
        changed = replace(record, topic=topic, queue_id=queue_id)
        if record.store_host.is_v6:
            changed = replace(changed, store_host=NO_HOST)
        if sys_flag is not None:
            host_bits = changed.sys_flag & 0x30
            changed = replace(changed, sys_flag=sys_flag | host_bits)
        if reconsume_times is not None:
            changed = replace(changed, reconsume_times=reconsume_times)
        if prepared_offset is not None:
            changed = replace(changed, prepared_transaction_offset=prepared_offset)
        assert copier.properties(index) == encode_properties(record.properties)
        copied = copier.copy(
            index,
            topic=topic,
            queue_id=queue_id,
            properties=own,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            prepared_offset=prepared_offset,
        )
        assert copied == encode_record(changed, property_string=own)


def test_properties_that_do_not_fit_are_refused() -> None:
    data = encode_record(Record(topic="T", body=b"b"))
    copier = RecordCopier(data, parse_run(data, starts_of([len(data)])))
    with pytest.raises(MessageTooLarge):
        copier.copy(0, topic="T", queue_id=0, properties=bytes(32768))


@given(_records, st.integers(0, 39))
def test_a_copy_of_a_damaged_body_is_not_sound(record: Record, at: int) -> None:
    data = bytearray(encode_record(record))
    columns = parse_run(data, starts_of([len(data)]))
    data[int(columns.body_start[0]) + at % len(record.body)] ^= 1

    copy = RecordCopier(data, columns).copy(0, topic="T", queue_id=0, properties=b"")

    assert not decode_record(copy).crc_ok
