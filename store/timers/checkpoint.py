"""The checkpoint of the timer service, config/timercheck: how far it has surely come.

4096 bytes, seven big-endian 64-bit integers, the rest zero:

    0   lastReadTimeMs           start of the oldest slot that was not handed on as a whole, ms
    8   lastTimerLogFlushPos     everything in the timer log before it is on the device
    16  lastTimerQueueOffset     next message of the timer topic to enter into the log
    24  masterTimerQueueOffset   the same for a slave; Java goes on at the lesser of the two
    32  stateVersion, 40 timestamp (ms), 48 counter: the data version, which changes with the first and the third

A missing or short file is zeros. It is written in place (56 bytes lie in one sector: a crash leaves the old or the
new ones). Source: store-format.md §7.2.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field, replace
from typing import Final

from ..disk import Disk, Mapping
from ..state_tables import DataVersion

CHECKPOINT_SIZE: Final = 4096
_FIELDS: Final = struct.Struct(">7q")


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The fields; pure."""

    last_read_ms: int = 0
    log_flushed: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    version: DataVersion = field(default_factory=DataVersion)

    @classmethod
    def parse(cls, data: bytes) -> TimerCheckpoint:
        """Return what DATA says; what is missing at its end is zeros."""
        head = data[: _FIELDS.size].ljust(_FIELDS.size, b"\0")
        read_ms, flushed, offset, master, state, stamp, counter = _FIELDS.unpack(head)
        return cls(read_ms, flushed, offset, master, DataVersion(counter, state, stamp))

    def pack(self) -> bytes:
        """Return the first bytes of the file."""
        version = self.version
        return _FIELDS.pack(
            self.last_read_ms,
            self.log_flushed,
            self.queue_offset,
            self.master_queue_offset,
            version.state_version,
            version.timestamp_ms,
            version.counter,
        )

    @classmethod
    def read(cls, disk: Disk, path: str) -> TimerCheckpoint:
        """Return what the file PATH says; zeros if it is missing."""
        return cls.parse(disk.read_at(path, 0, _FIELDS.size)) if disk.exists(path) else cls()

    @property
    def is_empty(self) -> bool:
        """Does it say nothing at all?"""
        return not (self.last_read_ms or self.log_flushed or self.queue_offset)

    def advanced(
        self, last_read_ms: int, log_flushed: int, queue_offset: int, now_ms: int
    ) -> TimerCheckpoint:
        """Return the checkpoint after the service came so far, as Java's master writes it."""
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


class TimerCheckpointFile:
    """The file PATH, made at its first write. `write` may be called in the flushing thread: one writer at a time."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._mapping: Mapping | None = None
        self.written = TimerCheckpoint.read(disk, path)

    def open(self) -> None:
        """Make the file with its folder, on the device, if it is missing."""
        if self._mapping is None:
            folder = os.path.dirname(self._path)
            self._disk.make_folders(folder)
            self._mapping = self._disk.open_map(self._path, size=CHECKPOINT_SIZE, create=True)
            self._disk.sync_folder(os.path.dirname(folder))
            self._disk.sync_folder(folder)

    def write(self, values: TimerCheckpoint) -> None:
        """Bring VALUES to the device; StoreFull or DiskFailure if that failed."""
        assert self._mapping is not None, "opened before"
        self._mapping.write(0, values.pack())
        self._mapping.sync()
        self.written = values

    def close(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
