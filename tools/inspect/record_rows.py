"""Records of a stretch as rows: one dict per record, for tables and programs; and as they come.

Only the records that are shown are made into rows; which ones those are is decided on whole columns. A log that a
broker appends to is followed: every POLL_MS what is new is printed. A record may be seen while it is written. So one
whose body does not fit its CRC, or after which nothing can be read, is read again, PATIENCE times, before it is
shown as it is.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray

from ...proto import property_ranges, record, record_run
from ...proto.clock import Clock, SystemClock
from ...proto.errors import CorruptRecord, InvalidArgument, Unsupported
from ...proto.properties import decode_properties
from ...proto.time_text import format_instant
from ...store.log_view import Gap, LogStretch, LogWalk
from ...store.view import StoreView
from ..output import body_fields
from .output import Output

Row = dict[str, Any]
Rows = NDArray[np.intp]

_ROWS_AT_ONCE: Final = 1024
POLL_MS: Final = 100
PATIENCE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Which records are shown: of TOPIC, of QUEUE_ID, stored in [FROM_MS, TO_MS); None: whatever it is."""

    topic: str | None = None
    queue_id: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Does it let every record pass?"""
        return (self.topic, self.queue_id, self.from_ms, self.to_ms) == (None,) * 4

    def rows(self, part: LogStretch) -> Rows:
        """Return the chosen rows of PART."""
        columns = part.columns
        chosen = np.ones(len(columns), np.bool_)
        if self.from_ms is not None:
            chosen &= columns.store_ms >= self.from_ms
        if self.to_ms is not None:
            chosen &= columns.store_ms < self.to_ms
        if self.queue_id is not None:
            chosen &= columns.queue_id == self.queue_id
        if self.topic is not None:
            chosen &= record_run.topic_is(part.view, columns, self.topic)
        return np.flatnonzero(chosen)


def record_rows(part: LogStretch, rows: Rows, *, full: bool = False) -> Iterator[Row]:
    """Yield the records ROWS of PART; `problem` says what is wrong with one, None for nothing.

    FULL: with all properties and the body as its sender had it (`body`, or `body_base64` where it is no text).
    """
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[at : at + _ROWS_AT_ONCE]
        if full:
            for number, row in zip(some.tolist(), _rows_of(part, some), strict=True):
                yield row | _contents(part, number)
        else:
            yield from _rows_of(part, some)


def _contents(part: LogStretch, number: int) -> Row:
    columns = part.columns
    start, size = columns.properties_place(number)
    body_at = int(columns.body_start[number])
    body = bytes(part.view[body_at : body_at + int(columns.body_size[number])])
    with contextlib.suppress(CorruptRecord, InvalidArgument, Unsupported):
        body = record.decompress_body(body, int(columns.sys_flag[number]))
    return {
        "properties": decode_properties(part.view[start : start + size]),
        **body_fields(body),
    }


def _rows_of(part: LogStretch, rows: Rows) -> Iterator[Row]:
    chosen = LogStretch(part.file, part.view, part.columns.take(rows))
    columns = chosen.columns
    ranges = property_ranges.PropertyRanges(record_run.as_bytes(part.view), columns)
    texts = [ranges.texts(name) for name in ("UNIQ_KEY", "TAGS", "KEYS")]
    wrong = record_run.crc_mismatches(part.view, columns)
    displaced = chosen.displaced
    for row, offset in enumerate(chosen.offsets.tolist()):
        yield {
            "log_offset": offset,
            "store_size": int(columns.sizes[row]),
            "topic": _text(part.view, int(columns.topic_start[row]), int(columns.topic_size[row])),
            "queue": int(columns.queue_id[row]),
            "queue_offset": int(columns.queue_offset[row]),
            "stored_ms": int(columns.store_ms[row]),
            "born_ms": int(columns.born_ms[row]),
            **_hosts(part.view, int(columns.starts[row]), int(columns.sys_flag[row])),
            "flag": int(columns.flag[row]),
            "sys_flag": int(columns.sys_flag[row]),
            "reconsume_times": int(columns.reconsume_times[row]),
            "prepared_transaction_offset": int(columns.prepared_offset[row]),
            "body_crc": int(columns.body_crc[row]),
            "body_size": int(columns.body_size[row]),
            "message_id": texts[0][row],
            "tags": texts[1][row],
            "keys": texts[2][row],
            "problem": _problem(chosen, row, bool(wrong[row]), bool(displaced[row])),
        }


def gap_row(gap: Gap) -> Row:
    """Return GAP as a row among records."""
    size = gap.end - gap.start
    return {
        "log_offset": gap.start,
        "store_size": size,
        "problem": f"{gap.kind}: {size:,} bytes: {gap.why}",
    }


def _problem(part: LogStretch, row: int, wrong: bool, displaced: bool) -> str | None:
    told = []
    if wrong:
        told.append("the body does not fit its CRC")
    if displaced:
        told.append(f"its own log offset is {int(part.columns.log_offset[row]):,}")
    return "; ".join(told) or None


def _hosts(view: memoryview, at: int, sys_flag: int) -> dict[str, str]:
    born_size = 16 if sys_flag & record.SYS_BORN_V6 else 4
    store_size = 16 if sys_flag & record.SYS_STORE_V6 else 4
    store_at = at + record.BORN_HOST_AT + 4 + born_size + 8
    return {
        "born_host": str(host_at(view, at + record.BORN_HOST_AT, born_size)),
        "store_host": str(host_at(view, store_at, store_size)),
    }


def host_at(view: memoryview, at: int, size: int) -> record.Host:
    """Return the host at AT whose address has SIZE bytes, 4 or 16."""
    port = int.from_bytes(view[at + size : at + size + 4], "big", signed=True)
    return record.Host(bytes(view[at : at + size]), port)


def _text(view: memoryview, at: int, size: int) -> str:
    return bytes(view[at : at + size]).decode("utf-8", "replace")


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
            if not isinstance(part, LogStretch):
                continue  # A blank, or damage in front of a valid record.
            complete = self._complete(part)
            columns = part.columns.take(slice(0, complete))
            if len(columns):
                chosen = self._wanted.rows(LogStretch(part.file, part.view, columns))
                yield from record_rows(part, chosen, full=self._full)
                self.at = part.file.start + int(columns.starts[-1]) + int(columns.sizes[-1])
                self._waited = 0
            if complete < len(part.columns):
                self._waited += 1
                return

    def _complete(self, part: LogStretch) -> int:
        """Return how many records of PART are written as a whole; all once it was waited for long enough."""
        wrong = record_run.crc_mismatches(part.view, part.columns)
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
        format_instant(row["stored_ms"]),
        f"{row['log_offset']:,}",
        f"{row['topic']}/{row['queue']}@{row['queue_offset']}",
        f"{row['body_size']:,} bytes",
        *(f"{name}={row[name]}" for name in ("tags", "keys", "message_id") if row[name]),
    ]
    return "  ".join(words) + (f"  {row['problem']}" if row["problem"] else "")
