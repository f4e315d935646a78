"""The findings and repairs of a recovery, as text (`text`) and for programs (`to_json`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class RecoveryPolicy(StrEnum):
    """The rules that decide which records are kept.

    OURS keeps every valid record. APACHE is the result that a RocketMQ broker of 5.5.0 would have, for tools that
    predict it. A store is never opened for writing with it.
    """

    OURS = "pocketmq"
    APACHE = "apache"


class FindingKind(StrEnum):
    """The kind of a finding."""

    CUT = "cut"  # bytes after the end of the log or of a queue were deleted
    SKIPPED = "skipped"  # a damaged record is not changed and not served
    HOLE = "hole"  # a file is missing; its content is lost
    REBUILT = "rebuilt"  # queue entries or index files were rebuilt from the log
    SET_ASIDE = "set aside"  # an unusable file was moved to pocketmq/broken
    NOTED = "noted"  # worth knowing; nothing was changed


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFinding:
    """One difference from the state after a clean stop.

    PATH is the file (or folder), OFFSET the place: a log offset for the commit log, a queue offset for a queue.
    WHY is one sentence. RECORDS and SIZE_BYTES are the amount concerned, if known.
    """

    kind: FindingKind
    path: str
    why: str
    offset: int | None = None
    records: int = 0
    size_bytes: int = 0

    def text(self) -> str:
        """Return one line."""
        place = self.path if self.offset is None else f"{self.path} at {self.offset:,}"
        amounts = []
        if self.records:
            amounts.append(f"{self.records:,} record{'s' if self.records != 1 else ''}")
        if self.size_bytes:
            amounts.append(f"{self.size_bytes:,} bytes")
        return f"{self.kind}: {place}: {self.why}" + (f" ({', '.join(amounts)})" if amounts else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The result of one opening.

    CLEAN: did the last owner stop cleanly? The log is now [LOG_BEGIN, LOG_END); SCANNED_RECORDS and SCANNED_BYTES of it
    were read and checked. `findings` are in the order of discovery, and empty after a clean stop without damage.
    """

    policy: RecoveryPolicy = RecoveryPolicy.OURS
    clean: bool = True
    log_begin: int = 0
    log_end: int = 0
    scanned_records: int = 0
    scanned_bytes: int = 0
    findings: list[RecoveryFinding] = field(default_factory=list)
    #: Start and end of damage in a replica's log that was not changed.
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def records(self, kind: FindingKind) -> int:
        """Return the number of records in the findings of KIND."""
        return sum(finding.records for finding in self.findings if finding.kind is kind)

    def to_json(self) -> dict[str, object]:
        """Return the report as plain values."""
        return {
            "policy": str(self.policy),
            "clean": self.clean,
            "log_begin": self.log_begin,
            "log_end": self.log_end,
            "scanned_records": self.scanned_records,
            "scanned_bytes": self.scanned_bytes,
            "findings": [
                {
                    "kind": str(finding.kind),
                    "path": finding.path,
                    "offset": finding.offset,
                    "why": finding.why,
                    "records": finding.records,
                    "size_bytes": finding.size_bytes,
                }
                for finding in self.findings
            ],
        }

    def text(self) -> str:
        """Return the report as lines of text."""
        stop = "a clean stop" if self.clean else "an unclean stop"
        head = (
            f"recovered after {stop}: log {self.log_begin:,}–{self.log_end:,}, "
            f"{self.scanned_records:,} records checked"
        )
        lines = [finding.text() for finding in self.findings] or ["nothing was damaged"]
        return "\n  ".join([head, *lines])
