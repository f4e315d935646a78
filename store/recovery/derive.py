"""Rebuilding queues and index from the log, and the note of what was verified.

A queue is compared with all records of the log entry by entry. It matches if each record that has a place in the queue
has its entry there, with its log offset and size. A queue that is only too short is continued. One with a mismatch or a
missing file in the middle is rebuilt. Light queues (%LMQ%) are left as they are. Damaged index files, all later ones,
and all after a missing one are rebuilt. Queue offsets of damaged records are not reused (`ConsumeQueue.put`).

After an unclean stop, data newer than the last verified point may be only partly on disk. So the index is cut back to
that point and completed, and the newest entry of each queue is rebuilt. `Verified` describes that point.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.errors import CorruptIndex
from ...proto.record import SYS_ROLLBACK, SYS_TRANSACTION, Record
from ...proto.record_run import QUEUE_OFFSET_MAX, Longs, PropertyRanges, RunColumns
from ..commit_log import CommitLog
from ..consume_queue import BatchConsumeQueue, ConsumeQueue, Sum
from ..consume_queues import Queue, stored_topics
from ..disk import Disk
from ..format.agreement import foreign_entries, is_served, same_place
from ..format.index import IndexHeader
from ..format.log_and_queues import LIGHT_PREFIX, Rows as Entries
from ..index_file import LogPlaces
from ..message_index import MessageIndex
from ..parts import StoreParts
from ..rows_by_queue import by_queue
from .scan import FindingKind, RecoveryFinding, ScannedFile

_STRANGERS: Final = "entries point to records that are damaged or of other queues"

Rows = NDArray[np.intp]
Name = tuple[str, int]

#: Up to this number of repeated entries at the end of a queue replace damaged records.
_PAD_MAX: Final = 1000


# ---------------------------------------------------------------- do entries agree with records


@dataclass(slots=True)
class QueueRecords:
    """The records of one queue in order of the log, one array for each log file: numbers are queue offsets."""

    files: list[int] = field(default_factory=list)
    rows: list[NDArray[np.int32]] = field(default_factory=list)
    numbers: list[Longs] = field(default_factory=list)
    offsets: list[Longs] = field(default_factory=list)
    sizes: list[NDArray[np.int32]] = field(default_factory=list)

    def add(self, file: int, columns: RunColumns, rows: Rows) -> None:
        """Add the records ROWS of the log file with the number FILE."""
        self.files.append(file)
        self.rows.append(rows.astype(np.int32))
        self.numbers.append(columns.queue_offset[rows])
        self.offsets.append(columns.log_offset[rows])
        self.sizes.append(columns.sizes[rows].astype(np.int32))

    def has(self, log_offset: int) -> bool:
        """Is there a record at LOG_OFFSET?"""
        return any(bool((offsets == log_offset).any()) for offsets in self.offsets)

    def joined(self) -> tuple[Longs, Longs, Longs]:
        """Return queue offsets, log offsets and sizes of all."""
        numbers, offsets = np.concatenate(self.numbers), np.concatenate(self.offsets)
        return numbers, offsets, np.concatenate(self.sizes).astype(np.int64)

    def beyond(self, log_end: int) -> Iterator[tuple[int, Rows]]:
        """Yield file and rows of the records that end after LOG_END."""
        for number, file in enumerate(self.files):
            offsets = self.offsets[number]
            if len(offsets) and int(offsets[-1]) + int(self.sizes[number][-1]) > log_end:
                chosen = offsets + self.sizes[number] > log_end
                yield file, self.rows[number][chosen].astype(np.intp)


def plain_fault(
    queue: ConsumeQueue, records: QueueRecords, log: CommitLog, read_from: int
) -> str | None:
    """Return how the entries of QUEUE contradict RECORDS; None if there is nothing but missing ones at its end.

    RECORDS are all that the LOG holds from log offset READ_FROM on.
    """
    if not records.files:
        nothing = np.zeros(0, np.int64)
        files = queue.files.files
        strange = (
            _has_strangers(queue.all_of(one), nothing, (-1, -1), log, read_from) for one in files
        )
        return _STRANGERS if any(strange) else None
    numbers, offsets, sizes = records.joined()
    if not (numbers[1:] > numbers[:-1]).all():
        return None  # Numbering that restarts, or repeats numbers: ConsumeQueue.put decides.
    claimed = np.zeros(len(numbers), np.bool_)
    for file in queue.files.files:
        entries = queue.all_of(file)
        first = file.start // queue.entry_size
        low, high = np.searchsorted(numbers, (first, first + len(entries)))
        places = numbers[low:high] - first
        if not same_place(entries[places], offsets[low:high], sizes[low:high]).all():
            return "entries point elsewhere than to their records"
        edges = (
            int(offsets[low - 1]) if low else -1,
            int(offsets[high]) if high < len(offsets) else -1,
        )
        if _has_strangers(entries, places, edges, log, read_from):
            return _STRANGERS
        claimed[low:high] = True
    lacking = np.flatnonzero(~claimed)
    if not len(lacking):
        return None
    if int(numbers[lacking[0]]) < queue.max_offset:
        return "entries of records in the log are missing in the middle"
    if int(offsets[lacking[0]] + sizes[lacking[0]]) <= queue.max_log_end:
        return "the last entries are of other records"
    return None


def _has_strangers(
    entries: Entries, own: Longs, edges: tuple[int, int], log: CommitLog, read_from: int
) -> bool:
    """Is there an entry that points to log bytes at READ_FROM or after it, but belongs to no record of the queue?

    OWN and EDGES are those of `foreign_entries`.
    """
    begin = bisect_left(range(len(entries)), read_from, key=_offset_in(entries))
    foreign = foreign_entries(entries, own, edges, begin)
    return any(log.files.index_of(offset) is not None for offset in foreign)


def _offset_in(entries: Entries) -> Callable[[int], int]:
    offsets = entries["log_offset"]
    return lambda row: int(offsets[row])


def batch_fault(queue: BatchConsumeQueue, records: QueueRecords) -> str | None:
    """Return how the entries of QUEUE contradict RECORDS; None if there is nothing but missing ones at its end."""
    _, offsets, sizes = records.joined()
    entries = np.concatenate([queue.all_of(file) for file in queue.files.files])
    known = entries[np.searchsorted(entries["log_offset"].astype(np.int64), offsets[0]) :]
    count = min(len(known), len(offsets))
    same = same_place(known[:count], offsets[:count], sizes[:count])
    if len(known) > len(offsets) or not same.all():
        return "entries point elsewhere than to their records"
    return None


# ---------------------------------------------------------------- making them agree

_NO_RECORDS: Final = QueueRecords()


class ContradictionFound(Exception):
    """Queues or index contradict the newer part of the log, or themselves: the whole log has to be read."""


class Derivation:
    """Compares and completes queues and index of one store from FILES: the whole log, or what is newer than KNOWN."""

    def __init__(
        self,
        parts: StoreParts,
        files: list[ScannedFile],
        findings: list[RecoveryFinding],
        *,
        clean: bool,
        known: Verified | None,
        changed: Collection[Queue],
    ) -> None:
        """FINDINGS gets what is found. The entries of the queues CHANGED are not those that were verified."""
        self._changed = set(changed)
        self._parts = parts
        self._queues = parts.queues
        self._files = files
        self._findings = findings
        self._clean = clean
        self._known = known
        self._whole = known is None
        self._redone = 0
        self._records: dict[Name, QueueRecords] = {}
        self._voided: dict[Name, int] = {}
        #: Where queues ended that are made again.
        self._ends: dict[Name, int] = {}

    def derive(self, voided: Iterable[Record]) -> None:
        """Do all of it; VOIDED are records that were damaged.

        Raises ContradictionFound, unless the log is read as a whole, before anything is cut but what is newer than
        was verified.
        """
        log_end = self._parts.log.max_offset
        cut = self._queues.truncate(log_end)
        if cut:
            self._note(
                FindingKind.CUT,
                "consumequeue",
                f"entries point beyond the end of the log at {log_end:,}",
                cut,
            )
        for record in voided:
            self._keep_number(record.topic, record.queue_id, record.queue_offset)
        for number, scanned in enumerate(self._files):
            self._collect(number, scanned)
        if not self._clean:
            self._drop_newest()
        for one in list(self._queues):
            name = one.topic, one.queue
            self._check_queue(one, self._records.get(name, _NO_RECORDS))
        self._note_beyond_topics()
        self._dispatch(self._index_begin())
        self._pad()
        self._queues.correct_min_offsets(self._parts.log.min_offset)
        self._note_holes()

    def _collect(self, number: int, scanned: ScannedFile) -> None:
        """Remember which records of a file are of which queue."""
        columns = scanned.columns
        queued = np.flatnonzero(is_served(columns.sys_flag))
        for topic, queue, rows in by_queue(scanned.file.data, columns, queued):
            self._records.setdefault((topic, queue), QueueRecords()).add(number, columns, rows)
        if len(queued) < len(columns):
            voids = np.flatnonzero((columns.sys_flag & SYS_TRANSACTION) == SYS_ROLLBACK)
            for topic, queue, rows in by_queue(scanned.file.data, columns, voids):
                numbers = columns.queue_offset[rows]
                possible = numbers[numbers <= QUEUE_OFFSET_MAX]
                self._keep_number(topic, queue, int(possible.max(initial=-1)))

    def _keep_number(self, topic: str, queue: int, number: int) -> None:
        if not 0 <= number <= QUEUE_OFFSET_MAX:
            return  # The number is what was damaged.
        self._voided[topic, queue] = max(number, self._voided.get((topic, queue), -1))

    def _drop_newest(self) -> None:
        """Drop the newest entry of each queue with its repetitions, if its record was read: it is rebuilt.

        Its log offset and size may be on disk without its tags code, which nothing compares.
        """
        for name, found in self._records.items():
            queue = self._queue(name)
            if queue is None:
                continue
            newest = queue.log_offset(queue.end - 1)
            if newest is not None and found.has(newest):
                queue.truncate(newest)
                self._redone += 1

    def _queue(self, name: Name) -> Queue | None:
        return self._queues.get(*name) or self._queues.get_batch(*name)

    def _check_queue(self, queue: Queue, found: QueueRecords) -> None:
        read_from = self._parts.log.min_offset if self._known is None else self._known.log_end
        is_older = not found.files and queue.max_log_end <= read_from
        if is_older or not queue.files.files or queue.topic.startswith(LIGHT_PREFIX):
            return
        if queue in self._changed:
            fault: str | None = "entries are not as they were at the last clean stop"
        elif isinstance(queue, ConsumeQueue):
            fault = plain_fault(queue, found, self._parts.log, read_from)
        else:
            fault = batch_fault(queue, found)
        if fault is None:
            return
        if not self._whole:
            raise ContradictionFound
        count = sum(map(len, found.numbers))
        self._note(
            FindingKind.REBUILT, queue.files.folder, f"{fault}: made again from the log", count
        )
        self._ends[queue.topic, queue.queue] = queue.max_offset
        self._keep_number(queue.topic, queue.queue, queue.max_offset - 1)
        queue.destroy()

    def _dispatch(self, index_from: int) -> None:
        """Enter what is missing; what is known is left out before any costly look at properties."""
        lacking = self._lacking()
        added = misplaced = 0
        for number, scanned in enumerate(self._files):
            rows = lacking.get(number, np.zeros(0, np.intp))
            unindexed = self._parts.index is not None and scanned.last_log_offset >= index_from
            if unindexed or len(rows):
                columns = scanned.columns
                if unindexed:
                    rows = np.union1d(rows, np.flatnonzero(columns.log_offset >= index_from))
                chosen = columns if len(rows) == len(columns) else columns.take(rows)
                placed = self._parts.dispatcher.dispatch(scanned.file.view, chosen)
                added += placed.added
                misplaced += placed.misplaced
        if added > self._redone:
            why = "missing entries were made again from the log"
            self._note(FindingKind.REBUILT, "consumequeue", why, added - self._redone)

        if misplaced:
            why = "numbers contradict those around them: these records are in no queue"
            self._note(FindingKind.NOTED, "commitlog", why, misplaced)

    def _note_beyond_topics(self) -> None:
        """Note the queues that are new, and more than their topic has: no CRC covers the number of a queue."""
        new = [name for name in self._records if self._queue(name) is None]
        config = self._parts.config
        topics = stored_topics(self._parts.disk, config.state_folder) if new else {}
        for topic, queue in new:
            known = topics.get(topic)
            count = 0 if known is None else max(known.read_queues, known.write_queues)
            if count and queue >= count:
                why = f"{topic} has {count} queues, but records are of queue {queue}"
                records = sum(map(len, self._records[topic, queue].numbers))
                self._note(FindingKind.NOTED, config.log_folder, why, records)

    def _lacking(self) -> dict[int, Rows]:
        """Return, by number of the file, the records that their queues do not reach."""
        ends = {(one.topic, one.queue): one.max_log_end for one in self._queues}
        missing: dict[int, list[Rows]] = {}
        for name, found in self._records.items():
            for number, rows in found.beyond(ends.get(name, -1)):
                missing.setdefault(number, []).append(rows)
        return {number: np.sort(np.concatenate(rows)) for number, rows in missing.items()}

    def _pad(self) -> None:
        for name, newest in self._voided.items():
            queue = self._queues.get(*name)
            if queue is None:
                continue
            if not queue.files.files and name in self._ends:
                end = self._ends[name]
                queue.begin_at(newest + 1 if newest - end < _PAD_MAX else end)
            count = newest + 1 - queue.max_offset
            if 0 < count <= _PAD_MAX and queue.max_offset > queue.min_offset:
                last = queue.entries(queue.max_offset - 1, 1)
                queue.append(queue.max_offset, *(np.repeat(column, count) for column in last))

    def _note_holes(self) -> None:
        for queue in self._queues:
            if isinstance(queue, ConsumeQueue):
                for begin, end in queue.holes():
                    why = f"files are missing: queue offsets {begin:,} to {end:,} cannot be read"
                    self._note(FindingKind.HOLE, queue.files.folder, why, offset=begin)

    def _index_begin(self) -> int:
        """Bring the index to a sound state; return the log offset from which on it lacks records."""
        index = self._parts.index
        if index is None:
            return 0
        if self._known is None:
            damage = index.delete_damaged(self._log_places())
            if damage is not None:
                self._note(FindingKind.REBUILT, index.folder, damage.message)
        elif not self._clean:
            self._restore(index, self._known)
        cut = index.truncate(self._parts.log.max_offset)
        if cut:
            why = f"index entries of records that are gone: {cut:,}"
            self._note(FindingKind.CUT, index.folder, why)
        if self._whole:
            self._drop_incomplete(index)
        if not index.files:
            return 0
        # The newest record may have got some of its keys only; the index enters those that it lacks.
        end = index.end_log_offset
        return end + 1 if index.files[-1].is_full and self._is_indexed(index, end) else end

    def _is_indexed(self, index: MessageIndex, log_offset: int) -> bool:
        """Has the record at LOG_OFFSET, the newest in INDEX, all its keys? Entering them again may make a file."""
        for scanned in self._files:
            rows = np.flatnonzero(scanned.log_offsets == log_offset)
            if len(rows):
                return index.has_all_keys(scanned.file.view, scanned.columns.take(rows))
        return False

    def _restore(self, index: MessageIndex, known: Verified) -> None:
        """Cut INDEX back to what was verified: of what is newer anything may be missing after a power cut."""
        try:
            index.restore(known.index_headers())
            index.check()
        except CorruptIndex as error:
            raise ContradictionFound from error

    def _log_places(self) -> LogPlaces:
        """Return where all valid records are; the whole log was read."""
        nothing = np.zeros(0, np.int64)
        records = np.concatenate([nothing, *(scanned.log_offsets for scanned in self._files)])
        log_files = self._parts.log.files

        def is_gone(offset: int) -> bool:
            return log_files.index_of(offset) is None

        return LogPlaces(log_files.min_offset, records, is_gone)

    def _drop_incomplete(self, index: MessageIndex) -> None:
        """Delete everything after a missing index file."""
        covered = -1
        for file in index.files:
            header = file.header
            if header.next_entry <= 1:
                continue
            if self._keyed_between(covered, header.begin_log_offset):
                why = f"keys of records before {header.begin_log_offset:,} are missing, a file is gone"
                self._note(FindingKind.REBUILT, index.folder, why)
                if covered < 0:
                    index.delete_all()
                else:
                    index.truncate(covered + 1)
                return
            covered = header.end_log_offset

    def _keyed_between(self, after: int, before: int) -> bool:
        """Is there a record with a key between the two log offsets?"""
        for scanned in self._files:
            if scanned.file.end <= after or scanned.file.start >= before:
                continue
            columns = scanned.columns
            rows = np.flatnonzero((columns.log_offset > after) & (columns.log_offset < before))
            if len(rows) and _has_keys(scanned, columns.take(rows)):
                return True
        return False

    def _note(
        self, kind: FindingKind, path: str, why: str, records: int = 0, *, offset: int | None = None
    ) -> None:
        self._findings.append(
            RecoveryFinding(kind=kind, path=path, why=why, offset=offset, records=records)
        )


def _has_keys(scanned: ScannedFile, columns: RunColumns) -> bool:
    ranges = PropertyRanges(scanned.file.view, columns)
    indexed = (columns.sys_flag & SYS_TRANSACTION) != SYS_ROLLBACK
    names: Iterable[str] = ("UNIQ_KEY", "KEYS", "TAGS")
    return any(bool(((ranges.find(name)[1] > 0) & indexed).any()) for name in names)


# ---------------------------------------------------------------- up to where everything was verified


_NAME: Final = "verified.json"
_VERSION: Final = 2
#: Bytes of the last record that are remembered (as a digest).
_HEAD_SIZE: Final = 92
#: Queues whose part of the text is made at a time: some 100 microseconds.
_NAMES_A_PIECE: Final = 500


@dataclass(frozen=True, slots=True)
class Verified:
    """Up to where everything was verified: `<root>/pocketmq/verified.json`.

    Every record before LOG_END was read, or appended by this broker, and is in its queue and in the index, all on disk:
    at the last opening or clean stop, and once per minute while running (with each thorough flush of the queues). The
    next recovery reads only what is newer. The note is trusted only if the last record before LOG_END is unchanged, and
    queues and index reach at least as far as then. Otherwise, or without the file, the whole log is read, and the file
    is deleted first. After a power cut, later index entries may be incomplete; the header in the note says where to cut
    the index.

    QUEUES: next queue offset by `topic/queue`; INDEX: the fields of the header by file.

    SUMS: the CRCs of the files of each queue, as they were at the last clean stop (EntryRow.sums).
    """

    log_end: int
    last_offset: int
    last_digest: str
    newest_ms: int
    queues: dict[str, int] = field(default_factory=dict)
    index: dict[str, list[int]] = field(default_factory=dict)
    sums: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    version: int = _VERSION

    @classmethod
    def claimed(
        cls, log: CommitLog, log_end: int, *, last_offset: int, newest_ms: int, index: list[str]
    ) -> Verified:
        """Return the claim that everything before LOG_END is verified; the caller answers for it.

        It says nothing about the ends of queues, and of the INDEX only which files there are.
        """
        return cls(
            log_end=log_end,
            last_offset=last_offset,
            last_digest=_digest(log, last_offset),
            newest_ms=newest_ms,
            index={name: list(astuple(IndexHeader())) for name in index},
        )

    @classmethod
    def load(cls, disk: Disk, folder: str) -> Verified | None:
        """Return the note in FOLDER; None if there is none that can be trusted."""
        path = os.path.join(folder, _NAME)
        if not disk.exists(path):
            return None
        try:
            found = cls(**json.loads(disk.read(path)))
            if found.version != _VERSION:
                return None
            found.index_headers()
            found.sums_of("")
        except (ValueError, TypeError, AttributeError):
            return None
        return found

    @staticmethod
    def forget(disk: Disk, folder: str) -> None:
        """Delete the file in FOLDER, also on disk (synced), if there is one."""
        path = os.path.join(folder, _NAME)
        if disk.exists(path):
            disk.delete(path)
            disk.sync_folder(folder)

    def index_headers(self) -> dict[str, IndexHeader]:
        """Return the headers of the index files at that moment, by name."""
        return {name: IndexHeader(*fields) for name, fields in self.index.items()}

    def sums_of(self, name: str) -> tuple[Sum, ...]:
        """Return what the files of the queue NAME, `topic/queue`, began with."""
        return tuple(Sum(*map(int, each)) for each in self.sums.get(name, ()))

    def save(self, disk: Disk, folder: str) -> None:
        """Replace the file in FOLDER."""
        disk.make_folders(folder)
        text = "".join(self._texts())
        disk.write_atomically(os.path.join(folder, _NAME), text.encode())

    def _texts(self) -> Iterator[str]:
        """Yield the text of the file in pieces: as a whole it would take other threads' turns, with 100,000 queues."""
        tables: dict[str, Mapping[str, object]] = {"queues": self.queues, "sums": self.sums}
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        yield json.dumps({name: values[name] for name in values.keys() - tables.keys()})[:-1]
        for name, table in tables.items():
            yield f', "{name}": {{'
            names, comma = list(table), ""
            for at in range(0, len(names), _NAMES_A_PIECE):
                piece = {each: table[each] for each in names[at : at + _NAMES_A_PIECE]}
                yield comma + json.dumps(piece)[1:-1]
                comma = ", "
            yield "}"
        yield "}"

    def holds(self, parts: StoreParts) -> bool:
        """Is what was verified still there? The parts were loaded, and the ends of the queues found."""
        log, index = parts.log, parts.index
        last = log.files.last
        if last is None or not log.min_offset < self.log_end <= last.end:
            return False
        if not self.last_digest or _digest(log, self.last_offset) != self.last_digest:
            return False
        there = {f"{one.topic}/{one.queue}": one for one in parts.queues}
        for name, end in self.queues.items():
            if end and (name not in there or there[name].max_offset < end):
                return False
        return index is None or self._index_holds(index, log.min_offset)

    def _index_holds(self, index: MessageIndex, log_begin: int) -> bool:
        there = {file.name: file.header for file in index.files}
        for name, then in self.index_headers().items():
            if name not in there:
                if then.end_log_offset >= log_begin:
                    return False
            elif there[name].next_entry < then.next_entry:
                return False
        return bool(self.index)


class VerifiedSnapshot:
    """The present state of PARTS, as their owner sees it; any thread may save it.

    LAST_OFFSET and NEWEST_MS are those of the log's last record.
    """

    def __init__(self, parts: StoreParts, *, last_offset: int, newest_ms: int) -> None:
        index = parts.index.files if parts.index is not None else []
        self._ends = parts.queues.ends()
        self._rest = Verified(
            log_end=parts.log.max_offset,
            last_offset=last_offset,
            last_digest=_digest(parts.log, last_offset),
            newest_ms=newest_ms,
            index={file.name: list(astuple(file.header)) for file in index},
        )

    @property
    def log_end(self) -> int:
        return self._rest.log_end

    def save(self, disk: Disk, folder: str) -> None:
        """Replace the file in FOLDER."""
        queues = {f"{one.topic}/{one.queue}": end for one, end in self._ends.items()}
        sums = {f"{one.topic}/{one.queue}": one.sums for one in self._ends if one.sums}
        replace(self._rest, queues=queues, sums=sums).save(disk, folder)


def _digest(log: CommitLog, offset: int) -> str:
    """Return the digest of the record's head at log OFFSET; empty if none is there."""
    head = log.read(offset, _HEAD_SIZE)
    if head is None or log.record_size(offset) is None:
        return ""
    return hashlib.sha256(head).hexdigest()
