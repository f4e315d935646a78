"""Disks for tests: `FaultyDisk` fails on demand, `RecordingDisk` knows every state that a crash could leave.

Both wrap the real disk, so that ordinary code runs on ordinary files under a test's temporary folder.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pocketmq.proto.errors import DiskFailure, StoreError, StoreFull
from pocketmq.store.disk import Buffer, Disk, DiskUsage, Entry, Lock, Mapping
from pocketmq.store.os_disk import OsDisk

SECTOR = 512
_EMPTY = bytes(SECTOR)


class ForwardingMapping:
    """A mapping that passes every call on: base of the fakes."""

    def __init__(self, inner: Mapping) -> None:
        self.inner = inner

    @property
    def path(self) -> str:
        return self.inner.path

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def view(self) -> memoryview:
        return self.inner.view

    @property
    def array(self) -> NDArray[np.uint8]:
        return self.inner.array

    def write(self, at: int, data: Buffer) -> None:
        self.inner.write(at, data)

    def reserve(self, at: int, size: int) -> None:
        self.inner.reserve(at, size)

    def zero(self, at: int, size: int) -> None:
        self.inner.zero(at, size)

    def read(self, at: int, size: int) -> bytes:
        return self.inner.read(at, size)

    def data_end(self, at: int, end: int) -> int:
        return self.inner.data_end(at, end)

    def is_cut(self) -> bool:
        return self.inner.is_cut()

    def check(self) -> None:
        self.inner.check()

    def forget(self, at: int, size: int) -> None:
        self.inner.forget(at, size)

    def sync(self) -> None:
        self.inner.sync()

    def close(self) -> None:
        self.inner.close()


class ForwardingDisk:
    """A disk that passes every call on to INNER: base of the fakes."""

    def __init__(self, inner: Disk | None = None) -> None:
        self.inner: Disk = OsDisk() if inner is None else inner

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_folder(self, path: str) -> bool:
        return self.inner.is_folder(path)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def modified_ms(self, path: str) -> int:
        return self.inner.modified_ms(path)

    def list(self, folder: str) -> list[Entry]:
        return self.inner.list(folder)

    def make_folders(self, path: str, *, durable: bool = True) -> None:
        self.inner.make_folders(path, durable=durable)

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def read_at(self, path: str, at: int, size: int) -> bytes:
        return self.inner.read_at(path, at, size)

    def write_file(self, path: str, data: Buffer) -> None:
        self.inner.write_file(path, data)

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        self.inner.write_atomically(path, data, backup=backup)

    def write_private(self, path: str, data: Buffer) -> None:
        self.inner.write_private(path, data)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def delete_folder(self, path: str) -> None:
        self.inner.delete_folder(path)

    def rename(self, source: str, target: str) -> None:
        self.inner.rename(source, target)

    def truncate(self, path: str, size: int) -> None:
        self.inner.truncate(path, size)

    def sync_folder(self, path: str) -> None:
        self.inner.sync_folder(path)

    def sync_everything(self, path: str) -> bool:
        """Have each file synced by itself, where the fakes count, fail or record it."""
        return False

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        return self.inner.open_map(path, size=size, writable=writable, create=create)

    def lock(self, path: str) -> Lock:
        return self.inner.lock(path)

    def usage(self, path: str) -> DiskUsage:
        return self.inner.usage(path)


class FaultyDisk(ForwardingDisk):
    """A disk that fails as its fields require: set them, change them at any time.

    fail_write / fail_sync: called with the path (and the size); an error they return is raised.
    torn_write: a failing write leaves so many bytes of its data.
    used_percent: what `usage` reports; modified: what `modified_ms` reports, by path.
    """

    def __init__(self, inner: Disk | None = None) -> None:
        super().__init__(inner)
        self.fail_write: Callable[[str, int], StoreError | None] = lambda path, size: None
        self.fail_sync: Callable[[str], StoreError | None] = lambda path: None
        self.fail_create: Callable[[str], StoreError | None] = lambda path: None
        self.torn_write = 0
        self.used_percent: int | None = None
        self.modified: dict[str, int] = {}

    def run_full(self, part: str) -> None:
        """From now on nothing more fits into files whose path contains PART."""
        self.fail_write = lambda path, size: _full(path) if part in path else None
        self.fail_create = lambda path: _full(path) if part in path else None

    def break_writes(self, part: str) -> None:
        """From now on writes to files whose path contains PART fail."""
        self.fail_write = lambda path, size: _broken("write to", path) if part in path else None

    def break_syncs(self, part: str) -> None:
        """From now on syncs of files whose path contains PART fail."""
        self.fail_sync = lambda path: _broken("sync", path) if part in path else None

    def heal(self) -> None:
        """From now on nothing fails."""
        self.fail_write = lambda path, size: None
        self.fail_sync = lambda path: None
        self.fail_create = lambda path: None

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        if create and not self.exists(path) and (error := self.fail_create(path)):
            raise error
        inner = self.inner.open_map(path, size=size, writable=writable, create=create)
        return FaultyMapping(inner, self)

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        if error := self.fail_create(path) or self.fail_write(path, len(data)):
            raise error
        self.inner.write_atomically(path, data, backup=backup)

    def usage(self, path: str) -> DiskUsage:
        if self.used_percent is None:
            return self.inner.usage(path)
        return DiskUsage(used_bytes=self.used_percent, usable_bytes=100 - self.used_percent)

    def modified_ms(self, path: str) -> int:
        known = self.modified.get(path)
        return self.inner.modified_ms(path) if known is None else known


def _full(path: str) -> StoreFull:
    return StoreFull(f"cannot write to {path}: no space left on the device", path=path)


def _broken(action: str, path: str) -> DiskFailure:
    return DiskFailure(f"cannot {action} {path}: input/output error", path=path)


class FaultyMapping(ForwardingMapping):
    """A mapping whose writes and syncs ask the disk first."""

    def __init__(self, inner: Mapping, disk: FaultyDisk) -> None:
        super().__init__(inner)
        self._disk = disk

    def write(self, at: int, data: Buffer) -> None:
        if error := self._disk.fail_write(self.path, len(data)):
            self.inner.write(at, memoryview(data)[: self._disk.torn_write])
            raise error
        self.inner.write(at, data)

    def reserve(self, at: int, size: int) -> None:
        if error := self._disk.fail_write(self.path, size):
            raise error
        self.inner.reserve(at, size)

    def sync(self) -> None:
        if error := self._disk.fail_sync(self.path):
            raise error
        self.inner.sync()


class Crash(BaseException):
    """The machine lost power. Not an Exception: nothing under test may catch it."""


@dataclass
class RecordedFile:
    """What is surely on disk of a file, and the writes and sizes that may be there besides."""

    durable: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    #: (position, data) in order, since the last sync.
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    #: Sizes that the file got, in order, since the last sync.
    pending_sizes: list[int] = field(default_factory=list)
    mapped: NDArray[np.uint8] | None = None
    is_folder: bool = False

    @property
    def newest_size(self) -> int:
        return self.pending_sizes[-1] if self.pending_sizes else self.size

    def resize(self, size: int) -> None:
        if size != self.newest_size:
            self.pending_sizes.append(size)

    def settle(self) -> None:
        """Everything written is on disk now."""
        for at, data in self.pending:
            self.apply(at, data)
        self.pending.clear()
        self.size = self.newest_size
        self.pending_sizes.clear()
        if self.mapped is not None:
            self.apply(0, self.mapped.tobytes())

    def apply(self, at: int, data: bytes) -> None:
        """Write DATA at AT, durably."""
        for sector, start, piece in sectors(at, data):
            if len(piece) < SECTOR:
                old = self.durable.get(sector, _EMPTY)
                piece = old[:start] + piece + old[start + len(piece) :]
            self.durable[sector] = piece

    def after_crash(self, rng: random.Random) -> RecordedFile:
        """Return the file with some size that it had, and each sector as some prefix of the writes to it left it."""
        size = rng.choice([self.size, *self.pending_sizes])
        survivor = RecordedFile(durable=dict(self.durable), size=size)
        writes = list(self.pending)
        if self.mapped is not None:
            writes.append((0, self.mapped.tobytes()))
        by_sector: dict[int, list[tuple[int, bytes]]] = {}
        for at, data in writes:
            for sector, start, piece in sectors(at, data):
                by_sector.setdefault(sector, []).append((start, piece))
        for sector, pieces in by_sector.items():
            for start, piece in pieces[: rng.randint(0, len(pieces))]:
                survivor.apply(sector * SECTOR + start, piece)
        return survivor

    def content(self) -> bytes:
        whole = bytearray(self.size)
        for sector, data in self.durable.items():
            at = sector * SECTOR
            end = min(at + SECTOR, self.size)
            if at < end:
                whole[at:end] = data[: end - at]
        return bytes(whole)


_Names: TypeAlias = dict[str, RecordedFile]


def sectors(at: int, data: bytes) -> list[tuple[int, int, bytes]]:
    """Divide a write into its parts: (sector, position in it, bytes)."""
    sector, start = divmod(at, SECTOR)
    parts = [(sector, start, data[: SECTOR - start])] if data else []
    for done in range(SECTOR - start, len(data), SECTOR):
        sector += 1
        parts.append((sector, 0, data[done : done + SECTOR]))
    return parts


class RecordingDisk(ForwardingDisk):
    """A disk that loses power: `crash_after` so many operations, then `rebuild` makes the folder that is left.

    A crash leaves everything that was synced. Of everything else it may leave any part, and data, size and name of a
    file survive independently:
    - of data, each 512-byte sector as any prefix of its writes;
    - of a size, that of the last sync, or any later one: 0 for a new file;
    - of the names in a folder (create, delete, rename, also of folders), any prefix since that folder was synced.
    SEED decides, so a failing test is replayed with its seed.
    """

    def __init__(self, root: str, seed: int) -> None:
        super().__init__(OsDisk())
        self.root = root
        self._rng = random.Random(seed)
        self.operations = 0
        self.crash_after: int | None = None
        self.crashed = False
        #: Files by the names that are surely on disk, and changes of names that may be.
        self.names: _Names = {}
        self._changes: list[tuple[str, Callable[[_Names], None]]] = []
        #: Files by their present names.
        self.files: _Names = {}
        self._durable: set[str] = set()
        self._import(root)

    def _import(self, folder: str) -> None:
        """Take what is there before the test begins as being on disk."""
        for entry in self.inner.list(folder):
            path = os.path.join(folder, entry.name)
            self.files[path] = self.names[path] = file = RecordedFile(is_folder=entry.is_folder)
            if entry.is_folder:
                self._import(path)
            else:
                data = self.inner.read(path)
                file.resize(len(data))
                file.pending.append((0, data))
                file.settle()

    def step(self) -> None:
        """Count an operation that changes something; power fails in front of the one after the last."""
        if self.crashed or (self.crash_after is not None and self.operations >= self.crash_after):
            self.crashed = True
            raise Crash
        self.operations += 1

    def rebuild(self, target: str) -> None:
        """Write one folder that the crash could have left to TARGET."""
        os.makedirs(target, exist_ok=True)
        for path, file in sorted(self.surviving_names(self._rng).items()):
            where = os.path.join(target, os.path.relpath(path, self.root))
            if not os.path.isdir(os.path.dirname(where)):
                continue  # The name of a folder above it did not survive.
            if file.is_folder:
                os.mkdir(where)
                continue
            with open(where, "wb") as out:
                out.write(file.after_crash(self._rng).content())

    def surviving_names(self, rng: random.Random) -> _Names:
        """Return names that a crash could leave, as RNG decides."""
        names = dict(self.names)
        counts = Counter(folder for folder, _ in self._changes)
        left = {folder: rng.randint(0, count) for folder, count in counts.items()}
        for folder, change in self._changes:
            if left[folder] > 0:
                left[folder] -= 1
                change(names)
        return names

    def unsynced_names(self) -> set[str]:
        """Return the folders whose names are not all on disk."""
        return {folder for folder, _ in self._changes}

    def _change(self, folder: str, change: Callable[[_Names], None]) -> None:
        change(self.files)
        self._changes.append((folder, change))

    def _add(self, path: str, file: RecordedFile) -> None:
        self._change(os.path.dirname(path), lambda names: names.update({path: file}))

    def file_of(self, path: str) -> RecordedFile:
        return self.files[path]

    def make_folders(self, path: str, *, durable: bool = True) -> None:
        missing, wanted = [], path
        while path.startswith(self.root) and not self.inner.is_folder(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            self.step()
            self.inner.make_folders(folder)
            if folder == self.root:
                continue
            self._add(folder, RecordedFile(is_folder=True))
            if durable:
                self.sync_folder(os.path.dirname(folder))
        if durable and not missing and wanted not in self._durable:
            self.sync_folder(os.path.dirname(wanted))
        if durable:
            self._durable.add(wanted)

    def write_file(self, path: str, data: Buffer) -> None:
        self.step()
        self.inner.write_file(path, data)
        self._add(path, RecordedFile(pending_sizes=[len(data)], pending=[(0, bytes(data))]))

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        draft = f"{path}.tmp"
        self.write_file(draft, data)
        self.files[draft].settle()
        if backup is not None and self.exists(path):
            self.rename(path, backup)
        self.rename(draft, path)
        self.sync_folder(os.path.dirname(path))

    def write_private(self, path: str, data: Buffer) -> None:
        self.write_atomically(path, data)

    def delete(self, path: str) -> None:
        self.step()
        self.inner.delete(path)
        self._change(os.path.dirname(path), lambda names: _drop(names, path))

    def delete_folder(self, path: str) -> None:
        self.step()
        self.inner.delete_folder(path)
        inside = path + os.sep
        for one in sorted(one for one in self.files if one.startswith(inside)):
            self._change(os.path.dirname(one), lambda names, one=one: _drop(names, one))  # type: ignore[misc]
        if path in self.files:
            self._change(os.path.dirname(path), lambda names: _drop(names, path))

    def rename(self, source: str, target: str) -> None:
        self.step()
        self.inner.rename(source, target)

        def change(names: _Names) -> None:
            if source in names:
                names[target] = names.pop(source)

        self._change(os.path.dirname(source), change)

    def truncate(self, path: str, size: int) -> None:
        self.step()
        self.inner.truncate(path, size)
        self.files[path].resize(size)

    def sync_folder(self, path: str) -> None:
        """Bring the names in the folder PATH to disk, and no others."""
        self.step()
        for folder, change in self._changes:
            if folder == path:
                change(self.names)
        self._changes = [one for one in self._changes if one[0] != path]

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        made = create and not self.exists(path)
        if made:
            self.step()
        inner = self.inner.open_map(path, size=size, writable=writable, create=create)
        if made:
            self._add(path, RecordedFile())
        file = self.files[path]
        file.resize(max(file.newest_size, inner.size))
        return RecordingMapping(inner, self, file)


def _drop(names: _Names, path: str) -> None:
    names.pop(path, None)


class RecordingMapping(ForwardingMapping):
    """A mapping that remembers what was written since its last sync."""

    def __init__(self, inner: Mapping, disk: RecordingDisk, file: RecordedFile) -> None:
        super().__init__(inner)
        self.disk = disk
        self.file = file

    @property
    def array(self) -> NDArray[np.uint8]:
        self.file.mapped = self.inner.array
        return self.file.mapped

    def write(self, at: int, data: Buffer) -> None:
        self.disk.step()
        self.file.pending.append((at, bytes(data)))
        self.inner.write(at, data)

    def zero(self, at: int, size: int) -> None:
        self.disk.step()
        self.file.pending.append((at, bytes(size)))
        self.inner.zero(at, size)

    def sync(self) -> None:
        self.disk.step()
        self.file.settle()
        self.inner.sync()
