"""`pocketmq dead-letters`, and the retry intervals of `pocketmq group`, against an admin of the test's own."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import click
import pytest

from pocketmq.client import DeadLetter, GroupDescription, ResentDeadLetter
from pocketmq.client.received_message import FetchedRun
from pocketmq.proto.errors import GroupNotFound, MessageNotFound
from pocketmq.proto.record import Record, encode_record
from pocketmq.tools import cli, dead_letters, group


class FakeAdmin:
    """Two brokers with dead letters of group g."""

    calls: ClassVar[list[tuple[str, Any]]] = []
    letters: ClassVar[dict[str, int]] = {}

    def __init__(self, nameserver: str) -> None:
        assert nameserver == "ns:1"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hidden_groups(self) -> int:
        return 0

    def brokers(self) -> list[Any]:
        return [SimpleNamespace(broker_name=name) for name in self.letters]

    def dead_letters(
        self,
        name: str,
        *,
        broker: str | None,
        from_offset: int,
        max_letters: int,
        include_resent: bool,
    ) -> list[DeadLetter]:
        assert not include_resent
        if name != "g":
            raise GroupNotFound(f"group {name!r} does not exist")
        return [
            dead_letter(holder, offset)
            for holder, count in self.letters.items()
            for offset in range(from_offset, count)[:max_letters]
            if broker in (None, holder)
        ]

    def resend_dead_letters(
        self, name: str, offsets: list[int], *, topic: str | None, broker: str | None
    ) -> list[ResentDeadLetter]:
        self.calls.append(("resend", (name, list(offsets), topic, broker)))
        return [
            ResentDeadLetter(
                broker=broker or "a",
                queue_offset=offset,
                topic=topic or "orders",
                queue=1,
                new_queue_offset=40 + offset,
                error=MessageNotFound("no dead letter has the number 9") if offset == 9 else None,
            )
            for offset in offsets
        ]

    def purge_dead_letters(self, name: str, *, below: int | None, broker: str | None) -> int:
        self.calls.append(("purge", (name, below, broker)))
        return 3

    def create_group(self, name: str, **fields: Any) -> GroupDescription:
        self.calls.append(("group", fields))
        return GroupDescription(
            name=name,
            retry_max_times=16,
            retry_queues=1,
            order=False,
            consume_enable=fields.get("consume_enable", True),
            retry_intervals_ms=tuple(fields.get("retry_intervals_ms", ())),
        )

    def groups(self) -> list[GroupDescription]:
        return [self.create_group("own", retry_intervals_ms=[10_000, 90_000])]


def dead_letter(broker: str, offset: int) -> DeadLetter:
    data = encode_record(Record(topic="%DLQ%g", body=b"body", reconsume_times=17))
    return DeadLetter(
        broker=broker,
        queue_offset=offset,
        message_id=f"id-{offset}",
        origin_topic="orders",
        origin_message_id="7F",
        reason="no such customer",
        reconsume_times=17,
        died_ms=1_700_000_000_000,
        message=FetchedRun(broker, data).messages()[0],
    )


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "Admin", FakeAdmin)
    monkeypatch.setattr(group, "Admin", FakeAdmin)
    monkeypatch.setattr(FakeAdmin, "calls", [])
    monkeypatch.setattr(FakeAdmin, "letters", {"a": 1})


def call(*arguments: str) -> int:
    return cli.run([*arguments, "--nameserver", "ns:1"])


def test_a_list_says_where_from_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("dead-letters", "list", "g") == 0

    assert capsys.readouterr().out.splitlines() == [
        "broker  offset  died                      origin  failed  id    reason",
        "a            0  2023-11-14 22:13:20.000Z  orders      17  id-0  no such customer",
    ]


def test_a_list_that_ends_at_the_count_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeAdmin, "letters", {"a": 5, "b": 2})

    assert call("dead-letters", "list", "g", "--limit", "3", "--from", "1") == 0

    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 + 3 + 1
    assert err == "listed the first 3 of broker a; for the next: --broker a --from 4\n"


def test_programs_get_the_whole_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("dead-letters", "list", "g", "--json") == 0

    document = json.loads(capsys.readouterr().out)
    assert document.pop("message")["body"] == "body"
    assert document == {
        "broker": "a",
        "offset": 0,
        "resent": False,
        "message_id": "id-0",
        "origin_topic": "orders",
        "origin_message_id": "7F",
        "reason": "no such customer",
        "reconsume_times": 17,
        "died_ms": 1_700_000_000_000,
    }


def test_an_unknown_group_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("dead-letters", "list", "h") == 3
    assert call("dead-letters", "resend", "h", "--all") == 3

    printed = "pocketmq: group 'h' does not exist\nSee docs/errors.md#groupnotfound\n"
    assert capsys.readouterr() == ("", printed * 2)


def test_chosen_ones_are_sent_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        call("dead-letters", "resend", "g", "3", "5", "--to-topic", "bills", "--broker", "b") == 0
    )

    assert FakeAdmin.calls == [("resend", ("g", [3, 5], "bills", "b"))]
    assert capsys.readouterr().out.splitlines() == [
        "3  sent to bills, queue 1, offset 43",
        "5  sent to bills, queue 1, offset 45",
        "2 of 2 resent",
    ]


def test_what_cannot_be_sent_is_told_and_the_exit_code_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call("dead-letters", "resend", "g", "3", "9") == 3
    assert capsys.readouterr() == (
        "3  sent to orders, queue 1, offset 43\n"
        "9  not sent: no dead letter has the number 9\n"
        "1 of 2 resent\n",
        "pocketmq: no dead letter has the number 9\nSee docs/errors.md#messagenotfound\n",
    )
    assert call("dead-letters", "resend", "g", "9", "--json") == 3
    assert json.loads(capsys.readouterr().out) == {
        "broker": "a",
        "offset": 9,
        "topic": "orders",
        "queue": None,
        "queue_offset": None,
        "error": "no dead letter has the number 9",
    }


def test_all_of_all_brokers_are_sent_again_in_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeAdmin, "letters", {"a": 3, "b": 2})
    monkeypatch.setattr(dead_letters, "_PAGE", 2)

    assert call("dead-letters", "resend", "g", "--all") == 0

    assert FakeAdmin.calls == [
        ("resend", ("g", [0, 1], None, "a")),
        ("resend", ("g", [2], None, "a")),
        ("resend", ("g", [0, 1], None, "b")),
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        "a  2  sent to orders, queue 1, offset 42",
        "b  0  sent to orders, queue 1, offset 40",
    ]


@pytest.mark.parametrize(
    "arguments", [("g",), ("g", "1", "--all"), ("g", "-1"), ("g", "x"), ("--all",)]
)
def test_resend_needs_offsets_or_all(arguments: tuple[str, ...]) -> None:
    assert call("dead-letters", "resend", *arguments) == 2
    assert FakeAdmin.calls == []


def test_a_purge_is_of_all_or_of_those_below(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("dead-letters", "purge", "g", "--yes") == 0
    assert call("dead-letters", "purge", "g", "--below", "7", "--yes", "--json") == 0

    assert FakeAdmin.calls == [("purge", ("g", None, None)), ("purge", ("g", 7, None))]
    plain, document = capsys.readouterr().out.splitlines()
    assert plain == "dead letters of group g purged: 3"
    assert json.loads(document) == {"group": "g", "purged": 3}


def test_without_a_yes_nothing_is_purged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("dead-letters", "purge", "g") == 2
    assert "--yes" in capsys.readouterr().err

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for answer, code in ((False, 130), (True, 0)):
        monkeypatch.setattr("click.confirm", confirming(answer))
        assert call("dead-letters", "purge", "g") == code
    assert FakeAdmin.calls == [("purge", ("g", None, None))]


def confirming(answer: bool) -> Any:
    def confirm(text: str, *, abort: bool) -> bool:
        assert "group g, all" in text
        if abort and not answer:
            raise click.Abort
        return answer

    return confirm


def test_a_group_is_made_with_intervals_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("group", "create", "own", "--retry-intervals", "10s,1m30s") == 0
    assert call("group", "create", "plain") == 0
    assert call("group", "list") == 0
    assert call("group", "create", "off", "--no-consume") == 0

    assert FakeAdmin.calls[:2] == [
        ("group", {"retry_intervals_ms": [10_000, 90_000]}),
        ("group", {}),
    ]
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "group own: in any order, up to 16 retries, after 10s,1m30s"
    assert out[1] == "group plain: in any order, up to 16 retries"
    assert out[-1] == "group off: in any order, up to 16 retries; delivery is off"
    assert out[3].split() == [
        "own",
        "-",
        "16",
        "10s,1m30s",
        "yes",
        *["served", "for", "a", "while"],
    ]


@pytest.mark.parametrize("intervals", ["10", "10s,", "abc"])
def test_an_interval_that_is_no_length_of_time_is_refused(
    intervals: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("group", "create", "own", "--retry-intervals", intervals) == 2
    assert "--retry-intervals" in capsys.readouterr().err
