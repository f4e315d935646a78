"""Recovery: every sound record stays, damage costs what it hit, and a second recovery changes nothing."""

import os
import random
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings, strategies as st

from pocketmq.proto.record import QUEUE_ID_AT, QUEUE_OFFSET_AT, SYS_ROLLBACK, Record, decode_record
from pocketmq.store.format.index import IndexShape
from pocketmq.store.format.state_tables import TopicConfig, TopicTable, render_topics
from pocketmq.store.message_store import MessageStore
from pocketmq.store.recovery.report import FindingKind

from ..runs import Hand, bodies_of, make_run, open_store, records_of

pytestmark = pytest.mark.slow

QUEUES = [("A", 0), ("A", 1), ("Beta", 0)]
LOG_FILE = 4096
INDEX = IndexShape(slots=50, entries=200)


def filled(
    home: Path, seed: int, *, clean: bool, runs: int = 40
) -> dict[tuple[str, int], list[Record]]:
    """Make a store of several files in HOME; return what it holds."""
    rng = random.Random(seed)
    clock = Hand()
    store = open_store(home, now_ms=clock)
    for number in range(runs):
        clock.now_ms += rng.randrange(5)
        topic, queue = rng.choice(QUEUES)
        bodies = [rng.randbytes(rng.randrange(1, 300)) for _ in range(rng.randrange(1, 4))]
        properties = {"KEYS": f"k{number}", "UNIQ_KEY": f"{seed}-{number}", "TAGS": "t"}
        store.append(make_run(topic, queue, bodies, properties))
    held = {name: records_of(store, *name) for name in QUEUES if name in store.queue_names()}
    if clean:
        store.close()
    else:
        store._close_files()
    return held


def forget_verified(home: Path) -> None:
    (home / "pocketmq" / "verified.json").unlink(missing_ok=True)


def overwrite(home: Path, log_offset: int, data: bytes) -> None:
    name = f"{log_offset // LOG_FILE * LOG_FILE:020d}"
    with open(home / "commitlog" / name, "r+b") as file:
        file.seek(log_offset % LOG_FILE)
        file.write(data)


def everything(home: Path) -> dict[str, bytes]:
    """Return the bytes of everything that recovery may write, but for what names the process and the moment."""
    kept = ("commitlog", "consumequeue", "index", "checkpoint")
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.relative_to(home).parts[0] in kept
    }


def require_second_recovery_changes_nothing(home: Path) -> None:
    before = everything(home)
    forget_verified(home)
    store = open_store(home)
    changes = [found for found in store.recovery.findings if found.kind is not FindingKind.HOLE]
    assert changes == []
    store.close()
    assert everything(home) == before


def require_all_but(
    store: MessageStore, held: dict[tuple[str, int], list[Record]], lost: set[int]
) -> None:
    """Every record but those at the log offsets LOST is at its queue offset, whole."""
    for (topic, queue), records in held.items():
        for record in records:
            if record.log_offset in lost:
                continue
            found = store.read_queue(topic, queue, record.queue_offset, 1, 1 << 20)
            assert decode_record(found.records) == record
            key = record.properties["KEYS"]
            assert record.log_offset in store.lookup(topic, key)


def all_records(held: dict[tuple[str, int], list[Record]]) -> list[Record]:
    return sorted((r for records in held.values() for r in records), key=lambda r: r.log_offset)


@pytest.mark.long
@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    clean=st.booleans(),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_one_flipped_bit_costs_at_most_one_record(
    seed: int, clean: bool, where: float, bit: int
) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        held = filled(home, seed, clean=clean)
        records = all_records(held)
        end = records[-1].log_offset + records[-1].total_size
        at = int(where * end)
        file = home / "commitlog" / f"{at // LOG_FILE * LOG_FILE:020d}"
        byte = file.read_bytes()[at % LOG_FILE]
        overwrite(home, at, bytes([byte ^ 1 << bit]))
        forget_verified(home)
        hit = {r.log_offset for r in records if r.log_offset <= at < r.log_offset + r.total_size}

        store = open_store(home)

        require_all_but(store, held, hit)
        store.close()
        require_second_recovery_changes_nothing(home)
    finally:
        shutil.rmtree(home)


@pytest.mark.long
@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    clean=st.booleans(),
    where=st.floats(0, 1, exclude_max=True),
    size=st.integers(1, 2 * LOG_FILE),
    filling=st.sampled_from([b"\0", b"\xff", b"\xda\xa3\x20\xa7", b"\0\0\1\0\xda\xa3\x20\xa7"]),
)
# The byte hit is the tag of the newest record, and the key of the tag that it has since fills the index file.
@example(seed=271, clean=False, where=1 - 2**-52, size=1, filling=b"\0")
def test_an_overwritten_stretch_costs_the_records_in_it(
    seed: int, clean: bool, where: float, size: int, filling: bytes
) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        held = filled(home, seed, clean=clean)
        records = all_records(held)
        end = records[-1].log_offset + records[-1].total_size
        at = int(where * end)
        stop = min(at + size, at // LOG_FILE * LOG_FILE + LOG_FILE)
        overwrite(home, at, (filling * (stop - at))[: stop - at])
        forget_verified(home)
        hit = {
            r.log_offset
            for r in records
            if r.log_offset < stop and at < r.log_offset + r.total_size
        }

        store = open_store(home)

        require_all_but(store, held, hit)
        store.close()
        require_second_recovery_changes_nothing(home)
    finally:
        shutil.rmtree(home)


@pytest.mark.long
@settings(max_examples=30)
@given(seed=st.integers(0, 1000), clean=st.booleans(), data=st.data())
def test_lost_or_damaged_queue_and_index_files_cost_nothing(
    seed: int, clean: bool, data: st.DataObject
) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        held = filled(home, seed, clean=clean)
        files = sorted([*home.glob("consumequeue/*/*/*"), *home.glob("index/*")])
        chosen = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=5, unique=True))
        for file in chosen:
            if data.draw(st.booleans()):
                file.unlink()
                continue
            before = file.read_bytes()
            at = data.draw(st.integers(0, len(before) - 8))
            with open(file, "r+b") as writer:
                writer.seek(at)
                writer.write(data.draw(st.binary(min_size=1, max_size=8)))
            if file.parent.name == "index":
                assume(not is_as_good(before, file.read_bytes()))
        forget_verified(home)

        store = open_store(home)

        require_all_but(store, held, set())
        for (topic, queue), records in held.items():
            assert store.queue_bounds(topic, queue) == (0, len(records))
        store.close()
        require_second_recovery_changes_nothing(home)
    finally:
        shutil.rmtree(home)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_damaged_header_does_not_hide_that_an_index_file_is_lost(
    lost: int, tmp_path: Path
) -> None:
    held = filled(tmp_path, 0, clean=False)
    files = sorted(tmp_path.glob("index/*"))
    assert len(files) == 2
    files[lost].unlink()
    with open(files[1 - lost], "r+b") as writer:
        writer.seek(
            24 if lost else 16
        )  # The last or the first log offset of the file that is left.
        writer.write(struct.pack(">q", 1 << 56 if lost else 0))
    forget_verified(tmp_path)

    store = open_store(tmp_path)

    require_all_but(store, held, set())
    store.close()


def is_as_good(before: bytes, after: bytes) -> bool:
    """Has an index file now another hash of the same slot, or another record's log offset? The check finds neither."""
    was, now = (INDEX.entries_in(content) for content in (before, after))
    hashes = (was["key_hash"] != now["key_hash"]) & (
        was["key_hash"] % INDEX.slots == now["key_hash"] % INDEX.slots
    )
    offsets = (was["log_offset"] != now["log_offset"]) & np.isin(
        now["log_offset"], was["log_offset"]
    )
    return bool((hashes | offsets).any())


@pytest.mark.parametrize("clean", [True, False])
def test_a_clean_stop_is_not_read_again(clean: bool, tmp_path: Path) -> None:
    filled(tmp_path, 1, clean=clean)

    store = open_store(tmp_path)

    assert store.recovery.findings == []
    assert (store.recovery.scanned_records == 0) == clean
    store.close()


def test_what_was_verified_is_not_believed_when_the_log_is_another(tmp_path: Path) -> None:
    held = filled(tmp_path, 2, clean=True)
    last = all_records(held)[-1]
    overwrite(tmp_path, last.log_offset + 12, b"\x01")

    store = open_store(tmp_path)

    assert store.recovery.scanned_records > 0
    store.close()


def test_the_number_of_a_damaged_last_record_is_not_given_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("A", 0, [b"one", b"two", b"three"]))
    store.append(make_run("B", 0, [b"other"]))
    third = records_of(store, "A", 0)[2]
    store.close()
    overwrite(tmp_path, third.log_offset + 90, b"X")
    forget_verified(tmp_path)

    store = open_store(tmp_path)

    assert store.append(make_run("A", 0, [b"four"])).first_queue_offset == 3
    bodies = {record.queue_offset: record.body for record in records_of(store, "A", 0)}
    assert bodies == {0: b"one", 1: b"two", 3: b"four"}
    store.close()


def test_a_damaged_record_is_set_aside_and_becomes_a_void(tmp_path: Path) -> None:
    held = filled(tmp_path, 3, clean=True)
    record = all_records(held)[4]
    damaged = bytearray(
        (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[
            record.log_offset : record.log_offset + record.total_size
        ]
    )
    damaged[90] ^= 1
    overwrite(tmp_path, record.log_offset, bytes(damaged))
    forget_verified(tmp_path)

    store = open_store(tmp_path)

    saved = tmp_path / "pocketmq/broken" / f"log-{record.log_offset:020d}"
    assert saved.read_bytes() == bytes(damaged)
    left = bytes(store.log.read(record.log_offset, record.total_size) or b"")
    assert store.by_message_id(record.message_id) is None
    assert decode_record(left).sys_flag & SYS_ROLLBACK == SYS_ROLLBACK
    assert decode_record(left).crc_ok
    assert record.log_offset not in store.lookup(record.topic, record.properties["KEYS"])
    [finding] = [found for found in store.recovery.findings if found.kind is FindingKind.SKIPPED]
    assert (finding.offset, finding.records) == (record.log_offset, 1)
    assert "CRC" in store.recovery.text()
    store.close()


_IMPOSSIBLE = {
    "both": (struct.pack(">iiq", 1_660_845_777, 0, 3_905_924_565_998_700_000), True),
    "queue": (struct.pack(">i", 1_660_845_777), True),
    "negative queue": (struct.pack(">i", -2), True),
    "a bit of the queue": (struct.pack(">i", 1 << 16), False),
}


@pytest.mark.parametrize("what", _IMPOSSIBLE)
@pytest.mark.parametrize("clean", [True, False])
def test_a_record_whose_queue_or_number_cannot_be_is_damaged(
    what: str, clean: bool, tmp_path: Path
) -> None:
    """It was made a folder or file of, which the next start refused."""
    held = filled(tmp_path, 5, clean=clean)
    record = all_records(held)[4]
    new, is_set_aside = _IMPOSSIBLE[what]
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_text(
        render_topics(
            TopicTable(
                topics={
                    name: TopicConfig(name=name, read_queues=4, write_queues=4)
                    for name, _ in QUEUES
                }
            )
        )
    )
    overwrite(tmp_path, record.log_offset + QUEUE_ID_AT, new)
    forget_verified(tmp_path)

    store = open_store(tmp_path)
    kind = FindingKind.SKIPPED if is_set_aside else FindingKind.NOTED
    assert [found.records for found in store.recovery.findings if found.kind is kind] == [1]
    for name, records in held.items():
        expected = [one for one in records if one.log_offset != record.log_offset]
        assert [one.body for one in records_of(store, *name)] == [one.body for one in expected]
    store.close()
    again = open_store(tmp_path)
    assert again.recovery.findings == []
    again.close()
    if is_set_aside:
        assert set(again.queue_names()) <= set(QUEUES)


@pytest.mark.parametrize("number", [-1, (1 << 48) + 1, 3_905_924_565_998_700_000, (1 << 63) - 1])
@pytest.mark.parametrize("is_alone", [True, False])
def test_no_file_is_made_for_a_number_that_cannot_be(
    number: int, is_alone: bool, tmp_path: Path
) -> None:
    store = open_store(tmp_path)
    names = [("A", 0)] if is_alone else [("A", 0), ("A", 0), ("B", 0), ("A", 0)]
    offsets = [int(store.append(make_run(*name, [b"body"])).log_offsets[0]) for name in names]
    store.append(make_run("Z", 0, [b"the last record of the log"]))
    store.close()
    overwrite(tmp_path, offsets[0] + QUEUE_OFFSET_AT, struct.pack(">q", number))
    forget_verified(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    assert len(records_of(store, "A", 0)) == (0 if is_alone else 2)
    assert [found.kind for found in store.recovery.findings][:1] == [FindingKind.SKIPPED]
    store.append(make_run("A", 0, [b"more"]))
    store._close_files()
    store = open_store(tmp_path)
    assert bodies_of(store, "A", 0)[-1] == b"more"
    store.close()


def test_a_folder_for_a_queue_that_cannot_be_is_left_alone(tmp_path: Path) -> None:
    """An earlier version made such folders."""
    held = filled(tmp_path, 5, clean=True)
    folder = tmp_path / "consumequeue/A/1660845777"
    folder.mkdir()
    (folder / "78118491319974000000").write_bytes(b"\0" * 400)
    store = open_store(tmp_path)
    assert {name: records_of(store, *name) for name in held} == held
    store.close()


@pytest.mark.parametrize("place", [4, -1], ids=["in the middle", "at the end"])
def test_a_record_whose_properties_were_not_written_to_their_end_is_none(
    place: int, tmp_path: Path
) -> None:
    """As a kill or a power cut amid a write leaves it. Its body is whole, its keys and tags are not."""
    held = filled(tmp_path, 3, clean=False)
    record = all_records(held)[place]
    overwrite(tmp_path, record.log_offset + record.total_size - 7, bytes(7))

    store = open_store(tmp_path)

    require_all_but(store, held, {record.log_offset})
    assert store.by_message_id(record.message_id) is None
    assert (store.max_log_offset == record.log_offset) == (place == -1)
    text = store.recovery.text()
    assert ("the end of its topic or properties was not written" in text) == (place == 4), text
    store.close()
    require_second_recovery_changes_nothing(tmp_path)


@pytest.mark.parametrize(
    ("properties", "unwritten"), [({}, 3), ({}, 17), ({}, 18), ({"a": "b"}, 5), ({"a": "b"}, 21)]
)
def test_a_record_whose_topic_was_not_written_is_none(
    tmp_path: Path, properties: dict[str, str], unwritten: int
) -> None:
    """Behind a body stand a byte, 15 of the topic, two and the properties, of which there may be none."""
    store = open_store(tmp_path)
    store.append(make_run("A", 0, [b"whole"], properties))
    end = store.max_log_offset
    store.append(make_run("orders-of-today", 0, [b"torn"], properties))
    store._close_files()
    overwrite(tmp_path, store.max_log_offset - unwritten, bytes(unwritten))

    store = open_store(tmp_path)

    assert store.max_log_offset == end
    assert store.queue_names() == [("A", 0), ("orders-of-today", 0)]
    assert store.queue_bounds("orders-of-today", 0) == (0, 0)
    store.close()


def test_stale_records_behind_the_end_stay_dead(tmp_path: Path) -> None:
    """A cut that zeroed nothing, as Apache's: old records of the same places follow the new end."""
    clock = Hand()
    store = open_store(tmp_path, now_ms=clock)
    store.append(make_run("A", 0, [b"a" * 50] * 6, {"KEYS": "k"}))
    store.append(make_run("A", 1, [b"a" * 50] * 2, {"KEYS": "k"}))
    old = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    first, second = records_of(store, "A", 0)[:2]
    store.close()
    shutil.rmtree(tmp_path)
    clock.now_ms += 1000
    store = open_store(tmp_path, now_ms=clock)
    store.append(make_run("A", 1, [b"b" * 50] * 2, {"KEYS": "k"}))
    end = store.max_log_offset
    store._close_files()
    assert end == second.log_offset + second.total_size
    overwrite(tmp_path, end, old[end : end + 4 * first.total_size])

    store = open_store(tmp_path, now_ms=clock)

    assert [record.body for record in records_of(store, "A", 1)] == [b"b" * 50] * 2
    assert store.queue_names() == [("A", 1)]
    assert store.max_log_offset == end
    store.close()
    require_second_recovery_changes_nothing(tmp_path)


def test_a_clock_that_stepped_back_costs_nothing(tmp_path: Path) -> None:
    """Apache stamps what the clock says: a record may be older than the one in front of it."""
    held = filled(tmp_path, 9, clean=False)
    records = all_records(held)
    for record in records[-4:]:
        earlier = struct.pack(">q", record.store_timestamp_ms - 60_000)
        overwrite(tmp_path, record.log_offset + 56, earlier)

    store = open_store(tmp_path)

    assert store.recovery.findings == []
    assert store.max_log_offset == records[-1].log_offset + records[-1].total_size
    store.close()


@pytest.mark.parametrize("clean", [False, True])
def test_one_time_that_is_wrong_cuts_nothing_though_a_queue_is_lost_as_well(
    tmp_path: Path, clean: bool
) -> None:
    """No CRC covers a time: what follows one of the far future is no leftover of an earlier life of the file."""
    held = filled(tmp_path, 2, clean=clean)
    records = all_records(held)
    last_file = [
        one for one in records if one.log_offset >= records[-1].log_offset // LOG_FILE * LOG_FILE
    ]
    wrong = last_file[1]
    before = {(one.topic, one.queue_id) for one in last_file[:2]}
    others = [one for one in last_file[2:] if (one.topic, one.queue_id) not in before]
    assert others, "another queue follows, and has nothing in front of it in the file"
    overwrite(
        tmp_path, wrong.log_offset + 56, struct.pack(">q", wrong.store_timestamp_ms | 1 << 50)
    )
    for path in (tmp_path / "consumequeue" / others[0].topic / str(others[0].queue_id)).iterdir():
        path.write_bytes(bytes(path.stat().st_size))

    store = open_store(tmp_path)

    assert store.max_log_offset == records[-1].log_offset + records[-1].total_size
    for name, wanted in held.items():
        assert [one.body for one in records_of(store, *name)] == [one.body for one in wanted]
    store.close()


def test_a_missing_log_file_costs_what_it_held(tmp_path: Path) -> None:
    held = filled(tmp_path, 4, clean=True)
    (tmp_path / "commitlog" / f"{LOG_FILE:020d}").unlink()
    forget_verified(tmp_path)
    lost = {r.log_offset for r in all_records(held) if LOG_FILE <= r.log_offset < 2 * LOG_FILE}

    store = open_store(tmp_path)

    assert lost
    require_all_but(store, held, lost)
    assert [found.kind for found in store.recovery.findings] == [FindingKind.HOLE]
    store.close()


def test_without_any_log_file_numbers_go_on(tmp_path: Path) -> None:
    held = filled(tmp_path, 5, clean=True)
    shutil.rmtree(tmp_path / "commitlog")

    store = open_store(tmp_path)

    count = len(held["A", 0])
    assert store.append(make_run("A", 0, [b"new"])).first_queue_offset == count
    assert [record.body for record in records_of(store, "A", 0)] == [b"new"]
    store.close()
    store = open_store(tmp_path)
    assert store.queue_bounds("A", 0) == (count, count + 1)
    store.close()


def test_a_missing_checkpoint_costs_nothing(tmp_path: Path) -> None:
    held = filled(tmp_path, 6, clean=False)
    (tmp_path / "checkpoint").unlink()

    store = open_store(tmp_path)

    require_all_but(store, held, set())
    store.close()


def test_a_damaged_store_time_does_not_move_the_clock(tmp_path: Path) -> None:
    held = filled(tmp_path, 7, clean=False)
    records = all_records(held)
    overwrite(tmp_path, records[5].log_offset + 56, struct.pack(">q", 1 << 60))
    overwrite(tmp_path, records[9].log_offset + 4, b"\0\0\0\0")

    store = open_store(tmp_path)

    require_all_but(store, held, {records[5].log_offset, records[9].log_offset})
    assert store.append(make_run("A", 0, [b"x"])).store_timestamp_ms < 1 << 50
    store.close()


def test_the_report_is_plain_json(tmp_path: Path) -> None:
    held = filled(tmp_path, 8, clean=False)
    overwrite(tmp_path, all_records(held)[3].log_offset, os.urandom(8))

    store = open_store(tmp_path)

    report = store.recovery.to_json()
    assert report["policy"] == "pocketmq"
    assert report["clean"] is False
    assert report["findings"]
    assert store.recovery.text().count("\n") == len(store.recovery.findings)
    store.close()


def test_a_damaged_index_of_a_lost_log_is_found_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path, log_file_size_bytes=65_536)
    store.append(make_run("T", 0, [b"x"] * 250, [{"KEYS": f"k{n}"} for n in range(250)]))
    store.close()
    shutil.rmtree(tmp_path / "commitlog")
    first = min((tmp_path / "index").iterdir())
    data = bytearray(first.read_bytes())
    data[40:240] = bytes(200)  # All slots.
    first.write_bytes(data)

    store = open_store(tmp_path, log_file_size_bytes=65_536)
    assert FindingKind.REBUILT in {one.kind for one in store.recovery.findings}
    store.close()

    again = open_store(tmp_path, log_file_size_bytes=65_536)
    assert again.recovery.findings == []
    again.close()
