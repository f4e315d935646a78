"""What a store's files show of a message in addition to its copies. Plain values; witnesses.py reads them.

The copies of a message, and the role of each: it waits, is retried, or is dead-lettered as records of different topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ...broker.account import Account
from ...broker.accounts import AccountKey
from ...proto import topics
from ...proto.errors import InvalidArgument
from ...proto.message_id import decode_offset_message_id
from ...proto.properties import (
    DEAD_LETTER_ORIGIN_TOPIC,
    DELAY,
    ORIGIN_MESSAGE_ID,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TIMER_DELETE_KEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    whole_number,
)
from ...proto.record import SYS_COMMIT, SYS_TRANSACTION, Record
from ..lookup.files import StoredRecord


@dataclass(frozen=True, slots=True)
class GroupReading:
    """The offset of GROUP in a queue in the table of offsets, written at AT_MS, and in the table before it.

    committed: the next queue offset of the group;  earlier, earlier_ms: the same in the backup of the table.
    """

    group: str
    committed: int
    at_ms: int
    earlier: int | None = None
    earlier_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """The EXPRESSION by which a group subscribes; KIND has RocketMQ's names: TAG or SQL92."""

    kind: str
    expression: str


@dataclass(frozen=True, slots=True)
class TimerMark:
    """The record of a scheduled message in the timer log: its place, the second of its slot, and its bits."""

    path: str
    position: int
    slot_ms: int
    is_roll: bool
    is_delete: bool


@dataclass(frozen=True, slots=True)
class PopMark:
    """A check point of POP consumers, or an acknowledgement of one: stored as COPY, made at TIME_MS by GROUP.

    popped_ms: what the two have in common;  copy: None for an entry of a table (groups that read in order).
    """

    is_ack: bool
    group: str
    time_ms: int
    popped_ms: int
    invisible_ms: int | None
    copy: StoredRecord | None


#: Topic, queue and offset of a message.
Place = tuple[str, int, int]


@dataclass(slots=True, kw_only=True)
class Evidence:
    """All that is known.

    readings: of each queue with a copy, by topic and queue;  filters: by topic and group;
    due_ms: of copies in the schedule topic, by log offset;  delay_progress: next queue offset to deliver, by level;
    timers_read_ms: slots before it were handed on;  timer_marks: by log offset of the copy;
    outcomes: the marks that name a half message, by its queue and queue offset;  pops: by place;
    accounts: what our broker noted of groups besides their offsets;
    log_begin, log_begin_ms: the first record that is left;  log_changed_ms: when a log file was last made or deleted.
    """

    readings: Mapping[tuple[str, int], Sequence[GroupReading]] = field(default_factory=dict)
    filters: Mapping[tuple[str, str], Filter] = field(default_factory=dict)
    due_ms: Mapping[int, int] = field(default_factory=dict)
    delay_progress: Mapping[int, int] | None = None
    timers_read_ms: int | None = None
    timer_marks: Mapping[int, TimerMark] = field(default_factory=dict)
    outcomes: Mapping[tuple[int, int], StoredRecord] = field(default_factory=dict)
    pops: Mapping[Place, Sequence[PopMark]] = field(default_factory=dict)
    accounts: Mapping[AccountKey, Account] = field(default_factory=dict)
    log_begin: int = 0
    log_begin_ms: int | None = None
    log_changed_ms: int | None = None
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------- the copies of a message, and what each is


Role = Literal[
    "message", "scheduled", "timed", "recall", "half", "mark", "given up", "retry", "dead letter", "pop mark"
]  # fmt: skip

REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
#: Slots of RocketMQ's timer wheel last one second, or up to ten.
_SLOT_MS_MAX: Final = 10_000
_ROLES: Final[dict[str, Role]] = {
    topics.SCHEDULE_TOPIC: "scheduled",
    topics.HALF_TOPIC: "half",
    topics.OP_HALF_TOPIC: "mark",
    topics.CHECK_MAX_TIME_TOPIC: "given up",
}


def role_of(record: Record) -> Role:
    """Return what RECORD is in the life of its message."""
    topic = record.topic
    if topic in _ROLES:
        return _ROLES[topic]
    if topic == topics.TIMER_TOPIC:
        return "recall" if TIMER_DELETE_KEY in record.properties else "timed"
    if topic.startswith(topics.DEAD_LETTER_PREFIX):
        return "dead letter"
    if topic.startswith(topics.RETRY_PREFIX):
        return "retry"
    return "pop mark" if topic.startswith(REVIVE_PREFIX) else "message"


def number_of(record: Record, name: str) -> int | None:
    """Return the property NAME as a number; None for none: properties are whatever a sender wrote."""
    return whole_number(record.properties.get(name, ""))


def real_place(record: Record) -> str:
    """Return where a waiting RECORD will go, "topic/queue"."""
    topic = record.properties.get(REAL_TOPIC, "?")
    return f"{topic}/{record.properties.get(REAL_QUEUE_ID, '?')}"


def origin_offset(record: Record) -> int | None:
    """Return the log offset of the first copy that RECORD says it comes from; None if it says none."""
    try:
        return decode_offset_message_id(record.properties.get(ORIGIN_MESSAGE_ID, ""))[2]
    except InvalidArgument:
        return None


def real_topic(record: Record) -> str:
    """Return the topic that the message of RECORD was sent to, as far as RECORD shows."""
    properties = record.properties
    if properties.get(DEAD_LETTER_ORIGIN_TOPIC):
        return properties[DEAD_LETTER_ORIGIN_TOPIC]
    if properties.get(RETRY_TOPIC):
        return properties[RETRY_TOPIC]
    if role_of(record) in ("scheduled", "timed", "half", "recall", "given up"):
        return properties.get(REAL_TOPIC, record.topic)
    group = properties.get(ORIGIN_GROUP)
    if group and record.topic.startswith(topics.RETRY_PREFIX + group):
        return record.topic.removeprefix(topics.RETRY_PREFIX + group)[1:] or record.topic
    return record.topic


def group_of(record: Record) -> str | None:
    """Return the group that a retried or dead RECORD belongs to; None for others.

    A POP retry topic holds the group and the topic; the record says which part is the group.
    """
    origin = record.properties.get(ORIGIN_GROUP)
    for prefix in (topics.RETRY_PREFIX, topics.DEAD_LETTER_PREFIX):
        if record.topic.startswith(prefix):
            name = record.topic.removeprefix(prefix)
            return origin if origin and name.startswith(origin) else name
    waits_for = record.properties.get(REAL_TOPIC, "")
    if role_of(record) in ("scheduled", "timed") and waits_for.startswith(topics.RETRY_PREFIX):
        return waits_for.removeprefix(topics.RETRY_PREFIX)
    return None


def resent_by(copy: StoredRecord, before: Sequence[StoredRecord]) -> str | None:
    """Return the group whose dead letter was sent again as COPY; None if it was not. BEFORE are the copies before it.

    A dead letter goes to a topic, or to the retry topic of its group with no failure counted.
    """
    dead = [group_of(one.record) for one in before if role_of(one.record) == "dead letter"]
    if not dead:
        return None
    record = copy.record
    if role_of(record) == "message":
        return dead[-1]
    is_fresh = role_of(record) == "retry" and not record.reconsume_times
    return group_of(record) if is_fresh and group_of(record) in dead else None


def due_of_timed(record: Record) -> int | None:
    """Return until when a timed RECORD waits: the moment asked for, or the slot that it is filed under."""
    out_ms, asked_ms = number_of(record, TIMER_OUT_MS), number_of(record, TIMER_DELIVER_MS)
    if out_ms is None or asked_ms is None:
        return out_ms
    return asked_ms if out_ms <= asked_ms <= out_ms + _SLOT_MS_MAX else out_ms


def is_commit(record: Record) -> bool:
    """Is RECORD the copy that a committed transaction left in its topic?"""
    return record.sys_flag & SYS_TRANSACTION == SYS_COMMIT


def delay_level(record: Record) -> int | None:
    """Return the delay level that RECORD waits for, or waited for."""
    return number_of(record, DELAY)


def checks(record: Record) -> int:
    """Return how often the producer of a half RECORD had been asked when it was written."""
    return number_of(record, TRANSACTION_CHECK_TIMES) or 0


def identity(stored: StoredRecord) -> tuple[str, int]:
    """Return what all copies of a message share, as far as one copy shows."""
    unique = stored.record.properties.get(UNIQ_KEY)
    return (unique, 0) if unique else ("", stored.log_offset)


def messages_of(copies: Iterable[StoredRecord]) -> list[list[StoredRecord]]:
    """Return COPIES by message, each in the order of the log, the messages in that of their first copies."""
    found: dict[tuple[str, int], list[StoredRecord]] = {}
    for copy in sorted(copies, key=lambda one: one.log_offset):
        found.setdefault(identity(copy), []).append(copy)
    return list(found.values())


def first_message(copies: Sequence[StoredRecord]) -> StoredRecord:
    """Return the copy that shows best what was sent: the oldest that is no mark."""
    return next((one for one in copies if role_of(one.record) not in ("recall", "mark")), copies[0])
