"""What the log tells of numbered runs: whole ones, torn ones, waiting ones, and copies that do not count."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pocketmq.broker.producers import found_runs as module
from pocketmq.broker.producers.found_runs import FoundRun, found_runs
from pocketmq.proto.record import SYS_COMMIT, SYS_FLAG_AT, SYS_ROLLBACK, Record
from pocketmq.proto.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pocketmq.store.message_store import MessageStore

from ...numbered import bodies
from ...runs import Hand, append_record, make_run, open_store

NAME = "PRODUCER_SEQUENCE"


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def store(tmp_path: Path, clock: Hand) -> Iterator[MessageStore]:
    with_files = open_store(tmp_path, now_ms=clock)
    yield with_files
    with_files.close()


def found(store: MessageStore, begin: int = 0) -> list[FoundRun]:
    return list(found_runs(store.log, begin, store.max_log_offset))


def numbers(store: MessageStore) -> list[tuple[object, ...]]:
    """Return key, epoch and stored intervals of each run that is found."""
    return [(one.key, one.epoch, one.stored.intervals()) for one in found(store)]


def append(
    store: MessageStore, topic: str, queue: int, said: str, count: int = 1, **others: Any
) -> None:
    """Append COUNT records, of which the first SAID its number; OTHERS are further properties of it."""
    properties = [{NAME: said, **others}, *({} for _ in range(count - 1))]
    store.append(make_run(topic, queue, bodies(0, count), properties))


def test_a_run_is_found_where_it_lies(store: MessageStore) -> None:
    store.append(make_run("T", 1, [b"other"]))
    append(store, "T", 1, "a:0:0:3", 3)

    (run,) = found(store)

    assert run.key == (10, "T", 1)
    stored = run.stored
    assert (stored.first, stored.count, stored.queue_offset) == (0, 3, 1)
    assert store.read_at(stored.log_offset) is not None
    assert stored.end_offset == store.max_log_offset
    assert stored.log_offsets is None


def test_a_run_goes_on_in_the_next_file(store: MessageStore) -> None:
    append(store, "T", 0, "a:0:0:100", 100)

    assert len(store.log.files.files) > 2
    assert numbers(store) == [((10, "T", 0), 0, [(0, 100)])]
    assert found(store)[0].stored.end_offset == store.max_log_offset


def test_reading_begins_where_it_is_told_to(store: MessageStore) -> None:
    append(store, "T", 0, "a:0:0:3", 3)
    begin = store.max_log_offset
    append(store, "T", 0, "a:0:3:2", 2)

    assert [run.stored.first for run in found(store, begin)] == [3]


def test_of_a_torn_run_only_what_is_there_counts(store: MessageStore, clock: Hand) -> None:
    append(store, "T", 0, "a:0:0:5", 3)
    clock.now_ms += 1
    store.append(make_run("T", 0, [b"somebody else's"] * 4))

    assert numbers(store) == [((10, "T", 0), 0, [(0, 3)])]


def test_another_topic_with_the_same_offsets_does_not_complete_a_torn_run(
    store: MessageStore,
) -> None:
    store.append(make_run("U", 0, [b"x"] * 3))
    append(store, "T", 0, "a:0:0:5", 3)
    store.append(make_run("U", 0, [b"somebody else's"] * 2))

    assert numbers(store) == [((10, "T", 0), 0, [(0, 3)])]


def test_a_record_with_its_own_number_does_not_belong_to_the_run_before(
    store: MessageStore,
) -> None:
    append(store, "T", 0, "a:0:0:5", 3)
    append(store, "T", 0, "b:0:0:2", 2)

    assert numbers(store) == [((10, "T", 0), 0, [(0, 3)]), ((11, "T", 0), 0, [(0, 2)])]


def roll_back(store: MessageStore, log_offset: int) -> None:
    """Make a record what recovery makes of a damaged one."""
    file = store.log.files.file_at(log_offset)
    assert file is not None
    at = log_offset - file.start + SYS_FLAG_AT
    file.put(at, struct.pack(">i", SYS_ROLLBACK))


def test_what_recovery_skipped_is_missing(store: MessageStore) -> None:
    append(store, "T", 0, "a:0:0:5", 5)
    first = found(store)[0].stored.log_offset
    size = store.log.record_size(first)
    assert size is not None
    second = store.log.record_size(first + size)
    assert second is not None
    roll_back(store, first + size + second)

    (run,) = found(store)

    assert run.stored.intervals() == [(0, 2), (3, 5)]
    assert run.stored.log_offsets is not None


def test_records_with_their_own_numbers_are_one_run_wherever_they_wait(
    store: MessageStore,
) -> None:
    own = [f"a:0:{n}:1" for n in range(4)]
    target: dict[str, Any] = {"REAL_TOPIC": "T", "REAL_QID": "3"}
    append(store, "T", 3, own[0])
    append(store, "T", 3, own[3])
    append(store, SCHEDULE_TOPIC, 2, own[1], DELAY="3", **target)
    append(store, TIMER_TOPIC, 0, own[2], TIMER_OUT_MS="5000", **target)

    (run,) = found(store)

    assert (run.key, run.stored.intervals()) == ((10, "T", 3), [(0, 4)])
    offsets = run.stored.log_offsets
    assert offsets is not None
    assert np.argsort(offsets).tolist() == [0, 3, 1, 2]


def test_a_half_message_counts_for_its_real_queue(store: MessageStore) -> None:
    append(store, HALF_TOPIC, 0, "a:0:0:1", REAL_TOPIC="T", REAL_QID="2", TRAN_MSG="true")

    assert numbers(store) == [((10, "T", 2), 0, [(0, 1)])]


@pytest.mark.parametrize(
    ("topic", "properties"),
    [
        ("T", {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": "1"}),
        ("T", {"REAL_TOPIC": "T", "REAL_QID": "0", "DELAY": "3"}),
        ("%RETRY%G", {}),
        ("%DLQ%G", {}),
        (SCHEDULE_TOPIC, {"REAL_TOPIC": "%RETRY%G", "REAL_QID": "0", "DELAY": "3"}),
        (SCHEDULE_TOPIC, {"DELAY": "3"}),
        (TIMER_TOPIC, {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_ROLL_TIMES": "1"}),
        (HALF_TOPIC, {"REAL_TOPIC": "T", "REAL_QID": "0", "TRANSACTION_CHECK_TIMES": "1"}),
    ],
)
def test_copies_that_a_broker_made_do_not_count(
    store: MessageStore, topic: str, properties: dict[str, Any]
) -> None:
    append(store, topic, 0, "a:0:0:1", **properties)

    assert found(store) == []


@pytest.mark.parametrize(
    "fields", [{"reconsume_times": 1}, {"sys_flag": SYS_COMMIT, "prepared_transaction_offset": 7}]
)
def test_retried_and_committed_copies_do_not_count(
    store: MessageStore, fields: dict[str, Any]
) -> None:
    append_record(
        store,
        Record(topic="T", body=b"x", properties={NAME: "a:0:0:1"}, born_timestamp_ms=1, **fields),
    )

    assert found(store) == []


def test_the_name_in_a_body_or_in_another_name_is_no_number(store: MessageStore) -> None:
    store.append(make_run("T", 0, [b"PRODUCER_SEQUENCE\x01a:0:0:1\x02"], {"KEYS": "k"}))
    store.append(make_run("T", 0, [b"x"], {"XPRODUCER_SEQUENCE": "a:0:0:1"}))
    store.append(make_run("T", 0, [b"x"], {NAME: "nonsense"}))

    assert found(store) == []


#: A run: queue, producer, number of records; or None for a record without a number.
RUNS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 9), st.booleans()),
    max_size=30,
)


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sent=RUNS, chunk=st.sampled_from([1, 2, 3, 7, 100]), begin_at=st.integers(0, 30))
def test_all_that_was_sent_is_found_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
    sent: list[tuple[int, int, int, bool]],
    chunk: int,
    begin_at: int,
) -> None:
    clock = Hand()
    store = open_store(tmp_path_factory.mktemp("store"), now_ms=clock)
    next_number: dict[tuple[int, str, int], int] = {}
    expected: list[tuple[object, ...]] = []
    begin = 0
    for index, (queue, producer, count, is_numbered) in enumerate(sent):
        if index == begin_at:
            begin, expected = store.max_log_offset, []
        clock.now_ms += 1
        if not is_numbered:
            store.append(make_run("T", queue, bodies(0, count)))
            continue
        key = (producer, "T", queue)
        first = next_number.get(key, 0)
        append(store, "T", queue, f"{producer:x}:0:{first}:{count}", count)
        next_number[key] = first + count
        expected.append((key, 0, [(first, first + count)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)

        assert [
            (one.key, one.epoch, one.stored.intervals()) for one in found(store, begin)
        ] == expected
    store.close()
