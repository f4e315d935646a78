"""Following a log that a broker appends to: every POLL_MS what is new is printed.

A record may be seen while it is written. So one whose body does not fit its CRC, or behind which nothing can be read,
is looked at again, PATIENCE times, before it is shown as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import click
import numpy as np

from ...proto.clock import Clock, SystemClock
from ...proto.instant import format_instant
from ...proto.run_check import crc_mismatches
from ...store.view import StoreView
from .log_walk import LogWalk, Stretch
from .output import Output, Row
from .record_rows import RecordFilter, record_rows

POLL_MS: Final = 100
PATIENCE: Final = 20


class LogFollower:
    """New records of the log of FILES from offset AT on."""

    def __init__(
        self, files: StoreView, at: int, wanted: RecordFilter, *, full: bool = False
    ) -> None:
        """FULL: rows have all properties and the body."""
        self._files = files
        self.at = at
        self._wanted = wanted
        self._full = full
        self._waited = 0

    def new_rows(self) -> Iterator[Row]:
        """Yield the records that came since the last call."""
        walk = LogWalk(self._files, self.at)
        for part in walk.walk(self.at):
            if not isinstance(part, Stretch):
                continue  # A blank, or damage in front of a sound record.
            complete = self._complete(part)
            columns = part.columns.take(slice(0, complete))
            if len(columns):
                chosen = self._wanted.rows(Stretch(part.file, part.view, columns))
                yield from record_rows(part, chosen, full=self._full)
                self.at = part.file.start + int(columns.starts[-1]) + int(columns.sizes[-1])
                self._waited = 0
            if complete < len(part.columns):
                self._waited += 1
                return

    def _complete(self, part: Stretch) -> int:
        """Return how many records of PART are written as a whole; all once it was waited for long enough."""
        wrong = crc_mismatches(part.view, part.columns)
        if not wrong.any() or self._waited >= PATIENCE:
            return len(part.columns)
        return int(np.argmax(wrong))


async def follow_log(follower: LogFollower, output: Output, clock: Clock | None = None) -> None:
    """Print what FOLLOWER finds as it comes, until the output's limit of rows, if there is one."""
    clock = SystemClock() if clock is None else clock
    left = output.limit or None
    while True:
        for row in follower.new_rows():
            click.echo(_line(row) if output.for_people else json.dumps(row, ensure_ascii=False))
            if left is not None:
                left -= 1
                if not left:
                    return
        await clock.sleep_until(clock.now_ms() + POLL_MS)


def _line(row: Row) -> str:
    words = [
        format_instant(row["storeTimestamp"]),
        f"{row['physicalOffset']:,}",
        f"{row['topic']}/{row['queueId']}@{row['queueOffset']}",
        f"{row['bodySize']:,} bytes",
        *(f"{name}={row[name]}" for name in ("tags", "keys", "messageId") if row[name]),
    ]
    return "  ".join(words) + (f"  {row['problem']}" if row["problem"] else "")
