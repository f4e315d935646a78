"""The files of the checkpoints, of the store and of its timers. Format: format/checkpoints.py."""

from __future__ import annotations

import os

from .disk import Disk, Mapping
from .format.checkpoints import CHECKPOINT_SIZE, Checkpoint, TimerCheckpoint


def read_checkpoint(disk: Disk, path: str) -> Checkpoint:
    """Return what the file PATH says; all zeros if it is missing."""
    return Checkpoint.parse(_begin(disk, path))


def read_timer_checkpoint(disk: Disk, path: str) -> TimerCheckpoint:
    """Return what the file PATH says; all zeros if it is missing."""
    return TimerCheckpoint.parse(_begin(disk, path))


def _begin(disk: Disk, path: str) -> bytes:
    return disk.read_at(path, 0, CHECKPOINT_SIZE) if disk.exists(path) else b""


class CheckpointFile:
    """The checkpoint in memory (`values`) and its file, created at full length if missing."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.values = read_checkpoint(disk, path)
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


class TimerCheckpointFile:
    """The timers' file PATH, made at its first write. `write` may be called in the flushing thread: one at a time."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._mapping: Mapping | None = None
        self.written = read_timer_checkpoint(disk, path)

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
