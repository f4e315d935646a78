"""What the files of a store show about a message, besides its copies. sources.py reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...broker.consume_stats import StatsKey
from ...broker.queue_stats import QueueStats
from ..find.files import StoredRecord


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
    """The evidence about a message.

    readings: of each queue with a copy, by topic and queue;  filters: by topic and group;
    due_ms: of copies in the schedule topic, by log offset;  delay_progress: next queue offset to deliver, by level;
    timers_read_ms: slots before it were delivered;  timer_marks: by log offset of the copy;
    outcomes: records that resolve a half message, by its queue and queue offset;  pops: by place;
    stats: filter statistics of PocketMQ;
    log_begin, log_begin_ms: the first record that is left;  log_changed_ms: last creation or deletion of a log file.
    """

    readings: Mapping[tuple[str, int], Sequence[GroupReading]] = field(default_factory=dict)
    filters: Mapping[tuple[str, str], Filter] = field(default_factory=dict)
    due_ms: Mapping[int, int] = field(default_factory=dict)
    delay_progress: Mapping[int, int] | None = None
    timers_read_ms: int | None = None
    timer_marks: Mapping[int, TimerMark] = field(default_factory=dict)
    outcomes: Mapping[tuple[int, int], StoredRecord] = field(default_factory=dict)
    pops: Mapping[Place, Sequence[PopMark]] = field(default_factory=dict)
    stats: Mapping[StatsKey, QueueStats] = field(default_factory=dict)
    log_begin: int = 0
    log_begin_ms: int | None = None
    log_changed_ms: int | None = None
    notes: list[str] = field(default_factory=list)
