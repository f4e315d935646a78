"""A disk whose changes stay in memory: any store, live, stopped or damaged, opened without writing a byte.

`OverlayDisk` reads the real files and keeps what is changed beside them: a mapped file is a private (copy-on-write)
map, a created file is anonymous memory, and a table remembers what was deleted, renamed or replaced. So the ordinary
opening and recovery of a store run on it, and show exactly the store that a broker would have afterwards.

Cost: a page is copied when it is first changed; the rest is the page cache's, also of 420 MB index files and 1 GiB
logs (MAP_NORESERVE, and holes are never touched). Several overlays of one store do not see each other.

A file that a live broker deletes after it was opened here stays readable; one that vanished before is read as zeros.
A file cut by somebody else while it is mapped ends the process (SIGBUS), as it would a Java broker; brokers never do
that.

One file of an overlay (overlay_disk.py): a private map of the real one, what was fetched of it, or memory.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .disk import Buffer, Disk, DiskUsage, Entry, Lock, Mapping
from .os_disk import OsDisk
from .system import OPEN_FILES, OpenFiles, data_extents

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
_FETCH = 8 << 20
_SEEN_MAX = 8192
#: MAP_NORESERVE, which Python 3.11 does not name: a private gigabyte needs no swap behind it.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
#: Windows has no such maps: what reads stores does not run there, but is imported.
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | _NO_RESERVE


class PrivateMapping:
    """A copy-on-write map of a real file (fetched from the disk FAR, if given), or anonymous memory.

    Mapped at its first use, and let go while nothing was changed where other files need the room; `read` of a file
    that is not mapped yet reads just that range.
    """

    def __init__(
        self,
        path: str,
        size: int,
        *,
        source: str | None,
        far: Disk | None = None,
        files: OpenFiles = OPEN_FILES,
    ) -> None:
        self.path = path
        self.used = False
        self._files = files
        self.size = size
        self._source = source
        self._far = far
        self._map: mmap.mmap | None = None
        #: Is the map that of the real file, whose holes can be asked for?
        self._is_sparse = False
        #: What was read last: the front of a queue is asked for again and again.
        self._seen_at, self._seen = 0, b""
        self._view: memoryview | None = None
        self._array: NDArray[np.uint8] | None = None
        self._written: list[tuple[int, int]] = []

    @property
    def is_changed(self) -> bool:
        """May the content be another than that of the real file of this path?"""
        return self._source != self.path or self._array is not None or bool(self._written)

    def _mapped(self) -> mmap.mmap:
        self.used = True
        found = self._map
        if found is None:
            found = self._private_map() if self._source else None
            if found is None:
                flags = _PRIVATE | mmap.MAP_ANONYMOUS
                found = self._files.attempt(lambda: mmap.mmap(-1, self.size, flags=flags))
            self._map = found
            if self._is_sparse:
                self._files.add(self)
        return found

    def let_go(self) -> bool:
        """Drop the map of a real file that is as it was."""
        if self._written or self._array is not None or not self._is_sparse:
            return False
        self._map = self._view = None
        return True

    def _private_map(self) -> mmap.mmap | None:
        """Map the real file; None if it is no longer there or no longer as long as it was."""
        assert self._source is not None
        if self._far is not None:
            return self._fetched(self._far, self._source)
        try:
            fd = self._source_descriptor()
        except FileNotFoundError:
            logger.warning("a file vanished; reading it as zeros", extra={"path": self._source})
            return None
        length = os.fstat(fd).st_size
        if length < self.size:
            logger.warning(
                "a file became shorter; its end reads as zeros", extra={"path": self._source}
            )
            return self._short_copy(fd, length)
        try:  # The map keeps a descriptor of its own: a second one would halve how many files can be open.
            self._is_sparse = True
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            return self._files.attempt(
                lambda: mmap.mmap(fd, self.size, flags=_PRIVATE, prot=protection)
            )
        finally:
            os.close(fd)

    def _source_descriptor(self) -> int:
        source = self._source
        assert source is not None
        return self._files.attempt(lambda: os.open(source, os.O_RDONLY | os.O_CLOEXEC))

    def _fetched(self, far: Disk, source: str) -> mmap.mmap:
        copy = mmap.mmap(-1, self.size, flags=_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, self.size, _FETCH):
            data = far.read_at(source, at, min(_FETCH, self.size - at))
            if data.strip(b"\0"):  # What was never written needs no memory.
                copy[at : at + len(data)] = data
                self._note(at, at + len(data))
        return copy

    def _short_copy(self, fd: int, length: int) -> mmap.mmap:
        copy = mmap.mmap(-1, self.size, flags=_PRIVATE | mmap.MAP_ANONYMOUS)
        for start, end in data_extents(fd, 0, length):
            data = os.pread(fd, end - start, start)
            copy[start : start + len(data)] = data
            self._note(start, end)
        os.close(fd)
        return copy

    def extents(self, at: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [AT, END) that may hold something other than zeros; they may overlap."""
        if self._array is not None:
            return [(at, end)]
        self._touch()
        found = self._source_extents(at, end) if self._is_sparse else []
        for start, stop in self._written:
            if start < end and stop > at:
                found.append((max(start, at), min(stop, end)))
        return found

    def _source_extents(self, at: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of the real file that are no holes; everything, if it was deleted meanwhile."""
        assert self._source is not None
        try:
            fd = self._source_descriptor()
        except FileNotFoundError:
            return [(at, end)]
        try:
            return data_extents(fd, at, end)
        finally:
            os.close(fd)

    def _touch(self) -> None:
        if self.size:
            self._mapped()

    def _note(self, start: int, end: int) -> None:
        """Remember that [START, END) was written; an append grows the last range."""
        if self._written and self._written[-1][0] <= start <= self._written[-1][1]:
            first, last = self._written[-1]
            self._written[-1] = (first, max(last, end))
        else:
            self._written.append((start, end))

    @property
    def view(self) -> memoryview:
        self.used = True
        view = self._view
        if view is None:
            view = self._view = memoryview(self._mapped() if self.size else b"").toreadonly()
        return view

    @property
    def array(self) -> NDArray[np.uint8]:
        if self._array is None:
            self._array = np.frombuffer(self._mapped() if self.size else b"", np.uint8)
            self._files.remove(self)
        return self._array

    def write(self, at: int, data: Buffer) -> None:
        if len(data):
            assert at + len(data) <= self.size, "written beyond the end of a mapped file"
            found = self._mapped()
            self._note(at, at + len(data))  # From here on it is not let go.
            self._files.remove(self)
            found[at : at + len(data)] = data

    def reserve(self, at: int, size: int) -> None:
        """Nothing to do: memory is taken page by page."""

    def zero(self, at: int, size: int) -> None:
        for start, end in self.extents(at, at + size):
            for position in range(start, end, _CHUNK):
                stop = min(position + _CHUNK, end)
                if np.frombuffer(self.view[position:stop], np.uint8).any():
                    self.write(position, bytes(stop - position))

    def read(self, at: int, size: int) -> bytes:
        if self._map is None and self._source is not None:
            size = max(0, min(size, self.size - at))
            start = at - self._seen_at
            if start >= 0 and start + size <= len(self._seen):
                return self._seen[start : start + size]
            data = self._read_source(at, size)
            if data is not None and len(data) == size:
                if size <= _SEEN_MAX:
                    self._seen_at, self._seen = at, data
                return data
        return bytes(self.view[at : at + size])

    def _read_source(self, at: int, size: int) -> bytes | None:
        """Return that range of the real file; None if it is no longer there."""
        assert self._source is not None
        if self._far is not None:
            return self._far.read_at(self._source, at, size)
        try:
            fd = self._source_descriptor()
        except FileNotFoundError:
            return None
        try:
            return os.pread(fd, size, at)
        finally:
            os.close(fd)

    def data_end(self, at: int, end: int) -> int:
        return max((stop for _, stop in self.extents(at, end)), default=at)

    def is_cut(self) -> bool:
        return False

    def check(self) -> None:
        """Find nothing wrong: what was not read yet may have changed, and then reads as it is."""

    def forget(self, at: int, size: int) -> None:
        """Keep everything: dropping private pages would undo changes."""

    def sync(self) -> None:
        """Nothing to do: nothing here is ever on a device."""

    def close(self) -> None:
        """Keep the content: it is the file, until the overlay is dropped."""


# ---------------------------------------------------------------- A disk whose changes stay in memory


class OverlayDisk:
    """A view of BASE (the real disk) on which every change is this object's own.

    ON_THIS_MACHINE: the paths of BASE are those of this machine's file system, so that its files can be mapped.
    Otherwise a file is read through BASE: in ranges by `Mapping.read`, whole once its `view` is asked for.
    """

    def __init__(
        self,
        base: Disk | None = None,
        *,
        on_this_machine: bool = True,
        files: OpenFiles = OPEN_FILES,
    ) -> None:
        self._base: Disk = OsDisk(files) if base is None else base
        self._open_files = files
        self._far = None if on_this_machine else self._base
        #: Files whose content is ours: mapped, written or renamed here.
        self._files = _Files()
        self._folders: set[str] = set()
        #: Real files and folders that do not exist in this view.
        self._gone: set[str] = set()

    def exists(self, path: str) -> bool:
        path = _key(path)
        return path in self._files or self.is_folder(path) or self._in_base(path)

    def is_folder(self, path: str) -> bool:
        path = _key(path)
        return path in self._folders or (not self._is_gone(path) and self._base.is_folder(path))

    def _in_base(self, path: str) -> bool:
        return not self._is_gone(path) and self._base.exists(path)

    def _is_gone(self, path: str) -> bool:
        if not self._gone:
            return False
        while path not in self._gone:
            parent = os.path.dirname(path)
            if parent == path:
                return False
            path = parent
        return True

    def size(self, path: str) -> int:
        path = _key(path)
        if path in self._files:
            return self._files[path].size
        self._require(path)
        return self._base.size(path)

    def _require(self, path: str) -> None:
        if not self._in_base(path):
            raise FileNotFoundError(path)

    def modified_ms(self, path: str) -> int:
        """Return when the real file was changed; for a file made here, when its nearest real folder was."""
        path = _key(path)
        while not self._base.exists(path):
            path = os.path.dirname(path)
        return self._base.modified_ms(path)

    def list(self, folder: str) -> list[Entry]:
        folder = _key(folder)
        found: dict[str, Entry] = {}
        if not self._is_gone(folder):
            for entry in self._base.list(folder):
                if os.path.join(folder, entry.name) not in self._gone:
                    found[entry.name] = entry
        for name, file in self._files.inside(folder):
            found[name] = Entry(name, file.size, is_folder=False)
        for path in self._folders:
            parent, name = os.path.split(path)
            if parent == folder:
                found[name] = Entry(name, 0, is_folder=True)
        return sorted(found.values(), key=lambda entry: entry.name)

    def make_folders(self, path: str, *, durable: bool = True) -> None:
        path = _key(path)
        while not self.is_folder(path):
            self._folders.add(path)
            path = os.path.dirname(path)

    def read(self, path: str) -> bytes:
        path = _key(path)
        if path in self._files:
            file = self._files[path]
            return file.read(0, file.size)
        self._require(path)
        return self._base.read(path)

    def read_at(self, path: str, at: int, size: int) -> bytes:
        path = _key(path)
        if path in self._files:
            return self._files[path].read(at, size)
        self._require(path)
        return self._base.read_at(path, at, size)

    def write_file(self, path: str, data: Buffer) -> None:
        path = _key(path)
        file = PrivateMapping(path, len(data), source=None)
        file.write(0, data)
        self._files[path] = file

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        if backup is not None and self.exists(path):
            self.rename(path, backup)
        self.write_file(path, data)

    def write_private(self, path: str, data: Buffer) -> None:
        self.write_file(path, data)

    def delete(self, path: str) -> None:
        path = _key(path)
        if path not in self._files:
            self._require(path)
        if path in self._files:
            del self._files[path]
        self._gone.add(path)

    def delete_folder(self, path: str) -> None:
        path = _key(path)
        inside = path + os.sep
        self._gone.add(path)
        self._folders = {one for one in self._folders if one != path and not one.startswith(inside)}
        for one in [one for one in self._files if one.startswith(inside)]:
            del self._files[one]

    def rename(self, source: str, target: str) -> None:
        source, target = _key(source), _key(target)
        if source not in self._files:
            self.open_map(source)
        file = self._files[source]
        del self._files[source]
        file.path = target
        self._files[target] = file
        self._gone.add(source)

    def truncate(self, path: str, size: int) -> None:
        path = _key(path)
        old = self._opened(path)
        new = PrivateMapping(path, size, source=None)
        for start, end in old.extents(0, min(size, old.size)):
            new.write(start, old.view[start:end])
        self._files[path] = new

    def sync_folder(self, path: str) -> None:
        """Do nothing: nothing here is ever on a device."""

    def sync_everything(self, path: str) -> bool:
        return True

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        path = _key(path)
        if path not in self._files and not self._in_base(path):
            if not create:
                raise FileNotFoundError(path)
            self._files[path] = PrivateMapping(path, size or 0, source=None)
        opened = self._opened(path)
        if size is not None and size > opened.size:
            self.truncate(path, size)
        return self._files[path]

    def _opened(self, path: str) -> PrivateMapping:
        if path not in self._files:
            self._require(path)
            self._files[path] = PrivateMapping(
                path, self._base.size(path), source=path, far=self._far, files=self._open_files
            )
        return self._files[path]

    def changed_files(self) -> dict[str, PrivateMapping]:
        """Return the files that are not as they are in the base, by path: written, made, cut, grown or renamed here."""
        return {
            path: file
            for path, file in self._files.items()
            if file.is_changed or not self._base.exists(path)
        }

    def gone(self) -> Sequence[str]:
        """Return the real files and folders that are no more in this view, and in whose place is nothing else."""
        return sorted(path for path in self._gone if path not in self._files)

    def made_folders(self) -> Sequence[str]:
        """Return the folders that were made here, outer ones first."""
        return sorted(self._folders)

    def lock(self, path: str) -> Lock:
        """Hold nothing: a store that another process has open may be looked at."""
        return _NoLock()

    def usage(self, path: str) -> DiskUsage:
        path = _key(path)
        while not self._base.exists(path):
            path = os.path.dirname(path)
        return self._base.usage(path)


class _Files(dict[str, PrivateMapping]):
    """Files by path, that also know who lies in a folder: a store has ten thousand of them, each in one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._folders: dict[str, dict[str, PrivateMapping]] = {}

    def __setitem__(self, path: str, file: PrivateMapping) -> None:
        super().__setitem__(path, file)
        folder, name = os.path.split(path)
        self._folders.setdefault(folder, {})[name] = file

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        folder, name = os.path.split(path)
        del self._folders[folder][name]

    def inside(self, folder: str) -> Iterable[tuple[str, PrivateMapping]]:
        """Return names and files in FOLDER."""
        return self._folders.get(folder, {}).items()


def _key(path: str) -> str:
    return os.path.abspath(path)


class _NoLock:
    def release(self) -> None:
        """Nothing is held."""
