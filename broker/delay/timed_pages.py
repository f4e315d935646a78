"""Timed messages in pages: from the timer topic into the timer log, from the log into memory, sorted by due time.

A page is what one turn of the loop takes: PAGE_MESSAGES or PAGE_BYTES, whichever is reached first. A message's slot
begins at TIMER_OUT_MS, and holds what is due up to one unit of precision later. The exact time is TIMER_DELIVER_MS;
where that is missing or of another slot, the end of the slot, so that none is early. A recall is a message with
TIMER_DEL_UNIQKEY: the recalled one's UNIQ_KEY, or its real topic, "+" and the UNIQ_KEY. Source: store-format.md §7.2.

A message takes 41 bytes here (ROW); its record is read again when it is due. Later rows of the same slot form parts of
their own; parts of like size are merged, so that a row is copied O(log n) times.
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
#: Looking up a slot costs about as much as so many messages.
_SLOT_MESSAGES: Final = 20
Flags: TypeAlias = NDArray[np.bool_]

#: Longer ones are no instants, and might not fit 64 bits.
_DIGITS_MAX: Final = 18
_POWERS: Final = 10 ** np.arange(_DIGITS_MAX, dtype=np.int64)[::-1]
_TOPIC: Final = TIMER_TOPIC.encode()
_KEY_JOINT: Final = b"+"


def fitting(sizes: Longs, bytes_max: int) -> int:
    """Return how many leading records of SIZES have at most BYTES_MAX bytes together."""
    return int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), bytes_max, "right"))


def enter_page(store: MessageStore, now_ms: int, end: int | None = None) -> Longs | None:
    """Enter the next page of the timer topic into the timer log of STORE; return TIMER_OUT_MS of each message.

    None: all were entered, of those before END if it is given. A message without an instant is passed over with a
    warning. Raises what `enqueue` of the timer store raises; then nothing was entered.
    """
    timers = store.timers
    low, high = store.queue_bounds(TIMER_TOPIC, 0)
    offset = timers.queue_offset
    if offset < low:
        logger.warning(
            "timed messages were deleted before they were entered", extra={"count": low - offset}
        )
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
            "messages of the timer topic without an instant are passed over",
            extra={"count": len(odd), "log_offset": int(odd[0])},
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
    """Brings slots into memory, page by page."""

    def __init__(self, store: MessageStore, note: DeliveredNote | None = None) -> None:
        """NOTE tells what an earlier process delivered of slots that are read again."""
        self._store = store
        self._note = note
        self._precision_ms = store.timers.precision_ms

    def load(self, slots: Sequence[LoadedSlot]) -> None:
        """Read one page of SLOTS, which are being loaded: the first ones first.

        Raises what the store raises: then nothing was taken off what is to be read.
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
        """Take what is read next off SLOTS, and put it into PAGES; recalls are read here."""
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
        """Return the records of ROWS that are there, and which rows these are."""
        sizes = rows["size"].astype(np.int64)
        none = np.zeros(len(rows), np.int64)
        data, found = self._store.read_records(Entries(0, rows["log_offset"], sizes, none), _TIMERS)
        columns = parse_run(data, starts_of(sizes[found]))
        return data, TimedRecords(data, columns), rows[found]

    def _read_markers(self, slot: LoadedSlot) -> int:
        """Read a page of recalls of SLOT, and take out what they mean of what is in memory; return how many."""
        sizes = slot.markers["size"][:PAGE_MESSAGES]
        rows = slot.markers[: max(fitting(sizes, PAGE_BYTES), 1)]
        _, records, _ = self.read(rows)
        keys = set(records.recall_keys()) - slot.keys
        if keys and slot.in_memory:
            hashes = {one for key in keys for one in unique_hashes_of(key)}
            self._take_out(slot, slot.with_hashes(hashes), keys)
        # All was read: nothing of it is done twice.
        slot.keys |= keys
        slot.recalls.update(records.topic_counts(records.recalls().astype(np.int64)))
        slot.pass_markers(len(rows))
        return len(rows)

    def _take_out(self, slot: LoadedSlot, candidates: Rows, keys: set[bytes]) -> None:
        """Take those of CANDIDATES out of SLOT that recalls of KEYS mean."""
        for begin in range(0, len(candidates), PAGE_MESSAGES):
            _, records, rows = self.read(candidates[begin : begin + PAGE_MESSAGES])
            hit = records.recalled(keys)
            slot.recalled.update(records.topic_counts(hit.astype(np.int64)))
            slot.remove(rows["position"][hit])

    def _read_messages(self, pages: Sequence[tuple[LoadedSlot, Rows]]) -> None:
        """Find out when the rows of PAGES are due, and let them wait for that in their slots."""
        rows = np.concatenate([page for _, page in pages]) if pages else NO_ROWS
        if not len(rows):
            return
        slots_ms = np.repeat([slot.slot_ms for slot, _ in pages], [len(page) for _, page in pages])
        rows["due_ms"] = slots_ms  # Remembers the slot until the instant is known.
        _, records, rows = self.read(rows)
        sound = records.sound()
        slots_ms = rows["due_ms"].copy()
        due_ms = np.minimum(records.due_ms(self._precision_ms), slots_ms + self._precision_ms)
        rows["due_ms"] = np.where(rows["rolled"], slots_ms, due_ms)
        rows["unique_hash"] = records.unique_hashes()
        if not sound.all():
            odd = rows["log_offset"][~sound]
            logger.warning(
                "timer records of what is no timed message are passed over",
                extra={"count": len(odd), "log_offset": int(odd[0])},
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
        """Return which of ROWS an earlier process, or an earlier master, delivered of the slot of SLOT_MS."""
        found: Flags = np.zeros(len(rows), np.bool_)
        if (note := self._note.of_slot(slot_ms) if self._note is not None else None) is not None:
            found |= noted(rows, note)
        if (begun := self._store.timers.begun.get(slot_ms)) is not None:
            found |= delivered_of(rows, begun)
        return found


# --- what the records say


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


#: One pending message: when it is due, where its timer record and its own record are, when it was entered, the hash
#: of its UNIQ_KEY, and whether it is only to be entered anew.
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
    """Return RECORDS of the timer log as rows; when they are due and whose they are is still to be found out."""
    rows = np.zeros(len(records), ROW)
    rows["position"] = records.positions
    rows["log_offset"] = records.log_offsets
    rows["write_ms"] = records.write_ms
    rows["size"] = records.sizes
    rows["rolled"] = (records.magics & ROLL) != 0
    return rows


class DueRows:
    """Rows by due time; those of one instant by their position in the timer log."""

    def __init__(self) -> None:
        #: Each sorted; every one more than twice as long as the next.
        self._parts: list[Rows] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def next_due_ms(self) -> int | None:
        """When the first one is due."""
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
        """When the first one is due, and its position in the timer log."""
        heads = ((int(part["due_ms"][0]), int(part["position"][0])) for part in self._parts)
        return min(heads, default=None)

    def take(self, now_ms: int) -> Rows:
        """Take out what is due at NOW_MS, and return it in order."""
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
        """Take out the rows at POSITIONS of the timer log; return how many there were."""
        before = len(self)
        parts = [part[~np.isin(part["position"], positions)] for part in self._parts]
        self._parts = [part for part in parts if len(part)]
        return before - len(self)

    def rows(self) -> Rows:
        return np.concatenate(self._parts) if self._parts else NO_ROWS


def noted(rows: Rows, note: SlotNote) -> NDArray[np.bool_]:
    """Return which of ROWS of one slot NOTE says to be delivered."""
    earlier = rows["due_ms"] < note.due_ms
    earlier |= (rows["due_ms"] == note.due_ms) & (rows["position"] < note.position)
    found: NDArray[np.bool_] = earlier & (rows["position"] <= note.last)
    return found


def delivered_of(rows: Rows, begun: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which of ROWS of one slot were delivered, by what `TimerStore.begun` has of it."""
    newest, due_ms = begun
    found: NDArray[np.bool_] = (rows["log_offset"] <= newest) & (rows["due_ms"] < due_ms)
    return found


def _in_order(rows: Rows) -> Rows:
    due_ms, positions = rows["due_ms"], rows["position"]
    if len(rows) == 1:
        return rows
    return rows[np.lexsort((positions, due_ms))]


class LoadedSlot:
    """One slot: what of it waits in memory, and what is still to be read of its chain.

    slot_ms: its time;  last: the newest record of its chain that was looked at;  newest: where the newest message that
    was looked at begins in the log;  keys: whom its recalls mean;
    begun: was anything of it delivered?  recalls, recalled: of each real topic, how many were read and taken out.
    """

    def __init__(self, slot_ms: int) -> None:
        self.slot_ms = slot_ms
        self.last = self.newest = NONE
        self.keys: set[bytes] = set()
        self.recalls = Counter[str]()
        self.recalled = Counter[str]()
        self.begun = False
        #: Was all of it in memory once (or as much as may be), so that it can be delivered from?
        self.ready = False
        #: The chain while it is being followed; then its recalls, and then its messages, that are not in memory yet.
        self._reader: TimerSlot | None = None
        self.markers = NO_ROWS
        self.unread = NO_ROWS
        self.waiting = DueRows()
        #: Taken out of `waiting` and not delivered yet, in order.
        self.due = NO_ROWS

    # --- reading the chain

    @property
    def is_loading(self) -> bool:
        return self._reader is not None or len(self.markers) > 0 or len(self.unread) > 0

    def read(self, found: TimerSlot) -> None:
        """Begin to read FOUND: what was entered into the slot behind `last`."""
        self._reader = found

    def follow(self, limit: int) -> bool:
        """Follow the chain on through some LIMIT records; return whether it is known now."""
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
        """Take the next COUNT recalls, which were read, off what is to be read."""
        self.markers = self.markers[count:]

    def next_unread(self, limit: int) -> Rows:
        """Take the next messages, LIMIT at most, off what is to be read."""
        rows, self.unread = self.unread[:limit], self.unread[limit:]
        return rows

    def give_back(self, rows: Rows) -> None:
        """Put ROWS, which were taken last and could not be read, back in front of what is to be read."""
        self.unread = np.concatenate((rows, self.unread))

    # --- what waits

    @property
    def in_memory(self) -> int:
        return len(self.waiting) + len(self.due)

    @property
    def remaining(self) -> int:
        """Return how many of it, as far as known, are still to be delivered."""
        return self.in_memory + len(self.unread)

    @property
    def is_drained(self) -> bool:
        """Is everything that was entered so far delivered?"""
        return self.ready and not self.is_loading and not self.in_memory

    def next_due_ms(self) -> int | None:
        """When the next one is to be delivered; None: none waits in memory."""
        return int(self.due["due_ms"][0]) if len(self.due) else self.waiting.next_due_ms

    def note(self) -> SlotNote:
        """Return what may be noted as delivered: what was looked at and comes before the first one that waits.

        Only of a slot that is ready, and not being read further.
        """
        first = self.waiting.first
        if len(self.due):
            head = int(self.due["due_ms"][0]), int(self.due["position"][0])
            first = head if first is None else min(head, first)
        return SlotNote(self.last, *(first or (_NEVER, 0)))

    def take_due(self, now_ms: int) -> Rows:
        """Return what is due at NOW_MS, in order; `settle` says what of it was delivered."""
        if not len(self.due):
            self.due = self.waiting.take(now_ms)
        return self.due

    def settle(self, count: int, left: Longs) -> None:
        """Of the first COUNT rows that are due all were delivered but those at the positions LEFT."""
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
        """Take the rows at POSITIONS of the timer log out of memory: they were recalled."""
        self.waiting.remove(positions)
        self.due = self.due[~np.isin(self.due["position"], positions)]

    def pending_positions(self) -> Longs:
        """Return where the timer records of all that is still to be delivered are, rising; the chain is known."""
        assert self._reader is None, "follow the chain to its end first"
        parts = (self.due, self.waiting.rows(), self.unread, self.markers)
        return np.sort(np.concatenate([part["position"] for part in parts]))
