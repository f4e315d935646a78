"""The files of a store, in a new folder: closed ones by hard link, those that a broker writes to as sparse copies.

What a broker changes in place: the last file of the log, of each queue, of the index and of the timer log, the wheel,
the checkpoints, the tables in config/. Every other file of a row is closed: it is read, and one day deleted, which
leaves the other name alone. Files of no use to a copy stay behind: `abort`, `lock`, the notes of a running broker.

The source may be live: a file that goes meanwhile is left out, and small files that claim something about others
(checkpoints, verified.json) are copied before what they tell of. Changes of tables (pocketmq/changes) go before the
tables: a file of them is deleted once its table has them.

`settle` writes down what recovery made of the new folder in memory. Only for folders that this program made itself: a
file that is linked to another store is replaced, never changed.

The cut of a store at a moment: where its log stood then, and the rows up to it, without what points behind it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...proto.errors import InvalidArgument
from ...proto.record_run import parse_run
from ...store.apache.settings import ApacheSettings
from ...store.commit_log import store_time_ms
from ...store.disk import Disk
from ...store.file_copies import copy_file, has_other_names, link_or_copy, make_own
from ...store.files import MappedFile, file_name
from ...store.format.index import HEADER_SIZE, IndexHeader
from ...store.format.queues import BATCH_ENTRY, ENTRY, leading
from ...store.format.rows import RowFormat
from ...store.kept_table import FOLDER
from ...store.message_store import MessageStore
from ...store.os_disk import OsDisk
from ...store.overlay_disk import OverlayDisk
from ...store.private_mapping import PrivateMapping
from ...store.recovery.scan import FileScan

#: Folders whose files are rows: all but the last of each are closed.
ROWS: Final = (
    "commitlog",
    "consumequeue",
    "batchconsumequeue",
    "consumequeue_ext",
    "index",
    "timerlog",
)
#: What a copy begins without; brokers make it again, or it tells of the running broker only.
_LEFT_OUT: Final = frozenset({"abort", "abort.bak", "lock", "rocksdbstore", "pocketmq/tables"})
#: The unit of `st_blocks`.
_BLOCK: Final = 512
#: What is never changed once it was written.
_SAVED: Final = "pocketmq/broken"
_CHUNK: Final = 1 << 20


@dataclass(slots=True)
class Copied:
    """What a skeleton took over: numbers of files, and how many bytes they have on the device, without holes."""

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
    """Raise InvalidArgument unless PATH can become a store: not there, or an empty folder, and not inside SOURCE."""
    inside = os.path.commonpath([os.path.realpath(path), os.path.realpath(source)])
    if inside == os.path.realpath(source):
        raise InvalidArgument(
            f"--to {path}: it lies inside the store {source}: name a folder outside of it",
            field="to",
            value=path,
        )
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path) or os.listdir(path):
        raise InvalidArgument(
            f"--to {path}: it is there already and not an empty folder: name a new one",
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


def _turn(path: str) -> tuple[int, str]:
    """Return which of the small files is copied when."""
    return (0 if path == "checkpoint" else 1 if path.startswith(FOLDER) else 2), path


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
    """Make the folder ROOT hold what OVERLAY shows there; nothing is synced."""
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
    """Let the checkpoint of STORE claim no more than its log holds: what follows is not on the device yet."""
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
    if store.index is not None and store.index.files:
        paths.append(store.index.files[-1].path)
    for path in paths:
        if os.path.exists(path):
            make_own(path)


# ---------------------------------------------------------------- the cut of a store at a moment


#: Far behind any time of a record.
END_OF_TIME_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Cut:
    """The log up to LOG_OFFSET is what was stored at TIME_MS or before.

    last_offset, last_ms: log offset and store time of the last record before it (−1, 0: there is none);
    is_end: nothing in the log lies behind it.
    """

    time_ms: int
    log_offset: int
    last_offset: int
    last_ms: int
    is_end: bool


def find_cut(disk: Disk, log_folder: str, time_ms: int) -> Cut:
    """Return the cut at TIME_MS of the log in LOG_FOLDER on DISK.

    By halving over the files, then by the records of one. Store times never fall along a log, but where a clock was
    set back: then everything from the first later record of that file on is left out.
    """
    files = _files_before(disk, log_folder)
    if not files:
        return Cut(time_ms, 0, -1, 0, is_end=True)
    low, high = 0, len(files)
    while low < high:
        middle = (low + high) // 2
        first_ms = _first_ms(files[middle])
        if first_ms is not None and first_ms <= time_ms:
            low = middle + 1
        else:
            high = middle
    if not low:
        return Cut(time_ms, files[0].start, -1, 0, is_end=_first_ms(files[0]) is None)
    return _cut_in(files, low - 1, time_ms)


def _cut_in(files: list[MappedFile], number: int, time_ms: int) -> Cut:
    """Return the cut, which lies in the file NUMBER or at its end."""
    file = files[number]
    scanned = FileScan(file, check_crc=False, oldest_ms=0).scan()
    times = scanned.columns.store_ms
    late = np.flatnonzero(times > time_ms)
    if len(late):
        row = int(late[0])
        offset = int(scanned.log_offsets[row])
    else:
        row = len(scanned)
        offset = file.end if scanned.has_blank else file.start + scanned.end
    last_offset = int(scanned.log_offsets[row - 1]) if row else -1
    last_ms = int(times[:row].max()) if row else 0
    later = any(_first_ms(other) is not None for other in files[number + 1 :])
    return Cut(time_ms, offset, last_offset, last_ms, is_end=not len(late) and not later)


def _first_ms(file: MappedFile) -> int | None:
    """Return the store time of the first sound record of FILE; None if it has none."""
    columns = parse_run(file.view, np.zeros(1, np.int64))
    if columns.well_formed[0] and int(columns.log_offset[0]) == file.start:
        return int(columns.store_ms[0])
    times = FileScan(file, check_crc=False, oldest_ms=0).scan().columns.store_ms
    return int(times[0]) if len(times) else None


def _files_before(disk: Disk, folder: str) -> list[MappedFile]:
    """Return the files of the log that are as long as most of them."""
    entries = [
        entry
        for entry in disk.list(folder)
        if not entry.is_folder and entry.size and entry.name.isascii() and entry.name.isdigit()
    ]
    return [
        MappedFile(
            disk, os.path.join(folder, entry.name), int(entry.name), entry.size, create=False
        )
        for entry in entries
    ]


class CutRows:
    """Copies the rows of SOURCE to TARGET, up to log offset END. DISK reads SOURCE."""

    def __init__(
        self, disk: Disk, source: str, target: str, settings: ApacheSettings, end: int
    ) -> None:
        self._disk = disk
        self._source = source
        self._target = target
        self._settings = settings
        self._end = end

    def copy(self, copied: Copied) -> None:
        """Take over log, queues and index."""
        self._copy_log(copied)
        for kind, entry_format in (
            ("consumequeue", ENTRY),
            ("batchconsumequeue", BATCH_ENTRY),
        ):
            for folder, names in row_folders(os.path.join(self._source, kind)):
                self._copy_queue(copied, folder, names, entry_format)
        self._copy_index(copied)

    def copy_others(self, copied: Copied) -> None:
        """Take over the rows that no cut is known for."""
        copy_rows(self._source, self._target, copied, only=("consumequeue_ext",))

    def _place(self, path: str) -> str:
        return os.path.join(self._target, os.path.relpath(path, self._source))

    def _copy_log(self, copied: Copied) -> None:
        for folder, names in row_folders(os.path.join(self._source, "commitlog")):
            for name in names:
                path = os.path.join(folder, name)
                if not name.isdigit() or int(name) >= self._end:
                    continue
                if int(name) + self._settings.log_file_size <= self._end:
                    copied.link(path, self._place(path))
                else:
                    copied.copy(path, self._place(path), self._end - int(name))
            self._make_next_file(folder)

    def _make_next_file(self, folder: str) -> None:
        """Let the log go on in a file of its own if the cut lies between two: nothing is written to the one before."""
        path = self._place(os.path.join(folder, file_name(self._end)))
        if self._end % self._settings.log_file_size == 0 and not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            OsDisk().open_map(path, size=self._settings.log_file_size, create=True).close()

    def _copy_queue(
        self, copied: Copied, folder: str, names: Sequence[str], entry_format: RowFormat
    ) -> None:
        """Take over the files of one queue up to the first entry behind the cut.

        A queue that held nothing by then keeps its first file, empty, if it does not begin at 0: so its numbers go on.
        """
        paths = [os.path.join(folder, name) for name in names if name.isdigit()]
        for number in range(len(paths) - 1, -1, -1):
            used = self._used(paths[number], entry_format)
            if not used and (number or not int(os.path.basename(paths[0]))):
                continue
            for path in paths[:number]:
                copied.link(path, self._place(path))
            copied.copy(paths[number], self._place(paths[number]), used)
            return

    def _used(self, path: str, entry_format: RowFormat) -> int:
        """Return how many bytes of the queue file PATH hold entries before the cut."""
        size = entry_format.size
        if not self._places_before(self._disk.read_at(path, 0, size), entry_format):
            return 0
        mapping = self._disk.open_map(path, writable=False)
        count = -(-mapping.data_end(0, mapping.size) // size)
        data = mapping.read(0, min(count, mapping.size // size) * size)
        mapping.close()
        return size * self._places_before(data, entry_format)

    def _places_before(self, data: bytes, entry_format: RowFormat) -> int:
        """Return how many entries at the beginning of DATA point before the cut."""
        entries = entry_format.columns(data)
        offsets = entries["log_offset"]
        good = (offsets >= 0) & (offsets < self._end) & (entries["size"] > 0)
        return leading(good)

    def _copy_index(self, copied: Copied) -> None:
        for folder, names in row_folders(os.path.join(self._source, "index")):
            for name in names:
                path = os.path.join(folder, name)
                data = self._disk.read_at(path, 0, HEADER_SIZE)
                if len(data) < HEADER_SIZE:
                    continue
                header = IndexHeader.parse(data)
                if header.next_entry > 1 and header.begin_log_offset >= self._end:
                    continue
                full = header.next_entry >= self._settings.index_entries
                if full and header.end_log_offset < self._end and name != names[-1]:
                    copied.link(path, self._place(path))
                else:
                    copied.copy(path, self._place(path))
