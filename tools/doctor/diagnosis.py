"""A diagnosis of a store: what a power cut, or a start of either broker, would do to it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

from ...store.apache.settings import ApacheSettings
from ...store.checkpoints import read_checkpoint
from ...store.disk import Disk
from ...store.overlay_disk import OverlayDisk
from ...store.recovery.report import FindingKind
from ...store.recovery.verified import Verified
from ..inspect.document import files
from .changes import Before, StartChanges, find_changes
from .evidence import MessageState, StoreEvidence, gather
from .key_sample import KeysFound, check_keys
from .losses import StartLosses, find_losses
from .start_outcome import StartOutcome, apache_outcome, index_before, our_outcome


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
            "from_log_offset": self.from_log_offset,
            "flushed_until_ms": self.flushed_ms,
            "why": self.why,
        }


def power_cut(disk: Disk, root: str, evidence: StoreEvidence) -> PowerCut:
    """Return what may be lost by a power cut, by the marks of the store ROOT as it is.

    The checkpoint's log time is written up to a second after its flush, so the result is an upper limit.
    """
    if not disk.exists(posixpath.join(root, "abort")):
        return PowerCut("the store was stopped cleanly: everything is on disk", 0, 0)
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
        "up to everything that was stored after the last flush in the checkpoint",
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
            "log_begin": outcome.log_begin,
            "log_end": outcome.log_end,
            "lost": self.losses.to_json(),
            "served_damaged": len(self.losses.served_damaged),
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
            "abort_present": self.abort_present,
            "what_if": self.what_if,
            "now": {
                "log_begin": evidence.log_begin,
                "used_end": evidence.used_end,
                "messages": evidence.count(MessageState.SOUND),
                "damaged": evidence.count(MessageState.DAMAGED),
                "missing": evidence.count(MessageState.MISSING),
                "of_deleted_topics": evidence.count(MessageState.DELETED),
                "entries_beyond_log_end": evidence.beyond,
                "entries_of_expired_files": evidence.expired,
                "notes": evidence.notes,
            },
            "power_cut": self.power_cut.to_json(),
            "apache": self.apache.to_json(),
            "pocketmq": self.ours.to_json(),
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
