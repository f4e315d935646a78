"""Batches: a sequence like a list of the same messages, and columns that agree with the messages."""

from __future__ import annotations

import builtins
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.client.message_batch import NO_MESSAGES, MessageBatch
from pocketmq.client.received_message import FetchedRun
from pocketmq.proto.errors import ConfigError, InvalidArgument
from pocketmq.proto.record import COMPRESSION_ZLIB, SYS_COMPRESSED, Record, encode_record

words = st.sampled_from(["", "a", "b", "a b", "é", "A" * 40])
records = st.builds(
    lambda body, tag, keys, other, offset, compressed: Record(
        topic="orders",
        body=zlib.compress(body) if compressed else body,
        sys_flag=(SYS_COMPRESSED | COMPRESSION_ZLIB) * compressed,
        queue_offset=offset,
        log_offset=offset * 100,
        born_timestamp_ms=offset + 1,
        store_timestamp_ms=offset + 2,
        reconsume_times=offset % 3,
        properties={
            name: value for name, value in (("TAGS", tag), ("KEYS", keys), ("o", other)) if value
        },
    ),
    st.binary(min_size=1, max_size=20),
    words,
    words,
    words,
    st.integers(0, 1000),
    st.booleans(),
)


def batch_of(rows: Sequence[Record]) -> MessageBatch:
    return MessageBatch(FetchedRun("broker-a", b"".join(map(encode_record, rows))))


def bodies_of(*bodies: bytes, **fields: Any) -> MessageBatch:
    return batch_of([Record(topic="orders", body=body, **fields) for body in bodies])


@given(st.lists(records, max_size=6), st.data())
def test_a_batch_is_the_sequence_of_its_messages(rows: list[Record], data: st.DataObject) -> None:
    whole = batch_of(rows)
    begin, end = (data.draw(st.none() | st.integers(-8, 8)) for _ in range(2))

    batch, messages = whole[begin:end], list(whole)[begin:end]

    assert len(batch) == len(messages)
    assert batch == messages
    assert list(batch) == messages
    assert [batch[index] for index in range(-len(messages), len(messages))] == messages * 2
    assert bool(batch) == bool(messages)


@given(st.lists(records, max_size=6), st.integers(0, 6))
def test_columns_agree_with_the_messages(rows: list[Record], begin: int) -> None:
    batch = batch_of(rows)[begin:]
    columns = batch.columns

    assert columns.queue_offset.tolist() == [message.queue_offset for message in batch]
    assert columns.log_offset.tolist() == [message.log_offset for message in batch]
    assert columns.born_ms.tolist() == [message.born_timestamp_ms for message in batch]
    assert columns.store_ms.tolist() == [message.store_timestamp_ms for message in batch]
    assert list(batch.bodies) == [message.body for message in batch]
    assert batch.bodies[:] == list(batch.bodies)
    assert [batch.bodies[row] for row in range(len(batch))] == list(batch.bodies)
    assert batch.tags == [message.tag for message in batch]
    assert batch.keys == [message.keys for message in batch]
    assert batch.property_values("o") == [message.properties.get("o") for message in batch]


def test_messages_of_different_fetches_differ() -> None:
    one, other = bodies_of(b"x"), bodies_of(b"x")

    assert one[0] == one[0]
    assert hash(one[0]) == hash(one[0])
    assert one[0] != other[0]
    assert one != other
    assert one != "x"


def test_an_index_outside_and_a_step_are_refused() -> None:
    batch = bodies_of(b"x", b"y")

    with pytest.raises(IndexError):
        batch[2]
    with pytest.raises(InvalidArgument, match="slice is 2"):
        batch[::2]


def test_no_messages_are_an_empty_batch() -> None:
    assert NO_MESSAGES == []
    assert not NO_MESSAGES
    assert (NO_MESSAGES.tags, NO_MESSAGES.keys, list(NO_MESSAGES.bodies)) == ([], [], [])
    assert NO_MESSAGES.body_matrix().shape == (0, 0)


def test_bodies_in_records_of_one_size_make_a_matrix_without_a_copy() -> None:
    batch = bodies_of(b"abc", b"def", b"ghi")

    matrix = batch[1:].body_matrix()

    assert [row.tobytes() for row in matrix] == [b"def", b"ghi"]
    assert np.shares_memory(matrix, np.frombuffer(batch.data, np.uint8))
    assert not matrix.flags.writeable


def test_bodies_of_one_size_in_records_of_several_make_a_matrix_too() -> None:
    rows = [Record(topic="o", body=b"ab", properties={"TAGS": "x" * n}) for n in (1, 5, 2)]

    matrix = batch_of(rows).body_matrix()

    assert [row.tobytes() for row in matrix] == [b"ab"] * 3
    assert not matrix.flags.writeable


def test_bodies_of_several_sizes_and_compressed_ones_make_no_matrix() -> None:
    compressed = bodies_of(zlib.compress(b"x"), sys_flag=SYS_COMPRESSED | COMPRESSION_ZLIB)

    with pytest.raises(InvalidArgument, match="between 1 and 2 bytes"):
        bodies_of(b"a", b"bc").body_matrix()
    with pytest.raises(InvalidArgument, match="compressed"):
        compressed.body_matrix()


@given(st.lists(records, max_size=6))
def test_arrow_has_the_messages(rows: list[Record]) -> None:
    pytest.importorskip("pyarrow")
    batch = batch_of(rows)

    table = batch.to_arrow().to_pydict()

    assert table["body"] == list(batch.bodies)
    assert table["tag"] == batch.tags
    assert table["keys"] == [list(keys) for keys in batch.keys]
    assert table["queue_offset"] == batch.columns.queue_offset.tolist()
    assert table["reconsume_times"] == [message.reconsume_times for message in batch]
    assert [round(born.timestamp() * 1000) for born in table["born"]] == [
        message.born_timestamp_ms for message in batch
    ]


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    before = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name == "pyarrow":
            raise ImportError(name)
        return before(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)

    with pytest.raises(ConfigError, match=r"pip install .*\[arrow\]"):
        bodies_of(b"x").to_arrow()
