"""A disk whose changes stay in memory: opens any store, live, stopped or damaged, without writing a byte.

`OverlayDisk` reads the real files and stores changes separately: a mapped file is a private (copy-on-write) map, a
created file is anonymous memory, and a table has deleted, renamed and replaced files. So the ordinary opening and
recovery of a store run on it, and show exactly the store that a broker would have afterwards.

Cost: a page is copied when it is first changed; the rest is in the page cache, even of 420 MB index files and 1 GiB
logs (MAP_NORESERVE, and holes are never touched).

A file that a running broker deletes after it was opened here stays readable; one that was deleted before reads as
zeros. If another program cuts a mapped file, the process is killed (SIGBUS), as a RocketMQ broker would be. Brokers
never do that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence

from .disk import Buffer, Disk, DiskUsage, Entry, Lock, Mapping
from .open_files import OPEN_FILES, OpenFiles
from .os_disk import OsDisk
from .private_mapping import PrivateMapping

logger = logging.getLogger(__name__)


class OverlayDisk:
    """A view of BASE (the real disk) that keeps all changes to itself.

    ON_THIS_MACHINE: the paths of BASE are those of this machine's file system, so that its files can be mapped.
    Otherwise a file is read through BASE: in ranges by `Mapping.read`, completely for its `view`.
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
        #: Files with changes: mapped, written or renamed here.
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
        """Return when the real file was changed; for a file created here, when its nearest real folder was."""
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
        """Do nothing: changes are never written to a disk."""

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
        """Return the files that differ from the base, by path: written, created, cut, grown or renamed here."""
        return {
            path: file
            for path, file in self._files.items()
            if file.is_changed or not self._base.exists(path)
        }

    def gone(self) -> Sequence[str]:
        """Return the real files and folders that were deleted in this view and not replaced."""
        return sorted(path for path in self._gone if path not in self._files)

    def made_folders(self) -> Sequence[str]:
        """Return the folders that were created here, outer ones first."""
        return sorted(self._folders)

    def lock(self, path: str) -> Lock:
        """Lock nothing: a store that another process has open may be read."""
        return _NoLock()

    def usage(self, path: str) -> DiskUsage:
        path = _key(path)
        while not self._base.exists(path):
            path = os.path.dirname(path)
        return self._base.usage(path)


class _Files(dict[str, PrivateMapping]):
    """Files by path, with an index by folder: a store has ten thousand of them, each in its own folder."""

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
        """Do nothing: nothing is held."""
