"""Rebuilds queues and index from the log.

A queue is compared with all records of the log, entry by entry (queue_faults.py). It matches if each of its records has
its entry, with its log offset and size. A queue that is only too short is continued. One with a mismatch, or with a
missing file in the middle, is rebuilt. lite.py derives the queues of lite topics; other light queues (%LMQ%) are not
changed. Damaged index files, all later ones, and all after a missing one are rebuilt. Queue offsets of damaged records
are not reused (`ConsumeQueue.put`).

After an unclean stop, data newer than the last verified point (verified.py) may be only partly on disk. So the index is
cut back to that point and completed, and the newest entry of each queue is rebuilt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import numpy as np

from ...proto.errors import CorruptIndex
from ...proto.property_ranges import PropertyRanges
from ...proto.record import SYS_ROLLBACK, SYS_TRANSACTION, Record
from ...proto.record_run import QUEUE_OFFSET_MAX, RunColumns
from ..consume_queue import ConsumeQueue
from ..consume_queues import Queue, stored_topics
from ..format.agreement import is_served
from ..format.queues import LIGHT_PREFIX
from ..index_check import LogPlaces
from ..message_index import MessageIndex
from ..parts import StoreParts
from ..rows_by_queue import by_queue
from .lite import LiteDerivation
from .queue_faults import QueueRecords, Rows, batch_fault, plain_fault
from .report import FindingKind, RecoveryFinding
from .scan import ScannedFile
from .verified import Verified

Name = tuple[str, int]

#: Up to this number of repeated entries at the end of a queue replace damaged records.
_PAD_MAX: Final = 1000


_NO_RECORDS: Final = QueueRecords()


class ContradictionFound(Exception):
    """Queues or index contradict the newer part of the log, or themselves: the whole log must be read."""


class Derivation:
    """Compares and completes queues and index of one store from FILES: the whole log, or the part newer than KNOWN."""

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
        """FINDINGS gets the findings. The entries of the queues CHANGED differ from the verified ones."""
        self._changed = set(changed)
        self._parts = parts
        self._queues = parts.queues
        self._files = files
        self._findings = findings
        self._clean = clean
        self._known = known
        self._whole = known is None
        self._lite = LiteDerivation(parts, files, findings, clean=clean, known=known)
        self._redone = 0
        self._records: dict[Name, QueueRecords] = {}
        self._voided: dict[Name, int] = {}
        #: The old ends of queues that are rebuilt.
        self._ends: dict[Name, int] = {}

    def derive(self, voided: Iterable[Record]) -> None:
        """Do all steps; VOIDED are records that were damaged.

        Raises ContradictionFound, unless the whole log is read. Until then only data that is newer than the verified
        state was cut.
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
        self._lite.derive()  # First: dispatching leaves out what is known.
        self._dispatch(self._index_begin())
        self._pad()
        self._queues.correct_min_offsets(self._parts.log.min_offset)
        self._note_holes()

    def _collect(self, number: int, scanned: ScannedFile) -> None:
        """Remember which records of a file belong to which queue."""
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
            return  # The queue offset itself was damaged.
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
            fault: str | None = "entries are not the same as at the last clean stop"
        elif isinstance(queue, ConsumeQueue):
            fault = plain_fault(queue, found, self._parts.log, read_from)
        else:
            fault = batch_fault(queue, found)
        if fault is None:
            return
        if not self._whole:
            raise ContradictionFound
        count = sum(map(len, found.numbers))
        self._note(FindingKind.REBUILT, queue.files.folder, f"{fault}: rebuilt from the log", count)
        self._ends[queue.topic, queue.queue] = queue.max_offset
        self._keep_number(queue.topic, queue.queue, queue.max_offset - 1)
        queue.destroy()

    def _dispatch(self, index_from: int) -> None:
        """Enter missing records; known ones are left out before any costly look at properties."""
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
            why = "missing entries were rebuilt from the log"
            self._note(FindingKind.REBUILT, "consumequeue", why, added - self._redone)

        if misplaced:
            why = "queue offsets contradict those around them: these records are in no queue"
            self._note(FindingKind.NOTED, "commitlog", why, misplaced)

    def _note_beyond_topics(self) -> None:
        """Note new queues with a higher number than their topic has: no CRC covers the queue id of a record."""
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
        """Return, by number of the file, the records that are after the end of their queues."""
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
        """Bring the index to a valid state; return the log offset from which on it lacks records."""
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
            why = f"index entries of deleted records: {cut:,}"
            self._note(FindingKind.CUT, index.folder, why)
        if self._whole:
            self._drop_incomplete(index)
        if not index.files:
            return 0
        # The newest record may have only some of its keys; the index enters the missing ones.
        end = index.end_log_offset
        return end + 1 if index.files[-1].is_full and self._is_indexed(index, end) else end

    def _is_indexed(self, index: MessageIndex, log_offset: int) -> bool:
        """Are all keys of the record at LOG_OFFSET, the newest in INDEX, there? (Entering them may create a file.)"""
        for scanned in self._files:
            rows = np.flatnonzero(scanned.log_offsets == log_offset)
            if len(rows):
                return index.has_all_keys(scanned.file.view, scanned.columns.take(rows))
        return False

    def _restore(self, index: MessageIndex, known: Verified) -> None:
        """Cut INDEX back to the verified state: of newer data, any part may be missing after a power cut."""
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
                why = f"keys of records before {header.begin_log_offset:,} are missing, because a file is"
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
