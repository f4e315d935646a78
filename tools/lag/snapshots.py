"""Two moments of the lag report compared: rates, stalled queues, when a group will have caught up. Pure.

A snapshot has the rows of one moment, and can be kept in a file. Rates are per second of the time between two, by the
clock of the caller.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...proto.errors import InvalidArgument
from .rows import CALM, LagRow


@dataclass(frozen=True, slots=True)
class LagPosition:
    """What of a row must be known to compare it with a later one."""

    committed_offset: int | None
    max_offset: int | None


@dataclass(frozen=True, slots=True)
class LagSnapshot:
    """The positions of one moment, by broker, topic, queue and group."""

    taken_at_ms: int
    positions: Mapping[tuple[str, str, int, str], LagPosition]

    @classmethod
    def of(cls, rows: Iterable[LagRow], taken_at_ms: int) -> LagSnapshot:
        """Return the snapshot of ROWS."""
        return cls(
            taken_at_ms,
            {
                row.key: LagPosition(row.facts.committed_offset, row.facts.max_offset)
                for row in rows
            },
        )

    @classmethod
    def parse(cls, text: str | bytes) -> LagSnapshot:
        """Return the snapshot in TEXT, a document that `pocketmq lag --output FILE.json` wrote; or InvalidArgument."""
        try:
            document = json.loads(text)
            positions = {
                (row["broker"], row["topic"], int(row["queue"]), row["group"]): LagPosition(
                    _number(row["committed_offset"]), _number(row["max_offset"])
                )
                for row in document["rows"]
            }
            return cls(int(document["taken_at_ms"]), positions)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidArgument(
                f"the earlier snapshot cannot be read ({type(error).__name__}: {error}): give a file that"
                " `pocketmq lag --output FILE.json` wrote",
                field="compare",
            ) from error


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def document_of(rows: Iterable[LagRow], taken_at_ms: int) -> dict[str, Any]:
    """Return the document that a snapshot is kept in."""
    return {"taken_at_ms": taken_at_ms, "rows": [row.to_json() for row in rows]}


@dataclass(frozen=True, slots=True, kw_only=True)
class LagProgress:
    """A row, and what it did since an earlier snapshot; None is unknown.

    read_per_s, written_per_s: messages per second, committed and stored; never negative: an offset that was set back,
    or a queue that was cut, gives no rate.  catch_up_s: seconds until nothing is unread if both rates stay; 0 where all
    is read, None where that time never comes.
    """

    row: LagRow
    read_per_s: float | None = None
    written_per_s: float | None = None
    catch_up_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row's names and three more."""
        return self.row.to_json() | {
            "read_per_s": self.read_per_s,
            "written_per_s": self.written_per_s,
            "catch_up_s": self.catch_up_s,
        }


def compare(before: LagSnapshot | None, rows: Sequence[LagRow], now_ms: int) -> list[LagProgress]:
    """Return ROWS, taken at NOW_MS, with what they did since BEFORE; a row without progress is judged `stalled`.

    Rows that BEFORE does not have, and all of them without BEFORE or without time between, have no rates.
    """
    elapsed_ms = 0 if before is None else now_ms - before.taken_at_ms
    if before is None or elapsed_ms <= 0:
        return [LagProgress(row=row, catch_up_s=_catch_up_s(row.lag, None, None)) for row in rows]
    return [_progress(before.positions.get(row.key), row, elapsed_ms) for row in rows]


def _progress(before: LagPosition | None, row: LagRow, elapsed_ms: int) -> LagProgress:
    if before is None:
        return LagProgress(row=row, catch_up_s=_catch_up_s(row.lag, None, None))
    read = _rate(before.committed_offset, row.facts.committed_offset, elapsed_ms)
    written = _rate(before.max_offset, row.facts.max_offset, elapsed_ms)
    if _stands_still(before, row):
        row = row.stalled_for(elapsed_ms)
    return LagProgress(
        row=row,
        read_per_s=read,
        written_per_s=written,
        catch_up_s=_catch_up_s(row.lag, read, written),
    )


def _rate(before: int | None, after: int | None, elapsed_ms: int) -> float | None:
    if before is None or after is None or after < before:
        return None
    return (after - before) * 1000 / elapsed_ms


def _stands_still(before: LagPosition, row: LagRow) -> bool:
    """Was something unread at both moments, and was nothing read between them?"""
    at = row.facts.committed_offset
    if at is None or not row.lag or row.verdict in CALM:
        return False
    had_unread = before.max_offset is not None and at < before.max_offset
    return before.committed_offset == at and had_unread


def _catch_up_s(lag: int | None, read: float | None, written: float | None) -> float | None:
    if lag == 0:
        return 0.0
    if lag is None or read is None or written is None or read <= written:
        return None
    return lag / (read - written)
