"""The message index enters the keys that Apache enters, in its order, and its files are Apache's to the byte."""

import contextlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import StoreFull, StoreMismatch
from pocketmq.proto.java_hash import java_hash
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import SYS_PREPARED, SYS_ROLLBACK, Record, encode_record
from pocketmq.proto.record_run import parse_run, walk
from pocketmq.store.index_check import check_index_file
from pocketmq.store.index_file import IndexFile
from pocketmq.store.message_index import MessageIndex
from pocketmq.store.os_disk import OsDisk

from ..fakes import FaultyDisk
from ..recorded import recorded_store, settings

NOW_MS = 1_790_000_000_000
SLOTS = 11
ENTRIES = 12


def new_index(folder: Path, *, slots: int = SLOTS, entries: int = ENTRIES) -> MessageIndex:
    return MessageIndex(OsDisk(), str(folder / "index"), slots=slots, entries=entries)


def records(*fields: Mapping[str, object], log_offset: int = 0) -> bytes:
    """Return records of topic T, each with the given fields; log offsets and times follow each other."""
    data = b""
    for row, given_fields in enumerate(fields):
        one = dict(given_fields)
        properties = one.pop("properties", {})
        record = Record(
            topic=str(one.pop("topic", "T")),
            body=b"x",
            log_offset=int(str(one.pop("log_offset", log_offset + len(data)))),
            store_timestamp_ms=NOW_MS + row,
            **one,  # type: ignore[arg-type]
        )
        assert isinstance(properties, dict)
        data += encode_record(record, property_string=encode_properties(properties))
    return data


def put(index: MessageIndex, data: bytes, *, topic: str | None = None) -> int:
    starts, _ = walk(data)
    return index.put_run(data, parse_run(data, starts), now_ms=NOW_MS, topic=topic)


def entries_of(index: MessageIndex) -> list[tuple[int, int]]:
    """Return key hash and log offset of every entry, file by file."""
    found = []
    for file in index.files:
        used = file.header.next_entry
        hashes, offsets = file.column("key_hash", 1, used), file.column("log_offset", 1, used)
        found += list(zip(hashes.tolist(), offsets.tolist(), strict=True))
    return found


def key_hash(text: str) -> int:
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


words = st.text("ab é", min_size=1, max_size=9)
properties = st.fixed_dictionaries(
    {}, optional={"UNIQ_KEY": st.text("xyß", min_size=1, max_size=5), "KEYS": words, "TAGS": words}
)


@given(
    rows=st.lists(
        st.tuples(
            properties,
            st.sampled_from(["T", "Other", "Ü"]),
            st.sampled_from([0, SYS_PREPARED, SYS_ROLLBACK]),
            st.integers(0, 9),
        ),
        max_size=12,
    ),
    cut=st.integers(0, 12),
)
def test_each_record_gives_its_keys_in_order_unless_it_is_there_already(
    rows: list[tuple[dict[str, str], str, int, int]],
    cut: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    index = new_index(tmp_path_factory.mktemp("store"))

    for part in (rows[:cut], rows[cut:]):
        put(
            index,
            records(
                *(
                    {"properties": found, "topic": topic, "sys_flag": flag, "log_offset": at}
                    for found, topic, flag, at in part
                )
            ),
        )

    expected: list[tuple[int, int]] = []
    known: list[tuple[int, int]] = []
    end = 0
    for row, (found, topic, flag, at) in enumerate(rows):
        if row == cut:
            known = [entry for entry in expected if entry[1] == end]
        if flag == SYS_ROLLBACK or at < end:
            continue
        texts = [f"{topic}#{found['UNIQ_KEY']}"] if found.get("UNIQ_KEY") else []
        texts += [f"{topic}#{word}" for word in found.get("KEYS", "").split(" ") if word]
        texts += [f"{topic}#T#{found['TAGS']}"] if found.get("TAGS") else []
        for entry in ((key_hash(text), at) for text in texts):
            if entry in known:
                known.remove(entry)
            else:
                expected.append(entry)
        end = at if texts else end
    assert entries_of(index) == expected


def test_of_the_newest_record_only_missing_keys_are_entered_again(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=3)
    data = records(*({"properties": {"UNIQ_KEY": f"u{i}", "KEYS": "k k l"}} for i in range(2)))
    put(index, data)
    before = entries_of(index)
    assert put(index, data) == 0

    assert (
        len(index.files) == 5
    )  # the last is empty: Apache makes it for a record that it then leaves out
    for _ in range(2):
        index.files.pop().delete()
    put(index, data)

    assert entries_of(index) == before


def test_a_given_topic_makes_the_same_keys(tmp_path: Path) -> None:
    data = records(*({"properties": {"KEYS": f"k{i} l{i}", "TAGS": "t"}} for i in range(3)))
    told, read = new_index(tmp_path / "a"), new_index(tmp_path / "b")

    assert put(told, data, topic="T") == put(read, data) == 9

    assert entries_of(told) == entries_of(read)


def test_a_full_file_is_followed_by_one_that_begins_where_it_ended(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    data = records(*({"properties": {"UNIQ_KEY": f"u{i}", "KEYS": "k"}} for i in range(12)))

    put(index, data)

    first, second, third = index.files
    assert (first.room, second.room, third.room) == (0, 0, 9)
    assert [file.name for file in index.files] == sorted({file.name for file in index.files})
    assert index.take_full() == [first, second]
    assert index.take_full() == []
    assert second.header.begin_log_offset == first.header.end_log_offset
    for file in index.files:
        check_index_file(file)
    assert len(index.find("T", "k", limit=64)) == 12
    assert index.find("T", "u5", limit=64) == [int(walk(data)[0][5])]


def test_the_first_key_of_a_following_file_is_measured_against_the_file_before(
    tmp_path: Path,
) -> None:
    index = new_index(tmp_path, entries=2)
    data = records({"properties": {"KEYS": "a"}}, {"properties": {"KEYS": "b"}})
    starts, _ = walk(data)
    columns = parse_run(data, starts)
    columns.store_ms[:] = [10_000, 15_500]

    index.put_run(data, columns, now_ms=NOW_MS)

    assert index.files[1].column("seconds", 1, 2).tolist() == [5]
    assert index.files[1].header.begin_ms == 15_500


def test_a_record_without_keys_still_opens_the_next_file(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=2)
    assert put(index, records({})) == 0
    assert len(index.files) == 1

    put(index, records({"properties": {"KEYS": "a"}}))
    assert len(index.files) == 1
    put(index, records({}, log_offset=500))

    assert len(index.files) == 2


def test_files_are_named_by_local_time_and_never_step_back(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=2)
    for row in range(4):
        data = records({"properties": {"KEYS": "a"}}, log_offset=row * 1000)
        starts, _ = walk(data)
        index.put_run(data, parse_run(data, starts), now_ms=NOW_MS - row * 60_000)

    moment = datetime.fromtimestamp(NOW_MS / 1000)
    assert [file.name for file in index.files] == [
        (moment + timedelta(milliseconds=row)).strftime("%Y%m%d%H%M%S%f")[:17] for row in range(4)
    ]


def test_a_foreign_numeric_name_is_followed_by_the_next_number(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=2)
    put(index, records({"properties": {"KEYS": "a"}}))
    index.close()
    folder = tmp_path / "index"
    (folder / index.files[0].name).rename(folder / "99999999999999998")

    again = MessageIndex.load(OsDisk(), str(folder), slots=SLOTS, entries=2)
    put(again, records({"properties": {"KEYS": "b"}}, log_offset=1000))

    assert [file.name for file in again.files] == ["99999999999999998", "99999999999999999"]


def test_a_query_ends_with_the_first_file_that_begins_before_it(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=3)
    data = records(*({"properties": {"KEYS": "k"}} for _ in range(8)))
    starts, _ = walk(data)
    columns = parse_run(data, starts)
    columns.store_ms[:] = NOW_MS + np.arange(8) * 10_000
    index.put_run(data, columns, now_ms=NOW_MS)

    def find(begin_s: int, end_s: int, limit: int = 64) -> list[int]:
        found = index.find(
            "T",
            "k",
            limit=limit,
            begin_ms=NOW_MS + begin_s * 1000,
            end_ms=NOW_MS + end_s * 1000,
        )
        return [starts.tolist().index(offset) for offset in found]

    assert find(-100, 100) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert find(-100, 100, limit=3) == [5, 6, 7]
    # The first key of a file is placed later than it is by what it was measured against the file before.
    assert find(30, 50) == [2, 3, 4, 5]
    assert find(15, 19) == []
    assert index.find("T", "other", limit=64) == []


def test_tags_are_found_by_their_kind(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    put(index, records({"properties": {"TAGS": "TagA"}}))

    assert index.find("T", "TagA", limit=64) == []
    assert index.find("T", "TagA", limit=64, kind="T") == [0]


def test_after_an_unclean_stop_files_behind_the_checkpoint_are_deleted(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=3)
    put(index, records(*({"properties": {"KEYS": "k"}} for _ in range(5))))
    index.close()
    names = [file.name for file in index.files]
    folder = str(tmp_path / "index")

    kept = MessageIndex.load(OsDisk(), folder, slots=SLOTS, entries=3, discard_after_ms=NOW_MS + 3)

    assert [file.name for file in kept.files] == names[:2]
    assert [entry.name for entry in OsDisk().list(folder)] == names[:2]


def test_foreign_names_are_skipped_and_folders_refused(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "README").write_text("hello")
    (folder / "notes").mkdir()

    index = MessageIndex.load(OsDisk(), str(folder), slots=SLOTS, entries=ENTRIES)
    assert index.files == []
    assert (folder / "README").read_text() == "hello"

    (folder / "20260101000000000").mkdir()
    with pytest.raises(StoreMismatch, match="20260101000000000 is a folder"):
        MessageIndex.load(OsDisk(), str(folder), slots=SLOTS, entries=ENTRIES)


def test_expired_files_go_but_never_the_last(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=3)
    put(index, records(*({"properties": {"KEYS": "k"}} for _ in range(6))))
    ends = [file.header.end_log_offset for file in index.files]

    assert index.delete_expired(ends[0]) == 0
    assert index.delete_expired(ends[0] + 1) == 1
    assert index.delete_expired(1 << 60) == 1
    assert len(index.files) == len(OsDisk().list(index.folder)) == 1


def test_truncation_removes_what_points_behind_the_log(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=3)
    data = records(*({"properties": {"KEYS": "k"}} for _ in range(7)))
    starts = walk(data)[0].tolist()
    put(index, data)

    assert index.truncate(starts[3]) == 4

    assert index.find("T", "k", limit=64) == starts[:3]
    assert index.end_log_offset == starts[2]
    put(index, data)
    assert index.find("T", "k", limit=64) == starts


def test_damaged_files_are_deleted_with_all_behind_them(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=3)
    put(index, records(*({"properties": {"KEYS": "k"}} for _ in range(7))))
    assert index.delete_damaged() is None
    bad = index.files[1]
    bad.mapping.write(40, b"\x7f")

    error = index.delete_damaged()

    assert error is not None
    assert error.details["path"] == bad.path
    assert len(index.files) == 1


def test_after_a_full_disk_the_missing_keys_are_entered_and_no_other(tmp_path: Path) -> None:
    disk = FaultyDisk()
    index = MessageIndex(disk, str(tmp_path / "index"), slots=SLOTS, entries=3)
    data = records(*({"properties": {"UNIQ_KEY": f"u{i}", "KEYS": "a b"}} for i in range(4)))
    for allowed in range(8):
        creations = iter(range(allowed))
        disk.fail_create = lambda path, left=creations: (  # type: ignore[misc]
            StoreFull("no space left on the device") if next(left, None) is None else None
        )
        with contextlib.suppress(StoreFull):
            put(index, data)
        disk.run_full("index")
        with contextlib.suppress(StoreFull):
            put(index, data)
    disk.heal()

    put(index, data)

    whole = new_index(tmp_path / "whole", entries=100)
    put(whole, data)
    assert entries_of(index) == entries_of(whole)
    for file in index.files:
        check_index_file(file)


@pytest.mark.parametrize("name", ["basic", "rolled", "encodings", "delays", "transactions"])
def test_the_records_of_a_java_broker_give_its_index_files(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    sizes = settings(name)
    slots = int(sizes.get("maxHashSlotNum", 5_000_000))
    entries = int(sizes.get("maxIndexNum", 20_000_000))
    theirs = MessageIndex.load(OsDisk(), str(store / "index"), slots=slots, entries=entries)
    ours = new_index(tmp_path, slots=slots, entries=entries)

    for path in sorted((store / "commitlog").iterdir()):
        data = OsDisk().read_at(str(path), 0, 1 << 20)
        starts, _ = walk(data)
        ours.put_run(data, parse_run(data, starts), now_ms=NOW_MS)

    assert len(ours.files) == len(theirs.files)
    for mine, java in zip(ours.files, theirs.files, strict=True):
        assert mine.header == java.header
        assert _same_bytes(mine, java)


def _same_bytes(one: IndexFile, other: IndexFile) -> bool:
    end = 40 + one.slot_count * 4 + one.header.next_entry * 20
    return bytes(one.mapping.view[:end]) == bytes(other.mapping.view[:end])


@pytest.mark.parametrize("name", ["5", "2026", "+1", "9" * 19])
def test_a_file_that_is_not_of_the_index_is_left_as_it_is(name: str, tmp_path: Path) -> None:
    put(new_index(tmp_path), records({"properties": {"KEYS": "k"}}))
    other = tmp_path / "index" / name
    other.write_bytes(b"\x01" * 60)

    index = MessageIndex.load(
        OsDisk(), str(tmp_path / "index"), slots=SLOTS, entries=ENTRIES, discard_after_ms=0
    )

    assert other.read_bytes() == b"\x01" * 60
    assert not index.cut
