"""The store of a Java broker that was stopped or killed, from which the rest of the log is copied.

Valid records at their own offsets, from the follower's end on without a gap, and the blank that closes a file. Nothing
is written in that store.
"""

from __future__ import annotations

import posixpath
import zlib
from typing import Final

from ...proto.errors import StoreMismatch
from ...proto.record_run import crc_mismatches, parse_run, torn, walk
from ...store.checkpoints import TimerCheckpoint
from ...store.disk import Disk
from ...store.format import state_tables
from ...store.format.log import is_blank
from ...store.message_store import MessageStore
from ...store.offsets_file import OffsetsFile, offsets_file
from ...store.state_files import StateFile
from ...store.system import lock_is_held
from .killed_tables import take_newer

#: More than a record has.
_CHUNK: Final = 32 << 20
#: Tables that a broker writes when it stops.
_TABLES: Final = (
    "topics.json",
    "subscriptionGroup.json",
    "delayOffset.json",
    "messageRequestMode.json",
    "consumerFilter.json",
    "consumerOrderInfo.json",
)


class StoppedStore:
    """The store at PATH, whose log has files of FILE_SIZE. Raises StoreMismatch if its broker runs."""

    def __init__(self, disk: Disk, path: str, file_size: int) -> None:
        self._disk = disk
        self._path = path
        self._file_size = file_size
        if not disk.is_folder(posixpath.join(path, "commitlog")):
            raise StoreMismatch(
                f"{path} holds no Java store: there is no folder commitlog", path=path
            )
        if lock_is_held(posixpath.join(path, "lock")):
            raise StoreMismatch(f"the broker of {path} still runs: stop it first", path=path)

    @property
    def was_killed(self) -> bool:
        """Did its broker end without writing its tables?"""
        return self._disk.exists(posixpath.join(self._path, "abort"))

    def _read(self, offset: int, size: int) -> bytes:
        """Return at most SIZE bytes at OFFSET of the log, of one file; fewer, or none, where there are no more."""
        at = offset % self._file_size
        path = posixpath.join(self._path, "commitlog", f"{offset - at:020d}")
        if not self._disk.exists(path):
            return b""
        size = min(size, self._file_size - at, self._disk.size(path) - at)
        return self._disk.read_at(path, at, size) if size > 0 else b""

    def has(self, offset: int, record: bytes) -> bool:
        """Is RECORD at OFFSET of its log?"""
        return self._read(offset, len(record)) == record

    def copy_rest(self, store: MessageStore) -> int:
        """Append to STORE, which follows, what the log has after its end; return how many bytes."""
        begin = store.max_log_offset
        while True:
            at = store.max_log_offset
            data = self._read(at, _CHUNK)
            size = _sound_size(data, at)
            room = self._file_size - at % self._file_size
            if not size and is_blank(data, 0, room):
                self._copy_blank(store, at + room)
            elif not size:
                return at - begin
            else:
                _append(store, data[:size], at)

    def _copy_blank(self, store: MessageStore, end: int) -> None:
        while store.raw_end < end:
            data = self._read(store.raw_end, _CHUNK)
            if not data:  # A file that was cut: bytes after a blank have no meaning.
                data = bytes(min(_CHUNK, end - store.raw_end))
            _append(store, data, store.raw_end)

    def copy_tables(self, target: str) -> None:
        """Copy the tables that it has into the store TARGET."""
        for name in _TABLES:
            source = posixpath.join(self._path, "config", name)
            if self._disk.exists(source):
                text = self._disk.read(source).decode("utf-8-sig")
                StateFile(self._disk, target, name).save(text)
        name = offsets_file(self._disk, self._path)
        offsets = StateFile(self._disk, self._path, name).load(state_tables.parse_consumer_offsets)
        if offsets.value is not None:
            OffsetsFile(self._disk, target).save(
                state_tables.render_consumer_offsets(offsets.value)
            )

    def take_newer_tables(self, target: str) -> list[str]:
        """Take what its tables have that is newer than in the store TARGET: it was killed. Return what, in words."""
        return take_newer(self._disk, self._path, target)

    def timer_checkpoint(self, known: bytes) -> bytes:
        """Return what config/timercheck holds; of a broker that was killed the later one of that and KNOWN."""
        source = posixpath.join(self._path, "config", "timercheck")
        found = self._disk.read_at(source, 0, 4096) if self._disk.exists(source) else b""
        if not self.was_killed:
            return found
        later = (
            TimerCheckpoint.parse(found).last_read_ms > TimerCheckpoint.parse(known).last_read_ms
        )
        return found if later else known


def _sound_size(data: bytes, log_offset: int) -> int:
    """Return the length of the valid records at the beginning of DATA, which is at LOG_OFFSET."""
    starts, end = walk(data)
    columns = parse_run(data, starts)
    sound = columns.well_formed & (columns.log_offset == starts + log_offset)
    if sound.all():
        sound &= ~crc_mismatches(data, columns) & ~torn(data, columns)
    return end if sound.all() else int(starts[int(sound.argmin())])


def _append(store: MessageStore, data: bytes, offset: int) -> None:
    store.append_raw(data, offset, zlib.crc32(data))
