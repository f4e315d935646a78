"""Reading a store: by queue offset, log offset, key, message id and time. Nothing here changes anything.

Times of a queue are those of its records, which do not decrease. So the first record after a given time is found by a
binary search. Not thread-safe: the store's owner calls it.

In place of a lost message, there is a copy of a neighbouring entry (see ConsumeQueue.put). A record of several entries
is read once: at its own queue offset, or at the first of the entries if none of them is there. RocketMQ reads it
several times.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import OffsetOutOfRange, QueueNotFound
from ..proto.lite_topics import LITE_QUEUE
from ..proto.message_id import decode_offset_message_id
from ..proto.record import QUEUE_OFFSET_AT, SYS_FLAG_AT, SYS_ROLLBACK, SYS_TRANSACTION
from ..proto.record_run import Longs, is_sound
from .commit_log import store_time_ms
from .consume_queue import BatchConsumeQueue, ConsumeQueue
from .consume_queues import Queue
from .damage import DamageRepairer
from .format.agreement import Entries, QueueName
from .format.queues import PRE_BLANK_SIZE
from .health import StoreHealth
from .known_damage import KnownDamage
from .lite_queues import LiteQueue
from .parts import StoreParts
from .queue_repair import EntryRepairer
from .slices import Slices, read_entries, warn_of_missing

#: Returns for tags codes of queue entries which of these are to be read.
Choose: TypeAlias = Callable[[Longs], NDArray[np.bool_]]

_LONG_MAX: Final = (1 << 63) - 1
#: Entries read at a time, if a read requests more messages than that.
ENTRIES_MAX: Final = 10_000
#: Candidates requested from the index first, and the factor by which the number grows if they were not enough.
_CANDIDATES: Final = 256
_GROWTH: Final = 8
#: The maximum number of the newest candidates of one hash.
CANDIDATES_MAX: Final = 1 << 18
#: Records examined in one turn of the loop, and bytes of them; one record may be larger.
_TURN_RECORDS: Final = 256
_TURN_BYTES: Final = 1024 * 1024
#: RocketMQ's limit: how often a key query is repeated if none of its results could be loaded.
_LOOKUP_TRIES: Final = 3


#: Entries examined together for the first unconfirmed one, from the newest on.
_UNCONFIRMED_STEP: Final = 256


class _Checks(NamedTuple):
    """What a record is compared with: the CRC of its body, and the queue offset of its entry."""

    crcs: bool
    numbers: bool = True
    #: Records from this queue offset on are not read.
    end: int = _LONG_MAX


class Reader:
    """The reading half of a store with PARTS. A closed store cannot be read (StoreClosed)."""

    def __init__(
        self, parts: StoreParts, health: StoreHealth, known: KnownDamage | None = None
    ) -> None:
        self.config = parts.config
        self.health = health
        self.log, self.queues, self.index = parts.log, parts.queues, parts.index
        self._dispatcher = parts.dispatcher
        self.damages = DamageRepairer(parts, health, known)
        self.lost_entries = EntryRepairer(parts, health)
        self._confirmed: int | None = None

    def confirm(self, log_offset: int | None) -> None:
        """Show no records at LOG_OFFSET of the log, where a record begins, or after it.

        For the brokers of a replica set: a record that not all in-sync replicas have may be rolled back. None, the
        initial value: all records are shown.
        """
        self._confirmed = log_offset

    @property
    def confirmed_offset(self) -> int:
        """Readers see everything in the log before it."""
        end = self.log.max_offset
        return end if self._confirmed is None else min(end, self._confirmed)

    def _is_confirmed(self, log_offset: int) -> bool:
        return self._confirmed is None or log_offset < self._confirmed

    def _end_of(self, queue: Queue | LiteQueue) -> int:
        """Return the queue offset after the last message of QUEUE that readers see."""
        confirmed = self._confirmed
        if confirmed is None or queue.max_log_end <= confirmed:
            return queue.max_offset
        low, end = queue.min_offset, queue.max_offset
        if isinstance(queue, LiteQueue):
            return max(low, queue.first_from(confirmed))
        if isinstance(queue, BatchConsumeQueue):
            return _batches_before(queue, confirmed)
        while end > low:
            begin = max(low, end - _UNCONFIRMED_STEP)
            log_offsets = queue.entries(begin, end - begin)[0]
            if len(log_offsets) and log_offsets[0] < confirmed:
                return _entries_before(queue, confirmed, begin, end)
            end = begin
        return low

    def queue_bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the first queue offset that can be read, and the one after the last; (0, 0) for no such queue."""
        found = self._find(topic, queue)
        return (0, 0) if found is None else (found.min_offset, self._end_of(found))

    def stored_ms(self, topic: str, queue: int, offset: int) -> int | None:
        """Return the store time of the message at OFFSET of a plain queue, from its head; None: it does not exist."""
        found = self.queues.get(topic, queue)
        at = None if found is None else found.log_offset(offset)
        return None if at is None else self.log_stored_ms(at)

    def log_stored_ms(self, log_offset: int) -> int | None:
        """Return the store time of the record at LOG_OFFSET; None: no record begins there."""
        return store_time_ms(self.log, log_offset)

    def queue_names(self) -> list[tuple[str, int]]:
        """Return (topic, queue) of each queue that has files, sorted."""
        return self.queues.names()

    def read_queue(
        self,
        topic: str,
        queue: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        choose: Choose | None = None,
        *,
        check_crcs: bool = True,
    ) -> Slices:
        """Read records from queue offset OFFSET on, up to MAX_MESSAGES, and up to MAX_BYTES but at least one record.

        At the end of the queue the result is empty. In a batch queue a record is a complete batch (one record of many
        messages), and the first one may begin before OFFSET. OffsetOutOfRange for an offset outside [min, max],
        QueueNotFound for a queue that was never written to.

        CHOOSE selects entries by their tags codes, of up to ENTRIES_MAX entries; in a batch queue all are read.
        CHECK_CRCS: records whose bodies do not match are left out, like deleted ones; `lost` counts both. Do without
        only if a later reader of the records checks them.
        """
        if self.health.closed:
            self.health.check_open()
        found = self._existing(topic, queue)
        low, high = found.min_offset, self._end_of(found)
        if high < offset <= found.max_offset:
            return _nothing(
                low, offset, offset
            )  # The offset was confirmed once, by another broker.
        if not low <= offset <= high:
            raise OffsetOutOfRange(
                f"offset {offset} of {topic}/{queue} is outside of {low} to {high}",
                topic=topic,
                queue=queue,
                offset=offset,
                min_offset=low,
                max_offset=high,
            )
        if not isinstance(found, ConsumeQueue):
            count = min(max_messages, high - offset, ENTRIES_MAX)
            if isinstance(found, BatchConsumeQueue):
                return self._read_batches(found, offset, count, max_bytes, check_crcs)
            return self._read_lite(found, offset, count, max_bytes, choose, check_crcs)
        if choose is None and offset < high:
            straight = self._read_straight(found, offset, max_messages, max_bytes, check_crcs)
            if straight is not None:
                return straight
        seen = self._read_plain(found, offset, max_messages, max_bytes, choose, _Checks(check_crcs))
        if seen.next_offset - offset == len(seen) + seen.turned_down:
            return seen
        self.lost_entries.find(found, offset, seen.next_offset)
        return self._read_with_losses(found, offset, max_messages, max_bytes, choose, check_crcs)

    def _read_with_losses(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        choose: Choose | None,
        check_crcs: bool,
    ) -> Slices:
        """Read a plain queue of which records are missing; count those, and stop at one that will be replaced."""
        checks = _Checks(check_crcs, numbers=False)
        seen = self._read_plain(queue, offset, max_messages, max_bytes, choose, checks)
        lost = seen.next_offset - offset - len(seen) - seen.turned_down
        if lost and (stop := self._awaited_from(queue, offset, seen.next_offset)) is not None:
            if stop == offset:
                return _nothing(queue.min_offset, self._end_of(queue), offset)
            checks = checks._replace(end=stop)
            seen = self._read_plain(queue, offset, max_messages, max_bytes, choose, checks)
            seen = replace(seen, next_offset=min(seen.next_offset, stop))
            lost = seen.next_offset - offset - len(seen) - seen.turned_down
        return replace(seen, lost=lost) if lost else seen

    def _awaited_from(self, queue: ConsumeQueue, first: int, end: int) -> int | None:
        """Return the first entry of [FIRST, END) of QUEUE whose record another replica is about to replace.

        None: there is none. Entries from there on are not read meanwhile: a reader would skip the record.
        """
        known = self.damages.known
        if known is None or not known.awaited:
            return None
        at = first
        while at < end:
            log_offsets = queue.entries(at, end - at)[0]
            for row, log_offset in enumerate(log_offsets.tolist()):
                if known.awaits(log_offset):
                    return at + row
            at = at + len(log_offsets) if len(log_offsets) else queue.offset_behind_hole(at)
        return None

    def read_records(
        self,
        entries: Entries,
        name: QueueName,
        *,
        check_crcs: bool = True,
        numbers: Longs | None = None,
    ) -> tuple[bytes, NDArray[np.intp]]:
        """Return the records of ENTRIES, of the queue NAME, that exist, joined, and which entries these are.

        CHECK_CRCS: and are valid. NUMBERS, if given, are the required queue offsets of the records.
        """
        found = read_entries(self.log, entries, name, numbers, check_crcs=check_crcs)
        for row in found.damaged.tolist():
            self.damages.found(int(entries.log_offsets[row]), int(entries.sizes[row]))
        if numbers is None:  # Otherwise the caller looks for missing records first.
            warn_of_missing(entries, found)
        return found.records, found.rows

    def _read_straight(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        check_crcs: bool,
    ) -> Slices | None:
        """Read a plain queue if nothing is wrong: each record is in its place, with its queue offset, and valid."""
        name = _name(queue.topic, queue.queue)
        low, high = queue.min_offset, self._end_of(queue)
        count = min(max_messages, high - offset, ENTRIES_MAX)
        entries = Entries(offset, *queue.entries(offset, count)).up_to(max_bytes)
        if not len(entries) or name.is_light:
            return None
        behind = offset + len(entries)
        numbers = np.arange(offset, behind)
        found = read_entries(self.log, entries, name, numbers, check_crcs=check_crcs)
        if len(found.rows) < len(entries):
            return None
        return Slices(
            records=found.records,
            sizes=entries.sizes,
            queue_offsets=numbers,
            tags_codes=entries.tags_codes,
            next_offset=behind,
            min_offset=low,
            max_offset=high,
        )

    def _read_plain(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        choose: Choose | None,
        checks: _Checks,
    ) -> Slices:
        """Read a plain queue with CHECKS, and do not count lost messages."""
        if choose is not None:
            return self._read_chosen(queue, offset, max_messages, max_bytes, choose, checks)
        low, high = queue.min_offset, self._end_of(queue)
        stop = min(high, checks.end)
        count = min(max_messages, stop - offset, ENTRIES_MAX)
        entries = Entries(offset, *queue.entries(offset, count))
        if len(entries) and self._may_repeat(entries):
            offset = self._behind_repetitions(queue, offset)
            entries = Entries(offset, *queue.entries(offset, max(0, min(count, stop - offset))))
            if len(entries):
                return self._read_once(queue, entries, max_bytes, checks)
        if not len(entries):
            return _nothing(low, high, queue.offset_behind_hole(offset) if count else offset)
        entries = entries.up_to(max_bytes)
        records, rows = self._read_own(queue, entries, np.arange(len(entries)), checks)
        return Slices(
            records=records,
            sizes=entries.sizes[rows],
            queue_offsets=offset + rows.astype(np.int64),
            tags_codes=entries.tags_codes[rows],
            next_offset=offset + len(entries),
            min_offset=low,
            max_offset=high,
        )

    def _read_chosen(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        choose: Choose,
        checks: _Checks,
    ) -> Slices:
        """Read those of the next entries that CHOOSE selects; it is not called for repetitions."""
        low, high = queue.min_offset, self._end_of(queue)
        stop = min(high, checks.end)
        count = min(stop - offset, ENTRIES_MAX)
        entries = Entries(offset, *queue.entries(offset, count))
        own = np.arange(len(entries))
        if len(entries) and self._may_repeat(entries):
            offset = self._behind_repetitions(queue, offset)
            entries = Entries(offset, *queue.entries(offset, max(0, min(count, stop - offset))))
            own = self._own_rows(queue, entries) if len(entries) else own
        if not len(entries):
            return _nothing(low, high, queue.offset_behind_hole(offset) if count else offset)
        wanted = own[choose(entries.tags_codes[own])]
        chosen = entries.take(wanted[:max_messages]).up_to(max_bytes)
        behind = int(wanted[len(chosen)]) if len(chosen) < len(wanted) else len(entries)
        records, rows = self._read_own(queue, chosen, wanted, checks)
        return Slices(
            records=records,
            sizes=chosen.sizes[rows],
            queue_offsets=offset + wanted[rows],
            tags_codes=chosen.tags_codes[rows],
            next_offset=offset + behind,
            min_offset=low,
            max_offset=high,
            turned_down=int(np.searchsorted(own, behind)) - len(chosen),
        )

    def _may_repeat(self, entries: Entries) -> bool:
        """Can one of ENTRIES be a repetition, of another one of them or of a neighbour?"""
        offsets = entries.log_offsets
        if (offsets[1:] == offsets[:-1]).any():
            return True
        last = len(offsets) - 1
        return (
            self._number_at(int(offsets[0])) != entries.first
            or self._number_at(int(offsets[last])) != entries.first + last
        )

    def _read_once(
        self, queue: ConsumeQueue, entries: Entries, max_bytes: int, checks: _Checks
    ) -> Slices:
        """Read the records of ENTRIES without repetitions; the first entry must not be one."""
        own = self._own_rows(queue, entries)
        chosen = entries.take(own).up_to(max_bytes)
        records, rows = self._read_own(queue, chosen, own, checks)
        behind = int(own[len(chosen)]) if len(chosen) < len(own) else len(entries)
        return Slices(
            records=records,
            sizes=chosen.sizes[rows],
            queue_offsets=entries.first + own[rows],
            tags_codes=chosen.tags_codes[rows],
            next_offset=entries.first + behind,
            min_offset=queue.min_offset,
            max_offset=self._end_of(queue),
        )

    def _read_own(
        self, queue: ConsumeQueue, entries: Entries, places: Longs, checks: _Checks
    ) -> tuple[bytes, NDArray[np.intp]]:
        """Read those of ENTRIES at PLACES, relative to their first number."""
        numbers = entries.first + places[: len(entries)] if checks.numbers else None
        name = _name(queue.topic, queue.queue)
        return self.read_records(entries, name, check_crcs=checks.crcs, numbers=numbers)

    def _behind_repetitions(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the first number from OFFSET on that is no repetition. Holes and the end count as none."""
        while (own := self._own_number(queue, offset)) != offset:
            offset = max(own, offset + 1)
        return offset

    def _own_rows(self, queue: ConsumeQueue, entries: Entries) -> Longs:
        """Return which of ENTRIES are not repetitions; the first one must not be one."""
        offsets = entries.log_offsets
        doubtful = np.append(offsets[1:] == offsets[:-1], True)
        doubtful[1:] |= doubtful[:-1]
        kept = np.ones(len(offsets), np.bool_)
        for row in np.flatnonzero(doubtful).tolist():
            number = entries.first + row
            kept[row] = self._own_number(queue, number) == number
        return np.flatnonzero(kept)

    def _own_number(self, queue: ConsumeQueue, number: int) -> int:
        """Return the number at which the record of entry NUMBER is read; NUMBER for an entry without a record."""
        log_offset = queue.log_offset(number)
        said = None if log_offset is None else self._number_at(log_offset)
        if log_offset is None or said is None or said == number:
            return number
        if queue.log_offset(said) == log_offset:
            return said
        if queue.log_offset(number - 1) == log_offset:
            return queue.first_from(log_offset)
        return number

    def _number_at(self, log_offset: int) -> int | None:
        """Return the queue offset in the record at LOG_OFFSET; None if there is no record."""
        data = self.log.read(log_offset + QUEUE_OFFSET_AT, 8)
        return None if data is None else int.from_bytes(data, signed=True)

    def _read_batches(
        self,
        queue: BatchConsumeQueue,
        offset: int,
        count: int,
        max_bytes: int,
        check_crcs: bool,
    ) -> Slices:
        """Read complete batches, one record each, from the one with OFFSET on; COUNT limits the batches."""
        low, high = queue.min_offset, self._end_of(queue)
        found = queue.entries(offset, count)
        shown = int(np.searchsorted(found[3], high))
        log_offsets, sizes, tags_codes, bases, counts = (column[:shown] for column in found)
        if not len(sizes):
            return _nothing(low, high, high if count else offset)
        entries = Entries(offset, log_offsets, sizes, tags_codes).up_to(max_bytes)
        name = _name(queue.topic, queue.queue)
        records, rows = self.read_records(entries, name, check_crcs=check_crcs)
        last = len(entries) - 1
        return Slices(
            records=records,
            sizes=entries.sizes[rows],
            queue_offsets=bases[rows],
            tags_codes=entries.tags_codes[rows],
            next_offset=int(bases[last] + counts[last]),
            min_offset=low,
            max_offset=high,
            lost=int(counts[: last + 1].sum() - counts[rows].sum()),
        )

    def _read_lite(
        self,
        queue: LiteQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        choose: Choose | None,
        check_crcs: bool,
    ) -> Slices:
        """Read the queue of a lite topic. A lost message is replaced by a copy of the entry after it."""
        low, high = queue.min_offset, self._end_of(queue)
        count = min(max_messages if choose is None else ENTRIES_MAX, high - offset, ENTRIES_MAX)
        log_offsets, sizes, codes = queue.entries(offset, count + 1)
        own = np.append(log_offsets[1:] != log_offsets[:-1], True) & (log_offsets >= 0)
        own = own[:count]
        shown = len(own)
        if not shown:
            return _nothing(low, high, offset)
        wanted = own if choose is None else own & choose(codes[:shown])
        rows = np.flatnonzero(wanted)
        chosen = Entries(offset, log_offsets, sizes, codes).take(rows[:max_messages])
        chosen = chosen.up_to(max_bytes)
        behind = int(rows[len(chosen)]) if len(chosen) < len(rows) else shown
        name = _name(queue.topic, queue.queue)
        records, found = self.read_records(chosen, name, check_crcs=check_crcs)
        turned_down = int(np.count_nonzero(own[:behind])) - len(chosen)
        return Slices(
            records=records,
            sizes=chosen.sizes[found],
            queue_offsets=offset + rows[found].astype(np.int64),
            tags_codes=chosen.tags_codes[found],
            next_offset=offset + behind,
            min_offset=low,
            max_offset=high,
            turned_down=turned_down,
            lost=behind - turned_down - len(found),
        )

    def _find(self, topic: str, queue: int) -> Queue | LiteQueue | None:
        found = self.queues.get(topic, queue) or self.queues.get_batch(topic, queue)
        return found or (self.queues.lite.get(topic) if queue == LITE_QUEUE else None)

    def _existing(self, topic: str, queue: int) -> Queue | LiteQueue:
        found = self._find(topic, queue)
        if found is None:
            raise QueueNotFound(f"the store has no queue {topic}/{queue}", topic=topic, queue=queue)
        return found

    def read_at(
        self, log_offset: int, size: int | None = None, *, confirmed: bool = True
    ) -> bytes | None:
        """Return the record at LOG_OFFSET (of SIZE bytes, if that is known); None if no valid one is there.

        Without CONFIRMED, unconfirmed records are returned as well, to show what is stored.
        """
        self.health.check_open()
        if confirmed and not self._is_confirmed(log_offset):
            return None
        record = self.log.record(log_offset)
        if record is None or size not in (None, len(record)) or not _is_served(record):
            return None
        if not is_sound(record):
            self.damages.found(log_offset, len(record))
            return None
        return record

    def by_message_id(self, message_id: str) -> bytes | None:
        """Return the record that an offset MESSAGE_ID names; None if it was deleted. InvalidArgument for a bad id."""
        _, _, log_offset = decode_offset_message_id(message_id)
        return self.read_at(log_offset)

    def lookup(
        self,
        topic: str,
        key: str,
        *,
        max_results: int = 64,
        begin_ms: int = 0,
        end_ms: int = _LONG_MAX,
        kind: Literal["K", "T"] = "K",
    ) -> list[int]:
        """Return log offsets of the newest records of TOPIC with KEY (kind "T": with these tags), in ascending order.

        They are candidates, as in RocketMQ: other keys with the same hash are found, too, so the caller compares keys.
        Only records that can be loaded are returned.
        """
        self.health.check_open()
        if self.index is None:
            return []
        if self._dispatcher.index_lags:
            self._check_not_failed()
            self._dispatcher.index_all()
        limit = min(max_results, self.config.lookup_results_max)
        for _ in range(_LOOKUP_TRIES):
            found = self.index.find(
                topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms, kind=kind
            )
            there = [offset for offset in found if self.is_served(offset)]
            if there or not found:
                return there
            # All of them are deleted: look for older ones, as RocketMQ does.
            oldest = store_time_ms(self.log, found[0])
            if oldest is None:
                return []
            end_ms = oldest
        return []

    def looked_up(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = _LONG_MAX,
        kind: Literal["K", "T"] = "K",
    ) -> Generator[bytes | None, None, bool]:
        """Yield the records of TOPIC with KEY (kind "T": with these tags), the newest first, and others of its hash.

        The caller compares keys, and continues as long as it needs more: keys with the same hash hide nothing. None is
        yielded after each turn's worth of work. Of one hash, the newest CANDIDATES_MAX are examined; the return value
        is whether there may be more. Raises StoreFull or DiskFailure if the index cannot be completed.
        """
        self.health.check_open()
        if self.index is None:
            return False
        while self._dispatcher.index_lags:
            self._check_not_failed()
            self._dispatcher.index_some()
            yield None
        looked_at: set[int] = set()
        asked = _CANDIDATES
        while True:
            offsets = self.index.find(
                topic, key, limit=asked, begin_ms=begin_ms, end_ms=end_ms, kind=kind
            )
            records = size = 0
            for offset in reversed(offsets):
                if offset in looked_at:
                    continue
                looked_at.add(offset)
                if records == _TURN_RECORDS or size > _TURN_BYTES:
                    records = size = 0
                    yield None
                data = self.read_at(offset)
                records += 1
                if data is not None:
                    size += len(data)
                    yield data
            if len(offsets) < asked or asked >= CANDIDATES_MAX:
                return len(offsets) >= asked
            asked *= _GROWTH
            yield None

    def _check_not_failed(self) -> None:
        if self.health.failure is not None:
            raise self.health.failure

    def is_served(self, log_offset: int) -> bool:
        """Is there a record at LOG_OFFSET that was not rolled back? (Replaced damage counts as rolled back.)"""
        if not self._is_confirmed(log_offset):
            return False
        head = self.log.record(log_offset, SYS_FLAG_AT + 4)
        return head is not None and _is_served(head)

    def offset_by_time(self, topic: str, queue: int, time_ms: int) -> int:
        """Return the offset of the first record of the queue stored at TIME_MS or later; the queue's end if none."""
        if self.health.closed:
            self.health.check_open()
        found = self._existing(topic, queue)
        low, high = found.min_offset, self._end_of(found)
        while low < high:
            middle = (low + high) // 2
            stored_ms = self._store_time(found, middle)
            if stored_ms is not None and stored_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def unread_bytes(
        self, topic: str, queue: int, offset: int, max_entries: int
    ) -> tuple[int | None, int]:
        """Return the total size of the records from queue offset OFFSET on, and the number of entries that were added.

        No record is read. None if it would take more than MAX_ENTRIES entries; 0 for no such queue.
        """
        self.health.check_open()
        found = self._find(topic, queue)
        if found is None:
            return 0, 0
        offset, size, count = max(offset, found.min_offset), 0, 0
        end = self._end_of(found)
        while offset < end:
            if count >= max_entries:
                return None, count
            sizes, offset = _entry_sizes(found, offset, min(max_entries - count, end - offset), end)
            count += max(1, len(sizes))
            size += int(sizes[sizes != PRE_BLANK_SIZE].sum())
        return size, count

    def _store_time(self, queue: Queue | LiteQueue, offset: int) -> int | None:
        log_offsets = queue.entries(offset, 1)[0]
        return store_time_ms(self.log, int(log_offsets[0])) if len(log_offsets) else None


def _entries_before(queue: ConsumeQueue, log_offset: int, at: int, end: int) -> int:
    """Return the number of the first entry of QUEUE from AT on that points to LOG_OFFSET or after it; END if none."""
    while at < end:
        log_offsets = queue.entries(at, end - at)[0]  # These end with a file.
        before = _leading_before(log_offsets, log_offset)
        at += before
        if before < len(log_offsets) or not before:
            break
    return at


def _batches_before(queue: BatchConsumeQueue, log_offset: int) -> int:
    """Return the first queue offset of the first batch of QUEUE at LOG_OFFSET of the log or after it."""
    at = queue.min_offset
    while at < queue.max_offset:
        log_offsets, _, _, bases, counts = queue.entries(at, ENTRIES_MAX)
        before = _leading_before(log_offsets, log_offset)
        if before < len(log_offsets):
            return int(bases[before])
        if not before:
            break
        at = int(bases[-1] + counts[-1])
    return at


def _leading_before(log_offsets: Longs, log_offset: int) -> int:
    """Return how many of LOG_OFFSETS are before the first one at LOG_OFFSET or after it."""
    reached = log_offsets >= log_offset
    return int(reached.argmax()) if reached.any() else len(log_offsets)


def _is_served(head: bytes) -> bool:
    flags = int.from_bytes(head[SYS_FLAG_AT : SYS_FLAG_AT + 4])
    return flags & SYS_TRANSACTION != SYS_ROLLBACK


@lru_cache(maxsize=1024)
def _name(topic: str, queue: int) -> QueueName:
    return QueueName(topic, queue)


def _entry_sizes(queue: Queue | LiteQueue, offset: int, count: int, end: int) -> tuple[Longs, int]:
    """Return the sizes of up to COUNT entries of QUEUE from OFFSET to END, and the offset after them (or a hole)."""
    if isinstance(queue, BatchConsumeQueue):
        _, sizes, _, bases, counts = queue.entries(offset, count)
        sizes = sizes[: np.searchsorted(bases, end)]
        behind = int(bases[-1] + counts[-1]) if len(sizes) else queue.max_offset
        return sizes, max(behind, offset + 1)
    sizes = queue.entries(offset, count)[1]
    behind = offset + len(sizes) if len(sizes) else queue.offset_behind_hole(offset)
    return sizes, max(behind, offset + 1)


def _nothing(low: int, high: int, next_offset: int) -> Slices:
    none = np.zeros(0, np.int64)
    return Slices(
        records=b"",
        sizes=none,
        queue_offsets=none,
        tags_codes=none,
        next_offset=next_offset,
        min_offset=low,
        max_offset=high,
    )
