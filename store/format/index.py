"""An index file: from the hash of a key to the log offsets of the records with this key.

    offset            size  field (big-endian, signed)
    0                 8     begin time: store time of the first key's record, ms
    8                 8     end time: of the last
    16                8     begin log offset
    24                8     end log offset
    32                4     slots in use
    36                4     number of the next entry; the first is 1 (a value ≤ 0 means 1)
    40                4·S   slots: number of the newest entry of the chain, 0 = none
    40 + 4·S          20·E  entries: i32 key hash, i64 log offset, i32 seconds since the begin time, i32 previous entry

Entry 0 is never used, so a file of E entries has space for E − 1 keys. A key is `topic#key` (`topic#T#tag` for tags).
It has the Java hash, made non-negative; the slot is the hash modulo S. Chains run from the newest entry to the oldest.
The key itself is not stored: keys with the same hash cannot be distinguished here. Source: store-format.md §4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from ...proto.java_hash import java_hash
from ...proto.record import Buffer
from .rows import RowFormat, Rows

HEADER: Final = RowFormat(
    begin_ms="q",
    end_ms="q",
    begin_log_offset="q",
    end_log_offset="q",
    slots_used="i",
    next_entry="i",
)
SLOT: Final = RowFormat(newest="i")
ENTRY: Final = RowFormat(key_hash="i", log_offset="q", seconds="i", previous="i")
HEADER_SIZE: Final = HEADER.size
TAG_TYPE: Final = "T"
_INT_MAX: Final = (1 << 31) - 1


@dataclass(slots=True)
class IndexHeader:
    """The first 40 bytes, in their order."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_log_offset: int = 0
    end_log_offset: int = 0
    slots_used: int = 0
    next_entry: int = 1

    @classmethod
    def parse(cls, data: Buffer) -> IndexHeader:
        """Return the header at the start of DATA, unchanged; missing bytes are zeros."""
        if len(data) < HEADER_SIZE:
            data = bytes(data).ljust(HEADER_SIZE, b"\0")
        return cls(*HEADER.read(data))

    @classmethod
    def to_fill(cls, data: Buffer) -> IndexHeader:
        """Return the header with which to continue a file that begins with DATA: its next entry is 1 or more."""
        header = cls.parse(data)
        header.next_entry = max(1, header.next_entry)
        return header

    def continue_from(self, end_log_offset: int, end_ms: int) -> None:
        """Begin where the previous file ended, 0 if there is none."""
        if end_log_offset > 0:
            self.begin_log_offset = self.end_log_offset = end_log_offset
        if end_ms > 0:
            self.begin_ms = self.end_ms = end_ms

    def pack(self) -> bytes:
        """Return the 40 bytes."""
        return HEADER.pack(
            self.begin_ms,
            self.end_ms,
            self.begin_log_offset,
            self.end_log_offset,
            self.slots_used,
            self.next_entry,
        )

    def covers(self, begin_ms: int, end_ms: int) -> bool:
        """Can the file have keys of records stored between the two times, by RocketMQ's rule?"""
        first, last = self.begin_ms, self.end_ms
        around = begin_ms < first and end_ms > last
        return around or first <= begin_ms <= last or first <= end_ms <= last


class IndexShape(NamedTuple):
    """The positions in a file of SLOTS hash slots and ENTRIES entries."""

    slots: int
    entries: int

    @property
    def entries_at(self) -> int:
        """The position of entry 0."""
        return HEADER_SIZE + self.slots * SLOT.size

    @property
    def file_size(self) -> int:
        return self.entries_at + self.entries * ENTRY.size

    def slot_at(self, key_hash: int) -> int:
        """Return the position of the slot of KEY_HASH."""
        return HEADER_SIZE + key_hash % self.slots * SLOT.size

    def entry_at(self, number: int) -> int:
        """Return the position of entry NUMBER."""
        return self.entries_at + number * ENTRY.size

    def slots_in(self, data: Buffer) -> Rows:
        """Return the newest entry of each chain, 0 for none, up to the end of DATA, a file; no copy."""
        room = (len(data) - HEADER_SIZE) // SLOT.size
        return SLOT.columns(data, min(self.slots, room), at=HEADER_SIZE)["newest"]

    def entries_in(self, data: Buffer) -> Rows:
        """Return the entries, from entry 0 on, up to the end of DATA, a file; no copy."""
        room = max(0, (len(data) - self.entries_at) // ENTRY.size)
        return ENTRY.columns(data, min(self.entries, room), at=min(self.entries_at, len(data)))


def index_file_size(slots: int, entries: int) -> int:
    """Return the length of an index file of SLOTS hash slots and ENTRIES entries."""
    return IndexShape(slots, entries).file_size


def index_key(topic: str, key: str, kind: str = "") -> str:
    """Return the text that is hashed for KEY of TOPIC; KIND "T": KEY is a tag."""
    return f"{topic}#{TAG_TYPE}#{key}" if kind == TAG_TYPE else f"{topic}#{key}"


def key_hash(key: str) -> int:
    """Return the stored hash of KEY (from `index_key`): the absolute Java hash, 0 for the smallest integer."""
    return abs(java_hash(key)) & _INT_MAX


def wrapped(value: int) -> int:
    """Return VALUE in the 32-bit arithmetic of Java, with which RocketMQ computes positions in a file."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)
