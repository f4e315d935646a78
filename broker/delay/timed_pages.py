"""Pages of scheduled messages: from the timer topic into the timer log, from there into memory, sorted by due time.

A page is the work of one turn of the event loop: PAGE_MESSAGES or PAGE_BYTES, whichever is reached first. The slot of a
message begins at TIMER_OUT_MS, and holds the messages due up to one unit of precision later. The exact time is
TIMER_DELIVER_MS. If that is missing or belongs to another slot, it is the end of the slot, so that no message is early.
A recall marker has TIMER_DEL_UNIQKEY: the UNIQ_KEY of the recalled message, or its real topic, "+" and the UNIQ_KEY.
Source: store-format.md §7.2.

A message needs 41 bytes of memory (ROW); its record is read again when it is due. Rows that arrive later form parts of
their own. Parts of similar size are merged, so that a row is copied O(log n) times.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...proto import properties as names
from ...proto.byte_ranges import Bytes, bytes_at, hash_ranges, right_aligned
from ...proto.java_hash import java_hash
from ...proto.property_ranges import PropertyRanges
from ...proto.record import Buffer
from ...proto.record_run import Ints, Longs, RunColumns, as_bytes, parse_run, starts_of
from ...proto.topics import TIMER_TOPIC
from ...store.format.agreement import Entries, QueueName
from ...store.format.timer_log import DELETE, NONE, ROLL
from ...store.message_store import MessageStore
from ...store.timers.entry import TimerBatch
from ...store.timers.slot import TimerRecords, TimerSlot
from .progress import DeliveredNote, SlotNote

logger = logging.getLogger(__name__)


_TIMERS: Final = QueueName(TIMER_TOPIC)
PAGE_MESSAGES: Final = 2_000
PAGE_BYTES: Final = 2 * 1024 * 1024
#: Cost of looking up a slot, as a number of messages.
_SLOT_MESSAGES: Final = 20
Flags: TypeAlias = NDArray[np.bool_]

#: Longer numbers cannot be times, and may not fit into 64 bits.
_DIGITS_MAX: Final = 18
_POWERS: Final = 10 ** np.arange(_DIGITS_MAX, dtype=np.int64)[::-1]
_TOPIC: Final = TIMER_TOPIC.encode()
_KEY_JOINT: Final = b"+"


def fitting(sizes: Longs, bytes_max: int) -> int:
    """Return how many leading records, of SIZES bytes each, fit into BYTES_MAX bytes together."""
    return int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), bytes_max, "right"))


def enter_page(store: MessageStore, now_ms: int, end: int | None = None) -> Longs | None:
    """Enter the next page of the timer topic into the timer log of STORE; return TIMER_OUT_MS of each message.

    Returns None if all messages were entered, or all before the queue offset END. Messages without a due time are
    skipped with a warning. Raises errors of `enqueue` of the timer store; then nothing was entered.
    """
    timers = store.timers
    low, high = store.queue_bounds(TIMER_TOPIC, 0)
    offset = timers.queue_offset
    if offset < low:
        logger.warning("scheduled messages deleted before they were entered count=%d", low - offset)
        offset = low
    high = high if end is None else min(high, end)
    if offset >= high:
        return None
    most = min(PAGE_MESSAGES, high - offset)
    page = store.read_queue(TIMER_TOPIC, 0, offset, most, PAGE_BYTES)
    columns = parse_run(page.records, starts_of(page.sizes))
    records = TimedRecords(page.records, columns)
    sound, recalls = records.sound(), records.recalls()
    if not sound.all():
        odd = columns.log_offset[~sound]
        logger.warning(
            "messages of the timer topic skipped, they have no due time count=%d log_offset=%d",
            len(odd),
            int(odd[0]),
        )
    batch = TimerBatch(
        log_offsets=columns.log_offset,
        sizes=columns.sizes.astype(np.int32),
        out_ms=records.out_ms(),
        deletes=recalls,
        topic_hashes=records.topic_hashes(),
        next_queue_offset=page.next_offset,
    )
    if not sound.all():
        batch = batch.take(sound)
    timers.enqueue(batch, now_ms)
    signs = np.where(recalls, -1, 1) * sound
    for topic, count in records.topic_counts(signs).items():
        timers.metrics.add(topic, count)
    return batch.out_ms


class SlotLoader:
    """Loads slots into memory, page by page."""

    def __init__(self, store: MessageStore, note: DeliveredNote | None = None) -> None:
        """NOTE has what an earlier process delivered of slots that are read again."""
        self._store = store
        self._note = note
        self._precision_ms = store.timers.precision_ms

    def load(self, slots: Sequence[LoadedSlot]) -> None:
        """Read one page of SLOTS, which are being loaded, from the first one on.

        If the store raises an error, everything remains to be read.
        """
        pages: list[tuple[LoadedSlot, Rows]] = []
        try:
            self._choose(slots, pages)
            self._read_messages(pages)
        except BaseException:
            for slot, rows in pages:
                slot.give_back(rows)
            raise
        for slot, _ in pages:
            slot.ready |= not slot.is_loading

    def _choose(self, slots: Sequence[LoadedSlot], pages: list[tuple[LoadedSlot, Rows]]) -> None:
        """Take the next rows to read from SLOTS, and put them into PAGES. Recall markers are read at once."""
        room, room_bytes = PAGE_MESSAGES, PAGE_BYTES
        for slot in slots:
            if room <= 0 or not slot.follow(PAGE_MESSAGES):
                break
            room -= _SLOT_MESSAGES
            if len(slot.markers):
                room -= self._read_markers(slot)
                if len(slot.markers):
                    break
            sizes = slot.unread["size"][: max(room, 1)]
            count = fitting(sizes, room_bytes)
            if count < len(sizes) and not pages:
                count = max(count, 1)
            rows = slot.next_unread(count)
            pages.append((slot, rows))
            room -= len(rows)
            room_bytes -= int(rows["size"].sum(dtype=np.int64))
            if slot.is_loading:
                break

    def read(self, rows: Rows) -> tuple[bytes, TimedRecords, Rows]:
        """Return the records of ROWS that exist, and the rows of these."""
        sizes = rows["size"].astype(np.int64)
        none = np.zeros(len(rows), np.int64)
        data, found = self._store.read_records(Entries(0, rows["log_offset"], sizes, none), _TIMERS)
        columns = parse_run(data, starts_of(sizes[found]))
        return data, TimedRecords(data, columns), rows[found]

    def _read_markers(self, slot: LoadedSlot) -> int:
        """Read a page of recall markers of SLOT, and remove the recalled messages from memory; return how many were
        read.
        """
        sizes = slot.markers["size"][:PAGE_MESSAGES]
        rows = slot.markers[: max(fitting(sizes, PAGE_BYTES), 1)]
        _, records, _ = self.read(rows)
        keys = set(records.recall_keys()) - slot.keys
        if keys and slot.in_memory:
            hashes = {one for key in keys for one in unique_hashes_of(key)}
            self._take_out(slot, slot.with_hashes(hashes), keys)
        # Only now: if reading failed, nothing may be recorded.
        slot.keys |= keys
        slot.recalls.update(records.topic_counts(records.recalls().astype(np.int64)))
        slot.pass_markers(len(rows))
        return len(rows)

    def _take_out(self, slot: LoadedSlot, candidates: Rows, keys: set[bytes]) -> None:
        """Remove the messages among CANDIDATES that recalls with KEYS cancel from SLOT."""
        for begin in range(0, len(candidates), PAGE_MESSAGES):
            _, records, rows = self.read(candidates[begin : begin + PAGE_MESSAGES])
            hit = records.recalled(keys)
            slot.recalled.update(records.topic_counts(hit.astype(np.int64)))
            slot.remove(rows["position"][hit])

    def _read_messages(self, pages: Sequence[tuple[LoadedSlot, Rows]]) -> None:
        """Find the due times of the rows in PAGES, and add them to their slots."""
        rows = np.concatenate([page for _, page in pages]) if pages else NO_ROWS
        if not len(rows):
            return
        slots_ms = np.repeat([slot.slot_ms for slot, _ in pages], [len(page) for _, page in pages])
        rows["due_ms"] = slots_ms  # Holds the slot until the due time is known.
        _, records, rows = self.read(rows)
        sound = records.sound()
        slots_ms = rows["due_ms"].copy()
        due_ms = np.minimum(records.due_ms(self._precision_ms), slots_ms + self._precision_ms)
        rows["due_ms"] = np.where(rows["rolled"], slots_ms, due_ms)
        rows["unique_hash"] = records.unique_hashes()
        if not sound.all():
            odd = rows["log_offset"][~sound]
            logger.warning(
                "timer records skipped, they are not of scheduled messages count=%d log_offset=%d",
                len(odd),
                int(odd[0]),
            )
        for slot, _ in pages:
            mine = sound & (slots_ms == slot.slot_ms)
            done = mine & self._delivered_of(slot.slot_ms, rows)
            slot.begun |= bool(done.any())
            mine &= ~done
            if slot.keys and mine.any():
                hit = mine & records.recalled(slot.keys)
                slot.recalled.update(records.topic_counts(hit.astype(np.int64)))
                mine &= ~hit
            slot.waiting.add(rows[mine])

    def _delivered_of(self, slot_ms: int, rows: Rows) -> Flags:
        """Return which of ROWS in the slot at SLOT_MS an earlier process, or an earlier master, delivered."""
        found: Flags = np.zeros(len(rows), np.bool_)
        if (note := self._note.of_slot(slot_ms) if self._note is not None else None) is not None:
            found |= noted(rows, note)
        if (begun := self._store.timers.begun.get(slot_ms)) is not None:
            found |= delivered_of(rows, begun)
        return found


# --- what the records say


class TimedRecords:
    """The records in DATA, which COLUMNS describe."""

    def __init__(self, data: Buffer | Bytes, columns: RunColumns) -> None:
        self.columns = columns = readable(columns)
        self._array = as_bytes(data)
        self._ranges = PropertyRanges(data, columns)

    def __len__(self) -> int:
        return len(self.columns)

    def sound(self) -> Flags:
        """Return which records are valid records of the timer topic with a due time in TIMER_OUT_MS."""
        columns = self.columns
        sound: Flags = columns.well_formed & (columns.topic_size == len(_TOPIC))
        if sound.any():
            sound[sound] = bytes_at(self._array, columns.topic_start[sound], _TOPIC)
        sound &= self._numbers(names.TIMER_OUT_MS)[1]
        return sound

    def out_ms(self) -> Longs:
        """Return TIMER_OUT_MS of each record; 0 if it has none."""
        return self._numbers(names.TIMER_OUT_MS)[0]

    def due_ms(self, precision_ms: int) -> Longs:
        """Return when each is due."""
        out_ms = self.out_ms()
        deliver_ms, given = self._numbers(names.TIMER_DELIVER_MS)
        exact = given & (out_ms < deliver_ms) & (deliver_ms <= out_ms + precision_ms)
        return np.where(exact, deliver_ms, out_ms + precision_ms)

    def recalls(self) -> Flags:
        """Return which records are recall markers."""
        found: Flags = self._ranges.find(names.TIMER_DELETE_KEY)[1] > 0
        return found

    def topic_hashes(self) -> Ints:
        """Return the Java hash code of each real topic; 0 if there is none."""
        return hash_ranges(self._array, *self._ranges.find(names.REAL_TOPIC))

    def unique_hashes(self) -> Ints:
        """Return the Java hash code of each UNIQ_KEY; 0 if there is none."""
        return hash_ranges(self._array, *self._ranges.find(names.UNIQ_KEY))

    def topic_counts(self, weights: Longs) -> dict[str, int]:
        """Return the sum of WEIGHTS, one per record, by real topic."""
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
        """Return which messages recalls with KEYS cancel. A recall marker is never recalled."""
        pairs = zip(self._values(names.REAL_TOPIC), self._values(names.UNIQ_KEY), strict=True)
        hit = [
            bool(unique) and (unique in keys or topic + _KEY_JOINT + unique in keys)
            for topic, unique in pairs
        ]
        return np.array(hit, np.bool_) & ~self.recalls()

    def _value(self, start: int, size: int) -> bytes:
        return self._array[start : start + size].tobytes() if size > 0 else b""

    def _values(self, name: str) -> list[bytes]:
        starts, sizes = self._ranges.find(name)
        return [self._value(*at) for at in zip(starts.tolist(), sizes.tolist(), strict=True)]

    def _numbers(self, name: str) -> tuple[Longs, Flags]:
        """Return the property NAME as whole numbers, and which records have one."""
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
    """Return COLUMNS without properties where a record is malformed: its property ranges are meaningless."""
    good = columns.well_formed
    if good.all():
        return columns
    return replace(
        columns,
        properties_start=np.where(good, columns.properties_start, 0),
        properties_size=np.where(good, columns.properties_size, 0),
    )


def unique_hashes_of(key: bytes) -> set[int]:
    """Return the possible hashes of the UNIQ_KEY of the message that the recall KEY cancels."""
    texts = (key, key.partition(_KEY_JOINT)[2])
    return {java_hash(text.decode("utf-8", "replace")) for text in texts if text}


#: One pending message: due time, positions of its timer record and of its own record, time of
#: entry, hash of its UNIQ_KEY, and whether it only returns to the timer topic.
ROW: Final = np.dtype(
    [
        ("due_ms", np.int64),
        ("position", np.int64),
        ("log_offset", np.int64),
        ("write_ms", np.int64),
        ("size", np.int32),
        ("unique_hash", np.int32),
        ("rolled", np.bool_),
    ]
)
Rows: TypeAlias = NDArray[np.void]
NO_ROWS: Final[Rows] = np.zeros(0, ROW)
_NEVER: Final = (1 << 63) - 1


def rows_of(records: TimerRecords) -> Rows:
    """Return RECORDS of the timer log as rows; due time and topic are added later."""
    rows = np.zeros(len(records), ROW)
    rows["position"] = records.positions
    rows["log_offset"] = records.log_offsets
    rows["write_ms"] = records.write_ms
    rows["size"] = records.sizes
    rows["rolled"] = (records.magics & ROLL) != 0
    return rows


class DueRows:
    """Rows sorted by due time, then by position in the timer log."""

    def __init__(self) -> None:
        #: Each part is sorted, and more than twice as long as the next.
        self._parts: list[Rows] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def next_due_ms(self) -> int | None:
        """Due time of the first row."""
        return min((int(part["due_ms"][0]) for part in self._parts), default=None)

    def add(self, rows: Rows) -> None:
        if not len(rows):
            return
        self._parts.append(_in_order(rows))
        parts = self._parts
        while len(parts) > 1 and len(parts[-2]) <= 2 * len(parts[-1]):
            last = parts.pop()
            parts[-1] = _in_order(np.concatenate((parts[-1], last)))

    @property
    def first(self) -> tuple[int, int] | None:
        """Due time and timer log position of the first row."""
        heads = ((int(part["due_ms"][0]), int(part["position"][0])) for part in self._parts)
        return min(heads, default=None)

    def take(self, now_ms: int) -> Rows:
        """Remove and return the rows that are due at NOW_MS, in order."""
        taken: list[Rows] = []
        kept: list[Rows] = []
        for part in self._parts:
            count = int(np.searchsorted(part["due_ms"], now_ms, "right"))
            if count:
                taken.append(part[:count])
            if count < len(part):
                kept.append(part[count:])
        self._parts = kept
        if not taken:
            return NO_ROWS
        return taken[0] if len(taken) == 1 else _in_order(np.concatenate(taken))

    def with_hashes(self, hashes: Longs) -> Rows:
        """Return the rows whose UNIQ_KEY has one of HASHES."""
        found = [part[np.isin(part["unique_hash"], hashes)] for part in self._parts]
        return np.concatenate(found) if found else NO_ROWS

    def remove(self, positions: Longs) -> int:
        """Remove the rows at POSITIONS of the timer log; return how many there were."""
        before = len(self)
        parts = [part[~np.isin(part["position"], positions)] for part in self._parts]
        self._parts = [part for part in parts if len(part)]
        return before - len(self)

    def rows(self) -> Rows:
        return np.concatenate(self._parts) if self._parts else NO_ROWS


def noted(rows: Rows, note: SlotNote) -> NDArray[np.bool_]:
    """Return which of ROWS of one slot were delivered according to NOTE."""
    earlier = rows["due_ms"] < note.due_ms
    earlier |= (rows["due_ms"] == note.due_ms) & (rows["position"] < note.position)
    found: NDArray[np.bool_] = earlier & (rows["position"] <= note.last)
    return found


def delivered_of(rows: Rows, begun: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which of ROWS of one slot were delivered according to `begun`, from `TimerStore.begun`."""
    newest, due_ms = begun
    found: NDArray[np.bool_] = (rows["log_offset"] <= newest) & (rows["due_ms"] < due_ms)
    return found


def _in_order(rows: Rows) -> Rows:
    due_ms, positions = rows["due_ms"], rows["position"]
    if len(rows) == 1:
        return rows
    return rows[np.lexsort((positions, due_ms))]


class LoadedSlot:
    """One slot: its messages in memory, and the part of its chain that is not read yet.

    Attributes:
        slot_ms: Its time.
        last: The newest record of its chain that was scanned.
        newest: The log offset of the newest message that was scanned.
        keys: The keys of its recalls.
        begun: Whether any message of it was delivered.
        recalls, recalled: How many markers were read, and how many messages they removed, by real topic.
    """

    def __init__(self, slot_ms: int) -> None:
        self.slot_ms = slot_ms
        self.last = self.newest = NONE
        self.keys: set[bytes] = set()
        self.recalls = Counter[str]()
        self.recalled = Counter[str]()
        self.begun = False
        #: Whether it was in memory completely (or up to the limit), so that deliveries from it may
        #: start.
        self.ready = False
        #: Rows that are not in memory yet: the chain while it is followed, then its recalls, then
        #: its messages.
        self._reader: TimerSlot | None = None
        self.markers = NO_ROWS
        self.unread = NO_ROWS
        self.waiting = DueRows()
        #: Rows removed from `waiting` and not delivered yet, in order.
        self.due = NO_ROWS

    @property
    def is_loading(self) -> bool:
        return self._reader is not None or len(self.markers) > 0 or len(self.unread) > 0

    def read(self, found: TimerSlot) -> None:
        """Start to read FOUND: the records of the slot after `last`."""
        self._reader = found

    def follow(self, limit: int) -> bool:
        """Follow the chain through about LIMIT more records; return whether it is complete."""
        reader = self._reader
        if reader is None:
            return True
        if not reader.read(limit):
            return False
        self._reader = None
        self.last = max(self.last, reader.last)
        records = reader.records()
        rows = rows_of(records)
        self.newest = max(self.newest, int(rows["log_offset"].max(initial=NONE)))
        markers = (records.magics & DELETE) != 0
        markers &= ~rows["rolled"]
        self.markers, self.unread = rows[markers], rows[~markers]
        return True

    def pass_markers(self, count: int) -> None:
        """Remove the next COUNT recalls, which were read, from the rows to read."""
        self.markers = self.markers[count:]

    def next_unread(self, limit: int) -> Rows:
        """Remove and return the next messages to read, up to LIMIT."""
        rows, self.unread = self.unread[:limit], self.unread[limit:]
        return rows

    def give_back(self, rows: Rows) -> None:
        """Put ROWS, which could not be read, back to the front of the rows to read."""
        self.unread = np.concatenate((rows, self.unread))

    @property
    def in_memory(self) -> int:
        return len(self.waiting) + len(self.due)

    @property
    def remaining(self) -> int:
        """Return how many known messages of it are not delivered yet."""
        return self.in_memory + len(self.unread)

    @property
    def is_drained(self) -> bool:
        """Whether all records entered so far are delivered."""
        return self.ready and not self.is_loading and not self.in_memory

    def next_due_ms(self) -> int | None:
        """When the next message is due; None if none waits in memory."""
        return int(self.due["due_ms"][0]) if len(self.due) else self.waiting.next_due_ms

    def note(self) -> SlotNote:
        """Return the delivery note: the scanned records before the first waiting one were delivered.

        Only for a slot that is ready, and is not being read.
        """
        first = self.waiting.first
        if len(self.due):
            head = int(self.due["due_ms"][0]), int(self.due["position"][0])
            first = head if first is None else min(head, first)
        return SlotNote(self.last, *(first or (_NEVER, 0)))

    def take_due(self, now_ms: int) -> Rows:
        """Return the rows that are due at NOW_MS, in order. Call `settle` with what was delivered."""
        if not len(self.due):
            self.due = self.waiting.take(now_ms)
        return self.due

    def settle(self, count: int, left: Longs) -> None:
        """Mark the first COUNT due rows as delivered, except those at the positions LEFT."""
        chunk, self.due = self.due[:count], self.due[count:]
        if len(left):
            chunk = chunk[np.isin(chunk["position"], left)]
            self.due = np.concatenate((chunk, self.due))
            self.begun |= len(chunk) < count
        else:
            self.begun = True

    def with_hashes(self, hashes: Iterable[int]) -> Rows:
        """Return the rows in memory whose UNIQ_KEY has one of HASHES."""
        wanted = np.array(list(hashes), np.int64)
        due = self.due[np.isin(self.due["unique_hash"], wanted)]
        return np.concatenate((due, self.waiting.with_hashes(wanted)))

    def remove(self, positions: Longs) -> None:
        """Remove the rows at POSITIONS of the timer log from memory: they were recalled."""
        self.waiting.remove(positions)
        self.due = self.due[~np.isin(self.due["position"], positions)]

    def pending_positions(self) -> Longs:
        """Return the timer log positions of all messages that are not delivered, rising. The chain must be complete."""
        assert self._reader is None, "the chain must be followed to its end first"
        parts = (self.due, self.waiting.rows(), self.unread, self.markers)
        return np.sort(np.concatenate([part["position"] for part in parts]))
