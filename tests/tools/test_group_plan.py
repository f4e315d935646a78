from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from pocketmq.client import GroupStatus, Queue
from pocketmq.proto.errors import TopicNotFound
from pocketmq.tools import cli, group_plan
from pocketmq.tools.group_plan import shortened

from .group_reports import member, report


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert cli.run(["group", "plan", *arguments]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert cli.run(["group", "plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_numbers_alone_make_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    lines = table(capsys, "--members", "2", "--queues", "orders=3", "--strategy", "average")

    assert " ".join(lines[0]) == (
        "strategy average: 2 members, 3 queues; 0 queues move, 0 had no owner"
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

    assert " ".join(lines[0]).endswith("2 members, 6 queues; 0 queues move, 2 had no owner")


def test_queues_that_nobody_reads_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    lines = table(capsys, "--members", "1", "--queues", "t=4:2")

    assert lines[-1] == ["not", "assigned", "then:", "t@broker-a:2-3"]


def test_a_file_says_who_reads_what(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "shares.yaml").write_text("member-1: t@broker-a:0-1,3\nmember-2: [t@broker-a:2]\n")
    arguments = ["--members", "2", "--queues", "t=5", "--strategy", "configured"]

    shown = document(capsys, *arguments, "--shares", str(tmp_path / "shares.yaml"))

    assert {name: [one["queue"] for one in share] for name, share in shown["then"].items()} == {
        "member-1": [0, 1, 3],
        "member-2": [2],
    }


@pytest.mark.parametrize("text", ["[", "just words", "a: {b: c}", "a: [t@b]", "a: [t@b:1-]"])
def test_a_file_that_says_nothing_of_shares_is_refused(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "shares.yaml").write_text(text)
    arguments = ["--members", "2", "--queues", "t=5", "--strategy", "configured"]

    assert cli.run(["group", "plan", *arguments, "--shares", str(tmp_path / "shares.yaml")]) == 2
    assert "--shares" in capsys.readouterr().err


def test_rooms_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    queues = ["--queues", "t@east@b1=2", "--queues", "t@west@b2=2"]

    lines = table(
        capsys, "--members", "1", *queues, "--strategy", "machine-room", "--rooms", "east"
    )
    near = document(
        capsys, "--members", "2", *queues, "--strategy", "machine-room-nearby",
        "--member-room", "member-1=west", "--member-room", "member-2=east",
    )  # fmt: skip

    assert lines[2][-1] == "t@east@b1:0-1"
    assert {one["broker"] for one in near["then"]["member-1"]} == {"west@b2"}
    assert {one["broker"] for one in near["then"]["member-2"]} == {"east@b1"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--queues", "t"], "'t' is not TOPIC=N, TOPIC@BROKER=N or TOPIC=NOW:N"),
        (["--queues", "t=99999"], "the limit is 65536 queues per topic"),
        (["--queues", "t=1", "--add-member", "member-1"], "'member-1' is a member already"),
        (["--queues", "t=1", "--remove-member", "x"], "'x' is not a member; members are: member-1"),
        (["--queues", "t=1", "--strategy", "best"], "allocation strategy 'best' is unknown"),
        (["--queues", "t=1", "--strategy", "configured"], "configured needs --shares FILE"),
        (["--queues", "t=1", "--rooms", "a"], "--rooms is for strategy machine-room"),
        (["--queues", "t=1", "--member-room", "x=a"], "'x' is not a member"),
        (["--queues", "t=1", "--member-room", "x"], "'x' is not ID=ROOM"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["group", "plan", "--members", "1", *arguments]) == cli.USAGE
    assert sentence in capsys.readouterr().err


# --- of a group at work

QUEUES = [
    Queue("orders", broker, number) for broker in ("broker-a", "broker-b") for number in range(2)
]


SUBSCRIPTIONS = ("orders: paid || refunded", "%RETRY%billing")


class FakeAdmin:
    """Knows group "billing", and "idle" without members."""

    def __init__(self, nameserver: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe_group(self, name: str) -> GroupStatus:
        shares = {"a": QUEUES[:3], "b": QUEUES[3:]}
        members = tuple(
            member(one, *SUBSCRIPTIONS, queues=tuple(share)) for one, share in shares.items()
        )
        at_work = {"coordinator": "broker-a", "generation": 7, "strategy": "average"}
        return report(name, **at_work, members=members if name == "billing" else ())

    def describe_topic(self, name: str) -> Any:
        if name != "orders":
            raise TopicNotFound(f"no {name}")
        return SimpleNamespace(queues=[SimpleNamespace(queue=queue) for queue in QUEUES])


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_plan, "Admin", FakeAdmin)


@pytest.mark.usefixtures("admin")
def test_a_group_at_work_is_told_against_what_its_members_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = document(capsys, "billing")

    assert shown["strategy"] == "average"
    assert shown["moves"] == [
        {"topic": "orders", "broker": "broker-b", "queue": 0, "from": "a", "to": "b"}
    ]


@pytest.mark.usefixtures("admin")
def test_a_member_more_and_another_strategy_are_tried_on_a_group_at_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = document(capsys, "billing", "--add-member", "c", "--strategy", "sticky")

    assert [(move["from"], move["to"]) for move in shown["moves"]] == [("a", "c")]


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize(
    ("count", "total"), [("orders=4", 8), ("orders@broker-a=4", 6), ("orders@broker-c=2", 6)]
)
def test_more_queues_are_tried_where_the_topic_is_or_on_one_broker(
    count: str, total: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = document(capsys, "billing", "--queues", count)

    assert sum(map(len, shown["then"].values())) == total


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["idle"], "Group 'idle' has no members at present. Give --members"),
        (["billing", "--members", "2"], "Give either a GROUP, or --members and --queues"),
        ([], "Give either a GROUP, or --members and --queues"),
        (["billing", "--queues", "x=1"], "reads no topic 'x'; it reads orders"),
        (["billing", "--queues", "orders=1:2"], "orders=1:2: with a GROUP, give orders=2"),
        (["billing", "--add-member", "a"], "'a' is a member already"),
    ],
)
def test_what_a_group_at_work_cannot_be_asked_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["group", "plan", *arguments]) == cli.USAGE
    assert sentence in capsys.readouterr().err


def test_neighbours_are_written_as_ranges() -> None:
    queues = [Queue("t", "a", number) for number in (0, 1, 2, 7, 10, 11)] + [Queue("t", "b", 0)]

    assert shortened(queues) == "t@a:0-2,7,10-11 t@b:0"
    assert shortened([]) == "-"
