"""Copies of files on this machine: other names for one file, sparse copies, and a file of its own behind a name.

A hard link is another name of the same bytes. A file with several names is never written to by this package
(os_disk.py): `make_own` first puts a copy behind the name.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Final

_CHUNK: Final = 1 << 20
#: More files are brought to the device by one call for the whole machine.
_SYNCED_ONE_BY_ONE_MAX: Final = 500
#: A link that cannot be: another file system, one that knows none, too many names, not allowed.
_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
#: What `copy_file_range` fails with where the file system does not do it.
_NO_RANGE: Final = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)


def link_or_copy(source: str, target: str) -> bool:
    """Make TARGET another name of the file SOURCE, or a copy where that cannot be; return whether it is linked."""
    try:
        os.link(source, target, follow_symlinks=True)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        copy_file(source, target)
        return False
    return True


def copy_file(source: str, target: str, size: int | None = None, *, sync: bool = True) -> None:
    """Copy the file SOURCE, or its first SIZE bytes, to the new file TARGET, at the whole length; holes stay holes.

    Waits for the device, unless SYNC is false. What is behind SIZE reads as zeros in the copy.
    """
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            length = os.fstat(reader).st_size
            os.ftruncate(writer, length)
            _copy_data(reader, writer, length if size is None else min(size, length))
            if sync:
                os.fsync(writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_data(reader: int, writer: int, end: int) -> None:
    at = 0
    while at < end:
        try:
            start = os.lseek(reader, at, os.SEEK_DATA)
            stop = os.lseek(reader, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            start, stop = at, end  # A file system that knows no holes.
        at = min(stop, end)
        _copy_range(reader, writer, min(start, end), at)


def _copy_range(reader: int, writer: int, at: int, end: int) -> None:
    while at < end:
        try:
            count = os.copy_file_range(reader, writer, end - at, at, at)
        except OSError as error:
            if error.errno not in _NO_RANGE:
                raise
            count = 0
        if not count:
            data = os.pread(reader, min(_CHUNK, end - at), at)
            if not data:
                return  # The file was cut meanwhile.
            count = os.pwrite(writer, data, at)
        at += count


def has_other_names(path: str) -> bool:
    """Is the file PATH known under another name, too?"""
    try:
        return os.stat(path).st_nlink > 1
    except FileNotFoundError:
        return False


def make_own(path: str) -> bool:
    """Put a copy of the file PATH behind that name if it has other names; return whether that was so.

    On the device when this returns; a crash leaves the old file or the copy.
    """
    if not has_other_names(path):
        return False
    draft = f"{path}.own"
    with suppress(FileNotFoundError):  # An interrupted call left it.
        os.unlink(draft)
    times = os.stat(path)
    copy_file(path, draft)
    os.utime(draft, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(draft, path)
    sync_folder(os.path.dirname(path))
    return True


def sync_tree(root: str) -> None:
    """Wait until everything under the folder ROOT is on the device, as is its own name."""
    folders = list(os.walk(root))
    if sum(len(names) for _, _, names in folders) > _SYNCED_ONE_BY_ONE_MAX:
        os.sync()
        return
    for folder, _, names in folders:
        for name in names:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_folder(folder)
    sync_folder(os.path.dirname(os.path.abspath(root)))


def sync_folder(path: str) -> None:
    """Wait until the names in the folder PATH are on the device."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
