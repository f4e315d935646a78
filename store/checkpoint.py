"""The checkpoint file: up to which time, or offset, each part of the store is safely on the device.

4096 bytes, six big-endian 64-bit integers, the rest zero:

    0   physicMsgTimestamp     store time of the last record known flushed in the commit log
    8   logicsMsgTimestamp     store time of the last record whose queue entry was flushed thoroughly
    16  indexMsgTimestamp      end time of the last full index file that was flushed
    24  masterFlushedOffset    replication
    32  confirmPhyOffset       start of the last sound record at recovery
    40  logicsPhysicalOffset   log offset (start) of the last record whose queue entry was flushed thoroughly

Older stores hold zeros in the later fields. A missing or short file is zeros. The file is written in place through
its descriptor (48 bytes lie in one sector, so a crash leaves the old or the new ones).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from .disk import Disk, Mapping

CHECKPOINT_SIZE: Final = 4096
_FIELDS: Final = struct.Struct(">6q")


@dataclass(slots=True)
class Checkpoint:
    """The six fields. Pure: `parse` and `pack` convert, `CheckpointFile` stores."""

    log_time_ms: int = 0
    queues_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    queues_log_offset: int = 0

    @classmethod
    def parse(cls, data: bytes) -> Checkpoint:
        return cls(*_FIELDS.unpack(data[: _FIELDS.size].ljust(_FIELDS.size, b"\0")))

    def pack(self) -> bytes:
        return _FIELDS.pack(
            self.log_time_ms,
            self.queues_time_ms,
            self.index_time_ms,
            self.master_flushed_offset,
            self.confirm_offset,
            self.queues_log_offset,
        )

    @classmethod
    def read(cls, disk: Disk, path: str) -> Checkpoint:
        """Return what the file PATH says; all zeros if it is missing."""
        return cls.parse(disk.read_at(path, 0, _FIELDS.size)) if disk.exists(path) else cls()


class CheckpointFile:
    """The checkpoint in memory (`values`) and its file, created at full length if missing."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.values = Checkpoint.read(disk, path)
        self.mapping: Mapping = disk.open_map(path, size=CHECKPOINT_SIZE, create=True)
        self._written = self.values.pack()

    def write(self) -> bool:
        """Write the values to the file, without a sync; return False if they already stand there."""
        packed = self.values.pack()
        if packed == self._written:
            return False
        self.mapping.write(0, packed)
        self._written = packed
        return True

    def sync(self) -> None:
        """Bring the file to the device; any thread may call it."""
        self.mapping.sync()

    def close(self) -> None:
        self.mapping.close()
