"""The life of a message as a list of events. Plain values, as JSON shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..lookup.log_files import Stored

Kind = Literal[
    "stored", "sent again", "half", "checked", "committed", "rolled back", "given up", "waits", "rolled", "recalled",
    "moved", "sent back", "retried", "revived", "popped", "acknowledged", "read", "dead letter", "gone",
]  # fmt: skip
State = Literal[
    "stored", "half", "rolled back", "given up", "waiting", "recalled", "retrying", "dead letter", "gone"
]  # fmt: skip
Verdict = Literal[
    "read", "acknowledged", "held", "not yet", "filtered", "moved", "revived", "dead letter"
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to the message.

    time_ms: when, Unix milliseconds; None where nothing tells;  is_bound: the time is the latest that it can have been;
    copy: the record that shows it, if one does;  due_ms: until when it waits.
    """

    kind: Kind
    text: str
    time_ms: int | None
    is_bound: bool = False
    copy: Stored | None = None
    group: str | None = None
    due_ms: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the event as JSON shows it."""
        record = None if self.copy is None else self.copy.record
        return {
            "kind": self.kind,
            "time": self.time_ms,
            "timeIsBound": self.is_bound,
            "text": self.text,
            "group": self.group,
            "due": self.due_ms,
            "topic": record and record.topic,
            "queueId": None if record is None else record.queue_id,
            "queueOffset": None if record is None else record.queue_offset,
            "physicalOffset": None if self.copy is None else self.copy.log_offset,
            "file": None if self.copy is None else self.copy.path,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """What a consumer group has to do with the message: a VERDICT, a sentence, and the offsets that it rests on.

    by_offset: does it rest on a committed offset alone?  filter_known: does a table hold the group's filter?
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
            "queueId": self.queue,
            "queueOffset": self.offset,
            "committedOffset": self.committed,
            "before": self.before_ms,
        }


@dataclass(slots=True, kw_only=True)
class Story:
    """A message's life: its EVENTS in order of time, what each group made of it, and where it ended."""

    message_id: str | None
    topic: str | None
    keys: str | None
    tags: str | None
    born_ms: int | None
    state: State
    conclusion: str
    events: Sequence[Event] = ()
    groups: Sequence[GroupView] = ()
    notes: list[str] = field(default_factory=list)

    def document(self, broker: str) -> dict[str, Any]:
        """Return the story as JSON shows it."""
        return {
            "brokerName": broker,
            "messageId": self.message_id,
            "topic": self.topic,
            "keys": self.keys,
            "tags": self.tags,
            "bornTimestamp": self.born_ms,
            "state": self.state,
            "conclusion": self.conclusion,
            "events": [event.document() for event in self.events],
            "groups": [view.document() for view in self.groups],
            "notes": self.notes,
        }
