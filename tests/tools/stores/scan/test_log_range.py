"""Ranges of a log file give every record and every damage once, wherever the file is cut."""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest.mock import create_autospec

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.record import MAGIC_BLANK, Record, encode_record
from pocketmq.store import OsDisk, log_range
from pocketmq.store.disk import Mapping
from pocketmq.store.listing import RowFile
from pocketmq.store.log_range import LogDamage, LogRange, PlacedRecords, log_end
from pocketmq.tools.stores.scan.conditions import Conditions
from pocketmq.tools.stores.scan.log_scan import log_parts

from ....runs import Hand, make_run, open_store

BASE = 4_096
FILE_BYTES = 4_096


class OneFile(OsDisk):
    """A disk that has one file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def open_map(self, path: str, **_: object) -> Mapping:
        mapping = create_autospec(Mapping)
        mapping.data_end.return_value = len(self.data)
        return mapping  # type: ignore[no-any-return]

    def read_at(self, path: str, at: int, size: int) -> bytes:
        return self.data[at : at + size]


def a_log(sizes: list[int], *, blank: bool = True) -> tuple[bytes, list[int]]:
    """Return a file of records with bodies of SIZES, and where they start in the log."""
    data = b""
    starts = []
    for number, size in enumerate(sizes):
        starts.append(BASE + len(data))
        record = Record(
            topic="T", body=b"b" * size, log_offset=starts[-1], store_timestamp_ms=1_000 + number
        )
        data += encode_record(record)
    room = FILE_BYTES - len(data)
    if blank:
        data += room.to_bytes(4) + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4)
    return data.ljust(FILE_BYTES, b"\0"), starts


def read(data: bytes, begin: int, end: int) -> tuple[list[int], list[LogDamage]]:
    """Return the starts of records, and the damages, in [BEGIN, END) of the file of DATA."""
    file = RowFile("log", BASE, len(data))
    starts: list[int] = []
    damages: list[LogDamage] = []
    for found in LogRange(OneFile(data), file, begin, end):
        if isinstance(found, LogDamage):
            damages.append(found)
        else:
            starts += (found.columns.starts + found.base).tolist()
    return starts, damages


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=9),
    cuts=st.lists(st.integers(0, FILE_BYTES), max_size=5),
    blank=st.booleans(),
    wounds=st.lists(st.integers(0, 1_500), max_size=3),
    window=st.sampled_from([120, 500, 1 << 20]),
)
def test_cutting_a_file_changes_nothing(
    sizes: list[int], cuts: list[int], blank: bool, wounds: list[int], window: int
) -> None:
    data, _ = a_log(sizes, blank=blank)
    broken = bytearray(data)
    for wound in wounds:
        broken[wound] ^= 0x55
    bounds = sorted({BASE, BASE + FILE_BYTES, *(BASE + cut for cut in cuts)})

    whole = read(bytes(broken), BASE, BASE + FILE_BYTES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_range, "WINDOW_BYTES", window)
        parts = [read(bytes(broken), *pair) for pair in itertools.pairwise(bounds)]

    assert [start for starts, _ in parts for start in starts] == whole[0]
    assert [damage for _, damages in parts for damage in damages] == whole[1]


@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=9), blank=st.booleans())
def test_a_sound_file_has_all_its_records_and_no_damage(sizes: list[int], blank: bool) -> None:
    data, starts = a_log(sizes, blank=blank)

    assert read(data, BASE, BASE + FILE_BYTES) == (starts, [])


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=9),
    place=st.integers(0, 3_000),
    bit=st.integers(0, 7),
)
def test_one_flipped_bit_costs_at_most_one_record(sizes: list[int], place: int, bit: int) -> None:
    data, starts = a_log(sizes)
    broken = bytearray(data)
    broken[place] ^= 1 << bit

    found, damages = read(bytes(broken), BASE, BASE + FILE_BYTES)

    assert set(found) <= set(starts)
    assert len(found) >= len(starts) - 1
    assert len(damages) <= 1


def test_a_size_that_lies_is_not_believed() -> None:
    data, starts = a_log([100, 100, 100])
    broken = bytearray(data)
    broken[starts[1] - BASE : starts[1] - BASE + 4] = (1 << 30).to_bytes(4)

    found, damages = read(bytes(broken), BASE, BASE + FILE_BYTES)

    assert found == [starts[0], starts[2]]
    assert [(one.start, one.size) for one in damages] == [(starts[1], starts[2] - starts[1])]


def test_the_log_ends_behind_its_last_sound_record() -> None:
    data, starts = a_log([50, 60, 70], blank=False)
    torn = data[: starts[2] - BASE + 100].ljust(FILE_BYTES, b"\0")

    end = log_end(OneFile(torn), RowFile("log", BASE, FILE_BYTES))

    assert end == starts[2]


def test_a_rest_of_an_earlier_life_is_behind_the_end() -> None:
    data, starts = a_log([50, 60, 70, 80, 90], blank=False)
    broken = bytearray(data)
    broken[starts[3] - BASE + 4] ^= 1  # no magic: what follows is behind damage
    old = encode_record(
        Record(topic="T", body=b"b" * 90, log_offset=starts[4], store_timestamp_ms=1)
    )
    broken[starts[4] - BASE : starts[4] - BASE + len(old)] = old

    end = log_end(OneFile(bytes(broken)), RowFile("log", BASE, FILE_BYTES))

    assert end == starts[3]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    assert read(bytes(FILE_BYTES), BASE, BASE + FILE_BYTES) == ([], [])
    assert log_end(OneFile(bytes(FILE_BYTES)), RowFile("log", BASE, FILE_BYTES)) == BASE


def test_holes_of_files_that_age_closed_are_not_read(tmp_path: Path) -> None:
    clock, size = Hand(), 64 << 20
    store = open_store(tmp_path, now_ms=clock, log_file_size_bytes=size, log_roll_ms=300_000)
    offsets = []
    for _ in range(4):
        offsets += store.append(make_run("T", 0, [b"a", b"b"])).log_offsets.tolist()
        clock.now_ms += 300_000
        store.tick()
    store.close()
    disk = OsDisk()

    parts = log_parts(disk, str(tmp_path / "commitlog"), Conditions(), fail_on_data_loss=True)

    assert sum(part.size for part in parts) < size
    found = []
    for part in parts:
        for piece in part.split(1 << 20):
            for one in LogRange(disk, piece.file, piece.begin, piece.end, limit=piece.limit):
                assert isinstance(one, PlacedRecords)
                found += (one.columns.starts + one.base).tolist()
    assert found == offsets
