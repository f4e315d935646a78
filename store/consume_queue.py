"""Consume queues: for each message of one topic and queue, in order, where its record is in the log.

Entries: format/queue_entries.py. A plain queue has one for each message; its files hold 300,000 of them by default. If
its first message is not number 0 (its older ones were deleted), pre-blank entries stand in front. A batch queue has one
for each *inner batch*, a record that holds many messages; they are read, recovered, and made again from the log, but
nothing here writes new batches.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..proto.record_run import Longs
from .disk import Disk
from .entry_row import EntryRow, Sum
from .files import MappedFiles
from .format.queue_entries import ADDRESS_MAX, BATCH_ENTRY, ENTRY, NOT_COMPACTED
from .format.rows import Rows
from .queue_extension import QueueExtension

#: So many messages may be missing in front of a single one; a larger gap needs two in a row that agree on it.
LONE_GAP_MAX: Final = 1000
#: So many messages in a row, newer than all others, show that a queue began anew under lower numbers.
RESTART_LEAST: Final = 3


@dataclass(slots=True)
class Placed:
    """What became of records that were put: entered, already known, or without a place; and entries that FILL gaps."""

    added: int = 0
    known: int = 0
    misplaced: int = 0
    filled: int = 0
    restarts: int = 0

    def add(self, other: Placed) -> None:
        """Count OTHER in."""
        self.added += other.added
        self.known += other.known
        self.misplaced += other.misplaced
        self.filled += other.filled
        self.restarts += other.restarts


class ConsumeQueue:
    """Queue QUEUE of TOPIC.

    min_offset, max_offset: queue offsets of the oldest message that can be read, and of the next one to come.
    """

    __slots__ = ("_extension", "_log_begin", "_min_offset", "is_followed", "queue", "row", "topic")

    is_batch = False

    def __init__(self, topic: str, queue: int, row: EntryRow) -> None:
        self.topic = topic
        self.queue = queue
        self.row = row
        self._min_offset = row.first
        #: Is the log a master's, which may have deleted the topic and made it again, or may be one?
        self.is_followed = False
        #: Where the log begins, if the min offset was not looked for since it does.
        self._log_begin: int | None = None
        self._extension: QueueExtension | None = None

    @classmethod
    def load(cls, disk: Disk, folder: str, file_size: int, topic: str, queue: int) -> ConsumeQueue:
        """Open the queue in FOLDER/TOPIC/QUEUE (none there: an empty one). Its end is not known until `recover`."""
        path = os.path.join(folder, topic, str(queue))
        return cls(topic, queue, EntryRow.load(disk, path, file_size, ENTRY, "consume queue"))

    @property
    def files(self) -> MappedFiles:
        return self.row.files

    @property
    def min_offset(self) -> int:
        begin = self._log_begin
        if begin is not None:
            self._min_offset = self.row.first_from(begin)
            self._log_begin = None
        return self._min_offset

    @property
    def max_offset(self) -> int:
        return self.row.end

    @property
    def max_log_end(self) -> int:
        """Where the newest message's record ends in the log; −1 without messages."""
        return self.row.max_log_end

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, first: int, log_offsets: Longs, sizes: Longs, tags_codes: Longs) -> None:
        """Enter new messages with the queue offsets from FIRST on; FIRST must be `max_offset`, but in an empty queue.

        Raises StoreFull or DiskFailure: then none of them is entered.
        """
        entries = np.empty(len(log_offsets), ENTRY.dtype)
        entries["log_offset"] = log_offsets
        entries["size"] = sizes
        entries["tags_code"] = tags_codes
        if first != self.row.end:
            assert not self.row.files.files, "a message must follow the one before it"
            self.begin_at(first)
        self.row.append(entries)

    def begin_at(self, number: int) -> None:
        """Have the next message of an empty queue get NUMBER.

        Raises StoreFull or DiskFailure: then the queue is still empty.
        """
        self.row.begin_at(number)
        self._set_min_offset(number)

    def put(
        self, queue_offsets: Longs, log_offsets: Longs, sizes: Longs, tags_codes: Longs
    ) -> Placed:
        """Enter messages read from the log, some of which may be known, in order of the log.

        A message that does not reach behind the newest one's record is known. In front of a gap (messages whose
        records are lost or damaged) the entry behind it is repeated, so that every other one keeps its place; the
        reader passes over repetitions. (Apache closes the gap: all later messages get lower queue offsets.) Messages
        with a number that is taken have no place and are left out, unless several in a row, or in the log of a replica
        the number 0, show that the queue began anew (its topic was deleted and made again): then they replace it. One
        message whose number fits neither of its neighbours', while theirs leave room for it, gets that place: no CRC
        covers numbers.
        """
        ends = log_offsets + sizes
        reached = np.maximum.accumulate(ends)
        before = np.concatenate((np.array([self.max_log_end]), reached[:-1]))
        rows = np.flatnonzero(ends > np.maximum(before, self.max_log_end))
        placed = Placed(known=len(ends) - len(rows))
        numbers = self._numbers(queue_offsets[rows])
        cuts = np.flatnonzero(numbers[1:] != numbers[:-1] + 1) + 1
        for run, own in zip(np.split(rows, cuts), np.split(numbers, cuts), strict=True):
            if len(run):
                fields = log_offsets[run], sizes[run], tags_codes[run]
                self._put_run(int(own[0]), fields, placed)
        return placed

    def _numbers(self, said: Longs) -> Longs:
        """Return the numbers of new messages that SAID these, in order: of one that is out of line, its neighbours'."""
        if not len(said):
            return said
        before = self.row.end if self.row.files.files else int(said[0])
        due = np.concatenate((np.array([before]), said[:-1] + 1))
        is_out = np.append((said[:-1] != due[:-1]) & (said[1:] == due[:-1] + 1), False)
        return np.where(is_out, due, said)

    def _put_run(self, first: int, fields: tuple[Longs, Longs, Longs], placed: Placed) -> None:
        """Enter messages of consecutive numbers from FIRST on, all newer than the queue."""
        count = len(fields[0])
        empty = not self.row.files.files
        if first < self.row.end and self._has_one_from(first - 1):
            self.row.cut_to(first)
        gap = first - self.row.end
        if first < 0 or (not empty and gap > LONE_GAP_MAX and count == 1):
            placed.misplaced += count
            return
        if gap < 0:
            if count < RESTART_LEAST and not (first == 0 and self.is_followed):
                placed.misplaced += count
                return
            placed.restarts += 1
            self.destroy()
        elif gap and not empty:
            self._fill(gap, fields)
            placed.filled += gap
        self.append(first, *fields)
        placed.added += count

    def _has_one_from(self, number: int) -> bool:
        """Is one message, whose number was ahead of what follows now, all that the queue has from NUMBER on?"""
        newest = self.row.log_offset(self.row.end - 1)
        return (
            number >= self.min_offset
            and newest == self.row.log_offset(number)
            and newest != self.row.log_offset(number - 1)
        )

    def _fill(self, gap: int, fields: tuple[Longs, Longs, Longs]) -> None:
        """Repeat the first entry of FIELDS until only it fits behind."""
        first = self.row.end
        self.append(first, *(np.repeat(column[:1], gap) for column in fields))

    def repeat_neighbour(self, number: int) -> None:
        """Have entry NUMBER, whose record is damaged, repeat the entry behind it, or else the one before.

        Without either it stays. Raises StoreFull or DiskFailure.
        """
        own = self.row.log_offset(number)
        others = [
            other
            for other in (number + 1, number - 1)
            if self.row.log_offset(other) not in (None, own)
        ]
        if others and min(others) >= self.min_offset:
            self.row.replace(number, self.row.read(others[0], 1))

    # --- reading -------------------------------------------------------------------------------------------------

    def entries(self, first: int, count: int) -> tuple[Longs, Longs, Longs]:
        """Return log offsets, sizes and tags codes of up to COUNT messages from queue offset FIRST on.

        Fewer at the end of a file; none behind the end, below `min_offset`, and where a file is missing.
        """
        entries = self.row.read(first, count if first >= self.min_offset else 0)
        return (
            entries["log_offset"].astype(np.int64),
            entries["size"].astype(np.int64),
            self._resolved(entries["tags_code"].astype(np.int64)),
        )

    def _resolved(self, codes: Longs) -> Longs:
        """Return tags CODES with those of the extension where addresses stand."""
        if not len(codes) or int(codes.min()) > ADDRESS_MAX:
            return codes
        if self._extension is None:
            self._extension = QueueExtension(self.files.disk, self.files.folder)
        return self._extension.resolved(codes)

    @property
    def has_extension(self) -> bool:
        """Do addresses stand for tags codes in the entries, as a Java broker may have written them?"""
        return QueueExtension(self.files.disk, self.files.folder).exists

    def offset_behind_hole(self, offset: int) -> int:
        """Return the first queue offset from OFFSET on that has an entry; `max_offset` if none has."""
        return self.row.behind_hole(max(offset, self.min_offset))

    def log_offset(self, number: int) -> int | None:
        """Return where the record of message NUMBER is in the log; None if there is no such entry."""
        return self.row.log_offset(number)

    def holes(self) -> list[tuple[int, int]]:
        """Return the ranges [from, to) of queue offsets whose files are missing between others."""
        return self.row.holes()

    # --- after a stop, and cleaning ------------------------------------------------------------------------------

    def recover(self, last_files: int | None = 3, sums: Iterable[Sum] = ()) -> bool:
        """Find the end of the queue, and return whether it is as SUMS say, see `EntryRow.recover`."""
        return self.row.recover(last_files, sums)

    def truncate(self, log_end: int) -> int:
        """Take out the messages whose records begin at LOG_END or behind it; return how many."""
        count = self.row.truncate(log_end)
        if count:
            self._set_min_offset(min(self.min_offset, self.max_offset))
        return count

    def _set_min_offset(self, offset: int) -> None:
        self._min_offset, self._log_begin = offset, None

    def correct_min_offset(self, min_log_offset: int) -> None:
        """Set `min_offset` to the first message whose record lies at MIN_LOG_OFFSET or behind it.

        All files are looked at, and pre-blank entries are none. (Apache looks at the first file only.) That is done
        when it is asked for: a store may have 100,000 queues, of which few are read.
        """
        self._log_begin = min_log_offset

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete leading files that only hold messages before MIN_LOG_OFFSET, never the last; return how many."""
        count = self.row.delete_expired(min_log_offset)
        self.correct_min_offset(min_log_offset)
        return count

    def destroy(self) -> None:
        """Delete the queue with its folder; it is empty then, and begins anew."""
        self.row.destroy()
        self._set_min_offset(0)


class _BatchRow(EntryRow):
    __slots__ = ()

    def valid(self, entries: Rows) -> NDArray[np.bool_]:
        sound: NDArray[np.bool_] = (
            (entries["size"] > 0) & (entries["base"] >= 0) & (entries["count"] > 0)
        )
        return sound


class BatchConsumeQueue:
    """Queue QUEUE of TOPIC.

    min_offset, max_offset: queue offsets of the oldest message that can be read, and of the next one to come.
    """

    is_batch = True

    def __init__(self, topic: str, queue: int, row: EntryRow) -> None:
        self.topic = topic
        self.queue = queue
        self.row = row
        self.min_offset = 0
        self.max_offset = 0

    @classmethod
    def load(
        cls, disk: Disk, folder: str, file_size: int, topic: str, queue: int
    ) -> BatchConsumeQueue:
        """Open the queue in FOLDER/TOPIC/QUEUE (none there: an empty one). Its end is not known until `recover`."""
        path = os.path.join(folder, topic, str(queue))
        return cls(
            topic, queue, _BatchRow.load(disk, path, file_size, BATCH_ENTRY, "batch consume queue")
        )

    @property
    def files(self) -> MappedFiles:
        return self.row.files

    @property
    def max_log_end(self) -> int:
        """Where the newest batch's record ends in the log; −1 without batches."""
        return self.row.max_log_end

    def put(
        self,
        log_offsets: Longs,
        sizes: Longs,
        tags_codes: Longs,
        store_ms: Longs,
        batches: tuple[Longs, Longs],
    ) -> Placed:
        """Enter batches read from the log, in its order; BATCHES are first queue offsets and numbers of messages.

        A batch that does not reach behind the newest one is known, one with a negative offset or no message has no
        place.
        """
        bases, counts = batches
        ends = log_offsets + sizes
        reached = np.maximum.accumulate(np.concatenate((np.array([self.max_log_end]), ends[:-1])))
        fresh = ends > reached
        sound = (bases >= 0) & (counts > 0) & (counts < 1 << 15)
        rows = np.flatnonzero(fresh & sound)
        if len(rows):
            entries = BATCH_ENTRY.zeros(len(rows))
            entries["log_offset"] = log_offsets[rows]
            entries["size"] = sizes[rows]
            entries["tags_code"] = tags_codes[rows]
            entries["store_ms"] = store_ms[rows]
            entries["base"] = bases[rows]
            entries["count"] = counts[rows]
            entries["compacted"] = NOT_COMPACTED
            first = not self.row.end
            self.row.append(entries)
            self._find_max()
            if first:
                self.min_offset = int(bases[rows[0]])
        return Placed(
            added=len(rows),
            known=int(np.count_nonzero(~fresh)),
            misplaced=int(np.count_nonzero(fresh & ~sound)),
        )

    def entries(self, first: int, count: int) -> tuple[Longs, Longs, Longs, Longs, Longs]:
        """Return log offsets, sizes, tags codes, first queue offsets and numbers of messages of up to COUNT batches,
        from the one on that holds queue offset FIRST; fewer at the end of a file."""
        number = self._batch_of(first)
        entries = self.row.read(number, count) if number is not None else BATCH_ENTRY.none()
        names = ("log_offset", "size", "tags_code", "base", "count")
        columns = [entries[name].astype(np.int64) for name in names]
        return columns[0], columns[1], columns[2], columns[3], columns[4]

    def _batch_of(self, offset: int) -> int | None:
        """Return the number of the entry whose batch holds queue OFFSET, or of the next one; None if none follows."""
        if offset >= self.max_offset:
            return None
        chosen = None
        for file in self.files.files:
            bases = self.row.all_of(file)["base"]
            if not len(bases) or (chosen is not None and int(bases[0]) > offset):
                break
            place = int(np.searchsorted(bases, offset, "right"))
            chosen = file.start // self.row.entry_size + max(0, place - 1)
        return chosen

    # --- after a stop, and cleaning ------------------------------------------------------------------------------

    def recover(self, last_files: int | None = 3, sums: Iterable[Sum] = ()) -> bool:
        """Find the end of the queue, and return whether it is as SUMS say, see `EntryRow.recover`."""
        as_summed = self.row.recover(last_files, sums)
        self._find_max()
        first = self.row.read(self.row.first, 1)
        self.min_offset = int(first["base"][0]) if len(first) else 0
        return as_summed

    def _find_max(self) -> None:
        self.max_offset = 0
        last = next((file for file in reversed(self.files.files) if file.position), None)
        if last is not None:
            entries = self.row.all_of(last)
            self.max_offset = int(entries["base"][-1]) + int(entries["count"][-1])

    def truncate(self, log_end: int) -> int:
        """Take out the batches whose records begin at LOG_END or behind it; return how many."""
        count = self.row.truncate(log_end)
        self._find_max()
        self.min_offset = min(self.min_offset, self.max_offset)
        return count

    def correct_min_offset(self, min_log_offset: int) -> None:
        """Set `min_offset` to the first message whose record lies at MIN_LOG_OFFSET or behind it."""
        entries = self.row.read(self.row.first_from(min_log_offset), 1)
        self.min_offset = int(entries["base"][0]) if len(entries) else self.max_offset

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete leading files that only hold batches before MIN_LOG_OFFSET, never the last; return how many."""
        count = self.row.delete_expired(min_log_offset)
        self.correct_min_offset(min_log_offset)
        return count

    def destroy(self) -> None:
        """Delete the queue with its folder; it is empty then."""
        self.row.destroy()
        self.min_offset = self.max_offset = 0
