"""What a start changes: where the log is cut, and which entries, index files and tables are removed or added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...proto.record_run import walk
from .evidence import MessageState, Name, StoreEvidence
from .losses import NAMES_MAX
from .start_outcome import StartOutcome


@dataclass(frozen=True, slots=True)
class Before:
    """The store as it is: next free entry by index file, and length by path of every file."""

    index: dict[str, int]
    files: dict[str, int]


@dataclass(slots=True)
class StartChanges:
    """CUT_BYTES of the log go; REVIVED_BYTES after its valid end become part of it; entries of queues go and come."""

    cut_bytes: int = 0
    revived_bytes: int = 0
    revived_records: int = 0
    entries_cut: int = 0
    entries_made: int = 0
    queues_changed: int = 0
    deleted_log_files: list[str] = field(default_factory=list)
    deleted_index_files: list[str] = field(default_factory=list)
    changed_index_files: list[str] = field(default_factory=list)
    config_files: list[str] = field(default_factory=list)

    @property
    def any(self) -> bool:
        """Does the start change what messages, queues, keys or tables there are?"""
        return bool(
            self.cut_bytes
            or self.revived_bytes
            or self.entries_cut
            or self.entries_made
            or self.deleted_index_files
            or self.changed_index_files
            or self.config_files
        )

    def to_json(self) -> dict[str, Any]:
        """Return the changes as plain values; lists have at most `NAMES_MAX` names."""
        return {
            "cut_bytes": self.cut_bytes,
            "revived_bytes": self.revived_bytes,
            "revived_records": self.revived_records,
            "queue_entries_cut": self.entries_cut,
            "queue_entries_made": self.entries_made,
            "queues_changed": self.queues_changed,
            "deleted_log_files": _named(self.deleted_log_files),
            "deleted_index_files": _named(self.deleted_index_files),
            "changed_index_files": _named(self.changed_index_files),
            "config_files_set_aside": _named(self.config_files),
        }


def _named(names: list[str]) -> dict[str, Any]:
    return {"count": len(names), "first": names[:NAMES_MAX]}


def find_changes(evidence: StoreEvidence, before: Before, outcome: StartOutcome) -> StartChanges:
    """Return what OUTCOME would change in the store of EVIDENCE and BEFORE."""
    changes = StartChanges(cut_bytes=max(0, evidence.used_end - outcome.log_end))
    changes.revived_bytes, changes.revived_records = _revived(evidence, outcome.log_end)
    for name in evidence.entries.keys() | outcome.entries.keys():
        _compare_queue(changes, evidence, outcome, name)
    for path in sorted(before.files.keys() - outcome.files.keys()):
        folder, _, file = path.partition("/")
        if folder == "commitlog":
            changes.deleted_log_files.append(path)
        elif folder == "index":
            changes.deleted_index_files.append(path)
        elif folder == "config" and before.files[path]:
            changes.config_files.append(file)
    changes.changed_index_files = sorted(
        f"index/{name}"
        for name, count in outcome.index.items()
        if before.index.get(name, 1) != count
    )
    return changes


def _revived(evidence: StoreEvidence, log_end: int) -> tuple[int, int]:
    """Return bytes and records after the last message that the log takes in though they are not valid."""
    messages = evidence.messages
    there = messages.take(messages.state != MessageState.MISSING)
    last = int((there.log_offset + there.size).max()) if len(there) else evidence.log_begin
    size = records = 0
    for bad in evidence.bad:
        if last <= bad.start < log_end:
            end = min(bad.end, log_end)
            size += end - bad.start
            for file in evidence.log_files:
                if file.start <= bad.start < file.end:
                    starts, _ = walk(file.view, bad.start - file.start, end - file.start)
                    records += len(starts)
    return size, records


def _compare_queue(
    changes: StartChanges, evidence: StoreEvidence, outcome: StartOutcome, name: Name
) -> None:
    nothing = np.zeros(0, np.int64)
    now = evidence.entries.get(name, nothing)
    then = outcome.entries.get(name, nothing)
    now = now[now >= outcome.log_begin]
    then = then[then >= outcome.log_begin]
    cut = int((~np.isin(now, then)).sum())
    made = int((~np.isin(then, now)).sum())
    changes.entries_cut += cut
    changes.entries_made += made
    changes.queues_changed += bool(cut or made)


Key = tuple[str, str, str]
