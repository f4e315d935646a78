"""The parts of an open store, handed around as one value; what it tells others, and whether it may be written to.

Files of the log, the queues and the timer log that somebody cut get their length back before they are opened, with
zeros: recovery finds what that lost, and makes again what the log has. (Apache refuses to start.) That a file was cut,
and is not of a store with smaller files, shows in others of its row that are whole, or in our folder being there.

From records in the log to what is derived from them: queue entries and index entries.

A record gets a queue entry unless it is a prepared or rolled-back transaction; a record of a topic with batch queues
gets one only if it is an inner batch (properties INNER_NUM and INNER_BASE). Index entries: see message_index.py.

Everything derived can be derived again: records that are known already are recognised and left out.

A record may have 16,000 keys, and a run of 16 MiB eight million: entering them takes over a second. So once a run has
more than INDEXED_AT_ONCE, the rest wait (`LateKeys`), and all that come after them, in order of the log; PIECE_BYTES of
property strings are entered at a time. As with Apache's broker the index is then behind the queues: what looks for keys
has it completed first, and so has a stop; neither checkpoint nor verified.json says more than the index has; and after
a kill recovery enters from the log what the index lacks. At most WAITING_BYTES_MAX of records wait: what comes then has
as much entered first. Without `start` nothing waits.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..proto.byte_ranges import hash_ranges, left_aligned
from ..proto.errors import DiskFailure, StoreClosed, StoreError, StoreFull, StoreRefused
from ..proto.record import SYS_PREPARED, SYS_ROLLBACK, SYS_TRANSACTION, Buffer
from ..proto.record_run import (
    QUEUE_ID_MAX,
    Longs,
    PropertyRanges,
    RunColumns,
    as_bytes,
    tags_codes,
)
from ..proto.run import Run, tags_code
from ..proto.topics import SCHEDULE_TOPIC
from .config import StoreConfig
from .consume_queue import Placed
from .consume_queues import ConsumeQueues, queue_folders
from .disk import Disk, Entry
from .files import CommitLog
from .flush import CallOwner
from .message_index import MessageIndex, has_keys, keys_of_alike, keys_of_few
from .state_files import CheckpointFile

logger = logging.getLogger(__name__)


#: Told of bytes that the log has taken, whole records but for the last one perhaps; of the log offset of the first; and
#: where the records stand, if that is known.
HearRecords: TypeAlias = Callable[[bytes, int, RunColumns | None], object]


@dataclass(frozen=True, slots=True)
class StoreEvents:
    """What a store tells, in its owner's thread: for each event, who is called. Others add and remove themselves.

    flushed: everything before this log offset is on the device;
    caught_up: the (topic, queue) whose messages were stored before, and can be read only from now on;
    followed: the log has taken whole records of a master's.
    """

    flushed: list[Callable[[int], None]] = field(default_factory=list)
    caught_up: list[Callable[[list[tuple[str, int]]], None]] = field(default_factory=list)
    followed: list[HearRecords] = field(default_factory=list)

    def kept(self) -> StoreEvents:
        """Return who is called now, for `restore`."""
        return StoreEvents(list(self.flushed), list(self.caught_up), list(self.followed))

    def restore(self, before: StoreEvents) -> None:
        """Call those of BEFORE from now on, and nobody else."""
        self.flushed[:] = before.flushed
        self.caught_up[:] = before.caught_up
        self.followed[:] = before.followed


class StoreHealth:
    """What stands in the way of writing. A failure stays until the store is opened again; being full passes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.failure: StoreError | None = None
        self.full: str | None = None
        self.read_only = False
        self.closed = False
        #: Does the log take the bytes of a master's, and nothing else?
        self.following = False

    @property
    def state(self) -> str:
        """Return "open", "read-only", "full", "failed" or "closed"."""
        if self.closed:
            return "closed"
        if self.failure is not None:
            return "failed"
        if self.read_only:
            return "read-only"
        return "full" if self.full is not None else "open"

    def check_open(self) -> None:
        """Raise StoreClosed for a store that was closed."""
        if self.closed:
            raise StoreClosed(f"the store {self._path} is closed", path=self._path)

    def check_writable(self) -> None:
        """Raise what a writer of messages has to be told, if anything."""
        if self.closed or self.failure or self.read_only or self.full or self.following:
            self.check_followable()
            raise StoreRefused(
                f"the store {self._path} follows a master's log: messages are sent to the master",
                path=self._path,
            )

    def check_followable(self) -> None:
        """Raise what stands in the way of taking what a master has."""
        self.check_changeable()
        if self.full is not None:
            raise StoreFull(self.full, path=self._path)

    def check_changeable(self) -> None:
        """Raise what stands in the way of any change; a full disk does not: deleting makes room."""
        self.check_open()
        if self.failure is not None:
            raise DiskFailure(
                f"the store takes no more writes: {self.failure.message}",
                path=self._path,
                reason=self.failure.message,
            )
        if self.read_only:
            raise StoreClosed(f"the store {self._path} was opened read-only", path=self._path)

    def fail(self, error: StoreError) -> None:
        """Stop all writing for good: after ERROR it is unknown what is on the device."""
        if self.failure is None:
            self.failure = error
            logger.error("the store failed", extra={"path": self._path, "reason": error.message})

    def close(self) -> None:
        """Refuse everything from now on."""
        self.closed = True

    def follow(self) -> None:
        """Refuse records of its own from now on: a master's bytes are taken."""
        self.following = True

    def lead(self) -> None:
        """Undo `follow`."""
        self.following = False

    def set_full(self, reason: str | None) -> None:
        """Refuse writes for REASON, or take them again."""
        if reason != self.full:
            event = "writes are refused" if reason else "writes are taken again"
            logger.warning(event, extra={"path": self._path, "reason": reason})
        self.full = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParts:
    """The parts of one store. Before recovery every file of every row counts as full.

    index: None if the settings want none;  dispatcher: derives entries in `queues` and `index` from records.
    """

    config: StoreConfig
    disk: Disk
    log: CommitLog
    queues: ConsumeQueues
    index: MessageIndex | None
    dispatcher: Dispatcher
    checkpoint: CheckpointFile
    #: Path and length, as found, of the files that had been cut.
    cut: Sequence[tuple[str, int]] = ()

    @classmethod
    def load(cls, config: StoreConfig, disk: Disk, now_ms: Callable[[], int]) -> Self:
        """Open all files of a store; nothing is judged or changed yet, but for the length of files that were cut."""
        cut = _restore(disk, config, config.log_folder, config.log_file_size_bytes)
        cut += _restore(disk, config, config.timer_log_folder, config.timer_log_file_size_bytes)
        log = CommitLog.load(disk, config.log_folder, config.log_file_size_bytes)
        try:
            queues = ConsumeQueues.load(disk, config)
        except StoreRefused:
            cut_queues = _restore_queues(disk, config)
            if not cut_queues:
                raise
            queues = ConsumeQueues.load(disk, config)
            cut += cut_queues
        checkpoint = CheckpointFile(disk, config.checkpoint_path)
        index = _load_index(config, disk) if config.index else None
        return cls(
            config=config,
            disk=disk,
            log=log,
            queues=queues,
            index=index,
            dispatcher=Dispatcher(queues, index, now_ms, config.delay_levels_ms),
            checkpoint=checkpoint,
            cut=cut if index is None else cut + index.cut,
        )


def _load_index(config: StoreConfig, disk: Disk) -> MessageIndex:
    return MessageIndex.load(
        disk,
        config.index_folder,
        slots=config.index_slots,
        entries=config.index_entries,
    )


def _restore(disk: Disk, config: StoreConfig, folder: str, size: int) -> list[tuple[str, int]]:
    """Give the files in FOLDER that were cut their SIZE back; return path and length, as found, of each."""
    entries = _row_of(disk, folder)
    return _lengthen(
        disk, folder, entries, size, is_size_known=_is_known(disk, config, entries, size)
    )


def _row_of(disk: Disk, folder: str) -> list[Entry]:
    return [entry for entry in disk.list(folder) if entry.name.isdecimal() and not entry.is_folder]


def _is_known(disk: Disk, config: StoreConfig, entries: list[Entry], size: int) -> bool:
    """Is SIZE surely that of the files ENTRIES? A store of others may have been written with smaller ones."""
    return disk.is_folder(config.own_folder) or any(entry.size == size for entry in entries)


def _lengthen(
    disk: Disk, folder: str, entries: list[Entry], size: int, *, is_size_known: bool
) -> list[tuple[str, int]]:
    """Give each of ENTRIES, the row in FOLDER, that is shorter its SIZE; return path and length, as found, of each.

    A power cut leaves new files empty: their names are on the device, their lengths are not. Empty ones at the end of
    a row are left for loading to delete; the first of a row that does not begin at 0 tells where the row goes on.
    """
    starts = [int(entry.name) for entry in entries]
    ends = [*starts[1:], starts[-1] + size] if starts else []
    found = []
    for index, (entry, start, end) in enumerate(zip(entries, starts, ends, strict=True)):
        is_new = not any(one.size for one in entries[index:]) and (index > 0 or start == 0)
        is_short = entry.size < size and (is_size_known or entry.size == 0)
        if is_short and not is_new and start % size == 0 and end >= start + size:
            path = f"{folder}/{entry.name}"
            logger.warning("file was cut", extra={"path": path, "size": entry.size})
            disk.truncate(path, size)
            found.append((path, entry.size))
    return found


def _restore_queues(disk: Disk, config: StoreConfig) -> list[tuple[str, int]]:
    kinds = (
        (config.queue_folder, config.queue_file_size_bytes),
        (config.batch_queue_folder, config.batch_queue_file_size_bytes),
    )
    found = []
    for root, size in kinds:
        folders = [f"{root}/{topic}/{queue}" for topic, queue in queue_folders(disk, root)]
        rows = {folder: _row_of(disk, folder) for folder in folders}
        entries = [entry for row in rows.values() for entry in row]
        is_known = _is_known(disk, config, entries, size)
        for folder, row in rows.items():
            found += _lengthen(disk, folder, row, size, is_size_known=is_known)
    return found


# ---------------------------------------------------------------- from records in the log to what is derived from them


#: Records worked off at a time: what is looked at more than once stays in the processor's cache.
ROWS_MAX: Final = 1 << 13
#: And bytes of property strings: they may be half a million words for the index.
PROPERTIES_MAX: Final = 1 << 20
#: With longer keys even a few records are entered faster as many are.
_KEYS_OF_FEW_MAX: Final = 1024
_NAME_SIZE_MAX: Final = 255  # of a folder
#: So many keys at most of a run are entered at once: some 20 ms if they are single letters, 5 ms of ordinary ones.
INDEXED_AT_ONCE: Final = 1 << 17
#: What is entered at a time of those that wait: 32,000 keys at most, 6 ms.
PIECE_BYTES: Final = 1 << 16
_PIECE_ROWS: Final = 1 << 12
WAITING_BYTES_MAX: Final = 64 << 20

Bytes = NDArray[np.uint8]
Rows = NDArray[np.intp]


class _Entries(NamedTuple):
    """New entries of QUEUE of TOPIC, numbered from FIRST on."""

    topic: str
    queue: int
    first: int
    log_offsets: list[int]
    sizes: list[int]
    codes: list[int]


class Dispatcher:
    """Derives QUEUES and INDEX (None: none is kept). NOW_MS names index files.

    DELAY_LEVELS_MS are the delays of the levels 1, 2, …, ms: with them queues of SCHEDULE_TOPIC get their times.
    """

    def __init__(
        self,
        queues: ConsumeQueues,
        index: MessageIndex | None,
        now_ms: Callable[[], int],
        delay_levels_ms: Sequence[int],
    ) -> None:
        self._queues = queues
        self._index = index
        self._now_ms = now_ms
        self._delays_ms = np.array((0, *delay_levels_ms), np.int64)
        self._late = None if index is None else LateKeys(index, now_ms)
        #: How many more keys are entered at once of what is dispatched now.
        self._room = 0

    def enter(self, run: Run) -> None:
        """Enter the records of RUN: new ones of a plain queue, numbered on from its end, and in the log.

        Raises StoreFull or DiskFailure, as `dispatch` does.
        """
        if self._enter_few((run,)) or self._enter_alike(run):
            return
        self._room = INDEXED_AT_ONCE
        array, columns = as_bytes(run.records), run.columns
        for part in _parts(columns):
            properties = run.properties if part is columns else PropertyRanges(array, part)
            codes = self.tags_codes(array, part, run.topic, properties)
            row = self._queues.find_or_make(run.topic, run.queue)
            row.append(int(part.queue_offset[0]), part.log_offset, part.sizes, codes)
            self._enter_keys(array, part, run.topic, properties)

    def enter_together(self, runs: Sequence[Run]) -> None:
        """Do what `enter` does for each of RUNS, in their order, which were stored at once; cheaper if all are few."""
        if not self._enter_few(runs):
            for run in runs:
                self.enter(run)

    def _enter_few(self, runs: Sequence[Run]) -> bool:
        """Enter RUNS if they have but a few records each, which need nothing that only the way of many can do."""
        if self.index_lags:
            return False
        index = self._index
        entries: list[_Entries] = []
        keys: list[tuple[int, int]] = []
        for run in runs:
            values = run.properties_of_few()
            if values is None or run.topic == SCHEDULE_TOPIC:
                return False
            if any([len(each.get(b"KEYS", b"")) > _KEYS_OF_FEW_MAX for each in values]):
                return False
            offsets = run.log_offsets.tolist()
            if index is not None:
                keys += [
                    (key_hash, offsets[row]) for key_hash, row in keys_of_few(values, run.topic)
                ]
            last = entries[-1] if entries else None
            if last is None or (last.topic, last.queue) != (run.topic, run.queue):
                last = _Entries(run.topic, run.queue, run.first, [], [], [])
                entries.append(last)
            last.log_offsets.extend(offsets)
            last.sizes.extend(run.sizes_of_few)
            last.codes.extend(map(tags_code, values))
        if index is not None and not index.takes_few(int(runs[0].log_offsets[0]), len(keys)):
            return False
        for topic, queue, first, log_offsets, sizes, codes in entries:
            self._queues.find_or_make(topic, queue).append(first, log_offsets, sizes, codes)
        if index is not None and keys:
            index.put_few(keys, runs[0].store_ms)
        return True

    def _enter_alike(self, run: Run) -> bool:
        """Enter RUN if its records are alike, and need nothing which only the way of any records can do."""
        alike, index = run.alike, self._index
        if alike is None or run.topic == SCHEDULE_TOPIC or self.index_lags:
            return False
        if len(alike.first.get(b"KEYS", b"")) > _KEYS_OF_FEW_MAX:
            return False
        log_offsets, keys = run.log_offsets, keys_of_alike(alike, run.topic)
        if index is not None and not index.takes_few(int(log_offsets[0]), len(keys.rows)):
            return False
        codes = np.full(len(log_offsets), tags_code(alike.second), np.int64)
        codes[0] = tags_code(alike.first)
        row = self._queues.find_or_make(run.topic, run.queue)
        row.append(run.first, log_offsets, run.sizes, codes)
        if index is not None and len(keys.rows):
            index.put_new(keys, log_offsets, run.store_ms)
        return True

    def enter_stored(self, runs: Sequence[Run]) -> bool:
        """Enter RUNS as they stand in the log, behind all that is there, if each but goes on where its queue ends.

        False: they have to be dispatched; a part may have been entered. Raises StoreFull or DiskFailure, likewise.
        """
        for run in runs:
            is_plain = _can_be_queue(run.topic, run.queue) and not self._queues.is_batch(run.topic)
            if not is_plain or run.first != self._queues.next_offset(run.topic, run.queue):
                return False
            if not self._enter_few((run,)):
                return False
        return True

    def dispatch(self, data: Buffer | Bytes, columns: RunColumns) -> Placed:
        """Enter the records that COLUMNS describe, in order of the log; return what became of their queue entries.

        They may be of any queues, and known already. The columns hold the final log offsets, queue offsets and times.
        Raises StoreFull or DiskFailure: then a part may have been entered, and dispatching again enters the rest.
        """
        placed = Placed()
        self._room = INDEXED_AT_ONCE
        array = as_bytes(data)
        for part in _parts(columns):
            properties = PropertyRanges(array, part)
            placed.add(self._put(array, part, properties))
            self._enter_keys(array, part, None, properties)
        return placed

    def _enter_keys(
        self, array: Bytes, columns: RunColumns, topic: str | None, properties: PropertyRanges
    ) -> None:
        if self._index is not None and not self._put_off(array, columns, topic, properties):
            self._index.put_run(
                array, columns, now_ms=self._now_ms(), topic=topic, properties=properties
            )

    def _put_off(
        self, array: Bytes, columns: RunColumns, topic: str | None, properties: PropertyRanges
    ) -> bool:
        """Have the keys of the records entered later, if they are too many or others wait; return whether they are."""
        late = self._late
        if late is None or not late.allowed:
            return False
        if not late.lag:
            self._room -= keys_at_most(columns, properties)
            if self._room >= 0:
                return False
        late.make_room()
        late.put(array, columns, topic)
        return True

    # --- keys that wait

    @property
    def index_lags(self) -> bool:
        """Are there keys of records that have their queue entries, which the index does not have yet?"""
        return self._late is not None and self._late.lag

    def start(self, call_owner: CallOwner, on_failure: Callable[[DiskFailure], object]) -> None:
        """From now on enter very many keys in turns that CALL_OWNER gives."""
        if self._late is not None:
            self._late.start(call_owner, on_failure)

    def stop(self) -> None:
        """Enter all keys that wait, and let none wait from now on. Raises StoreFull or DiskFailure."""
        if self._late is not None:
            self._late.stop()

    def index_some(self) -> None:
        """Enter some of the keys that wait, if there are any. Raises StoreFull or DiskFailure."""
        if self._late is not None:
            self._late.enter_some()

    def index_all(self) -> None:
        """Enter all keys that wait. Raises StoreFull or DiskFailure."""
        if self._late is not None:
            self._late.enter_all()

    def go_on(self) -> None:
        """Have keys that wait entered, if a full disk had ended that."""
        if self._late is not None:
            self._late.go_on()

    def tags_codes(
        self,
        data: Buffer | Bytes,
        columns: RunColumns,
        topic: str,
        properties: PropertyRanges | None = None,
    ) -> Longs:
        """Return the tags code, or what stands in its place, of each of the records, of plain queues of TOPIC.

        PROPERTIES are those of the records, if they are known.
        """
        array = as_bytes(data)
        properties = properties or PropertyRanges(array, columns)
        codes = tags_codes(array, properties)
        if topic == SCHEDULE_TOPIC:
            self._set_delivery_times(array, columns, properties, slice(None), codes)
        return codes

    def has_keys(self, data: Buffer | Bytes, columns: RunColumns) -> bool:
        """Has any of the records a key that the index holds?"""
        kept = columns.take(np.flatnonzero((columns.sys_flag & SYS_TRANSACTION) != SYS_ROLLBACK))
        return bool(len(kept)) and has_keys(data, kept)

    def _put(self, array: Bytes, columns: RunColumns, properties: PropertyRanges) -> Placed:
        """Enter records of any queues."""
        codes = tags_codes(array, properties)
        placed = Placed()
        for topic, queue, rows in by_queue(array, columns, _queued(columns)):
            if not _can_be_queue(topic, queue):
                placed.misplaced += len(rows)
                continue
            if topic == SCHEDULE_TOPIC:
                self._set_delivery_times(array, columns, properties, rows, codes)
            offsets, sizes = columns.log_offset[rows], columns.sizes[rows]
            if self._queues.is_batch(topic):
                batches = _batches(array, properties, rows)
                found = self._queues.find_or_make_batch(topic, queue).put(
                    offsets, sizes, codes[rows], columns.store_ms[rows], batches
                )
            else:
                found = self._queues.find_or_make(topic, queue).put(
                    columns.queue_offset[rows], offsets, sizes, codes[rows]
                )
            placed.add(found)
        return placed

    def _set_delivery_times(
        self,
        array: Bytes,
        columns: RunColumns,
        properties: PropertyRanges,
        rows: Rows | slice,
        codes: Longs,
    ) -> None:
        """Set the tags codes of ROWS of the schedule topic to the time at which each message is due.

        The level is clamped to the highest; a message without a level, or with one that is no number, keeps its code.
        """
        starts, sizes = properties.find("DELAY")
        levels = _numbers(array, starts[rows], sizes[rows])
        delays_ms = self._delays_ms[np.clip(levels, 0, len(self._delays_ms) - 1)]
        codes[rows] = np.where(levels > 0, columns.store_ms[rows] + delays_ms, codes[rows])


# --- keys that wait


@dataclass(slots=True)
class _Waiting:
    """The records of COLUMNS in DATA, of which those before NEXT_ROW are entered; TOPIC, if given, is that of all."""

    data: Bytes
    columns: RunColumns
    topic: str | None
    next_row: int = 0


class LateKeys:
    """Keys that are to be entered in INDEX; NOW_MS names its files."""

    def __init__(self, index: MessageIndex, now_ms: Callable[[], int]) -> None:
        self._index = index
        self._now_ms = now_ms
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._call_owner: CallOwner | None = None
        self._on_failure: Callable[[DiskFailure], object] = lambda error: None
        self._is_due = False

    @property
    def lag(self) -> bool:
        """Are there keys that wait?"""
        return bool(self._waiting)

    @property
    def allowed(self) -> bool:
        """May keys wait, for there will be turns in which they are entered?"""
        return self._call_owner is not None

    def start(self, call_owner: CallOwner, on_failure: Callable[[DiskFailure], object]) -> None:
        """From now on let keys wait for the turns that CALL_OWNER gives; tell ON_FAILURE of a device that fails."""
        self._call_owner = call_owner
        self._on_failure = on_failure

    def stop(self) -> None:
        """Enter what waits, and let nothing wait from now on. Raises StoreFull or DiskFailure."""
        self._call_owner = None
        self.enter_all()

    def make_room(self) -> None:
        """Enter what has to be before more may wait. Raises StoreFull or DiskFailure."""
        while self._bytes > WAITING_BYTES_MAX:
            self.enter_some()

    def put(self, data: Bytes, columns: RunColumns, topic: str | None) -> None:
        """Let the keys of COLUMNS wait, behind those that do; there is room."""
        self._waiting.append(_Waiting(data, columns, topic))
        self._bytes += int(columns.sizes.sum())
        self.go_on()

    def go_on(self) -> None:
        """Have what waits entered in the next turns; call it every now and then, for a full disk ends that."""
        if self._waiting and self._call_owner is not None and not self._is_due:
            self._is_due = True
            self._call_owner(self._in_turn)

    def _in_turn(self) -> None:
        self._is_due = False
        try:
            self.enter_some()
        except StoreFull:
            return  # The next tick tries again.
        except DiskFailure as error:
            self._on_failure(error)
            return
        self.go_on()

    def enter_all(self) -> None:
        """Enter all that waits now. Raises StoreFull or DiskFailure."""
        while self._waiting:
            self.enter_some()

    def enter_some(self) -> None:
        """Enter a piece of what waits, if anything does. Raises StoreFull or DiskFailure: then it waits still."""
        if not self._waiting:
            return
        first = self._waiting[0]
        columns, row = first.columns, first.next_row
        ends = np.cumsum(columns.properties_size[row : row + _PIECE_ROWS])
        count = max(1, int(np.searchsorted(ends, PIECE_BYTES, "right")))
        piece = columns.take(slice(row, row + count))
        properties = PropertyRanges(first.data, piece)
        self._index.put_run(
            first.data, piece, now_ms=self._now_ms(), topic=first.topic, properties=properties
        )
        first.next_row = row + len(piece)
        self._bytes -= int(piece.sizes.sum())
        if first.next_row == len(columns):
            self._waiting.popleft()


def keys_at_most(columns: RunColumns, properties: PropertyRanges) -> int:
    """Return a number that the keys of the records do not exceed."""
    words = int(np.maximum(properties.find("KEYS")[1], 0).sum()) // 2
    return words + 3 * len(columns)


# --- records by queue


def _parts(columns: RunColumns) -> Iterator[RunColumns]:
    """Divide COLUMNS into what is worked off at a time."""
    if not len(columns):
        return
    if len(columns) <= ROWS_MAX and int(columns.properties_size.sum()) <= PROPERTIES_MAX:
        yield columns
        return
    ends = np.cumsum(columns.properties_size)
    at, before = 0, 0
    while at < len(columns):
        fit = int(np.searchsorted(ends, before + PROPERTIES_MAX, "right"))
        end = min(max(fit, at + 1), at + ROWS_MAX)
        yield columns.take(slice(at, end))
        at, before = end, int(ends[end - 1])


def _queued(columns: RunColumns) -> Rows | None:
    """Return which records get a queue entry; None for all. Prepared and rolled back have the same bit set."""
    left_out = columns.sys_flag & SYS_PREPARED
    return np.flatnonzero(left_out == 0) if left_out.any() else None


def by_queue(
    array: Bytes, columns: RunColumns, chosen: Rows | None
) -> Iterator[tuple[str, int, Rows]]:
    """Yield topic, queue and rows of each queue that the CHOSEN records (None: all) are of, rows in their order.

    Names come as they stand in the records; damage may have given them any form.
    """
    rows = np.arange(len(columns)) if chosen is None else chosen
    if not len(rows):
        return
    hashes = hash_ranges(array, columns.topic_start[rows], columns.topic_size[rows])
    keys = hashes.astype(np.int64) << 32 | columns.queue_id[rows].view(np.uint32)
    if (keys != keys[0]).any():
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
    cuts = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    for group in np.split(rows, cuts):
        yield from _by_topic(array, columns, group)


def _by_topic(array: Bytes, columns: RunColumns, rows: Rows) -> Iterator[tuple[str, int, Rows]]:
    """Yield topic, queue and rows; ROWS are of one queue number, and most likely of one topic."""
    while len(rows):
        size = int(columns.topic_size[rows[0]])
        names = left_aligned(array, columns.topic_start[rows], columns.topic_size[rows], size)
        same = (names == names[0]).all(axis=1) & (columns.topic_size[rows] == size)
        topic = names[0].tobytes().decode("utf-8", "replace")
        yield topic, int(columns.queue_id[rows[0]]), rows[same]
        rows = rows[~same]


def _can_be_queue(topic: str, queue: int) -> bool:
    """Can there be a folder for this queue? Only damage gives other names: the CRC does not cover the topic."""
    named = topic not in ("", ".", "..") and not {"/", "\0"} & set(topic)
    return named and len(topic.encode()) <= _NAME_SIZE_MAX and 0 <= queue <= QUEUE_ID_MAX


def _batches(array: Bytes, properties: PropertyRanges, rows: Rows) -> tuple[Longs, Longs]:
    """Return first queue offset and number of messages of each inner batch; −1 where there is none."""
    found = [properties.find(name) for name in ("INNER_BASE", "INNER_NUM")]
    bases, counts = (_numbers(array, starts[rows], sizes[rows]) for starts, sizes in found)
    return bases, counts


def _numbers(array: Bytes, starts: Longs, sizes: Longs) -> Longs:
    """Return the decimal number that stands in each range; −1 if none does."""
    numbers = np.full(len(starts), -1, np.int64)
    for row in np.flatnonzero((sizes > 0) & (sizes < 19)).tolist():
        start = int(starts[row])
        text = array[start : start + int(sizes[row])].tobytes()
        if text.isdigit():
            numbers[row] = int(text)
    return numbers
