"""Runs: how they are encoded, by the row and by the column, and how they are cut."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import Message, Queue
from pocketmq.client.message import OWN_PROPERTIES_SIZE, record_size
from pocketmq.client.producing import batch as batch_module
from pocketmq.client.producing.batch import ProducerBatch, ProducerIdentity
from pocketmq.client.producing.batch_parts import SinglesPart
from pocketmq.client.producing.receipt import SendFuture
from pocketmq.client.producing.sequences import BatchSequence
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import SendFailed
from pocketmq.proto.message_id import UniqueIds
from pocketmq.proto.record import NO_HOST, decode_record
from pocketmq.proto.run import check_run
from pocketmq.proto.topics import PROPERTIES_SIZE_MAX

from .fake_broker import cut

QUEUE = Queue("orders", "a", 3)
LONGEST = BatchSequence(2**31 - 1, 2**62)
PRODUCER_ID = 2**63 - 1


def origin() -> ProducerIdentity:
    return ProducerIdentity(
        NO_HOST, UniqueIds(lambda: 1_700_000_000_000, 7, Random(1)), VirtualClock(), PRODUCER_ID
    )


def row_of(messages: list[Message], futures: list[SendFuture]) -> SinglesPart:
    sizes = map(record_size, messages)
    return SinglesPart(messages, list(accumulate(sizes, initial=0)), futures)


def sealed(messages: list[Message], numbers: BatchSequence | None) -> ProducerBatch:
    run = ProducerBatch(QUEUE, 5, lambda _: None)
    run.add(row_of(messages, [SendFuture() for _ in messages]))
    run.sequence = numbers
    run.seal(origin())
    return run


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20),
    numbers=st.sampled_from([None, BatchSequence(0, 0), LONGEST]),
    options=st.sampled_from([{}, {"key": "k", "tag": "t"}, {"delay_level": 2}]),
)
def test_rows_and_columns_encode_the_same(
    bodies: list[bytes], numbers: BatchSequence | None, options: dict[str, Any]
) -> None:
    messages = [Message("orders", body, **options) for body in bodies]

    by_row = sealed(messages, numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_module, "_COLUMN_MIN", 1)
        by_column = sealed(messages, numbers)

    assert (by_row.records, by_row.sizes) == (by_column.records, by_column.sizes)
    assert list(by_row.ids) == list(by_column.ids)
    check_run(by_row.records, by_row.sizes, "orders", 3)


def test_the_longest_properties_leave_room_for_the_longest_numbers() -> None:
    room = PROPERTIES_SIZE_MAX - OWN_PROPERTIES_SIZE - len("name") - 2
    message = Message("orders", b"x", properties={"name": "v" * room})

    run = sealed([message] * 2, LONGEST)

    check_run(run.records, run.sizes, "orders", 3)
    assert len(message.property_string) == PROPERTIES_SIZE_MAX - OWN_PROPERTIES_SIZE


def test_a_run_that_is_numbered_anew_says_so_and_keeps_its_ids() -> None:
    run = sealed([Message("orders", b"%d" % number) for number in range(200)], BatchSequence(0, 0))
    ids = list(run.ids)

    run.sequence = BatchSequence(4, 0)
    run.seal(origin())

    first, *others = map(decode_record, cut(run.records, run.sizes))
    assert first.properties["PRODUCER_SEQUENCE"] == f"{PRODUCER_ID:x}:4:0:200"
    assert not any("PRODUCER_SEQUENCE" in record.properties for record in others)
    assert [record.properties["UNIQ_KEY"].encode() for record in (first, *others)] == ids


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8), data=st.data())
def test_the_parts_of_a_run_are_the_whole(sizes: list[int], data: st.DataObject) -> None:
    run = ProducerBatch(QUEUE, 5, lambda _: None)
    futures: list[SendFuture] = []
    for size in sizes:
        row = [Message("orders", b"x" * (at + 1)) for at in range(size)]
        own = [SendFuture() for _ in row]
        futures += own
        run.add(row_of(row, own))
    run.sequence = BatchSequence(2, 50)
    run.seal(origin())
    count = len(run.messages)
    if count == 1:
        assert run.middle(within_a_sender=False) == 0
        return
    at = data.draw(st.sampled_from([run.middle(within_a_sender=False), 1, count - 1]))

    first, second = run.split(at)

    assert [*first.messages, *second.messages] == run.messages
    assert list(first.ids) + list(second.ids) == list(run.ids)
    assert first.size_bytes + second.size_bytes == run.size_bytes
    assert (first.sequence, second.sequence) == (BatchSequence(2, 50), BatchSequence(2, 50 + at))
    second.fail(SendFailed("no"))
    assert [future.done() for future in futures] == [False] * at + [True] * (count - at)
