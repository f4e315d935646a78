"""Runs of records that are alike: what is compared with one record is accepted, refused and stored as by the column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from pocketmq.proto import run as runs, speedups
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.record import encode_run
from pocketmq.proto.record_run import RunColumns
from pocketmq.proto.run import FEW_MAX, Run, UniformRecords, check_run, stamp
from pocketmq.store.message_keys import keys_of, keys_of_alike

from ..c_core import need_core, pure_code
from ..runs import BORN, Hand, open_store

CORE = speedups.core
COUNT = FEW_MAX + 3
STORE = BORN
#: Property strings with a place for what each record has of its own.
PATTERNS = [
    "",
    "UNIQ_KEY\x01AC11{}\x02",
    "UNIQ_KEY\x01AC11{}\x02TAGS\x01paid\x02KEYS\x01order-{}\x02x\x01y z\x02",
    "KEYS\x01{}\x02WAIT\x01true",
    "TAGS\x01ü\x02x\x01\x01\x02\x02lone\x02KEYS\x01k{}\x02",
]
#: And such as make it a run that goes by the columns.
OTHER_PATTERNS = [
    "x\x01{}\x02",
    "KEYS\x01a {}\x02",
    "KEYS\x01ü{}\x02",
    "KEYS\x01a\x02KEYS\x01{}\x02",
    "UNIQ_KEY{}\x01a\x02",
    "KEYS\x01" + "long" * 130 + "{}\x02",
]


@pytest.fixture(autouse=True, scope="module")
def python_code() -> Iterator[None]:
    """The C core reads no batch, unless a test asks for it."""
    with pure_code():
        yield


def encoded(
    pattern: str, sizes: Sequence[int], first_extra: str = "", digits: int = 4
) -> tuple[bytes, list[int]]:
    messages = []
    for row, size in enumerate(sizes):
        own = f"{row * 7919 % 10**digits:0{digits}}"
        string = pattern.replace("{}", own) + ("" if row else first_extra)
        messages.append((bytes((row + at) % 256 for at in range(size)), string.encode()))
    return encode_run("T", 3, messages, born_timestamp_ms=7, born_host=BORN)


def by_columns(data: bytes, sizes: Sequence[int], topic: str = "T", queue: int = 3) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "FEW_MAX", 0)
        patch.setattr(runs, "_ALIKE_MAX", 0)
        run = check_run(data, sizes, topic, queue)
        assert not run.is_standard
        return run


def alike_of(run: Run) -> UniformRecords:
    assert run.alike is not None
    return run.alike


def outcome(found: Any, *args: Any) -> tuple[str, object] | RunColumns:
    try:
        columns: RunColumns = found(*args).columns
    except PocketMQError as error:
        return error.message, error.details
    return columns


def assert_same(
    one: tuple[str, object] | RunColumns, other: tuple[str, object] | RunColumns
) -> None:
    if isinstance(one, RunColumns) and isinstance(other, RunColumns):
        for name in RunColumns.__slots__:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
    else:
        assert one == other


@pytest.mark.parametrize("sizes", [[5] * COUNT, [9, *[5] * (COUNT - 1)], list(range(1, COUNT + 1))])
@pytest.mark.parametrize(
    "extra", ["", "PRODUCER_SEQUENCE\x017:0:0:19\x02", "KEYS\x01a b\x02TAGS\x01t\x02"]
)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_runs_of_one_client_are_alike_and_have_the_same_columns_keys_and_bytes(
    pattern: str, extra: str, sizes: list[int]
) -> None:
    data, record_sizes = encoded(pattern, sizes, extra)
    one, other = check_run(data, record_sizes, "T", 3), by_columns(data, record_sizes)

    found = keys_of_alike(alike_of(one), "T")
    wanted = keys_of(data, other.columns, "T", other.properties)
    assert (found.hashes.tolist(), found.rows.tolist()) == (
        wanted.hashes.tolist(),
        wanted.rows.tolist(),
    )
    assert one.size_range == other.size_range
    assert one.property_string(0) == other.property_string(0)
    assert one.property_string(COUNT - 1) == other.property_string(COUNT - 1)
    copies = bytearray(data), bytearray(data)
    for run, copy in zip((one, other), copies, strict=True):
        run.patch(memoryview(copy), 70, 12_000, stamp(99, STORE))
    assert copies[0] == copies[1]
    assert one.log_offsets.tolist() == other.log_offsets.tolist()
    assert one.end_offset == other.end_offset
    assert_same(one.columns, other.columns)


@pytest.mark.parametrize("pattern", OTHER_PATTERNS)
def test_runs_that_differ_in_more_go_by_the_columns(pattern: str) -> None:
    data, sizes = encoded(pattern, [5] * COUNT)

    run = check_run(data, sizes, "T", 3)

    assert run.alike is None
    assert_same(run.columns, by_columns(data, sizes).columns)


@given(
    pattern=st.sampled_from(PATTERNS),
    even=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3),
    sizes_off=st.sampled_from([0, 0, 0, 0, 1, -1]),
    queue=st.sampled_from([3, 3, 3, 4]),
    topic=st.sampled_from(["T", "T", "T", "U"]),
)
@example(pattern=PATTERNS[2], even=True, changes=[], sizes_off=0, queue=3, topic="T")
def test_damaged_runs_are_refused_or_stored_alike(
    pattern: str,
    even: bool,
    changes: list[tuple[int, int]],
    sizes_off: int,
    queue: int,
    topic: str,
) -> None:
    whole, sizes = encoded(pattern, [5 if even else 3 + row % 4 for row in range(COUNT)])
    damaged = bytearray(whole)
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    sizes[-1] += sizes_off
    data = bytes(damaged)

    assert_same(
        outcome(check_run, data, sizes, topic, queue),
        outcome(by_columns, data, sizes, topic, queue),
    )


def test_a_change_of_any_byte_of_any_record_is_refused_or_stored_alike() -> None:
    whole, sizes = encoded(PATTERNS[2], [3] * COUNT)
    begins = 0, sizes[0], sizes[0] * (COUNT - 1)
    for begin in begins:
        for at in range(begin, begin + sizes[0]):
            data = whole[:at] + bytes((whole[at] ^ 0x41,)) + whole[at + 1 :]

            assert_same(
                outcome(check_run, data, sizes, "T", 3), outcome(by_columns, data, sizes, "T", 3)
            )


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".json" and path.name not in ("lock", "abort")
    }


def fill(folder: Path, made: Callable[[bytes, Sequence[int], str, int], Run]) -> list[str]:
    """Store batches of each pattern, each checked by MADE, in FOLDER; return the results."""
    now = Hand()
    store = open_store(folder, now_ms=now, index_entries=120, index_slots=7)
    results = []
    for pattern in (*PATTERNS, *OTHER_PATTERNS, *PATTERNS):
        now.now_ms += 700
        whole = encoded(pattern, [5] * COUNT, "PRODUCER_SEQUENCE\x017:0:0:19\x02")
        small = encoded(pattern, [7, 9])
        runs = [made(*whole, "T", 3), made(*small, "T", 3), made(*whole, "T", 3)]
        results.append(repr(store.append_many(runs)))
    store.close()
    return results


def assert_same_files(one: Path, other: Path) -> None:
    files = files_below(one), files_below(other)
    assert any(name.startswith("index") for name in files[0])
    assert files[0].keys() == files[1].keys()
    assert [name for name in files[0] if files[0][name] != files[1][name]] == []


def test_both_ways_leave_the_same_bytes_in_a_store(tmp_path: Path) -> None:
    assert fill(tmp_path / "alike", check_run) == fill(tmp_path / "columns", by_columns)

    assert_same_files(tmp_path / "alike", tmp_path / "columns")


def test_the_c_core_leaves_the_same_bytes_in_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pure = fill(tmp_path / "pure", check_run)
    monkeypatch.setattr(speedups, "core", CORE or need_core())

    def scanned(*batch: Any) -> Run:
        run = check_run(*batch)
        assert run.scanned is not None
        return run

    assert fill(tmp_path / "core", scanned) == pure
    assert_same_files(tmp_path / "core", tmp_path / "pure")
