"""Searching messages in the files of one store, without its recovery: by key, id, offset and time.

By key: every index file is searched, newest first, and each candidate's record is read to exclude other keys of the
same hash. Ranges of the log without a valid index file (before the oldest file, around a damaged one, after the newest
entry) are scanned byte by byte if they are no larger than SCAN_BYTES, or completely on request. The answer also says
what the files no longer show.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from ...proto.errors import InvalidArgument
from ...proto.message_id import decode_offset_message_id
from ...proto.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY
from ...proto.record import Host, Record
from ...proto.time_text import format_instant
from ...store.disk import Disk
from ...store.format.index import index_key, key_hash
from ...store.index_view import Candidate, IndexFiles, PagedIndex
from ..counted import counted
from .files import Absence, LogFiles, StoredRecord
from .queue_files import QueueEntry, QueueFiles, Queues

TIME_MAX_MS: Final = (1 << 63) - 1
#: A part of the log that no index covers is searched of itself up to so many bytes: a quarter of a second.
SCAN_BYTES: Final = 256 << 20
#: Candidates of one key that are compared; entries of a key that often are no key.
_CANDIDATES_MAX: Final = 100_000
#: Where a topic has no hit: other topics that are named, and candidates that are read in each.
_TOPICS_TOLD: Final = 5
_OTHERS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Store times from BEGIN_MS up to and with END_MS, Unix milliseconds."""

    begin_ms: int = 0
    end_ms: int = TIME_MAX_MS

    def __contains__(self, time_ms: int) -> bool:
        return self.begin_ms <= time_ms <= self.end_ms


ALL_TIMES: Final = TimeRange()


@dataclass(slots=True)
class LookupAnswer:
    """The answer of one store.

    hits: oldest first;  candidates: index entries with the hash that was looked for;  collisions: those that lead to
    a record with another key of the same hash;  strays: to a record that should not be there at all (damage);
    repeats: to a record that another entry led to;  expired: to what the retention has deleted;
    unreadable: places where a record should be;  scanned_bytes: of the log, read because no index covers them;
    may_have_existed: could the message have been there, and be gone, or be out of reach?;  notes: sentences.
    """

    hits: list[StoredRecord] = field(default_factory=list)
    candidates: int = 0
    collisions: int = 0
    strays: int = 0
    repeats: int = 0
    expired: list[Candidate] = field(default_factory=list)
    unreadable: list[Absence] = field(default_factory=list)
    scanned_bytes: int = 0
    may_have_existed: bool = False
    more: bool = False
    notes: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return everything but the hits, as JSON shows it."""
        return {
            "hits": len(self.hits),
            "more": self.more,
            "candidates": self.candidates,
            "collisions": self.collisions,
            "strays": self.strays,
            "repeats": self.repeats,
            "expired": [
                {"log_offset": one.log_offset, "stored_about_ms": one.time_ms, "file": one.file}
                for one in self.expired
            ],
            "unreadable": [
                {"log_offset": one.log_offset, "why": one.why} for one in self.unreadable
            ],
            "scanned_bytes": self.scanned_bytes,
            "may_have_existed": self.may_have_existed,
            "notes": self.notes,
        }

    def sentences(self) -> list[str]:
        """Return the notes for people in addition to the hits."""
        told = []
        if self.collisions:
            told.append(
                f"{counted(self.collisions, 'index entry')} with the same hash, of other keys"
            )
        if self.strays:
            told.append(f"{counted(self.strays, 'index entry')} of records that have other keys")
        if self.expired:
            told.append(_expired_sentence(self.expired))
        told += [f"log offset {one.log_offset:,}: {one.why}" for one in self.unreadable[:8]]
        if len(self.unreadable) > 8:
            told.append(f"and {len(self.unreadable) - 8} more that cannot be read")
        if self.scanned_bytes:
            told.append(f"{self.scanned_bytes:,} bytes of the log that no index covers were read")
        if self.more:
            told.append("there are more: --limit shows them")
        return told + self.notes


def _expired_sentence(expired: list[Candidate]) -> str:
    times = [one.time_ms for one in expired]
    oldest, newest = format_instant(min(times)), format_instant(max(times))
    when = f"at about {oldest}" if min(times) == max(times) else f"from about {oldest} to {newest}"
    return (
        f"{counted(len(expired), 'index entry')} with its hash, of log files that have expired;"
        f" what they held was stored {when}"
    )


def keys_of(record: Record) -> list[str]:
    """Return the keys under which RECORD is indexed, but for its tag."""
    words = [word for word in record.properties.get(KEYS, "").split(KEY_SEPARATOR) if word]
    unique = record.properties.get(UNIQ_KEY)
    return [unique, *words] if unique else words


_Matches = Callable[[Record], bool]


class StoreSearch:
    """The store in ROOT of DISK; GIVEN are sizes by RocketMQ's names. MAPPED: its files are local. Reads only."""

    def __init__(
        self, disk: Disk, root: str, given: Mapping[str, str] | None = None, *, mapped: bool = True
    ) -> None:
        self.root = root
        self.log = LogFiles(disk, posixpath.join(root, "commitlog"), mapped=mapped)
        self.queues = Queues(disk, root, mapped=mapped)
        self.index = IndexFiles(disk, root, given or {}, mapped=mapped)

    def by_key(
        self,
        topic: str | None,
        key: str,
        *,
        kind: str = "K",
        times: TimeRange = ALL_TIMES,
        count: int = 32,
        scan: bool = False,
    ) -> LookupAnswer:
        """Return the newest COUNT messages with KEY (one of its keys, or its id; KIND "T": its tag) stored in TIMES.

        Without TOPIC all topics are looked in. SCAN: read the whole log, whatever the index says.
        """

        def matches(record: Record) -> bool:
            return key in _texts(record, kind) and topic in (None, record.topic)

        found = LookupAnswer()
        self.log.know_of(self.index.end_log_offset)
        hits: dict[int, StoredRecord] = {}
        if not scan:
            for name in self.queues.topics if topic is None else [topic]:
                self._ask_index(index_key(name, key, kind), matches, times, count, found, hits)
        self._ask_log(key, matches, times, scan=scan, found=found, hits=hits)
        ordered = [hits[offset] for offset in sorted(hits)]
        found.more |= len(ordered) > count
        found.hits = ordered[-count:]
        self._tell_what_is_gone(times, found)
        if topic is not None and not ordered:
            self._tell_of_other_topics(topic, key, kind, found)
        return found

    def _tell_of_other_topics(self, topic: str, key: str, kind: str, found: LookupAnswer) -> None:
        """Note which other topics have the KEY: a waiting or failed message is in another topic than its own."""
        others = [
            name
            for name in self.queues.topics
            if name != topic and any(self._hits_of(name, key, kind))
        ]
        if others:
            shown = ", ".join(others[:_TOPICS_TOLD]) + (", …" if len(others) > _TOPICS_TOLD else "")
            found.notes.append(
                f"it is in {shown}: leave --topic out to see it, or ask pocketmq trace"
            )

    def _hits_of(self, topic: str, key: str, kind: str) -> Iterator[bool]:
        """Yield that TOPIC has KEY, as often as one of the first candidates is a hit."""
        candidates = self.index.candidates(index_key(topic, key, kind), 0, TIME_MAX_MS)
        for candidate in islice(candidates, _OTHERS_MAX):
            stored = self.log.at(candidate.log_offset)
            if not isinstance(stored, StoredRecord) or stored.record.topic != topic:
                continue
            if key in _texts(stored.record, kind):
                yield True

    def _ask_index(
        self,
        text: str,
        matches: _Matches,
        times: TimeRange,
        count: int,
        found: LookupAnswer,
        hits: dict[int, StoredRecord],
    ) -> None:
        wanted, own = key_hash(text), 0
        for number, candidate in enumerate(
            self.index.candidates(text, times.begin_ms, times.end_ms)
        ):
            if own > count or number == _CANDIDATES_MAX:
                found.more = True
                return
            found.candidates += 1
            stored = self.log.at(candidate.log_offset)
            if isinstance(stored, Absence):
                if stored.kind == "expired":
                    found.expired.append(candidate)
                else:
                    found.unreadable.append(stored)
            elif candidate.log_offset in hits:
                found.repeats += 1
            elif not matches(stored.record):
                same = wanted in _hashes(stored.record)
                found.collisions += same
                found.strays += not same
            elif stored.record.store_timestamp_ms in times:
                hits[candidate.log_offset] = stored
                own += 1

    def _ask_log(
        self,
        key: str,
        matches: _Matches,
        times: TimeRange,
        *,
        scan: bool,
        found: LookupAnswer,
        hits: dict[int, StoredRecord],
    ) -> None:
        ranges = [(self.log.begin, self.log.data_end)] if scan else self._uncovered()
        if sum(end - begin for begin, end in ranges) > SCAN_BYTES and not scan:
            found.notes += self.index.problems
            if not self.index.files:
                found.notes.append("the store has no index files")
            for begin, end in ranges:
                found.notes.append(
                    f"log offsets {begin:,} to {end:,} are in no index: --scan searches them"
                )
            found.may_have_existed = True
            return
        for begin, end in ranges:
            found.scanned_bytes += end - begin
            for stored in self.log.holding(key.encode(), begin, end):
                if matches(stored.record) and stored.record.store_timestamp_ms in times:
                    hits[stored.log_offset] = stored

    def _uncovered(self) -> list[tuple[int, int]]:
        """Return the ranges of the log that no sound index file covers, in order."""
        ranges, position, doubtful = [], self.log.begin, True
        for file in reversed(self.index.files):
            if file.contradiction is not None:
                doubtful = True
                continue
            if not file.used:
                continue
            if doubtful and file.header.begin_log_offset > position:
                ranges.append((position, file.header.begin_log_offset))
            position, doubtful = max(position, self._behind(file)), False
        if self.log.end > position:
            ranges.append((position, self.log.end))
        return ranges

    def _behind(self, file: PagedIndex) -> int:
        last = self.log.at(file.header.end_log_offset)
        size = len(last.data) if isinstance(last, StoredRecord) else 0
        return file.header.end_log_offset + size

    def _tell_what_is_gone(self, times: TimeRange, found: LookupAnswer) -> None:
        first_ms = self.log.begin_time_ms
        reaches_back = first_ms is not None and times.begin_ms < first_ms and not found.more
        if self.log.begin and first_ms is not None and reaches_back:
            found.notes.append(
                f"messages stored before {format_instant(first_ms)} are gone: the log begins at {self.log.begin:,}"
            )
            found.may_have_existed = True
        found.may_have_existed |= bool(found.expired or found.unreadable)

    def by_id(
        self, message_id: str, topic: str | None = None, *, count: int = 32, scan: bool = False
    ) -> LookupAnswer:
        """Return the message that an offset MESSAGE_ID names, or all that bear the unique one, oldest first.

        An id of 32 or 56 digits may be either; the place that it names is looked at first.
        """
        try:
            host, port, log_offset = decode_offset_message_id(message_id)
        except InvalidArgument:
            return self._by_unique_id(message_id, topic, count=count, scan=scan)
        at_place = self.log.at(log_offset)
        if isinstance(at_place, StoredRecord) and _bears(at_place.record, message_id, topic):
            return LookupAnswer(hits=[at_place])
        found = self._by_unique_id(message_id, topic, count=count, scan=scan)
        if not found.hits and 0 <= log_offset < self.log.limit:
            self._tell_of_place(at_place, Host(host, port), found)
        return found

    def _tell_of_place(
        self, at_place: StoredRecord | Absence, host: Host, found: LookupAnswer
    ) -> None:
        if isinstance(at_place, Absence):
            found.notes.append(f"as an offset id: {at_place.why}")
            found.may_have_existed |= at_place.kind in ("expired", "hole")
            return
        there = at_place.record.store_host
        if there != host:
            found.notes.append(
                f"as an offset id it names the broker at {host}; the record at that place was stored by {there}"
            )

    def _by_unique_id(
        self, text: str, topic: str | None, *, count: int, scan: bool
    ) -> LookupAnswer:
        found = self.by_key(topic, text, count=count, scan=scan)
        found.hits = [one for one in found.hits if one.record.properties.get(UNIQ_KEY) == text]
        return found

    def by_log_offset(self, log_offset: int) -> LookupAnswer:
        """Return the record that begins at LOG_OFFSET."""
        stored = self.log.at(log_offset)
        if isinstance(stored, StoredRecord):
            return LookupAnswer(hits=[stored])
        return LookupAnswer(
            unreadable=[stored], may_have_existed=stored.kind in ("expired", "hole")
        )

    def by_queue_offset(
        self, topic: str, queue: int, offset: int, *, count: int = 1
    ) -> LookupAnswer:
        """Return COUNT messages of a queue from queue offset OFFSET on; none if that one cannot be read."""
        files = self.queues.get(topic, queue)
        if files is None:
            return LookupAnswer(notes=[f"the store has no queue {topic}/{queue}"])
        if files.entry(offset) is None:
            low, high = files.min_offset(self.log), files.max_offset
            note = f"queue {topic}/{queue} has the offsets {low:,} to {high - 1:,}"
            note = (
                note
                if high > low
                else f"queue {topic}/{queue} is empty; the next offset is {high:,}"
            )
            return LookupAnswer(notes=[note], may_have_existed=0 <= offset < high)
        found = LookupAnswer()
        for entry in files.entries_from(offset):
            self._take(entry, found)
            if len(found.hits) == 1 and self._repeats(files, offset, found.hits[0]):
                note = f"the message at offset {offset:,} is lost: its entry duplicates another one"
                return LookupAnswer(notes=[note], may_have_existed=True)
            if len(found.hits) >= count or not found.hits:
                break
        return found

    def _repeats(self, files: QueueFiles, offset: int, stored: StoredRecord) -> bool:
        """Does the entry at OFFSET, which leads to STORED, repeat the entry of the number that STORED bears?"""
        number = stored.record.queue_offset
        own = None if number == offset else files.entry(number)
        return own is not None and own.log_offset == stored.log_offset and not files.is_batch

    def _take(self, entry: QueueEntry, found: LookupAnswer) -> None:
        stored = self.log.at(entry.log_offset)
        if isinstance(stored, StoredRecord):
            found.hits.append(stored)
            return
        found.unreadable.append(stored)
        found.may_have_existed = True

    def by_time(
        self, topic: str, queue: int | None, times: TimeRange, *, count: int = 32
    ) -> LookupAnswer:
        """Return the first COUNT messages of TOPIC (of one QUEUE) stored in TIMES, oldest first."""
        found = LookupAnswer()
        chosen = [one for one in self.queues.of_topic(topic) if queue in (None, one.queue)]
        if not chosen:
            found.notes.append(f"the store has no queue {topic}" + (f"/{queue}" if queue else ""))
            return found
        rows = [
            stored for files in chosen for stored in self._from_time(files, times, count + 1, found)
        ]
        rows = nsmallest(
            count + 1, rows, key=lambda one: (one.record.store_timestamp_ms, one.log_offset)
        )
        found.more = len(rows) > count
        found.hits = rows[:count]
        self._tell_what_is_gone(times, found)
        return found

    def _from_time(
        self, files: QueueFiles, times: TimeRange, count: int, found: LookupAnswer
    ) -> Iterator[StoredRecord]:
        taken = 0
        for entry in files.entries_from(files.offset_at_time(times.begin_ms, self.log)):
            stored = self.log.at(entry.log_offset)
            if isinstance(stored, Absence):
                found.unreadable.append(stored)
                continue
            if stored.record.store_timestamp_ms > times.end_ms or taken == count:
                return
            taken += 1
            yield stored


def _texts(record: Record, kind: str) -> list[str]:
    """Return what RECORD is found by: its tag for KIND "T", else its keys and id."""
    tag = record.properties.get(TAGS)
    return keys_of(record) if kind != "T" else [tag] if tag else []


def _bears(record: Record, offset_id: str, topic: str | None) -> bool:
    return record.message_id == offset_id.upper() and topic in (None, record.topic)


def _hashes(record: Record) -> set[int]:
    """Return the hashes under which RECORD is indexed."""
    texts = [index_key(record.topic, key) for key in keys_of(record)]
    tag = record.properties.get(TAGS)
    if tag:
        texts.append(index_key(record.topic, tag, "T"))
    return {key_hash(text) for text in texts}
