"""The queues of all lite topics of a store (proto/lite_topics.py).

A broker may have 100,000 lite topics with few messages each. So a lite queue is a small object without open files. New
entries wait in memory (`tail`), and a flush job (lite_files.py) writes them to the files of RocketMQ:
`consumequeue/%LMQ%$parent$lite/0/`, with the entries of a plain queue (format/queues.py).

Everything is derived from the properties of records in the log: INNER_MULTI_DISPATCH is the queue,
INNER_MULTI_QUEUE_OFFSET the number in it. A start derives again what the files may lack (recovery/lite.py).

In place of a lost message there are copies of the entry after it. Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np

from ..proto.errors import DiskFailure, StoreMismatch
from ..proto.lite_topics import LITE_QUEUE, split_lite_queue
from ..proto.record_run import QUEUE_OFFSET_MAX, Longs
from .config import StoreConfig
from .disk import Disk
from .files import NAME_DIGITS, file_name
from .format.queues import ENTRY, PRE_BLANK_SIZE

#: Log offset, size and tags code of one message.
LiteEntry: TypeAlias = tuple[int, int, int]
#: A wider gap in the numbers is damage of a number.
_GAP_MAX: Final = 100_000
#: Bytes of the longest name of a folder.
_FOLDER_NAME_MAX: Final = 255
#: The names that RocketMQ gives lite topics.
_LITE_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
#: Entries of a file that are read first to find its end.
_FIRST_READ: Final = 200


class LiteQueue:
    """The queue of one lite topic: numbers [first, end).

    written: entries before this number are in files; the others are in `tail`.
    max_log_end: the end of the newest record in the log; −1 without entries.
    """

    __slots__ = (
        "_low",
        "_low_log_begin",
        "_table",
        "end",
        "era",
        "first",
        "is_rewritten",
        "max_log_end",
        "tail",
        "topic",
        "used_to",
        "written",
    )

    queue: Final = LITE_QUEUE

    def __init__(self, table: LiteQueues, topic: str) -> None:
        self._table = table
        self.topic = topic
        self.first = self.end = self.written = 0
        self.tail: list[LiteEntry] = []
        self.max_log_end = -1
        #: Before this number, the files may contain old entries, which the next write replaces by zeros.
        self.used_to = 0
        #: Must the next write begin with new files?
        self.is_rewritten = False
        #: Changes when entries are removed: an earlier flush job does not count then.
        self.era = 0
        self._low = 0
        self._low_log_begin = -1

    @property
    def min_offset(self) -> int:
        """The first number whose record is in the log."""
        begin = self._table.log_begin
        if self._low_log_begin != begin:
            self._low = self._first_in_log(begin)
            self._low_log_begin = begin
        return max(self._low, self.first)

    def _first_in_log(self, begin: int) -> int:
        if begin <= 0 or self.end == self.first:
            return self.first
        oldest = self.log_offset(self.first)
        if oldest is not None and oldest >= begin:
            return self.first
        return self.end if self.max_log_end <= begin else self.first_from(begin)

    @property
    def max_offset(self) -> int:
        """The number of the next message."""
        return self.end

    @property
    def newest_log_offset(self) -> int | None:
        """The log offset of the newest message; None without entries."""
        return self.log_offset(self.end - 1) if self.end > self.first else None

    @property
    def open_path(self) -> str:
        """The path of the file to which the next entry is written."""
        at, size = self.written * ENTRY.size, self._table.file_size
        return self._table.path_of(self.topic, at // size * size)

    def entries(self, first: int, count: int) -> tuple[Longs, Longs, Longs]:
        """Return log offsets, sizes and tags codes of up to COUNT messages from FIRST on; fewer at the end of a file.

        A log offset −1 marks a place without a message.
        """
        first = max(first, self.first)
        count = min(count, self.end - first)
        if count <= 0:
            none = np.zeros(0, np.int64)
            return none, none, none
        if first >= self.written:
            at = first - self.written
            rows = np.array(self.tail[at : at + count], np.int64).reshape(-1, 3)
            return rows[:, 0], rows[:, 1], rows[:, 2]
        data = self._table.read(self.topic, first, min(count, self.written - first))
        read = ENTRY.columns(data)
        sizes = read["size"].astype(np.int64)
        log_offsets = read["log_offset"].astype(np.int64)
        log_offsets[(sizes <= 0) | (sizes == PRE_BLANK_SIZE)] = -1
        return log_offsets, sizes, read["tags_code"].astype(np.int64)

    def log_offset(self, number: int) -> int | None:
        """Return the log offset of the message NUMBER; None if there is none."""
        if number < self.first:
            return None
        found = self.entries(number, 1)[0]
        return int(found[0]) if len(found) and found[0] >= 0 else None

    def offset_behind_hole(self, offset: int) -> int:
        """Return OFFSET: there are no holes."""
        return offset

    def first_from(self, log_offset: int) -> int:
        """Return the number of the first message at LOG_OFFSET or after it; `end` if there is none."""

        def is_later(number: int) -> bool:
            found = self.log_offset(number)
            return found is not None and found >= log_offset

        return self.first + bisect_left(range(self.first, self.end), True, key=is_later)

    def put(self, number: int, entry: LiteEntry) -> bool:
        """Add a message, read from the log or new; return whether it was unknown.

        A number that cannot be right, because it was used before or is far too high, is replaced by the next one.
        """
        log_offset, size, _ = entry
        if log_offset + size <= self.max_log_end:
            return False
        if self.end == 0 and not self.tail and 0 < number <= QUEUE_OFFSET_MAX:
            self.begin_at(number)
        gap = number - self.end
        if 0 < gap <= _GAP_MAX:
            self.tail += [entry] * gap
            self.end += gap
        self.tail.append(entry)
        self.end += 1
        self.max_log_end = log_offset + size
        self._table.touch(self)
        return True

    def begin_at(self, number: int, log_end: int = -1) -> None:
        """Remove all entries; the next message gets NUMBER, and the files contain no message before it.

        Messages before LOG_END of the log are not entered again.
        """
        self.first = self.end = self.written = number
        self.tail = []
        self.max_log_end = log_end
        self.is_rewritten = True
        self.era += 1
        self._low = number
        self._low_log_begin = -1
        self._table.touch(self)

    def cut_to(self, end: int) -> None:
        """Remove the messages from number END on."""
        if end >= self.end:
            return
        self.used_to = max(self.used_to, self.written)
        if end < self.written:
            self.written, self.tail = end, []
        else:
            del self.tail[end - self.written :]
        self.end = max(end, self.first)
        self.written = min(self.written, self.end)
        self.era += 1
        self._low_log_begin = -1
        self.find_log_end()
        self._table.touch(self)

    def find_log_end(self) -> None:
        """Set `max_log_end` from the newest entry."""
        self.max_log_end = -1
        if self.end > self.first:
            log_offsets, sizes, _ = self.entries(self.end - 1, 1)
            if len(sizes) and log_offsets[0] >= 0:
                self.max_log_end = int(log_offsets[0]) + int(sizes[0])

    def note_written(self, era: int, count: int) -> None:
        """Note that COUNT entries of the tail are in the files, as of ERA."""
        if era == self.era:
            self.written += count
            self.tail = self.tail[count:]
            self.is_rewritten = False
            self.used_to = 0


class LiteQueues:
    """All lite queues of one store."""

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self._disk = disk
        self.folder = config.queue_folder
        self.file_size = config.queue_file_size_bytes // ENTRY.size * ENTRY.size
        self._rows: dict[str, LiteQueue] = {}
        #: Queues with something to write.
        self.touched: dict[LiteQueue, None] = {}
        #: Names of queues whose files cannot be used: they must be derived from the whole log.
        self.unusable: list[str] = []
        #: The start of the log.
        self.log_begin = 0
        self._arrived: dict[str, None] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[LiteQueue]:
        return iter(list(self._rows.values()))

    def get(self, topic: str) -> LiteQueue | None:
        """Return the queue with the name TOPIC; None if there is none."""
        return self._rows.get(topic)

    def find_or_make(self, topic: str) -> LiteQueue:
        """Return the queue with the name TOPIC; a new one without files if there is none."""
        found = self._rows.get(topic)
        if found is None:
            found = self._rows[topic] = LiteQueue(self, topic)
        return found

    def begin_log_at(self, log_offset: int) -> None:
        """Note that the log begins at LOG_OFFSET."""
        self.log_begin = log_offset

    @property
    def extent(self) -> tuple[int, int]:
        """The number of queues, and the sum of their ends."""
        return len(self._rows), sum([queue.end for queue in self._rows.values()])

    def touch(self, queue: LiteQueue) -> None:
        """Note that QUEUE has something to write."""
        self.touched[queue] = None

    def enter(self, record_topic: str, dispatch: bytes, number: bytes, entry: LiteEntry) -> None:
        """Enter a record of RECORD_TOPIC with these values of its two properties.

        Copies of a record in other topics, like dead letters, have the properties as well and are left out. (RocketMQ
        enters dead letters, and loses later messages because of them.)
        """
        found = lite_place(record_topic, dispatch, number)
        if found is None:
            return
        is_new = self.find_or_make(found[0]).put(found[1], entry)
        if is_new and self._arrived is not None:
            self._arrived[found[0]] = None

    def watch(self) -> None:
        """From now on note which queues get messages, for `take_arrived`."""
        self._arrived = {}

    def take_arrived(self) -> list[str]:
        """Return the names of queues that got messages since the last call."""
        if not self._arrived:
            return []
        arrived, self._arrived = self._arrived, {}
        return list(arrived)

    # --- files

    def read(self, topic: str, first: int, count: int) -> bytes:
        """Return up to COUNT entries of the files of TOPIC from number FIRST on; fewer at the end of a file."""
        at = first * ENTRY.size
        start = at // self.file_size * self.file_size
        size = min(count * ENTRY.size, start + self.file_size - at)
        path = self.path_of(topic, start)
        try:
            data = self._disk.read_at(path, at - start, size)
        except FileNotFoundError:
            data = b""
        if len(data) < size:
            raise DiskFailure(
                f"{path} lacks entries that were written: another program changed it",
                path=path,
                reason="too short",
            )
        return data

    def path_of(self, topic: str, start: int) -> str:
        """Return the path of the file of TOPIC that begins at byte START of its sequence."""
        return os.path.join(self.folder_of(topic), file_name(start))

    def folder_of(self, topic: str) -> str:
        """Return the folder of the files of TOPIC."""
        return os.path.join(self.folder, topic, str(LITE_QUEUE))

    def load(self, topic: str) -> None:
        """Open the queue with the name TOPIC, which has a folder."""
        queue = self.find_or_make(topic)
        folder = self.folder_of(topic)
        files = [each for each in self._disk.list(folder) if not each.is_folder and each.size]
        starts = [int(each.name) if _is_start(each.name) else -1 for each in files]
        if not files:
            return
        wanted = [*range(starts[0], starts[0] + len(files) * self.file_size, self.file_size)]
        if starts != wanted or starts[0] < 0 or starts[0] % self.file_size:
            self._note_unusable(queue)
            return
        sizes = {each.size for each in files}
        if sizes != {self.file_size}:
            if len(sizes) == 1 and max(sizes) > self.file_size:
                raise StoreMismatch(
                    f"{folder}: the files have {max(sizes):,} bytes, but the setting is {self.file_size:,}: set"
                    " store.queue_file_size_bytes to the size of the files",
                    path=folder,
                )
            self._note_unusable(queue)
            return
        queue.first = starts[0] // ENTRY.size
        for start in reversed(starts):
            used = self._used(topic, start)
            if used or start == starts[0]:
                queue.end = queue.written = start // ENTRY.size + used
                break
        queue.first += self._blanks(queue)
        queue.find_log_end()

    def _blanks(self, queue: LiteQueue) -> int:
        """Return how many entries at the beginning of QUEUE are pre-blank."""
        numbers = range(queue.first, queue.end)
        if numbers and queue.log_offset(numbers[0]) is not None:
            return 0  # Most queues have none.
        return bisect_left(numbers, True, key=lambda at: queue.log_offset(at) is not None)

    def _note_unusable(self, queue: LiteQueue) -> None:
        queue.begin_at(0)
        self.unusable.append(queue.topic)

    def _used(self, topic: str, start: int) -> int:
        """Return the number of used entries at the beginning of a file."""
        first, count = start // ENTRY.size, self.file_size // ENTRY.size
        sizes = ENTRY.columns(self.read(topic, first, _FIRST_READ))["size"]
        if not (sizes > 0).all():
            return int((sizes <= 0).argmax())

        def is_unused(at: int) -> bool:
            return int(ENTRY.columns(self.read(topic, first + at, 1))["size"][0]) <= 0

        return bisect_left(range(count), True, len(sizes), key=is_unused)

    # --- what happens to the store

    def truncate(self, log_end: int) -> int:
        """Remove all messages that are at LOG_END of the log or after it; return how many."""
        count = 0
        for queue in self:
            if queue.max_log_end > log_end:
                before = queue.end
                queue.cut_to(queue.first_from(log_end))
                count += before - queue.end
        return count

    def delete_parent(self, parent: str, before: int | None = None) -> list[str]:
        """Remove the lite queues of the topic PARENT; with BEFORE, only those whose newest record ends there or before.

        Return their names.
        """
        gone = [
            queue
            for queue in self
            if (split_lite_queue(queue.topic) or ("",))[0] == parent
            and (before is None or queue.max_log_end <= before)
        ]
        for queue in gone:
            self.delete(queue)
        return [queue.topic for queue in gone]

    def delete(self, queue: LiteQueue) -> None:
        """Remove QUEUE with its files."""
        del self._rows[queue.topic]
        self.touched.pop(queue, None)
        queue.era += 1
        self._disk.delete_folder(os.path.join(self.folder, queue.topic))

    def is_current(self, queue: LiteQueue) -> bool:
        """Was QUEUE not deleted?"""
        return self._rows.get(queue.topic) is queue

    def delete_expired(self) -> int:
        """Delete leading files of queues with only messages before the start of the log; return how many.

        The last file of a queue stays.
        """
        count = 0
        each = self.file_size // ENTRY.size
        for queue in self:
            if queue.written - queue.first <= each - queue.first % each:
                continue
            low = min(queue.min_offset, queue.written - 1) // each * each
            for number in range(queue.first // each * each, low, each):
                self._disk.delete(self.path_of(queue.topic, number * ENTRY.size))
                count += 1
            queue.first = max(queue.first, low)
        return count


def _is_start(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def _is_folder_name(name: str) -> bool:
    return "/" not in name and "\0" not in name and len(name.encode()) <= _FOLDER_NAME_MAX


def lite_place(record_topic: str, dispatch: bytes, number: bytes) -> tuple[str, int] | None:
    """Return queue and number of a record of RECORD_TOPIC with these values of its properties; None: it has no place.

    Other light queues, for which the first property may name several, are not lite queues. Clients can forge the
    properties: a name that no lite topic has, or no folder can have, is none.
    """
    name = dispatch.decode("utf-8", "replace")
    names = split_lite_queue(name)
    if names is None or names[0] != record_topic or not number.isdigit():
        return None
    if not (_LITE_NAME.fullmatch(names[1]) and _is_folder_name(name)):
        return None
    return (name, int(number)) if len(number) <= NAME_DIGITS - 2 else None
