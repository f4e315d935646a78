"""`inspect STORE log`: which records are listed, and in what form."""

import json
from base64 import b64decode
from hashlib import sha256
from pathlib import Path

import pytest

from ...recorded import expected, recorded_store
from .inspecting import lines, unchanged, view

#: Fields, and Apache's names of them.
SAME = {
    "log_offset": "physicalOffset",
    "store_size": "storeSize",
    "topic": "topic",
    "queue": "queueId",
    "queue_offset": "queueOffset",
    "flag": "flag",
    "stored_ms": "storeTimestamp",
    "born_ms": "bornTimestamp",
    "sys_flag": "sysFlag",
    "reconsume_times": "reconsumeTimes",
}


@pytest.mark.parametrize("name", ["basic", "encodings", "rolled", "transactions", "delays"])
def test_rows_have_the_fields_that_apache_reads(name: str) -> None:
    rows = [row for row in lines(unchanged(name), "log") if "topic" in row]

    wanted = expected(name)["records"]
    assert len(rows) == len(wanted)
    for row, record in zip(rows, wanted, strict=True):
        assert {name: row[name] for name in SAME} == {
            name: record[theirs] for name, theirs in SAME.items()
        }
        assert row["body_crc"] == record["bodyCRC"]
        assert row["body_size"] == record["rawBodyLength"]
        assert row["tags"] == record["properties"].get("TAGS")
        assert row["keys"] == record["properties"].get("KEYS")
        assert row["message_id"] == record["properties"].get("UNIQ_KEY")
        assert row["problem"] is None
        assert row["born_host"].rsplit(":", 1)[1] == record["bornHost"].rsplit(":", 1)[1]


def test_filters_choose_records() -> None:
    store = unchanged("rolled")
    every = lines(store, "log")

    found = lines(
        store, "log", "--topic", "Fill2", "--queue", "3", "--since", "100000", "--limit", "7"
    )

    wanted = [
        row
        for row in every
        if row["log_offset"] >= 100_000 and (row.get("topic"), row.get("queue")) == ("Fill2", 3)
    ]
    assert found == wanted[:7]


def test_a_range_of_times_is_from_and_up_to() -> None:
    store = unchanged("rolled")
    every = [row for row in lines(store, "log") if "topic" in row]
    begin, end = every[1000]["stored_ms"], every[2000]["stored_ms"]

    found = lines(store, "log", "--since", f"@{begin}", "--until", f"@{end}", "--topic", "Fill1")

    assert found == [
        row for row in every if begin <= row["stored_ms"] < end and row["topic"] == "Fill1"
    ]


@pytest.mark.parametrize("count", [1, 5, 2999, 5000])
def test_the_last_records_are_found_from_the_end(count: int) -> None:
    store = unchanged("rolled")
    every = [row for row in lines(store, "log") if "topic" in row]

    found = [row for row in lines(store, "log", "--last", str(count)) if "topic" in row]

    assert found == every[-count:]


def test_the_last_records_of_a_topic_are_found_behind_others() -> None:
    store = unchanged("rolled")
    wanted = lines(store, "log", "--topic", "Fill0")[-3:]

    assert lines(store, "log", "--last", "3", "--topic", "Fill0") == wanted


def test_a_wrong_crc_and_damaged_bytes_are_told(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[100] ^= 1  # in the body of the first record
    data[927:931] = bytes(4)
    path.write_bytes(data)

    first, _, damage = lines(store, "log", "--limit", "3")

    assert first["problem"] == "the body does not fit its CRC"
    assert damage == {
        "log_offset": 927,
        "store_size": 281,
        "problem": "damaged: 281 bytes: not a record: size 0, magic DAA320A7",
    }


def test_a_table_is_cut_and_says_so() -> None:
    result = view(unchanged("rolled"), "log")

    told = result.stdout.splitlines()
    assert len(told) == 1 + 50 + 1
    assert told[0].split()[:2] == ["log", "offset"]
    assert told[-1] == "… and more records: --limit 0 shows all"


def test_json_is_one_document() -> None:
    store = unchanged("rolled")

    found = json.loads(view(store, "log", "--limit", "2", "--json").stdout)

    assert found == lines(store, "log", "--limit", "2")
    assert json.loads(view(store, "--json", "log", "--limit", "2").stdout) == found


@pytest.mark.parametrize(
    "words",
    [
        ("--since", "tomorrow"),
        ("--since", "9" * 30),
        ("--last", "0"),
        ("--last", "3", "--since", "5"),
        ("--json", "--jsonl"),
        ("--follow", "--until", "5"),
        ("--queue", "-1"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...]) -> None:
    from pocketmq.tools.cli import run

    assert run(["inspect", str(unchanged("rolled")), "log", *words]) == 2


def test_a_view_that_does_not_exist_is_refused() -> None:
    from pocketmq.tools.cli import run

    assert run(["inspect", str(unchanged("rolled")), "logs"]) == 2
    assert run(["inspect", str(unchanged("rolled")), "--recovery", "pocketmq", "log"]) == 2


@pytest.mark.parametrize("name", ["basic", "encodings"])
def test_full_rows_have_properties_and_bodies(name: str) -> None:
    rows = [row for row in lines(unchanged(name), "log", "--full") if "topic" in row]

    for row, record in zip(rows, expected(name)["records"], strict=True):
        body = row["body"].encode() if row["body"] is not None else b64decode(row["body_base64"])
        assert row["properties"] == record["properties"]
        assert len(body) == record["bodyLength"]
        assert sha256(body).hexdigest() == record["bodySha256"]
