"""Messages in a store that are scheduled, or in flight: counts by queue, from the files.

- By delay level: `SCHEDULE_TOPIC_XXXX`, one queue per level, from the level's offset in delayOffset.json to its end.
- With a delivery time: the slots of the timer wheel that have not fired, and what the timer has not read yet of
  `rmq_sys_wheel_timer`. Recalled messages do not wait.
- Popped messages: see `_Pops`. Ordered groups keep theirs in consumerOrderInfo.json as well. PocketMQ commits only
  acknowledged messages, and keeps its deliveries in a table.

Each record that waits is read, up to RECORDS_MAX of the schedule and as many scheduled ones; with more, counts that
would need them are unknown (None).
"""

from __future__ import annotations

import json
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ...broker.pop.deliveries import DeliveryTable
from ...proto.properties import REAL_QUEUE_ID, REAL_TOPIC, TAGS, TIMER_DELETE_KEY, UNIQ_KEY
from ...proto.record import Record
from ...proto.topics import SCHEDULE_TOPIC, SYSTEM_PREFIX, TIMER_TOPIC
from ...store.apache.store import JavaReading
from ...store.apache.timers import JavaTimers
from ...store.format.timer_log import DELETE, NONE, RECORD_SIZE, TimerRecord, records
from ...store.queue_entries import entries_of
from ...store.table_files import FOLDER, read_entries

if TYPE_CHECKING:
    from ...store.opened_store import OpenedStore

RECORDS_MAX: Final = 50_000
REVIVE_PREFIX: Final = f"{SYSTEM_PREFIX}REVIVE_LOG_"
_CHECK_POINT: Final = "ck"
_ACKNOWLEDGEMENTS: Final = ("ack", "bAck")

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class HeldMessages:
    """Messages popped by a group and not acknowledged; the last lease ends at UNTIL_MS.

    read_to: everything below was delivered to the group, or passed over; None where the committed offset says so.
    """

    count: int
    until_ms: int
    read_to: int | None = None


@dataclass(slots=True)
class WaitingCounts:
    """What waits. `is_whole` is false where there was too much to read: what is not found then is unknown, not 0."""

    is_whole: bool = True
    delayed: dict[Place, int] = field(default_factory=dict)
    held: dict[tuple[str, int, str], HeldMessages] = field(default_factory=dict)
    #: By our broker: known however much waits.
    lent: dict[tuple[str, int, str], HeldMessages] = field(default_factory=dict)

    def delayed_for(self, topic: str, queue_id: int) -> int | None:
        """Return how many messages are scheduled and then go to this queue; None if that is unknown."""
        return self.delayed.get((topic, queue_id), 0) if self.is_whole else None

    def held_by(self, topic: str, queue_id: int, group: str) -> HeldMessages | None:
        """Return what GROUP popped of this queue and did not acknowledge; None for nothing, or if that is unknown."""
        key = (topic, queue_id, group)
        return self.lent.get(key) or (self.held.get(key) if self.is_whole else None)


def waiting_of(store: OpenedStore) -> WaitingCounts:
    """Return what waits in STORE."""
    found = WaitingCounts(lent=_lent(store))
    delayed: dict[Place, int] = defaultdict(int)
    scheduled = list(islice(_scheduled(store), RECORDS_MAX + 1))
    timed = list(islice(_timed(store), RECORDS_MAX + 1))
    if max(len(scheduled), len(timed)) > RECORDS_MAX:
        found.is_whole = False
        return found
    pops = _Pops()
    for record in (*scheduled, *timed):
        target = _target(record)
        if target is None:
            continue
        if target[0].startswith(REVIVE_PREFIX):
            pops.add(record)
        else:
            delayed[target] += 1
    for key, queues in store.config.order.items():
        pops.add_ordered(str(key), queues)
    found.delayed = dict(delayed)
    found.held = pops.held()
    return found


def _target(record: Record) -> Place | None:
    """Return the queue that RECORD goes to when its time comes."""
    topic, queue_id = record.properties.get(REAL_TOPIC), record.properties.get(REAL_QUEUE_ID, "")
    return (topic, int(queue_id)) if topic and queue_id.isdecimal() else None


def _scheduled(store: OpenedStore) -> Iterator[Record]:
    for (topic, queue_id), queue in store.reading.queues.items():
        if topic != SCHEDULE_TOPIC:
            continue
        begin = store.config.delay_offsets.get(queue_id + 1, queue.min_offset)
        for entries in entries_of(queue, begin, queue.max_offset):
            pairs = zip(entries.physical_offset.tolist(), entries.size.tolist(), strict=True)
            yield from _records(store.reading, pairs)


def _records(reading: JavaReading, places: Iterable[tuple[int, int]]) -> Iterator[Record]:
    for place, size in places:
        try:
            record = reading.message(place, size)
        except ValueError:
            continue
        if record is not None:
            yield record


def _timed(store: OpenedStore) -> Iterator[Record]:
    timers = store.timers
    if timers is None:
        return
    for chain in _chains(timers):
        yield from _pending(store.reading, chain)
    queue = store.reading.queues.get((TIMER_TOPIC, 0))
    if queue is not None:
        for entries in entries_of(queue, timers.queue_offset, queue.max_offset):
            pairs = zip(entries.physical_offset.tolist(), entries.size.tolist(), strict=True)
            yield from _records(store.reading, pairs)


def _chains(timers: JavaTimers) -> Iterator[Iterator[TimerRecord]]:
    """Yield the records of each slot that has not fired, newest first; also of those that Java leaves for their age."""
    read = timers.handed_on_ms // timers.precision_ms
    for slot in timers.wheel.slots.values():
        if slot.time >= read and slot.count >= 0:
            yield _chain(timers, slot.last)


def _chain(timers: JavaTimers, position: int) -> Iterator[TimerRecord]:
    for _ in range(RECORDS_MAX + 1):
        data = timers.log.data(position) if position >= 0 else None
        if data is None or len(data) < RECORD_SIZE:
            return
        record = next(records(data[:RECORD_SIZE], position), None)
        if not isinstance(record, TimerRecord) or not record.is_sound:
            return
        yield record
        if record.previous in (NONE, position):
            return
        position = record.previous


def _pending(reading: JavaReading, chain: Iterable[TimerRecord]) -> Iterator[Record]:
    """Yield the messages of one slot that were not recalled."""
    recalled: set[str] = set()
    for entry in chain:
        for record in _records(reading, [(entry.log_offset, entry.message_size)]):
            if entry.magic & DELETE:
                # The value is the key alone, or "topic+key".
                recalled.add(record.properties.get(TIMER_DELETE_KEY, "").rpartition("+")[2])
            elif record.properties.get(UNIQ_KEY) not in recalled:
                yield record


class _Pops:
    """Check points and their acknowledgements, as Apache RocketMQ's broker stores them.

    For each pop it files a check point (tag "ck"), and for each message that is acknowledged an "ack" (or "bAck", many
    at once), as scheduled messages for `rmq_sys_REVIVE_LOG_…`. A message is held that has neither come to its time nor
    been acknowledged.
    """

    def __init__(self) -> None:
        #: By topic, queue, group: the offset of each message, and when its lease ends.
        self._popped: dict[tuple[str, int, str], dict[int, int]] = defaultdict(dict)
        self._acknowledged: dict[tuple[str, int, str], set[int]] = defaultdict(set)

    def add(self, record: Record) -> None:
        """Enter a check point or an acknowledgement; what does not parse is passed over."""
        tag = record.properties.get(TAGS)
        try:
            body = json.loads(record.body)
            place = (str(body["t"]), int(body["q"]), str(body["c"]))
            if tag == _CHECK_POINT:
                self._add_check_point(place, body)
            elif tag in _ACKNOWLEDGEMENTS:
                offsets = body["aol"] if "aol" in body else [body["ao"]]
                self._acknowledged[place].update(int(offset) for offset in offsets)
        except (ValueError, KeyError, TypeError):
            return

    def _add_check_point(self, place: tuple[str, int, str], body: dict[str, Any]) -> None:
        start, until_ms = int(body["so"]), int(body["pt"]) + int(body["it"])
        count, acknowledged = int(body["n"]), int(body.get("bm", 0))
        places = body.get("d") or range(count)
        for number, place_from_start in zip(range(count), places, strict=False):
            if not acknowledged >> number & 1:
                self._popped[place][start + int(place_from_start)] = until_ms

    def add_ordered(self, key: str, queues: dict[Any, Any]) -> None:
        """Enter what an ordered group holds: `o` offsets (the first absolute), `cm` bits of acknowledged ones."""
        topic, _, group = key.partition("@")
        for queue_id, info in queues.items():
            offsets = info.get("o") or []
            until_ms = int(info.get("popTime", 0)) + int(info.get("i") or 0)
            for number, offset in enumerate(offsets):
                absolute = offset if number == 0 else offsets[0] + offset
                place = (topic, int(queue_id), group)
                if int(info.get("cm", 0)) >> number & 1:
                    self._acknowledged[place].add(absolute)
                else:
                    self._popped[place][absolute] = until_ms

    def held(self) -> dict[tuple[str, int, str], HeldMessages]:
        """Return what was popped and not acknowledged."""
        found = {}
        for place, offsets in self._popped.items():
            left = [
                until
                for offset, until in offsets.items()
                if offset not in self._acknowledged[place]
            ]
            if left:
                found[place] = HeldMessages(len(left), max(left))
        return found


def _lent(store: OpenedStore) -> dict[tuple[str, int, str], HeldMessages]:
    """Return what our broker's journal says was delivered and not finished, by topic, queue, group."""
    table = DeliveryTable()
    found = read_entries(store.disk, posixpath.join(store.root, "pocketmq", FOLDER), [table])
    if store.clean and not found.ended:
        return {}  # Another broker ran on the store since.
    committed = {
        (one.topic, one.queue_id, one.group): one.offset for one in store.committed_offsets()
    }
    lent = {}
    for key, queue in table.found().items():
        place = (key.topic, key.queue, key.group)
        low = committed.get(place, 0)
        untils = [
            one.until_ms
            for offset, one in queue.in_flight.items()
            if low <= offset < queue.looked and one.serial
        ]
        lent[place] = HeldMessages(len(untils), max(untils, default=0), max(low, queue.looked))
    return lent
