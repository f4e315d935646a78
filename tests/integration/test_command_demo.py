"""The demo with invented flights: the real ones come over the network."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from pocketmq.client import Message
from pocketmq.tools.demo import steps
from pocketmq.tools.demo.flights import Flight
from pocketmq.tools.demo.progress import Board

pytestmark = pytest.mark.processes

#: More batches than are under way at once, so that the kill comes amid sending.
ROWS = 20_000
FEW = 4_000
A_DAY = 500


def invented(path: Path) -> Iterator[Flight]:
    for number in range(ROWS):
        keys = (f"XX{number}/2013-01-01/JFK", f"N{number % 100}")
        fields = {
            "flight": str(number),
            "month": "1",
            "day": str(1 + number // A_DAY),
            "sched_dep_time": f"{number % 24:02}{number % 60:02}" if number % 7 else "NA",
        }
        yield Flight(keys, "XX", json.dumps(fields, separators=(",", ":")).encode())


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    monkeypatch.setattr(steps, "archive", lambda: Path("invented"))
    monkeypatch.setattr(steps, "flights", invented)
    return io.StringIO()


@pytest.mark.long
def test_every_check_passes(shown: io.StringIO, tmp_path: Path) -> None:
    board = Board(Console(file=shown, width=160), steps.CHECKS)

    steps.Demo(board, tmp_path / "store", ROWS).run()
    board.summary()

    assert board.failures == [], shown.getvalue()
    assert f"{steps.CHECKS} of {steps.CHECKS} checks passed" in shown.getvalue()
    assert "killed process" in shown.getvalue()
    assert "16 retries over 4h45m40s" in shown.getvalue()


@pytest.mark.long
def test_a_message_that_changed_on_the_way_is_noticed(
    shown: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(topic: str, body: bytes, **parts: object) -> Message:
        return Message(topic, body.replace(b'"77"', b'"78"'), **parts)  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "Message", changed)
    board = Board(Console(file=shown, width=160), steps.CHECKS)

    steps.Demo(board, tmp_path / "store", FEW).run()

    assert "each has the body, the keys and the tag of its row" in board.failures
