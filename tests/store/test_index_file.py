"""An index file holds, byte for byte, what Apache's puts leave, and finds what they find."""

import struct
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pocketmq.proto.errors import CorruptIndex
from pocketmq.proto.scanned import ScannedRecords
from pocketmq.store import index_file
from pocketmq.store.format.index import IndexHeader, index_file_size
from pocketmq.store.index_check import check_index_file
from pocketmq.store.index_file import IndexFile
from pocketmq.store.message_keys import key_hashes
from pocketmq.store.os_disk import OsDisk

from ..c_core import need_core

SLOTS = 7
ENTRIES = 40
HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")

Key = tuple[int, int, int]  # key hash, log offset, store time


class OneByOne:
    """Apache's put, literally: one key at a time into the bytes of a file."""

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.fields = list(HEADER.unpack_from(data))
        self.fields[5] = max(self.fields[5], 1) if self.fields[5] > 0 else 1

    def put(self, key: Key) -> None:
        key_hash, log_offset, store_ms = key
        begin_ms, count = self.fields[0], self.fields[5]
        slot_at = 40 + key_hash % SLOTS * 4
        (slot,) = struct.unpack_from(">i", self.data, slot_at)
        if slot <= 0 or slot > count:
            slot = 0
        seconds = int((store_ms - begin_ms) / 1000)
        if begin_ms <= 0 or seconds < 0:
            seconds = 0
        seconds = min(seconds, (1 << 31) - 1)
        entry_at = 40 + SLOTS * 4 + count * 20
        ENTRY.pack_into(self.data, entry_at, key_hash, log_offset, seconds, slot)
        struct.pack_into(">i", self.data, slot_at, count)
        if count <= 1:
            self.fields[0], self.fields[2] = store_ms, log_offset
        if slot == 0:
            self.fields[4] += 1
        self.fields[5] += 1
        self.fields[1], self.fields[3] = store_ms, log_offset
        HEADER.pack_into(self.data, 0, *self.fields)


keys = st.tuples(
    st.integers(0, 30) | st.integers(0, (1 << 31) - 1),
    st.integers(0, 1 << 40),
    st.integers(-5_000, 5_000)
    | st.integers(1_700_000_000_000, 1_700_000_100_000)
    | st.just(1 << 62),
)
slot_garbage = st.lists(st.integers(-3, ENTRIES + 3), min_size=SLOTS, max_size=SLOTS)
runs_of_keys = st.lists(st.lists(keys, min_size=1, max_size=12), max_size=5)


def put_all(file: IndexFile, run: list[Key]) -> None:
    hashes, offsets, times = zip(*run, strict=True)
    file.put(np.array(hashes, np.int32), np.array(offsets, np.int64), np.array(times, np.int64))


def new_file(folder: Path, *, slots: int = SLOTS, entries: int = ENTRIES) -> IndexFile:
    path = str(folder / "20260101000000000")
    return IndexFile.create(OsDisk(), path, slots, entries, end_log_offset=0, end_ms=0)


@given(
    runs=runs_of_keys,
    inherited=st.tuples(st.integers(-1, 1 << 40), st.sampled_from([-1, 0, 900, 1_700_000_050_000])),
    garbage=st.none() | slot_garbage,
)
def test_runs_leave_the_bytes_that_single_puts_leave(
    runs: list[list[Key]],
    inherited: tuple[int, int],
    garbage: list[int] | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = str(tmp_path_factory.mktemp("index") / "20260101000000000")
    disk = OsDisk()
    file = IndexFile.create(
        disk, path, SLOTS, ENTRIES, end_log_offset=inherited[0], end_ms=inherited[1]
    )
    if garbage is not None:
        file.mapping.write(40, struct.pack(f">{SLOTS}i", *garbage))
    reference = OneByOne(bytearray(disk.read(path)))

    for whole_run in runs:
        run = whole_run[: file.room]
        if run:
            put_all(file, run)
        for key in run:
            reference.put(key)

    assert disk.read(path) == bytes(reference.data)
    assert file.header == IndexHeader(*reference.fields)
    file.close()
    again = IndexFile(disk, path, SLOTS, ENTRIES, create=False)
    assert again.header == file.header
    again.close()


def test_a_run_of_more_than_32_768_keys_is_linked_like_any_other(tmp_path: Path) -> None:
    count = 40_000
    hashes = np.arange(count, dtype=np.int32) % 1000
    one = new_file(tmp_path / ".", slots=1000, entries=count + 1)
    one.put(hashes, np.arange(count), np.ones(count, np.int64))
    many = IndexFile(OsDisk(), str(tmp_path / "20260101000000001"), 1000, count + 1, create=True)
    for at in range(0, count, 5_000):
        part = slice(at, at + 5_000)
        many.put(hashes[part], np.arange(count)[part], np.ones(5_000, np.int64))

    assert bytes(one.mapping.view) == bytes(many.mapping.view)


@given(data=st.data())
def test_finds_the_newest_records_of_a_key_in_a_time_range(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    steps = data.draw(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3000)), max_size=38))
    begin, end = data.draw(st.tuples(st.integers(0, 60_000), st.integers(0, 60_000)))
    limit = data.draw(st.integers(0, 5))
    file = new_file(tmp_path_factory.mktemp("index"))
    now = 1_000
    times = []
    for row, (key_hash, later) in enumerate(steps):
        now += later
        put_all(file, [(key_hash, row * 100, now)])
        first_ms = file.header.begin_ms
        times.append(first_ms + (now - first_ms) // 1000 * 1000)

    for key_hash in range(13):
        expected = [
            row * 100
            for row, (stored_hash, _) in enumerate(steps)
            if stored_hash == key_hash and begin <= times[row] <= end
        ][::-1][:limit]
        assert file.find(key_hash, begin, end, limit) == expected


def test_a_long_chain_is_scanned_and_gives_what_following_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3_000
    file = new_file(tmp_path, slots=3, entries=count + 1)
    times = np.arange(count, dtype=np.int64) * 1000 + 5_000
    file.put((np.arange(count, dtype=np.int32) * 3) % 21, np.arange(count) * 10, times)
    queries = [(0, 0, 1 << 62, 64), (3, 5_000, 400_000, 64), (6, 100_000, 101_000, 9), (9, 0, 0, 5)]
    followed = [file.find(*query) for query in queries]

    monkeypatch.setattr(index_file, "_STEPS_MAX", 4)
    monkeypatch.setattr(index_file, "_SCAN_ENTRIES", 100)

    assert [file.find(*query) for query in queries] == followed
    assert len(followed[0]) == 64


@settings(max_examples=60)
@given(noise=st.binary(min_size=40, max_size=300), seed=st.integers(0, 1 << 30))
def test_garbage_is_read_without_an_error_and_named_by_a_check(
    noise: bytes, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = str(tmp_path_factory.mktemp("index") / "1")
    size = index_file_size(SLOTS, ENTRIES)
    OsDisk().write_file(path, (noise * (size // len(noise) + 1))[:size])
    file = IndexFile(OsDisk(), path, SLOTS, ENTRIES, create=False)

    for key_hash in range(SLOTS):
        assert len(file.find(key_hash + seed, 0, 1 << 62, 64)) <= 64
    try:
        check_index_file(file)
    except CorruptIndex as error:
        assert error.details["path"] == path
        assert int(error.details["offset"]) < size


def test_a_short_file_is_grown_and_empty(tmp_path: Path) -> None:
    path = tmp_path / "20260101000000000"
    path.write_bytes(b"\0" * 60)

    file = IndexFile(OsDisk(), str(path), SLOTS, ENTRIES, create=False)

    assert path.stat().st_size == index_file_size(SLOTS, ENTRIES)
    assert file.header == IndexHeader()
    assert file.find(3, 0, 1 << 62, 64) == []


@given(runs=runs_of_keys, end=st.integers(0, 60))
def test_truncation_leaves_what_putting_only_the_rest_leaves(
    runs: list[list[Key]], end: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hashes = [key[0] for run in runs for key in run][:39]
    sound = [(one, row, 1_000_000 + row * 700) for row, one in enumerate(hashes)]
    folder = tmp_path_factory.mktemp("index")
    file = new_file(folder)
    if sound:
        put_all(file, sound)

    gone = file.truncate(end)

    assert gone == max(0, len(sound) - end)
    rest = sound[:end]
    for key_hash in {key[0] for key in sound}:
        expected = [offset for found, offset, _ in rest if found == key_hash][::-1]
        assert file.find(key_hash, 0, 1 << 62, 64) == expected
    assert file.header.next_entry == len(rest) + 1
    if rest:
        assert file.header.end_log_offset == rest[-1][1]
        assert file.header.end_ms >= rest[-1][2] // 1000 * 1000
        check_index_file(file)
        if file.room:
            put_all(file, sound[len(rest) :] or [(1, 1000, 1_000_000)])
            check_index_file(file)


@pytest.mark.parametrize(
    ("at", "value", "offset"),
    [
        (36, ENTRIES + 1, 36),
        (32, 9, 32),
        (32, 0, 32),
        (40 + 4 * 3, 1000, 40 + 4 * 3),
        (40 + 4 * SLOTS + 2 * 20, -1, 40 + 4 * SLOTS + 2 * 20),
        (40 + 4 * SLOTS + 2 * 20 + 16, 5, 40 + 4 * SLOTS + 2 * 20 + 16),
    ],
)
def test_a_check_names_the_byte_that_disagrees(
    at: int, value: int, offset: int, tmp_path: Path
) -> None:
    file = new_file(tmp_path)
    put_all(file, [(3, 0, 1_000), (4, 100, 2_000), (3, 200, 3_000)])
    check_index_file(file)
    file.mapping.write(at, struct.pack(">i", value))
    file.close()

    damaged = IndexFile(OsDisk(), file.path, SLOTS, ENTRIES, create=False)
    with pytest.raises(CorruptIndex) as raised:
        check_index_file(damaged)

    assert raised.value.details["offset"] == str(offset)
    assert file.path in raised.value.message


def test_the_hash_without_an_absolute_value_is_stored_as_zero() -> None:
    hashes = np.array([-(1 << 31), -5, 0, 7, (1 << 31) - 1], np.int32)

    assert key_hashes(hashes).tolist() == [0, 5, 0, 7, (1 << 31) - 1]


@given(
    runs=st.lists(st.lists(keys, min_size=1, max_size=9), min_size=1, max_size=4),
    garbage=slot_garbage,
)
def test_the_c_core_enters_keys_as_the_python_code_does(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[Key]], garbage: list[int]
) -> None:
    core = need_core()
    files = [new_file(tmp_path_factory.mktemp(name)) for name in ("core", "python")]
    for file in files:
        put_all(file, [(1, 50, 1_700_000_000_000)])
        file.mapping.write(40, struct.pack(f">{SLOTS}i", *garbage))
    for run in runs:
        hashes, offsets, times = zip(*run, strict=True)
        columns = array("q", hashes).tobytes(), array("q", range(len(run))).tobytes()
        starts = array("q", offsets).tobytes()
        scanned = ScannedRecords(core, (starts, starts, 1, 1, *columns, None, False, 0, 0))
        if len(run) > files[0].room:
            break

        files[0].put_scanned(scanned, 1_000, times[-1])
        files[1].put_new(np.array(hashes, np.int32), np.array(offsets, np.int64) + 1_000, times[-1])

    size = index_file_size(SLOTS, ENTRIES)
    assert files[0].mapping.read(0, size) == files[1].mapping.read(0, size)
    assert files[0].header == files[1].header
    for file in files:
        file.delete()


def test_the_bounds_of_a_search_by_time_are_inside(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    first_ms = 1_700_000_000_000
    put_all(file, [(5, 100, first_ms), (5, 200, first_ms + 3_000)])

    assert file.find(5, first_ms, first_ms + 3_000, 64) == [200, 100]
    assert file.find(5, first_ms + 1, first_ms + 2_999, 64) == []
