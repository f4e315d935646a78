"""The check of an index file: header, slots and entries are compared with each other, and with the log.

The entries determine every link and every slot. If the log's records are known, each entry must point to one of them.
A hash that was changed to another one of the same slot is not found. Cost: about 0.1 µs per entry, and memory for a few
numbers per entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import CorruptIndex
from ..proto.record_run import Longs
from .format.index import ENTRY, HEADER_SIZE, SLOT
from .index_file import IndexFile

_HASH_AT, _OFFSET_AT, _TIME_AT, _PREVIOUS_AT = 0, 4, 12, 16


@dataclass(frozen=True, slots=True)
class LogPlaces:
    """The start of the log, the log offsets of all its valid records, in order, and whether a file is missing."""

    begin: int
    records: Longs
    is_gone: Callable[[int], bool]


def check_index_file(file: IndexFile, log: LogPlaces | None = None) -> None:
    """Raise CorruptIndex, with fault and position, if FILE contradicts itself or LOG (None: not known)."""
    _Check(file).check(log)


class _Check:
    """The check of one file."""

    def __init__(self, file: IndexFile) -> None:
        self._file = file
        self._header = file.header

    def check(self, log: LogPlaces | None) -> None:
        self._check_header()
        self._check_ranges()
        if log is not None:
            self._check_links()
            self._check_records(log)

    def _check_header(self) -> None:
        header, file = self._header, self._file
        if not 1 <= header.next_entry <= file.entry_count:
            raise self._corrupt(
                36, f"next entry {header.next_entry:,}, the file has {file.entry_count:,}"
            )
        if not 0 <= header.slots_used <= min(file.slot_count, header.next_entry - 1):
            raise self._corrupt(
                32, f"{header.slots_used:,} slots in use, {header.next_entry - 1:,} keys"
            )
        if not 0 <= header.begin_log_offset <= header.end_log_offset:
            raise self._corrupt(
                16, f"log offsets from {header.begin_log_offset:,} to {header.end_log_offset:,}"
            )
        if header.begin_ms < 0 or header.end_ms < 0:
            raise self._corrupt(0, f"times from {header.begin_ms} to {header.end_ms}")

    def _check_ranges(self) -> None:
        """Check that all numbers are in their ranges."""
        header, slots = self._header, self._file.slots
        used = header.next_entry
        self._require((slots >= 0) & (slots < used), slots, "slot", HEADER_SIZE)
        in_use = int(np.count_nonzero(slots))
        if in_use != header.slots_used:
            raise self._corrupt(32, f"slots in use {header.slots_used:,}, found {in_use:,}")
        hashes = self._column("key_hash")
        self._require(hashes >= 0, hashes, "key hash", self._entry_field(_HASH_AT))
        links = self._column("previous")
        sound = (links >= 0) & (links < np.arange(1, used))
        self._require(sound, links, "previous entry", self._entry_field(_PREVIOUS_AT))
        offsets = self._column("log_offset")
        inside = (offsets >= header.begin_log_offset) & (offsets <= header.end_log_offset)
        self._require(inside, offsets, "log offset", self._entry_field(_OFFSET_AT))
        # By these recovery knows which records the file covers.
        for at, noted, entered in (
            (16, header.begin_log_offset, offsets[:1]),
            (24, header.end_log_offset, offsets[-1:]),
        ):
            if len(entered) and noted != entered[0]:
                raise self._corrupt(
                    at, f"log offset {noted:,}, that of the entry is {entered[0]:,}"
                )

    def _check_links(self) -> None:
        """Check that the entries of a slot are linked newest to oldest, and that the slot names the newest."""
        places = (self._column("key_hash") % self._file.slot_count).astype(np.int32)
        order = np.argsort(places, kind="stable")
        grouped = places[order]
        same = grouped[1:] == grouped[:-1]
        expected = np.zeros(len(places), np.int32)
        expected[order[1:][same]] = order[:-1][same] + 1
        links = self._column("previous")
        self._require(links == expected, links, "previous entry", self._entry_field(_PREVIOUS_AT))
        newest = np.zeros(self._file.slot_count, np.int32)
        ends = np.append(~same, True) if len(places) else np.zeros(0, np.bool_)
        newest[grouped[ends]] = order[ends] + 1
        slots = self._file.slots
        self._require(slots == newest, slots, "slot", HEADER_SIZE)
        seconds = self._column("seconds")
        self._require(seconds >= 0, seconds, "seconds", self._entry_field(_TIME_AT))

    def _check_records(self, log: LogPlaces) -> None:
        """Check that entries follow the log and point to records; those of deleted or cut parts are not checked."""
        offsets = self._column("log_offset").astype(np.int64)
        rising = np.append(True, offsets[1:] >= offsets[:-1])[: len(offsets)]
        self._require(rising, offsets, "log offset", self._entry_field(_OFFSET_AT))
        records = log.records
        if not len(records):
            return
        place = np.minimum(np.searchsorted(records, offsets), len(records) - 1)
        sound = (offsets < log.begin) | (offsets > records[-1]) | (records[place] == offsets)
        for row in np.flatnonzero(~sound).tolist():
            sound[row] = log.is_gone(int(offsets[row]))
        self._require(sound, offsets, "log offset", self._entry_field(_OFFSET_AT))

    def _column(self, name: str) -> NDArray[np.int64]:
        return self._file.column(name, 1, self._header.next_entry)

    def _entry_field(self, at: int) -> int:
        """Return the position in the file of the field at AT of the first entry."""
        slots_size = self._file.slot_count * SLOT.size
        return HEADER_SIZE + slots_size + ENTRY.size + at

    def _require(
        self,
        sound: NDArray[np.bool_],
        values: NDArray[np.int32] | Longs,
        what: str,
        at: int,
    ) -> None:
        if not sound.all():
            index = int(sound.argmin())
            step = SLOT.size if what == "slot" else ENTRY.size
            raise self._corrupt(at + index * step, f"{what} {values[index]}")

    def _corrupt(self, at: int, what: str) -> CorruptIndex:
        path = self._file.path
        return CorruptIndex(
            f"{path}: {what} at byte {at} is impossible: delete the file, and it is built again from the log,"
            " or open the store with the sizes that it was written with",
            path=path,
            offset=at,
        )
