from __future__ import annotations

import json
from typing import Any

import pytest

from pocketmq.client import Queue
from pocketmq.tools import cli
from pocketmq.tools.group_plan import shortened


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert cli.run(["group", "plan", *arguments]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert cli.run(["group", "plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_numbers_alone_make_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    lines = table(capsys, "--members", "2", "--queues", "orders=3", "--strategy", "average")

    assert " ".join(lines[0]) == (
        "strategy average: 2 members, 3 queues; 0 change hands, 0 had no reader"
    )
    assert lines[2:] == [
        ["member-1", "2", "2", "0", "0", "orders@broker-a:0-1"],
        ["member-2", "1", "1", "0", "0", "orders@broker-a:2"],
    ]


def test_a_member_that_comes_and_one_that_goes_are_told_against_the_present(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = document(
        capsys,
        "--members",
        "2",
        "--queues",
        "t=4",
        "--add-member",
        "new",
        "--remove-member",
        "member-1",
    )

    assert set(shown["now"]) == {"member-1", "member-2"}
    assert set(shown["then"]) == {"member-2", "new"}
    assert [(move["from"], move["to"]) for move in shown["moves"]] == [("member-1", "new")] * 2


def test_more_queues_are_told_as_queues_without_a_reader(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = table(capsys, "--members", "2", "--queues", "t@one=2:4", "--queues", "u@two=2")

    assert " ".join(lines[0]).endswith("2 members, 6 queues; 0 change hands, 2 had no reader")


def test_queues_that_nobody_reads_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    lines = table(capsys, "--members", "1", "--queues", "t=4:2")

    assert lines[-1] == ["read", "by", "nobody", "then:", "t@broker-a:2-3"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--queues", "t"], "'t' is not TOPIC=N, TOPIC@BROKER=N or TOPIC=NOW:N"),
        (["--queues", "t=99999"], "a topic has 65536 queues at most"),
        (["--queues", "t=1", "--add-member", "member-1"], "'member-1' is a member already"),
        (["--queues", "t=1", "--remove-member", "x"], "'x' is no member; there are: member-1"),
        (["--queues", "t=1", "--strategy", "best"], "allocation strategy 'best' is not known"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["group", "plan", "--members", "1", *arguments]) == cli.USAGE
    assert sentence in capsys.readouterr().err


def test_neighbours_are_written_as_ranges() -> None:
    queues = [Queue("t", "a", number) for number in (0, 1, 2, 7, 10, 11)] + [Queue("t", "b", 0)]

    assert shortened(queues) == "t@a:0-2,7,10-11 t@b:0"
    assert shortened([]) == "-"
