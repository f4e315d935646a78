"""Derives the queues of lite topics from the records that a start has read (store/lite_queues.py).

If only the newer part of the log is read, the files contain all older entries. Newer ones in the files are compared
with the records, and replaced if they differ. If the whole log is read, the queues must be exactly as derived:

    number 0 again, then 1      RocketMQ had deleted the expired lite topic: earlier messages stay deleted
    no files, and the newest message is older than the topic's expiration
                                the lite topic has expired: it is not revived, its numbers continue
    entries of other records    RocketMQ enters dead letters, and then loses messages: the queue is rebuilt
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from ...proto.lite_topics import split_lite_queue
from ...proto.properties import MULTI_DISPATCH
from ...proto.property_ranges import PropertyRanges, tags_codes
from ..consume_queues import stored_topics
from ..dispatch import lite_records
from ..lite_queues import LiteEntry, LiteQueue, lite_place
from ..parts import StoreParts
from .report import FindingKind, RecoveryFinding
from .scan import ScannedFile
from .verified import Verified

#: The topic attribute with the expiration in minutes; absent or not positive: never.
EXPIRATION: Final = "lite.topic.expiration"
_MINUTE_MS: Final = 60_000
#: Values per record: number, log offset, size, tags code, store time.
_WIDTH: Final = 5


class LiteDerivation:
    """Derives the lite queues of PARTS from FILES: the whole log, or the part that is newer than KNOWN."""

    def __init__(
        self,
        parts: StoreParts,
        files: list[ScannedFile],
        findings: list[RecoveryFinding],
        *,
        clean: bool,
        known: Verified | None,
    ) -> None:
        self._parts = parts
        self._lite = parts.queues.lite
        self._files = files
        self._findings = findings
        self._clean = clean
        self._known = known
        #: The records of each queue, _WIDTH values each.
        self._found: dict[str, array[int]] = {}

    def derive(self) -> None:
        """Complete or rebuild all lite queues."""
        for scanned in self._files:
            self._collect(scanned)
        names = dict.fromkeys([*self._found, *(queue.topic for queue in self._lite)])
        if self._known is None:
            for name in names:
                self._rebuild(name)
        else:
            for name in names:
                self._continue(name, self._known.log_end)
        self._lite.begin_log_at(self._parts.log.min_offset)

    def _collect(self, scanned: ScannedFile) -> None:
        # One search in all bytes costs a store without lite topics least.
        if not len(scanned) or bytes_find(scanned, MULTI_DISPATCH.encode()) < 0:
            return
        data, columns = scanned.file.data, scanned.columns
        properties = PropertyRanges(data, columns)
        codes = tags_codes(data, properties)
        times = dict(zip(columns.log_offset.tolist(), columns.store_ms.tolist(), strict=True))
        for topic, dispatch, said, entry in lite_records(data, columns, properties, codes):
            place = lite_place(topic, dispatch, said)
            if place is not None:
                values = self._found.setdefault(place[0], array("q"))
                values.extend((place[1], *entry, times[entry[0]]))

    def _continue(self, name: str, known_end: int) -> None:
        """Let the queue NAME have its verified entries, and then the records that were read."""
        queue = self._lite.find_or_make(name)
        found = self._found.get(name, array("q"))
        kept = queue.first_from(known_end) if queue.max_log_end > known_end else queue.end
        newer = queue.end - kept
        if newer and not (self._clean and _is_derived(queue, kept, found)):
            if self._clean:
                self._note(queue, newer)
            queue.cut_to(kept)
        for number, entry in _entries(found):
            queue.put(number, entry)

    def _rebuild(self, name: str) -> None:
        """Let the queue NAME have exactly the records that were read."""
        queue = self._lite.find_or_make(name)
        found = _newest_life(self._found.get(name, array("q")))
        if not len(found):
            self._without_records(queue)
            return
        first = found[0]
        has_files = queue.end > queue.first
        if not has_files and not self._is_unusable(name) and self._has_expired(name, found[-1]):
            queue.begin_at(found[-_WIDTH] + 1, found[-_WIDTH + 1] + found[-_WIDTH + 2])
            return
        is_right = (
            self._clean
            and has_files
            and queue.first_from(self._parts.log.min_offset) == first
            and _is_derived(queue, first, found)
        )
        if not is_right:
            if has_files and self._clean:
                self._note(queue, len(found) // _WIDTH)
            queue.begin_at(first)
        for number, entry in _entries(found):
            queue.put(number, entry)

    def _without_records(self, queue: LiteQueue) -> None:
        """Remove entries of QUEUE that are not its own; those of deleted records stay, so that numbers continue."""
        older = queue.first_from(self._parts.log.min_offset)
        if older < queue.end:
            self._note(queue, queue.end - older)
            queue.cut_to(older)

    def _is_unusable(self, name: str) -> bool:
        return name in self._lite.unusable

    def _has_expired(self, name: str, newest_ms: int) -> bool:
        names = split_lite_queue(name)
        config = self._parts.config
        topics = stored_topics(self._parts.disk, config.state_folder)
        topic = None if names is None else topics.get(names[0])
        said = "" if topic is None else topic.attributes.get(EXPIRATION, "")
        minutes = int(said) if said.isdecimal() and len(said) < 10 else 0
        return minutes > 0 and newest_ms + minutes * _MINUTE_MS < self._parts.dispatcher.now_ms()

    def _note(self, queue: LiteQueue, records: int) -> None:
        why = "entries are not those of the log's records: rebuilt from the log"
        path = self._lite.folder_of(queue.topic)
        self._findings.append(
            RecoveryFinding(kind=FindingKind.REBUILT, path=path, why=why, records=records)
        )


def bytes_find(scanned: ScannedFile, wanted: bytes) -> int:
    """Return where WANTED is in the valid part of a file; −1 if it is not there."""
    begin, end = int(scanned.columns.starts[0]), scanned.end
    step, width = 1 << 22, len(wanted)
    view = scanned.file.view
    for at in range(begin, end, step):
        place = bytes(view[at : min(end, at + step + width)]).find(wanted)
        if place >= 0:
            return at + place
    return -1


def _entries(found: array[int]) -> Iterator[tuple[int, LiteEntry]]:
    for at in range(0, len(found), _WIDTH):
        number, log_offset, size, code, _ = found[at : at + _WIDTH]
        yield number, (log_offset, size, code)


def _newest_life(found: array[int]) -> array[int]:
    """Return the records since the queue started again at 0."""
    numbers = found[::_WIDTH]
    for row in range(len(numbers) - 1, 0, -1):
        if numbers[row] == 0 and (row + 1 == len(numbers) or numbers[row + 1] == 1):
            return found[row * _WIDTH :]
    return found


def _is_derived(queue: LiteQueue, first: int, found: array[int]) -> bool:
    """Are the entries of QUEUE from number FIRST on, if there are any, the first records of FOUND?"""
    count = queue.end - first
    rows = list(_entries(found))
    if count > len(rows):
        return False
    at = first
    while at < queue.end:
        columns = queue.entries(at, queue.end - at)
        read = list(zip(*(column.tolist() for column in columns), strict=True))
        wanted = rows[at - first : at - first + len(read)]
        if not read or [(number, entry) for number, entry in wanted] != list(enumerate(read, at)):
            return False
        at += len(read)
    return True
