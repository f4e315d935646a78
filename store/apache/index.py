"""The key index: how RocketMQ loads, fills and searches it (IndexService and IndexFile of 5.5.0)."""

from __future__ import annotations

import posixpath
from datetime import datetime
from typing import Final

from ...proto.record import SYS_ROLLBACK, SYS_TRANSACTION
from ..checkpoints import Checkpoint
from ..disk import Disk, Mapping
from ..format.index import (
    ENTRY,
    HEADER_SIZE,
    SLOT,
    TAG_TYPE,
    IndexHeader,
    IndexShape,
    index_key,
    key_hash,
    wrapped,
)
from .files import StartRefused, java_long
from .records import Checked
from .settings import ApacheSettings

_INT_MAX: Final = (1 << 31) - 1


class JavaIndexFile:
    """One index file."""

    def __init__(self, path: str, mapping: Mapping, slots: int, entries: int) -> None:
        self.path = path
        self.mapping = mapping
        self.shape = IndexShape(slots, entries)
        self.header = IndexHeader()

    def load(self) -> None:
        """Read the header from the file."""
        self.header = IndexHeader.to_fill(self.mapping.read(0, HEADER_SIZE))

    @property
    def is_full(self) -> bool:
        return self.header.next_entry >= self.shape.entries

    def put(self, key: str, log_offset: int, stored_ms: int) -> bool:
        """Add one entry; False if the file is full."""
        header = self.header
        if self.is_full:
            return False
        number = header.next_entry
        hashed = key_hash(key)
        slot_at = self.shape.slot_at(hashed)
        (newest,) = SLOT.read(self.mapping.view, slot_at)
        if newest <= 0 or newest > number:
            newest = 0
        elapsed_ms = stored_ms - header.begin_ms if header.begin_ms > 0 else 0
        seconds = max(0, elapsed_ms) // 1000
        entry = ENTRY.pack(hashed, log_offset, min(seconds, _INT_MAX), newest)
        self.mapping.write(self.shape.entry_at(number), entry)
        self.mapping.write(slot_at, SLOT.pack(number))
        if number <= 1:
            header.begin_log_offset = log_offset
            header.begin_ms = stored_ms
        header.slots_used += newest == 0
        header.next_entry += 1
        header.end_log_offset = log_offset
        header.end_ms = stored_ms
        return True

    def select(self, found: list[int], hashed: int, most: int, begin: int, end: int) -> None:
        """Add to FOUND the log offsets of the keys of this hash within the time range, newest first, up to MOST."""
        (number,) = SLOT.read(self.mapping.view, self.shape.slot_at(hashed))
        count = self.header.next_entry
        if number <= 0 or number > count or count <= 1:
            return
        for _ in range(self.shape.entries):  # In Java, a cycle of entries is an endless loop.
            at = wrapped(self.shape.entry_at(number))
            if len(found) >= most or at < 0 or at + ENTRY.size > self.mapping.size:
                return
            read_hash, log_offset, seconds, previous = ENTRY.read(self.mapping.view, at)
            if seconds < 0:
                return
            time = self.header.begin_ms + seconds * 1000
            if read_hash == hashed and begin <= time <= end:
                found.append(log_offset)
            if previous <= 0 or previous > count or previous == number or time < begin:
                return
            number = previous


class JavaIndex:
    """All index files, oldest first."""

    def __init__(self, disk: Disk, folder: str, settings: ApacheSettings, now_ms: int) -> None:
        self._disk = disk
        self._folder = folder
        self._settings = settings
        self._now_ms = now_ms
        self.files: list[JavaIndexFile] = []

    def load(self, checkpoint: Checkpoint, *, clean: bool) -> None:
        """Open the files. After an unclean stop, delete those that are newer than the checkpoint."""
        for entry in self._disk.list(self._folder):
            try:
                java_long(entry.name)
            except ValueError:
                continue
            if entry.is_folder:
                raise StartRefused
            path = posixpath.join(self._folder, entry.name)
            file = self._open(path)
            file.load()
            if not clean and file.header.end_ms > checkpoint.index_time_ms:
                self._disk.delete(path)
                continue
            self.files.append(file)

    def _open(self, path: str) -> JavaIndexFile:
        slots, entries = self._settings.index_slots, self._settings.index_entries
        mapping = self._disk.open_map(path, size=self._settings.index_file_bytes, create=True)
        return JavaIndexFile(path, mapping, slots, entries)

    def build(self, record: Checked, checkpoint: Checkpoint) -> None:
        """Index RECORD. When a file is full, the checkpoint's index time moves."""
        file = self._current(checkpoint)
        if record.log_offset < file.header.end_log_offset:
            return
        if record.sys_flag & SYS_TRANSACTION == SYS_ROLLBACK:
            return
        for key in _keys_of(record):
            while not file.put(key, record.log_offset, record.store_timestamp_ms):
                file = self._current(checkpoint)

    def _current(self, checkpoint: Checkpoint) -> JavaIndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            return last
        self._disk.make_folders(self._folder)
        file = self._open(posixpath.join(self._folder, self._new_name()))
        if last is not None:
            file.header.continue_from(last.header.end_log_offset, last.header.end_ms)
            if last.header.end_ms > 0:
                checkpoint.note_index(last.header.end_ms)
        self.files.append(file)
        return file

    def _new_name(self) -> str:
        """Return a file name for the present time that is not in use."""
        at = self._now_ms
        while True:
            name = datetime.fromtimestamp(at // 1000).strftime("%Y%m%d%H%M%S") + f"{at % 1000:03d}"
            if not self._disk.exists(posixpath.join(self._folder, name)):
                return name
            at += 1

    def query(self, key: str, most: int, begin: int, end: int) -> list[int]:
        """Return the log offsets of KEY (made by `index_key`), newest first."""
        most = min(most, self._settings.lookup_results_max)
        found: list[int] = []
        hashed = key_hash(key)
        for file in reversed(self.files):
            if file.header.covers(begin, end):
                file.select(found, hashed, most, begin, end)
            if file.header.begin_ms < begin or len(found) >= most:
                break
        return found


def _keys_of(record: Checked) -> list[str]:
    keys = [] if record.unique_key is None else [index_key(record.topic, record.unique_key)]
    keys += [index_key(record.topic, word) for word in (record.keys or "").split(" ") if word]
    tags = record.properties.get("TAGS")
    if tags:
        keys.append(index_key(record.topic, tags, TAG_TYPE))
    return keys
