"""What a start changes of a store's files: where the log is cut, which entries and index files go or come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ...proto.record_run import walk
from .evidence import Evidence, Name, State
from .outcome import Outcome

#: Names in a list that is printed; the rest is counted.
NAMES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Before:
    """The store as it is: next free entry by index file, and length by path of every file."""

    index: dict[str, int]
    files: dict[str, int]


@dataclass(slots=True)
class Changes:
    """CUT_BYTES of the log go; REVIVED_BYTES behind its sound end become part of it; entries of queues go and come."""

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
            "cutBytes": self.cut_bytes,
            "revivedBytes": self.revived_bytes,
            "revivedRecords": self.revived_records,
            "queueEntriesCut": self.entries_cut,
            "queueEntriesMade": self.entries_made,
            "queuesChanged": self.queues_changed,
            "deletedLogFiles": _named(self.deleted_log_files),
            "deletedIndexFiles": _named(self.deleted_index_files),
            "changedIndexFiles": _named(self.changed_index_files),
            "configFilesSetAside": _named(self.config_files),
        }


def _named(names: list[str]) -> dict[str, Any]:
    return {"count": len(names), "first": names[:NAMES_MAX]}


def find_changes(evidence: Evidence, before: Before, outcome: Outcome) -> Changes:
    """Return what OUTCOME changes of the store that EVIDENCE and BEFORE tell of."""
    changes = Changes(cut_bytes=max(0, evidence.used_end - outcome.log_end))
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


def _revived(evidence: Evidence, log_end: int) -> tuple[int, int]:
    """Return bytes and records behind the last message that the log takes in though they are not sound."""
    messages = evidence.messages
    there = messages.take(messages.state != State.MISSING)
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


def _compare_queue(changes: Changes, evidence: Evidence, outcome: Outcome, name: Name) -> None:
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
