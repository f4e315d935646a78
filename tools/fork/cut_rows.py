"""The rows of a store up to a cut of its log: what points behind the cut stays behind."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...store.apache.settings import ApacheSettings
from ...store.disk import Disk
from ...store.files import file_name
from ...store.format.index import HEADER_SIZE, IndexHeader
from ...store.format.queue_entries import BATCH_ENTRY, ENTRY, leading
from ...store.format.rows import RowFormat
from ...store.os_disk import OsDisk
from .skeleton import Copied, copy_rows, row_folders


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
