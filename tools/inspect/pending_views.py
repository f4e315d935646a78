"""Views of waiting messages: `schedule` (delay levels), `timer` (scheduled messages), `transactions` (half messages).

The timer's files are read as they are: checkpoint, wheel and log (formats: store/format/). A half message is in
RMQ_SYS_TRANS_HALF_TOPIC. A record of RMQ_SYS_TRANS_OP_HALF_TOPIC with the tag `d` lists queue offsets there that are
resolved, each followed by a comma. The files do not say whether it was commit or rollback; a committed message has the
log offset of its half message. Source: store-format.md §7.5.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray

from ...broker.transactions.records import resolved_offsets
from ...proto import properties as names
from ...proto.property_ranges import PropertyRanges
from ...proto.record_run import as_bytes, parse_run
from ...proto.time_text import format_duration, format_instant
from ...proto.topics import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from ...store.checkpoints import TimerCheckpoint, read_timer_checkpoint
from ...store.config import parse_delay_levels
from ...store.format.timer_log import DELETE, RECORD, RECORD_SIZE, ROLL, sound_rows
from ...store.format.timer_wheel import SLOTS, WHEEL_SIZE, TimerWheel
from ...store.listing import FileRow, RowFile
from ...store.log_view import LogStretch, LogWalk
from ...store.queue_view import QueueView
from ...store.view import StoreView
from ..counted import counted
from .output import Column, Output, Row, format_options, limit_option, opened, people
from .stored_tables import Tables

_ROWS_AT_ONCE: Final = 1024
_BITS: Final = ((ROLL, "roll"), (DELETE, "delete"))
_DONE_TAG: Final = "d"


class TimerFiles:
    """The timer store in FILES; precision_ms is the length of a slot."""

    def __init__(self, files: StoreView) -> None:
        self._files = files
        self.precision_ms = max(1, files.settings.timer_precision_ms)
        known = files.has("config", "timercheck")
        path = files.path("config", "timercheck")
        self.checkpoint = read_timer_checkpoint(files.disk, path) if known else TimerCheckpoint()
        self.log: FileRow = files.row(files.path("timerlog"))

    @property
    def wheel_problem(self) -> str | None:
        """A problem of the file of the wheel, or None."""
        if not self._files.has("timerwheel"):
            return "no timerwheel"
        size = self._files.disk.size(self._files.path("timerwheel"))
        return None if size == WHEEL_SIZE else f"timerwheel has {size:,} bytes, not {WHEEL_SIZE:,}"

    def slots(self) -> Iterator[dict[str, Any]]:
        """Yield the used slots, by their time."""
        if self.wheel_problem is not None:
            return
        view = self._files.view(RowFile(self._files.path("timerwheel"), 0, WHEEL_SIZE))
        wheel = TimerWheel.parse(view)
        for number, slot in sorted(wheel.slots.items(), key=lambda one: one[1].time):
            due_ms = slot.time * self.precision_ms
            yield {
                "slot": number,
                "due_ms": due_ms,
                "messages": slot.count,
                "first_position": slot.first,
                "last_position": slot.last,
                "pending": due_ms >= self.checkpoint.last_read_ms,
                "problem": self._slot_problem(number, slot.time, slot.first, slot.last),
            }

    def _slot_problem(self, number: int, time: int, first: int, last: int) -> str | None:
        if time < 0 or time % SLOTS != number:
            return "its time belongs to another slot"
        if last >= 0 and last < first:
            return "its last record is before its first"
        if last >= self.log.end:
            return "points past the end of the timer log"
        return None

    def count(self, file: RowFile) -> int:
        """Return how many records FILE begins with, by bisection."""
        sizes = self._rows(file)["size"]
        return bisect_left(range(len(sizes)), 1, key=lambda at: int(sizes[at]) != RECORD_SIZE)

    def _rows(self, file: RowFile) -> NDArray[Any]:
        return RECORD.columns(self._files.view(file))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records of the log, in order."""
        for file in self.log.files:
            rows = self._rows(file)[: self.count(file)]
            for at in range(0, len(rows), _ROWS_AT_ONCE):
                part = rows[at : at + _ROWS_AT_ONCE]
                for row, sound in zip(part, sound_rows(part).tolist(), strict=True):
                    yield _record(file.start + at * RECORD_SIZE, row, sound)
                    at += 1


def _record(position: int, row: Any, sound: bool) -> dict[str, Any]:
    magic, previous = int(row["magic"]), int(row["previous"])
    write_ms = int(row["write_ms"])
    return {
        "position": position,
        "previous": previous if previous >= 0 else None,
        "due_ms": write_ms + int(row["delay_ms"]),
        "written_ms": write_ms,
        "kind": " ".join(name for bit, name in _BITS if magic & bit) or "ordinary",
        "log_offset": int(row["log_offset"]),
        "size": int(row["message_size"]),
        "topic_hash": int(row["topic_hash"]),
        "problem": None if sound else f"unknown bits {magic & 0xFFFFFFFF:#x}",
    }


_PROPERTIES: Final = {
    "real_topic": names.REAL_TOPIC,
    "real_queue": names.REAL_QUEUE_ID,
    "producer_group": names.PRODUCER_GROUP,
    "message_id": names.UNIQ_KEY,
    "transaction_id": names.TRANSACTION_ID,
    "check_times": names.TRANSACTION_CHECK_TIMES,
}


def half_messages(files: StoreView, walk: LogWalk) -> Iterator[dict[str, Any]]:
    """Yield every half message that the log still has, oldest first.

    `state` is "open" (not resolved), "ended" (committed or rolled back), or "put again" (was checked and stored again
    later; its own mark was not written yet).
    """
    queues = [one.queue_id for one in files.queues() if one.topic == HALF_TOPIC]
    for queue_id in queues:
        done = _done(files, walk, queue_id)
        newest: dict[str | None, int] = {}
        for part in queue_records(files, walk, HALF_TOPIC, queue_id):
            ranges = PropertyRanges(as_bytes(part.view), part.columns)
            newest |= zip(
                ranges.texts(names.UNIQ_KEY), part.columns.queue_offset.tolist(), strict=True
            )
        for part in queue_records(files, walk, HALF_TOPIC, queue_id):
            for row in _rows(part):
                offset, key = row["queue_offset"], row["message_id"]
                again = key is not None and newest[key] > offset
                state = "ended" if offset in done else "put again" if again else "open"
                yield row | {"state": state}


def _rows(part: LogStretch) -> Iterator[dict[str, Any]]:
    ranges = PropertyRanges(as_bytes(part.view), part.columns)
    texts = {field: ranges.texts(name) for field, name in _PROPERTIES.items()}
    columns = part.columns
    for row, offset in enumerate(columns.queue_offset.tolist()):
        checks = texts["check_times"][row] or "0"
        yield {
            "queue_offset": offset,
            "log_offset": int(part.offsets[row]),
            **{field: found[row] for field, found in texts.items()},
            "check_times": int(checks) if checks.isdecimal() else None,
            "born_ms": int(columns.born_ms[row]),
            "stored_ms": int(columns.store_ms[row]),
        }


def _done(files: StoreView, walk: LogWalk, queue_id: int) -> set[int]:
    """Return the queue offsets of half messages of queue QUEUE_ID that are resolved."""
    done: set[int] = set()
    for part in queue_records(files, walk, OP_HALF_TOPIC, queue_id):
        tags = PropertyRanges(as_bytes(part.view), part.columns).texts(names.TAGS)
        starts, sizes = part.columns.body_start.tolist(), part.columns.body_size.tolist()
        for tag, start, size in zip(tags, starts, sizes, strict=True):
            if tag == _DONE_TAG:
                done.update(resolved_offsets(bytes(part.view[start : start + size])))
    return done


def queue_records(
    files: StoreView, walk: LogWalk, topic: str, queue_id: int, first: int = 0
) -> Iterator[LogStretch]:
    """Yield the valid records of queue QUEUE_ID of TOPIC from queue offset FIRST on; none for an unknown queue."""
    folder = files.queue(topic, queue_id)
    if folder is None:
        return
    entries = QueueView(files, folder, walk.begin)
    bounds = entries.bounds()
    for _, part in entries.read(max(first, bounds.first), bounds.end):
        offsets = part["log_offset"].astype(np.int64)
        for file in walk.used:
            inside = offsets[(offsets >= file.start) & (offsets < file.end)]
            if len(inside):
                view = files.view(file)
                columns = parse_run(view, inside - file.start)
                sound = columns.well_formed & (columns.log_offset == inside)
                yield LogStretch(file, view, columns.take(sound))


LEVELS: Final = (
    Column("level", kind="number"),
    Column("delay"),
    Column("queue", kind="number"),
    Column("min_offset", "from", "number"),
    Column("max_offset", "to", "number"),
    Column("delivered_offset", "delivered to", "number"),
    Column("waiting", kind="number"),
    Column("next_due_ms", "next is due", "time"),
    Column("last_due_ms", "last is due", "time"),
)
SLOT_COLUMNS: Final = (
    Column("due_ms", "due", "time"),
    Column("slot", kind="plain"),
    Column("messages", kind="number"),
    Column("pending"),
    Column("first_position", "first record", "number"),
    Column("last_position", "last record", "number"),
    Column("problem", kind="problem"),
)
TIMER_RECORDS: Final = (
    Column("position", kind="number"),
    Column("previous", kind="number"),
    Column("due_ms", "due", "time"),
    Column("written_ms", "entered", "time"),
    Column("kind"),
    Column("log_offset", "log offset", "number"),
    Column("size", kind="number"),
    Column("topic_hash", "topic's hash", "plain"),
    Column("problem", kind="problem"),
)
HALVES: Final = (
    Column("queue_offset", "offset", "number"),
    Column("log_offset", "log offset", "number"),
    Column("state"),
    Column("real_topic", "topic"),
    Column("real_queue", "queue"),
    Column("producer_group", "producer group"),
    Column("check_times", "checks", "number"),
    Column("stored_ms", "stored", "time"),
    Column("transaction_id", "transaction"),
)


@click.command()
@limit_option
@format_options
def schedule(*, limit: int | None, as_json: bool, as_jsonl: bool) -> None:
    """List delay levels with messages: their progress, and what is due next.

    The messages of a level are in queue level - 1 of SCHEDULE_TOPIC_XXXX; its entries have the due times.
    """
    rows = _level_rows(opened())
    Output.of(as_json, as_jsonl, limit).rows(rows, LEVELS, what="delayed messages")


def _level_rows(files: StoreView) -> Iterator[Row]:
    delays = parse_delay_levels(files.settings.delay_levels)
    delivered = Tables(files).delays().offsets
    log_begin = LogWalk(files).begin
    for folder in files.queues():
        if folder.topic != SCHEDULE_TOPIC:
            continue
        level = folder.queue_id + 1
        entries = QueueView(files, folder, log_begin)
        bounds = entries.bounds()
        done = delivered.get(level, 0)
        begin = min(max(done, bounds.min_offset), bounds.max_offset)
        known = level <= len(delays)
        yield {
            "level": level,
            "delay": format_duration(delays[level - 1]) if known else None,
            "delay_ms": delays[level - 1] if known else None,
            "queue": folder.queue_id,
            "min_offset": bounds.min_offset,
            "max_offset": bounds.max_offset,
            "delivered_offset": done,
            "waiting": bounds.max_offset - begin,
            "next_due_ms": _due(entries, begin, bounds.max_offset),
            "last_due_ms": _due(entries, max(begin, bounds.max_offset - 1), bounds.max_offset),
        }


def _due(entries: QueueView, number: int, end: int) -> int | None:
    """Return when the message of entry NUMBER is due; None if there is none before END."""
    found = next(entries.read(number, min(end, number + 1)), None)
    return None if found is None else int(found[1]["tags_code"][0])


@click.command()
@click.option("--all", "fired", is_flag=True, help="Also slots whose messages were delivered.")
@click.option("--log", "of_log", is_flag=True, help="List the records of the timer log instead.")
@limit_option
@format_options
def timer(*, fired: bool, of_log: bool, limit: int | None, as_json: bool, as_jsonl: bool) -> None:
    """Show scheduled messages: checkpoint, slots of the wheel, timer log.

    A slot keeps its content after it fired, until another round uses it.
    """
    output = Output.of(as_json, as_jsonl, limit)
    files = opened()
    timers = TimerFiles(files)
    if of_log:
        output.rows(timers.records(), TIMER_RECORDS, what="records")
        return
    slots = (slot for slot in timers.slots() if fired or slot["pending"])
    if output.format == "jsonl":
        output.rows(slots, SLOT_COLUMNS, what="slots")
    elif output.for_people:
        _print_timer(timers)
        output.rows(slots, SLOT_COLUMNS, what="pending slots")
    else:
        output.document(_timer_document(files, timers, list(slots)), lambda: None)


def _timer_document(
    files: StoreView, timers: TimerFiles, slots: list[dict[str, Any]]
) -> dict[str, Any]:
    checkpoint = timers.checkpoint
    return {
        "checkpoint": {
            "lastReadTimeMs": checkpoint.last_read_ms,
            "lastTimerLogFlushPos": checkpoint.log_flushed,
            "lastTimerQueueOffset": checkpoint.queue_offset,
            "masterTimerQueueOffset": checkpoint.master_queue_offset,
            "dataVersion": checkpoint.version.to_json(),
        },
        "wheel_problem": timers.wheel_problem,
        "log": [
            {"file": file.name, "size_bytes": file.size, "records": timers.count(file)}
            for file in timers.log.files
        ],
        "pending_by_topic": Tables(files).timers_pending(),
        "slots": slots,
    }


def _print_timer(timers: TimerFiles) -> None:
    console = people()
    checkpoint = timers.checkpoint
    read = format_instant(checkpoint.last_read_ms) if checkpoint.last_read_ms else "never"
    records = sum(timers.count(file) for file in timers.log.files)
    console.print(
        f"delivered until {read}; timer log: {counted(records, 'record')} in {counted(len(timers.log.files), 'file')},"
        f" flushed to {checkpoint.log_flushed:,}; entered up to queue offset {checkpoint.queue_offset:,}"
    )
    if timers.wheel_problem:
        console.print(timers.wheel_problem, style="yellow")


@click.command()
@click.option(
    "--all", "ended", is_flag=True, help="Also half messages that are committed or rolled back."
)
@limit_option
@format_options
def transactions(*, ended: bool, limit: int | None, as_json: bool, as_jsonl: bool) -> None:
    """List half messages without commit or rollback."""
    files = opened()
    rows = (row for row in half_messages(files, LogWalk(files)) if ended or row["state"] == "open")
    what = "half messages" if ended else "open half messages"
    Output.of(as_json, as_jsonl, limit).rows(rows, HALVES, what=what)
