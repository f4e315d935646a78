"""Log against queues: has every record its entry, and every entry its record?

The log is read once, in order. Each record's place in its queue is looked at: an entry that agrees in log offset, size
and tags code *matches*. No two records match one entry, so a queue of as many matches as it has entries is sound, and
only the others are looked at entry by entry. Memory: some numbers a queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....proto.property_ranges import PropertyRanges, tags_codes
from ....proto.record import SYS_PREPARED, SYS_ROLLBACK, SYS_TRANSACTION
from ....proto.record_run import Bytes, Longs, RunColumns
from ....proto.topics import SCHEDULE_TOPIC
from ....store.dispatch import by_queue
from ....store.format.queue_entries import ADDRESS_MAX
from ....store.view import QueueFolder, StoreView
from ..entry_check import (
    BEHIND_END,
    GONE,
    NO_FILE,
    NO_RECORD,
    OTHER_MESSAGE,
    PRE_BLANK,
    REPEATED,
    WRONG_SIZE,
    WRONG_TAGS,
    EntryCheck,
    Found,
)
from ..log_walk import LogWalk
from ..queue_entries import Bounds, QueueEntries
from .tally import Tally

Rows = NDArray[np.intp]

_KINDS: Final = {
    NO_FILE: "entryFileMissing",
    BEHIND_END: "entryBehindEnd",
    NO_RECORD: "entryWithoutRecord",
    OTHER_MESSAGE: "entryOfAnother",
    WRONG_SIZE: "entrySizeWrong",
    WRONG_TAGS: "tagsCodeWrong",
    REPEATED: "entryRepeated",
}


class CheckedQueue:
    """One queue: its entries, and how many of them a record matched."""

    def __init__(self, files: StoreView, folder: QueueFolder, log_begin: int) -> None:
        self.folder = folder
        self.entries = QueueEntries(files, folder, log_begin)
        self.bounds: Bounds = self.entries.bounds()
        self.matched = 0
        first = next(self.entries.read(self.bounds.first, self.bounds.end), None)
        #: Where the record of the first entry is; what stands before it is older than the queue.
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

    # --- record by record ----------------------------------------------------------------------------------------

    def see(self, array: Bytes, columns: RunColumns, ranges: PropertyRanges) -> None:
        """Look for the entries of the records COLUMNS in ARRAY; log offsets are where they stand."""
        kinds = columns.sys_flag & SYS_TRANSACTION
        voided = np.flatnonzero(kinds == SYS_ROLLBACK)
        self._tally.add("voided", _places(columns.log_offset[voided]), len(voided))
        queued = np.flatnonzero((columns.sys_flag & SYS_PREPARED) == 0)
        codes = tags_codes(array, ranges)
        for topic, queue_id, rows in by_queue(array, columns, queued):
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                self._without_queue(topic, queue_id, columns, rows)
            elif queue.folder.is_batch:
                self._see_batches(queue, array, columns, rows)
            else:
                if topic == SCHEDULE_TOPIC:
                    found = Found(array, columns.take(rows))
                    codes[rows] = self._check.tags_codes(topic, found)
                self._see_plain(queue, columns, rows, codes[rows])

    def _see_plain(
        self, queue: CheckedQueue, columns: RunColumns, rows: Rows, codes: Longs
    ) -> None:
        numbers = columns.queue_offset[rows]
        entries, there = queue.entries.gather(numbers)
        placed = there & (entries["log_offset"] == columns.log_offset[rows])
        stored = entries["tags_code"]
        same_tags = (stored == codes) | (stored <= ADDRESS_MAX)
        matched = placed & (entries["size"] == columns.sizes[rows]) & same_tags
        # An entry is matched by the record that it points to, once; what is not counted is looked at later.
        inside = (numbers >= queue.bounds.first) & (numbers < queue.bounds.end)
        queue.matched += int(np.count_nonzero(matched & inside))
        if not placed.all():
            self._without_entry(queue, columns, rows[~placed])

    def _see_batches(
        self, queue: CheckedQueue, array: Bytes, columns: RunColumns, rows: Rows
    ) -> None:
        part = columns.take(rows)
        _, sizes = PropertyRanges(array, part).find("INNER_BASE")
        rows = rows[sizes > 0]
        known = queue.entries.log_offsets()
        missing = rows[~np.isin(columns.log_offset[rows], known)]
        self._without_entry(queue, columns, missing)

    def _without_queue(self, topic: str, queue_id: int, columns: RunColumns, rows: Rows) -> None:
        offsets = columns.log_offset[rows]
        if self._note_undispatched(offsets, f"{topic}/{queue_id}"):
            return
        kind = "recordWithoutEntry" if topic in self._topics else "topicGone"
        self._tally.add(kind, _places(offsets, f"{topic}/{queue_id}"), len(rows))

    def _without_entry(self, queue: CheckedQueue, columns: RunColumns, rows: Rows) -> None:
        """Count records whose place in QUEUE is empty, or another's."""
        offsets, numbers = columns.log_offset[rows], columns.queue_offset[rows]
        new = self._undispatched(offsets)
        begin = queue.log_begin
        old = np.zeros(len(rows), np.bool_)
        if begin is not None:  # Numbers that a later message took: the topic was made again.
            old = (offsets < begin) & (numbers >= queue.bounds.first)
        lost = ~new & ~old
        for kind, chosen in (
            ("notDispatched", new),
            ("topicGone", old),
            ("recordWithoutEntry", lost),
        ):
            places = _places(offsets[chosen], queue.name)
            self._tally.add(kind, places, int(np.count_nonzero(chosen)))

    def _undispatched(self, offsets: Longs) -> NDArray[np.bool_]:
        """Which records may not have been dispatched yet: a broker has the store open, or was killed."""
        if not self._may_be_behind or self._dispatched_end <= self._walk.begin:
            return np.zeros(len(offsets), np.bool_)
        behind: NDArray[np.bool_] = offsets >= self._dispatched_end
        return behind

    def _note_undispatched(self, offsets: Longs, name: str) -> bool:
        new = self._undispatched(offsets)
        if not new.all():
            return False
        self._tally.add("notDispatched", _places(offsets, name), len(offsets))
        return True

    # --- entry by entry ------------------------------------------------------------------------------------------

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
                if code in (0, GONE, PRE_BLANK):
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
            self._tally.add("queueFileMissing", [f"{queue.name} @{begin}–{end}"], 1)


def _places(offsets: Longs, name: str = "") -> Iterator[str]:
    for offset in offsets.tolist():
        yield f"log offset {offset:,}" + (f" of {name}" if name else "")
