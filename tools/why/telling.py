"""The history of a message, derived from its copies and other evidence. Pure: it reads no file and no clock.

What each consumer group did with a message follows from committed offsets, filters, retries and POP check points. A
committed offset beyond a message means that its group is done with it: it was read, filtered out, or skipped by an
administrator's reset. The broker's filter statistics (the table `statistics`) show which. Without them a filter is
only known from a table (consumerFilter.json, subscriptionGroup.json); tags in the pulls of RocketMQ's clients are not
stored anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ...broker.account import Account, Filtering, members_text
from ...proto import properties
from ...proto.errors import InvalidFilter
from ...proto.filters.expressions import parse_tags
from ...proto.filters.sql_evaluation import compiled
from ...proto.record import Record
from ...proto.time_text import format_instant
from ...proto.topics import DEAD_LETTERS_GROUP, MARK_GROUPS
from ..counted import counted
from ..lookup.files import StoredRecord
from .evidence import (
    FIRST_POP_TIME,
    Evidence,
    Filter,
    GroupReading,
    Place,
    PopMark,
    checks,
    delay_level,
    due_of_timed,
    first_message,
    group_of,
    is_commit,
    number_of,
    origin_offset,
    real_place,
    real_topic,
    resent_by,
    role_of,
)
from .story import Event, GroupView, Story, ending_of


def tell(copies: Sequence[StoredRecord], evidence: Evidence) -> Story:
    """Return the story of the message whose COPIES these are, in the order of the log; at least one."""
    copies = sorted(copies, key=lambda one: one.log_offset)
    first = first_message(copies).record
    views = group_views(copies, evidence)
    events = [
        *_origin(copies, evidence),
        *_events(copies, evidence),
        *pop_events(copies, evidence),
        *_purges(copies, evidence),
        *(
            Event(
                kind="read", text=view.text, time_ms=view.before_ms, is_bound=True, group=view.group
            )
            for view in views
            if view.verdict == "read" and view.by_offset  # A failure is an event of its own.
        ),
    ]
    state, conclusion = ending_of(copies, evidence, views)
    return Story(
        message_id=first.properties.get(properties.UNIQ_KEY),
        topic=real_topic(first),
        keys=first.properties.get(properties.KEYS),
        tags=first.properties.get(properties.TAGS),
        born_ms=first.born_timestamp_ms,
        trace=first.properties.get(properties.TRACE_CONTEXT)
        or first.properties.get(properties.TRACEPARENT),
        state=state,
        conclusion=conclusion,
        events=sorted(events, key=lambda event: (event.time_ms or 0, not event.is_bound)),
        groups=views,
        notes=[*evidence.notes, *_faults(copies), *_doubts(views)],
    )


def tell_gone(
    what: str, about_ms: int | None, evidence: Evidence, *, why: str | None = None
) -> Story:
    """Return the story of a message of which the log holds nothing: WHAT names it, ABOUT_MS is when it was stored.

    WHY it is gone; None: its file expired.
    """
    text = f"gone: {what}; {why or expired_text(evidence)}"
    when = "" if about_ms is None else f", stored at about {format_instant(about_ms)}"
    return Story(
        message_id=None,
        topic=None,
        keys=None,
        tags=None,
        born_ms=None,
        state="gone",
        conclusion=text + when,
        events=[
            Event(kind="gone", text=text + when, time_ms=evidence.log_changed_ms, is_bound=True)
        ],
        notes=list(evidence.notes),
    )


def expired_text(evidence: Evidence) -> str:
    """Return what is known of when the oldest files of the log were deleted."""
    begin_ms, changed_ms = evidence.log_begin_ms, evidence.log_changed_ms
    since = "" if begin_ms is None else f" (stored {format_instant(begin_ms)})"
    until = (
        ""
        if changed_ms is None
        else f", the file went at the latest at {format_instant(changed_ms)}"
    )
    return f"file expired: the log begins at {evidence.log_begin:,}{since}{until}"


def _origin(copies: Sequence[StoredRecord], evidence: Evidence) -> Iterator[Event]:
    """Yield that the first copy is gone, if later ones name it and it was before the log's beginning."""
    here = {copy.log_offset for copy in copies}
    named = {offset for copy in copies if (offset := origin_offset(copy.record)) is not None}
    for offset in sorted(named - here):
        if offset < evidence.log_begin:
            text = f"its first copy, at log offset {offset:,}, is gone: {expired_text(evidence)}"
            yield Event(kind="gone", text=text, time_ms=None)


def _events(copies: Sequence[StoredRecord], evidence: Evidence) -> Iterator[Event]:
    """Yield what each copy shows."""
    stored_before = False
    for number, copy in enumerate(copies):
        role = role_of(copy.record)
        resender = resent_by(copy, copies[:number])
        if resender is not None:
            text = f"sent again from the dead letters of {resender}, to {_place(copy)}"
            yield _event(copy, "sent again", text, group=resender)
        elif role == "message":
            yield _in_topic(copy, copies[:number], evidence, again=stored_before)
            stored_before = True
        elif role == "scheduled":
            yield _scheduled(copy, evidence)
        elif role == "timed":
            yield _timed(copy, evidence)
        elif role == "recall":
            yield _event(copy, "recalled", "recalled: it will not be delivered")
        elif role in ("half", "given up"):
            yield _half(copy)
        elif role == "retry":
            yield _retried(copy)
        elif role == "dead letter":
            yield _dead(copy)
    yield from _rolled_back(copies, evidence)


def _event(
    copy: StoredRecord, kind: str, text: str, *, group: str | None = None, due_ms: int | None = None
) -> Event:
    return Event(
        kind=kind,  # type: ignore[arg-type]
        text=text,
        time_ms=copy.record.store_timestamp_ms,
        copy=copy,
        group=group,
        due_ms=due_ms,
    )


def _place(copy: StoredRecord) -> str:
    record = copy.record
    return f"{record.topic}/{record.queue_id} at offset {record.queue_offset:,}"


def _in_topic(
    copy: StoredRecord, before: Sequence[StoredRecord], evidence: Evidence, *, again: bool
) -> Event:
    record = copy.record
    if is_commit(record):
        return _event(copy, "committed", f"committed: in its topic {_place(copy)}")
    if record.properties.get(properties.REAL_TOPIC) == record.topic:
        return _event(
            copy, "moved", f"moved to its topic {_place(copy)}{_late(copy, before, evidence)}"
        )
    if again:
        return _event(copy, "sent again", f"stored once more with the same id, in {_place(copy)}")
    return _event(copy, "stored", f"stored in {_place(copy)}")


def _late(copy: StoredRecord, before: Sequence[StoredRecord], evidence: Evidence) -> str:
    """Return how long after its due time COPY was stored, if one of the copies BEFORE shows that."""
    for waiting in reversed(before):
        due_ms = due_of(waiting, evidence)
        if due_ms is not None:
            late_ms = copy.record.store_timestamp_ms - due_ms
            return f", {late_ms:,} ms after it was due" if late_ms >= 0 else ""
    return ""


def due_of(copy: StoredRecord, evidence: Evidence) -> int | None:
    """Return until when COPY waits; None for one that does not, or does not tell."""
    role = role_of(copy.record)
    if role == "scheduled":
        return evidence.due_ms.get(copy.log_offset)
    return due_of_timed(copy.record) if role == "timed" else None


def _until(due_ms: int | None) -> str:
    return "a time that the files do not tell" if due_ms is None else format_instant(due_ms)


def _scheduled(copy: StoredRecord, evidence: Evidence) -> Event:
    record, due_ms = copy.record, due_of(copy, evidence)
    group, level = group_of(record), delay_level(record)
    waits = f"waits at delay level {level} until {_until(due_ms)}"
    if group is None:
        return _event(copy, "waits", f"{waits} for {real_place(record)}", due_ms=due_ms)
    return _sent_back(copy, group, waits, due_ms)


def _sent_back(copy: StoredRecord, group: str, waits: str, due_ms: int | None) -> Event:
    text = f"sent back by {group}, failure {copy.record.reconsume_times}: {waits}"
    return _event(copy, "sent back", text, group=group, due_ms=due_ms)


def _timed(copy: StoredRecord, evidence: Evidence) -> Event:
    record, due_ms = copy.record, due_of(copy, evidence)
    rolls = number_of(record, properties.TIMER_ROLL_TIMES)
    mark = evidence.timer_marks.get(copy.log_offset)
    filed = ""
    if mark is not None:
        rolled = f"is rolled over at {format_instant(mark.slot_ms)}, " if mark.is_roll else ""
        filed = f" ({rolled}timer log position {mark.position:,})"
    text, group = f"until {_until(due_ms)} for {real_place(record)}{filed}", group_of(record)
    if group is not None:
        return _sent_back(copy, group, f"waits {text}", due_ms)
    if rolls:
        return _event(
            copy, "rolled", f"waits on, rolled over {counted(rolls, 'time')}, {text}", due_ms=due_ms
        )
    return _event(copy, "waits", f"waits {text}", due_ms=due_ms)


def _half(copy: StoredRecord) -> Event:
    record, times = copy.record, checks(copy.record)
    producers = record.properties.get(properties.PRODUCER_GROUP, "?")
    if role_of(record) == "given up":
        return _event(copy, "given up", f"given up: no outcome after {counted(times, 'check')}")
    if times:
        return _event(
            copy, "checked", f"no outcome yet: check {times}, asked of producer group {producers}"
        )
    text = (
        f"half message of producer group {producers} for {real_place(record)}: no consumer sees it"
    )
    return _event(copy, "half", text)


def _rolled_back(copies: Sequence[StoredRecord], evidence: Evidence) -> Iterator[Event]:
    """Yield the roll-back, if a mark names a half message that no committed copy follows."""
    if any(is_commit(copy.record) for copy in copies):
        return
    for copy in copies:
        record = copy.record
        mark = evidence.outcomes.get((record.queue_id, record.queue_offset))
        if role_of(record) == "half" and mark is not None:
            text = f"rolled back: half message {record.queue_offset:,} is marked as done, and no copy was committed"
            yield _event(mark, "rolled back", text)


def _retried(copy: StoredRecord) -> Event:
    record, group = copy.record, group_of(copy.record)
    if FIRST_POP_TIME in record.properties:
        text = f"not acknowledged by {group} in time: revived in {_place(copy)}, try {record.reconsume_times + 1}"
        return _event(copy, "revived", text, group=group)
    text = f"offered to {group} again, retry {record.reconsume_times}, in {_place(copy)}"
    return _event(copy, "retried", text, group=group)


def _dead(copy: StoredRecord) -> Event:
    record, group = copy.record, group_of(copy.record)
    reason = record.properties.get(properties.DEAD_LETTER_REASON)
    text = f"dead letter of {group} after {counted(record.reconsume_times, 'failure')}, in {_place(copy)}"
    return _event(copy, "dead letter", text + (f": {reason}" if reason else ""), group=group)


def _purges(copies: Sequence[StoredRecord], evidence: Evidence) -> Iterator[Event]:
    """Yield which of COPIES are dead letters that were purged: the broker keeps the first that was not as an offset."""
    for copy in copies:
        offset = copy.record.queue_offset
        for reading in evidence.readings.get(_queue(copy.record), ()):
            if reading.group == DEAD_LETTERS_GROUP and reading.committed > offset:
                before_ms = _passed_ms(reading, offset)
                text = f"purged from the dead letters before {format_instant(before_ms)}"
                yield Event(kind="purged", text=text, time_ms=before_ms, is_bound=True)


def _doubts(views: Sequence[GroupView]) -> list[str]:
    """Return what a committed offset does not tell."""
    passed = [view for view in views if view.verdict == "read" and view.by_offset]
    if all(view.filter_known for view in passed):
        return []
    return [
        "read means that a committed offset is beyond it: a consumer of Apache's that filters by tag may have passed it"
        " over, and no file holds that filter"
    ]


def _faults(copies: Sequence[StoredRecord]) -> list[str]:
    return [f"log offset {copy.log_offset:,}: {fault}" for copy in copies for fault in copy.faults]


# ---------------------------------------------------------------- what each consumer group made of a message


#: Kinds of filters by RocketMQ's names.
_KINDS: Final = {"TAG": "TAG", "SQL": "SQL92"}


def group_views(copies: Sequence[StoredRecord], evidence: Evidence) -> list[GroupView]:
    """Return what each group made of each of COPIES that consumers can see, in their order."""
    found = []
    for number, copy in enumerate(copies):
        if role_of(copy.record) not in ("message", "retry", "dead letter"):
            continue
        record = copy.record
        later = copies[number + 1 :]
        readings = {
            one.group: one
            for one in evidence.readings.get(_queue(record), ())
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
    """Yield what check points and acknowledgements tell of COPIES."""
    for copy in copies:
        marks = evidence.pops.get(_place_of_group(copy.record), ())
        seen: set[str] = set()
        for mark in marks:
            text = f"acknowledged by {mark.group}"
            due_ms = None
            if mark.is_ack and mark.popped_ms != _last_popped_ms(marks, mark.group):
                continue  # A change of the hidden time acknowledges the check point before.
            if not mark.is_ack:
                hidden_ms = mark.invisible_ms or 0
                due_ms = mark.time_ms + hidden_ms
                what = "kept hidden" if mark.group in seen else "popped"
                text = f"{what} by {mark.group}, hidden for {hidden_ms / 1000:g} s"
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
    """Return when GROUP popped last; a change of the hidden time counts, for it makes a check point of its own."""
    return max(mark.popped_ms for mark in marks if mark.group == group)


def _queue(record: Record) -> tuple[str, int]:
    return record.topic, record.queue_id


def _place_of_group(record: Record) -> Place:
    return record.topic, record.queue_id, record.queue_offset


def _passed_ms(reading: GroupReading, offset: int) -> int:
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
    """One group's look at one copy; LATER are the copies that followed it."""

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
        self._account = evidence.accounts.get((group, *_queue(copy.record)))
        #: The filter that looked at the record, if an account knows that.
        self._looked = (
            None
            if self._account is None
            else self._account.looked_through(self._record.queue_offset)
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
        """Return verdict, sentence, and a time before which it was so."""
        if self._marks:
            return self._popped()
        if self._failure is not None:
            return self._read_and_failed(self._failure)
        told = None if self._account is None else self._accounted(self._account)
        if told is not None:
            return told
        if self._filter is not None and wants(self._filter, self._record) is False:
            return self._filtered(self._filter)
        reading = self._reading
        assert reading is not None, "a group without a reading has marks or failures"
        if reading.committed > self._record.queue_offset:
            return self._read(reading)
        distance = self._record.queue_offset - reading.committed
        where = "it is the next" if not distance else f"{distance:,} before it"
        text = f"not yet read by {self._group}: it stood at {reading.committed:,} ({where})"
        return "not yet", f"{text} at {format_instant(reading.at_ms)}", None

    def _accounted(self, account: Account) -> tuple[str, str, int | None] | None:
        """Return what ACCOUNT says became of the record besides being read; None: nothing else."""
        offset, group = self._record.queue_offset, self._group
        move = account.passed_by(offset)
        if move is not None:
            start = "its beginning" if move.before is None else f"{move.before:,}"
            text = f"left out by {group}: {move.who} moved it from {start} to {move.after:,}"
            return "moved", f"{text} at {format_instant(move.at_ms)}", move.at_ms
        if self._looked is not None:
            if _wants(self._looked, self._record) is False:
                return self._skipped(account, self._looked)
            return None
        unsure = [
            name
            for name, one in account.skipped.items()
            if one.first <= offset <= one.last and _wants(name, self._record) is False
        ]
        if unsure and self._reading is not None and self._reading.committed > offset:
            verdict, text, before_ms = self._skipped(account, unsure[-1])
            return (
                verdict,
                f"{text}, or read before: which filters looked is not known any more",
                before_ms,
            )
        return None

    def _skipped(self, account: Account, name: Filtering) -> tuple[str, str, int | None]:
        skipped = account.skipped.get(name)
        who = members_text(() if skipped is None else skipped.members)
        several = skipped is not None and len(skipped.members) > 1
        by = f"{'one of ' if several else ''}{who}"
        text = f"skipped by {self._group}: {by} did not want it, with filter {name[1]!r}"
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
        text = f"held by {self._group}: popped, not acknowledged, hidden until {format_instant(until_ms)}"
        return "held", text, last.time_ms

    def _filtered(self, wanted: Filter) -> tuple[str, str, int | None]:
        what = "tag filter" if wanted.kind == "TAG" else f"{wanted.kind} filter"
        reading = self._reading
        before_ms = None
        if reading is not None and reading.committed > self._record.queue_offset:
            before_ms = _passed_ms(reading, self._record.queue_offset)
        passed = "will never get it" if before_ms is None else "never got it"
        return "filtered", f"{self._group} {passed}: {what} {wanted.expression!r}", before_ms

    def _read_and_failed(self, failure: StoredRecord) -> tuple[str, str, int | None]:
        before_ms = failure.record.store_timestamp_ms
        word = {"dead letter": "failed for good", "retry": "failed"}.get(
            role_of(failure.record), "sent back"
        )
        return (
            "read",
            f"read by {self._group} before {format_instant(before_ms)}: {word}",
            before_ms,
        )

    def _read(self, reading: GroupReading) -> tuple[str, str, int | None]:
        before_ms = _passed_ms(reading, self._record.queue_offset)
        since, earlier_ms = "", reading.earlier_ms
        if earlier_ms is not None and (reading.earlier or 0) <= self._record.queue_offset:
            since = f", after {format_instant(earlier_ms)}"
        text = f"read by {self._group} before {format_instant(before_ms)}{since} (committed {reading.committed:,})"
        return "read", text, before_ms
