"""The rows of the lag report: the state of a group in a queue of a broker, judged; in JSON, in columns, as Arrow.

A row has one verdict, the first of these that applies:

    queue missing     the group committed in a queue that neither files nor the topic's configuration have
    never committed   the group reads the topic, and has no offset in this queue
    offset past end   committed above the maximum: the store was cut or replaced
    expired unread    committed below the minimum: messages went before the group read them
    stalled           messages are unread, and the offset has not moved since an earlier snapshot
    retrying          unread in the group's retry topic, or on their way there through the schedule
    dead letters      the queue is the group's dead letters', and holds some
    lagging           messages are unread
    in flight         all read, but some were popped and not acknowledged (PocketMQ does not commit those)
    delayed           all read, and some are scheduled, by delay level or time
    ok                all read

Reasons are sentences; the first explains the verdict, the others say what else is known of the row. Nothing here reads
a store; `lag_batch` needs pyarrow, which is optional.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ...proto.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX
from ..counted import counted
from ..stores.schemas import arrow, schema_of

if TYPE_CHECKING:
    import pyarrow


class LagVerdict(StrEnum):
    """The state of a group in a queue: the code that JSON, CSV and columns have."""

    OK = "ok"
    LAGGING = "lagging"
    STALLED = "stalled"
    EXPIRED_UNREAD = "expired_unread"
    OFFSET_PAST_END = "offset_past_end"
    QUEUE_MISSING = "queue_missing"
    NEVER_COMMITTED = "never_committed"
    RETRYING = "retrying"
    DEAD_LETTERS = "dead_letters"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"

    @property
    def text(self) -> str:
        """The verdict in words."""
        return self.value.replace("_", " ")


#: All is well: nothing that the group could read is unread.
CALM = frozenset({LagVerdict.OK, LagVerdict.DELAYED, LagVerdict.IN_FLIGHT})


@dataclass(frozen=True, slots=True, kw_only=True)
class LagFacts:
    """What is known of GROUP in one queue; None is unknown.

    min_offset, max_offset: both None where there is no such queue. unread_entries: how many of the unread messages have
    an entry in the queue. delayed: messages that are scheduled and then go to this queue. held: messages popped
    and not acknowledged; held_until_ms: when the last of their leases ends. read_to: up to where a group that pops from
    our broker, which commits only what is finished, was delivered messages. retries: unread and delayed ones of the
    group's retry topics; purged_below: dead letters below this offset were purged; dead_letters: of its dead-letter
    topic (both for rows of other topics). skipped: messages that the group's filters skipped. stalled_ms: for how
    long, at least, the offset has not moved though messages were unread.
    """

    topic: str
    queue_id: int
    group: str
    committed_offset: int | None
    min_offset: int | None
    max_offset: int | None
    unread_entries: int | None = None
    delayed: int | None = None
    held: int | None = None
    held_until_ms: int | None = None
    read_to: int | None = None
    purged_below: int = 0
    retries: int | None = None
    dead_letters: int | None = None
    skipped: int | None = None
    stalled_ms: int | None = None
    now_ms: int = 0

    @property
    def lag(self) -> int | None:
        """Messages that are in the queue and not finished: from the committed offset on, or all where there is none.

        What is gone from the queue or purged does not count. None: there is no such queue, or it holds dead letters of
        the group, which does not read them.
        """
        at = self.committed_offset
        if self.max_offset is None or (at is None and is_dead_letter_topic(self.topic, self.group)):
            return None
        return max(0, self.max_offset - max(at or 0, self.min_offset or 0, self.purged_below))


def judge(facts: LagFacts) -> tuple[LagVerdict, tuple[str, ...]]:
    """Return the verdict on FACTS and its reasons."""
    verdict, why = _verdict(facts)
    return verdict, (why, *_besides(facts, verdict))


def _verdict(facts: LagFacts) -> tuple[LagVerdict, str]:
    low, high, at = facts.min_offset, facts.max_offset, facts.committed_offset
    if high is None:
        return LagVerdict.QUEUE_MISSING, f"{facts.topic} has no queue {facts.queue_id}"
    if at is None:
        return _uncommitted(facts, low or 0, high)
    if at > high:
        return (
            LagVerdict.OFFSET_PAST_END,
            f"{counted(at - high, 'message')} beyond the end at {high:,}: the store was cut or replaced",
        )
    if low is not None and at < low:
        gone = counted(low - at, "message")
        return LagVerdict.EXPIRED_UNREAD, f"{gone} before {low:,} went before the group read them"
    unread_from = max(at, facts.read_to or 0, facts.purged_below)
    if unread_from < high:
        return _unread(facts, high - unread_from)
    return _all_read(facts, high)


def _uncommitted(facts: LagFacts, low: int, high: int) -> tuple[LagVerdict, str]:
    if is_dead_letter_topic(facts.topic, facts.group):
        letters = high - max(0, low, facts.purged_below)
        if letters <= 0:
            return LagVerdict.OK, "no dead letters"
        return LagVerdict.DEAD_LETTERS, counted(letters, "dead letter")
    there = f"{counted(high - max(0, low), 'message')} in it" if high > low else "it is empty"
    return LagVerdict.NEVER_COMMITTED, f"the group has no offset in this queue; {there}"


def _unread(facts: LagFacts, lag: int) -> tuple[LagVerdict, str]:
    unread = f"{counted(lag, 'message')} unread"
    if facts.stalled_ms is not None:
        return LagVerdict.STALLED, f"{unread}, and no progress for {facts.stalled_ms / 1000:,.3g} s"
    if is_dead_letter_topic(facts.topic, facts.group):
        return LagVerdict.DEAD_LETTERS, f"{counted(lag, 'dead letter')} unread"
    if is_retry_topic(facts.topic, facts.group):
        return LagVerdict.RETRYING, f"{counted(lag, 'retried message')} unread"
    return LagVerdict.LAGGING, unread


def _all_read(facts: LagFacts, high: int) -> tuple[LagVerdict, str]:
    if facts.delayed and is_retry_topic(facts.topic, facts.group):
        return LagVerdict.RETRYING, f"{counted(facts.delayed, 'message')} waiting for the next try"
    if facts.held:
        return LagVerdict.IN_FLIGHT, _held(facts)
    if facts.delayed:
        return LagVerdict.DELAYED, _delayed(facts)
    return LagVerdict.OK, f"all read up to {high:,}" if high else "the queue is empty"


def _besides(facts: LagFacts, verdict: LagVerdict) -> Iterator[str]:
    """Yield what else is worth knowing."""
    lag = facts.lag
    if (
        lag
        and facts.unread_entries is not None
        and facts.committed_offset is not None
        and verdict is not LagVerdict.EXPIRED_UNREAD
    ):
        missing = lag - facts.unread_entries
        if missing > 0:
            yield f"{counted(missing, 'unread message')} cannot be read: the queue has no entries for them"
    if facts.held and verdict is not LagVerdict.IN_FLIGHT:
        yield _held(facts)
    if facts.delayed and verdict not in (LagVerdict.DELAYED, LagVerdict.RETRYING):
        yield _delayed(facts)
    if facts.skipped:
        yield f"{counted(facts.skipped, 'message')} skipped by the group's filters"
    if facts.retries:
        yield f"{counted(facts.retries, 'message')} of the group in its retry topics"
    if facts.dead_letters:
        yield f"the group has {counted(facts.dead_letters, 'dead letter')}"


def _held(facts: LagFacts) -> str:
    text = f"{counted(facts.held or 0, 'message')} popped and not acknowledged"
    if facts.held_until_ms is not None and facts.held_until_ms <= facts.now_ms:
        return f"{text}; their invisible time has ended: they will be redelivered"
    return text


def _delayed(facts: LagFacts) -> str:
    return f"{counted(facts.delayed or 0, 'message')} for this queue waiting for their time"


def is_retry_topic(topic: str, group: str) -> bool:
    """Is TOPIC a retry topic of GROUP? Popping groups have one for each topic."""
    own = RETRY_PREFIX + group
    return topic == own or topic.startswith((f"{own}_", f"{own}+"))


def is_dead_letter_topic(topic: str, group: str) -> bool:
    """Is TOPIC that of the dead letters of GROUP?"""
    return topic == DEAD_LETTER_PREFIX + group


#: The columns, in order, by the names that JSON, Parquet and Spark use.
COLUMNS: Final = (
    "broker",
    "topic",
    "queue",
    "group",
    "committed_offset",
    "min_offset",
    "max_offset",
    "lag",
    "lag_bytes",
    "oldest_unread_age_ms",
    "skipped",
    "verdict",
    "reasons",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """The state of GROUP in one queue; None: unknown.

    lag: messages in the queue that are not finished (LagFacts.lag).  lag_bytes: bytes of their records, from the
    committed offset on.  oldest_unread_age_ms: how long ago the oldest of them was stored; None where nothing is
    unread.  facts: what the verdict was made of.
    """

    broker_name: str
    facts: LagFacts
    lag_bytes: int | None
    oldest_unread_age_ms: int | None
    verdict: LagVerdict
    reasons: tuple[str, ...]

    @classmethod
    def of(
        cls,
        broker_name: str,
        facts: LagFacts,
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
        """Identity of a row in a report: broker, topic, queue, group."""
        return self.broker_name, self.facts.topic, self.facts.queue_id, self.facts.group

    def stalled_for(self, stalled_ms: int) -> LagRow:
        """Return this row, judged again: its offset has not moved for STALLED_MS."""
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


def lag_batch(rows: Iterable[LagRow]) -> pyarrow.RecordBatch:
    """Return ROWS as one batch with the columns of the dataset "lag"."""
    return arrow().RecordBatch.from_pydict(columns_of(rows), schema=schema_of("lag"))
