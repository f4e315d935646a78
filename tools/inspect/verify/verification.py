"""The whole store held together: the log read once, its records against queues and index.

    for done_bytes in verification.run(): …     # tells how far it has come

Cost: some 2 µs a record with three keys, and what the CRC of the bodies takes. A live broker may append meanwhile: what
comes after the beginning is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....proto.property_ranges import PropertyRanges
from ....proto.record_run import RunColumns, as_bytes
from ....proto.run_check import crc_mismatches
from ....store.view import StoreView
from ..log_walk import Gap, LogWalk, Stretch
from ..tables import Tables
from .index import IndexPass
from .queues import QueuePass
from .tally import Tally

#: Bytes and records at a time. Each queue that a piece has records of costs some 100 µs in it: with thousands of queues
#: large pieces are five times quicker, with a few they cost a tenth, for they leave the processor's cache.
_BYTES_AT_ONCE: Final = 32 << 20
_ROWS_MAX: Final = 1 << 16
_GAP_KINDS: Final = {"missing": "logFileMissing", "damaged": "logDamaged"}


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
                self._see(Stretch(part.file, part.view, rows))
            yield int(part.offsets[-1]) - self._walk.begin
        self._queues.finish()
        self._index.finish()
        if self._walk.has_stale_tail:
            self.tally.add("staleTail", [f"log offset {self._walk.end:,}"], 1)
        yield self.total_bytes

    def _see_gap(self, gap: Gap) -> None:
        if gap.kind in _GAP_KINDS:
            place = f"log offset {gap.start:,}–{gap.end:,}: {gap.why}"
            self.tally.add(_GAP_KINDS[gap.kind], [place], 1)

    def _see(self, part: Stretch) -> None:
        columns = part.columns
        self.tally.records += len(columns)
        self.tally.log_bytes += int(columns.sizes.sum())
        wrong = np.flatnonzero(crc_mismatches(part.view, columns))
        self.tally.add("crcWrong", _told(columns, part.file.start, wrong), len(wrong))
        displaced = part.displaced
        if displaced.any():
            rows = np.flatnonzero(displaced)
            self.tally.add("displaced", _told(columns, part.file.start, rows), len(rows))
            columns = columns.take(~displaced)
        array = as_bytes(part.view)
        ranges = PropertyRanges(array, columns)
        self._queues.see(array, columns, ranges)
        end = part.file.start + int(part.columns.starts[-1]) + int(part.columns.sizes[-1])
        self._index.see(array, columns, ranges, end)


def _told(columns: RunColumns, start: int, rows: NDArray[np.intp]) -> Iterator[str]:
    for row in rows.tolist():
        place = f"log offset {start + int(columns.starts[row]):,}"
        yield f"{place}, queue {int(columns.queue_id[row])} @{int(columns.queue_offset[row])}"
