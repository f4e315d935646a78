"""Batches that the C core has read: positions, keys and tags codes of all records, without Python code per record.

`scan` returns None for each batch that is not valid, not standard, or too large in some way, and if the core is not
there. Then run.py reads it, and says what is wrong. Standard records are V1 between IPv4 hosts, without a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from . import speedups
from .java_hash import java_hash
from .properties import (
    DELAY,
    LITE_TOPIC,
    MULTI_DISPATCH,
    PRIORITY,
    SHARDING_KEY,
    TRANSACTION_PREPARED,
)
from .record import (
    MAGIC_V1,
    SYS_BORN_V6,
    SYS_INNER_BATCH,
    SYS_NEEDS_UNWRAP,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    topic_field,
)
from .topics import MESSAGE_SIZE_MAX, RECORD_SIZE_MAX

if TYPE_CHECKING:
    from .record import Buffer
    from .record_run import Longs

#: Records with one of these bits are not standard.
UNUSUAL: Final = SYS_TRANSACTION | SYS_BORN_V6 | SYS_STORE_V6 | SYS_NEEDS_UNWRAP | SYS_INNER_BATCH
#: The core enters this many keys in about a millisecond.
_KEYS_MAX: Final = 1 << 15
_TYPES: Final = (
    DELAY,
    TRANSACTION_PREPARED,
    LITE_TOPIC,
    PRIORITY,
    SHARDING_KEY,
    MULTI_DISPATCH,
)
#: Parts of the names of properties that decide how a message is stored.
_HINTS: Final = (b"TIMER_DEL", *(name.encode() for name in _TYPES))
_CELL: Final = 8


class ScannedRecords:
    """The records of a batch, all valid and standard. Keys and codes are those of the topic that `scan` was given.

    starts, sizes: of the records;  size_range: the smallest and the largest size;  key_count: the number of keys in the
    index.
    """

    __slots__ = (
        "_codes",
        "_core",
        "_first_string",
        "_hashes",
        "_rows",
        "_size_data",
        "_special",
        "_start_data",
        "key_count",
        "size_range",
        "sizes",
        "starts",
    )

    def __init__(self, core: speedups.Core, found: speedups.Scan) -> None:
        starts, sizes, least, most, hashes, rows, codes, special, string_at, string_size = found
        self._core = core
        self._start_data = starts
        self._size_data = sizes
        self._hashes = hashes
        self._rows = rows
        self._codes = codes
        self._special = special
        self.starts: Longs = np.frombuffer(starts, np.int64)
        self.sizes: Longs = np.frombuffer(sizes, np.int64)
        self.size_range = least, most
        self._first_string = string_at, string_size
        self.key_count = len(hashes) // _CELL

    def first_string(self, records: Buffer) -> bytes:
        """Return the property string of the first of RECORDS."""
        start, size = self._first_string
        return bytes(records[start : start + size])

    def may_have(self, hints: Sequence[bytes]) -> bool:
        """May a record have a property whose name contains one of HINTS? False is certain."""
        return self._special or not _are_known(tuple(hints))

    def keys(self) -> tuple[Longs, Longs]:
        """Return the hash of each key, and the row of its record, in the order of the index."""
        return np.frombuffer(self._hashes, np.int64), np.frombuffer(self._rows, np.int64)

    def tags_codes(self) -> Longs:
        """Return the tags code of each record."""
        if self._codes is None:
            return np.zeros(len(self.starts), np.int64)
        return np.frombuffer(self._codes, np.int64)

    def last_keyed(self) -> int:
        """Return the start of the last record that has a key; there must be one."""
        return int(self.starts[self.keys()[1][-1]])

    def stamp(self, view: memoryview, first: int, log_offset: int, stamped: bytes) -> None:
        """Set the fields of the store in VIEW, a copy of the batch."""
        self._core.stamp(view, self._start_data, first, log_offset, stamped)

    def queue_entries(self, log_offset: int) -> bytes:
        """Return the entries of the consume queue for the batch at LOG_OFFSET."""
        return self._core.queue_entries(self._start_data, self._size_data, self._codes, log_offset)

    def enter_keys(
        self, file: memoryview, slots: tuple[int, int], number: int, log_offset: int, seconds: int
    ) -> int:
        """Enter the keys of the batch at LOG_OFFSET into an index file, from entry NUMBER on.

        SLOTS: their position and number. Returns how many slots were empty.
        """
        keys = self._hashes, self._rows
        return self._core.index_entries(
            file, slots, number, keys, self._start_data, log_offset, seconds
        )


def scan(data: bytes, sizes: Sequence[int], topic: str, queue: int) -> ScannedRecords | None:
    """Return the records of SIZES in DATA, for TOPIC and QUEUE, if the core can read all of them."""
    core = speedups.core
    if core is None:
        return None
    magic, field, seeds = _of_topic(topic)
    if magic != MAGIC_V1:
        return None
    wanted = field, queue, UNUSUAL, MESSAGE_SIZE_MAX, RECORD_SIZE_MAX
    found = core.scan(data, sizes, wanted, seeds, _HINTS, _KEYS_MAX)
    return None if found is None else ScannedRecords(core, found)


@lru_cache(maxsize=1024)
def key_seeds(topic: str) -> tuple[int, int]:
    """Return the hashes with which those of the keys and of the tags of TOPIC begin."""
    return java_hash(f"{topic}#"), java_hash(f"{topic}#T#")


@lru_cache(maxsize=1024)
def _of_topic(topic: str) -> tuple[int, bytes, tuple[int, int]]:
    """Return magic and topic field of records of TOPIC, and the seeds of keys as unsigned numbers."""
    plain, tagged = key_seeds(topic)
    return *topic_field(topic), (plain & 0xFFFFFFFF, tagged & 0xFFFFFFFF)


@lru_cache(maxsize=64)
def _are_known(hints: tuple[bytes, ...]) -> bool:
    """Is each name that contains one of HINTS among those that the core looked for?"""
    return all(any(known in hint for known in _HINTS) for hint in hints)
