"""A disk of which the n-th operation fails, once, twice or from there on, as the operating system would have it.

What fails is what `OsDisk` makes of it: a write raises StoreFull or DiskFailure, a read the bare OSError. Half of what
was to be written may be left behind.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pocketmq.store.disk import Buffer, Mapping, write_error

from ..fakes import ForwardingDisk, ForwardingMapping

_WRITES: Final = frozenset(("create", "write to", "allocate", "wipe", "replace", "make", "rename"))
_CHANGES: Final = _WRITES | {"delete", "sync"}
_READS: Final = frozenset(("look at", "list", "read", "map"))
_OPENS: Final = frozenset(("create", "replace", "list", "read", "map", "write to", "sync", "lock"))


class Fault(Enum):
    """What goes wrong, and with which operations it can."""

    EIO = (errno.EIO, _CHANGES | _READS | {"lock"})
    ENOSPC = (errno.ENOSPC, _WRITES)
    SHORT = (errno.ENOSPC, frozenset(("write to", "replace")), True)  # Half is written: no space.
    HALF = (errno.EIO, frozenset(("write to", "replace")), True)
    EMFILE = (errno.EMFILE, _OPENS)
    ENOMEM = (errno.ENOMEM, frozenset(("map",)))
    FULL = (errno.ENOSPC, _WRITES, True, True)  # From there on.
    READ_ONLY = (errno.EROFS, _CHANGES | {"lock"}, False, True)  # Remounted so.

    def __init__(
        self, code: int, actions: frozenset[str], leaves_half: bool = False, lasts: bool = False
    ) -> None:
        self.code = code
        self.actions = actions
        self.leaves_half = leaves_half
        self.lasts = lasts

    def error(self) -> OSError:
        return OSError(self.code, os.strerror(self.code))


class FailingDisk(ForwardingDisk):
    """A disk on which operation NUMBER (from 1 on) of those in ROOT that FAULT can befall fails; 0: none does.

    ALSO: another one after it that fails, too;  count: so many there were;  hit: what failed.
    """

    def __init__(self, root: str, fault: Fault, number: int, also: int = 0) -> None:
        super().__init__()
        self._root = root
        self._fault = fault
        self._numbers = (number, also)
        self.count = 0
        self.hit = ""
        #: A file whose path ends so was changed long ago.
        self.old = "\0"

    def fails(self, action: str, path: str) -> bool:
        """Count an operation; tell whether it is the one that fails."""
        if action not in self._fault.actions or not path.startswith(self._root):
            return False
        self.count += 1
        if self.count not in self._numbers:
            return bool(self.hit) and self._fault.lasts
        before = f"{self.hit}; " if self.hit else ""
        self.hit = f"{before}{self._fault.name} {self.count}: {action} {path}"
        return True

    def change(self, action: str, path: str, half: Callable[[], object] = lambda: None) -> None:
        """Raise what a writer gets, if it is the operation that fails; HALF does half of it."""
        if self.fails(action, path):
            if self._fault.leaves_half:
                half()
            raise write_error(self._fault.error(), action, path)

    def look(self, action: str, path: str) -> None:
        """Raise what a reader gets, if it is the operation that fails."""
        if self.fails(action, path):
            raise self._fault.error()

    def size(self, path: str) -> int:
        self.look("look at", path)
        return super().size(path)

    def modified_ms(self, path: str) -> int:
        self.look("look at", path)
        return 0 if path.endswith(self.old) else super().modified_ms(path)

    def list(self, folder: str) -> Any:
        self.look("list", folder)
        return super().list(folder)

    def make_folders(self, path: str, *, durable: bool = True) -> None:
        self.change("make", path)
        super().make_folders(path, durable=durable)

    def read(self, path: str) -> bytes:
        self.look("read", path)
        return super().read(path)

    def read_at(self, path: str, at: int, size: int) -> bytes:
        self.look("read", path)
        return super().read_at(path, at, size)

    def write_file(self, path: str, data: Buffer) -> None:
        half = bytes(data)[: len(data) // 2]
        self.change("replace", path, lambda: self.inner.write_file(path, half))
        super().write_file(path, data)

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        draft, half = f"{path}.tmp", bytes(data)[: len(data) // 2]
        self.change("replace", draft, lambda: self.inner.write_file(draft, half))
        self.change("rename", draft)
        super().write_atomically(path, data, backup=backup)

    def delete(self, path: str) -> None:
        self.change("delete", path)
        super().delete(path)

    def delete_folder(self, path: str) -> None:
        self.change("delete", path)
        super().delete_folder(path)

    def rename(self, source: str, target: str) -> None:
        self.change("rename", source)
        super().rename(source, target)

    def truncate(self, path: str, size: int) -> None:
        self.change("allocate", path)
        super().truncate(path, size)

    def sync_folder(self, path: str) -> None:
        self.change("sync", path)
        super().sync_folder(path)

    def lock(self, path: str) -> Any:
        self.change("lock", path)
        return super().lock(path)

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        if create:
            self.change("create", path)
        else:
            self.look("look at", path)
        mapping = super().open_map(path, size=size, writable=writable, create=create)
        return _FailingMapping(mapping, self)


class _FailingMapping(ForwardingMapping):
    """A mapping whose operations ask the disk first."""

    def __init__(self, inner: Mapping, disk: FailingDisk) -> None:
        super().__init__(inner)
        self._disk = disk
        self._is_mapped = False

    def _map(self) -> None:
        if not self._is_mapped:
            self._disk.change("map", self.path)
            self._is_mapped = True

    @property
    def view(self) -> memoryview:
        self._map()
        return self.inner.view

    @property
    def array(self) -> NDArray[np.uint8]:
        self._map()
        return self.inner.array

    def write(self, at: int, data: Buffer) -> None:
        half = memoryview(data)[: len(data) // 2]
        self._disk.change("write to", self.path, lambda: self.inner.write(at, half))
        self.inner.write(at, data)

    def reserve(self, at: int, size: int) -> None:
        self._disk.change("allocate", self.path)
        self.inner.reserve(at, size)

    def zero(self, at: int, size: int) -> None:
        self._disk.change("wipe", self.path)
        self.inner.zero(at, size)

    def read(self, at: int, size: int) -> bytes:
        self._disk.look("read", self.path)
        return self.inner.read(at, size)

    def sync(self) -> None:
        self._disk.change("sync", self.path)
        self.inner.sync()
