"""The status line of a server in a terminal: what goes in and out, who is behind, how many are connected.

    in 1,204/s   out 1,190/s   behind 14 (billing)   3 connections

Redrawn every second, only where standard output is a terminal: into files and pipes go plain lines alone. A log line
that comes meanwhile takes its place, and the next second draws it below that.

Bounds: the line is cut at the terminal's width; who is behind is looked at every five seconds, among the first 200
groups and topics that committed (some 2 ms of the event loop).

Log lines: one event a line on standard error, its data as key=value.

    2026-11-21T10:38:25.123Z INFO pocketmq.store.files segment rolled file=00000000001073741824 took_ms=3

The message of a log call is a constant; what varies goes in `extra`. Values with spaces are quoted as JSON. Where
several brokers share one standard error, `by=broker-2` at the end of a line says whose it is.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from typing import Final, TextIO

from ..broker.broker import SiteParts
from ..proto.clock import Clock
from .counted import counted
from .log_lines import AUDIT
from .terminal import one_line, own

_TICK_MS: Final = 1_000
#: Ticks from one look at who is behind to the next.
_LAG_TICKS: Final = 5
_LOOKED_AT: Final = 200
_ERASE: Final = "\r\x1b[K"


class StatusLine:
    """The line of a broker with PARTS on OUT, by the machine's CLOCK."""

    def __init__(
        self,
        parts: SiteParts,
        clock: Clock,
        out: TextIO,
        width: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._out = own(out)
        self._width = width
        #: When it was last looked, by a clock that only goes forward, and how many messages had come in and gone out.
        self._before = (0, 0, 0)
        self._ticks = 0
        self._behind = ""
        self._is_drawn = False

    def begin(self) -> None:
        """Draw from now on, every second."""
        for logger in (logging.getLogger(), AUDIT):
            for handler in logger.handlers:
                handler.addFilter(self._make_room)
        self._before = self._counted()
        self._parts.every(_TICK_MS, self.draw)

    def draw(self) -> None:
        """Show what happened since the last time, one second ago."""
        if self._ticks % _LAG_TICKS == 0:
            self._behind = self._look_behind()
        self._ticks += 1
        before, self._before = self._before, self._counted()
        now_ms, went_in, went_out = self._before
        seconds = max(1, now_ms - before[0]) / 1000
        connections = self._parts.counters().connections
        text = "   ".join(
            (
                f"in {(went_in - before[1]) / seconds:,.0f}/s",
                f"out {max(0, went_out - before[2]) / seconds:,.0f}/s",
                self._behind,
                counted(connections, "connection"),
            )
        )
        self._write(_ERASE + one_line(text)[: max(0, self._width() - 1)])
        self._is_drawn = True

    def erase(self) -> None:
        """Take the line away, if it is there."""
        if self._is_drawn:
            self._write(_ERASE)
            self._is_drawn = False

    def _make_room(self, record: logging.LogRecord) -> bool:
        self.erase()
        return True

    def _counted(self) -> tuple[int, int, int]:
        out = self._parts.traffic.went_out.values()
        went_in = self._parts.counters().sent_messages
        return self._clock.now_ms(), went_in, sum(one.messages for one in out)

    def _look_behind(self) -> str:
        behind: dict[str, int] = {}
        for lag in self._parts.lags(_LOOKED_AT):
            behind[lag.group] = behind.get(lag.group, 0) + lag.messages
        if not any(behind.values()):
            return "nobody behind"
        worst = max(behind, key=lambda group: behind[group])
        return f"behind {behind[worst]:,} ({worst})"

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # The terminal is gone; the server continues.
            self._is_drawn = False
