"""The history of a message: a list of events, the views of groups, and the final state. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...proto.record import Record
from ...proto.time_text import format_instant
from ..counted import counted
from ..find.files import StoredRecord
from .copies import checks, due_of_timed, group_of, is_commit, real_place, resent_by, role_of
from .evidence import Evidence

Kind = Literal[
    "stored", "sent again", "half", "checked", "committed", "rolled back", "given up", "waits", "rolled", "recalled",
    "moved", "sent back", "retried", "revived", "popped", "acknowledged", "read", "dead letter", "purged", "gone",
]  # fmt: skip
State = Literal[
    "stored", "half", "rolled back", "given up", "waiting", "recalled", "retrying", "dead letter", "gone"
]  # fmt: skip
Verdict = Literal[
    "read", "acknowledged", "held", "not yet", "filtered", "moved", "revived", "dead letter"
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event in the history of the message.

    time_ms: Unix milliseconds; None: unknown. is_bound: the time is the latest possible one. copy: the record that
    shows the event, if there is one. due_ms: the time until which the message waits.
    """

    kind: Kind
    text: str
    time_ms: int | None
    is_bound: bool = False
    copy: StoredRecord | None = None
    group: str | None = None
    due_ms: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the event as JSON shows it."""
        record = None if self.copy is None else self.copy.record
        return {
            "kind": self.kind,
            "time": self.time_ms,
            "time_is_bound": self.is_bound,
            "text": self.text,
            "group": self.group,
            "due": self.due_ms,
            "topic": record and record.topic,
            "queue": None if record is None else record.queue_id,
            "queue_offset": None if record is None else record.queue_offset,
            "log_offset": None if self.copy is None else self.copy.log_offset,
            "file": None if self.copy is None else self.copy.path,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """What a consumer group did with the message: a VERDICT, a sentence, and the offsets that show it.

    by_offset: only a committed offset shows it. filter_known: a table contains the group's filter.
    """

    group: str
    verdict: Verdict
    text: str
    topic: str
    queue: int
    offset: int
    committed: int | None = None
    before_ms: int | None = None
    by_offset: bool = False
    filter_known: bool = False

    def document(self) -> dict[str, Any]:
        """Return the view as JSON shows it."""
        return {
            "group": self.group,
            "verdict": self.verdict,
            "text": self.text,
            "topic": self.topic,
            "queue": self.queue,
            "queue_offset": self.offset,
            "committed_offset": self.committed,
            "before": self.before_ms,
        }


@dataclass(slots=True, kw_only=True)
class Story:
    """The history of a message: EVENTS in order of time, the view of each group, and the final state."""

    message_id: str | None
    topic: str | None
    keys: str | None
    tags: str | None
    born_ms: int | None
    #: The traceparent (W3C) that its producer set.
    trace: str | None = None
    state: State
    conclusion: str
    events: Sequence[Event] = ()
    groups: Sequence[GroupView] = ()
    notes: list[str] = field(default_factory=list)

    def document(self, broker: str) -> dict[str, Any]:
        """Return the story as JSON shows it."""
        return {
            "broker": broker,
            "message_id": self.message_id,
            "topic": self.topic,
            "keys": self.keys,
            "tags": self.tags,
            "born_ms": self.born_ms,
            "trace": self.trace,
            "state": self.state,
            "conclusion": self.conclusion,
            "events": [event.document() for event in self.events],
            "groups": [view.document() for view in self.groups],
            "notes": self.notes,
        }


_Ending = tuple[State, str]


def ending_of(
    copies: Sequence[StoredRecord], evidence: Evidence, views: Sequence[GroupView]
) -> _Ending:
    """Return the state of the message with COPIES and VIEWS, and a sentence."""
    roles = [role_of(copy.record) for copy in copies]
    last = copies[-1].record
    if roles[-1] == "dead letter":
        return (
            "dead letter",
            f"dead letter of {group_of(last)} after {counted(last.reconsume_times, 'failure')}",
        )
    is_committed = any(is_commit(copy.record) for copy in copies)
    if not is_committed and ("half" in roles or "given up" in roles):
        return _uncommitted(copies, evidence)
    waiting = _waiting(copies, evidence)
    if waiting is not None:
        return waiting
    resent = _sent_again(copies, views)
    if resent is not None:
        return resent
    retries = _retries(copies)
    if retries:
        return _retried(retries, views)
    return "stored", _in_its_topic(copies)


def _in_its_topic(copies: Sequence[StoredRecord]) -> str:
    record = [copy.record for copy in copies if role_of(copy.record) == "message"][-1:]
    if not record:
        return "the log has no copy of it that consumers can see"
    return (
        f"in its topic {record[0].topic}/{record[0].queue_id} at offset {record[0].queue_offset:,}"
    )


def _uncommitted(copies: Sequence[StoredRecord], evidence: Evidence) -> _Ending:
    halves = [copy.record for copy in copies if role_of(copy.record) == "half"]
    if any(role_of(copy.record) == "given up" for copy in copies):
        return (
            "given up",
            "a half message that the broker gave up: it stays invisible for consumers",
        )
    if any((half.queue_id, half.queue_offset) in evidence.outcomes for half in halves):
        return "rolled back", "rolled back: it stays invisible for consumers"
    asked = max(checks(half) for half in halves)
    times = "not checked yet" if not asked else f"checked {counted(asked, 'time')}"
    return "half", f"a half message without commit or rollback ({times}): invisible for consumers"


def _waiting(copies: Sequence[StoredRecord], evidence: Evidence) -> _Ending | None:
    """Return the final state of a message whose last copy waits, else None."""
    recalled = any(role_of(copy.record) == "recall" for copy in copies)
    kept = [copy for copy in copies if role_of(copy.record) != "recall"]
    if not kept or role_of(kept[-1].record) not in ("scheduled", "timed"):
        return None
    copy = kept[-1]
    record = copy.record
    if recalled:
        return "recalled", "recalled before it was due: it will not be delivered"
    if role_of(record) == "scheduled":
        due_ms, delivered = evidence.due_ms.get(copy.log_offset), _level_passed(record, evidence)
    else:
        due_ms, delivered = due_of_timed(record), _slot_passed(copy, evidence)
    until = "" if due_ms is None else f" until {format_instant(due_ms)}"
    if delivered:
        return "stored", f"waited{until}, and was delivered; that copy is not in the log"
    group = group_of(record)
    if group is not None:
        return "retrying", f"failed in {group}, waits{until} for its retry"
    return "waiting", f"waits{until} for {real_place(record)}"


def _level_passed(record: Record, evidence: Evidence) -> bool:
    """Has the delay level delivered RECORD?"""
    progress = (evidence.delay_progress or {}).get(record.queue_id + 1)
    return progress is not None and progress > record.queue_offset


def _slot_passed(copy: StoredRecord, evidence: Evidence) -> bool:
    mark = evidence.timer_marks.get(copy.log_offset)
    read_ms = evidence.timers_read_ms
    return mark is not None and read_ms is not None and mark.slot_ms < read_ms


def _sent_again(copies: Sequence[StoredRecord], views: Sequence[GroupView]) -> _Ending | None:
    """Return the final state of a message whose dead letter was resent, else None."""
    for number in reversed(range(len(copies))):
        group = resent_by(copies[number], copies[:number])
        if group is not None:
            break
    else:
        return None
    record = copies[number].record
    place = f"{record.topic}/{record.queue_id} at offset {record.queue_offset:,}"
    text = f"resent from the dead letters of {group}, to {place}"
    later = _retries(copies[number + 1 :])
    if later:
        state, what = _retried(later, views)
        return state, f"{text}; {what}"
    view = _view_of(group, record, views)
    if view is None or view.verdict == "not yet":
        state = "retrying" if role_of(record) == "retry" else "stored"
        return state, f"{text}; not read by {group} since"
    return "stored", f"{text}; {view.text}"


def _retries(copies: Sequence[StoredRecord]) -> list[Record]:
    """Return the retries among COPIES, of the group with the last one."""
    retries = [copy.record for copy in copies if role_of(copy.record) == "retry"]
    return [record for record in retries if group_of(record) == group_of(retries[-1])]


def _view_of(group: str | None, record: Record, views: Sequence[GroupView]) -> GroupView | None:
    """Return the view of GROUP on RECORD, if there is one among VIEWS."""
    place = group, record.topic, record.queue_id, record.queue_offset
    return next(
        (one for one in views if (one.group, one.topic, one.queue, one.offset) == place), None
    )


def _retried(retries: Sequence[Record], views: Sequence[GroupView]) -> _Ending:
    last = retries[-1]
    group = group_of(last)
    times = "1 retry" if len(retries) == 1 else f"{len(retries)} retries"
    view = _view_of(group, last, views)
    if view is not None and view.verdict in ("read", "acknowledged"):
        return "stored", f"{times} for {group}, {view.verdict} at last"
    return "retrying", f"{times} for {group}, not read since"
