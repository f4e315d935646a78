"""The message index: a sequence of index files, the newest of which is filled. message_keys.py defines the keys of a
record.

Files are named by the local time of their creation, yyyyMMddHHmmssSSS. Names are never equal and never earlier than the
newest one. When a file is full, a new one begins where it ended.

A record is left out if it is before the end of the newest file (the index has it already) or is a rollback of a
transaction. Of the record *at* the end, only missing keys are entered. (RocketMQ enters that record again, and finds it
twice.) Source: store-format.md sections 4.3 to 4.6, IndexService of Apache RocketMQ 5.5.0.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import CorruptIndex, StoreMismatch
from ..proto.facts import Facts
from ..proto.java_hash import java_hash
from ..proto.property_ranges import PropertyRanges
from ..proto.record import SYS_ROLLBACK, SYS_TRANSACTION, Buffer
from ..proto.record_run import Longs, RunColumns
from ..proto.scanned import ScannedRecords
from .disk import Disk, Entry
from .files import FolderSync, Syncable
from .format.index import IndexHeader
from .index_check import LogPlaces, check_index_file
from .index_file import IndexFile
from .message_keys import Bytes, Ints, MessageKeys, key_hashes, keys_of

logger = logging.getLogger(__name__)


#: Keys entered at a time: up to this number they are linked in linear time.
PUT_MAX: Final = 1 << 15

_NAME_FORMAT: Final = "%Y%m%d%H%M%S%f"
_NAME_DIGITS: Final = 17
_LONG_MAX: Final = (1 << 63) - 1


class MessageIndex:
    """The index in FOLDER. `files` is in order of names; the last one is written to.

    Not thread-safe: the store's owner calls it.
    """

    def __init__(self, disk: Disk, folder: str, *, slots: int, entries: int) -> None:
        self.folder = folder
        self.files: list[IndexFile] = []
        self._disk = disk
        self._slots = slots
        self._entries = entries
        self._full: list[IndexFile] = []
        self._folder_dirty = False
        #: Path and found length of files that had been cut, and of those after them. All of these were deleted.
        self.cut: list[tuple[str, int]] = []

    @classmethod
    def load(
        cls,
        disk: Disk,
        folder: str,
        *,
        slots: int,
        entries: int,
        discard_after_ms: int | None = None,
    ) -> MessageIndex:
        """Open the files in FOLDER, which may be missing.

        A short file without entries is grown to its full length. One with entries was cut: it is deleted with all later
        ones, to be built again from the log. A file whose name is not a number is skipped with a warning. For a folder
        with a number as its name, the store is refused. After an unclean stop pass the checkpoint's index time as
        DISCARD_AFTER_MS: files that end later are deleted, because they may be incomplete on disk.
        """
        index = cls(disk, folder, slots=slots, entries=entries)
        for entry in disk.list(folder):
            index._load(entry, discard_after_ms)
        return index

    def _load(self, entry: Entry, discard_after_ms: int | None) -> None:
        path = os.path.join(self.folder, entry.name)
        if not _is_long(entry.name):
            logger.warning("index file ignored: its name is not a time %s", Facts(path=path))
            return
        if entry.is_folder:
            raise StoreMismatch(
                f"{path} is a folder, but index files are files: move it out of {self.folder}",
                path=path,
            )
        if len(entry.name) != _NAME_DIGITS:
            logger.warning("index file ignored: its name is not a time %s", Facts(path=path))
            return
        try:
            file = IndexFile(self._disk, path, self._slots, self._entries, create=False)
        except FileNotFoundError:
            return  # The retention of a running broker deleted it after the folder was listed.
        if self.cut or (entry.size < file.mapping.size and file.header.next_entry > 1):
            self.cut.append((path, entry.size))
            file.delete()
            self._folder_dirty = True
            return
        if discard_after_ms is not None and file.header.end_ms > discard_after_ms:
            file.delete()
            self._folder_dirty = True
            return
        self.files.append(file)

    def put_run(
        self,
        data: Buffer | Bytes,
        columns: RunColumns,
        *,
        now_ms: int,
        topic: str | None = None,
        properties: PropertyRanges | None = None,
    ) -> int:
        """Enter the keys of the records in DATA, in their order; return how many keys.

        The columns must have the final log offsets and store times. TOPIC, if given, is that of all records.
        NOW_MS names a new file. Raises StoreFull if the disk is full: then a part of the keys may have been entered.
        """
        if not len(columns):
            return 0
        file = self._writable(now_ms)
        keys = keys_of(data, columns, topic, properties)
        rows = self._accepted(keys, columns, file)
        hashes = keys.hashes if rows is None else keys.hashes[rows]
        owners = keys.rows if rows is None else keys.rows[rows]
        if len(owners):
            file = self._put(hashes, columns.log_offset[owners], columns.store_ms[owners], now_ms)
        if file.is_full and (not len(owners) or int(owners[-1]) < len(columns) - 1):
            self._writable(
                now_ms
            )  # RocketMQ creates a new file as soon as it gets the next record.
        return len(owners)

    def takes_few(self, log_offset: int, count: int) -> bool:
        """Can `put_few` enter COUNT keys of records from LOG_OFFSET on? They are new, and fit a file with entries."""
        if not self.files:
            return False
        header = self.files[-1].header
        is_new = log_offset > header.end_log_offset
        return is_new and header.next_entry > 1 and self.files[-1].room > count

    def put_few(self, keys: Sequence[tuple[int, int]], store_ms: int) -> None:
        """Enter KEYS, hash and log offset of each, of new records; not empty, see `takes_few`. Raises StoreFull."""
        self.files[-1].put_few(keys, store_ms)

    def put_new(self, keys: MessageKeys, log_offsets: Longs, store_ms: int) -> None:
        """Enter KEYS of new records at LOG_OFFSETS; not empty, see `takes_few`. Raises StoreFull."""
        self.files[-1].put_new(keys.hashes, log_offsets[keys.rows], store_ms)

    def put_scanned(self, scanned: ScannedRecords, log_offset: int, store_ms: int) -> None:
        """Enter the keys of the new batch SCANNED at LOG_OFFSET; it has keys, see `takes_few`. Raises StoreFull."""
        self.files[-1].put_scanned(scanned, log_offset, store_ms)

    def _put(self, hashes: Ints, log_offsets: Longs, store_ms: Longs, now_ms: int) -> IndexFile:
        at = 0
        while True:
            file = self._writable(now_ms)
            end = at + min(file.room, PUT_MAX)
            file.put(hashes[at:end], log_offsets[at:end], store_ms[at:end])
            at = end
            if at >= len(hashes):
                return file

    def _accepted(
        self, keys: MessageKeys, columns: RunColumns, file: IndexFile
    ) -> NDArray[np.intp] | None:
        """Return which of KEYS are entered; None for all: no rollback, and nothing that is indexed already."""
        end = file.header.end_log_offset
        offsets = columns.log_offset
        rollback = (columns.sys_flag & SYS_TRANSACTION) == SYS_ROLLBACK
        known = self._newest_keys(end) if int(offsets.min()) <= end else []
        rising = bool((offsets[1:] >= offsets[:-1]).all()) and int(offsets[0]) >= end
        if rising and not known and not rollback.any():
            return None
        keyed = np.zeros(len(columns), np.bool_)
        keyed[keys.rows] = True
        reached = np.maximum.accumulate(np.where(keyed & ~rollback, offsets, end))
        before = np.maximum(np.concatenate((np.array([end]), reached[:-1])), end)
        accepted = ((offsets >= before) & ~rollback)[keys.rows]
        for place in np.flatnonzero(accepted & (offsets[keys.rows] == end)).tolist():
            if int(keys.hashes[place]) in known:
                known.remove(int(keys.hashes[place]))
                accepted[place] = False
        return np.flatnonzero(accepted)

    def has_all_keys(self, data: Buffer | Bytes, columns: RunColumns) -> bool:
        """Are all keys of the newest record in the index there? COLUMNS describe only this record.

        There may be further keys, of its properties before they were damaged.
        """
        hashes = Counter(keys_of(data, columns, None, None).hashes.tolist())
        return hashes <= Counter(self._newest_keys(int(columns.log_offset[0])))

    def _newest_keys(self, end_log_offset: int) -> list[int]:
        """Return the hashes in the index of the record at END_LOG_OFFSET, the newest."""
        found: list[int] = []
        for file in reversed(self.files):
            hashes = file.newest_keys(end_log_offset)
            found += hashes
            if len(hashes) < file.header.next_entry - 1:
                break
        return found

    def _writable(self, now_ms: int) -> IndexFile:
        """Return the newest file, or a new one after it if there is none or it is full."""
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            return last
        if last is None:
            self._disk.make_folders(
                self.folder, durable=False
            )  # It can be built again from the log.
        path = os.path.join(self.folder, self._next_name(now_ms))
        file = IndexFile.create(
            self._disk,
            path,
            self._slots,
            self._entries,
            end_log_offset=last.header.end_log_offset if last else 0,
            end_ms=last.header.end_ms if last else 0,
        )
        self._folder_dirty = True
        self.files.append(file)
        if last is not None:
            self._full.append(last)
        return file

    def _next_name(self, now_ms: int) -> str:
        """Return the name of a file created at NOW_MS: later than the newest file's, and not in use."""
        moment = datetime.fromtimestamp(now_ms // 1000) + timedelta(milliseconds=now_ms % 1000)
        name = _file_name(moment)
        newest = self.files[-1].name if self.files else ""
        while name <= newest or self._disk.exists(os.path.join(self.folder, name)):
            name = _name_behind(max(name, newest))
        return name

    def find(
        self,
        topic: str,
        key: str,
        *,
        limit: int,
        begin_ms: int = 0,
        end_ms: int = _LONG_MAX,
        kind: Literal["K", "T"] = "K",
    ) -> list[int]:
        """Return up to LIMIT log offsets of records of TOPIC with KEY, the newest ones, in ascending order.

        KIND "T" looks for records with the tags KEY. The offsets are candidates: keys with the same hash are found,
        too, a record that RocketMQ indexed twice is returned twice, and a record may be deleted by now. Times are exact
        to one second: a record of the last second before END_MS is found, one of the first second may be missed.
        """
        text = f"{topic}#T#{key}" if kind == "T" else f"{topic}#{key}"
        key_hash = int(key_hashes(np.array([java_hash(text)], np.int32))[0])
        found: list[int] = []
        for file in reversed(self.files):
            if file.header.covers(begin_ms, end_ms):
                found += file.find(key_hash, begin_ms, end_ms, limit - len(found))
            if file.header.begin_ms < begin_ms or len(found) >= limit:
                break
        return sorted(found)

    @property
    def end_log_offset(self) -> int:
        """Log offset of the newest record in the index; 0 for an empty one."""
        return self.files[-1].header.end_log_offset if self.files else 0

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete leading files that end before MIN_LOG_OFFSET, never the last one; return how many were deleted."""
        count = 0
        while (
            count < len(self.files) - 1 and self.files[count].header.end_log_offset < min_log_offset
        ):
            count += 1
        self._delete(self.files[:count])
        return count

    def truncate(self, end_log_offset: int) -> int:
        """Delete every key that points to END_LOG_OFFSET or after it; return how many. RocketMQ keeps them.

        Empty files are deleted.
        """
        gone = 0
        while self.files:
            last = self.files[-1]
            gone += last.truncate(end_log_offset)
            if last.header.next_entry > 1:
                break
            self._delete([last])
        return gone

    def restore(self, then: dict[str, IndexHeader]) -> int:
        """Delete the keys added since the files had the headers THEN, by name; return how many keys, at least.

        Later files are deleted. After a power cut any part of later keys may be missing. Raises CorruptIndex for a
        file that contradicts its header.
        """
        newest = max(then, default="")
        late = [file for file in self.files if file.name > newest]
        gone = sum(file.header.next_entry - 1 for file in late)
        self._delete(late)
        return gone + sum(file.restore(then[file.name]) for file in self.files if file.name in then)

    def check(self) -> None:
        """Raise CorruptIndex if a file contradicts itself; links are not compared."""
        for file in self.files:
            check_index_file(file)

    def delete_damaged(self, log: LogPlaces | None = None) -> CorruptIndex | None:
        """Delete the first file that contradicts itself, and all later ones; return its fault.

        LOG has the places of records, if they are known: then links and places are compared, too.

        The records from `end_log_offset` on must be indexed again. RocketMQ reads damaged files as they are.
        """
        for index, file in enumerate(self.files):
            try:
                check_index_file(file, log)
            except CorruptIndex as error:
                self._delete(self.files[index:])
                return error
        return None

    def delete_all(self) -> None:
        """Delete all files."""
        self._delete(self.files[:])

    def _delete(self, files: list[IndexFile]) -> None:
        for file in files:
            self.files.remove(file)
            if file in self._full:
                self._full.remove(file)
            file.delete()
            self._folder_dirty = True

    def take_full(self) -> list[IndexFile]:
        """Return the files that became full since the last call. Sync each, in a thread if wanted; then its
        `header.end_ms` is the checkpoint's new index time."""
        full, self._full = self._full, []
        for file in full:
            file.dirty = False
        return full

    def take_dirty(self) -> list[Syncable]:
        """Return what must be synced so that every key entered until now is on disk, and forget it."""
        parts: list[Syncable] = []
        if self._folder_dirty:
            parts.append(FolderSync(self._disk, self.folder))
            self._folder_dirty = False
        for file in self.files:
            if file.dirty:
                file.dirty = False
                parts.append(file)
        return parts

    def sync(self) -> None:
        """Sync every key entered until now."""
        for part in self.take_dirty():
            part.sync()

    def close(self) -> None:
        """Close every file. Nothing is synced."""
        for file in self.files:
            file.close()


def _is_long(name: str) -> bool:
    """Is NAME a 64-bit number for Java?"""
    digits = name[1:] if name[:1] in ("+", "-") else name
    return digits.isascii() and digits.isdigit() and -_LONG_MAX - 1 <= int(name) <= _LONG_MAX


def _file_name(moment: datetime) -> str:
    return moment.strftime(_NAME_FORMAT)[:_NAME_DIGITS]


def _name_behind(name: str) -> str:
    """Return the name one millisecond after NAME; the next number if NAME is not a time."""
    try:
        return _file_name(datetime.strptime(name, _NAME_FORMAT) + timedelta(milliseconds=1))
    except (ValueError, OverflowError):
        return str(min(int(name) + 1, _LONG_MAX)).zfill(_NAME_DIGITS)
