"""`pocketmq lag`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from pocketmq.tools.cli import run
from pocketmq.tools.lag.rows import COLUMNS

from ...recorded import recorded_store


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(recorded_store("consumption", tmp_path / "store"))


def test_json_is_a_row_a_line(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lag", store, "--json", "--group", "G_lagging", "--topic", "Con*"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["lag"] for row in rows] == [37, 8, 31, 7]
    assert {tuple(row) for row in rows} == {COLUMNS}
    assert {row["broker"] for row in rows} == {"broker-a"}


def test_the_table_ends_with_a_sum(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lag", store, "--group", "G_lagging", "--topic", "Consumed"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["broker", "topic", "queue", "group"]
    assert lines[1].split()[:9] == [
        *("broker-a", "Consumed", "0", "G_lagging", "1", "0", "38", "37", "12,180"),
    ]
    assert lines[-1].startswith(
        "4 rows: 4 lagging; 83 messages unread, 27,206 bytes, the oldest for "
    )


def test_a_store_without_groups_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lag", str(recorded_store("rolled", tmp_path / "store"))]) == 0

    assert capsys.readouterr().out.endswith(
        "no group has committed an offset of a topic, or is known to read one\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--group", "nope*"], "no group matches 'nope*'"),
        (["--topic", "nope*"], "no topic matches 'nope*'"),
        (["--group", "G_all", "--topic", "nope*"], "no topic matches 'nope*'"),
        (
            ["--group", "G_all", "--topic", "SCHEDULE*"],
            "no group that matches 'G_all' has committed an offset of a topic that matches 'SCHEDULE*',"
            " or is known to read one",
        ),
    ],
)
def test_a_report_without_rows_says_why(
    arguments: list[str], sentence: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lag", store, *arguments]) == 0

    assert capsys.readouterr().out.splitlines()[-1] == sentence


def test_rows_of_many_brokers_stand_in_one_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("b1", "b2"):
        folder = recorded_store("consumption", tmp_path / name / "store")
        for file in folder.glob("config/topic*.json*"):
            file.unlink()

    assert run(["lag", str(tmp_path / "*" / "store"), "--json", "--group", "G_all"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["broker"] for row in rows] == ["b1"] * 4 + ["b2"] * 4


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", "parquet"])
def test_rows_are_written_to_a_file(form: str, store: str, tmp_path: Path) -> None:
    out = tmp_path / f"rows.{form}"

    assert run(["lag", store, "--output", str(out), "--topic", "Consumed", "--group", "G_tag"]) == 0

    if form == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        lags = parquet.read_table(out).column("lag").to_pylist()
    elif form == "csv":
        with out.open(newline="") as file:
            lags = [int(row["lag"]) for row in csv.DictReader(file)]
    elif form == "json":
        lags = [row["lag"] for row in json.loads(out.read_text())["rows"]]
    else:
        lags = [json.loads(line)["lag"] for line in out.read_text().splitlines()]
    assert lags == [8, 8, 8, 7]


def test_an_earlier_file_tells_what_stands_still(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "rows.json")
    assert run(["lag", store, "--output", out]) == 0
    capsys.readouterr()

    assert run(["lag", store, "--compare", out, "--json", "--group", "G_all"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["verdict"] for row in rows} == {"stalled"}
    assert {row["read_per_s"] for row in rows} == {0.0}


def test_watching_looks_again(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "lag",
                store,
                "--watch",
                "--interval",
                "1ms",
                "--iterations",
                "2",
                "--json",
                "--group",
                "G_all",
            ]
        )
        == 0
    )

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["verdict"] for row in rows] == ["lagging"] * 4 + ["stalled"] * 4


@pytest.mark.parametrize(("limit", "code"), [("36", 1), ("37", 0)])
def test_a_limit_that_is_passed_is_exit_code_1(limit: str, code: int, store: str) -> None:
    assert run(["lag", store, "--max-lag", limit, "--group", "G_lagging"]) == code


@pytest.mark.parametrize(
    "arguments",
    [
        ["/nowhere/at/all"],
        ["{store}", "--nameserver", "127.0.0.1:1"],
        ["{store}", "--read-from", "any"],
        ["--read-from", "slave"],
        ["{store}", "--broker-conf", "mappedFileSizeCommitLog"],
        ["{store}", "--broker-conf", "maxIndexNum=0"],
        ["{store}", "--output", "rows.txt"],
        ["{store}", "--iterations", "2"],
        ["{store}", "--watch", "--interval", "soon"],
        ["{store}", "--watch", "--interval", "0s"],
        ["{store}", "--interval", "5s"],
        ["{store}", "--max-lag", "-1"],
        ["{store}", "--recovery", "theirs"],
        ["nosuch://bucket/store"],
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lag", *(one.format(store=store) for one in arguments)]) == 2

    assert capsys.readouterr().err.startswith("pocketmq: ")


def test_a_store_that_is_refused_is_named_and_the_others_are_told(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = str(recorded_store("damaged-odd-log-file", tmp_path / "odd"))

    assert run(["lag", refused]) == 5
    assert "would not start" in capsys.readouterr().err
    assert run(["lag", refused, store, "--json", "--group", "G_all"]) == 0

    captured = capsys.readouterr()
    assert "left out" in captured.err
    assert len(captured.out.splitlines()) == 4


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[" * 100_000, b"", b"[[1]]"])
def test_an_earlier_file_that_cannot_be_read_is_refused(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    earlier = tmp_path / "earlier.json"
    earlier.write_bytes(data)

    assert run(["lag", store, "--compare", str(earlier)]) == 2
    assert "the earlier snapshot cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "why"), [("", "is a folder"), ("none.json", "No such file")])
def test_an_earlier_file_that_is_none_is_refused_with_what_to_give(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    assert run(["lag", store, "--compare", str(tmp_path / name)]) == 2

    error = capsys.readouterr().err
    assert f"--compare: cannot read {tmp_path / name}" in error
    assert why in error
    assert "give a file that `pocketmq lag --output FILE.json` wrote" in error
