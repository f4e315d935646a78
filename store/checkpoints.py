"""The checkpoints of a store and of its timers: how far each part is certainly on disk.

Both files have 4096 bytes: big-endian 64-bit integers, the rest zeros. The store writes them in place: the 48 or 56
bytes are in one sector, which a crash leaves old or new. A missing or short file counts as zeros. Source:
store-format.md, sections 5 and 7.2.

checkpoint:

    0   physicMsgTimestamp     store time of the last record known to be flushed in the commit log
    8   logicsMsgTimestamp     store time of the last record whose queue entry was flushed
    16  indexMsgTimestamp      end time of the last full index file that was flushed
    24  masterFlushedOffset    replication
    32  confirmPhyOffset       start of the last valid record at recovery
In older stores, the later fields are zeros.

config/timercheck:

    0   lastReadTimeMs           start of the oldest slot that was not delivered as a whole, ms
    8   lastTimerLogFlushPos     everything in the timer log before it is on disk
    16  lastTimerQueueOffset     next message of the timer topic to enter into the log
    24  masterTimerQueueOffset   the same for a slave; Java continues at the lesser of the two
    32  stateVersion, 40 timestamp (ms), 48 counter: the data version, which changes with the first and the third
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Final

from .disk import Disk, Mapping as FileMapping
from .format.rows import RowFormat
from .format.state_tables import DataVersion

CHECKPOINT_SIZE: Final = 4096
_STORE: Final = RowFormat(
    log_time_ms="q",
    queues_time_ms="q",
    index_time_ms="q",
    master_flushed_offset="q",
    confirm_offset="q",
    queues_log_offset="q",
)
_TIMERS: Final = RowFormat(
    last_read_ms="q",
    log_flushed="q",
    queue_offset="q",
    master_queue_offset="q",
    state_version="q",
    timestamp_ms="q",
    counter="q",
)


@dataclass(slots=True)
class Checkpoint:
    """The six fields."""

    log_time_ms: int = 0
    queues_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    queues_log_offset: int = 0

    @classmethod
    def parse(cls, data: bytes) -> Checkpoint:
        """Return the checkpoint in DATA. Missing bytes at its end are zeros."""
        return cls(*_STORE.read(data.ljust(_STORE.size, b"\0")))

    def note_log(self, time_ms: int) -> None:
        """The log is flushed up to a record that was stored at TIME_MS."""
        self.log_time_ms = time_ms

    def note_queues(self, log_offset: int, time_ms: int) -> None:
        """The queues are flushed up to the record at LOG_OFFSET, which was stored at TIME_MS."""
        self.queues_log_offset, self.queues_time_ms = log_offset, time_ms

    def note_index(self, time_ms: int) -> None:
        """A full index file that ends at TIME_MS is flushed."""
        self.index_time_ms = time_ms

    def confirm(self, log_offset: int) -> None:
        """The last valid record begins at LOG_OFFSET."""
        self.confirm_offset = log_offset

    def pack(self) -> bytes:
        """Return the first bytes of the file."""
        return _STORE.pack(
            self.log_time_ms,
            self.queues_time_ms,
            self.index_time_ms,
            self.master_flushed_offset,
            self.confirm_offset,
            self.queues_log_offset,
        )


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The fields of the timers' checkpoint."""

    last_read_ms: int = 0
    log_flushed: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    version: DataVersion = field(default_factory=DataVersion)

    @classmethod
    def parse(cls, data: bytes) -> TimerCheckpoint:
        """Return the checkpoint in DATA. Missing bytes at its end are zeros."""
        read_ms, flushed, offset, master, state, stamp, counter = _TIMERS.read(
            data.ljust(_TIMERS.size, b"\0")
        )
        return cls(read_ms, flushed, offset, master, DataVersion(counter, state, stamp))

    def pack(self) -> bytes:
        """Return the first bytes of the file."""
        version = self.version
        return _TIMERS.pack(
            self.last_read_ms,
            self.log_flushed,
            self.queue_offset,
            self.master_queue_offset,
            version.state_version,
            version.timestamp_ms,
            version.counter,
        )

    @property
    def is_empty(self) -> bool:
        """Are all its fields zero?"""
        return not (self.last_read_ms or self.log_flushed or self.queue_offset)

    def advanced(
        self, last_read_ms: int, log_flushed: int, queue_offset: int, now_ms: int
    ) -> TimerCheckpoint:
        """Return the checkpoint with the given progress, as RocketMQ's master writes it."""
        moved = (last_read_ms, queue_offset) != (self.last_read_ms, self.master_queue_offset)
        version = self.version.next(now_ms) if moved else self.version
        return replace(
            self,
            last_read_ms=last_read_ms,
            log_flushed=log_flushed,
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
            version=version,
        )


def read_checkpoint(disk: Disk, path: str) -> Checkpoint:
    """Return the checkpoint in the file PATH; all zeros if it is missing."""
    return Checkpoint.parse(_begin(disk, path))


def read_timer_checkpoint(disk: Disk, path: str) -> TimerCheckpoint:
    """Return the checkpoint in the file PATH; all zeros if it is missing."""
    return TimerCheckpoint.parse(_begin(disk, path))


def _begin(disk: Disk, path: str) -> bytes:
    return disk.read_at(path, 0, CHECKPOINT_SIZE) if disk.exists(path) else b""


class CheckpointFile:
    """The checkpoint in memory (`values`) and its file, created at full length if missing."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.values = read_checkpoint(disk, path)
        self.mapping: FileMapping = disk.open_map(path, size=CHECKPOINT_SIZE, create=True)
        self._written = self.values.pack()

    def write(self) -> bool:
        """Write the values to the file, without a sync; return False if the file already has them."""
        packed = self.values.pack()
        if packed == self._written:
            return False
        self.mapping.write(0, packed)
        self._written = packed
        return True

    def sync(self) -> None:
        """Sync the file. Thread-safe."""
        self.mapping.sync()

    def close(self) -> None:
        self.mapping.close()


class TimerCheckpointFile:
    """The timers' file PATH, created at its first write. The flushing thread may call `write`: one call at a time."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._mapping: FileMapping | None = None
        self.written = read_timer_checkpoint(disk, path)

    def open(self) -> None:
        """Create a missing file with its folder, and sync it."""
        if self._mapping is None:
            folder = os.path.dirname(self._path)
            self._disk.make_folders(folder)
            self._mapping = self._disk.open_map(self._path, size=CHECKPOINT_SIZE, create=True)
            self._disk.sync_folder(os.path.dirname(folder))
            self._disk.sync_folder(folder)

    def write(self, values: TimerCheckpoint) -> None:
        """Write VALUES and sync them. Raises StoreFull or DiskFailure."""
        assert self._mapping is not None, "opened before"
        self._mapping.write(0, values.pack())
        self._mapping.sync()
        self.written = values

    def close(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
