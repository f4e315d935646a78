"""What each consumer group did with a message: from committed offsets, filters, retries and POP check points. Pure.

A committed offset beyond a message means that its group is done with it: it was read, filtered out, or skipped by an
administrator's reset. The broker's filter statistics (the table `statistics`) show which. Without them a filter is
only known from a table (consumerFilter.json, subscriptionGroup.json); tags in the pulls of RocketMQ's clients are not
stored anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ...broker.queue_stats import Filtering, QueueStats, members_text
from ...proto import properties
from ...proto.errors import InvalidFilter
from ...proto.filters.expressions import parse_tags
from ...proto.filters.sql_evaluation import compiled
from ...proto.record import Record
from ...proto.time_text import format_instant
from ...proto.topics import MARK_GROUPS
from ..counted import counted
from ..find.files import StoredRecord
from .copies import group_of, role_of
from .evidence import Evidence, Filter, GroupReading, Place, PopMark
from .timeline import Event, GroupView

#: Kinds of filters by RocketMQ's names.
_KINDS: Final = {"TAG": "TAG", "SQL": "SQL92"}


def group_views(copies: Sequence[StoredRecord], evidence: Evidence) -> list[GroupView]:
    """Return the view of each group on each of COPIES that consumers can see, in their order."""
    found = []
    for number, copy in enumerate(copies):
        if role_of(copy.record) not in ("message", "retry", "dead letter"):
            continue
        record = copy.record
        later = copies[number + 1 :]
        readings = {
            one.group: one
            for one in evidence.readings.get(queue_of(record), ())
            if one.group not in MARK_GROUPS  # Offsets that the broker keeps for itself.
        }
        failed = {group for one in later if (group := _failed(record, one))}
        popped = {mark.group for mark in evidence.pops.get(_place_of_group(record), ())}
        found += [
            _Look(copy, later, group, readings.get(group), evidence).view()
            for group in sorted(readings.keys() | failed | popped)
        ]
    return found


def pop_events(copies: Sequence[StoredRecord], evidence: Evidence) -> Iterator[Event]:
    """Yield the events in check points and acknowledgements of COPIES."""
    for copy in copies:
        marks = evidence.pops.get(_place_of_group(copy.record), ())
        seen: set[str] = set()
        for mark in marks:
            text = f"acknowledged by {mark.group}"
            due_ms = None
            if mark.is_ack and mark.popped_ms != _last_popped_ms(marks, mark.group):
                continue  # A change of the invisible time acknowledges the check point before.
            if not mark.is_ack:
                hidden_ms = mark.invisible_ms or 0
                due_ms = mark.time_ms + hidden_ms
                what = "invisible time changed" if mark.group in seen else "popped"
                text = f"{what} by {mark.group}, invisible for {hidden_ms / 1000:g} s"
                seen.add(mark.group)
            yield Event(
                kind="acknowledged" if mark.is_ack else "popped",
                text=text,
                time_ms=mark.time_ms,
                copy=mark.copy,
                group=mark.group,
                due_ms=due_ms,
            )


def wants(wanted: Filter, record: Record) -> bool | None:
    """Return whether the filter WANTED matches RECORD; None if unknown."""
    try:
        if wanted.kind == "TAG":
            tags = parse_tags(wanted.expression)
            return not tags or record.properties.get(properties.TAGS) in tags
        if wanted.kind == "SQL92":
            sql = compiled(wanted.expression)
            return sql.evaluate([record.properties.get(name) for name in sql.names]) is True
    except InvalidFilter:
        return None
    return None


def _wants(name: Filtering, record: Record) -> bool | None:
    """Return whether the filter NAME of the statistics matches RECORD; None if unknown."""
    kind, expression = name
    if expression.endswith("…"):
        return None
    return True if kind == "ALL" else wants(Filter(_KINDS.get(kind, ""), expression), record)


def _last_popped_ms(marks: Sequence[PopMark], group: str) -> int:
    """Return when GROUP popped last. A change of the invisible time counts: it makes its own check point."""
    return max(mark.popped_ms for mark in marks if mark.group == group)


def queue_of(record: Record) -> tuple[str, int]:
    return record.topic, record.queue_id


def _place_of_group(record: Record) -> Place:
    return record.topic, record.queue_id, record.queue_offset


def passed_ms(reading: GroupReading, offset: int) -> int:
    """Return a time at which the committed offset of READING was beyond OFFSET."""
    earlier, earlier_ms = reading.earlier, reading.earlier_ms
    if earlier is not None and earlier_ms is not None and earlier > offset:
        return min(earlier_ms, reading.at_ms)
    return reading.at_ms


def _failed(record: Record, later: StoredRecord) -> str | None:
    """Return the group that LATER shows to have failed RECORD; None if it does not show that."""
    group = group_of(later.record)
    own = group_of(record)
    if group is None or later.record.reconsume_times <= record.reconsume_times:
        return None
    return group if own in (None, group) else None


class _Look:
    """One group's view of one copy; LATER are the copies after it."""

    def __init__(
        self,
        copy: StoredRecord,
        later: Sequence[StoredRecord],
        group: str,
        reading: GroupReading | None,
        evidence: Evidence,
    ) -> None:
        self._copy = copy
        self._record = copy.record
        self._group = group
        self._reading = reading
        self._failure = next((one for one in later if _failed(copy.record, one) == group), None)
        self._marks: list[PopMark] = [
            mark
            for mark in evidence.pops.get(_place_of_group(copy.record), ())
            if mark.group == group
        ]
        self._filter = evidence.filters.get((copy.record.topic, group))
        self._stats = evidence.stats.get((group, *queue_of(copy.record)))
        #: The filter that was applied to the record, if the statistics know it.
        self._looked = (
            None if self._stats is None else self._stats.looked_through(self._record.queue_offset)
        )

    def view(self) -> GroupView:
        verdict, text, before_ms = self._judged()
        record = self._record
        return GroupView(
            group=self._group,
            verdict=verdict,  # type: ignore[arg-type]
            text=text,
            topic=record.topic,
            queue=record.queue_id,
            offset=record.queue_offset,
            committed=None if self._reading is None else self._reading.committed,
            before_ms=before_ms,
            by_offset=not self._marks and self._failure is None,
            filter_known=self._filter is not None or self._looked is not None,
        )

    def _judged(self) -> tuple[str, str, int | None]:
        """Return verdict, sentence, and the latest time at which it happened."""
        if self._marks:
            return self._popped()
        if self._failure is not None:
            return self._read_and_failed(self._failure)
        told = None if self._stats is None else self._by_stats(self._stats)
        if told is not None:
            return told
        if self._filter is not None and wants(self._filter, self._record) is False:
            return self._filtered(self._filter)
        reading = self._reading
        assert reading is not None, "a group without a reading has marks or failures"
        if reading.committed > self._record.queue_offset:
            return self._read(reading)
        distance = self._record.queue_offset - reading.committed
        where = (
            "this message is next" if not distance else f"{counted(distance, 'message')} before it"
        )
        text = f"not yet read by {self._group}: its offset was {reading.committed:,} ({where})"
        return "not yet", f"{text} at {format_instant(reading.at_ms)}", None

    def _by_stats(self, stats: QueueStats) -> tuple[str, str, int | None] | None:
        """Return what ACCOUNT shows, except that the record was read; None: nothing else."""
        offset, group = self._record.queue_offset, self._group
        move = stats.passed_by(offset)
        if move is not None:
            start = "the beginning" if move.before is None else f"{move.before:,}"
            text = f"skipped by {group}: {move.who} reset its offset from {start} to {move.after:,}"
            return "moved", f"{text} at {format_instant(move.at_ms)}", move.at_ms
        if self._looked is not None:
            if _wants(self._looked, self._record) is False:
                return self._skipped(stats, self._looked)
            return None
        unsure = [
            name
            for name, one in stats.skipped.items()
            if one.first <= offset <= one.last and _wants(name, self._record) is False
        ]
        if unsure and self._reading is not None and self._reading.committed > offset:
            verdict, text, before_ms = self._skipped(stats, unsure[-1])
            return (
                verdict,
                f"{text}, or read before: the filters used are not known any more",
                before_ms,
            )
        return None

    def _skipped(self, stats: QueueStats, name: Filtering) -> tuple[str, str, int | None]:
        skipped = stats.skipped.get(name)
        who = members_text(() if skipped is None else skipped.members)
        several = skipped is not None and len(skipped.members) > 1
        by = f"{'one of ' if several else ''}{who}"
        text = f"filtered out in {self._group} by {by}, with filter {name[1]!r}"
        return "filtered", text, None if skipped is None else skipped.at_ms

    def _popped(self) -> tuple[str, str, int | None]:
        popped_ms = _last_popped_ms(self._marks, self._group)
        acks = [one for one in self._marks if one.is_ack and one.popped_ms == popped_ms]
        if acks:
            when = acks[-1].time_ms
            return "acknowledged", f"acknowledged by {self._group} at {format_instant(when)}", when
        last = next(one for one in self._marks if one.popped_ms == popped_ms)
        until_ms = last.time_ms + (last.invisible_ms or 0)
        if self._failure is not None and role_of(self._failure.record) == "dead letter":
            return (
                "dead letter",
                f"popped by {self._group}, never acknowledged: dead letter",
                last.time_ms,
            )
        if self._failure is not None:
            return (
                "revived",
                f"popped by {self._group}, not acknowledged in time, revived",
                last.time_ms,
            )
        text = f"in flight in {self._group}: popped, not acknowledged, invisible until {format_instant(until_ms)}"
        return "held", text, last.time_ms

    def _filtered(self, wanted: Filter) -> tuple[str, str, int | None]:
        what = "tag filter" if wanted.kind == "TAG" else f"{wanted.kind} filter"
        reading = self._reading
        before_ms = None
        if reading is not None and reading.committed > self._record.queue_offset:
            before_ms = passed_ms(reading, self._record.queue_offset)
        passed = "will not receive it" if before_ms is None else "did not receive it"
        return "filtered", f"{self._group} {passed}: {what} {wanted.expression!r}", before_ms

    def _read_and_failed(self, failure: StoredRecord) -> tuple[str, str, int | None]:
        before_ms = failure.record.store_timestamp_ms
        word = {"dead letter": "moved to the dead-letter queue", "retry": "failed"}.get(
            role_of(failure.record), "failed"
        )
        return (
            "read",
            f"read by {self._group} before {format_instant(before_ms)}: {word}",
            before_ms,
        )

    def _read(self, reading: GroupReading) -> tuple[str, str, int | None]:
        before_ms = passed_ms(reading, self._record.queue_offset)
        since, earlier_ms = "", reading.earlier_ms
        if earlier_ms is not None and (reading.earlier or 0) <= self._record.queue_offset:
            since = f", after {format_instant(earlier_ms)}"
        text = f"read by {self._group} before {format_instant(before_ms)}{since} (committed {reading.committed:,})"
        return "read", text, before_ms
