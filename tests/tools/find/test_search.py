"""Look-ups in the files of stores: what Apache's broker finds is found, and more where it gives up."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.message_id import offset_message_id
from pocketmq.store.format.index import index_key, key_hash
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.find import search as search_module
from pocketmq.tools.find.search import LookupAnswer, StoreSearch, TimeRange
from pocketmq.tools.stores.filesystem_disk import FileSystemDisk

from ...recorded import expected, recorded_store
from ...runs import Hand, make_run, open_store
from ...stores import fingerprint

SOUND = ["basic", "rolled", "encodings", "delays", "transactions", "consumption", "cleaned"]
#: Stores whose log is what Java's recovery keeps: the same messages, by any way, or more.
DAMAGED = [
    "damaged-garbage-index", "damaged-short-index", "damaged-missing-middle-log", "damaged-missing-queue-file",
    "damaged-torn-tail", "damaged-zeroed-tail", "damaged-no-checkpoint", "damaged-no-queues", "unclean",
]  # fmt: skip
MANY = 100_000


def open_search(path: Path) -> StoreSearch:
    return StoreSearch(OsDisk(), str(path))


def small_store(path: Path) -> MessageStore:
    return open_store(path, now_ms=Hand(), index_slots=500, index_entries=2000)


def offsets(found: LookupAnswer) -> list[int]:
    return [one.log_offset for one in found.hits]


def asked(lookup: dict[str, Any]) -> dict[str, Any]:
    return {"topic": lookup["topic"], "key": lookup["key"], "kind": lookup.get("indexType", "K")}


@pytest.mark.parametrize("name", SOUND)
def test_every_key_leads_to_the_messages_that_java_finds(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    before = fingerprint(store)
    search = open_search(store)

    for lookup in expected(name)["lookups"]:
        found = offsets(search.by_key(**asked(lookup), count=64))

        assert found == sorted(set(lookup["offsets"])), lookup
    assert fingerprint(store) == before


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_to_the_index_hides_nothing_that_the_log_holds(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    before = fingerprint(store)
    search = open_search(store)

    for lookup in expected(name)["lookups"][::7]:
        found = search.by_key(**asked(lookup), count=MANY)

        assert set(lookup["offsets"]) <= set(offsets(found)), lookup
        assert all(lookup["topic"] == one.record.topic for one in found.hits)
    assert fingerprint(store) == before


def test_a_damaged_index_file_costs_a_search_of_its_part_of_the_log(tmp_path: Path) -> None:
    store = recorded_store("damaged-garbage-index", tmp_path / "store")
    whole = recorded_store("rolled", tmp_path / "whole")

    for lookup in expected("rolled")["lookups"][::20]:
        found = open_search(store).by_key(**asked(lookup), count=MANY)

        assert offsets(found) == offsets(open_search(whole).by_key(**asked(lookup), count=MANY))
        assert 0 < found.scanned_bytes < 400_000


@pytest.mark.parametrize(("head", "scan"), [(b"\xff" * 8, False), (bytes(8), True)])
@pytest.mark.parametrize("is_local", [True, False])
def test_damage_in_the_newest_log_file_hides_only_the_record_that_it_hit(
    head: bytes, scan: bool, is_local: bool, tmp_path: Path
) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    shutil.rmtree(store / "index")
    file = max((store / "commitlog").iterdir())
    records = expected("rolled")["records"]
    behind = [one for one in records if one["physicalOffset"] > int(file.name)]
    last = max(behind, key=lambda one: one["physicalOffset"])
    with file.open("r+b") as opened:
        opened.seek(behind[0]["physicalOffset"] - int(file.name))
        opened.write(head)
    search = StoreSearch(OsDisk(), str(store), mapped=is_local)

    found = search.by_id(last["properties"]["UNIQ_KEY"], scan=scan)

    assert offsets(found) == [last["physicalOffset"]]


def test_what_is_too_much_to_search_unasked_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "SCAN_BYTES", 1000)
    store = recorded_store("damaged-garbage-index", tmp_path / "store")
    key = next(
        one
        for one in expected("rolled")["lookups"]
        if one["offsets"] and one["offsets"][-1] > 1_300_000
    )

    found = open_search(store).by_key(**asked(key))
    scanned = open_search(store).by_key(**asked(key), scan=True)

    assert found.may_have_existed
    assert found.scanned_bytes == 0
    assert any("--scan" in note for note in found.notes)
    assert set(key["offsets"]) <= set(offsets(scanned))


@pytest.mark.parametrize("name", ["basic", "encodings", "consumption", "damaged-flip-middle-clean"])
def test_every_message_is_found_by_its_ids_and_offsets(name: str, tmp_path: Path) -> None:
    search = open_search(recorded_store(name, tmp_path / "store"))

    for record in expected(name)["records"]:
        place = record["physicalOffset"]
        properties = record["properties"]
        assert offsets(search.by_id(record["msgId"])) == [place]
        assert offsets(search.by_id(record["msgId"].lower(), record["topic"])) == [place]
        assert offsets(search.by_log_offset(place)) == [place]
        by_offset = search.by_queue_offset(
            record["topic"], record["queueId"], record["queueOffset"]
        )
        assert offsets(by_offset) == [place]
        if "UNIQ_KEY" in properties:
            found = search.by_id(properties["UNIQ_KEY"], count=MANY)
            assert place in offsets(found)
            assert {one.record.properties["UNIQ_KEY"] for one in found.hits} == {
                properties["UNIQ_KEY"]
            }


def test_a_damaged_body_is_shown_and_said_to_be_damaged(tmp_path: Path) -> None:
    search = open_search(recorded_store("damaged-flip-middle-clean", tmp_path / "store"))

    (hit,) = search.by_log_offset(819_308).hits

    assert hit.faults == ("the body does not fit its CRC",)


def test_times_and_queues_choose_messages_in_their_order(tmp_path: Path) -> None:
    search = open_search(recorded_store("rolled", tmp_path / "store"))
    records = [one for one in expected("rolled")["records"] if one["topic"] == "Fill1"]
    begin, end = records[100]["storeTimestamp"], records[300]["storeTimestamp"]
    inside = [one for one in records if begin <= one["storeTimestamp"] <= end]

    of_topic = search.by_time("Fill1", None, TimeRange(begin, end), count=MANY)
    of_queue = search.by_time("Fill1", 1, TimeRange(begin, end), count=MANY)
    first = search.by_time("Fill1", None, TimeRange(begin), count=3)

    assert offsets(of_topic) == [one["physicalOffset"] for one in inside]
    assert offsets(of_queue) == [one["physicalOffset"] for one in inside if one["queueId"] == 1]
    assert offsets(first) == [one["physicalOffset"] for one in inside[:3]]
    assert (of_topic.more, first.more) == (False, True)


def test_a_range_of_time_narrows_a_key_to_the_millisecond(tmp_path: Path) -> None:
    search = open_search(recorded_store("rolled", tmp_path / "store"))
    records = [
        one
        for one in expected("rolled")["records"]
        if one["topic"] == "Fill0" and "same" in one["properties"].get("KEYS", "").split(" ")
    ]
    times = [one["storeTimestamp"] for one in records]

    for begin, end in ((times[3], times[9]), (times[-1] + 1, times[-1] + 5), (0, times[0])):
        found = search.by_key("Fill0", "same", times=TimeRange(begin, end), count=MANY)

        wanted = [one["physicalOffset"] for one in records if begin <= one["storeTimestamp"] <= end]
        assert offsets(found) == wanted


# ---------------------------------------------------------------- what is gone, and what is another's


def test_entries_that_point_to_deleted_files_tell_that_the_key_may_have_existed(
    tmp_path: Path,
) -> None:
    search = open_search(recorded_store("cleaned", tmp_path / "store"))

    gone = search.by_key("Fill0", "same", count=MANY)

    assert gone.expired
    assert all(one.log_offset < 983_040 for one in gone.expired)
    assert gone.may_have_existed
    assert any("the log begins at 983,040" in note for note in gone.notes)


def test_a_time_that_the_log_covers_leaves_no_doubt(tmp_path: Path) -> None:
    search = open_search(recorded_store("cleaned", tmp_path / "store"))
    assert search.log.begin_time_ms is not None

    found = search.by_key("Fill0", "nobody", times=TimeRange(search.log.begin_time_ms))

    assert (found.hits, found.may_have_existed, found.notes) == ([], False, [])


def test_places_say_why_nothing_is_there(tmp_path: Path) -> None:
    cleaned = open_search(recorded_store("cleaned", tmp_path / "cleaned"))
    holed = open_search(recorded_store("damaged-missing-middle-log", tmp_path / "holed"))

    kinds = {
        at: search.log.at(at).kind  # type: ignore[union-attr]
        for search, at in (
            (cleaned, 5),
            (cleaned, 1_596_587),
            (cleaned, 10**12),
            (cleaned, 983_041),
            (holed, 786_432),
        )
    }

    assert list(kinds.values()) == ["expired", "beyond", "beyond", "nothing", "hole"]
    assert cleaned.by_queue_offset("Fill0", 0, 3).may_have_existed
    assert cleaned.by_queue_offset("Fill0", 0, 3).notes == [
        "queue Fill0/0 has the offsets 596 to 985"
    ]
    assert not cleaned.by_queue_offset("Fill0", 0, 986).may_have_existed
    assert cleaned.by_queue_offset("No", 7, 0).notes == ["the store has no queue No/7"]


@pytest.mark.parametrize(
    "name", ["rolled", "unclean", "cleaned", "damaged-zeroed-tail", "damaged-torn-tail"]
)
def test_the_end_of_the_log_is_found_without_recovery(name: str, tmp_path: Path) -> None:
    plain = open_search(recorded_store(name, tmp_path / "store"))
    hinted = open_search(recorded_store(name, tmp_path / "again"))
    hinted.log.know_of(hinted.index.end_log_offset)

    ends = {plain.log.end, hinted.log.end}

    torn = 432 if name == "damaged-torn-tail" else 0  # its length stands, and so it is walked over
    assert ends == {expected(name)["maxPhyOffset"] + torn}


def test_an_id_of_another_broker_says_whose_place_it_names(tmp_path: Path) -> None:
    search = open_search(recorded_store("basic", tmp_path / "store"))
    (hit,) = search.by_log_offset(0).hits
    host = hit.record.store_host

    found = search.by_id(offset_message_id(host.address, host.port + 1, 0))

    assert found.hits == []
    assert f"stored by {host}" in found.notes[0]


def test_keys_of_one_hash_are_told_apart_and_counted(tmp_path: Path) -> None:
    assert key_hash(index_key("T", "Aa")) == key_hash(index_key("T", "BB"))
    with closing(small_store(tmp_path / "s")) as store:
        for key in ("Aa", "BB", "BB", "other"):
            store.append(make_run("T", 0, [key.encode()], {"KEYS": key}))

    found = open_search(tmp_path / "s").by_key("T", "Aa")

    assert [one.record.body for one in found.hits] == [b"Aa"]
    assert (found.candidates, found.collisions, found.strays) == (3, 2, 0)
    assert "2 index entries with the same hash" in found.sentences()[0]


def test_a_live_store_is_read_up_to_its_newest_message(tmp_path: Path) -> None:
    with closing(small_store(tmp_path / "s")) as store:
        for number in range(50):
            store.append(make_run("T", 0, [b"x"], {"KEYS": f"k{number}"}))
            found = open_search(tmp_path / "s").by_key("T", f"k{number}")
            assert [one.record.queue_offset for one in found.hits] == [number]


def test_a_key_that_waits_in_another_topic_is_pointed_to(tmp_path: Path) -> None:
    search = open_search(recorded_store("delays", tmp_path / "store"))

    found = search.by_key("Timed", "hour-0")

    assert found.hits == []
    assert found.notes == [
        "it is in rmq_sys_wheel_timer: leave --topic out to see it, or ask pocketmq trace"
    ]


def test_a_store_behind_pyarrow_is_searched_page_by_page(tmp_path: Path) -> None:
    pyarrow_fs = pytest.importorskip("pyarrow.fs")
    store = recorded_store("rolled", tmp_path / "store")
    disk = FileSystemDisk(pyarrow_fs.LocalFileSystem(), str(store))
    near, far = open_search(store), StoreSearch(disk, str(store), mapped=False)

    for lookup in expected("rolled")["lookups"][::50]:
        assert offsets(far.by_key(**asked(lookup))) == offsets(near.by_key(**asked(lookup)))
    for record in expected("rolled")["records"][::100]:
        place = record["topic"], record["queueId"], record["queueOffset"]
        assert offsets(far.by_queue_offset(*place)) == [record["physicalOffset"]]
        assert offsets(far.by_id(record["msgId"])) == [record["physicalOffset"]]
    times = TimeRange(expected("rolled")["records"][1500]["storeTimestamp"])
    assert offsets(far.by_time("Fill0", None, times)) == offsets(near.by_time("Fill0", None, times))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_newest_of_a_key_come_first_and_more_is_told(count: int, tmp_path: Path) -> None:
    with closing(small_store(tmp_path / "s")) as store:
        for number in range(4):
            store.append(make_run("T", 0, [b"%d" % number], {"KEYS": "k"}))

    found = open_search(tmp_path / "s").by_key("T", "k", count=count)

    assert [one.record.body for one in found.hits] == [b"0", b"1", b"2", b"3"][-count:]
    assert found.more == (count < 4)


@pytest.mark.parametrize("folder", ["commitlog", "index", "consumequeue"])
def test_a_store_without_a_part_is_no_error(folder: str, tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")
    (store / folder).rename(tmp_path / "away")
    search = open_search(store)
    record = expected("basic")["records"][5]

    by_key = search.by_key(record["topic"], record["properties"]["UNIQ_KEY"])
    by_offset = search.by_queue_offset(record["topic"], record["queueId"], record["queueOffset"])
    by_time = search.by_time(record["topic"], None, TimeRange())

    assert bool(by_key.hits) == (folder != "commitlog")
    assert bool(by_offset.hits) == bool(by_time.hits) == (folder == "index")
