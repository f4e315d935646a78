"""The files of a store, in a new folder: closed ones by hard link, those that a broker writes to as sparse copies.

A broker changes in place the last file of the log, of each queue, of the index and of the timer log, the wheel, the
checkpoints, and the tables in config/. Every other file of a row is closed: it is read, and one day deleted, which
leaves the other name. Files of no use to a copy are left out: `abort`, `lock`, the notes of a running broker.

The source may be live: a file that disappears meanwhile is left out, and small files that claim something about others
(checkpoints, verified.json) are copied before what they describe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...proto.errors import InvalidArgument
from ...store.commit_log import store_time_ms
from ...store.file_copies import copy_file, has_other_names, link_or_copy, make_own
from ...store.message_store import MessageStore
from ...store.os_disk import OsDisk
from ...store.overlay_disk import OverlayDisk
from ...store.private_mapping import PrivateMapping

#: Folders whose files are rows: all but the last of each are closed.
ROWS: Final = (
    "commitlog",
    "consumequeue",
    "batchconsumequeue",
    "consumequeue_ext",
    "index",
    "timerlog",
)
#: Files that are not copied: brokers create them, or they are of the running broker.
_LEFT_OUT: Final = frozenset({"abort", "abort.bak", "lock", "rocksdbstore", "pocketmq/tables"})
#: The unit of `st_blocks`.
_BLOCK: Final = 512
#: What is never changed once it was written.
_SAVED: Final = "pocketmq/broken"
_CHUNK: Final = 1 << 20


@dataclass(slots=True)
class Copied:
    """What a skeleton took over: numbers of files, and how many bytes they have on disk, without holes."""

    linked_files: int = 0
    linked_bytes: int = 0
    copied_files: int = 0
    copied_bytes: int = 0

    def link(self, source: str, target: str) -> None:
        """Take over the closed file SOURCE."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            size = _on_device(source)
            linked = link_or_copy(source, target)
        except FileNotFoundError:
            return  # A live broker's retention deleted it.
        if linked:
            self.linked_files += 1
            self.linked_bytes += size
        else:
            self.copied_files += 1
            self.copied_bytes += size

    def copy(self, source: str, target: str, size: int | None = None) -> None:
        """Take over the file SOURCE, or its first SIZE bytes, as a copy."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            copy_file(source, target, size, sync=False)
        except FileNotFoundError:
            return
        self.copied_files += 1
        self.copied_bytes += _on_device(target)


def _on_device(path: str) -> int:
    return os.stat(path).st_blocks * _BLOCK


def require_new_folder(path: str, source: str) -> None:
    """Raise InvalidArgument unless PATH is new or an empty folder, and not inside SOURCE."""
    inside = os.path.commonpath([os.path.realpath(path), os.path.realpath(source)])
    if inside == os.path.realpath(source):
        raise InvalidArgument(
            f"--output {path}: it is inside the store {source}. Give a folder outside of it",
            field="to",
            value=path,
        )
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path) or os.listdir(path):
        raise InvalidArgument(
            f"--output {path}: it exists and is not an empty folder. Give a new one",
            field="to",
            value=path,
        )


def copy_small_files(
    source: str, target: str, copied: Copied, *, without: Sequence[str] = ()
) -> None:
    """Copy everything that is no row, but WITHOUT some: tables, checkpoints, the wheel, our own notes."""
    for path in sorted(_files(source, ""), key=_turn):
        if path in _LEFT_OUT or path.split("/")[0] in _LEFT_OUT or path.endswith(".tmp"):
            continue
        if path in without:
            continue
        origin, place = os.path.join(source, path), os.path.join(target, path)
        if path.startswith(_SAVED):
            copied.link(origin, place)
        else:
            copied.copy(origin, place)


def _turn(path: str) -> tuple[bool, str]:
    """Return which of the small files is copied when: the checkpoint describes others."""
    return path != "checkpoint", path


def copy_rows(source: str, target: str, copied: Copied, only: Sequence[str] = ROWS) -> None:
    """Take over all rows, or ONLY some: closed files by link, the last file of each as a copy."""
    for row in only:
        for folder, names in row_folders(os.path.join(source, row)):
            place = os.path.join(target, os.path.relpath(folder, source))
            for name in names[:-1]:
                copied.link(os.path.join(folder, name), os.path.join(place, name))
            for name in names[-1:]:
                copied.copy(os.path.join(folder, name), os.path.join(place, name))


def row_folders(root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every folder under ROOT that holds files, with their names in order."""
    disk = OsDisk()
    folders = [root]
    while folders:
        folder = folders.pop()
        names = []
        for entry in disk.list(folder):
            if entry.is_folder:
                folders.append(os.path.join(folder, entry.name))
            else:
                names.append(entry.name)
        if names:
            yield folder, names


def _files(root: str, folder: str) -> Iterator[str]:
    """Yield the path, from ROOT on, of every file that is in no row."""
    for entry in OsDisk().list(os.path.join(root, folder) if folder else root):
        path = f"{folder}/{entry.name}" if folder else entry.name
        if not entry.is_folder:
            yield path
        elif path not in ROWS and path not in _LEFT_OUT:
            yield from _files(root, path)


def settle(overlay: OverlayDisk, root: str) -> None:
    """Write to the folder ROOT what OVERLAY shows there, such as the result of a recovery in memory; nothing is synced.

    Only for folders that this program made itself: a file that is linked to another store is replaced, never changed.
    """
    disk = OsDisk()
    inside = os.path.join(os.path.abspath(root), "")
    for path in overlay.gone():
        if path.startswith(inside):
            _remove(disk, path)
    for folder in overlay.made_folders():
        if folder.startswith(inside):
            disk.make_folders(folder)
    for path, file in overlay.changed_files().items():
        if path.startswith(inside):
            _write(disk, path, file)


def _remove(disk: OsDisk, path: str) -> None:
    if disk.is_folder(path):
        disk.delete_folder(path)
    elif disk.exists(path):
        disk.delete(path)


def _write(disk: OsDisk, path: str, file: PrivateMapping) -> None:
    """Make the file PATH contain what FILE shows; parts that are the same already are not written."""
    disk.make_folders(os.path.dirname(path))
    in_place = disk.exists(path) and disk.size(path) == file.size and not has_other_names(path)
    if in_place:
        _fill(disk, path, file)
        return
    draft = f"{path}.settled"  # FILE still reads what did not change from PATH.
    _fill(disk, draft, file)
    disk.rename(draft, path)


def _fill(disk: OsDisk, path: str, file: PrivateMapping) -> None:
    target = disk.open_map(path, size=file.size, create=True)
    try:
        for at in range(0, file.size, _CHUNK):
            end = min(at + _CHUNK, file.size)
            if not file.extents(at, end) and target.data_end(at, end) == at:
                continue
            data = file.view[at:end]
            if target.read(at, end - at) != data:
                target.write(at, data)
    finally:
        target.close()


def limit_checkpoint(store: MessageStore) -> None:
    """Let the checkpoint of STORE claim no more than its log holds: what follows is not on disk yet."""
    values = store.parts.checkpoint.values
    newest_ms = store_time_ms(store.log, values.confirm_offset) or 0
    values.log_time_ms = min(values.log_time_ms, newest_ms)
    values.queues_time_ms = min(values.queues_time_ms, newest_ms)
    values.index_time_ms = min(values.index_time_ms, newest_ms)
    values.queues_log_offset = min(values.queues_log_offset, values.confirm_offset)
    values.master_flushed_offset = min(values.master_flushed_offset, store.max_log_offset)


def own_open_files(store: MessageStore) -> None:
    """See that no file that a broker will write to, the last one of each row, is another store's, too.

    Closed files are only ever read, and deleted.
    """
    rows = [store.log.files, store.timers.log.files, *(queue.files for queue in store.queues)]
    paths = [row.last.path for row in rows if row.last is not None]
    paths += [one.open_path for one in store.queues.lite]
    if store.index is not None and store.index.files:
        paths.append(store.index.files[-1].path)
    for path in paths:
        if os.path.exists(path):
            make_own(path)
