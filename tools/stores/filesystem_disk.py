"""A store in an object store or a distributed file system, through pyarrow.fs: read-only, and never whole.

`FileSystemDisk` is a `Disk` (store/disk.py) over any `pyarrow.fs.FileSystem`: S3, GCS, Azure, HDFS, a folder. Reads
are ranged. The names and lengths of everything below ROOT are listed once, with one recursive listing, and kept: so a
disk shows one moment, and opening a store of ten thousand queues does not cost ten thousand requests. What changes
later shows in a new disk.

Put an `OverlayDisk(disk, on_this_machine=False)` in front, and the ordinary recovery runs on it.

Paths are absolute, "/bucket/store/commitlog"; LEADING_SLASH: paths of the file system begin with a slash, too.
"""

from __future__ import annotations

import posixpath
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...proto.errors import ConfigError, DiskFailure
from ...proto.extras import pip_install
from ...proto.record_run import as_bytes
from ...store.disk import Buffer, DiskUsage, Entry, Lock, Mapping

#: How much one request asks for where a whole file is needed.
FETCH_BYTES: Final = 8 << 20


def pyarrow_fs() -> Any:
    """Return the module pyarrow.fs. Raises ConfigError without pyarrow."""
    try:
        from pyarrow import fs
    except ImportError as error:
        raise ConfigError(
            f"a store at a URL needs pyarrow, which is not installed: {pip_install('arrow')}",
            field="pyarrow",
        ) from error
    return fs


class FileSystemDisk:
    """The files of FILE_SYSTEM below ROOT, for reading."""

    def __init__(self, file_system: Any, root: str, *, leading_slash: bool = True) -> None:
        self.file_system = file_system
        self.root = _absolute(root)
        self._leading_slash = leading_slash
        self._selector: Any = pyarrow_fs().FileSelector
        self._directory: Any = pyarrow_fs().FileType.Directory
        self._missing: Any = pyarrow_fs().FileType.NotFound
        #: Everything below ROOT by its path; None until it is first asked for.
        self._known: dict[str, tuple[Entry, int]] | None = None
        self._children: dict[str, list[Entry]] = {}

    @classmethod
    def of(cls, url: str) -> FileSystemDisk:
        """Return the disk that holds the store at URL ("s3://bucket/store", "hdfs://host:9000/store").

        Raises ConfigError for a URL that pyarrow does not take.
        """
        file_system, path = open_url(url)
        return cls(file_system, path, leading_slash=path.startswith("/"))

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_folder(self, path: str) -> bool:
        found = self._find(path)
        return found is not None and found[0].is_folder

    def size(self, path: str) -> int:
        return self._require(path)[0].size

    def modified_ms(self, path: str) -> int:
        return self._require(path)[1]

    def list(self, folder: str) -> list[Entry]:
        self._load()
        return list(self._children.get(_absolute(folder), ()))

    def _require(self, path: str) -> tuple[Entry, int]:
        found = self._find(path)
        if found is None:
            raise FileNotFoundError(path)
        return found

    def _find(self, path: str) -> tuple[Entry, int] | None:
        return self._load().get(_absolute(path))

    def _load(self) -> dict[str, tuple[Entry, int]]:
        """List everything below the root, once."""
        if self._known is not None:
            return self._known
        root = self.file_system.get_file_info(self._own(self.root))
        known: dict[str, tuple[Entry, int]] = {}
        self._known = known
        if root.type == self._missing:
            return known
        self._enter(self.root, root)
        if root.type == self._directory:
            selector = self._selector(self._own(self.root), recursive=True)
            for info in self.file_system.get_file_info(selector):
                self._enter(_absolute(info.path), info)
        for children in self._children.values():
            children.sort(key=lambda entry: entry.name)
        return known

    def _enter(self, path: str, info: Any) -> None:
        assert self._known is not None
        is_folder = info.type == self._directory
        folder, name = posixpath.split(path)
        entry = Entry(name, 0 if is_folder else info.size, is_folder)
        modified_ns = info.mtime_ns or 0
        self._known[path] = (entry, modified_ns // 1_000_000)
        if path != self.root:
            self._children.setdefault(folder, []).append(entry)

    def _own(self, path: str) -> str:
        """Return PATH as the file system itself writes it."""
        return path if self._leading_slash else path.lstrip("/")

    def read(self, path: str) -> bytes:
        return self.read_at(path, 0, self.size(path))

    def read_at(self, path: str, at: int, size: int) -> bytes:
        length = self.size(path)
        size = max(0, min(size, length - at))
        if size == 0:
            return b""
        with self.file_system.open_input_file(self._own(_absolute(path))) as file:
            data: bytes = file.read_at(size, at)
        return data

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        length = self.size(path)
        if size is not None and size > length:
            _refuse("set the length of", path)
        return FileSystemMapping(self, path, length)

    def lock(self, path: str) -> Lock:
        """Hold nothing: nothing is written here."""
        return _NoLock()

    def usage(self, path: str) -> DiskUsage:
        """Return an empty file system: its free space is not known."""
        return DiskUsage(used_bytes=0, usable_bytes=1)

    def make_folders(self, path: str, *, durable: bool = True) -> None:
        if not self.is_folder(path):
            _refuse("create the folder", path)

    def write_file(self, path: str, data: Buffer) -> None:
        _refuse("write", path)

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        _refuse("write", path)

    def write_private(self, path: str, data: Buffer) -> None:
        _refuse("write", path)

    def delete(self, path: str) -> None:
        _refuse("delete", path)

    def delete_folder(self, path: str) -> None:
        _refuse("delete the folder", path)

    def rename(self, source: str, target: str) -> None:
        _refuse("rename", source)

    def truncate(self, path: str, size: int) -> None:
        _refuse("cut", path)

    def sync_folder(self, path: str) -> None:
        """Do nothing: nothing was written."""

    def sync_everything(self, path: str) -> bool:
        return True


class FileSystemMapping:
    """One file: `read` asks for a range; `view` and `array` fetch the whole file, once."""

    def __init__(self, disk: FileSystemDisk, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self._disk = disk
        self._data: bytes | None = None

    def _whole(self) -> bytes:
        if self._data is None:
            parts = [
                self._disk.read_at(self.path, at, FETCH_BYTES)
                for at in range(0, self.size, FETCH_BYTES)
            ]
            self._data = b"".join(parts)
        return self._data

    @property
    def view(self) -> memoryview:
        return memoryview(self._whole())

    @property
    def array(self) -> NDArray[np.uint8]:
        return as_bytes(self._whole())

    def read(self, at: int, size: int) -> bytes:
        if self._data is not None:
            return self._data[at : at + size]
        return self._disk.read_at(self.path, at, size)

    def is_cut(self) -> bool:
        return False

    def check(self) -> None:
        """Find no fault: each read asks again."""

    def data_end(self, at: int, end: int) -> int:
        """Return END: holes are not known."""
        return end

    def write(self, at: int, data: Buffer) -> None:
        _refuse("write to", self.path)

    def reserve(self, at: int, size: int) -> None:
        _refuse("allocate space in", self.path)

    def zero(self, at: int, size: int) -> None:
        _refuse("write to", self.path)

    def forget(self, at: int, size: int) -> None:
        """Keep what was fetched: fetching it again would cost more than memory."""

    def sync(self) -> None:
        """Do nothing: nothing was written."""

    def close(self) -> None:
        self._data = None


class _NoLock:
    def release(self) -> None:
        """Nothing is held."""


def open_url(url: str) -> tuple[Any, str]:
    """Return the file system of URL and the path in it; ConfigError where pyarrow does not take it."""
    import pyarrow

    try:
        file_system, path = pyarrow_fs().FileSystem.from_uri(url)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        # Arrow decodes %XX of a URL, and shows the result in its message.
        reason = str(error).replace("\0", "")
        raise ConfigError(
            f"{url} cannot be opened: {reason}; give a path or a URL such as s3://bucket/store",
            field="store",
            value=url,
        ) from error
    return file_system, path


def _absolute(path: str) -> str:
    return "/" + path.strip("/")


def _refuse(action: str, path: str) -> NoReturn:
    raise DiskFailure(
        f"cannot {action} {path}: stores at URLs are only read. Copy it to this machine first",
        path=path,
        reason="read-only",
    )
