"""A few records read one by one: the same as many at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketmq.proto import few_records, run_check
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.few_records import FEW_MAX, FewColumns, as_few, read_few
from pocketmq.proto.record import Host, encode_run
from pocketmq.proto.record_run import RunColumns, parse_run, starts_of

HOSTS = [Host.parse("127.0.0.1", 5000), Host.parse("::1", 5000)]
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
        return run_check.check_run(data, sizes, topic, queue)
    except PocketMQError as error:
        return error.message, error.details


def without_few(
    data: bytes, sizes: list[int], topic: str, queue: int
) -> tuple[str, object] | RunColumns:
    """Return the same by the way of many records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few_records, "FEW_MAX", 0)
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
    assert found[0].startswith("sizes: 2 records of together 110 bytes, at least 92 each")


@pytest.mark.parametrize(("count", "is_few"), [(1, True), (FEW_MAX, True), (FEW_MAX + 1, False)])
def test_up_to_the_limit_records_are_few(count: int, is_few: bool) -> None:
    data, sizes = encode_run("T", 3, [(b"a", b"")] * count, born_timestamp_ms=7, born_host=HOSTS[0])

    columns = run_check.check_run(data, sizes, "T", 3)

    assert (as_few(columns) is not None) is is_few
    assert len(columns) == count


@pytest.mark.parametrize("sizes", [[], [0], [-1], [91], [93]])
def test_sizes_at_the_edges_are_refused_by_name(sizes: list[int]) -> None:
    data, _ = encode_run("T", 3, [(b"", b"")], born_timestamp_ms=7, born_host=HOSTS[0])

    found = outcome(data, sizes, "T", 3)

    assert isinstance(found, tuple)
    message, details = found
    assert details["field"] == "sizes"  # type: ignore[index]
    assert f"{len(sizes)} records of together {sum(sizes)} bytes" in message


def test_the_usual_run_is_read_without_arrays() -> None:
    data, sizes = encode_run("T", 3, [(b"a", b"K\x01v")], born_timestamp_ms=7, born_host=HOSTS[0])

    columns = read_few(data, sizes, "T", 3)

    assert columns is not None
    assert as_few(columns) is columns
    assert columns.property_strings() == [b"K\x01v"]
    assert columns.properties_place(0) == (sizes[0] - 3, 3)


def test_arrays_that_were_asked_for_are_what_counts() -> None:
    data, sizes = encode_run("T", 3, [(b"a", b"")], born_timestamp_ms=7, born_host=HOSTS[0])
    columns = read_few(data, sizes, "T", 3)
    assert isinstance(columns, FewColumns)
    columns.queue_offset = np.array([9])

    assert columns.flag.tolist() == [0]

    assert as_few(columns) is None
    assert columns.queue_offset.tolist() == [9]
    assert as_few(parse_run(data, starts_of(sizes))) is None
