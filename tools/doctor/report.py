"""A diagnosis as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from ...proto import speedups
from ...proto.time_text import format_instant
from ..counted import counted
from ..output import print_table
from .diagnosis import Diagnosis, StartVerdict
from .evidence import MessageState

_QUEUES_SHOWN = 8
_WARNINGS_SHOWN = 20
_NONE = "-"


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print DIAGNOSIS."""
    for line in _now(diagnosis):
        click.echo(line)
    click.echo("")
    verdicts = (diagnosis.apache, diagnosis.ours)
    columns = [_column(verdict) for verdict in verdicts]
    rows = [(name, *(column.get(name, _NONE) for column in columns)) for name in _names(columns)]
    print_table(["after a start", *(verdict.outcome.oracle for verdict in verdicts)], rows)
    for line in _details(diagnosis.apache, diagnosis.ours):
        click.echo(line)
    click.echo("")
    if diagnosis.is_healthy:
        click.echo("healthy: both brokers would start, and lose and rebuild nothing")
    elif diagnosis.is_safe:
        click.echo(
            "safe: both brokers would start and lose nothing; they rebuild what is incomplete"
        )
    else:
        click.echo("not healthy; nothing was written, `pocketmq repair` makes a repaired copy")


def _now(diagnosis: Diagnosis) -> Iterator[str]:
    evidence = diagnosis.evidence
    stop = "unclean, or it is running (abort is there)" if diagnosis.abort_present else "clean"
    what_if = "; looked at as if it were killed now" if diagnosis.what_if else ""
    yield f"{diagnosis.store}: last stop {stop}{what_if}"
    counts = f"{counted(evidence.count(MessageState.SOUND), 'valid message')}"
    for state, word in ((MessageState.DAMAGED, "damaged"), (MessageState.MISSING, "missing")):
        if evidence.count(state):
            counts += f", {evidence.count(state):,} {word}"
    if evidence.count(MessageState.DELETED):
        counts += f"; {evidence.count(MessageState.DELETED):,} more of topics that were deleted"
    yield f"now: log {evidence.log_begin:,}–{evidence.used_end:,}, {counts}"
    if evidence.beyond:
        yield f"     {counted(evidence.beyond, 'queue entry')} after the last log file"
    if evidence.expired:
        yield f"     {counted(evidence.expired, 'queue entry')} of messages whose log files were deleted"
    for note in evidence.notes:
        yield f"     {note}"
    yield f"code: {speedups.described()}"
    cut = diagnosis.power_cut
    if diagnosis.what_if or diagnosis.abort_present:
        risk = "not known" if cut.messages is None else counted(cut.messages, "message")
        size = f", {cut.size_bytes:,} bytes" if cut.size_bytes else ""
        place = "" if cut.from_log_offset is None else f" from log offset {cut.from_log_offset:,}"
        yield f"a power cut could take: {risk}{size}{place} ({cut.why})"


def _names(columns: list[dict[str, str]]) -> list[str]:
    wanted = [
        "starts", "log", "cut off the log", "taken into the log", "log files deleted",
        "queue entries", "index files", "keys found", "config files moved away",
        "messages lost", "  missing", "  damaged", "  cut", "  no entry", "served damaged",
    ]  # fmt: skip
    return [name for name in wanted if any(name in column for column in columns)]


def _column(verdict: StartVerdict) -> dict[str, str]:
    outcome, losses, changes = verdict.outcome, verdict.losses, verdict.changes
    if losses is None or changes is None or verdict.keys is None:
        return {"starts": "refuses"}
    keys = verdict.keys
    cells = {
        "starts": "yes",
        "log": f"{outcome.log_begin:,}–{outcome.log_end:,}",
        "cut off the log": f"{changes.cut_bytes:,} bytes" if changes.cut_bytes else "",
        "taken into the log": f"{counted(changes.revived_records, 'old record')}"
        if changes.revived_records
        else "",
        "log files deleted": f"{len(changes.deleted_log_files):,}"
        if changes.deleted_log_files
        else "",
        "queue entries": _pair(changes.entries_cut, "cut", changes.entries_made, "made again"),
        "index files": _pair(
            len(changes.deleted_index_files),
            "deleted",
            len(changes.changed_index_files),
            "made or changed",
        ),
        "keys found": f"{keys.found:,} of {keys.checked:,}" + (" sampled" * keys.is_sample),
        "config files moved away": ", ".join(changes.config_files),
        "messages lost": f"{losses.messages:,} ({losses.size_bytes:,} bytes)"
        if losses.messages
        else "none",
        "served damaged": f"{len(losses.served_damaged):,}" if len(losses.served_damaged) else "",
    }
    cells |= {
        f"  {reason}": f"{len(lost):,}" for reason, lost in losses.by_reason.items() if len(lost)
    }
    return {name: cell for name, cell in cells.items() if cell}


def _pair(one: int, what: str, other: int, word: str) -> str:
    parts = [f"{count:,} {name}" for count, name in ((one, what), (other, word)) if count]
    return ", ".join(parts)


def _details(apache: StartVerdict, ours: StartVerdict) -> Iterator[str]:
    for verdict in (apache, ours):
        if verdict.losses is None:
            yield f"\n{verdict.outcome.oracle} refuses the store: {verdict.outcome.refusal}"
    yield from _losses_lines(apache, ours)
    if ours.outcome.warnings:
        yield f"\n{ours.outcome.oracle} would warn:"
        for warning in ours.outcome.warnings[:_WARNINGS_SHOWN]:
            yield f"  {warning}"
        if len(ours.outcome.warnings) > _WARNINGS_SHOWN:
            yield f"  … and {len(ours.outcome.warnings) - _WARNINGS_SHOWN:,} more"
    report = ours.outcome.recovery
    if report is not None and report.findings:
        yield f"\n{ours.outcome.oracle} would report:"
        for finding in report.findings[:_QUEUES_SHOWN]:
            yield f"  {finding.text()}"
        if len(report.findings) > _QUEUES_SHOWN:
            yield f"  … and {len(report.findings) - _QUEUES_SHOWN:,} more"


def _losses_lines(apache: StartVerdict, ours: StartVerdict) -> Iterator[str]:
    """Yield the losses; one that both brokers have is printed once."""
    theirs, mine = (
        verdict.losses.to_json()["reasons"] if verdict.losses is not None else []
        for verdict in (apache, ours)
    )
    for whose, reasons in ((apache.outcome.oracle, theirs), (ours.outcome.oracle, mine)):
        for reason in reasons:
            both = reason in theirs and reason in mine
            if both and reasons is mine:
                continue
            who = "both lose" if both else f"{whose} loses"
            yield f"\n{who} {counted(reason['messages'], 'message')}: {reason['why']}"
            yield from reason_lines(reason)


def reason_lines(reason: dict[str, Any]) -> Iterator[str]:
    """Yield the queues, and some messages, of what is lost for one REASON (see `Losses.to_json`)."""
    for queue in reason["queues"][:_QUEUES_SHOWN]:
        place = f"{queue['topic']}/{queue['queue']}"
        first, last = queue["first_queue_offset"], queue["last_queue_offset"]
        span = f"offset {first:,}" if first == last else f"offsets {first:,} to {last:,}"
        yield f"  {place}: {queue['messages']:,}, {span}, {queue['bytes']:,} bytes"
    if reason["queue_count"] > _QUEUES_SHOWN:
        yield f"  … and {reason['queue_count'] - _QUEUES_SHOWN:,} more queues"
    for sample in reason["samples"]:
        known = [f"log offset {sample['log_offset']:,}"]
        if sample["stored_ms"] is not None:
            known.append(f"stored {format_instant(sample['stored_ms'])}")
        named = ("message_id", "keys", "tags")
        known += [f"{name} {sample[name]}" for name in named if sample[name]]
        place = f"{sample['topic']}/{sample['queue']}/{sample['queue_offset']:,}"
        yield f"  for example {place}: {', '.join(known)}"
