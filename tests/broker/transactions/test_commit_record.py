"""The commit record's bytes, and what damage makes of them."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.transactions.commit_record import (
    CommitRecord,
    copies_in,
    copies_of,
    decode_commit,
    encode_commit,
    run_ids,
)
from pocketmq.proto.errors import CorruptRecord, MessageTooLarge
from pocketmq.proto.record import NO_HOST, Host, decode_record, encode_run
from pocketmq.proto.topics import COMMIT_TOPIC

from .committing import TARGET, request_of

CONTENT = request_of("c1", {0: (-1, 3)}, {(TARGET, 1): ["a", "b"]})


def test_a_record_has_this_form() -> None:
    record = decode_record(encode_commit(CONTENT, 6, 1_700_000_000_000, NO_HOST))

    covered = struct.pack(">q", 6) + CONTENT.SerializeToString()
    assert record.body == b"PMAC\x01" + struct.pack(">I", zlib.crc32(covered)) + covered
    assert (record.topic, record.queue_id) == (COMMIT_TOPIC, 0)
    assert record.properties == {"UNIQ_KEY": "c1"}
    assert record.sys_flag == 0
    found = decode_commit(replace(record, queue_offset=7, log_offset=5_000))
    assert found == CommitRecord(7, 5_000, 6, CONTENT)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_noticed(at: int, flip: int) -> None:
    record = decode_record(encode_commit(CONTENT, -1, 0, NO_HOST))
    body = bytearray(record.body)
    body[at % len(body)] ^= flip

    with pytest.raises(CorruptRecord, match=f"commit record {record.queue_offset}"):
        decode_commit(replace(record, body=bytes(body)))


@pytest.mark.parametrize("size", [0, 8, 16])
def test_a_body_that_is_too_short_is_noticed(size: int) -> None:
    record = decode_record(encode_commit(CONTENT, -1, 0, NO_HOST))

    with pytest.raises(CorruptRecord):
        decode_commit(replace(record, body=record.body[:size]))


def test_what_does_not_fit_a_message_is_refused() -> None:
    large = request_of("c1", {0: (-1, 3)}, {(TARGET, 0): ["x" * (1 << 20)] * 4})

    with pytest.raises(MessageTooLarge, match="the limit is 4194304"):
        encode_commit(large, -1, 0, NO_HOST)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_copies_name_their_record_and_are_otherwise_what_was_sent(host: str) -> None:
    data, sizes = encode_run(
        TARGET,
        1,
        [(b"body %d" % number, b"UNIQ_KEY\x01u%d\x02" % number) for number in range(4)],
        born_timestamp_ms=1,
        born_host=Host.parse(host, 5),
    )
    run = request_of("c", {}, {(TARGET, 1): ["a"]}).runs[0]
    run.records = data
    run.sizes[:] = sizes

    copies = copies_of(run, 77_000, {1, 3})

    found = [decode_record(copies.records, start) for start in copies.columns.starts.tolist()]
    assert run_ids(run) == ["u0", "u1", "u2", "u3"]
    assert [record.properties["UNIQ_KEY"] for record in found] == ["u1", "u3"]
    assert [record.prepared_transaction_offset for record in found] == [77_000, 77_000]
    sent = [decode_record(data, sum(sizes[:row])) for row in (1, 3)]
    assert [replace(record, prepared_transaction_offset=0) for record in found] == sent
    seen = list(copies_in(copies.records, copies.columns.sizes, [5, 77_000]))
    assert [(at, unique, row) for at, unique, row, _ in seen] == [
        (77_000, "u1", 0),
        (77_000, "u3", 1),
    ]
    assert list(copies_in(copies.records, copies.columns.sizes, [5])) == []
