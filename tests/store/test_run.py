"""Patching the store's fields into a run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketmq.proto.errors import InvalidRecord
from pocketmq.proto.record import Host, Record, decode_record, encode_record
from pocketmq.proto.record_run import parse_run, starts_of
from pocketmq.store.run import check_appendable, patch, stamp

V4 = Host.parse("127.0.0.1", 1000)
V6 = Host.parse("::1", 1001)
STORE = Host.parse("10.1.2.3", 8081)


def run_of(bodies: list[bytes], hosts: list[Host]) -> tuple[np.ndarray, list[int]]:
    records = [
        encode_record(Record(topic="T", body=body, born_host=host, properties={"KEYS": "a b"}))
        for body, host in zip(bodies, hosts, strict=True)
    ]
    return np.frombuffer(b"".join(records), np.uint8).copy(), [len(record) for record in records]


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.sampled_from([V4, V6])), min_size=1),
    st.integers(0, 2**40),
    st.integers(0, 2**50),
)
def test_patched_records_decode_to_the_given_fields(
    parts: list[tuple[bytes, Host]], queue_offset: int, log_offset: int
) -> None:
    data, sizes = run_of([body for body, _ in parts], [host for _, host in parts])
    starts = starts_of(sizes)
    columns = parse_run(data, starts)

    numbers = queue_offset + np.arange(len(sizes))
    patch(data, columns, numbers, log_offset, stamp(123_456, STORE))

    for index, start in enumerate(starts.tolist()):
        record = decode_record(data.tobytes(), start)
        assert record.queue_offset == columns.queue_offset[index] == queue_offset + index
        assert record.log_offset == columns.log_offset[index] == log_offset + start
        assert (record.store_timestamp_ms, record.store_host) == (123_456, STORE)
        assert (record.body, record.born_host) == parts[index]
        assert record.properties == {"KEYS": "a b"}


def test_equal_and_unequal_sizes_patch_alike() -> None:
    equal, sizes = run_of([b"abc"] * 5, [V4] * 5)
    columns = parse_run(equal, starts_of(sizes))
    patch(equal, columns, np.arange(7, 12), 1000, stamp(5, STORE))
    single = []
    for index in range(5):
        data, size = run_of([b"abc"], [V4])
        columns = parse_run(data, starts_of(size))
        patch(data, columns, np.array([7 + index]), 1000 + index * size[0], stamp(5, STORE))
        single.append(data.tobytes())

    assert equal.tobytes() == b"".join(single)


@pytest.mark.parametrize("sys_flag", [0x4, 0xC, 0x20], ids=["prepared", "rollback", "store v6"])
def test_what_has_no_place_in_a_queue_is_refused_by_index(sys_flag: int) -> None:
    data, sizes = run_of([b"a"] * 3, [V4] * 3)
    columns = parse_run(data, starts_of(sizes))
    columns.sys_flag[1] = sys_flag

    with pytest.raises(InvalidRecord, match="record 1 of the run: sysFlag"):
        check_appendable(columns)


def test_committed_and_plain_records_are_appendable() -> None:
    data, sizes = run_of([b"a"] * 3, [V4] * 3)
    columns = parse_run(data, starts_of(sizes))
    columns.sys_flag[1] = 0x8

    check_appendable(columns)
