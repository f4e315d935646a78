"""The copies of a message, and the role of each.

It waits, is retried, or is dead-lettered as records of other topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

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
from ..find.files import StoredRecord

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
    """Return the role of RECORD in the history of its message."""
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
    """Return the property NAME as a number; None if it is not: producers may write anything."""
    return whole_number(record.properties.get(name, ""))


def real_place(record: Record) -> str:
    """Return where a waiting RECORD will go, "topic/queue"."""
    topic = record.properties.get(REAL_TOPIC, "?")
    return f"{topic}/{record.properties.get(REAL_QUEUE_ID, '?')}"


def origin_offset(record: Record) -> int | None:
    """Return the log offset of the first copy, if RECORD names it, else None."""
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
    """Return the group of a RECORD that is a retry or a dead letter; None for others.

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
    """Return the group whose dead letter was resent as COPY, else None. BEFORE are the copies before it.

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
    """Return the delivery time of RECORD in the timer topic, or its slot of the timer wheel."""
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
    """Return the identity of a message, as far as one copy shows it."""
    unique = stored.record.properties.get(UNIQ_KEY)
    return (unique, 0) if unique else ("", stored.log_offset)


def messages_of(copies: Iterable[StoredRecord]) -> list[list[StoredRecord]]:
    """Return COPIES by message, each in the order of the log, the messages in that of their first copies."""
    found: dict[tuple[str, int], list[StoredRecord]] = {}
    for copy in sorted(copies, key=lambda one: one.log_offset):
        found.setdefault(identity(copy), []).append(copy)
    return list(found.values())


def first_message(copies: Sequence[StoredRecord]) -> StoredRecord:
    """Return the copy that is most like the sent message: the oldest that is no mark."""
    return next((one for one in copies if role_of(one.record) not in ("recall", "mark")), copies[0])
