"""Records of a stretch as rows: one dict a record, with RocketMQ's names, for tables and for programs.

Only the records that are shown are made into rows; which ones those are is decided on whole columns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...proto.errors import CorruptRecord, InvalidArgument, NotServed
from ...proto.properties import decode_properties
from ...proto.property_ranges import PropertyRanges
from ...proto.record import BORN_HOST_AT, SYS_BORN_V6, SYS_STORE_V6, Host, decompress_body
from ...proto.record_run import as_bytes
from ...proto.run_check import crc_mismatches, topic_is
from ..output import body_fields
from .log_walk import Gap, Stretch

Row = dict[str, Any]
Rows = NDArray[np.intp]

_ROWS_AT_ONCE: Final = 1024


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

    def rows(self, part: Stretch) -> Rows:
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
            chosen &= topic_is(part.view, columns, self.topic)
        return np.flatnonzero(chosen)


def record_rows(part: Stretch, rows: Rows, *, full: bool = False) -> Iterator[Row]:
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


def _contents(part: Stretch, number: int) -> Row:
    columns = part.columns
    start, size = columns.properties_place(number)
    body_at = int(columns.body_start[number])
    body = bytes(part.view[body_at : body_at + int(columns.body_size[number])])
    with contextlib.suppress(CorruptRecord, InvalidArgument, NotServed):
        body = decompress_body(body, int(columns.sys_flag[number]))
    return {
        "properties": decode_properties(part.view[start : start + size]),
        **body_fields(body),
    }


def _rows_of(part: Stretch, rows: Rows) -> Iterator[Row]:
    chosen = Stretch(part.file, part.view, part.columns.take(rows))
    columns = chosen.columns
    ranges = PropertyRanges(as_bytes(part.view), columns)
    texts = [ranges.texts(name) for name in ("UNIQ_KEY", "TAGS", "KEYS")]
    wrong = crc_mismatches(part.view, columns)
    displaced = chosen.displaced
    for row, offset in enumerate(chosen.offsets.tolist()):
        yield {
            "physicalOffset": offset,
            "storeSize": int(columns.sizes[row]),
            "topic": _text(part.view, int(columns.topic_start[row]), int(columns.topic_size[row])),
            "queueId": int(columns.queue_id[row]),
            "queueOffset": int(columns.queue_offset[row]),
            "storeTimestamp": int(columns.store_ms[row]),
            "bornTimestamp": int(columns.born_ms[row]),
            **_hosts(part.view, int(columns.starts[row]), int(columns.sys_flag[row])),
            "flag": int(columns.flag[row]),
            "sysFlag": int(columns.sys_flag[row]),
            "reconsumeTimes": int(columns.reconsume_times[row]),
            "preparedTransactionOffset": int(columns.prepared_offset[row]),
            "bodyCrc": int(columns.body_crc[row]),
            "bodySize": int(columns.body_size[row]),
            "messageId": texts[0][row],
            "tags": texts[1][row],
            "keys": texts[2][row],
            "problem": _problem(chosen, row, bool(wrong[row]), bool(displaced[row])),
        }


def gap_row(gap: Gap) -> Row:
    """Return GAP as a row among records."""
    size = gap.end - gap.start
    return {
        "physicalOffset": gap.start,
        "storeSize": size,
        "problem": f"{gap.kind}: {size:,} bytes: {gap.why}",
    }


def _problem(part: Stretch, row: int, wrong: bool, displaced: bool) -> str | None:
    told = []
    if wrong:
        told.append("the body does not fit its CRC")
    if displaced:
        told.append(f"says that it stands at {int(part.columns.log_offset[row]):,}")
    return "; ".join(told) or None


def _hosts(view: memoryview, at: int, sys_flag: int) -> dict[str, str]:
    born_size = 16 if sys_flag & SYS_BORN_V6 else 4
    store_size = 16 if sys_flag & SYS_STORE_V6 else 4
    store_at = at + BORN_HOST_AT + 4 + born_size + 8
    return {
        "bornHost": str(host_at(view, at + BORN_HOST_AT, born_size)),
        "storeHost": str(host_at(view, store_at, store_size)),
    }


def host_at(view: memoryview, at: int, size: int) -> Host:
    """Return the host at AT whose address has SIZE bytes, 4 or 16."""
    port = int.from_bytes(view[at + size : at + size + 4], "big", signed=True)
    return Host(bytes(view[at : at + size]), port)


def _text(view: memoryview, at: int, size: int) -> str:
    return bytes(view[at : at + size]).decode("utf-8", "replace")
