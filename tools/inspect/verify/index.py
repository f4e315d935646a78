"""Log against index: has every entry its record, and the record that key?

Index entries stand in the order of the log. So what a stretch of records should have and what the files have for its
range are two short arrays; where they are equal, all is well. Every file is also held against itself: header, slots,
links (store/index_check.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....proto.errors import CorruptIndex
from ....proto.property_ranges import PropertyRanges
from ....proto.record import SYS_ROLLBACK, SYS_TRANSACTION
from ....proto.record_run import Bytes, Longs, RunColumns
from ....store.index_check import LogPlaces, check_index_file
from ....store.index_file import IndexFile
from ....store.message_keys import keys_of
from ....store.overlay_disk import OverlayDisk
from ....store.view import StoreView
from ..index_files import IndexEntries, IndexName, index_names, open_index
from .tally import Tally

#: Bits of a key hash; a stretch of the log is far shorter than what is left of 64.
_HASH_BITS: Final = 31


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
                self._tally.add("indexDamaged", [f"{name.name}: {name.size:,} bytes"], 1)
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
            self._tally.add("indexDamaged", [told.partition(" cannot be")[0]], 1)
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

    def _take(self, end: int) -> tuple[Longs, Longs]:
        """Return log offsets and hashes of the entries up to log offset END that were not taken yet."""
        offsets, hashes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for row in self._rows:
            stop = row.entries.first_from(end, row.at)
            part = row.entries.entries[row.at : stop]
            offsets.append(part["log_offset"].astype(np.int64))
            hashes.append(part["key_hash"].astype(np.int64))
            row.at = stop
        return np.concatenate(offsets), np.concatenate(hashes)

    # --- record by record ----------------------------------------------------------------------------------------

    def see(self, array: Bytes, columns: RunColumns, ranges: PropertyRanges, end: int) -> None:
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
        self, offsets: Longs, hashes: Longs, of_records: Longs, wanted: Longs, records: Longs
    ) -> None:
        base = min((int(one.min()) for one in (offsets, of_records) if len(one)), default=0)
        found = (offsets - base) << _HASH_BITS | hashes
        keys = (of_records - base) << _HASH_BITS | wanted
        strange = ~np.isin(found, keys)
        no_record = strange & ~np.isin(offsets, records)
        self._add("indexWithoutRecord", no_record, offsets, hashes)
        self._add("indexWithoutKey", strange & ~no_record, offsets, hashes)
        self._add("keyNotIndexed", ~np.isin(keys, found), of_records, wanted)

    def _add(self, kind: str, chosen: NDArray[np.bool_], offsets: Longs, hashes: Longs) -> None:
        rows = np.flatnonzero(chosen)
        places = (
            f"log offset {int(offsets[row]):,}, key hash {int(hashes[row])}"
            for row in rows.tolist()
        )
        self._tally.add(kind, places, len(rows))

    def finish(self) -> None:
        """Count what the files have behind the log's end."""
        offsets, hashes = self._take(1 << 62)
        self._add("indexWithoutRecord", np.ones(len(offsets), np.bool_), offsets, hashes)
