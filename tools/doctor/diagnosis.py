"""`pocketmq doctor STORE`: what a power cut, or a start of either broker, would do to a store; it writes nothing.

Exit codes: 0 healthy, or running or killed with nothing to lose; 1 something would be lost or served damaged, a store
that stopped cleanly would be rebuilt, or a broker would refuse it; 2 wrong arguments.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ...proto.clock import SystemClock
from ...proto.time_text import format_instant
from ...store.apache.settings import ApacheSettings
from ...store.checkpoints import read_checkpoint
from ...store.disk import Disk
from ...store.file_sizes import settings_of
from ...store.open_files import allow_many_files
from ...store.os_disk import OsDisk
from ...store.overlay_disk import OverlayDisk
from ...store.recovery.report import FindingKind
from ...store.recovery.verified import Verified
from ..counted import counted
from ..inspect.document import files
from ..options import TakesStores, broker_settings, broker_settings_option, store_argument
from ..output import print_json, print_table
from .evidence import (
    MessageState,
    StartOutcome,
    StoreEvidence,
    apache_outcome,
    gather,
    index_before,
    our_outcome,
)
from .losses import (
    Before,
    KeysFound,
    StartChanges,
    StartLosses,
    check_keys,
    find_changes,
    find_losses,
)


@dataclass(frozen=True, slots=True)
class PowerCut:
    """Up to MESSAGES of BYTES, from FROM_LOG_OFFSET on, may not be on disk; None: the store does not show it."""

    why: str
    messages: int | None
    size_bytes: int | None = None
    from_log_offset: int | None = None
    flushed_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "messages": self.messages,
            "bytes": self.size_bytes,
            "fromLogOffset": self.from_log_offset,
            "flushedUntil": self.flushed_ms,
            "why": self.why,
        }


def power_cut(disk: Disk, root: str, evidence: StoreEvidence) -> PowerCut:
    """Return what may be lost by a power cut, by the marks of the store ROOT as it is.

    The checkpoint's log time is written up to a second after its flush, so the result is an upper limit.
    """
    if not disk.exists(posixpath.join(root, "abort")):
        return PowerCut("the store was stopped cleanly: everything is on the device", 0, 0)
    checkpoint = read_checkpoint(disk, posixpath.join(root, "checkpoint"))
    verified = Verified.load(disk, posixpath.join(root, "pocketmq"))
    if not checkpoint.log_time_ms and verified is None:
        return PowerCut("the checkpoint does not tell what was flushed", None)
    safe_end = 0 if verified is None else verified.log_end
    messages = evidence.messages
    open_rows = (
        (messages.state == MessageState.SOUND)
        & (messages.store_ms > checkpoint.log_time_ms)
        & (messages.log_offset >= safe_end)
    )
    chosen = messages.take(open_rows)
    return PowerCut(
        "at most: what was stored behind the last flush that the checkpoint tells of",
        len(chosen),
        int(chosen.size.sum()),
        int(chosen.log_offset[0]) if len(chosen) else None,
        checkpoint.log_time_ms or None,
    )


@dataclass(frozen=True, slots=True)
class StartVerdict:
    """One broker's start: its result, losses and changes. A refused start has only the result."""

    outcome: StartOutcome
    losses: StartLosses | None = None
    changes: StartChanges | None = None
    keys: KeysFound | None = None

    @property
    def loses_nothing(self) -> bool:
        """Would it start, and would no message be lost, hidden from look-ups or served damaged?"""
        if self.losses is None or self.keys is None:
            return False
        return (
            not self.losses.messages
            and not len(self.losses.served_damaged)
            and self.keys.found == self.keys.checked
        )

    @property
    def is_fine(self) -> bool:
        """Would nothing be lost, rebuilt, or served damaged?"""
        findings = self.outcome.recovery.findings if self.outcome.recovery is not None else []
        return (
            self.loses_nothing
            and self.changes is not None
            and not self.changes.any
            and all(finding.kind is FindingKind.NOTED for finding in findings)
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        outcome = self.outcome
        document: dict[str, Any] = {
            "oracle": outcome.oracle,
            "accepted": outcome.refusal is None,
            "refusal": outcome.refusal,
        }
        if self.losses is None or self.changes is None or self.keys is None:
            return document
        document |= {
            "logBegin": outcome.log_begin,
            "logEnd": outcome.log_end,
            "lost": self.losses.to_json(),
            "servedDamaged": len(self.losses.served_damaged),
            "changes": self.changes.to_json(),
            "keys": self.keys.to_json(),
        }
        if outcome.recovery is not None:
            document["recovery"] = outcome.recovery.to_json()
        return document


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole of it. WHAT_IF is None or "crash"."""

    store: str
    abort_present: bool
    what_if: str | None
    evidence: StoreEvidence
    power_cut: PowerCut
    apache: StartVerdict
    ours: StartVerdict

    @property
    def is_healthy(self) -> bool:
        """Would both brokers start, and lose and rebuild nothing?"""
        return self.apache.is_fine and self.ours.is_fine

    @property
    def is_safe(self) -> bool:
        """Healthy; or running or killed, and both brokers would start and lose nothing.

        What a running broker has not finished (queue entries, the newest index file), any start makes again.
        """
        lively = self.abort_present or self.what_if is not None
        return self.is_healthy or (lively and self.apache.loses_nothing and self.ours.loses_nothing)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        evidence = self.evidence
        return {
            "store": self.store,
            "healthy": self.is_healthy,
            "safe": self.is_safe,
            "abortPresent": self.abort_present,
            "whatIf": self.what_if,
            "now": {
                "logBegin": evidence.log_begin,
                "usedEnd": evidence.used_end,
                "messages": evidence.count(MessageState.SOUND),
                "damaged": evidence.count(MessageState.DAMAGED),
                "missing": evidence.count(MessageState.MISSING),
                "ofDeletedTopics": evidence.count(MessageState.DELETED),
                "entriesBehindTheLog": evidence.beyond,
                "entriesOfExpiredFiles": evidence.expired,
                "notes": evidence.notes,
            },
            "powerCut": self.power_cut.to_json(),
            "apache": self.apache.to_json(),
            "ours": self.ours.to_json(),
            "warnings": self.ours.outcome.warnings,
        }


def diagnose(root: str, settings: ApacheSettings, now_ms: int, *, crash: bool) -> Diagnosis:
    """Return the diagnosis of the store ROOT; CRASH: as if its broker were killed now. Nothing is written."""
    disk = OverlayDisk()
    evidence = gather(disk, root, settings)
    before = Before(index_before(disk, root), files(OverlayDisk(), root))
    return Diagnosis(
        store=root,
        abort_present=disk.exists(posixpath.join(root, "abort")),
        what_if="crash" if crash else None,
        evidence=evidence,
        power_cut=power_cut(disk, root, evidence),
        apache=_verdict(evidence, before, apache_outcome(root, settings, now_ms, crash=crash)),
        ours=_verdict(evidence, before, our_outcome(root, settings, now_ms, crash=crash)),
    )


def _verdict(evidence: StoreEvidence, before: Before, outcome: StartOutcome) -> StartVerdict:
    if outcome.refusal is not None:
        return StartVerdict(outcome)
    losses = find_losses(evidence, outcome)
    changes = find_changes(evidence, before, outcome)
    return StartVerdict(outcome, losses, changes, check_keys(evidence, outcome))


# ---------------------------------------------------------------- A diagnosis for people


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
            "safe: both brokers would start and lose nothing; what is not finished, they make again"
        )
    else:
        click.echo("not healthy; nothing was written, `pocketmq repair` makes a repaired copy")


def _now(diagnosis: Diagnosis) -> Iterator[str]:
    evidence = diagnosis.evidence
    stop = "unclean, or it is running (abort is there)" if diagnosis.abort_present else "clean"
    what_if = "; looked at as if it were killed now" if diagnosis.what_if else ""
    yield f"{diagnosis.store}: last stop {stop}{what_if}"
    counts = f"{counted(evidence.count(MessageState.SOUND), 'sound message')}"
    for state, word in ((MessageState.DAMAGED, "damaged"), (MessageState.MISSING, "missing")):
        if evidence.count(state):
            counts += f", {evidence.count(state):,} {word}"
    if evidence.count(MessageState.DELETED):
        counts += f"; {evidence.count(MessageState.DELETED):,} more of topics that were deleted"
    yield f"now: log {evidence.log_begin:,}–{evidence.used_end:,}, {counts}"
    if evidence.beyond:
        yield f"     {counted(evidence.beyond, 'queue entry')} of places behind the last log file"
    if evidence.expired:
        yield f"     {counted(evidence.expired, 'queue entry')} of messages whose log files were deleted"
    for note in evidence.notes:
        yield f"     {note}"
    cut = diagnosis.power_cut
    if diagnosis.what_if or diagnosis.abort_present:
        risk = "not known" if cut.messages is None else counted(cut.messages, "message")
        size = f", {cut.size_bytes:,} bytes" if cut.size_bytes else ""
        place = "" if cut.from_log_offset is None else f" from log offset {cut.from_log_offset:,}"
        yield f"a power cut could take: {risk}{size}{place} ({cut.why})"


def _names(columns: list[dict[str, str]]) -> list[str]:
    wanted = [
        "starts", "log", "cut off the log", "taken into the log", "log files deleted",
        "queue entries", "index files", "keys found", "config files set aside",
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
        "config files set aside": ", ".join(changes.config_files),
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
        place = f"{queue['topic']}/{queue['queueId']}"
        first, last = queue["firstQueueOffset"], queue["lastQueueOffset"]
        span = f"offset {first:,}" if first == last else f"offsets {first:,} to {last:,}"
        yield f"  {place}: {queue['messages']:,}, {span}, {queue['bytes']:,} bytes"
    if reason["queueCount"] > _QUEUES_SHOWN:
        yield f"  … and {reason['queueCount'] - _QUEUES_SHOWN:,} more queues"
    for sample in reason["samples"]:
        known = [f"log offset {sample['physicalOffset']:,}"]
        if sample["storeTimestamp"] is not None:
            known.append(f"stored {format_instant(sample['storeTimestamp'])}")
        named = ("messageId", "keys", "tags")
        known += [f"{name} {sample[name]}" for name in named if sample[name]]
        place = f"{sample['topic']}/{sample['queueId']}/{sample['queueOffset']:,}"
        yield f"  for example {place}: {', '.join(known)}"


# ---------------------------------------------------------------- `pocketmq doctor STORE`


@click.command(cls=TakesStores)
@store_argument
@click.option(
    "--what-if",
    type=click.Choice(("crash",)),
    help="Check it as if its broker were killed now.",
)
@broker_settings_option
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as one JSON object.")
@click.pass_context
def doctor(
    context: click.Context,
    *,
    store: str,
    what_if: str | None,
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Say what a start of Apache's broker, and of ours, would do to the store in the folder STORE.

    Where each would cut the log, what it would rebuild, which messages it would lose and why. The store may be live,
    stopped, copied or damaged, and of either broker; it is only read.
    """
    allow_many_files()
    chosen = settings_of(OsDisk(), store, broker_settings(settings))
    diagnosis = diagnose(store, chosen, SystemClock().unix_ms(), crash=what_if == "crash")
    if as_json:
        print_json(diagnosis.to_json())
    else:
        print_diagnosis(diagnosis)
    if not diagnosis.is_safe:
        context.exit(1)
