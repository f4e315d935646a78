"""Compares the entries of queues with the records that they point to, and says what is wrong with each.

An entry whose record is gone with its file, or that fills the place before a queue's first entry, is fine.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...proto import property_ranges, record_run
from ...proto.topics import SCHEDULE_TOPIC
from ...store.config import parse_delay_levels
from ...store.format import agreement
from ...store.format.agreement import (
    BEHIND_END,
    FINE,
    GONE,
    NO_FILE,
    NO_RECORD,
    OTHER_MESSAGE,
    PRE_BLANK,
    REPEATED,
    WRONG_SIZE,
    WRONG_TAGS,
    FoundRecords,
    Verdicts,
)
from ...store.format.queues import PRE_BLANK_SIZE
from ...store.format.rows import Rows as EntryRows
from ...store.log_view import LogWalk
from ...store.view import QueueFolder, StoreView

ENTRY_FAULTS: Final = {
    NO_FILE: "its record's file is missing",
    BEHIND_END: "points past the end of the log",
    NO_RECORD: "points to no record",
    OTHER_MESSAGE: "points to another message's record",
    WRONG_SIZE: "says another size than its record",
    WRONG_TAGS: "has a wrong tags code",
}
ENTRY_NOTES: Final = {
    GONE: "its record is gone with its file",
    PRE_BLANK: "a place in front of the queue's beginning",
    REPEATED: "duplicates the next entry: its own record is lost",
}


class EntryCheck:
    """Checks entries of the queues in FILES against the log WALK."""

    def __init__(self, files: StoreView, walk: LogWalk) -> None:
        self._files = files
        self._walk = walk
        self._delays_ms = np.array((0, *parse_delay_levels(files.settings.delay_levels)), np.int64)

    def check(self, folder: QueueFolder, first: int, entries: EntryRows) -> Verdicts:
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
            if not len(rows):
                continue
            view = self._files.view(file)
            columns = record_run.parse_run(view, offsets[rows] - file.start)
            valid = columns.well_formed & (columns.log_offset == offsets[rows])
            codes[rows] = NO_RECORD
            rows = rows[valid]
            if len(rows):
                found = FoundRecords(record_run.as_bytes(view), columns.take(valid))
                tags_codes = self.tags_codes(folder.topic, found)
                codes[rows] = agreement.verdicts(
                    folder, first + rows, entries[rows], found, tags_codes
                )
        agreement.mark_repetitions(offsets, codes)
        return codes

    def tags_codes(self, topic: str, found: FoundRecords) -> record_run.Longs:
        """Return the tags codes that entries of the records FOUND, all of TOPIC, have."""
        codes = property_ranges.tags_codes(found.data, found.ranges)
        if topic == SCHEDULE_TOPIC:
            agreement.set_delivery_times(
                found.data, found.columns, found.ranges, slice(None), codes, self._delays_ms
            )
        return codes


def fault_of(code: int) -> str | None:
    """Return what the verdict CODE says; None for a fine entry."""
    return ENTRY_FAULTS.get(code) or ENTRY_NOTES.get(code)
