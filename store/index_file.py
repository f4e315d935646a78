"""One open index file: keys are entered and found. Its format: format/index.py.

`put` enters many keys and writes the same bytes as RocketMQ's put of one key at a time. Links inside the batch are
found by scattering the new numbers into the slots, gathering them again, and sorting only where two keys share a slot.

A damaged file is read as RocketMQ reads it: each slot and link is followed while it is in the file. index_check.py
finds such damage. Not thread-safe except for `sync`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import CorruptIndex
from ..proto.record_run import Longs
from ..proto.scanned import ScannedRecords
from .disk import Disk
from .format.index import ENTRY, HEADER, HEADER_SIZE, SLOT, IndexHeader, IndexShape, wrapped

Ints = NDArray[np.int32]

_INT_MAX: Final = (1 << 31) - 1
_RESERVE_STEP: Final = 1 << 20
#: A chain is followed this far one by one; older entries are found by scanning all entries.
_STEPS_MAX: Final = 20_000
_SCAN_ENTRIES: Final = 1 << 18


class IndexFile:
    """The file at PATH, of SLOTS hash slots and ENTRIES entries. `header` is decoded from its first bytes."""

    def __init__(self, disk: Disk, path: str, slots: int, entries: int, *, create: bool) -> None:
        self.path = path
        self.slot_count = slots
        self.entry_count = entries
        self._shape = IndexShape(slots, entries)
        self._entries_at = self._shape.entries_at
        self._disk = disk
        self.mapping = disk.open_map(path, size=self._shape.file_size, create=create)
        self.header = IndexHeader.to_fill(self.mapping.read(0, HEADER_SIZE))
        #: Was anything written since the last `take_dirty`?
        self.dirty = create
        self._reserved = 0
        #: The complete file, once it is written to.
        self._map: memoryview | None = None
        self._slots: NDArray[np.int32]
        self._entries: NDArray[np.void]

    @classmethod
    def create(
        cls, disk: Disk, path: str, slots: int, entries: int, *, end_log_offset: int, end_ms: int
    ) -> IndexFile:
        """Create the file. The header begins and ends where the previous file ended (0 if there is none)."""
        file = cls(disk, path, slots, entries, create=True)
        file.header.continue_from(end_log_offset, end_ms)
        file.mapping.write(0, file.header.pack())
        return file

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def room(self) -> int:
        """The number of keys that still fit."""
        return max(0, self.entry_count - self.header.next_entry)

    @property
    def is_full(self) -> bool:
        return self.header.next_entry >= self.entry_count

    def put(self, hashes: Ints, log_offsets: Longs, store_ms: Longs) -> None:
        """Enter one key or more, up to `room`: its key hash, its record's log offset and store time.

        Raises StoreFull, with nothing changed, if the disk is full.
        """
        header = self.header
        first = header.next_entry
        self._enter(hashes, log_offsets, self._seconds(store_ms), int(store_ms[-1]))
        if first <= 1:
            header.begin_log_offset = int(log_offsets[0])
            header.begin_ms = int(store_ms[0])
        self._write_header()

    def put_new(self, hashes: Ints, log_offsets: Longs, store_ms: int) -> None:
        """Enter keys of records that were stored at STORE_MS, as `put` does; not the first keys of a file.

        Raises StoreFull, with nothing changed, if the disk is full.
        """
        self._enter(hashes, log_offsets, self._seconds_since(store_ms), store_ms)
        self._write_header()

    def _enter(self, hashes: Ints, log_offsets: Longs, seconds: Longs | int, end_ms: int) -> None:
        """Enter keys, SECONDS after the file's begin, the last stored at END_MS; the header is not written."""
        count = len(hashes)
        assert 0 < count <= self.room, "more keys than fit into the file"
        header = self.header
        first = header.next_entry
        self._open_for_writing(first + count)
        numbers = np.arange(first, first + count, dtype=np.int32)
        previous = self._link(hashes % np.int32(self.slot_count), numbers)
        entries = self._entries[first : first + count]
        entries["key_hash"] = hashes
        entries["log_offset"] = log_offsets
        entries["seconds"] = seconds
        entries["previous"] = previous
        header.end_log_offset, header.end_ms = int(log_offsets[-1]), end_ms
        header.slots_used += count - int(np.count_nonzero(previous))
        header.next_entry = first + count

    def put_few(self, keys: Sequence[tuple[int, int]], store_ms: int) -> None:
        """Enter KEYS, key hash and log offset of each, stored at STORE_MS, as `put` does; not the first keys of a file.

        Raises StoreFull, with nothing changed, if the disk is full.
        """
        header = self.header
        number = header.next_entry
        assert 0 < len(keys) <= self.room, "more keys than fit into the file"
        self._open_for_writing(number + len(keys))
        assert self._map is not None
        seconds = self._seconds_since(store_ms)
        for key_hash, log_offset in keys:
            slot_at = HEADER_SIZE + key_hash % self.slot_count * SLOT.size
            (previous,) = SLOT.read(self._map, slot_at)
            if not 0 < previous <= number:
                previous = 0
                header.slots_used += 1
            SLOT.write(self._map, slot_at, number)
            entry_at = self._entries_at + number * ENTRY.size
            ENTRY.write(self._map, entry_at, key_hash, log_offset, seconds, previous)
            number += 1
        header.end_log_offset, header.end_ms = keys[-1][1], store_ms
        header.next_entry = number
        self._write_header()

    def put_scanned(self, scanned: ScannedRecords, log_offset: int, store_ms: int) -> None:
        """Enter the keys of SCANNED, a batch at LOG_OFFSET, as `put` does; not the first keys of a file.

        Raises StoreFull, with nothing changed, if the disk is full.
        """
        header = self.header
        number, count = header.next_entry, scanned.key_count
        assert 0 < count <= self.room, "more keys than fit into the file"
        self._open_for_writing(number + count)
        assert self._map is not None
        slots, seconds = (HEADER_SIZE, self.slot_count), self._seconds_since(store_ms)
        header.slots_used += scanned.enter_keys(self._map, slots, number, log_offset, seconds)
        header.end_log_offset, header.end_ms = log_offset + scanned.last_keyed(), store_ms
        header.next_entry = number + count
        self._write_header()

    def _open_for_writing(self, entries_end: int) -> None:
        """Map the file and allocate its slots, and entries up to ENTRIES_END and some more."""
        self._check_length()
        if self._map is None:
            self.mapping.reserve(0, self._entries_at)
            array = self.mapping.array
            self._map = array.data
            self._slots = array[HEADER_SIZE : self._entries_at].view(">i4")
            end = self._shape.file_size
            self._entries = array[self._entries_at : end].view(ENTRY.dtype)
            self._reserved = self._entries_at
        self.dirty = True
        wanted = self._entries_at + entries_end * ENTRY.size
        if wanted > self._reserved:
            end = min(max(wanted, self._reserved + _RESERVE_STEP), self.mapping.size)
            self.mapping.reserve(self._reserved, end - self._reserved)
            self._reserved = end

    def _write_header(self) -> None:
        assert self._map is not None
        header = self.header
        times = header.begin_ms, header.end_ms
        offsets = header.begin_log_offset, header.end_log_offset
        HEADER.write(self._map, 0, *times, *offsets, header.slots_used, header.next_entry)

    def _link(self, slots: Ints, numbers: Ints) -> Ints:
        """Make NUMBERS the newest entries of their SLOTS; return the previous entry of each, 0 = none."""
        table = self._slots
        previous: Ints = table[slots].astype(np.int32)
        previous *= (previous > 0) & (previous <= numbers)
        table[slots] = numbers  # For repeated slots, the last number stays.
        newest = table[slots].astype(np.int32)
        if not np.array_equal(newest, numbers):
            _link_within(newest, numbers, previous)
        return previous

    def _seconds(self, store_ms: Longs) -> Longs:
        """Return the time difference of each entry. Only the first key of a file uses the inherited time."""
        header = self.header
        begin = int(store_ms[0]) if header.next_entry <= 1 else header.begin_ms
        seconds = (
            np.maximum(store_ms - begin, 0) if begin > 0 else np.zeros_like(store_ms)
        ) // 1000
        if header.next_entry <= 1:
            inherited = header.begin_ms
            seconds[0] = max(0, int(store_ms[0]) - inherited) // 1000 if inherited > 0 else 0
        np.minimum(seconds, _INT_MAX, out=seconds)
        return seconds

    def _seconds_since(self, store_ms: int) -> int:
        """Return the time difference of a record stored at STORE_MS that is not the file's first."""
        begin = self.header.begin_ms
        return min(max(store_ms - begin, 0) // 1000, _INT_MAX) if begin > 0 else 0

    def truncate(self, end_log_offset: int) -> int:
        """Delete the newest entries that point to END_LOG_OFFSET or after it; return how many.

        RocketMQ does not do this: there the entries stay, find nothing, and block new records with lower offsets.
        """
        header = self.header
        first = self._first_at_or_behind(end_log_offset)
        gone = header.next_entry - first
        if gone <= 0:
            return 0
        self._open_for_writing(header.next_entry)
        entries = self._entries[first : header.next_entry]
        slots = entries["key_hash"].astype(np.int32)[::-1] % np.int32(self.slot_count)
        self._slots[slots] = entries["previous"][::-1]  # The oldest of a slot is assigned last.
        header.slots_used -= int(np.count_nonzero(entries["previous"] == 0))
        entries[:] = ENTRY.zeros(1)
        header.next_entry = first
        if first > 1:
            last = self._entries[first - 1]
            header.end_log_offset = int(last["log_offset"])
            header.end_ms = min(header.end_ms, header.begin_ms + int(last["seconds"]) * 1000 + 999)
        else:
            header.end_log_offset = min(header.begin_log_offset, end_log_offset)
            header.end_ms = header.begin_ms
        self._write_header()
        return gone

    def restore(self, then: IndexHeader) -> int:
        """Delete the entries added since the header was THEN; return how many keys, at least.

        Later entries may be incomplete, also in the header and the slots; earlier ones must be complete. Raises
        CorruptIndex, with nothing changed, if they are not. Cost: about 20 ns per entry, if there is any to delete.
        """
        used = then.next_entry
        if not 1 <= used <= self.entry_count:
            raise self._contradiction()
        gone = max(self.header.next_entry - used, 0)
        if self.header != then or (self.slots >= used).any():
            self._restore_slots(then)
            self.header = then
            self._write_header()
        self.dirty = True
        begin = self._entries_at + used * ENTRY.size
        self.mapping.zero(begin, self.mapping.size - begin)
        return gone

    def _restore_slots(self, then: IndexHeader) -> None:
        """Make each slot name its newest entry below the next number of THEN."""
        slots, used = self.slots, then.next_entry
        places = self.column("key_hash", 1, used) % self.slot_count
        newest = np.zeros(self.slot_count, np.int32)
        newest[places] = np.arange(
            1, used, dtype=np.int32
        )  # For repeated slots, the last number stays.
        changed = np.flatnonzero(slots != newest)
        if (slots[changed] < used).any() or np.count_nonzero(newest) != then.slots_used:
            raise self._contradiction()
        self._open_for_writing(used)
        self._slots[changed] = newest[changed]

    def _contradiction(self) -> CorruptIndex:
        return CorruptIndex(
            f"{self.path}: verified entries are missing: delete the file, and it is built again from the log",
            path=self.path,
            offset=0,
        )

    def _first_at_or_behind(self, log_offset: int) -> int:
        """Return the number of the first of the trailing entries that point to LOG_OFFSET or after it."""
        stop = min(self.header.next_entry, self.entry_count)
        while stop > 1:
            start = max(1, stop - _SCAN_ENTRIES)
            below = np.flatnonzero(self.column("log_offset", start, stop) < log_offset)
            if len(below):
                return start + int(below[-1]) + 1
            stop = start
        return 1

    def newest_keys(self, log_offset: int) -> list[int]:
        """Return the hashes of the newest entries, as long as they point to LOG_OFFSET."""
        stop = min(self.header.next_entry, self.entry_count)
        start = max(1, stop - _SCAN_ENTRIES)
        others = np.flatnonzero(self.column("log_offset", start, stop) != log_offset)
        first = start + int(others[-1]) + 1 if len(others) else start
        hashes: list[int] = self.column("key_hash", first, stop).tolist()
        return hashes

    def find(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Return up to LIMIT log offsets of records with KEY_HASH stored between the two times, newest first."""
        view = self._view()
        header = self.header
        next_entry = header.next_entry
        (number,) = SLOT.read(view, self._shape.slot_at(key_hash))
        found: list[int] = []
        if number <= 0 or number > next_entry or next_entry <= 1:
            return found
        for _ in range(_STEPS_MAX):
            at = wrapped(self._entries_at + number * ENTRY.size)
            if len(found) >= limit or not 0 <= at <= self.mapping.size - ENTRY.size:
                return found
            entry_hash, log_offset, seconds, previous = ENTRY.read(view, at)
            time_ms = header.begin_ms + seconds * 1000
            if seconds < 0:
                return found
            if entry_hash == key_hash and begin_ms <= time_ms <= end_ms:
                found.append(log_offset)
            if previous <= 0 or previous > next_entry or previous == number or time_ms < begin_ms:
                return found
            number = previous
        return found + self._scan(key_hash, begin_ms, end_ms, limit - len(found), number)

    def _scan(
        self, key_hash: int, begin_ms: int, end_ms: int, limit: int, newest: int
    ) -> list[int]:
        """Return the same as following the chain from entry NEWEST, faster for long chains."""
        found: list[int] = []
        stop = min(newest + 1, self.entry_count)
        while stop > 1 and len(found) < limit:
            start = max(1, stop - _SCAN_ENTRIES)
            hits = start + np.flatnonzero(self.column("key_hash", start, stop) == key_hash)[::-1]
            times = (
                self.header.begin_ms + self.column("seconds", 0, None)[hits].astype(np.int64) * 1000
            )
            chosen = hits[(times >= begin_ms) & (times <= end_ms)]
            found += self.column("log_offset", 0, None)[chosen].tolist()
            if len(times) and int(times[-1]) < begin_ms:
                break
            stop = start
        return found[:limit]

    def column(self, name: str, start: int, stop: int | None) -> NDArray[np.int64]:
        """Return a field of the entries [START, STOP), as a view."""
        column: NDArray[np.int64] = self._shape.entries_in(self._view())[name][start:stop]
        return column

    @property
    def slots(self) -> NDArray[np.int32]:
        """The newest entry of each chain, 0 for none, as a view."""
        return self._shape.slots_in(self._view())

    def _view(self) -> memoryview:
        self._check_length()
        return self.mapping.view

    def _check_length(self) -> None:
        """Raise DiskFailure if another process cut the file: access after its end would kill the process."""
        if self.mapping.is_cut():
            self.mapping.check()

    def sync(self) -> None:
        """Sync everything written until now. Thread-safe."""
        self.mapping.sync()

    def close(self) -> None:
        """Close the file. Nothing is synced."""
        if self._map is not None:
            self._map.release()
            self._map = None
            del self._slots, self._entries
        self.mapping.close()

    def delete(self) -> None:
        """Close the file and delete it."""
        self.close()
        self._disk.delete(self.path)


def _link_within(newest: Ints, numbers: Ints, previous: Ints) -> None:
    """Set PREVIOUS of each entry that follows another one of the same batch; entries of a slot share NEWEST."""
    group = newest - numbers[0]
    if len(group) <= 1 << 15:
        group = group.astype(np.int16)  # It is sorted in linear time.
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    follows = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    previous[order[follows]] = numbers[order[follows - 1]]
