"""Views of what waits: `schedule` (delay levels), `timer` (timed messages), `transactions` (half messages)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from ....proto.duration import format_duration
from ....proto.instant import format_instant
from ....proto.topics import SCHEDULE_TOPIC
from ....store.config import parse_delay_levels
from ....store.view import StoreView
from ..half_messages import half_messages
from ..log_walk import LogWalk
from ..output import Column, Output, Row, format_options, limit_option, opened, people
from ..queue_entries import QueueEntries
from ..tables import Tables
from ..timer_files import TimerFiles

LEVELS: Final = (
    Column("level", kind="number"),
    Column("delay"),
    Column("queueId", "queue", "number"),
    Column("minOffset", "from", "number"),
    Column("maxOffset", "to", "number"),
    Column("deliveredOffset", "delivered to", "number"),
    Column("waiting", kind="number"),
    Column("nextDueTimestamp", "next is due", "time"),
    Column("lastDueTimestamp", "last is due", "time"),
)
SLOTS: Final = (
    Column("dueTimestamp", "due", "time"),
    Column("slot", kind="plain"),
    Column("num", "messages", "number"),
    Column("pending"),
    Column("firstPos", "first record", "number"),
    Column("lastPos", "last record", "number"),
    Column("problem", kind="problem"),
)
TIMER_RECORDS: Final = (
    Column("position", kind="number"),
    Column("previous", kind="number"),
    Column("dueTimestamp", "due", "time"),
    Column("writeTimestamp", "entered", "time"),
    Column("kind"),
    Column("physicalOffset", "log offset", "number"),
    Column("size", kind="number"),
    Column("topicHash", "topic's hash", "plain"),
    Column("problem", kind="problem"),
)
HALVES: Final = (
    Column("queueOffset", "offset", "number"),
    Column("physicalOffset", "log offset", "number"),
    Column("state"),
    Column("realTopic", "topic"),
    Column("realQueueId", "queue"),
    Column("producerGroup", "producer group"),
    Column("checkTimes", "checks", "number"),
    Column("storeTimestamp", "stored", "time"),
    Column("transactionId", "transaction"),
)


@click.command()
@limit_option
@format_options
def schedule(*, limit: int | None, as_json: bool, as_jsonl: bool) -> None:
    """List the delay levels that hold messages: how far each is delivered, and what is due next.

    The messages of a level are those of queue level - 1 of SCHEDULE_TOPIC_XXXX; its entries hold the due times.
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
        entries = QueueEntries(files, folder, log_begin)
        bounds = entries.bounds()
        done = delivered.get(level, 0)
        begin = min(max(done, bounds.min_offset), bounds.max_offset)
        known = level <= len(delays)
        yield {
            "level": level,
            "delay": format_duration(delays[level - 1]) if known else None,
            "delayMs": delays[level - 1] if known else None,
            "queueId": folder.queue_id,
            "minOffset": bounds.min_offset,
            "maxOffset": bounds.max_offset,
            "deliveredOffset": done,
            "waiting": bounds.max_offset - begin,
            "nextDueTimestamp": _due(entries, begin, bounds.max_offset),
            "lastDueTimestamp": _due(entries, max(begin, bounds.max_offset - 1), bounds.max_offset),
        }


def _due(entries: QueueEntries, number: int, end: int) -> int | None:
    """Return when the message of entry NUMBER is due; None if there is none before END."""
    found = next(entries.read(number, min(end, number + 1)), None)
    return None if found is None else int(found[1]["tags_code"][0])


@click.command()
@click.option("--all", "fired", is_flag=True, help="Also slots whose messages were handed on.")
@click.option("--log", "of_log", is_flag=True, help="List the records of the timer log instead.")
@limit_option
@format_options
def timer(*, fired: bool, of_log: bool, limit: int | None, as_json: bool, as_jsonl: bool) -> None:
    """Show timed messages: how far they were handed on, the slots of the wheel, the timer log.

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
        output.rows(slots, SLOTS, what="slots")
    elif output.for_people:
        _print_timer(timers)
        output.rows(slots, SLOTS, what="pending slots")
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
        "wheelProblem": timers.wheel_problem,
        "log": [
            {"file": file.name, "sizeBytes": file.size, "records": timers.count(file)}
            for file in timers.log.files
        ],
        "pendingByTopic": Tables(files).timers_pending(),
        "slots": slots,
    }


def _print_timer(timers: TimerFiles) -> None:
    console = people()
    checkpoint = timers.checkpoint
    read = format_instant(checkpoint.last_read_ms) if checkpoint.last_read_ms else "never"
    records = sum(timers.count(file) for file in timers.log.files)
    console.print(
        f"handed on until {read}; timer log: {records:,} records in {len(timers.log.files):,} files,"
        f" flushed to {checkpoint.log_flushed:,}; entered up to queue offset {checkpoint.queue_offset:,}"
    )
    if timers.wheel_problem:
        console.print(timers.wheel_problem, style="yellow")


@click.command()
@click.option("--all", "ended", is_flag=True, help="Also half messages that have their outcome.")
@limit_option
@format_options
def transactions(*, ended: bool, limit: int | None, as_json: bool, as_jsonl: bool) -> None:
    """List the half messages of transactions that wait for their outcome."""
    files = opened()
    rows = (row for row in half_messages(files, LogWalk(files)) if ended or row["state"] == "open")
    what = "half messages" if ended else "open half messages"
    Output.of(as_json, as_jsonl, limit).rows(rows, HALVES, what=what)
