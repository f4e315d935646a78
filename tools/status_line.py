"""The status line of a server in a terminal: messages in and out, the largest lag, and open connections.

    in 1,204/s   out 1,190/s   lag 14 (billing)   3 connections

It is redrawn every second, only if standard output is a terminal: files and pipes get plain lines. A log line replaces
it, and the next second draws it below.

Limits: the line is cut at the width of the terminal. The lag is measured every five seconds, of the first 200 pairs of
group and topic that committed (about 2 ms of the event loop).

Log lines: one event per line on standard error, its data as key=value.

    2026-11-21T10:38:25.123Z INFO pocketmq.store.files segment rolled file=00000000001073741824 took_ms=3

The message of a log call is a constant; its data is in `extra`. Values with spaces are quoted as JSON. If several
brokers share one standard error, `by=broker-2` at the end of a line names the broker.
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
#: Ticks from one measurement of the lag to the next.
_LAG_TICKS: Final = 5
_LAGS_MAX: Final = 200
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
        #: The time of the last count, by a monotonic clock, and the messages in and out until then.
        self._before = (0, 0, 0)
        self._ticks = 0
        self._lag = ""
        self._is_drawn = False

    def begin(self) -> None:
        """Draw from now on, every second."""
        for logger in (logging.getLogger(), AUDIT):
            for handler in logger.handlers:
                handler.addFilter(self._make_room)
        self._before = self._counted()
        self._parts.every(_TICK_MS, self.draw)

    def draw(self) -> None:
        """Show the rates since the last call, one second ago."""
        if self._ticks % _LAG_TICKS == 0:
            self._lag = self._largest_lag()
        self._ticks += 1
        before, self._before = self._before, self._counted()
        now_ms, went_in, went_out = self._before
        seconds = max(1, now_ms - before[0]) / 1000
        connections = self._parts.counters().connections
        text = "   ".join(
            (
                f"in {(went_in - before[1]) / seconds:,.0f}/s",
                f"out {max(0, went_out - before[2]) / seconds:,.0f}/s",
                self._lag,
                counted(connections, "connection"),
            )
        )
        self._write(_ERASE + one_line(text)[: max(0, self._width() - 1)])
        self._is_drawn = True

    def erase(self) -> None:
        """Remove the line, if it is shown."""
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

    def _largest_lag(self) -> str:
        lags: dict[str, int] = {}
        for lag in self._parts.lags(_LAGS_MAX):
            lags[lag.group] = lags.get(lag.group, 0) + lag.messages
        if not any(lags.values()):
            return "no lag"
        largest = max(lags, key=lambda group: lags[group])
        return f"lag {lags[largest]:,} ({largest})"

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # The terminal is gone; the server continues.
            self._is_drawn = False
