"""Does a queue's entry fit the record that it points to? Whole columns of entries at a time.

The verdicts, worst first, are those of `ENTRY_FAULTS`. An entry whose record is gone with its file, or that fills the
place in front of a queue's beginning, is fine.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record import SYS_PREPARED
from ...proto.record_run import (
    Bytes,
    Longs,
    PropertyRanges,
    RunColumns,
    as_bytes,
    parse_run,
    tags_codes,
    topic_is,
)
from ...proto.topics import SCHEDULE_TOPIC
from ...store.config import parse_delay_levels
from ...store.format.queue_entries import ADDRESS_MAX, PRE_BLANK_SIZE
from ...store.format.rows import Rows
from ...store.log_view import LogWalk
from ...store.view import QueueFolder, StoreView

Codes = NDArray[np.int8]

FINE, GONE, PRE_BLANK, REPEATED = 0, 1, 2, 3
NO_FILE, BEHIND_END, NO_RECORD, OTHER_MESSAGE, WRONG_SIZE, WRONG_TAGS = 10, 11, 12, 13, 14, 15

ENTRY_FAULTS: Final = {
    NO_FILE: "its record's file is missing",
    BEHIND_END: "points behind the log's end",
    NO_RECORD: "points to no record",
    OTHER_MESSAGE: "points to another message's record",
    WRONG_SIZE: "says another size than its record",
    WRONG_TAGS: "has a wrong tags code",
}
ENTRY_NOTES: Final = {
    GONE: "its record is gone with its file",
    PRE_BLANK: "a place in front of the queue's beginning",
    REPEATED: "repeats the entry behind it: its own record is lost",
}
_LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
_INNER_BASE: Final = "INNER_BASE"


class EntryCheck:
    """Checks entries of the queues in FILES against the log WALK."""

    def __init__(self, files: StoreView, walk: LogWalk) -> None:
        self._files = files
        self._walk = walk
        self._delays_ms = np.array((0, *parse_delay_levels(files.settings.delay_levels)), np.int64)

    def check(self, folder: QueueFolder, first: int, entries: Rows) -> Codes:
        """Return a verdict for each of ENTRIES of the queue in FOLDER, which are numbered from FIRST on."""
        offsets = entries["log_offset"].astype(np.int64)
        codes = np.zeros(len(entries), np.int8)
        codes[offsets < self._walk.begin] = GONE
        codes[offsets >= self._walk.records_end] = BEHIND_END
        codes[entries["size"] == PRE_BLANK_SIZE] = PRE_BLANK
        open_ = codes == FINE
        codes[open_] = NO_FILE
        for file in self._walk.used:
            rows = np.flatnonzero(open_ & (offsets >= file.start) & (offsets < file.end))
            if len(rows):
                view = self._files.view(file)
                columns = parse_run(view, offsets[rows] - file.start)
                sound = columns.well_formed & (columns.log_offset == offsets[rows])
                codes[rows] = np.where(sound, FINE, NO_RECORD)
                rows = rows[sound]
                found = FoundRecords(as_bytes(view), columns.take(sound))
                codes[rows] = self._compare(folder, first + rows, entries[rows], found)
        self._find_repeats(offsets, codes)
        return codes

    def _compare(
        self, folder: QueueFolder, numbers: Longs, entries: Rows, found: FoundRecords
    ) -> Codes:
        """Return the verdicts for entries whose sound records are FOUND."""
        codes = np.zeros(len(entries), np.int8)
        columns = found.columns
        if not len(columns):
            return codes
        codes[entries["tags_code"] != self.tags_codes(folder.topic, found)] = WRONG_TAGS
        # Where the extension of an entry is gone, readers ask the record.
        codes[entries["tags_code"] <= ADDRESS_MAX] = FINE
        codes[entries["size"] != columns.sizes] = WRONG_SIZE
        if not folder.topic.startswith(_LIGHT_QUEUE_PREFIX):
            same = (columns.queue_id == folder.queue_id) & topic_is(
                found.data, columns, folder.topic
            )
            same &= (columns.sys_flag & SYS_PREPARED) == 0
            if folder.is_batch:
                bases = [int(text) if text else -1 for text in found.ranges.texts(_INNER_BASE)]
                same &= np.array(bases, np.int64) == entries["base"]
            else:
                same &= columns.queue_offset == numbers
            codes[~same] = OTHER_MESSAGE
        return codes

    def tags_codes(self, topic: str, found: FoundRecords) -> Longs:
        """Return the tags codes that entries of the records FOUND, all of TOPIC, have."""
        codes = tags_codes(found.data, found.ranges)
        if topic == SCHEDULE_TOPIC:
            texts = found.ranges.texts("DELAY")
            levels = np.array([_level(text) for text in texts], np.int64)
            delays = self._delays_ms[np.minimum(levels, len(self._delays_ms) - 1)]
            codes = np.where(levels > 0, found.columns.store_ms + delays, codes)
        return codes

    def _find_repeats(self, offsets: Longs, codes: Codes) -> None:
        """Mark entries that repeat the one behind them: recovery fills gaps so."""
        for row in np.flatnonzero(codes == OTHER_MESSAGE)[::-1].tolist():
            if row + 1 < len(offsets) and offsets[row] == offsets[row + 1]:
                codes[row] = REPEATED if codes[row + 1] in (FINE, REPEATED) else codes[row]


class FoundRecords:
    """Sound records in DATA."""

    def __init__(self, data: Bytes, columns: RunColumns) -> None:
        self.data = data
        self.columns = columns
        self._ranges: PropertyRanges | None = None

    @property
    def ranges(self) -> PropertyRanges:
        """Where the values of their properties stand."""
        if self._ranges is None:
            self._ranges = PropertyRanges(self.data, self.columns)
        return self._ranges


def _level(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


def fault_of(code: int) -> str | None:
    """Return what the verdict CODE says; None for a fine entry."""
    return ENTRY_FAULTS.get(code) or ENTRY_NOTES.get(code)
