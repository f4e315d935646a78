"""The history of a message, derived from its copies and other evidence. Pure: it reads no file and no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...proto import properties
from ...proto.time_text import format_instant
from ...proto.topics import DEAD_LETTERS_GROUP
from ..counted import counted
from ..find.files import StoredRecord
from .copies import (
    FIRST_POP_TIME,
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
from .evidence import Evidence
from .group_views import group_views, passed_ms, pop_events, queue_of
from .timeline import Event, GroupView, Story, ending_of


def history_of(copies: Sequence[StoredRecord], evidence: Evidence) -> Story:
    """Return the history of the message with COPIES, one or more."""
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
            if view.verdict == "read" and view.by_offset  # A failure has its own event.
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


def history_of_gone(
    what: str, about_ms: int | None, evidence: Evidence, *, why: str | None = None
) -> Story:
    """Return the history of a message that is no longer in the log. WHAT names it; ABOUT_MS: about its store time.

    WHY: the reason; None: its file expired.
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
    """Return a sentence about when the oldest files of the log were deleted."""
    begin_ms, changed_ms = evidence.log_begin_ms, evidence.log_changed_ms
    since = "" if begin_ms is None else f" (stored {format_instant(begin_ms)})"
    until = (
        ""
        if changed_ms is None
        else f", the file was deleted at {format_instant(changed_ms)} or before"
    )
    return f"file expired: the log begins at {evidence.log_begin:,}{since}{until}"


def _origin(copies: Sequence[StoredRecord], evidence: Evidence) -> Iterator[Event]:
    """Yield an event if the first copy, which later ones name, was deleted with its file."""
    here = {copy.log_offset for copy in copies}
    named = {offset for copy in copies if (offset := origin_offset(copy.record)) is not None}
    for offset in sorted(named - here):
        if offset < evidence.log_begin:
            text = f"its first copy, at log offset {offset:,}, is gone: {expired_text(evidence)}"
            yield Event(kind="gone", text=text, time_ms=None)


def _events(copies: Sequence[StoredRecord], evidence: Evidence) -> Iterator[Event]:
    """Yield the event of each copy."""
    stored_before = False
    for number, copy in enumerate(copies):
        role = role_of(copy.record)
        resender = resent_by(copy, copies[:number])
        if resender is not None:
            text = f"resent from the dead letters of {resender}, to {_place(copy)}"
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
        return _event(copy, "sent again", f"stored again with the same id, in {_place(copy)}")
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
    """Return until when COPY waits; None for one that does not, or does not show it."""
    role = role_of(copy.record)
    if role == "scheduled":
        return evidence.due_ms.get(copy.log_offset)
    return due_of_timed(copy.record) if role == "timed" else None


def _until(due_ms: int | None) -> str:
    return "a time that the files do not show" if due_ms is None else format_instant(due_ms)


def _scheduled(copy: StoredRecord, evidence: Evidence) -> Event:
    record, due_ms = copy.record, due_of(copy, evidence)
    group, level = group_of(record), delay_level(record)
    waits = f"waits at delay level {level} until {_until(due_ms)}"
    if group is None:
        return _event(copy, "waits", f"{waits} for {real_place(record)}", due_ms=due_ms)
    return _sent_back(copy, group, waits, due_ms)


def _sent_back(copy: StoredRecord, group: str, waits: str, due_ms: int | None) -> Event:
    text = f"failed in {group} ({counted(copy.record.reconsume_times, 'failure')}): {waits}"
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
            copy,
            "rolled",
            f"still waits, rolled over {counted(rolls, 'time')}, {text}",
            due_ms=due_ms,
        )
    return _event(copy, "waits", f"waits {text}", due_ms=due_ms)


def _half(copy: StoredRecord) -> Event:
    record, times = copy.record, checks(copy.record)
    producers = record.properties.get(properties.PRODUCER_GROUP, "?")
    if role_of(record) == "given up":
        return _event(
            copy, "given up", f"given up: no commit or rollback after {counted(times, 'check')}"
        )
    if times:
        return _event(
            copy,
            "checked",
            f"no commit or rollback yet: check {times}, sent to producer group {producers}",
        )
    text = f"half message of producer group {producers} for {real_place(record)}: invisible for consumers"
    return _event(copy, "half", text)


def _rolled_back(copies: Sequence[StoredRecord], evidence: Evidence) -> Iterator[Event]:
    """Yield the roll-back, if a mark names a half message that no committed copy follows."""
    if any(is_commit(copy.record) for copy in copies):
        return
    for copy in copies:
        record = copy.record
        mark = evidence.outcomes.get((record.queue_id, record.queue_offset))
        if role_of(record) == "half" and mark is not None:
            text = f"rolled back: half message {record.queue_offset:,} is marked as resolved, and no copy was committed"
            yield _event(mark, "rolled back", text)


def _retried(copy: StoredRecord) -> Event:
    record, group = copy.record, group_of(copy.record)
    if FIRST_POP_TIME in record.properties:
        text = f"not acknowledged by {group} in time: revived in {_place(copy)}, try {record.reconsume_times + 1}"
        return _event(copy, "revived", text, group=group)
    text = f"retry {record.reconsume_times} for {group}, in {_place(copy)}"
    return _event(copy, "retried", text, group=group)


def _dead(copy: StoredRecord) -> Event:
    record, group = copy.record, group_of(copy.record)
    reason = record.properties.get(properties.DEAD_LETTER_REASON)
    text = f"dead letter of {group} after {counted(record.reconsume_times, 'failure')}, in {_place(copy)}"
    return _event(copy, "dead letter", text + (f": {reason}" if reason else ""), group=group)


def _purges(copies: Sequence[StoredRecord], evidence: Evidence) -> Iterator[Event]:
    """Yield the purges of dead letters among COPIES: the broker stores the first offset that is not purged."""
    for copy in copies:
        offset = copy.record.queue_offset
        for reading in evidence.readings.get(queue_of(copy.record), ()):
            if reading.group == DEAD_LETTERS_GROUP and reading.committed > offset:
                before_ms = passed_ms(reading, offset)
                text = f"purged from the dead letters before {format_instant(before_ms)}"
                yield Event(kind="purged", text=text, time_ms=before_ms, is_bound=True)


def _doubts(views: Sequence[GroupView]) -> list[str]:
    """Return a note about what a committed offset does not show."""
    passed = [view for view in views if view.verdict == "read" and view.by_offset]
    if all(view.filter_known for view in passed):
        return []
    return [
        "read means that a committed offset is beyond it. A consumer of Apache RocketMQ that filters by tag may have"
        " filtered it out: no file contains that filter"
    ]


def _faults(copies: Sequence[StoredRecord]) -> list[str]:
    return [f"log offset {copy.log_offset:,}: {fault}" for copy in copies for fault in copy.faults]
