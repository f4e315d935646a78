"""The status line of `pocketmq serve`: what it says, and when it makes room."""

import asyncio
import io
import logging
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pocketmq.broker.broker import SiteCounters, SiteParts
from pocketmq.broker.groups.lag import GroupLag
from pocketmq.broker.metrics.traffic import TrafficCounts
from pocketmq.proto.clock import VirtualClock
from pocketmq.tools.status_line import StatusLine


class Counted:
    """Counters and lags that a test sets."""

    def __init__(self) -> None:
        self.sent = 0
        self.connections = 0
        self.behind: list[tuple[str, int]] = []
        self.looks = 0
        self.work: list[tuple[int, Callable[[], None]]] = []
        self.traffic = TrafficCounts(lambda: 10)

    def counters(self) -> SiteCounters:
        return SiteCounters(self.sent, 0, 0, 0, self.connections)

    def lags(self, limit: int) -> Iterator[GroupLag]:
        self.looks += 1
        return iter([GroupLag(group, "orders", count, 0, (), ()) for group, count in self.behind])

    def every(self, interval_ms: int, work: Callable[[], None]) -> None:
        self.work.append((interval_ms, work))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # Those of pytest outlive the test.
    return Counted()


def line_of(
    counted: Counted, out: io.StringIO, width: int = 200
) -> tuple[StatusLine, Callable[[], str]]:
    """Return a line that has begun, and what draws it one second later and returns its text."""
    clock = VirtualClock(1_000)
    line = StatusLine(cast("SiteParts", counted), clock, out, lambda: width)
    line.begin()
    ((interval_ms, draw),) = counted.work

    def next_second() -> str:
        asyncio.run(clock.advance(interval_ms))
        before = len(out.getvalue())
        draw()
        return out.getvalue()[before:].removeprefix("\r\x1b[K")

    return line, next_second


def test_rates_are_those_of_the_second_before(counted: Counted) -> None:
    counted.sent = 5_000
    _, next_second = line_of(counted, io.StringIO())
    assert next_second() == "in 0/s   out 0/s   no lag   0 connections"
    counted.sent, counted.connections = 6_234, 1
    assert next_second() == "in 1,234/s   out 0/s   no lag   1 connection"
    assert next_second() == "in 0/s   out 0/s   no lag   1 connection"


def test_the_group_that_is_most_behind_is_named_and_looked_for_every_five_seconds(
    counted: Counted,
) -> None:
    counted.behind = [("billing", 10), ("audit", 1_200), ("billing", 15)]
    _, next_second = line_of(counted, io.StringIO())
    assert "   lag 1,200 (audit)   " in next_second()
    counted.behind = [("billing", 3), ("audit", 0)]
    seen = [next_second() for _ in range(5)]
    assert ["audit" in text for text in seen] == [True] * 4 + [False]
    assert "lag 3 (billing)" in seen[-1]
    assert counted.looks == 2


def test_the_line_is_cut_at_the_width_of_the_terminal(counted: Counted) -> None:
    _, next_second = line_of(counted, io.StringIO(), width=20)
    assert next_second() == "in 0/s   out 0/s   "


def test_a_log_line_takes_the_place_of_the_status_line(counted: Counted) -> None:
    out = io.StringIO()
    logging.getLogger().addHandler(logging.StreamHandler(out))
    line, next_second = line_of(counted, out)
    next_second()
    logging.getLogger("pocketmq.test").warning("a disk is slow")
    assert out.getvalue().endswith("connections\r\x1b[Ka disk is slow\n")
    before = out.getvalue()
    line.erase()  # It is not drawn now.
    assert out.getvalue() == before


def test_a_terminal_that_is_gone_stops_nothing(counted: Counted) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    line, _ = line_of(counted, Gone())
    counted.work[0][1]()
    line.erase()


@pytest.mark.processes
def test_on_a_terminal_serve_shows_addresses_and_a_living_line_and_ends_with_it(
    tmp_path: Path,
) -> None:
    master, terminal = pty.openpty()
    command: list[Any] = [sys.executable, "-m", "pocketmq", "serve", "--store", tmp_path / "store"]
    command += ["--port", "0", "--nameserver-port", "0"]
    serving = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    readable = select.poll()  # Unlike select, it takes descriptors above 1023.
    readable.register(master, select.POLLIN)
    said = b""
    try:
        end = time.monotonic() + 120
        while said.count(b"in 0/s") < 2 and time.monotonic() < end:
            if readable.poll(1000):
                said += os.read(master, 65_536)
        serving.send_signal(signal.SIGHUP)  # The terminal is there: settings are read again.
        assert readable.poll(60_000)
        assert serving.poll() is None
        os.close(master)
        serving.send_signal(signal.SIGHUP)
        assert serving.wait(60) == 0
    finally:
        serving.kill()
        serving.wait()
    text = said.decode()
    assert text.count("no lag   0 connections") >= 2, text
    assert "console     http://127.0.0.1:" in text
    assert "ready {" not in text
