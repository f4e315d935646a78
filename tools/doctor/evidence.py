"""The messages in the files of a store before any recovery.

The log is read record by record, past damage, as PocketMQ's recovery does. Then all queue entries without a record are
examined. Files that a broker would refuse are read as far as possible.

A message is `SOUND`; `DAMAGED`: its lengths agree, its body does not match its CRC; `MISSING`: its queue entry has no
record; or `DELETED`: only the log has it, because its topic was deleted (and maybe created again). Prepared and
rolled-back records are no messages. Cost: about 60 bytes and 1.6 µs per message of 1 KiB, most of it the CRC.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.errors import CorruptState, PocketMQError
from ...proto.record import SYS_PREPARED, Record, decode_record
from ...proto.record_run import Longs
from ...proto.topics import is_system_topic
from ...store.apache.settings import ApacheSettings
from ...store.consume_queue import BatchConsumeQueue, ConsumeQueue, EntryRow
from ...store.disk import Disk
from ...store.file_changes import stored_changes, with_changes
from ...store.files import MappedFile, equal_file_size
from ...store.format.agreement import is_served
from ...store.format.queues import PRE_BLANK_SIZE
from ...store.format.state_tables import TOPICS
from ...store.recovery.scan import FileScan, ScannedFile
from ...store.rows_by_queue import by_queue
from ...store.state_files import StateFile

Name = tuple[str, int]
Rows = NDArray[np.bool_] | NDArray[np.intp] | Longs


class MessageState(IntEnum):
    """What is known of a message."""

    SOUND = 0
    DAMAGED = 1
    MISSING = 2
    DELETED = 3


_COLUMNS: Final = ("log_offset", "size", "queue", "queue_offset", "store_ms", "state")
_CHUNK: Final = 1 << 20


@dataclass(slots=True)
class Messages:
    """One array per field. QUEUE numbers `StoreEvidence.names`; STORE_MS is −1 if no record shows it."""

    log_offset: Longs
    size: Longs
    queue: Longs
    queue_offset: Longs
    store_ms: Longs
    state: Longs

    def __len__(self) -> int:
        return len(self.log_offset)

    def take(self, rows: Rows) -> Messages:
        """Return the messages ROWS."""
        return Messages(*(getattr(self, name)[rows] for name in _COLUMNS))

    @classmethod
    def joined(cls, parts: list[Messages]) -> Messages:
        """Return the messages of all PARTS, in order of the log."""
        nothing = np.zeros(0, np.int64)
        columns = [
            np.concatenate([nothing, *(getattr(part, name) for part in parts)]) for name in _COLUMNS
        ]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))


@dataclass(frozen=True, slots=True)
class Bad:
    """Bytes [START, END) of the log without a valid record, and why."""

    start: int
    end: int
    why: str


@dataclass(slots=True)
class StoreEvidence:
    """The messages of one store.

    entries: log offsets in the entries of each queue, as the files hold them;  beyond: entries that point beyond the
    last log file;  expired: entries whose messages went with older log files;  used_end: where the last byte of the
    log that is not zero ends;  notes: what could not be read;  topics: those of topics.json, None if it cannot be
    read;  firsts: the first entry of each queue that has some, its queue offset and its log offset.
    """

    messages: Messages
    names: list[Name]
    entries: dict[Name, Longs] = field(default_factory=dict)
    bad: list[Bad] = field(default_factory=list)
    log_files: list[MappedFile] = field(default_factory=list)
    beyond: int = 0
    expired: int = 0
    used_end: int = 0
    notes: list[str] = field(default_factory=list)
    topics: frozenset[str] | None = None
    firsts: dict[Name, tuple[int, int]] = field(default_factory=dict)

    def is_deleted(self, topic: str) -> bool:
        """Was TOPIC deleted? Topics that brokers create for themselves are never."""
        return self.topics is not None and topic not in self.topics and not is_system_topic(topic)

    @property
    def log_begin(self) -> int:
        """Return where the log begins, 0 without files."""
        return self.log_files[0].start if self.log_files else 0

    def count(self, state: MessageState) -> int:
        """Return how many messages are in STATE."""
        return int((self.messages.state == state).sum())

    def why_bad(self, log_offset: int) -> str | None:
        """Return what is wrong with the bytes at LOG_OFFSET; None for nothing that is known."""
        return next((bad.why for bad in self.bad if bad.start <= log_offset < bad.end), None)

    def record(self, log_offset: int) -> Record | None:
        """Return the record at LOG_OFFSET, sound or with a wrong body; None if there is none."""
        for file in self.log_files:
            if file.start <= log_offset < file.end:
                try:
                    return decode_record(file.view, log_offset - file.start)
                except PocketMQError:
                    return None
        return None


def gather(disk: Disk, root: str, settings: ApacheSettings) -> StoreEvidence:
    """Read the store ROOT on DISK, an overlay; nothing is written."""
    return _Gathering(disk, root, settings).run()


class _Gathering:
    """One reading."""

    def __init__(self, disk: Disk, root: str, settings: ApacheSettings) -> None:
        self._disk = disk
        self._root = root
        self._settings = settings
        self._numbers: dict[Name, int] = {}
        self._parts: list[Messages] = []
        self._found = StoreEvidence(Messages.joined([]), [])

    def run(self) -> StoreEvidence:
        found = self._found
        found.log_files = list(self._open_log())
        found.used_end = self._scan()
        in_log = Messages.joined(self._parts)
        for name, row in self._rows():
            self._compare(name, row, in_log.log_offset)
        found.messages = Messages.joined([in_log, *self._parts[self._in_log :]])
        found.names = list(self._numbers)
        found.topics = topics_of(self._disk, self._root)
        self._mark_deleted(found.messages)
        return found

    def _mark_deleted(self, messages: Messages) -> None:
        """Mark the messages of deleted topics, by the same rule as `pocketmq inspect STORE verify`."""
        for name, number in self._numbers.items():
            rows = (messages.queue == number) & (messages.state == MessageState.SOUND)
            first = self._found.firsts.get(name)
            if first is not None:  # The numbers of older messages were taken by later ones.
                rows &= (messages.log_offset < first[1]) & (messages.queue_offset >= first[0])
            elif not self._found.is_deleted(name[0]):
                continue
            messages.state[rows] = int(MessageState.DELETED)

    def _number(self, name: Name) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _open_log(self) -> Iterator[MappedFile]:
        folder = posixpath.join(self._root, "commitlog")
        for entry in self._disk.list(folder):
            path = posixpath.join(folder, entry.name)
            if entry.is_folder or not entry.size:
                continue
            if not (entry.name.isascii() and entry.name.isdigit()):
                self._found.notes.append(f"{path} is no log file")
                continue
            if entry.size != self._settings.log_file_size:
                self._found.notes.append(
                    f"{path} is {entry.size:,} bytes long, the other log files have"
                    f" {self._settings.log_file_size:,}"
                )
            yield MappedFile(self._disk, path, int(entry.name), entry.size, create=False)

    def _scan(self) -> int:
        """Take in what the log holds; return where its last byte ends that is not zero."""
        newest_ms = used_end = 0
        for file in self._found.log_files:
            scanned = FileScan(file, check_crc=self._settings.check_crc, oldest_ms=newest_ms).scan()
            newest_ms = max(newest_ms, scanned.newest_ms)
            self._add_file(scanned)
            used = _used_end(file)
            if used:
                used_end = file.start + used
        self._in_log = len(self._parts)
        return used_end

    def _add_file(self, scanned: ScannedFile) -> None:
        file, columns = scanned.file, scanned.columns
        queued = np.flatnonzero(is_served(columns.sys_flag))
        for topic, queue, rows in by_queue(file.data, columns, queued):
            count = len(rows)
            self._parts.append(
                Messages(
                    columns.log_offset[rows],
                    columns.sizes[rows],
                    np.full(count, self._number((topic, queue))),
                    columns.queue_offset[rows],
                    columns.store_ms[rows],
                    np.full(count, int(MessageState.SOUND)),
                )
            )
        for damage in scanned.damages:
            start = file.start + damage.start
            self._found.bad.append(Bad(start, file.start + damage.end, damage.why))
            if damage.is_framed:
                self._add_damaged(decode_record(file.view, damage.start), start)
        self._add_tail(scanned)

    def _add_tail(self, scanned: ScannedFile) -> None:
        """Examine the bytes after the last valid record of a file: they may be a record with a wrong body."""
        file = scanned.file
        if scanned.has_blank:
            return
        at = scanned.end
        for record, size in _framed(file, at):
            start = file.start + at
            why = "the body does not fit its CRC"
            self._found.bad.append(Bad(start, start + size, why))
            self._add_damaged(record, start)
            at += size
        used = _used_end(file)
        if used > at:
            self._found.bad.append(Bad(file.start + at, file.start + used, "no valid record"))

    def _add_damaged(self, record: Record, start: int) -> None:
        if record.sys_flag & SYS_PREPARED:
            return
        one = (
            start,
            record.total_size,
            self._number((record.topic, record.queue_id)),
            record.queue_offset,
            record.store_timestamp_ms,
            int(MessageState.DAMAGED),
        )
        self._parts.append(Messages(*(np.array([value], np.int64) for value in one)))

    def _rows(self) -> Iterator[tuple[Name, EntryRow]]:
        for kind, size in (
            ("consumequeue", self._settings.queue_file_bytes),
            ("batchconsumequeue", self._settings.batch_queue_file_size),
        ):
            folder = posixpath.join(self._root, kind)
            for topic in self._disk.list(folder):
                for entry in self._disk.list(posixpath.join(folder, topic.name)):
                    if entry.is_folder and entry.name.isascii() and entry.name.isdigit():
                        row = self._row(folder, size, (topic.name, int(entry.name)))
                        if row is not None:
                            yield (topic.name, int(entry.name)), row

    def _row(self, folder: str, size: int, name: Name) -> EntryRow | None:
        path = posixpath.join(folder, name[0], str(name[1]))
        kind = BatchConsumeQueue if folder.endswith("batchconsumequeue") else ConsumeQueue
        length = equal_file_size(self._disk, path) or size
        try:
            return kind.load(self._disk, folder, length, *name)
        except PocketMQError as error:
            self._found.notes.append(f"not looked at: {error.message}")
            return None

    def _compare(self, name: Name, row: EntryRow, in_log: Longs) -> None:
        """Remember the entries of ROW, and the messages that only they tell of."""
        numbers, offsets, sizes = _entries(row)
        found = self._found
        found.entries[name] = offsets
        if len(offsets):
            found.firsts[name] = int(numbers[0]), int(offsets[0])
        files_end = found.log_files[-1].end if found.log_files else 0
        found.expired += int((offsets < found.log_begin).sum())
        found.beyond += int((offsets >= files_end).sum())
        inside = (offsets >= found.log_begin) & (offsets < files_end)
        rows = np.flatnonzero(inside & ~np.isin(offsets, in_log))
        if len(rows):
            count = len(rows)
            self._parts.append(
                Messages(
                    offsets[rows],
                    sizes[rows],
                    np.full(count, self._number(name)),
                    numbers[rows],
                    np.full(count, -1),
                    np.full(count, int(MessageState.MISSING)),
                )
            )


def _entries(row: EntryRow) -> tuple[Longs, Longs, Longs]:
    """Return queue offsets, log offsets and sizes of the entries of ROW that can be any."""
    numbers, offsets, sizes = [np.zeros(0, np.int64)], [], []
    for file in row.files.files:
        entries = row.all_of(file)[: -(-file.data_end() // row.entry_size)]
        log_offset = entries["log_offset"].astype(np.int64)
        size = entries["size"].astype(np.int64)
        good = (log_offset >= 0) & row.valid(entries)
        count = len(good) if good.all() else int(good.argmin())
        own = np.flatnonzero(size[:count] != PRE_BLANK_SIZE)
        first = file.start // row.entry_size
        names = entries.dtype.names or ()
        numbers.append(entries["base"][own].astype(np.int64) if "base" in names else first + own)
        offsets.append(log_offset[own])
        sizes.append(size[own])
    nothing = np.zeros(0, np.int64)
    return (
        np.concatenate(numbers),
        np.concatenate([nothing, *offsets]),
        np.concatenate([nothing, *sizes]),
    )


def _framed(file: MappedFile, at: int) -> Iterator[tuple[Record, int]]:
    """Yield the records from AT on whose lengths agree and whose own log offset is right."""
    while True:
        try:
            record = decode_record(file.view, at)
        except PocketMQError:
            return
        if record.log_offset != file.start + at:
            return
        yield record, record.total_size
        at += record.total_size


def _used_end(file: MappedFile) -> int:
    """Return where the last byte of FILE that is not zero ends; 0 for none."""
    stop = file.data_end()
    while stop > 0:
        begin = max(0, stop - _CHUNK)
        used = np.flatnonzero(file.data[begin:stop])
        if len(used):
            return begin + int(used[-1]) + 1
        stop = begin
    return 0


def topics_of(disk: Disk, root: str) -> frozenset[str] | None:
    """Return the topics of the store ROOT on DISK, an overlay; None if its table is missing or cannot be read."""
    changes = stored_changes(disk, root, TOPICS)
    try:
        table = StateFile(disk, root, TOPICS.file).load(TOPICS.parse).value
    except CorruptState:
        return None
    if table is None:
        return None
    found = with_changes(changes, TOPICS, table.version, table.entries)
    return frozenset(found) | frozenset(table.unread)
