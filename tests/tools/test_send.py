from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Self

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import Message, Receipt
from pocketmq.client.delivery_time import DELAY_LEVELS_DEFAULT
from pocketmq.proto.errors import InvalidArgument
from pocketmq.store.config import StoreConfig
from pocketmq.tools import cli, send
from pocketmq.tools.instants import instant_of
from pocketmq.tools.send import lines

BERLIN = timezone(timedelta(hours=1))
NOW = datetime(2026, 12, 24, 17, 30, tzinfo=BERLIN)
DUE_MS = 1_798_131_600_000  # 2026-12-24 18:00 in Berlin


class Pipe:
    """Brings the PIECES one by one, as a pipe does."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def read1(self, size: int, /) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize(
    ("pieces", "batches"),
    [
        ((), []),
        ((b"\n\n",), []),
        ((b"a\nb\n",), [[b"a", b"b"]]),
        ((b"a\nb",), [[b"a"], [b"b"]]),
        ((b"a", b"b\nc", b"\n"), [[b"ab"], [b"c"]]),
        ((b"a\r\n\r\nb\rc\r\n",), [[b"a", b"b\rc"]]),
        ((b"a\r",), [[b"a"]]),
    ],
)
def test_a_batch_is_what_stands_ready(
    pieces: tuple[bytes, ...], batches: list[list[bytes]]
) -> None:
    assert list(lines(Pipe(*pieces))) == batches


@given(st.binary(max_size=60), st.lists(st.integers(1, 7), max_size=60))
def test_no_way_of_cutting_changes_the_lines(data: bytes, sizes: list[int]) -> None:
    pieces, rest = [], data
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    cut = Pipe(*(piece for piece in [*pieces, rest] if piece))

    flat = [line for batch in lines(cut) for line in batch]

    assert flat == [
        line for line in (part.removesuffix(b"\r") for part in data.split(b"\n")) if line
    ]


# ------------------------------------------------------------ delivered later


class FakeProducer:
    """Takes what it is sent, and answers that delayed messages are due at DUE_MS."""

    sent: list[Message]

    def __init__(self, nameserver: str, **_: Any) -> None:
        FakeProducer.sent = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send_many(self, messages: Sequence[Message]) -> list[Receipt]:
        FakeProducer.sent += messages
        return [self._receipt(message) for message in messages]

    def _receipt(self, message: Message) -> Receipt:
        later = message.timed or bool(message.delay_level)
        return Receipt(
            message.topic, "broker-a", 2, 7, 0, "ID", "memory", 5, "",
            DUE_MS if later else 0, "HANDLE" if message.timed else "",
        )  # fmt: skip


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> type[FakeProducer]:
    monkeypatch.setattr(send, "Producer", FakeProducer)
    monkeypatch.setattr(send, "local_now", lambda: NOW)
    return FakeProducer


@pytest.mark.parametrize(
    ("options", "times", "told"),
    [
        ([], (0, 0, 0), "queue 2 of broker-a, offset 7"),
        (
            ["--delay", "2h"],
            (0, 7_200_000, 0),
            "due 2026-12-24 17:00:00.000Z, recall handle HANDLE",
        ),
        (["--at", "2026-12-24T18:00+01:00"], (0, 0, DUE_MS), "recall handle HANDLE"),
        (["--level", "3"], (3, 0, 0), "queue 2 of broker-a, due 2026-12-24 17:00:00.000Z\n"),
        (["--delay-level", "3"], (3, 0, 0), "due 2026-12-24"),
    ],
)
def test_the_time_of_delivery_is_sent_and_told(
    options: list[str],
    times: tuple[int, int, int],
    told: str,
    sent: type[FakeProducer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["send", "T", "body", *options]) == 0

    (message,) = sent.sent
    assert (message.delay_level, message.delay_ms, message.deliver_at_ms) == times
    assert told in capsys.readouterr().out


def test_a_level_above_the_default_ones_is_sent_with_a_note(
    sent: type[FakeProducer], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(StoreConfig(path="store").delay_levels_ms) == DELAY_LEVELS_DEFAULT
    assert cli.run(["send", "T", "body", "--level", "18"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.run(["send", "T", "body", "--level", "19"]) == 0

    assert sent.sent[0].delay_level == 19
    assert "--level 19: a broker has 18 levels by default" in capsys.readouterr().err
    assert cli.run(["send", "T", "body", "--level", "65"]) == 2
    assert "0<=x<=64" in capsys.readouterr().err


def test_a_sharding_key_goes_with_each_message(sent: type[FakeProducer]) -> None:
    assert cli.run(["send", "T", "a", "b", "--sharding-key", "customer-7"]) == 0

    assert [message.sharding_key for message in sent.sent] == ["customer-7", "customer-7"]


def test_a_priority_goes_with_each_message(sent: type[FakeProducer]) -> None:
    assert cli.run(["send", "T", "a", "b", "--priority", "0"]) == 0

    assert [message.priority for message in sent.sent] == [0, 0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--priority", "-1"], "-1 is not in the range"),
        (["--priority", "1", "--sharding-key", "k"], "cannot have sharding_key=…: omit one"),
        (["--priority", "1", "--delay", "1s"], "cannot have delay=…"),
    ],
)
def test_a_bad_priority_is_wrong_usage_and_nothing_is_sent(
    options: list[str], says: str, sent: type[FakeProducer], capsys: pytest.CaptureFixture[str]
) -> None:
    sent.sent = []

    assert cli.run(["send", "T", "body", *options]) == 2

    assert says in capsys.readouterr().err
    assert sent.sent == []


@pytest.mark.parametrize(
    ("options", "due_ms", "handle"),
    [(["--delay", "2h"], DUE_MS, "HANDLE"), (["--level", "3"], DUE_MS, None), ([], None, None)],
)
def test_a_receipt_for_programs_has_time_and_handle(
    options: list[str],
    due_ms: int | None,
    handle: str | None,
    sent: type[FakeProducer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["send", "T", "body", "--json", *options]) == 0

    document = json.loads(capsys.readouterr().out)
    assert (document["due_ms"], document["recall_handle"]) == (due_ms, handle)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--delay", "2h", "--at", "18:00"], "one of --delay, --at and --level"),
        (["--delay", "2h", "--level", "1"], "one of --delay, --at and --level"),
        (["--delay", "soon"], "not a duration"),
        (["--delay", "0s"], "Omit it"),
        (["--at", "soon"], "--delay 2h"),
        (["--at", "+2h"], "--delay 2h"),
        (["--level", "65"], "65"),
    ],
)
def test_a_bad_time_is_wrong_usage_and_nothing_is_sent(
    options: list[str], says: str, sent: type[FakeProducer], capsys: pytest.CaptureFixture[str]
) -> None:
    sent.sent = []

    assert cli.run(["send", "T", "body", *options]) == 2

    assert says in capsys.readouterr().err
    assert sent.sent == []


def in_berlin(named: datetime) -> datetime:
    return named.replace(tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-12-24T18:00:00", datetime(2026, 12, 24, 18, tzinfo=BERLIN)),
        ("2026-12-24 18:00", datetime(2026, 12, 24, 18, tzinfo=BERLIN)),
        ("2026-12-24T18:00Z", datetime(2026, 12, 24, 18, tzinfo=UTC)),
        ("2026-12-24T18:00:00.250+02:00", datetime(2026, 12, 24, 16, 0, 0, 250_000, UTC)),
        ("2026-12-25", datetime(2026, 12, 25, tzinfo=BERLIN)),
        ("18:00", datetime(2026, 12, 24, 18, tzinfo=BERLIN)),
        ("17:30", datetime(2026, 12, 25, 17, 30, tzinfo=BERLIN)),
        ("08:15:30", datetime(2026, 12, 25, 8, 15, 30, tzinfo=BERLIN)),
        ("17:00Z", datetime(2026, 12, 24, 17, tzinfo=UTC)),
        ("16:00Z", datetime(2026, 12, 25, 16, tzinfo=UTC)),
    ],
)
def test_an_instant_is_read_as_people_write_it(text: str, instant: datetime) -> None:
    assert instant_of(text, NOW, in_berlin) == instant


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "25:00", "now+2h", "1798131600000"])
def test_what_is_no_instant_says_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidArgument, match="2026-12-24T18:00:00"):
        instant_of(text, NOW, in_berlin)
