"""What a start costs: a store's evidence compared with the result, message by message, key by key, file by file.

A message is lost if consumers can no longer read it from its queue. Reasons:

    missing     its queue entry has no record: it is lost already, whichever broker starts
    damaged     its body does not match its CRC, and the broker removes it
    cut         it is valid, and after the place where the broker ends the log
    no entry    it is valid and stays in the log, but its queue has no entry for it

Changes are where the log is cut, and which entries, index files and tables are removed or added. Whether keys are still
found is checked by a sample of messages, looked up in the broker's index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record_run import walk
from .evidence import Messages, MessageState, Name, StartOutcome, StoreEvidence

#: Queues that are named one by one; the rest is counted.
QUEUES_MAX: Final = 20
SAMPLES_MAX: Final = 3
#: Names in a list that is printed; the rest is counted.
NAMES_MAX: Final = 20
#: Messages whose keys are looked up: evenly spread over the log, all of them in a small store.
MESSAGES_MAX: Final = 4_000


class Reason(StrEnum):
    """Why a message is lost."""

    MISSING = "missing"
    DAMAGED = "damaged"
    CUT = "cut"
    NO_ENTRY = "no entry"


@dataclass(slots=True)
class StartLosses:
    """The losses of a start whose log ends at LOG_END. SERVED_DAMAGED: messages delivered with a wrong body."""

    evidence: StoreEvidence
    log_end: int
    by_reason: dict[Reason, Messages]
    served_damaged: Messages

    @property
    def messages(self) -> int:
        """Return how many messages are lost."""
        return sum(map(len, self.by_reason.values()))

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the lost messages have in the log."""
        return sum(int(lost.size.sum()) for lost in self.by_reason.values())

    def to_json(self) -> dict[str, Any]:
        """Return the losses as plain values, with at most `QUEUES_MAX` queues and some samples a reason."""
        return {
            "messages": self.messages,
            "bytes": self.size_bytes,
            "reasons": [
                self._reason(reason, lost) for reason, lost in self.by_reason.items() if len(lost)
            ],
        }

    def _reason(self, reason: Reason, lost: Messages) -> dict[str, Any]:
        numbers, counts = np.unique(lost.queue, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:QUEUES_MAX]
        return {
            "reason": str(reason),
            "why": self._why(reason, lost),
            "messages": len(lost),
            "bytes": int(lost.size.sum()),
            "queueCount": len(numbers),
            "queues": [self._queue(lost.take(lost.queue == numbers[row])) for row in order],
            "samples": self._samples(lost),
        }

    def _queue(self, lost: Messages) -> dict[str, Any]:
        topic, queue = self.evidence.names[int(lost.queue[0])]
        return {
            "topic": topic,
            "queueId": queue,
            "messages": len(lost),
            "bytes": int(lost.size.sum()),
            "firstQueueOffset": int(lost.queue_offset.min()),
            "lastQueueOffset": int(lost.queue_offset.max()),
        }

    def _why(self, reason: Reason, lost: Messages) -> str:
        if reason is Reason.MISSING:
            return "; ".join(self._why_missing(lost))
        if reason is Reason.CUT:
            bad = self.evidence.why_bad(self.log_end)
            place = f"behind {self.log_end:,}, where the broker ends the log"
            return f"{place} ({bad})" if bad else place
        return {
            Reason.DAMAGED: "a body that does not fit its CRC",
            Reason.NO_ENTRY: "in the log, but without an entry in the queue",
        }[reason]

    def _why_missing(self, lost: Messages) -> list[str]:
        """Return what is in the log where the messages should be."""
        offsets = lost.log_offset
        in_file = np.zeros(len(offsets), np.bool_)
        in_bad = np.zeros(len(offsets), np.bool_)
        for file in self.evidence.log_files:
            in_file |= (offsets >= file.start) & (offsets < file.end)
        for bad in self.evidence.bad:
            in_bad |= (offsets >= bad.start) & (offsets < bad.end)
        in_bad &= in_file
        found = {
            "the log file is missing": int((~in_file).sum()),
            "in its place are bytes that are no record": int(in_bad.sum()),
            "in its place are zeros": int((in_file & ~in_bad).sum()),
        }
        return [f"{why} ({count:,})" for why, count in found.items() if count]

    def _samples(self, lost: Messages) -> list[dict[str, Any]]:
        rows = range(len(lost)) if len(lost) <= SAMPLES_MAX else (0, len(lost) // 2, len(lost) - 1)
        return [self._sample(lost, row) for row in rows]

    def _sample(self, lost: Messages, row: int) -> dict[str, Any]:
        topic, queue = self.evidence.names[int(lost.queue[row])]
        at = int(lost.log_offset[row])
        sample: dict[str, Any] = {
            "topic": topic,
            "queueId": queue,
            "queueOffset": int(lost.queue_offset[row]),
            "physicalOffset": at,
            "storeSize": int(lost.size[row]),
            "storeTimestamp": None,
            "messageId": None,
            "keys": None,
            "tags": None,
        }
        record = None if lost.state[row] == MessageState.MISSING else self.evidence.record(at)
        if record is not None:
            sample |= {
                "storeTimestamp": record.store_timestamp_ms,
                "messageId": record.properties.get("UNIQ_KEY") or record.message_id,
                "keys": record.properties.get("KEYS"),
                "tags": record.properties.get("TAGS"),
            }
        return sample


def find_losses(evidence: StoreEvidence, outcome: StartOutcome) -> StartLosses:
    """Return what is lost of EVIDENCE by OUTCOME."""
    messages = evidence.messages
    delivered = np.isin(messages.log_offset, outcome.delivered())
    in_log = (messages.log_offset >= outcome.log_begin) & (
        messages.log_offset + messages.size <= outcome.log_end
    )
    sound = messages.state == MessageState.SOUND
    damaged = messages.state == MessageState.DAMAGED
    taken_out = np.isin(messages.log_offset, outcome.voided())
    served = damaged & in_log & delivered & ~taken_out
    rows: dict[Reason, NDArray[np.bool_]] = {
        Reason.MISSING: messages.state == MessageState.MISSING,
        Reason.DAMAGED: damaged & ~served,
        Reason.CUT: sound & ~in_log,
        Reason.NO_ENTRY: sound & in_log & ~delivered,
    }
    by_reason = {reason: messages.take(chosen) for reason, chosen in rows.items()}
    return StartLosses(evidence, outcome.log_end, by_reason, messages.take(served))


# ---------------------------------------------------------------- files and entries


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


def find_changes(evidence: StoreEvidence, before: Before, outcome: StartOutcome) -> StartChanges:
    """Return what OUTCOME changes of the store that EVIDENCE and BEFORE describe."""
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


# ---------------------------------------------------------------- keys


@dataclass(frozen=True, slots=True)
class KeysFound:
    """Of CHECKED keys and tags FOUND were found; IS_SAMPLE: there are more in the store."""

    checked: int
    found: int
    is_sample: bool
    lost: tuple[Key, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, and some keys that were not found."""
        return {
            "checked": self.checked,
            "found": self.found,
            "isSample": self.is_sample,
            "lost": [{"topic": topic, "key": key} for topic, key, kind in self.lost if not kind],
        }


def check_keys(evidence: StoreEvidence, outcome: StartOutcome) -> KeysFound:
    """Look up the keys and tags of messages that OUTCOME keeps in the log."""
    messages = evidence.messages
    kept = (
        (messages.state == MessageState.SOUND)
        & (messages.log_offset >= outcome.log_begin)
        & (messages.log_offset < outcome.log_end)
    )
    offsets = messages.log_offset[kept]
    is_sample = len(offsets) > MESSAGES_MAX
    if is_sample:
        offsets = offsets[np.linspace(0, len(offsets) - 1, MESSAGES_MAX).astype(np.int64)]
    keys: dict[Key, None] = {}
    for offset in offsets.tolist():
        keys |= dict.fromkeys(_keys_at(evidence, offset))
    lost = [key for key in keys if not outcome.lookup(*key)]
    return KeysFound(len(keys), len(keys) - len(lost), is_sample, tuple(lost[:3]))


def _keys_at(evidence: StoreEvidence, log_offset: int) -> list[Key]:
    record = evidence.record(log_offset)
    if record is None:
        return []
    words = [word for word in record.properties.get("KEYS", "").split(" ") if word]
    unique = record.properties.get("UNIQ_KEY")
    keys = [(record.topic, word, "") for word in ([unique] if unique else []) + words]
    tags = record.properties.get("TAGS")
    return [*keys, (record.topic, tags, "T")] if tags else keys
