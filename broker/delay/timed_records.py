"""What the records of the timer topic say, found for all of a chunk at once.

A message's slot begins at TIMER_OUT_MS, and holds what is due later than that, up to one unit of precision. Exactly
when is in TIMER_DELIVER_MS; where that is missing or of another slot, at the slot's end, so that none is early.
A recall is a message with TIMER_DEL_UNIQKEY: the recalled one's UNIQ_KEY, or its real topic, "+" and the UNIQ_KEY.
Source: store-format.md §7.2. Pure.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...proto import properties as names
from ...proto.byte_ranges import Bytes, bytes_at, right_aligned
from ...proto.hash_ranges import hash_ranges
from ...proto.java_hash import java_hash
from ...proto.property_ranges import PropertyRanges
from ...proto.record import Buffer
from ...proto.record_run import Ints, Longs, RunColumns, as_bytes
from ...proto.topics import TIMER_TOPIC

Flags: TypeAlias = NDArray[np.bool_]

#: Longer ones are no instants, and might not fit 64 bits.
_DIGITS_MAX: Final = 18
_POWERS: Final = 10 ** np.arange(_DIGITS_MAX, dtype=np.int64)[::-1]
_TOPIC: Final = TIMER_TOPIC.encode()
_KEY_JOINT: Final = b"+"


class TimedRecords:
    """The records of DATA that COLUMNS describe."""

    def __init__(self, data: Buffer | Bytes, columns: RunColumns) -> None:
        self.columns = columns = readable(columns)
        self._array = as_bytes(data)
        self._ranges = PropertyRanges(data, columns)

    def __len__(self) -> int:
        return len(self.columns)

    def sound(self) -> Flags:
        """Tell which are whole records of the timer topic with an instant in TIMER_OUT_MS."""
        columns = self.columns
        sound: Flags = columns.well_formed & (columns.topic_size == len(_TOPIC))
        if sound.any():
            sound[sound] = bytes_at(self._array, columns.topic_start[sound], _TOPIC)
        sound &= self._numbers(names.TIMER_OUT_MS)[1]
        return sound

    def out_ms(self) -> Longs:
        """Return TIMER_OUT_MS of each, 0 for none."""
        return self._numbers(names.TIMER_OUT_MS)[0]

    def due_ms(self, precision_ms: int) -> Longs:
        """Return when each is due."""
        out_ms = self.out_ms()
        deliver_ms, given = self._numbers(names.TIMER_DELIVER_MS)
        exact = given & (out_ms < deliver_ms) & (deliver_ms <= out_ms + precision_ms)
        return np.where(exact, deliver_ms, out_ms + precision_ms)

    def recalls(self) -> Flags:
        """Tell which recall another message."""
        found: Flags = self._ranges.find(names.TIMER_DELETE_KEY)[1] > 0
        return found

    def topic_hashes(self) -> Ints:
        """Return Java's hash of each real topic, 0 for none."""
        return hash_ranges(self._array, *self._ranges.find(names.REAL_TOPIC))

    def unique_hashes(self) -> Ints:
        """Return Java's hash of each UNIQ_KEY, 0 for none."""
        return hash_ranges(self._array, *self._ranges.find(names.UNIQ_KEY))

    def topic_counts(self, weights: Longs) -> dict[str, int]:
        """Return the sum of WEIGHTS, one a record, of each real topic."""
        starts, sizes = self._ranges.find(names.REAL_TOPIC)
        _, first, of = np.unique(self.topic_hashes(), return_index=True, return_inverse=True)
        sums = np.bincount(of.reshape(-1), weights).tolist()
        counts: dict[str, int] = {}
        for row, total in zip(first.tolist(), sums, strict=True):
            topic = self._value(int(starts[row]), int(sizes[row])).decode("utf-8", "replace")
            if topic and total:
                counts[topic] = counts.get(topic, 0) + int(total)
        return counts

    def recall_keys(self) -> list[bytes]:
        """Return TIMER_DEL_UNIQKEY of each record that has it."""
        return [value for value in self._values(names.TIMER_DELETE_KEY) if value]

    def recalled(self, keys: Set[bytes]) -> Flags:
        """Tell which messages KEYS recall; no recall is recalled itself."""
        pairs = zip(self._values(names.REAL_TOPIC), self._values(names.UNIQ_KEY), strict=True)
        hit = [
            bool(unique) and (unique in keys or topic + _KEY_JOINT + unique in keys)
            for topic, unique in pairs
        ]
        return np.array(hit, np.bool_) & ~self.recalls()

    # --- properties

    def _value(self, start: int, size: int) -> bytes:
        return self._array[start : start + size].tobytes() if size > 0 else b""

    def _values(self, name: str) -> list[bytes]:
        starts, sizes = self._ranges.find(name)
        return [self._value(*at) for at in zip(starts.tolist(), sizes.tolist(), strict=True)]

    def _numbers(self, name: str) -> tuple[Longs, Flags]:
        """Return the whole numbers that the property NAME holds, and which records have one."""
        starts, sizes = self._ranges.find(name)
        given: Flags = (sizes > 0) & (sizes <= _DIGITS_MAX)
        values = np.zeros(len(starts), np.int64)
        if not given.any():
            return values, given
        rows = np.flatnonzero(given)
        starts, sizes = starts[rows], sizes[rows]
        width = int(sizes.max())
        digits = right_aligned(self._array, starts, sizes, width) - np.uint8(ord("0"))
        if int(sizes.min()) < width:
            digits[np.arange(width, 0, -1) > sizes[:, None]] = 0
        values[rows] = digits.astype(np.int64) @ _POWERS[-width:]
        given[rows] = (digits <= 9).all(axis=1)
        values[~given] = 0
        return values, given


def readable(columns: RunColumns) -> RunColumns:
    """Return COLUMNS with no properties where a record is not well formed: its places mean nothing."""
    good = columns.well_formed
    if good.all():
        return columns
    return replace(
        columns,
        properties_start=np.where(good, columns.properties_start, 0),
        properties_size=np.where(good, columns.properties_size, 0),
    )


def unique_hashes_of(key: bytes) -> set[int]:
    """Return the hashes that the UNIQ_KEY of a message may have that the recall KEY means."""
    texts = (key, key.partition(_KEY_JOINT)[2])
    return {java_hash(text.decode("utf-8", "replace")) for text in texts if text}
