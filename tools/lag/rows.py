"""One row of the lag report: a group in a queue of a broker, and its form in JSON and in columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from .verdicts import Facts, Verdict, judge

#: The columns, in order, by the names that JSON, Parquet and Spark use.
COLUMNS: Final = (
    "brokerName",
    "topic",
    "queueId",
    "group",
    "committedOffset",
    "minOffset",
    "maxOffset",
    "lag",
    "lagBytes",
    "oldestUnreadAgeMs",
    "skipped",
    "verdict",
    "reasons",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """How GROUP stands in one queue; None is unknown, and where it cannot be told.

    lag: messages in the queue that are not finished (Facts.lag).  lag_bytes: bytes of their records, from the committed
    offset on.  oldest_unread_age_ms: how long ago the oldest of them was stored; None where nothing is unread.
    facts: what the verdict was made of.
    """

    broker_name: str
    facts: Facts
    lag_bytes: int | None
    oldest_unread_age_ms: int | None
    verdict: Verdict
    reasons: tuple[str, ...]

    @classmethod
    def of(
        cls,
        broker_name: str,
        facts: Facts,
        *,
        lag_bytes: int | None,
        oldest_unread_age_ms: int | None,
    ) -> LagRow:
        """Return the row of FACTS, judged."""
        verdict, reasons = judge(facts)
        return cls(
            broker_name=broker_name,
            facts=facts,
            lag_bytes=lag_bytes,
            oldest_unread_age_ms=oldest_unread_age_ms,
            verdict=verdict,
            reasons=reasons,
        )

    @property
    def lag(self) -> int | None:
        return self.facts.lag

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What tells a row from all others of its moment: broker, topic, queue, group."""
        return self.broker_name, self.facts.topic, self.facts.queue_id, self.facts.group

    def stalled_for(self, stalled_ms: int) -> LagRow:
        """Return this row, judged anew: its offset has not moved for STALLED_MS."""
        facts = replace(self.facts, stalled_ms=stalled_ms)
        verdict, reasons = judge(facts)
        return replace(self, facts=facts, verdict=verdict, reasons=reasons)

    def values(self) -> tuple[Any, ...]:
        """Return the values in the order of COLUMNS."""
        facts = self.facts
        return (
            self.broker_name,
            facts.topic,
            facts.queue_id,
            facts.group,
            facts.committed_offset,
            facts.min_offset,
            facts.max_offset,
            facts.lag,
            self.lag_bytes,
            self.oldest_unread_age_ms,
            facts.skipped,
            str(self.verdict),
            list(self.reasons),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the row with exactly the names of COLUMNS."""
        return dict(zip(COLUMNS, self.values(), strict=True))


def columns_of(rows: Iterable[LagRow]) -> dict[str, list[Any]]:
    """Return ROWS as one list a column."""
    table = [row.values() for row in rows]
    if not table:
        return {name: [] for name in COLUMNS}
    return {
        name: list(column) for name, column in zip(COLUMNS, zip(*table, strict=True), strict=True)
    }
