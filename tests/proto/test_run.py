"""Runs: a few records read and patched one by one are the same as many at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto import run
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.record import Host, Record, decode_record, encode_record, encode_run
from pocketmq.proto.record_run import RunColumns, parse_run, walk
from pocketmq.proto.run import FEW_MAX, Run, check_run, stamp, stored_runs

from ..c_core import pure_code


@pytest.fixture(autouse=True, scope="module")
def python_code() -> Iterator[None]:
    """The C core reads no batch: test_speedups.py compares it with what is tested here."""
    with pure_code():
        yield


HOSTS = [Host.parse("127.0.0.1", 5000), Host.parse("::1", 5000)]
STORE = Host.parse("10.1.2.3", 8081)
MESSAGES = st.lists(
    st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=60)),
    min_size=1,
    max_size=FEW_MAX + 1,
)


def outcome(
    data: bytes, sizes: list[int], topic: str, queue: int
) -> tuple[str, object] | RunColumns:
    """Return the columns, or what is wrong."""
    try:
        return check_run(data, sizes, topic, queue).columns
    except PocketMQError as error:
        return error.message, error.details


def without_few(
    data: bytes, sizes: list[int], topic: str, queue: int
) -> tuple[str, object] | RunColumns:
    """Return the same by the way of many records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "FEW_MAX", 0)
        patch.setattr(run, "_ALIKE_MAX", 0)
        return outcome(data, sizes, topic, queue)


def assert_same(
    found: tuple[str, object] | RunColumns, wanted: tuple[str, object] | RunColumns
) -> None:
    if not isinstance(found, RunColumns) or not isinstance(wanted, RunColumns):
        assert found == wanted
        return
    for name in RunColumns.__slots__:
        one, other = getattr(found, name), getattr(wanted, name)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other), name


@given(
    messages=MESSAGES,
    host=st.sampled_from(HOSTS),
    sys_flag=st.sampled_from([0, 1, 2, 4, 8, 12, 0x40, 0x80, 0x301]),
    topic=st.sampled_from(["T", "t" * 127, "t" * 128, "ü"]),
)
def test_good_runs_have_the_same_columns(
    messages: list[tuple[bytes, bytes]], host: Host, sys_flag: int, topic: str
) -> None:
    data, sizes = encode_run(
        topic, 3, messages, born_timestamp_ms=7, born_host=host, sys_flag=sys_flag
    )

    assert_same(outcome(data, sizes, topic, 3), without_few(data, sizes, topic, 3))


@given(
    messages=MESSAGES,
    at=st.integers(0, 300),
    byte=st.integers(0, 255),
    sizes_off=st.sampled_from([0, 0, 0, 1, -1]),
    queue=st.sampled_from([3, 3, 3, 4]),
    topic=st.sampled_from(["T", "T", "T", "U", "TT"]),
)
def test_damaged_runs_are_refused_alike(
    messages: list[tuple[bytes, bytes]],
    at: int,
    byte: int,
    sizes_off: int,
    queue: int,
    topic: str,
) -> None:
    whole, sizes = encode_run("T", 3, messages, born_timestamp_ms=7, born_host=HOSTS[0])
    damaged = bytearray(whole)
    damaged[at % len(damaged)] = byte
    sizes[-1] += sizes_off
    data = bytes(damaged)

    assert_same(outcome(data, sizes, topic, queue), without_few(data, sizes, topic, queue))


@given(
    messages=MESSAGES,
    moved=st.lists(
        st.tuples(
            st.integers(0, FEW_MAX), st.integers(0, FEW_MAX), st.integers(-(1 << 31), 1 << 31)
        ),
        max_size=3,
    ),
    cut=st.integers(0, 100),
)
def test_sizes_that_only_together_are_right_are_refused_alike(
    messages: list[tuple[bytes, bytes]], moved: list[tuple[int, int, int]], cut: int
) -> None:
    whole, sizes = encode_run("T", 3, messages, born_timestamp_ms=7, born_host=HOSTS[0])
    data = whole[: max(0, len(whole) - cut)]
    sizes.append(len(data) - len(whole))
    for taken, given_to, size in moved:
        sizes[taken % len(sizes)] -= size
        sizes[given_to % len(sizes)] += size

    assert sum(sizes) == len(data)
    assert_same(outcome(data, sizes, "T", 3), without_few(data, sizes, "T", 3))


def test_a_record_that_says_it_ends_behind_the_data_is_refused_by_the_sizes() -> None:
    whole, (size,) = encode_run("T", 3, [(b"a" * 20, b"")], born_timestamp_ms=7, born_host=HOSTS[0])
    without_properties_size = (1000).to_bytes(4) + whole[4 : size - 2]
    sizes = [1000, len(without_properties_size) - 1000]

    found = outcome(without_properties_size, sizes, "T", 3)

    assert isinstance(found, tuple)
    assert found[0].startswith("sizes: 2 records with 110 bytes in all, at least 92 each")


@pytest.mark.parametrize(("count", "is_small"), [(1, True), (FEW_MAX, True), (FEW_MAX + 1, False)])
def test_up_to_the_limit_records_are_few(count: int, is_small: bool) -> None:
    data, sizes = encode_run("T", 3, [(b"a", b"")] * count, born_timestamp_ms=7, born_host=HOSTS[0])

    run = check_run(data, sizes, "T", 3)

    assert run.is_small is is_small
    assert len(run) == count


@pytest.mark.parametrize("sizes", [[], [0], [-1], [91], [93]])
def test_sizes_at_the_edges_are_refused_by_name(sizes: list[int]) -> None:
    data, _ = encode_run("T", 3, [(b"", b"")], born_timestamp_ms=7, born_host=HOSTS[0])

    found = outcome(data, sizes, "T", 3)

    assert isinstance(found, tuple)
    message, details = found
    assert details["field"] == "sizes"  # type: ignore[index]
    assert f"{len(sizes)} records with {sum(sizes)} bytes in all" in message


def test_the_usual_run_tells_its_properties_without_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    data, sizes = encode_run(
        "T", 3, [(b"a", b"K\x01v\x02"), (b"DELAY", b"")], born_timestamp_ms=7, born_host=HOSTS[0]
    )

    with monkeypatch.context() as patch:
        patch.setattr(run, "parse_run", None)
        few = check_run(data, sizes, "T", 3)

        assert (few.property_string(0), few.property_string(1)) == (b"K\x01v\x02", b"")
        assert few.properties_if_small() == [{b"K": b"v"}, {}]
        assert not few.may_have([b"DELAY"]), "a body is no property"
        assert few.may_have([b"x", b"K"])
        assert few.sizes.tolist() == sizes
    assert few.properties.texts("K") == ["v", None]


RECORDS = st.lists(
    st.tuples(st.binary(min_size=1, max_size=40), st.sampled_from(HOSTS)), min_size=1
)


def records_of(parts: list[tuple[bytes, Host]]) -> list[bytes]:
    return [
        encode_record(Record(topic="T", body=body, born_host=host, properties={"KEYS": "a b"}))
        for body, host in parts
    ]


@pytest.mark.parametrize("early", [False, True], ids=["columns later", "columns before"])
@given(RECORDS, st.integers(0, 2**40), st.integers(0, 2**50))
def test_patched_records_decode_to_the_given_fields(
    early: bool, parts: list[tuple[bytes, Host]], queue_offset: int, log_offset: int
) -> None:
    records = records_of(parts)
    sizes = [len(record) for record in records]
    own = check_run(b"".join(records), sizes, "T", 0)
    data = bytearray(own.records)
    assert not early or own.columns.log_offset.tolist() == [0] * len(records)

    own.patch(memoryview(data), queue_offset, log_offset, stamp(123_456, STORE))

    at = 0
    for index, size in enumerate(sizes):
        record = decode_record(data, at)
        assert record.queue_offset == own.columns.queue_offset[index] == queue_offset + index
        assert record.log_offset == own.columns.log_offset[index] == log_offset + at
        assert own.log_offsets[index] == log_offset + at
        assert (record.store_timestamp_ms, record.store_host) == (123_456, STORE)
        assert own.columns.store_ms[index] == 123_456
        assert (record.body, record.born_host) == parts[index]
        assert record.properties == {"KEYS": "a b"}
        at += size
    assert (own.first, own.end_offset) == (queue_offset, log_offset + at)


def test_equal_and_unequal_sizes_patch_alike() -> None:
    (record,) = records_of([(b"abc", HOSTS[0])])
    equal = Run.of("T", 0, [record] * 5)
    together = bytearray(equal.records)
    equal.patch(memoryview(together), 7, 1000, stamp(5, STORE))
    single = b""
    for index in range(5):
        alone, data = Run.of("T", 0, [record]), bytearray(record)
        alone.patch(memoryview(data), 7 + index, 1000 + index * len(record), stamp(5, STORE))
        single += data

    assert together == single


@given(RECORDS, st.data())
def test_a_part_of_a_run_is_a_run(parts: list[tuple[bytes, Host]], data: st.DataObject) -> None:
    records = records_of(parts)
    begin = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(begin + 1, len(records)))

    part = Run.of("T", 0, records).part(begin, end)

    assert bytes(part.records) == b"".join(records[begin:end])
    assert_same(part.columns, Run.of("T", 0, records[begin:end]).columns)


@given(
    records=st.lists(
        st.builds(
            Record,
            topic=st.sampled_from(["T", "U", "t" * 128]),
            body=st.binary(min_size=1, max_size=40),
            queue_id=st.integers(0, 1),
            queue_offset=st.integers(5, 7),
            store_timestamp_ms=st.integers(1, 2),
            sys_flag=st.sampled_from([0, 0, 0, 1, 4, 8]),
            properties=st.sampled_from([{}, {"KEYS": "a b", "TAGS": "t"}]),
        ),
        min_size=1,
        max_size=FEW_MAX + 1,
    ),
    begin=st.integers(0, 1000),
    flip=st.none() | st.tuples(st.integers(0, 400), st.integers(1, 255)),
    cut=st.sampled_from([0, 0, 1, 50]),
)
def test_a_few_records_of_a_log_are_what_many_would_be(
    records: list[Record], begin: int, flip: tuple[int, int] | None, cut: int
) -> None:
    data = b""
    for record in records:
        data += encode_record(replace(record, log_offset=begin + len(data)))
    if flip is not None and flip[0] < len(data):
        at, value = flip
        data = data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]
    data = data[: len(data) - cut]

    runs = stored_runs(data, begin)

    usual = not cut and len(records) <= FEW_MAX and flip is None
    if usual and all(one.topic != "t" * 128 and one.sys_flag < 4 for one in records):
        assert runs is not None
    if runs is None:
        return
    starts, end = walk(data)
    columns = parse_run(data, starts)
    assert end == len(data)
    assert columns.well_formed.all()
    placed = [place for run in runs for place in run._places or ()]
    assert [place.start for place in placed] == starts.tolist()
    assert [place.size for place in placed] == columns.sizes.tolist()
    assert [place.properties_start for place in placed] == columns.properties_start.tolist()
    offsets = np.concatenate([run.log_offsets for run in runs])
    assert offsets.tolist() == columns.log_offset.tolist() == (starts + begin).tolist()
    numbers = np.concatenate([run.first + np.arange(len(run)) for run in runs])
    assert numbers.tolist() == columns.queue_offset.tolist()
    said = [(run.topic, run.queue, run.store_ms) for run in runs for _ in range(len(run))]
    topics = [
        data[at : at + size].decode("utf-8", "replace")
        for at, size in zip(columns.topic_start, columns.topic_size, strict=True)
    ]
    assert said == list(
        zip(topics, columns.queue_id.tolist(), columns.store_ms.tolist(), strict=True)
    )
    assert runs[-1].end_offset == begin + len(data)
