"""The examples run as they stand, against a broker in a process of its own, and say what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..served import ServerProcess

pytestmark = pytest.mark.processes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAID = {
    "order_processing": r"19 orders charged, 4 of them at the second try\n"
    r"1 dead letter: order 13: .*no such account.*\n",
    "ordered_events": r"10 of 10 accounts have their 50 events in order, 30 after a failure\n",
    "reminders": r"look at the oven: \d{1,4} ms late\ntea is ready: \d{1,4} ms late\nthe bus leaves: \d{1,4} ms late\n",
    "outbox": r"10 orders, 11 messages, 10 shipments of 10 orders\n",
    "exactly_once": r"crashed during the second commit\nstarted again, 7 orders were left\n"
    r"12 orders, 12 invoices of 12 orders\n",
    "fastapi_orders": r"5 orders accepted \(\{202\}\), 5 shipped\n",
    "faststream_orders": r"5 orders, 5 reminders\n",
    "peak_shaving": r"1500 requests accepted in [\d.]+ s, 1500 handled in [\d.]+ s\nat most 500 a second\n",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("examples") / "store") as running:
        yield running


@pytest.mark.long
@pytest.mark.parametrize("name", SAID)
def test_an_example_does_what_it_says(name: str, server: ServerProcess) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--nameserver", server.nameserver],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(SAID[name], done.stdout), done.stdout + done.stderr


def test_every_example_is_tried_and_short() -> None:
    files = {
        path.stem: len(path.read_text(encoding="utf-8").splitlines())
        for path in EXAMPLES.glob("*.py")
    }

    assert set(files) == set(SAID)
    assert max(files.values()) <= 60
