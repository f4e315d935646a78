"""The views of queues, index and tables, held against Apache's own description of the recorded stores."""

import shutil
from pathlib import Path

import pytest

from pocketmq.proto.errors import GroupNotFound
from pocketmq.tools.cli import run

from ...recorded import expected, recorded_names, recorded_store
from . import damaging
from .inspecting import document, lines, unchanged, view

SOUND = [name for name in recorded_names() if not name.startswith("damaged-")]


@pytest.mark.parametrize("name", [n for n in SOUND if n != "unclean"])
def test_queues_list_the_entries_that_apache_reads(name: str) -> None:
    for queue in expected(name)["queues"]:
        wanted = [entry for entry in queue["entries"] if entry[0] not in queue["unreachable"]]
        if not wanted:
            continue

        found = lines(unchanged(name), "queue", queue["topic"], str(queue["queueId"]))

        fields = ("queue_offset", "log_offset", "size", "tags_code")
        assert [[row[field] for field in fields] for row in found] == [one[:4] for one in wanted]
        assert all(row["problem"] is None for row in found)


def test_a_queue_is_listed_from_to_and_from_its_end() -> None:
    store = unchanged("rolled")

    between = lines(store, "queue", "Fill0", "0", "--since", "98", "--until", "103")
    last = lines(store, "queue", "Fill0", "0", "--last", "2")

    assert [row["queue_offset"] for row in between] == [98, 99, 100, 101, 102]
    assert [row["queue_offset"] for row in last] == [958, 959]


def test_batches_are_found_by_a_queue_offset_inside() -> None:
    found = lines(unchanged("encodings"), "queue", "InnerBatched", "0", "--since", "5")

    assert [(row["queue_offset"], row["messages"]) for row in found] == [(2, 20)]


def test_entries_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    offset, size, code = damaging.entry(store, "Fill0", 0, 1)
    damaging.write_entry(store, "Fill0", 0, 1, (offset + 1, size, code))
    damaging.write_entry(store, "Fill0", 0, 2, damaging.entry(store, "Fill0", 0, 4))
    offset, size, code = damaging.entry(store, "Fill0", 0, 3)
    damaging.write_entry(store, "Fill0", 0, 3, (offset, size, code + 1))

    found = lines(store, "queue", "Fill0", "0", "--limit", "4")

    assert [row["problem"] for row in found] == [
        None,
        "points to no record",
        "points to another message's record",
        "has a wrong tags code",
    ]


def test_a_hole_in_a_queue_is_a_row() -> None:
    store = unchanged("damaged-missing-queue-file")

    found = lines(store, "queue", "Fill0", "0", "--since", "499", "--limit", "3")

    assert [row["queue_offset"] for row in found] == [499, 500, 600]
    assert found[1]["problem"] == "no file covers 100 entries from here on"


def test_unknown_queues_are_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    store = str(unchanged("rolled"))

    assert run(["inspect", store, "queue", "Fill2", "9"]) == 3
    assert "it has 0, 1, 2, 3" in capsys.readouterr().err
    assert run(["inspect", store, "queue", "../../etc", "0"]) == 3
    assert run(["inspect", store, "queue", "Fill2", "-1"]) == 2


@pytest.mark.parametrize("name", SOUND)
def test_index_files_have_the_headers_that_apache_reads(name: str) -> None:
    if name.startswith("unclean"):  # recovery deletes and builds index files
        return
    found = lines(unchanged(name), "index")

    assert [
        {
            "name": row["file"],
            "beginTimestamp": row["begin_ms"],
            "endTimestamp": row["end_ms"],
            "beginPhyOffset": row["begin_log_offset"],
            "endPhyOffset": row["end_log_offset"],
            "hashSlotCount": row["slots_used"],
            "indexCount": row["entries"] + 1,
        }
        for row in found
    ] == expected(name)["indexFiles"]
    assert all(row["problem"] is None for row in found)


def test_index_entries_point_to_records_with_keys() -> None:
    store = unchanged("rolled")
    records = {row["log_offset"]: row for row in lines(store, "log") if "topic" in row}

    found = lines(store, "index", "last")

    assert len(found) == 1411
    for row in found:
        record = records[row["log_offset"]]
        assert abs(record["stored_ms"] - row["stored_ms"]) < 1000
        assert row["slot"] == row["key_hash"] % 500
    chosen = found[700]
    same = lines(store, "index", "last", "--hash", str(chosen["key_hash"]))
    assert chosen in same
    assert {row["key_hash"] for row in same} == {chosen["key_hash"]}
    later = lines(store, "index", "last", "--since", str(chosen["log_offset"]))
    assert later[0]["log_offset"] == chosen["log_offset"]


def test_an_index_file_that_is_not_there_is_not_found() -> None:
    assert run(["inspect", str(unchanged("rolled")), "index", "20200101000000000"]) == 3
    assert run(["inspect", str(unchanged("rolled")), "index", "--hash", "3"]) == 2


@pytest.mark.parametrize("name", SOUND)
def test_the_checkpoint_has_apaches_values(name: str) -> None:
    fields = document(unchanged(name), "checkpoint")["fields"]

    assert {one["name"]: one["value"] for one in fields} == expected(name)["checkpointBefore"]
    assert all(int(one["hex"], 16) == one["value"] for one in fields)


@pytest.mark.parametrize("name", ["consumption", "transactions", "delays", "basic"])
def test_offsets_stand_beside_their_queues(name: str) -> None:
    wanted = expected(name)
    ends = {(q["topic"], q["queueId"]): q["maxOffset"] for q in wanted["queues"]}

    found = lines(unchanged(name), "offsets")

    table: dict[str, dict[str, int]] = {}
    for row in found:
        key = f"{row['topic']}@{row['group']}"
        table.setdefault(key, {})[str(row["queue"])] = row["committed_offset"]
        if row["max_offset"] is not None:
            end = ends.get((row["topic"], row["queue"]), 0)
            assert (row["max_offset"], row["lag"]) == (end, max(0, end - row["committed_offset"]))
    assert table == {
        key: value for key, value in wanted["config"]["consumerOffsets"].items() if value
    }


def test_offsets_are_filtered_by_group_and_topic() -> None:
    store = unchanged("consumption")

    found = lines(store, "offsets", "--group", "G_tag", "--topic", "Consumed")

    assert [(row["queue"], row["lag"]) for row in found] == [(0, 8), (1, 8), (2, 8), (3, 7)]
    with pytest.raises(GroupNotFound, match="group 'nobody' does not exist"):
        view(store, "offsets", "--group", "nobody")


def test_a_queue_that_was_never_written_is_empty_and_one_that_no_topic_has_is_not_there(
    tmp_path: Path,
) -> None:
    store = recorded_store("consumption", tmp_path / "store")
    table = '{"offsetTable":{"Consumed@g":{0:1,3:0,7:0}}}'
    (store / "config" / "consumerOffset.json").write_text(table)
    shutil.rmtree(store / "consumequeue" / "Consumed" / "3")

    found = lines(store, "offsets")

    assert [(row["queue"], row["max_offset"], row["lag"], row["problem"]) for row in found] == [
        (0, 38, 37, None),
        (3, 0, 0, None),
        (7, None, None, "no such queue"),
    ]


def test_topics_and_groups_are_those_of_the_tables() -> None:
    config = expected("consumption")["config"]

    topics = {row["topic"]: row for row in lines(unchanged("consumption"), "topics")}
    groups = {row["group"]: row for row in lines(unchanged("consumption"), "groups")}

    assert set(topics) <= set(config["topics"])
    for name, row in topics.items():
        assert row["read_queues"] == config["topics"][name]["readQueueNums"]
        assert row["permission"] == config["topics"][name]["perm"]
    for name, bean in config["subscriptionGroups"].items():
        assert groups[name]["retry_max_times"] == bean["retryMaxTimes"]
    assert groups["G_tag"]["lag"] == 31


def test_a_table_that_nobody_can_read_is_an_error(tmp_path: Path) -> None:
    store = recorded_store("consumption", tmp_path / "store")
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store / "config" / name).write_text("{ no")

    assert run(["inspect", str(store), "offsets"]) not in (0, 2)
    assert view(store, "overview").exit_code == 1


def test_delay_levels_say_what_is_due_next() -> None:
    found = {row["level"]: row for row in lines(unchanged("delays"), "schedule")}

    delivered = expected("delays")["config"]["delayOffsets"]
    assert sum(row["waiting"] for row in found.values()) == 15
    for level, row in found.items():
        assert row["delivered_offset"] == delivered.get(str(level), 0)
    queue = lines(unchanged("delays"), "queue", "SCHEDULE_TOPIC_XXXX", "17")
    assert found[18]["next_due_ms"] == queue[0]["tags_code"]
    assert found[18]["last_due_ms"] == queue[-1]["tags_code"]


def test_timers_are_those_that_apache_reads() -> None:
    wanted = expected("delays")["timer"]

    found = document(unchanged("delays"), "timer", "--all")

    assert [
        (row["slot"], row["due_ms"], row["first_position"], row["last_position"], row["messages"])
        for row in sorted(found["slots"], key=lambda row: int(row["slot"]))
    ] == [
        (one["index"], one["timeMs"], one["firstPos"], one["lastPos"], one["num"])
        for one in wanted["slots"]
    ]
    assert sum(row["messages"] for row in found["slots"] if row["pending"]) == 9
    records = lines(unchanged("delays"), "timer", "--log")
    assert [row["position"] for row in records] == list(range(0, 52 * 26, 52))
    assert found["log"][0]["records"] == 26


def test_open_transactions_are_as_many_as_apache_counts() -> None:
    store = unchanged("transactions")

    found = lines(store, "transactions")
    every = lines(store, "transactions", "--all")

    assert len(found) == 10
    assert document(store, "overview")["waiting"]["open_transactions"] == 10
    assert {row["state"] for row in every} == {"open", "ended", "put again"}
    assert len({row["message_id"] for row in found}) == len(found)
    halves = next(
        q for q in expected("transactions")["queues"] if q["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"
    )
    assert [row["queue_offset"] for row in every] == [entry[0] for entry in halves["entries"]]


def test_queue_and_index_are_listed_from_a_time() -> None:
    store = unchanged("rolled")
    records = [row for row in lines(store, "log") if "topic" in row]
    time_ms = records[2000]["stored_ms"]
    later = [row for row in records if row["stored_ms"] >= time_ms]

    entries = lines(store, "queue", "Fill1", "1", "--since", f"@{time_ms}")
    before = lines(store, "queue", "Fill1", "1", "--until", f"@{time_ms}")
    keys = lines(store, "index", "last", "--since", f"@{time_ms}")

    wanted = [r["queue_offset"] for r in later if (r["topic"], r["queue"]) == ("Fill1", 1)]
    assert [row["queue_offset"] for row in entries] == wanted
    assert [row["queue_offset"] for row in before] == list(range(wanted[0]))
    assert keys[0]["log_offset"] >= later[0]["log_offset"]


def test_a_record_is_shown_by_its_offset_id() -> None:
    record = expected("basic")["records"][5]

    found = document(unchanged("basic"), "record", record["msgId"])

    assert found["log_offset"] == record["physicalOffset"]
    assert run(["inspect", str(unchanged("basic")), "record", "x" * 32]) == 2
