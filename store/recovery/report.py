"""What recovery found and did, for people (`text`) and for programs (`to_json`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class RecoveryPolicy(StrEnum):
    """Whose rules decide what is kept.

    OURS keeps every valid record. APACHE is what a Java broker of 5.5.0 would make of the files: for tools that
    predict; a store is never opened for writing under it.
    """

    OURS = "pocketmq"
    APACHE = "apache"


class FindingKind(StrEnum):
    """What a finding is about."""

    CUT = "cut"  # bytes behind the end of the log or of a queue are gone
    SKIPPED = "skipped"  # a damaged record stays where it is and is not served
    HOLE = "hole"  # a file is missing; what it held is gone
    REBUILT = "rebuilt"  # queue entries or index files were made again from the log
    SET_ASIDE = "set aside"  # a file that cannot be used was moved to pocketmq/broken
    NOTED = "noted"  # worth knowing; nothing was changed


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFinding:
    """One thing that was not as a clean stop leaves it.

    PATH names the file (or folder), OFFSET the place: a log offset for the commit log, a queue offset for a queue.
    WHY is one sentence. RECORDS and SIZE_BYTES say how much is concerned, where that is known.
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

    CLEAN says whether the last owner stopped cleanly. The log holds [LOG_BEGIN, LOG_END) now; SCANNED_RECORDS and
    SCANNED_BYTES of it were read and checked. `findings` is in the order of discovery, and empty after a clean stop
    without damage.
    """

    policy: RecoveryPolicy = RecoveryPolicy.OURS
    clean: bool = True
    log_begin: int = 0
    log_end: int = 0
    scanned_records: int = 0
    scanned_bytes: int = 0
    findings: list[RecoveryFinding] = field(default_factory=list)
    #: Where damage begins and ends in a replica's log that was left as it is.
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def records(self, kind: FindingKind) -> int:
        """Return how many records the findings of KIND are about."""
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
        """Return the report as lines for a person."""
        stop = "a clean stop" if self.clean else "an unclean stop"
        head = (
            f"recovered after {stop}: log {self.log_begin:,}–{self.log_end:,}, "
            f"{self.scanned_records:,} records checked"
        )
        lines = [finding.text() for finding in self.findings] or ["nothing was damaged"]
        return "\n  ".join([head, *lines])
