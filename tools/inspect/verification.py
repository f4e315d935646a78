"""The verification of a store: the log is read once, its records are compared with queues and index.

    for done_bytes in verification.run(): …     # yields its progress

Each record's place in its queue is read: an entry with the same log offset, size and tags code *matches*. No two
records match one entry, so a queue with as many matches as entries is correct, and only others are compared entry by
entry. Index entries are in the order of the log, so expected and actual entries of a range are two short arrays. Every
index file is also checked by itself: header, slots, links (store/index_file.py).

Cost: about 2 µs per record with three keys, plus the CRC of the bodies. Records that a live broker appends meanwhile
are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...proto import record_run
from ...proto.errors import CorruptIndex
from ...proto.property_ranges import PropertyRanges, tags_codes
from ...proto.record import SYS_ROLLBACK, SYS_TRANSACTION
from ...proto.topics import SCHEDULE_TOPIC
from ...store.format import agreement
from ...store.index_check import LogPlaces, check_index_file
from ...store.index_entries import IndexEntries, IndexName, index_names, open_index
from ...store.index_file import IndexFile
from ...store.log_view import Gap, LogStretch, LogWalk
from ...store.message_keys import keys_of
from ...store.overlay_disk import OverlayDisk
from ...store.queue_view import QueueExtent, QueueView
from ...store.rows_by_queue import by_queue
from ...store.view import QueueFolder, StoreView
from .entry_check import EntryCheck
from .stored_tables import Tables

PLACES_MAX: Final = 20

#: Kind, (what it is, is the store wrong for it?).
KINDS: Final[dict[str, tuple[str, bool]]] = {
    "log_file_missing": ("ranges of the log whose file is missing", True),
    "log_damaged": ("places in the log where no record can be read", True),
    "crc_wrong": ("records whose body does not fit its CRC", True),
    "displaced": ("records with another log offset than their own", True),
    "record_without_entry": ("records without an entry in their queue", True),
    "queue_file_missing": ("ranges of a queue whose file is missing", True),
    "entry_file_missing": ("queue entries whose record's file is missing", True),
    "entry_beyond_end": ("queue entries that point past the end of the log", True),
    "entry_without_record": ("queue entries that point to no record", True),
    "entry_of_another": ("queue entries that point to another message's record", True),
    "entry_size_wrong": ("queue entries with another size than their record", True),
    "tags_code_wrong": ("queue entries with a wrong tags code", True),
    "index_damaged": ("index files that contradict themselves", True),
    "index_without_record": ("index entries that point to no record", True),
    "index_without_key": ("index entries whose record has no such key", True),
    "not_dispatched": ("records at the log's end that are in no queue yet", False),
    "stale_tail": ("places past the end of the log where old bytes look like a record", False),
    "topic_gone": ("records of topics that were deleted, or deleted and made again", False),
    "voided": ("records that recovery put in place of damage", False),
    "entry_repeated": ("queue entries that recovery repeated in place of lost ones", False),
    "key_not_indexed": ("keys of records that the index has not", False),
}
#: Bits of a key hash; a stretch of the log is far shorter than what is left of 64.
_HASH_BITS: Final = 31
#: Bytes and records at a time. Each queue that a piece has records of costs some 100 µs in it: with thousands of queues
#: large pieces are five times quicker, with a few they cost a tenth, for they leave the processor's cache.
_BYTES_AT_ONCE: Final = 32 << 20
_ROWS_MAX: Final = 1 << 16


@dataclass(slots=True)
class FaultCount:
    """How much there is of one kind; `places` are the first."""

    count: int = 0
    places: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """Counts what is found, by kind."""

    records: int = 0
    entries: int = 0
    index_entries: int = 0
    log_bytes: int = 0
    kinds: dict[str, FaultCount] = field(default_factory=dict)

    def add(self, kind: str, places: Iterable[str], count: int) -> None:
        """Count COUNT findings of KIND; PLACES are only asked for while they are remembered."""
        assert kind in KINDS, kind
        if not count:
            return
        found = self.kinds.setdefault(kind, FaultCount())
        found.count += count
        if len(found.places) < PLACES_MAX:
            for place in places:
                found.places.append(place)
                if len(found.places) == PLACES_MAX:
                    break

    @property
    def is_wrong(self) -> bool:
        """Was anything found for which the store is wrong?"""
        return any(KINDS[name][1] for name in self.kinds)

    def document(self) -> dict[str, Any]:
        """Return everything, by name."""
        return {
            "records": self.records,
            "log_bytes": self.log_bytes,
            "entries": self.entries,
            "index_entries": self.index_entries,
            "wrong": self.is_wrong,
            "findings": [
                {
                    "kind": name,
                    "what": what,
                    "wrong": wrong,
                    "count": self.kinds[name].count,
                    "places": self.kinds[name].places,
                }
                for name, (what, wrong) in KINDS.items()
                if name in self.kinds
            ],
        }


@dataclass(slots=True)
class _Row:
    """One index file, of which the entries before number AT have been compared."""

    entries: IndexEntries
    at: int = 1


class IndexPass:
    """Checks the index files in FILES while the log is read from LOG_BEGIN on."""

    def __init__(self, files: StoreView, tally: Tally, log_begin: int) -> None:
        self._files = files
        self._tally = tally
        self._overlay = OverlayDisk(files.disk)
        self._rows = list(self._sound_rows())
        self._skip(log_begin)

    def _sound_rows(self) -> Iterator[_Row]:
        for name in index_names(self._files):
            found = open_index(self._files, name)
            if found is None or not found.is_whole:
                self._tally.add("index_damaged", [f"{name.name}: {name.size:,} bytes"], 1)
            elif self._agrees(name, found):
                self._tally.index_entries += found.count - 1
                yield _Row(found)

    def _agrees(self, name: IndexName, found: IndexEntries) -> bool:
        """Does the file agree with itself? Looked at on an overlay: opening may not change it."""
        try:
            file = IndexFile(
                self._overlay, name.path, found.slot_count, found.entry_count, create=False
            )
            check_index_file(file, LogPlaces(0, np.empty(0, np.int64), lambda _: False))
        except (CorruptIndex, struct.error) as error:
            told = error.message if isinstance(error, CorruptIndex) else str(error)
            self._tally.add("index_damaged", [told.partition(" cannot be")[0]], 1)
            return False
        return True

    @property
    def has_files(self) -> bool:
        """Is there an index to compare with?"""
        return bool(self._rows)

    def _skip(self, offset: int) -> None:
        """Pass over entries of records before OFFSET."""
        for row in self._rows:
            row.at = row.entries.first_from(offset, row.at)

    def _take(self, end: int) -> tuple[record_run.Longs, record_run.Longs]:
        """Return log offsets and hashes of the entries up to log offset END that were not taken yet."""
        offsets, hashes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for row in self._rows:
            stop = row.entries.first_from(end, row.at)
            part = row.entries.entries[row.at : stop]
            offsets.append(part["log_offset"].astype(np.int64))
            hashes.append(part["key_hash"].astype(np.int64))
            row.at = stop
        return np.concatenate(offsets), np.concatenate(hashes)

    def see(
        self,
        array: record_run.Bytes,
        columns: record_run.RunColumns,
        ranges: PropertyRanges,
        end: int,
    ) -> None:
        """Compare the keys of the records COLUMNS with the entries up to log offset END."""
        if not self._rows:
            return
        offsets, hashes = self._take(end)
        keys = keys_of(array, columns, None, ranges)
        of_records = columns.log_offset[keys.rows]
        wanted = keys.hashes.astype(np.int64)
        rolled_back = (columns.sys_flag & SYS_TRANSACTION) == SYS_ROLLBACK
        if rolled_back.any():
            kept = ~rolled_back[keys.rows]
            of_records, wanted = of_records[kept], wanted[kept]
        if np.array_equal(offsets, of_records) and np.array_equal(hashes, wanted):
            return
        self._compare(offsets, hashes, of_records, wanted, columns.log_offset)

    def _compare(
        self,
        offsets: record_run.Longs,
        hashes: record_run.Longs,
        of_records: record_run.Longs,
        wanted: record_run.Longs,
        records: record_run.Longs,
    ) -> None:
        base = min((int(one.min()) for one in (offsets, of_records) if len(one)), default=0)
        found = (offsets - base) << _HASH_BITS | hashes
        keys = (of_records - base) << _HASH_BITS | wanted
        strange = ~np.isin(found, keys)
        no_record = strange & ~np.isin(offsets, records)
        self._add("index_without_record", no_record, offsets, hashes)
        self._add("index_without_key", strange & ~no_record, offsets, hashes)
        self._add("key_not_indexed", ~np.isin(keys, found), of_records, wanted)

    def _add(
        self,
        kind: str,
        chosen: NDArray[np.bool_],
        offsets: record_run.Longs,
        hashes: record_run.Longs,
    ) -> None:
        rows = np.flatnonzero(chosen)
        places = (
            f"log offset {int(offsets[row]):,}, key hash {int(hashes[row])}"
            for row in rows.tolist()
        )
        self._tally.add(kind, places, len(rows))

    def finish(self) -> None:
        """Count the index entries after the end of the log."""
        offsets, hashes = self._take(1 << 62)
        self._add("index_without_record", np.ones(len(offsets), np.bool_), offsets, hashes)


Rows = NDArray[np.intp]

_KINDS: Final = {
    agreement.NO_FILE: "entry_file_missing",
    agreement.BEHIND_END: "entry_beyond_end",
    agreement.NO_RECORD: "entry_without_record",
    agreement.OTHER_MESSAGE: "entry_of_another",
    agreement.WRONG_SIZE: "entry_size_wrong",
    agreement.WRONG_TAGS: "tags_code_wrong",
    agreement.REPEATED: "entry_repeated",
}


class CheckedQueue:
    """One queue: its entries, and how many of them a record matched."""

    def __init__(self, files: StoreView, folder: QueueFolder, log_begin: int) -> None:
        self.folder = folder
        self.entries = QueueView(files, folder, log_begin)
        self.bounds: QueueExtent = self.entries.bounds()
        self.matched = 0
        first = next(self.entries.read(self.bounds.first, self.bounds.end), None)
        #: Log offset of the first entry's record; records before it are older than the queue.
        self.log_begin = int(first[1]["log_offset"][0]) if first is not None else None

    @property
    def name(self) -> str:
        return f"{self.folder.topic}/{self.folder.queue_id}"


class QueuePass:
    """Checks the queues in FILES while the log WALK is read; TOPICS are those that the tables know."""

    def __init__(
        self, files: StoreView, walk: LogWalk, tally: Tally, topics: Mapping[str, object]
    ) -> None:
        self._walk = walk
        self._tally = tally
        self._topics = topics
        self._check = EntryCheck(files, walk)
        self._queues = {
            (folder.topic, folder.queue_id): CheckedQueue(files, folder, walk.begin)
            for folder in files.queues()
        }
        ends = [queue.bounds.log_end or 0 for queue in self._queues.values()]
        self._dispatched_end = max(ends, default=0)
        self._may_be_behind = files.disk.exists(files.path("abort"))

    def see(
        self,
        array: record_run.Bytes,
        columns: record_run.RunColumns,
        ranges: PropertyRanges,
    ) -> None:
        """Look for the entries of the records COLUMNS in ARRAY; log offsets are their actual places."""
        kinds = columns.sys_flag & SYS_TRANSACTION
        voided = np.flatnonzero(kinds == SYS_ROLLBACK)
        self._tally.add("voided", _places(columns.log_offset[voided]), len(voided))
        queued = np.flatnonzero(agreement.is_served(columns.sys_flag))
        codes = tags_codes(array, ranges)
        for topic, queue_id, rows in by_queue(array, columns, queued):
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                self._without_queue(topic, queue_id, columns, rows)
            elif queue.folder.is_batch:
                self._see_batches(queue, array, columns, rows)
            else:
                if topic == SCHEDULE_TOPIC:
                    found = agreement.FoundRecords(array, columns.take(rows))
                    codes[rows] = self._check.tags_codes(topic, found)
                self._see_plain(queue, columns, rows, codes[rows])

    def _see_plain(
        self,
        queue: CheckedQueue,
        columns: record_run.RunColumns,
        rows: Rows,
        codes: record_run.Longs,
    ) -> None:
        numbers = columns.queue_offset[rows]
        entries, there = queue.entries.gather(numbers)
        log_offsets = columns.log_offset[rows]
        placed = there & (entries["log_offset"] == log_offsets)
        matched = there & agreement.same_place(entries, log_offsets, columns.sizes[rows])
        matched &= agreement.same_tags(entries["tags_code"], codes)
        # An entry is matched by the record that it points to, once; what is not counted is looked at later.
        inside = (numbers >= queue.bounds.first) & (numbers < queue.bounds.end)
        queue.matched += int(np.count_nonzero(matched & inside))
        if not placed.all():
            self._without_entry(queue, columns, rows[~placed])

    def _see_batches(
        self,
        queue: CheckedQueue,
        array: record_run.Bytes,
        columns: record_run.RunColumns,
        rows: Rows,
    ) -> None:
        part = columns.take(rows)
        _, sizes = PropertyRanges(array, part).find("INNER_BASE")
        rows = rows[sizes > 0]
        known = queue.entries.log_offsets()
        missing = rows[~np.isin(columns.log_offset[rows], known)]
        self._without_entry(queue, columns, missing)

    def _without_queue(
        self, topic: str, queue_id: int, columns: record_run.RunColumns, rows: Rows
    ) -> None:
        offsets = columns.log_offset[rows]
        if self._note_undispatched(offsets, f"{topic}/{queue_id}"):
            return
        kind = "record_without_entry" if topic in self._topics else "topic_gone"
        self._tally.add(kind, _places(offsets, f"{topic}/{queue_id}"), len(rows))

    def _without_entry(
        self, queue: CheckedQueue, columns: record_run.RunColumns, rows: Rows
    ) -> None:
        """Count records whose place in QUEUE is empty, or another's."""
        offsets, numbers = columns.log_offset[rows], columns.queue_offset[rows]
        new = self._undispatched(offsets)
        begin = queue.log_begin
        old = np.zeros(len(rows), np.bool_)
        if begin is not None:  # Numbers that a later message took: the topic was made again.
            old = (offsets < begin) & (numbers >= queue.bounds.first)
        lost = ~new & ~old
        for kind, chosen in (
            ("not_dispatched", new),
            ("topic_gone", old),
            ("record_without_entry", lost),
        ):
            places = _places(offsets[chosen], queue.name)
            self._tally.add(kind, places, int(np.count_nonzero(chosen)))

    def _undispatched(self, offsets: record_run.Longs) -> NDArray[np.bool_]:
        """Which records may not have been dispatched yet: a broker has the store open, or was killed."""
        if not self._may_be_behind or self._dispatched_end <= self._walk.begin:
            return np.zeros(len(offsets), np.bool_)
        behind: NDArray[np.bool_] = offsets >= self._dispatched_end
        return behind

    def _note_undispatched(self, offsets: record_run.Longs, name: str) -> bool:
        new = self._undispatched(offsets)
        if not new.all():
            return False
        self._tally.add("not_dispatched", _places(offsets, name), len(offsets))
        return True

    def finish(self) -> None:
        """Look at the entries of the queues in which not every one was matched."""
        for queue in self._queues.values():
            bounds = queue.bounds
            self._tally.entries += bounds.end - bounds.first
            if queue.folder.is_batch or queue.matched != bounds.end - bounds.first:
                self._look_at(queue)

    def _look_at(self, queue: CheckedQueue) -> None:
        at = queue.bounds.first
        for number, entries in queue.entries.read(at, queue.bounds.end):
            self._hole(queue, at, number)
            at = number + len(entries)
            codes = self._check.check(queue.folder, number, entries)
            for code in np.unique(codes).tolist():
                if code in (0, agreement.GONE, agreement.PRE_BLANK):
                    continue
                rows = np.flatnonzero(codes == code)
                places = (
                    f"{queue.name} @{number + row}: log offset {int(entries['log_offset'][row]):,}"
                    for row in rows.tolist()
                )
                self._tally.add(_KINDS[code], places, len(rows))
        self._hole(queue, at, queue.bounds.end)

    def _hole(self, queue: CheckedQueue, begin: int, end: int) -> None:
        if begin < end:
            self._tally.add("queue_file_missing", [f"{queue.name} @{begin}–{end}"], 1)


def _places(offsets: record_run.Longs, name: str = "") -> Iterator[str]:
    for offset in offsets.tolist():
        yield f"log offset {offset:,}" + (f" of {name}" if name else "")


_GAP_KINDS: Final = {"missing": "log_file_missing", "damaged": "log_damaged"}


class Verification:
    """Verifies the store FILES; `tally` is what was found, complete once `run` has ended."""

    def __init__(self, files: StoreView) -> None:
        self.tally = Tally()
        self._walk = LogWalk(files, stretch_bytes=_BYTES_AT_ONCE)
        self._queues = QueuePass(files, self._walk, self.tally, Tables(files).topics().topics)
        self._index = IndexPass(files, self.tally, self._walk.begin)

    @property
    def total_bytes(self) -> int:
        """The log from begin to end."""
        return self._walk.end - self._walk.begin

    def run(self) -> Iterator[int]:
        """Look at everything; yield how many bytes of the log are done."""
        for part in self._walk.walk(self._walk.begin):
            if isinstance(part, Gap):
                self._see_gap(part)
                yield part.end - self._walk.begin
                continue
            for at in range(0, len(part.columns), _ROWS_MAX):
                rows = part.columns.take(slice(at, at + _ROWS_MAX))
                self._see(LogStretch(part.file, part.view, rows))
            yield int(part.offsets[-1]) - self._walk.begin
        self._queues.finish()
        self._index.finish()
        if self._walk.has_stale_tail:
            self.tally.add("stale_tail", [f"log offset {self._walk.end:,}"], 1)
        yield self.total_bytes

    def _see_gap(self, gap: Gap) -> None:
        if gap.kind in _GAP_KINDS:
            place = f"log offset {gap.start:,}–{gap.end:,}: {gap.why}"
            self.tally.add(_GAP_KINDS[gap.kind], [place], 1)

    def _see(self, part: LogStretch) -> None:
        columns = part.columns
        self.tally.records += len(columns)
        self.tally.log_bytes += int(columns.sizes.sum())
        wrong = np.flatnonzero(record_run.crc_mismatches(part.view, columns))
        self.tally.add("crc_wrong", _told(columns, part.file.start, wrong), len(wrong))
        displaced = part.displaced
        if displaced.any():
            rows = np.flatnonzero(displaced)
            self.tally.add("displaced", _told(columns, part.file.start, rows), len(rows))
            columns = columns.take(~displaced)
        array = record_run.as_bytes(part.view)
        ranges = PropertyRanges(array, columns)
        self._queues.see(array, columns, ranges)
        end = part.file.start + int(part.columns.starts[-1]) + int(part.columns.sizes[-1])
        self._index.see(array, columns, ranges, end)


def _told(columns: record_run.RunColumns, start: int, rows: NDArray[np.intp]) -> Iterator[str]:
    for row in rows.tolist():
        place = f"log offset {start + int(columns.starts[row]):,}"
        yield f"{place}, queue {int(columns.queue_id[row])} @{int(columns.queue_offset[row])}"
