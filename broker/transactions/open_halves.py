"""The half messages of open transactions.

A transaction may have several half messages: sent twice, or checked. The newest counts; `also` has the older ones.
Memory: about 800 bytes per open half message, 80 MB at the default limit of 100,000.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import Final, TypeAlias

from ...proto import properties as names
from ...proto.property_ranges import PropertyRanges
from ...proto.record_run import Longs, parse_run, starts_of
from ...store.slices import Slices

logger = logging.getLogger(__name__)

#: Producer group and transaction id.
Key: TypeAlias = tuple[str, str]

_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_INT_MAX: Final = (1 << 31) - 1


class OpenHalf:
    """One unresolved half message."""

    __slots__ = (
        "also",
        "due_ms",
        "group",
        "immunity_ms",
        "log_offset",
        "moved",
        "queue",
        "queue_offset",
        "size",
        "stored_ms",
        "times",
        "topic",
        "transaction_id",
    )

    def __init__(
        self,
        group: str,
        transaction_id: str,
        target: tuple[str, int],
        place: tuple[int, int, int],
        stored_ms: int,
    ) -> None:
        """TARGET: the queue for the message after a commit. PLACE: queue offset, log offset, size."""
        self.group = group
        self.transaction_id = transaction_id
        self.topic, self.queue = target
        self.queue_offset, self.log_offset, self.size = place
        self.stored_ms = stored_ms
        #: Number of checks so far.
        self.times = 0
        #: The time before its first check (CHECK_IMMUNITY_TIME_IN_SECONDS); −1: the broker's
        #: setting.
        self.immunity_ms = -1
        #: If a Java broker stored it again during that time (TRAN_PREPARED_QUEUE_OFFSET): its first
        #: queue offset; −1: not.
        self.moved = -1
        #: When it is checked next.
        self.due_ms = 0
        #: Older half messages of the same transaction, by queue offset.
        self.also: list[int] = []

    @property
    def key(self) -> Key:
        return self.group, self.transaction_id


def halves_in(slices: Slices) -> Iterator[OpenHalf]:
    """Yield the half messages in SLICES of the half queue; those that cannot be resolved are skipped with a warning."""
    columns = parse_run(slices.records, starts_of(slices.sizes))
    texts = _Texts(slices.records, PropertyRanges(slices.records, columns))
    groups, ids = texts.of(names.PRODUCER_GROUP), texts.of(names.UNIQ_KEY)
    topics, queues = texts.of(names.REAL_TOPIC), texts.of(names.REAL_QUEUE_ID)
    times, own = texts.of(names.TRANSACTION_CHECK_TIMES), texts.of(names.CHECK_IMMUNITY_SECONDS)
    moved = texts.of(names.TRANSACTION_PREPARED_QUEUE_OFFSET)
    log_offsets, stored = columns.log_offset.tolist(), columns.store_ms.tolist()
    born = columns.born_ms.tolist()
    offsets, sizes = slices.queue_offsets.tolist(), slices.sizes.tolist()
    # After lost messages, several entries of the queue point to the next message: take it at its
    # own place only.
    in_place = columns.well_formed & (columns.queue_offset == slices.queue_offsets)
    for row in in_place.nonzero()[0].tolist():
        queue = _number(queues[row])
        if not (groups[row] and ids[row] and topics[row]) or not 0 <= queue <= _INT_MAX:
            logger.warning(
                "half message skipped, it cannot be resolved queue_offset=%d log_offset=%d",
                offsets[row],
                log_offsets[row],
            )
            continue
        half = OpenHalf(
            sys.intern(groups[row]),
            ids[row],
            (sys.intern(topics[row]), queue),
            (offsets[row], log_offsets[row], sizes[row]),
            stored[row],
        )
        half.times = max(0, _number(times[row]))
        seconds = _number(own[row])
        half.immunity_ms = seconds * 1000 if seconds >= 0 else -1
        half.moved = _number(moved[row])
        if (
            half.moved >= 0
        ):  # A Java broker stored it again: it was first stored at its born time, or a little later.
            half.stored_ms = min(stored[row], born[row])
        yield half


class _Texts:
    """Values of properties, as text; empty where a record has none."""

    def __init__(self, records: bytes, ranges: PropertyRanges) -> None:
        self._records = records
        self._ranges = ranges

    def of(self, name: str) -> list[str]:
        starts: Longs
        starts, sizes = self._ranges.find(name)
        records = self._records
        return [
            str(records[start : start + size], "utf-8", "replace") if size > 0 else ""
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]


def _number(text: str) -> int:
    """Return TEXT as a number; −1 for anything else."""
    return int(text) if _NUMBER.fullmatch(text) else -1


class OpenHalves:
    """Open half messages. Queue offsets are added in rising order. The event loop owns it."""

    def __init__(self) -> None:
        self._by_key: dict[Key, OpenHalf] = {}
        self._offsets: set[int] = set()
        #: All open offsets, and some resolved ones, in rising order.
        self._in_order: deque[int] = deque()

    def __len__(self) -> int:
        """The number of half messages; those of one transaction are counted individually."""
        return len(self._offsets)

    @property
    def transactions(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[OpenHalf]:
        return iter(list(self._by_key.values()))

    def get(self, group: str, transaction_id: str) -> OpenHalf | None:
        return self._by_key.get((group, transaction_id))

    def holds(self, half: OpenHalf) -> bool:
        """Return whether HALF is open, and the newest of its transaction."""
        return self._by_key.get(half.key) is half

    def add(self, half: OpenHalf) -> None:
        """Add HALF, the newest of its transaction."""
        assert not self._in_order or half.queue_offset > self._in_order[-1], "added in rising order"
        older = self._by_key.get(half.key)
        if older is not None:
            half.also = older.also
            half.also.append(older.queue_offset)
            half.times = max(half.times, older.times)
        self._by_key[half.key] = half
        self._offsets.add(half.queue_offset)
        self._in_order.append(half.queue_offset)

    def remove(self, half: OpenHalf) -> None:
        """Remove HALF, and the older ones of its transaction: it is resolved."""
        del self._by_key[half.key]
        self._offsets.discard(half.queue_offset)
        self.remove_older(half)

    def remove_older(self, half: OpenHalf) -> None:
        """Remove the older half messages of HALF's transaction: they are marked as resolved."""
        self._offsets.difference_update(half.also)
        half.also = []

    def lowest(self, end: int) -> int:
        """Return the lowest open queue offset; END if there is none."""
        in_order, offsets = self._in_order, self._offsets
        while in_order and in_order[0] not in offsets:
            in_order.popleft()
        # Entries that are resolved after the lowest open one stay in the deque until it is
        # resolved: limit their number.
        if len(in_order) > 2 * len(offsets) + 1000:
            self._in_order = in_order = deque(sorted(offsets))
        return in_order[0] if in_order else end

    def check(self) -> None:
        """Assert that the parts agree; for tests."""
        listed = {half.queue_offset for half in self} | {at for half in self for at in half.also}
        assert listed == self._offsets
        assert self._offsets <= set(self._in_order)
        assert list(self._in_order) == sorted(self._in_order)
