"""Copies and hard links of files, and syncs of folders.

A hard link is another name of the same bytes. A file with several names (the closed files of a forked store) is never
written to: before the first write, a copy replaces it (`make_own`), so that the other store stays as it is.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Final

from .system import CLOSE_ON_EXEC, FOLDER, copy_range, data_extents, sync_file

#: More files are synced by one call for all file systems.
_SYNCED_ONE_BY_ONE_MAX: Final = 500
#: Bytes copied at once, if the system has no call that copies.
_COPIED_AT_ONCE: Final = 1 << 20
#: Errors for which a copy replaces the link: another file system, no support for links, too many names, not allowed.
_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)


def link_or_copy(source: str, target: str) -> bool:
    """Make TARGET another name of the file SOURCE, or a copy if that is not possible; return whether it is a link."""
    try:
        os.link(source, target, follow_symlinks=True)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        copy_file(source, target)
        return False
    return True


def copy_file(source: str, target: str, size: int | None = None, *, sync: bool = True) -> None:
    """Copy the file SOURCE, or its first SIZE bytes, to the new file TARGET of the full length; holes stay holes.

    Waits until it is on disk, unless SYNC is false. Bytes after SIZE are zeros in the copy.
    """
    reader = os.open(source, os.O_RDONLY | CLOSE_ON_EXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC, 0o644)
        try:
            length = os.fstat(reader).st_size
            os.ftruncate(writer, length)
            _copy_data(reader, writer, length if size is None else min(size, length))
            if sync:
                sync_file(writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_data(reader: int, writer: int, end: int) -> None:
    for start, stop in data_extents(reader, 0, end):
        _copy_range(reader, writer, start, stop)


def _copy_range(reader: int, writer: int, at: int, end: int) -> None:
    while at < end:
        count = copy_range(reader, writer, end - at, at)
        if not count:
            data = os.pread(reader, min(_COPIED_AT_ONCE, end - at), at)
            if not data:
                return  # The file was cut during the copy.
            count = os.pwrite(writer, data, at)
        at += count


def has_other_names(path: str) -> bool:
    """Is the file PATH known under another name, too?"""
    try:
        return os.stat(path).st_nlink > 1
    except FileNotFoundError:
        return False


def make_own(path: str) -> bool:
    """Replace the file PATH by a copy if it has other names; return whether it had.

    The copy is on disk when this returns; a crash leaves the old file or the copy.
    """
    if not has_other_names(path):
        return False
    draft = f"{path}.own"
    with suppress(FileNotFoundError):  # A file that an interrupted call left.
        os.unlink(draft)
    times = os.stat(path)
    copy_file(path, draft)
    os.utime(draft, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(draft, path)
    sync_folder(os.path.dirname(path))
    return True


def sync_tree(root: str) -> None:
    """Wait until everything under the folder ROOT is on disk, including its own name."""
    folders = list(os.walk(root))
    if sum(len(names) for _, _, names in folders) > _SYNCED_ONE_BY_ONE_MAX:
        os.sync()
        return
    for folder, _, names in folders:
        for name in names:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY | CLOSE_ON_EXEC)
            try:
                sync_file(fd)
            finally:
                os.close(fd)
        sync_folder(folder)
    sync_folder(os.path.dirname(os.path.abspath(root)))


def sync_folder(path: str) -> None:
    """Wait until the names in the folder PATH are on disk."""
    fd = os.open(path or ".", FOLDER)
    try:
        sync_file(fd)
    finally:
        os.close(fd)
