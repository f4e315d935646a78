"""The C core: every output is that of the Python code, whatever the bytes and lengths are."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from pocketmq.proto import speedups
from pocketmq.proto.body_run import BodyOrigin, encode_bodies, encode_in_core
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.message_id import UniqueIdRow
from pocketmq.proto.property_ranges import PropertyRanges, tags_codes
from pocketmq.proto.record import Host, encode_run
from pocketmq.proto.record_run import RunColumns
from pocketmq.proto.run import Run, check_run, stamp
from pocketmq.proto.scanned import _HINTS, ScannedRecords, key_seeds, scan
from pocketmq.store.format.queues import ENTRY
from pocketmq.store.message_keys import keys_of

from ..c_core import need_core, pure_code

V4 = Host.parse("10.1.2.3", 5000)
V6 = Host.parse("fe80::1", 5000)
TOPICS = ["T", "orders", "ü", "t" * 127]
#: One property or part of one: names that count, values of every kind, and what is none.
NAMES = [
    b"UNIQ_KEY",
    b"KEYS",
    b"TAGS",
    b"x",
    b"UNIQ_KEY2",
    b"",
    b"xTIMER_DELETE",
    b"DELAY",
    b"\xff",
]
VALUES = st.sampled_from(
    [b"", b"a", b"a b", b" a  b ", "ü😀".encode(), b"\xff\xc3", b"a\x01b", b"v" * 600]
) | st.binary(max_size=12)
PROPERTIES = st.one_of(
    st.just(b"UNIQ_KEY\x01AC110001\x02TAGS\x01paid\x02"),
    st.lists(
        st.builds(bytes.__add__, st.sampled_from([name + b"\x01" for name in NAMES]), VALUES),
        max_size=6,
    ).map(b"\x02".join),
    st.binary(max_size=30),
)
Messages: TypeAlias = list[tuple[bytes, bytes]]
MESSAGES = st.lists(
    st.tuples(st.binary(min_size=1, max_size=40), PROPERTIES), min_size=2, max_size=30
)


@pytest.fixture(scope="module")
def core() -> speedups.Core:
    return need_core()


def encoded(
    messages: Messages, topic: str, host: Host = V4, flag: int = 0
) -> tuple[bytes, list[int]]:
    return encode_run(topic, 3, messages, born_timestamp_ms=7, born_host=host, sys_flag=flag)


def outcome(data: bytes, sizes: Sequence[int], topic: str, queue: int) -> Run | tuple[str, object]:
    """Return the batch, or what is wrong with it."""
    try:
        return check_run(data, sizes, topic, queue)
    except PocketMQError as error:
        return error.message, error.details


def pure_outcome(
    data: bytes, sizes: Sequence[int], topic: str, queue: int
) -> Run | tuple[str, object]:
    with pure_code():
        return outcome(data, sizes, topic, queue)


def assert_same(found: Run | tuple[str, object], wanted: Run | tuple[str, object]) -> None:
    """Compare all that can be known of two batches before they are stored."""
    if not isinstance(found, Run) or not isinstance(wanted, Run):
        assert found == wanted
        return
    for name in RunColumns.__slots__:
        assert np.array_equal(getattr(found.columns, name), getattr(wanted.columns, name)), name
    assert len(found) == len(wanted)
    assert found.is_standard >= wanted.is_standard
    assert found.sizes.tolist() == wanted.sizes.tolist()
    assert found.size_range == wanted.size_range
    for row in range(len(wanted)):
        assert found.property_string(row) == wanted.property_string(row)
    if found.scanned is not None:
        assert_scanned(found.scanned, wanted)


def assert_scanned(scanned: ScannedRecords, wanted: Run) -> None:
    ranges = PropertyRanges(wanted.records, wanted.columns)
    keys = keys_of(wanted.records, wanted.columns, wanted.topic, ranges)
    hashes, rows = scanned.keys()
    assert hashes.tolist() == keys.hashes.tolist()
    assert rows.tolist() == keys.rows.tolist()
    assert scanned.key_count == len(keys.rows)
    if scanned.key_count:
        assert scanned.last_keyed() == int(wanted.columns.starts[keys.rows[-1]])
    codes = tags_codes(wanted.records, ranges)
    assert scanned.tags_codes().tolist() == codes.tolist()
    names = [
        pair.partition(b"\x01")[0]
        for row in range(len(wanted))
        for pair in wanted.property_string(row).split(b"\x02")
        if pair.partition(b"\x01")[0] and pair.partition(b"\x01")[2]
    ]
    assert scanned.may_have(_HINTS) == any(hint in name for name in names for hint in _HINTS)


@given(MESSAGES, st.sampled_from(TOPICS))
@example([(b"a", b"KEYS\x01" + b"a " * 300)] * 2, "T")
def test_a_batch_is_read_as_by_the_python_code(
    core: speedups.Core, messages: Messages, topic: str
) -> None:
    data, sizes = encoded(messages, topic)

    found = check_run(data, sizes, topic, 3)

    assert found.scanned is not None
    assert_same(found, pure_outcome(data, sizes, topic, 3))


@given(
    messages=MESSAGES,
    changes=st.lists(st.tuples(st.integers(0, 1 << 14), st.integers(0, 255)), max_size=3),
    cut=st.sampled_from([0, 0, 0, 1, 50, 10_000]),
    moved=st.sampled_from([0, 0, 0, 1, -1, 1 << 31, -(1 << 31), 1 << 62]),
    queue=st.sampled_from([3, 3, 3, 4, -1]),
    topic=st.sampled_from(["T", "T", "T", "U", "TT"]),
)
def test_a_damaged_batch_has_the_same_fate(
    core: speedups.Core,
    messages: Messages,
    changes: list[tuple[int, int]],
    cut: int,
    moved: int,
    queue: int,
    topic: str,
) -> None:
    whole, sizes = encoded(messages, "T")
    damaged = bytearray(whole)
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    data = bytes(damaged[: max(0, len(damaged) - cut)])
    sizes[0] += moved
    sizes[-1] -= moved

    assert_same(outcome(data, sizes, topic, queue), pure_outcome(data, sizes, topic, queue))


def test_a_change_of_any_byte_has_the_same_fate(core: speedups.Core) -> None:
    string = "UNIQ_KEY\x01AC11\x02TAGS\x01ü\x02KEYS\x01a b\x02DELAY\x013\x02".encode()
    whole, sizes = encoded([(b"abc", string)] * 3, "T")
    for at in range(sizes[0], 2 * sizes[0]):
        for change in (0x41, 0x80, 0xFF):
            data = whole[:at] + bytes((whole[at] ^ change,)) + whole[at + 1 :]

            assert_same(outcome(data, sizes, "T", 3), pure_outcome(data, sizes, "T", 3))


@pytest.mark.parametrize("field", [0, 8, 12, 36, 84])
@pytest.mark.parametrize("value", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFA0])
def test_lengths_that_overflow_have_the_same_fate(
    core: speedups.Core, field: int, value: int
) -> None:
    whole, sizes = encoded([(b"abc", b"KEYS\x01a\x02")] * 3, "T")
    for row in range(3):
        at = row * sizes[0] + field
        data = whole[:at] + value.to_bytes(4, "big") + whole[at + 4 :]

        assert_same(outcome(data, sizes, "T", 3), pure_outcome(data, sizes, "T", 3))


@pytest.mark.parametrize(
    ("host", "flag", "topic"),
    [(V6, 0, "T"), (V4, 4, "T"), (V4, 0x40, "T"), (V4, 0x80, "T"), (V4, 0, "t" * 128)],
)
def test_what_is_not_standard_is_left_to_the_python_code(
    core: speedups.Core, host: Host, flag: int, topic: str
) -> None:
    data, sizes = encoded([(b"a", b"KEYS\x01a\x02")] * 3, topic, host, flag)

    assert scan(data, sizes, topic, 3) is None
    assert_same(outcome(data, sizes, topic, 3), pure_outcome(data, sizes, topic, 3))


def test_batches_with_very_many_keys_are_left_to_the_python_code(core: speedups.Core) -> None:
    words = b"KEYS\x01" + b"a " * 16_000
    few, many = encoded([(b"a", words)] * 2, "T"), encoded([(b"a", words)] * 3, "T")

    assert scan(*few, "T", 3) is not None
    assert scan(*many, "T", 3) is None


SIZES: list[Any] = [[], [0], [-1, 1], [1 << 70], [-(1 << 70)], ["a"], [None], [1.5], [92] * 10_000]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("data", [b"", b"a" * 91, bytes(300)])
def test_sizes_of_any_kind_are_none_of_a_batch(
    core: speedups.Core, sizes: list[Any], data: bytes
) -> None:
    assert core.scan(data, sizes, (b"\x01T", 3, 0, 99, 999), (0, 0), (), 9) is None


@pytest.mark.parametrize("sizes", [7, None])
def test_sizes_must_be_a_sequence(core: speedups.Core, sizes: Any) -> None:
    with pytest.raises(TypeError):
        core.scan(bytes(300), sizes, (b"\x01T", 3, 0, 99, 999), (0, 0), (), 9)


@pytest.mark.parametrize(
    ("hints", "keys_max", "error"),
    [
        ((b"",), 9, ValueError),
        ((b"a",) * 17, 9, ValueError),
        (("a",), 9, TypeError),
        ((), -1, ValueError),
        ((), 1 << 40, ValueError),
    ],
)
def test_limits_of_a_scan_are_checked(
    core: speedups.Core, hints: Any, keys_max: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        core.scan(bytes(300), [100] * 3, (b"\x01T", 3, 0, 99, 999), (0, 0), hints, keys_max)


def test_keys_grow_up_to_their_limit(core: speedups.Core) -> None:
    data, sizes = encoded([(b"a", b"KEYS\x01" + b"a " * 50)] * 2, "T")
    wanted = b"\x01T", 3, 0, 99, 999

    assert core.scan(data, sizes, wanted, (0, 0), (), 99) is None
    found = core.scan(data, sizes, wanted, (0, 0), (), 100)

    assert found is not None
    assert len(found[4]) == 100 * 8
    assert core.scan(data, sizes, wanted, (0, 0), (), 0) is None


@given(MESSAGES, st.integers(0, 2**40), st.integers(0, 2**50))
def test_stamped_records_are_those_of_the_python_code(
    core: speedups.Core, messages: Messages, first: int, log_offset: int
) -> None:
    data, sizes = encoded(messages, "T")
    found, wanted = outcome(data, sizes, "T", 3), pure_outcome(data, sizes, "T", 3)
    assert isinstance(found, Run)
    assert isinstance(wanted, Run)
    copies = bytearray(data), bytearray(data)

    for run, copy in zip((found, wanted), copies, strict=True):
        run.patch(memoryview(copy), first, log_offset, stamp(123_456, V4))

    assert copies[0] == copies[1]
    assert found.log_offsets.tolist() == wanted.log_offsets.tolist()
    assert (found.first, found.end_offset, found.store_ms) == (
        first,
        log_offset + len(data),
        123_456,
    )
    assert_same(found, wanted)


def longs(*values: int) -> bytes:
    return array("q", values).tobytes()


@pytest.mark.parametrize("start", [-1, 13, 1 << 40, -(1 << 63), (1 << 63) - 1])
def test_no_byte_outside_the_buffer_is_stamped(core: speedups.Core, start: int) -> None:
    view = memoryview(bytearray(100))

    with pytest.raises(ValueError, match="outside"):
        core.stamp(view, longs(start), 0, 0, bytes(16))

    assert not any(view)


@pytest.mark.parametrize("stamped", [b"", bytes(15), bytes(17)])
def test_a_stamp_has_sixteen_bytes(core: speedups.Core, stamped: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        core.stamp(memoryview(bytearray(100)), longs(0), 0, 0, stamped)


def test_only_a_buffer_that_may_be_written_is_stamped(core: speedups.Core) -> None:
    with pytest.raises((TypeError, BufferError)):
        core.stamp(memoryview(bytes(100)), longs(0), 0, 0, bytes(16))


@given(
    st.lists(st.tuples(*[st.integers(-(1 << 31), (1 << 31) - 1)] * 3), max_size=20),
    st.integers(0, 1 << 60),
    st.booleans(),
)
def test_queue_entries_are_those_of_the_python_code(
    core: speedups.Core, rows: list[tuple[int, int, int]], log_offset: int, with_codes: bool
) -> None:
    starts, sizes, codes = ([row[place] for row in rows] for place in range(3))
    wanted = np.empty(len(rows), ENTRY.dtype)
    wanted["log_offset"] = np.array(starts, np.int64) + log_offset
    wanted["size"] = sizes
    wanted["tags_code"] = codes if with_codes else 0

    found = core.queue_entries(
        longs(*starts), longs(*sizes), longs(*codes) if with_codes else None, log_offset
    )

    assert found == wanted.tobytes()


@pytest.mark.parametrize(
    "columns", [(longs(1), b"", None), (longs(1), longs(1), b""), (bytes(7), bytes(7), None)]
)
def test_columns_of_other_lengths_are_refused(
    core: speedups.Core, columns: tuple[Any, Any, Any]
) -> None:
    with pytest.raises(ValueError, match="different lengths"):
        core.queue_entries(*columns, 0)


KEYS = longs(5, 6), longs(0, 1)


@pytest.mark.parametrize(
    ("slots", "number", "keys"),
    [
        ((40, 2), 4, KEYS),
        ((40, 2), -1, KEYS),
        ((40, 2), 1 << 62, KEYS),
        ((-1, 2), 1, KEYS),
        ((149, 2), 1, KEYS),
        ((40, 0), 1, KEYS),
        ((40, 1 << 62), 1, KEYS),
        ((40, 2), 1, (longs(5), longs(2))),
        ((40, 2), 1, (longs(5), longs(-1))),
        ((40, 2), 1, (longs(-1), longs(0))),
        ((40, 2), 1, (longs(1 << 31), longs(0))),
        ((40, 2), 1, (longs(5, 6), longs(0))),
        ((40, 2), 1, (bytes(7), bytes(7))),
    ],
)
def test_keys_outside_of_an_index_file_are_refused_and_nothing_is_written(
    core: speedups.Core, slots: tuple[int, int], number: int, keys: tuple[bytes, bytes]
) -> None:
    file = memoryview(bytearray(40 + 8 + 5 * 20))

    with pytest.raises(ValueError, match="index file"):
        core.index_entries(file, slots, number, keys, longs(0, 100), 0, 0)

    assert not any(file)


def rows_of(count: int, first: int = 0xFFFFFFFE) -> UniqueIdRow:
    return UniqueIdRow(b"01AC11", first, count)


@given(
    st.lists(
        st.tuples(st.binary(max_size=300), VALUES, VALUES, st.sampled_from([0, 1, 0x301])),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([*TOPICS, "t" * 300]),
    st.sampled_from([b"", b"PRODUCER_SEQUENCE\x01a:0:0:5\x02"]),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from([V4, V6]),
)
def test_encoded_records_are_those_of_the_python_code(
    core: speedups.Core,
    rows: list[tuple[bytes, bytes, bytes, int]],
    topic: str,
    first_extra: bytes,
    given_columns: tuple[bool, bool, bool],
    host: Host,
) -> None:
    bodies, strings, keys, flags = (list(column) for column in zip(*rows, strict=True))
    with_strings, with_keys, with_flags = given_columns
    ids, origin = rows_of(len(rows)), BodyOrigin(topic, 3, 7, host, b"TAGS\x01t\x02")

    found = encode_in_core(
        origin,
        bodies,
        ids,
        strings=strings if with_strings else None,
        keys=keys if with_keys else None,
        first_extra=first_extra,
        sys_flags=flags if with_flags else None,
    )

    whole = [
        b"UNIQ_KEY\x01%s\x02" % unique
        + (b"" if row else first_extra)
        + (strings[row] if with_strings else origin.properties)
        + (b"KEYS\x01%s\x02" % keys[row] if with_keys else b"")
        for row, unique in enumerate(ids)
    ]
    assert found == encode_run(
        topic,
        3,
        list(zip(bodies, whole, strict=True)),
        born_timestamp_ms=7,
        born_host=host,
        sys_flag=flags if with_flags else 0,
    )


@pytest.mark.parametrize("size", [32_747, 32_748, 32_749, 40_000])
def test_properties_of_any_length_are_encoded_or_refused_alike(
    core: speedups.Core, size: int
) -> None:
    string = b"x\x01" + b"v" * (size - 3) + b"\x02"
    origin = BodyOrigin("T", 3, 7, V4)
    messages = [(b"a", b"UNIQ_KEY\x01%s\x02%s" % (unique, string)) for unique in rows_of(2)]

    found = encode_in_core(origin, [b"a", b"a"], rows_of(2), strings=[string, string])

    if len(messages[0][1]) <= 32_767:
        assert found == encode_run("T", 3, messages, born_timestamp_ms=7, born_host=V4)
    else:
        assert found is None
        with pytest.raises(struct.error):
            encode_run("T", 3, messages, born_timestamp_ms=7, born_host=V4)


@pytest.mark.parametrize(
    ("bodies", "strings", "keys", "flags", "error"),
    [
        ([b"a"], [], None, None, ValueError),
        ([b"a"], b"", [], None, ValueError),
        ([b"a"], b"", None, [], ValueError),
        ([b"a"], b"", b"", None, ValueError),
        (["a"], b"", None, None, TypeError),
        ([b"a"], ["a"], None, None, TypeError),
        ([b"a"], b"", None, ["a"], TypeError),
        ([b"a"], b"", None, [-1], OverflowError),
        ((b"a",), b"", None, None, TypeError),
    ],
)
def test_columns_of_a_batch_are_checked(
    core: speedups.Core, bodies: Any, strings: Any, keys: Any, flags: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        core.encode((bytes(88), b"\x01T", b"id", 0, b""), bodies, strings, keys, flags)


@pytest.mark.parametrize(
    "shared",
    [
        (bytes(87), b"\x01T", b"id", 0, b""),
        (bytes(200), b"\x01T", b"id", 0, b""),
        (bytes(88), bytes(40_000), b"id", 0, b""),
        (bytes(88), b"\x01T", bytes(40_000), 0, b""),
        (bytes(88), b"\x01T", b"id", 0, bytes(40_000)),
    ],
)
def test_what_records_share_is_checked(core: speedups.Core, shared: Any) -> None:
    with pytest.raises(ValueError, match="lengths"):
        core.encode(shared, [b"a"], b"", None, None)


def test_without_bodies_there_are_no_records(core: speedups.Core) -> None:
    assert core.encode((bytes(88), b"\x01T", b"id", 0, b""), [], b"", None, None) == (b"", [])


def test_ids_for_other_bodies_are_left_to_the_python_code(core: speedups.Core) -> None:
    assert encode_in_core(BodyOrigin("T", 3, 7, V4), [b"a"], rows_of(2)) is None


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 128, 100_001])
def test_the_core_and_the_python_code_encode_bodies_of_every_size(
    core: speedups.Core, size: int
) -> None:
    bodies = [bytes((row + at) % 251 for at in range(size)) for row in range(3)]
    origin = BodyOrigin("T", 3, 7, V4, b"TAGS\x01t\x02")

    found = encode_bodies(origin, bodies, rows_of(3))
    with pure_code():
        wanted = encode_bodies(origin, bodies, rows_of(3))

    assert found == wanted


def test_the_seeds_of_keys_may_be_negative(core: speedups.Core) -> None:
    topic = next(name for name in map("topic-{}".format, range(999)) if key_seeds(name)[0] < 0)
    data, sizes = encoded([(b"a", b"KEYS\x01k\x02")] * 2, topic)

    assert_same(outcome(data, sizes, topic, 3), pure_outcome(data, sizes, topic, 3))
