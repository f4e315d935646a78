"""Joining the records of queue entries, and getting past those that are not there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.record import (
    HOST_V6_EXTRA,
    LOG_OFFSET_AT,
    QUEUE_OFFSET_AT,
    SYS_BORN_V6,
    Host,
    encode_run,
)
from pocketmq.proto.record_run import HEAD_SIZE, starts_of
from pocketmq.proto.run import check_run
from pocketmq.proto.topics import RECORD_SIZE_MAX
from pocketmq.store.format.agreement import Entries, QueueName, compare
from pocketmq.store.message_store import MessageStore
from pocketmq.store.slices import read_entries, warn_of_missing

from ..runs import bodies_of, make_run, open_store

NAME = QueueName("T", 0)


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return open_store(tmp_path)


def entries_of(store: MessageStore, topic: str = "T") -> Entries:
    queue = store.queues.get(topic, 0)
    assert queue is not None
    columns = [queue.entries(at, 1) for at in range(queue.min_offset, queue.max_offset)]
    return Entries(
        queue.min_offset, *(np.concatenate(parts) for parts in zip(*columns, strict=True))
    )


def smash(store: MessageStore, log_offset: int) -> None:
    """Overwrite the head of a record, behind the store's back."""
    file = store.log.files.file_at(log_offset)
    assert file is not None
    with open(file.path, "r+b") as raw:
        raw.seek(log_offset - file.start)
        raw.write(b"\xff" * 8)


def test_adjacent_and_scattered_records_join_to_the_same_bytes(store: MessageStore) -> None:
    for number in range(30):
        store.append(make_run("T", 0, [b"t%d" % number] * (1 + number % 3)))
        if number % 2:
            store.append(make_run("U", 0, [b"u"]))
    entries = entries_of(store)

    records, rows, _ = read_entries(store.log, entries, NAME)

    assert len(rows) == len(entries)
    assert records == b"".join(
        store.read_at(offset) or b"" for offset in entries.log_offsets.tolist()
    )


@pytest.mark.parametrize("count", [3, 30])
def test_records_of_ipv6_senders_are_there_whatever_their_reconsume_times_say(
    count: int, store: MessageStore
) -> None:
    bodies = [b"%d" % number for number in range(count)]
    data, sizes = encode_run(
        "T",
        0,
        [(body, b"") for body in bodies],
        born_timestamp_ms=1,
        born_host=Host.parse("2001:db8::7", 4000),
        sys_flag=SYS_BORN_V6,
    )
    records = bytearray(data)
    for start in np.cumsum([0, *sizes[:-1]]).tolist():
        # Reconsume times: where a record of an IPv4 sender has its body's length.
        records[start + 84 : start + 88] = b"\xff" * 4
    store.append(check_run(bytes(records), sizes, "T", 0))

    assert bodies_of(store, "T", 0) == bodies


def test_a_smashed_record_is_left_out_and_read_past(
    store: MessageStore, caplog: pytest.LogCaptureFixture
) -> None:
    appended = store.append(make_run("T", 0, [b"%d" % number for number in range(10)]))
    smash(store, int(appended.log_offsets[4]))

    bodies = bodies_of(store, "T", 0)

    assert bodies == [b"%d" % number for number in range(10) if number != 4]
    assert "queue entries without their records" in caplog.text


def test_records_of_a_missing_log_file_are_left_out(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("T", 0, [b"x" * 900] * 12))
    names = sorted(os.listdir(tmp_path / "commitlog"))
    del store.log.files.files[1], store.log.files._starts[1]
    assert len(names) == 3

    assert bodies_of(store, "T", 0) == [b"x" * 900] * 8


def test_entries_that_make_no_sense_are_left_out(store: MessageStore) -> None:
    store.append(make_run("T", 0, [b"a", b"b"]))
    good = entries_of(store)
    nonsense = Entries(
        0,
        np.concatenate((good.log_offsets, [5, 1 << 60, 0])),
        np.concatenate((good.sizes, [100, 100, (1 << 31) - 1])),
        np.zeros(5, np.int64),
    )

    records, rows, _ = read_entries(store.log, nonsense, NAME)

    assert rows.tolist() == [0, 1]
    assert len(records) == good.sizes.sum()


def test_a_damaged_entry_that_asks_for_far_too_much_is_not_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, log_file_size_bytes=16 << 20)
    for _ in range(4):
        store.append(make_run("T", 0, [b"x" * (3 << 20)]))
    entries = entries_of(store)
    sizes = entries.sizes.copy()
    sizes[1] = RECORD_SIZE_MAX + 1

    asked = Entries(entries.first, entries.log_offsets, sizes, entries.tags_codes)
    found = read_entries(store.log, asked, NAME)
    warn_of_missing(asked, found)

    assert found.rows.tolist() == [0, 2, 3]
    assert len(found.records) == int(sizes[[0, 2, 3]].sum())
    assert "queue entries without their records" in caplog.text
    store.close()


def records_of(bodies: list[bytes], host: str = "127.0.0.1") -> tuple[bytearray, Entries]:
    """Return records with BODIES for queue 0 of T, end to end from log offset 0 on, and their entries."""
    born = Host.parse(host, 1)
    messages = [(body, b"KEYS\x01k\x02") for body in bodies]
    flags = SYS_BORN_V6 if born.is_v6 else 0
    data, sizes = encode_run("T", 0, messages, born_timestamp_ms=1, born_host=born, sys_flag=flags)
    records = bytearray(data)
    lengths = np.array(sizes)
    starts = starts_of(lengths)
    for number, start in enumerate(starts.tolist()):
        records[start + QUEUE_OFFSET_AT : start + QUEUE_OFFSET_AT + 8] = number.to_bytes(8, "big")
        records[start + LOG_OFFSET_AT : start + LOG_OFFSET_AT + 8] = start.to_bytes(8, "big")
    return records, Entries(0, starts, lengths, np.zeros_like(starts))


@pytest.mark.parametrize("order", [[0, 0, 2], [2, 0, 1], [1, 1], [29, 3] * 15])
def test_records_come_in_the_order_of_their_entries_and_as_often(
    store: MessageStore, order: list[int]
) -> None:
    store.append(make_run("T", 0, [b"%02d" % number for number in range(30)]))
    entries = entries_of(store).take(np.array(order))

    records, rows, _ = read_entries(store.log, entries, NAME, check_crcs=True)

    assert rows.tolist() == list(range(len(order)))
    assert records == b"".join(store.read_at(at) or b"" for at in entries.log_offsets.tolist())


@pytest.mark.parametrize("host", ["127.0.0.1", "2001:db8::7"])
@pytest.mark.parametrize("count", [5, 50, 100])
@pytest.mark.parametrize("body", [b"same size", b""])
def test_a_body_that_contradicts_its_crc_is_told_among_few_and_many(
    host: str, count: int, body: bytes
) -> None:
    bodies = [body, *(b"%d" % (number * number) for number in range(1, count - 1)), body]
    records, entries = records_of(bodies, host)
    at = int(entries.log_offsets[3]) + HEAD_SIZE + (HOST_V6_EXTRA if host != "127.0.0.1" else 0)

    sound = compare(bytes(records), entries.log_offsets, entries, NAME, check_crcs=True)
    records[at] ^= 1
    agrees, fits = compare(bytes(records), entries.log_offsets, entries, NAME, check_crcs=True)

    assert all(mask.all() for mask in (*sound, agrees))
    assert np.flatnonzero(~fits).tolist() == [3]


@given(st.data())
def test_records_are_judged_alike_one_by_one_and_together(data: st.DataObject) -> None:
    host = data.draw(st.sampled_from(["127.0.0.1", "2001:db8::7"]))
    bodies = data.draw(st.lists(st.binary(max_size=4), min_size=30, max_size=30))
    records, entries = records_of(bodies, host)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(records) - 1))
        records[at] = data.draw(st.integers(0, 255))
    numbers = data.draw(st.sampled_from([None, np.arange(30)]))
    name = data.draw(st.sampled_from([NAME, QueueName("T"), QueueName("U", 0)]))
    check_crcs = data.draw(st.booleans())
    whole = bytes(records)

    together = compare(whole, entries.log_offsets, entries, name, numbers, check_crcs=check_crcs)

    for row in range(30):
        one = [row]
        alone = compare(
            whole,
            entries.log_offsets[one],
            entries.take(np.array(one)),
            name,
            None if numbers is None else numbers[one],
            check_crcs=check_crcs,
        )
        assert [mask[0] for mask in alone] == [mask[row] for mask in together]
