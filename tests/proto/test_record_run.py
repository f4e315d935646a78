"""Runs of records: the vectorised code says of many what the record codec says of each."""

import json
import struct
from pathlib import Path

import numpy as np
from hypothesis import given, strategies as st

from pocketmq.proto.java_hash import java_hash
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.property_ranges import PropertyRanges, tags_codes
from pocketmq.proto.record import (
    MAGIC_BLANK,
    Host,
    Record,
    decode_record,
    encode_record,
    encode_run,
)
from pocketmq.proto.record_run import crc_mismatches, parse_run, starts_of, walk

_GOLDEN = json.loads((Path(__file__).parent.parent / "formats" / "records.json").read_text("utf-8"))
_HOST = Host.parse("127.0.0.1", 8081)
_VALUES = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]),
    min_size=1,
    max_size=12,
)
_PROPERTIES = st.dictionaries(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "TAG"]), _VALUES)
_RECORDS = st.builds(
    Record,
    topic=st.sampled_from(["T", "Another", "%RETRY%" + "g" * 140]),
    body=st.binary(max_size=60),
    born_host=st.sampled_from([_HOST, Host.parse("::1", 9)]),
    store_host=st.sampled_from([_HOST, Host.parse("::1", 9)]),
    queue_id=st.integers(0, 7),
    queue_offset=st.integers(0, 2**40),
    store_timestamp_ms=st.integers(0, 2**42),
    reconsume_times=st.integers(0, 16),
    prepared_transaction_offset=st.integers(0, 2**40),
    properties=_PROPERTIES,
)
_RUNS = st.lists(_RECORDS, max_size=40) | _RECORDS.flatmap(
    lambda record: st.integers(9, 60).map(lambda count: [record] * count)
)


@given(_RUNS)
def test_a_run_parses_to_what_each_record_decodes_to(records: list[Record]) -> None:
    encoded = [encode_record(record) for record in records]
    data = b"".join(encoded)

    starts, stop = walk(data)
    columns = parse_run(data, starts)

    assert stop == len(data)
    assert starts.tolist() == starts_of([len(part) for part in encoded]).tolist()
    assert columns.well_formed.all()
    assert not crc_mismatches(data, columns).any()
    for row, start in enumerate(starts.tolist()):
        record = decode_record(data, start)
        assert columns.sizes[row] == record.total_size
        assert columns.queue_id[row] == record.queue_id
        assert columns.queue_offset[row] == record.queue_offset
        assert columns.sys_flag[row] == record.sys_flag
        assert columns.store_ms[row] == record.store_timestamp_ms
        assert columns.reconsume_times[row] == record.reconsume_times
        assert columns.prepared_offset[row] == record.prepared_transaction_offset
        topic_at = int(columns.topic_start[row])
        topic = data[topic_at : topic_at + int(columns.topic_size[row])]
        assert topic.decode() == record.topic


@given(_RUNS, st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "absent"]), st.booleans())
def test_property_ranges_are_the_values_that_a_reader_finds(
    records: list[Record], name: str, trailing: bool
) -> None:
    parts = []
    for record in records:
        properties = encode_properties(record.properties)
        parts.append(
            encode_record(record, property_string=properties if trailing else properties[:-1])
        )
    data = b"".join(parts)
    columns = parse_run(data, walk(data)[0])

    begins, sizes = PropertyRanges(data, columns).find(name)

    for begin, size, record in zip(begins.tolist(), sizes.tolist(), records, strict=True):
        found = data[begin : begin + size].decode() if size >= 0 else None
        assert found == record.properties.get(name)


def test_the_last_of_several_equal_properties_wins() -> None:
    properties = b"a\x011\x02TAGS\x01x\x02a\x012\x02a\x01\x02"
    data, _ = encode_run("T", 0, [(b"b", properties)], born_timestamp_ms=1, born_host=_HOST)
    columns = parse_run(data, walk(data)[0])

    begins, sizes = PropertyRanges(data, columns).find("a")

    assert data[begins[0] : begins[0] + sizes[0]] == b"2"


@given(st.lists(_RECORDS, min_size=1, max_size=10))
def test_tags_codes_are_sign_extended_java_hashes(records: list[Record]) -> None:
    data = b"".join(map(encode_record, records))
    columns = parse_run(data, walk(data)[0])

    codes = tags_codes(data, PropertyRanges(data, columns))

    tags = [record.properties.get("TAGS") for record in records]
    assert codes.tolist() == [java_hash(tag) if tag else 0 for tag in tags]


@given(st.binary(max_size=600), st.integers(0, 599))
def test_garbage_parses_without_an_error_and_is_not_well_formed(data: bytes, start: int) -> None:
    columns = parse_run(data, np.array([start, 0, -5], np.int64))

    assert not columns.well_formed.any()


def test_the_walk_stops_at_a_blank_at_zeros_and_at_a_size_beyond_the_end() -> None:
    record = encode_record(Record(topic="T", body=b"body"))
    blank = struct.pack(">ii", 500, MAGIC_BLANK) + bytes(492)

    assert walk(record * 3 + blank)[1] == 3 * len(record)
    assert walk(record * 30 + bytes(200))[1] == 30 * len(record)
    assert walk(record * 30 + record[:-1])[1] == 30 * len(record)
    assert walk(b"")[1] == 0


def _run(count: int = 3, body: bytes = b"body") -> tuple[bytes, list[int]]:
    messages = [(body, encode_properties({"KEYS": f"k{index}"})) for index in range(count)]
    return encode_run("T", 2, messages, born_timestamp_ms=7, born_host=_HOST)


def test_an_encoded_run_is_each_record_encoded_alone() -> None:
    data, sizes = _run()

    alone = [
        encode_record(
            Record(
                topic="T",
                body=b"body",
                queue_id=2,
                born_timestamp_ms=7,
                born_host=_HOST,
                properties={"KEYS": f"k{index}"},
            )
        )
        for index in range(3)
    ]

    assert data == b"".join(alone)
    assert sizes == [len(part) for part in alone]


def test_each_record_may_have_a_sys_flag_of_its_own() -> None:
    messages = [(b"one", b""), (b"two", b""), (b"three", b"")]

    data, sizes = encode_run(
        "T", 2, messages, born_timestamp_ms=7, born_host=_HOST, sys_flag=[0, 0x301, 0]
    )

    assert parse_run(data, starts_of(sizes)).sys_flag.tolist() == [0, 0x301, 0]
