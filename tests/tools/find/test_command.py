"""`pocketmq find --store`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pocketmq.tools import cli

from ...complaint import complaint
from ...recorded import expected, recorded_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(recorded_store("consumption", tmp_path_factory.mktemp("lookup") / "broker-7"))


#: Fields, and Apache's names of them.
SAME = {
    "topic": "topic",
    "queue": "queueId",
    "queue_offset": "queueOffset",
    "log_offset": "physicalOffset",
    "store_size": "storeSize",
    "stored_ms": "storeTimestamp",
    "born_ms": "bornTimestamp",
    "sys_flag": "sysFlag",
    "flag": "flag",
    "reconsume_times": "reconsumeTimes",
    "prepared_transaction_offset": "preparedTransactionOffset",
    "properties": "properties",
    "store_host": "storeHost",
}


def ordered(record: dict[str, str]) -> int:
    return int(record["physicalOffset"])


def test_json_has_the_names_of_live_answers_and_a_summary_on_standard_error(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.run(["find", "--store", store, "--topic", "Failing", "--key", "Failing-0", "--json"])

    out, err = capsys.readouterr()
    (row,) = [json.loads(line) for line in out.splitlines()]
    wanted = next(one for one in expected("consumption")["records"] if one["topic"] == "Failing")
    assert code == 0
    assert {name: row[name] for name in SAME} == {
        name: wanted[theirs] for name, theirs in SAME.items()
    }
    assert row["message_id"] == wanted["properties"]["UNIQ_KEY"]
    assert row["offset_message_id"] == wanted["msgId"]
    assert row["sharding_key"] is None
    assert row["broker"] == "broker-a"
    assert json.loads(err)["hits"] == 1


def test_a_key_is_looked_for_in_all_topics_without_one(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["find", "--store", store, "--key", "Failing-0", "--json"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["topic"] for row in rows] == [
        "Failing",
        "SCHEDULE_TOPIC_XXXX",
        "%RETRY%G_failing",
        "SCHEDULE_TOPIC_XXXX",
        "%RETRY%G_failing",
        "%DLQ%G_failing",
    ]


def test_people_get_lines_and_notes(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.run(["find", "--store", store, "--topic", "Failing", "--tag", "TagA", "--limit", "2"])
        == 0
    )

    out, err = capsys.readouterr()
    assert out.count("topic      Failing") == 2
    assert "keys       Failing-18" in out
    assert err == "note: there are more: --limit shows them\n"


@pytest.mark.parametrize("way", [[], ["--key", "Failing-0"], ["--tag", "TagA"]])
def test_since_belongs_to_the_range_and_until_does_not(
    store: str, way: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def found(*bounds: object) -> list[int]:
        words = ["find", "--store", store, "--topic", "Failing", "--json", *way]
        assert cli.run([*words, *map(str, bounds)]) in (0, 3)
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [row["stored_ms"] for row in rows]

    first = min(found("--since", "2020-01-01"))

    assert first not in found("--since", first - 1000, "--until", first)
    assert first in found("--since", first, "--until", first + 1)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--topic", "Failing", "--key", "nobody"], "'nobody'"),
        (["--id", "00" * 17], "0000"),
        (["--topic", "Failing", "--queue", "0", "--offset", "10"], "the offsets 0 to 9"),
        (["--topic", "Failing", "--queue", "5", "--offset", "0"], "no queue Failing/5"),
        (["--log-offset", "112257"], "the log ends at 112,257"),
        (["--log-offset", "3"], "no record begins there"),
        (["--topic", "Failing", "--since", "2030-01-01T00:00:00Z"], "since 2030"),
    ],
)  # fmt: skip
def test_none_is_exit_code_3_and_says_why(
    store: str, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["find", "--store", store, *arguments]) == 3

    out, err = capsys.readouterr()
    assert out == ""
    assert word in complaint(err)
    assert "may have existed" not in err


def test_what_may_have_existed_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaned = recorded_store("cleaned", tmp_path / "store")
    key = next(  # in a file that is gone, and in no other
        one
        for one in expected("rolled")["lookups"]
        if one["topic"] == "Fill0" and one["key"].startswith("order-")
    )["key"]

    code = cli.run(["find", "--store", str(cleaned), "--topic", "Fill9", "--key", key])

    assert code == 3
    err = capsys.readouterr().err
    assert "It may have existed" in err
    assert "the log begins at 983,040" in err


def test_several_stores_are_searched_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        recorded_store("basic", tmp_path / f"b{number}" / "store")
    unique = expected("basic")["records"][3]["properties"]["UNIQ_KEY"]

    assert cli.run(["find", "--store", f"{tmp_path}/*/store", "--id", unique, "--json"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["file"].split("/")[-4] for row in rows] == ["b1", "b2"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Give --key"),
        (["--key", "a", "--id", "b"], "Give one of"),
        (["--offset", "1", "--topic", "T"], "--offset needs"),
        (["--topic", "T", "--since", "2026-01-02", "--until", "2026-01-01"], "--until must be"),
        (["--topic", "T", "--since", "2026-01-02", "--until", "2026-01-02"], "--until must be"),
        (["--since", "yesterday"], "'yesterday' is not a time"),
        (["--since", "2026-01-01"], "need --topic"),
        (["--key", "k", "--broker-conf", "nonsense"], "--broker-conf nonsense"),
        (["--key", "k", "--broker-conf", "maxIndexNum=x"], "not a whole number"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    store: str, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["find", "--store", store, *arguments]) == 2

    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--log-offset", "1"], ["--key", "k", "--scan"]])
def test_what_only_files_tell_needs_a_store(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["find", *arguments]) == 2
    assert "give a STORE" in capsys.readouterr().err


def test_a_folder_that_is_no_store_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["find", "--store", str(tmp_path), "--key", "k"]) == 2
    assert "is not a store" in capsys.readouterr().err
