"""Reads the copies of one message, and other evidence about it, from the files of a store.

Each part has a limit, and is only read if a copy needs it. Damage makes a note, never an error. Instead of a table that
is missing, empty or does not parse, its `.bak` is read, as in a broker. If both are unreadable, there is a note and an
empty table.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar, cast

import numpy as np

from ...broker.consume_stats import stats_in
from ...broker.transactions.records import resolved_offsets
from ...proto.message_id import offset_message_id
from ...proto.properties import UNIQ_KEY
from ...proto.topics import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from ...store.checkpoints import TimerCheckpoint, read_timer_checkpoint
from ...store.disk import Disk
from ...store.format.java_json import Json, parse
from ...store.format.state_tables import (
    ConsumerOffsets,
    parse_consumer_offsets,
    parse_delay_offsets,
    parse_groups,
)
from ...store.format.timer_log import DELETE, RECORD, RECORD_SIZE, ROLL
from ...store.listing import PagedRow
from ...store.offsets_file import offsets_file
from ..find.files import StoredRecord
from ..find.queue_files import QueueFiles
from ..find.search import SCAN_BYTES, StoreSearch
from .copies import REVIVE_PREFIX, origin_offset, role_of
from .evidence import Evidence, Filter, GroupReading, Place, PopMark, TimerMark

T = TypeVar("T")
_AT: Final = "@"
#: Limit of copies of one message.
COPIES_MAX: Final = 1_000
#: Limit of records of one kind that are read.
MARKS_MAX: Final = 50_000
#: More than the cached pages of a remote file, so that one request reads them.
_TIMER_PIECE_RECORDS: Final = 1 << 17
_ACK_TAGS: Final = ("ack", "bAck")


class ProgressTables:
    """The tables in the folder config of the store at ROOT; NOTES collects problems."""

    def __init__(self, disk: Disk, root: str, notes: list[str]) -> None:
        self._disk = disk
        self._root = root
        self._folder = posixpath.join(root, "config")
        self._notes = notes

    def readings(self) -> dict[tuple[str, int], list[GroupReading]]:
        """Return the offset of each group, by topic and queue."""
        name = offsets_file(self._disk, self._root)
        table, at_ms = self._offsets(name)
        earlier, earlier_ms = self._offsets(f"{name}.bak")
        if table is None:
            table, at_ms = earlier, earlier_ms
            earlier, earlier_ms = None, None
        if table is None:
            paths = [posixpath.join(self._folder, one) for one in (name, f"{name}.bak")]
            self._notes.append(
                f"cannot read {name}: the offsets of groups are not known"
                if any(map(self._disk.exists, paths))
                else f"no group has committed offsets yet: the store has no {name}"
            )
            return {}
        assert at_ms is not None, "a table that was read has a time"
        before = {} if earlier is None else earlier.offsets
        found: dict[tuple[str, int], list[GroupReading]] = {}
        for key, queues in table.offsets.items():
            topic, _, group = key.partition(_AT)
            for queue, committed in queues.items():
                then = before.get(key, {}).get(queue)
                reading = GroupReading(
                    group, committed, at_ms, then, None if then is None else earlier_ms
                )
                found.setdefault((topic, queue), []).append(reading)
        return found

    def _offsets(self, name: str) -> tuple[ConsumerOffsets | None, int | None]:
        """Return the table in the file NAME, and when that was written."""
        path = posixpath.join(self._folder, name)
        table = self._parsed(path, parse_consumer_offsets)
        return (None, None) if table is None else (table, self._disk.modified_ms(path))

    def filters(self) -> dict[tuple[str, str], Filter]:
        """Return the filters in the tables, by topic and group."""
        found = dict(_of_groups(self._either("subscriptionGroup.json", parse_groups)))
        document = self._either("consumerFilter.json", parse)
        found.update(_of_filter_table(document))
        return found

    def held_in_order(self) -> dict[Place, list[PopMark]]:
        """Return messages in flight of POP consumers in order: popped, not acknowledged."""
        document = self._either("consumerOrderInfo.json", parse)
        table = document.get("table") if isinstance(document, dict) else None
        found: dict[Place, list[PopMark]] = {}
        for key, queues in table.items() if isinstance(table, dict) else ():
            topic, _, group = str(key).partition(_AT)
            for queue, bean in queues.items() if isinstance(queues, dict) else ():
                if not str(queue).isdecimal():
                    continue
                for offset, mark in _held(group, bean):
                    found.setdefault((topic, int(queue), offset), []).append(mark)
        return found

    def delay_progress(self) -> Mapping[int, int] | None:
        """Return the next queue offset to deliver, by delay level; None without the table."""
        table = self._either("delayOffset.json", parse_delay_offsets)
        return None if table is None else table.offsets

    def timer_checkpoint(self) -> TimerCheckpoint | None:
        """Return the progress of the timers; None: not known."""
        try:
            found = read_timer_checkpoint(self._disk, posixpath.join(self._folder, "timercheck"))
        except OSError:
            return None
        return None if found.is_empty else found

    def _either(self, name: str, parse_text: Callable[[str], T]) -> T | None:
        path = posixpath.join(self._folder, name)
        found = self._parsed(path, parse_text)
        return self._parsed(f"{path}.bak", parse_text) if found is None else found

    def _parsed(self, path: str, parse_text: Callable[[str], T]) -> T | None:
        try:
            data = self._disk.read(path)
            found = parse_text(data.decode("utf-8")) if data else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._notes.append(f"cannot read {path}: {error}")
            return None
        self._notes += (
            f"{path}: the entry {name[:200]!r} is left out: {one.reason}"
            for name, one in getattr(found, "unread", {}).items()
        )
        return found


def _of_groups(table: Any) -> Iterator[tuple[tuple[str, str], Filter]]:
    """Yield the filters in the beans of subscription groups."""
    for name, group in {} if table is None else table.groups.items():
        for bean in group.subscriptions or ():
            topic, filtered = _filter(bean)
            if filtered is not None:
                yield (topic, name), filtered


def _of_filter_table(document: Json) -> Iterator[tuple[tuple[str, str], Filter]]:
    """Yield the filters in consumerFilter.json."""
    for by_topic in _objects(document, "filterDataByTopic"):
        for bean in _objects(by_topic, "groupFilterData"):
            topic, filtered = _filter(bean)
            if filtered is not None and isinstance(bean, dict):
                yield (topic, str(bean.get("consumerGroup"))), filtered


def _held(group: str, bean: Json) -> Iterator[tuple[int, PopMark]]:
    """Yield the offsets in BEAN without acknowledgement: the first, distances from it, and a bit for each."""
    if not isinstance(bean, dict):
        return
    offsets, acknowledged = bean.get("o"), bean.get("cm", 0)
    popped_ms, invisible_ms = bean.get("popTime"), bean.get("i")
    if not isinstance(offsets, list) or not all(isinstance(one, int) for one in offsets):
        return
    if not isinstance(acknowledged, int) or not isinstance(popped_ms, int):
        return
    hidden_ms = invisible_ms if isinstance(invisible_ms, int) else None
    for number, distance in enumerate(offsets):
        assert isinstance(distance, int), "checked before"
        offset = distance if not number else cast(int, offsets[0]) + distance
        if not acknowledged >> number & 1:
            yield offset, PopMark(False, group, popped_ms, popped_ms, hidden_ms, None)


def _objects(value: Json, name: str) -> list[Json]:
    table = value.get(name) if isinstance(value, dict) else None
    return list(table.values()) if isinstance(table, dict) else []


def _filter(bean: Json) -> tuple[str, Filter | None]:
    """Return topic and filter of BEAN; None for a filter that matches everything."""
    if not isinstance(bean, dict):
        return "", None
    expression, kind = bean.get("expression"), bean.get("expressionType") or "TAG"
    if (
        not isinstance(expression, str)
        or not isinstance(kind, str)
        or expression.strip() in ("", "*")
    ):
        return "", None
    return str(bean.get("topic")), Filter(kind, expression)


class Witnesses:
    """Reads from the store of SEARCH, on DISK."""

    def __init__(self, disk: Disk, search: StoreSearch, *, mapped: bool) -> None:
        self._disk = disk
        self._search = search
        self._mapped = mapped

    def copies_of(self, known: Sequence[StoredRecord], *, scan: bool) -> list[StoredRecord]:
        """Return all copies of the message with the KNOWN copies, by its unique id and the links between them."""
        found = {one.log_offset: one for one in known}
        for unique in {one.record.properties.get(UNIQ_KEY) for one in known} - {None}:
            assert unique is not None
            hits = self._search.by_id(unique, count=COPIES_MAX, scan=scan).hits
            found |= {one.log_offset: one for one in hits}
        for copy in list(found.values()):
            origin = origin_offset(copy.record)
            first = None if origin is None else self._search.log.at(origin)
            if isinstance(first, StoredRecord):
                found.setdefault(first.log_offset, first)
        if all(one.record.properties.get(UNIQ_KEY) is None for one in known):
            found |= {one.log_offset: one for one in self._linked(known)}
        return [
            found[offset] for offset in sorted(found) if role_of(found[offset].record) != "pop mark"
        ]

    def _linked(self, known: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
        """Yield the records that name one of KNOWN as their origin: the log must be read for it."""
        log = self._search.log
        for one in known:
            if log.end - one.log_offset > SCAN_BYTES:
                continue
            host = one.record.store_host
            name = offset_message_id(host.address, host.port, one.log_offset)
            for later in log.holding(name.encode(), one.log_offset, log.end):
                if origin_offset(later.record) == one.log_offset:
                    yield later

    def evidence(self, copies: Sequence[StoredRecord]) -> Evidence:
        """Return the evidence about COPIES."""
        log, notes = self._search.log, list[str]()
        tables = ProgressTables(self._disk, self._search.root, notes)
        checkpoint = tables.timer_checkpoint()
        return Evidence(
            readings=tables.readings(),
            filters=tables.filters(),
            due_ms=self._due_times(copies),
            delay_progress=tables.delay_progress(),
            timers_read_ms=None if checkpoint is None else checkpoint.last_read_ms,
            timer_marks=self._timer_marks(copies),
            outcomes=self._outcomes(copies),
            pops=self._pops(copies, tables.held_in_order()),
            stats=stats_in(self._disk, self._search.root) or {},
            log_begin=log.begin,
            log_begin_ms=log.begin_time_ms,
            log_changed_ms=self._changed_ms(log.folder),
            notes=notes,
        )

    def _changed_ms(self, folder: str) -> int | None:
        try:
            return self._disk.modified_ms(folder)
        except OSError:
            return None

    def _due_times(self, copies: Sequence[StoredRecord]) -> dict[int, int]:
        """Return the delivery times in the queue entries of delayed copies."""
        found = {}
        for copy in copies:
            if copy.record.topic == SCHEDULE_TOPIC:
                queue = self._search.queues.get(SCHEDULE_TOPIC, copy.record.queue_id)
                entry = None if queue is None else queue.entry(copy.record.queue_offset)
                if entry is not None and entry.log_offset == copy.log_offset:
                    found[copy.log_offset] = entry.tags_code
        return found

    def _timer_marks(self, copies: Sequence[StoredRecord]) -> dict[int, TimerMark]:
        wanted = [one.log_offset for one in copies if one.record.topic == TIMER_TOPIC]
        row = PagedRow(
            self._disk, posixpath.join(self._search.root, "timerlog"), mapped=self._mapped
        )
        found: dict[int, TimerMark] = {}
        for file in row.files if wanted else []:
            for at in range(0, file.size, _TIMER_PIECE_RECORDS * RECORD_SIZE):
                count = min(_TIMER_PIECE_RECORDS, (file.size - at) // RECORD_SIZE)
                rows = RECORD.columns(file.read(at, count * RECORD_SIZE))
                for number in np.flatnonzero(np.isin(rows["log_offset"], wanted)).tolist():
                    if rows[number]["size"] == RECORD_SIZE:
                        place = at + number * RECORD_SIZE
                        mark = _timer_mark(rows[number], file.path, file.start + place)
                        found[int(rows[number]["log_offset"])] = mark
                if not len(rows) or not rows[-1]["size"]:
                    break
        return found

    def _outcomes(self, copies: Sequence[StoredRecord]) -> dict[tuple[int, int], StoredRecord]:
        """Return the records that resolve half messages among COPIES."""
        halves = [one.record for one in copies if one.record.topic == HALF_TOPIC]
        found: dict[tuple[int, int], StoredRecord] = {}
        if not halves:
            return found
        wanted = {(half.queue_id, half.queue_offset) for half in halves}
        since_ms = min(half.store_timestamp_ms for half in halves)
        for queue in self._search.queues.of_topic(OP_HALF_TOPIC):
            for mark in self._since(queue, since_ms):
                for offset in resolved_offsets(mark.record.body):
                    if (queue.queue, offset) in wanted:
                        found.setdefault((queue.queue, offset), mark)
        return found

    def _since(self, queue: QueueFiles, time_ms: int) -> Iterator[StoredRecord]:
        """Yield up to MARKS_MAX records of QUEUE, stored at TIME_MS or later."""
        log = self._search.log
        entries = queue.entries_from(queue.offset_at_time(time_ms, log))
        for entry in islice(entries, MARKS_MAX):
            stored = log.at(entry.log_offset)
            if isinstance(stored, StoredRecord):
                yield stored

    def _pops(
        self, copies: Sequence[StoredRecord], in_order: dict[Place, list[PopMark]]
    ) -> dict[Place, list[PopMark]]:
        """Return the check points of copies and their acknowledgements, in order of time; and those IN_ORDER."""
        seen = [one.record for one in copies if role_of(one.record) in ("message", "retry")]
        revive = [topic for topic in self._search.queues.topics if topic.startswith(REVIVE_PREFIX)]
        if not seen or not revive:
            return in_order
        places = {(one.topic, one.queue_id, one.queue_offset) for one in seen}
        since_ms = min(one.store_timestamp_ms for one in seen)
        marks: dict[tuple[str, Place], PopMark] = {}
        for topic in (TIMER_TOPIC, *revive):
            for queue in self._search.queues.of_topic(topic):
                for stored in self._since(queue, since_ms):
                    for place, mark in _pop_marks(stored, places):
                        marks.setdefault((stored.record.properties.get(UNIQ_KEY, ""), place), mark)
        found = dict(in_order)
        for (_, place), mark in sorted(marks.items(), key=lambda item: item[1].time_ms):
            found.setdefault(place, []).append(mark)
        return found


def _timer_mark(row: Any, path: str, position: int) -> TimerMark:
    magic = int(row["magic"])
    return TimerMark(
        path=path,
        position=position,
        slot_ms=int(row["write_ms"]) + int(row["delay_ms"]),
        is_roll=bool(magic & ROLL),
        is_delete=bool(magic & DELETE),
    )


def _pop_marks(stored: StoredRecord, places: set[Place]) -> Iterator[tuple[Place, PopMark]]:
    """Yield the marks in STORED about PLACES, if it is a check point or an acknowledgement."""
    tag = stored.record.properties.get("TAGS")
    if tag != "ck" and tag not in _ACK_TAGS:
        return
    try:
        body = json.loads(stored.record.body)
        topic, queue, group = str(body["t"]), int(body["q"]), str(body["c"])
        offsets = _checked(body) if tag == "ck" else _acknowledged(body)
        invisible_ms = int(body["it"]) if tag == "ck" else None
        popped_ms = int(body["pt"])
        time_ms = popped_ms if tag == "ck" else stored.record.born_timestamp_ms
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for offset in offsets:
        if (topic, queue, offset) in places:
            mark = PopMark(
                is_ack=tag != "ck",
                group=group,
                time_ms=time_ms,
                popped_ms=popped_ms,
                invisible_ms=invisible_ms,
                copy=stored,
            )
            yield (topic, queue, offset), mark


def _checked(body: Any) -> list[int]:
    """Return the queue offsets that a check point holds."""
    start, count = int(body["so"]), min(int(body["n"]), 1024)
    distances = body.get("d") or range(count)
    return [start + int(distance) for distance in distances]


def _acknowledged(body: Any) -> list[int]:
    """Return the queue offsets that an acknowledgement, or a batch of them, names."""
    several = body.get("aol") or body.get("aoList")
    return [int(one) for one in several] if several else [int(body["ao"])]
