"""A model of Apache RocketMQ 5.5.0's load and recovery of a store: the state that its broker would have, on any disk.

`JavaReading` reads as the running broker does, within the limits that a recovery found. `ApacheStore` adds load and
recovery. Pass an `OverlayDisk` to write nothing.

The model follows the code of 5.5.0 (DefaultMessageStore.load and recover, CommitLog.recoverNormally and
recoverAbnormally) including its faults, because tools predict with it. For example, one bad record ends the log after
an unclean stop, and only the last ten files are checked. The recorded stores in tests/fixtures have the real broker's
results. Not modelled: compaction topics, consumequeue_ext, RocksDB engines, controller and DLedger modes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto import record_run
from ...proto.record import SYS_COMMIT, SYS_TRANSACTION, Record
from ..checkpoints import CHECKPOINT_SIZE, Checkpoint, read_checkpoint
from ..disk import Disk
from .batch_queue import BatchQueue
from .files import JavaFile, JavaFiles, StartRefused
from .index import JavaIndex
from .queue import JavaQueue, SimpleQueue
from .records import Checked, RecordCheck, decode
from .settings import ApacheSettings
from .sound_runs import EnteredRecords, SoundRuns, Wanted

_LONG_MAX: Final = (1 << 63) - 1
_QUERY_ROUNDS: Final = 3
_LOG_OFFSET_AT: Final = 28


class JavaReading:
    """Log, queues and index of a store on DISK as RocketMQ's broker reads them, within limits that a recovery found.

    It begins with `load`, after which each file counts as full. Any recovery may follow.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        settings: ApacheSettings,
        queue_type: Callable[[str], str],
        now_ms: int,
    ) -> None:
        """QUEUE_TYPE returns the type of a topic's queues ("SimpleCQ", "BatchCQ"), from its attributes."""
        self.disk = disk
        self.root = root
        self.settings = settings
        self.queue_type = queue_type
        self.records = RecordCheck(settings)
        self.log = JavaFiles(disk, posixpath.join(root, "commitlog"), settings.log_file_size)
        self.queues: dict[tuple[str, int], JavaQueue] = {}
        self.index = JavaIndex(disk, posixpath.join(root, "index"), settings, now_ms)
        self.checkpoint = Checkpoint()

    def load(self, *, keep_index: bool) -> None:
        """Open all files; each counts as full. Without KEEP_INDEX, index files that are newer than the checkpoint are
        deleted. Raises `StartRefused`, or ValueError, if the broker would not start."""
        if not self.log.load():
            raise StartRefused
        for kind, folder in (("SimpleCQ", "consumequeue"), ("BatchCQ", "batchconsumequeue")):
            self._load_queues(kind, posixpath.join(self.root, folder))
        path = posixpath.join(self.root, "checkpoint")
        self.checkpoint = read_checkpoint(self.disk, path)
        self.disk.open_map(path, size=CHECKPOINT_SIZE, create=True)
        self.index.load(self.checkpoint, clean=keep_index)

    def _load_queues(self, kind: str, folder: str) -> None:
        for topic in self.disk.list(folder):
            for entry in (
                self.disk.list(posixpath.join(folder, topic.name)) if topic.is_folder else ()
            ):
                queue_id = _queue_id(entry.name)
                if queue_id is None:
                    continue
                if self.queue_type(topic.name) != kind:
                    raise StartRefused
                path = posixpath.join(folder, topic.name, entry.name)
                queue = self._make_queue(kind, path, topic.name, queue_id)
                if not queue.files.load():
                    raise StartRefused

    def _make_queue(self, kind: str, folder: str, topic: str, queue_id: int) -> JavaQueue:
        queue: JavaQueue
        if kind == "BatchCQ":
            size = self.settings.batch_queue_file_size
            queue = BatchQueue(self.disk, folder, size, topic, queue_id)
        else:
            queue = SimpleQueue(self.disk, folder, self.settings.queue_file_bytes, topic, queue_id)
        self.queues[topic, queue_id] = queue
        return queue

    def queue(self, topic: str, queue_id: int) -> JavaQueue:
        """Return a queue, created in memory if it does not exist."""
        found = self.queues.get((topic, queue_id))
        if found is not None:
            return found
        kind = self.queue_type(topic)
        folder = "batchconsumequeue" if kind == "BatchCQ" else "consumequeue"
        path = posixpath.join(self.root, folder, topic, str(queue_id))
        return self._make_queue(kind, path, topic, queue_id)

    def end_at(self, log_end: int, checkpoint: Checkpoint) -> None:
        """Set the end of the log to LOG_END, and use CHECKPOINT: a recovery found them."""
        self.log.truncate(log_end)
        self.checkpoint = checkpoint

    @property
    def log_begin(self) -> int:
        """Return the log's minimum offset, −1 without files."""
        return self.log.files[0].start if self.log.files else -1

    @property
    def log_end(self) -> int:
        """Return the log's maximum offset."""
        return self.log.max_offset

    def message(self, log_offset: int, size: int | None = None) -> Record | None:
        """Return the message at LOG_OFFSET; ValueError where Java throws."""
        if size is None:
            head = self._bytes(log_offset, 4)
            if head is None:
                return None
            size = int.from_bytes(head, "big", signed=True)
        data = self._bytes(log_offset, size)
        return None if data is None else decode(data)

    def _bytes(self, log_offset: int, size: int) -> memoryview | None:
        file = self.log.find(log_offset, first_if_none=log_offset == 0)
        if file is None:
            return None
        at = log_offset % self.log.size if log_offset >= 0 else -(-log_offset % self.log.size)
        return file.select(at, size)

    def lookup(self, key: str, most: int, *, typed: bool = False) -> list[int]:
        """Return the log offset fields of the messages that queryMessage finds for KEY (the result of `index_key`)."""
        found: list[int] = []
        until = _LONG_MAX
        for _ in range(_QUERY_ROUNDS):
            offsets = self.index.query(key, most, 0, until) if self.settings.index_file_read else []
            if not offsets:
                break
            for number, offset in enumerate(sorted(offsets)):
                until = self._look_at(offset, number == 0, found, until, typed)
            if found or until < 0:
                break
        return found

    def _look_at(
        self, offset: int, is_first: bool, found: list[int], until: int, typed: bool
    ) -> int:
        """Add the message at OFFSET to FOUND; return the new end of the time range."""
        try:
            message = self.message(offset)
        except ValueError:
            return until
        if is_first:
            if message is not None:
                until = message.store_timestamp_ms
            elif not typed:
                return until
        data = self.log.data(offset)
        if data is None or len(data) < _LOG_OFFSET_AT + 8:
            return until
        size = int.from_bytes(data[:4], "big", signed=True)
        if 0 <= size <= len(data):
            at = data[_LOG_OFFSET_AT : _LOG_OFFSET_AT + 8]
            found.append(int.from_bytes(at, "big", signed=True))
        return until


class ApacheStore(JavaReading):
    """The message store after RocketMQ's load and recovery. Raises `StartRefused` if the broker would not start."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        settings: ApacheSettings,
        queue_type: Callable[[str], str],
        now_ms: int,
    ) -> None:
        """QUEUE_TYPE returns the type of a topic's queues ("SimpleCQ", "BatchCQ"), from its attributes."""
        super().__init__(disk, root, settings, queue_type, now_ms)
        self.clean = not disk.exists(posixpath.join(root, "abort"))

    def open(self) -> None:
        """Load and recover."""
        try:
            self.load(keep_index=self.clean)
            self._recover()
        except ValueError:
            raise StartRefused from None
        self._touch_side_files()

    def _touch_side_files(self) -> None:
        lock = posixpath.join(self.root, "lock")
        if not self.disk.exists(lock):
            self.disk.write_file(lock, b"")

    def _recover(self) -> None:
        for queue in self.queues.values():
            queue.recover()
        dispatch_from = self.checkpoint.queues_log_offset
        if self.clean:
            dispatch_from = self._queues_end()
        if not self.log.files:
            for queue in self.queues.values():
                queue.destroy()
        else:
            self._recover_log(dispatch_from)
        for queue in self.queues.values():
            queue.correct_min_offset(self.log_begin)

    def _queues_end(self) -> int:
        return max((queue.max_log_offset for queue in self.queues.values()), default=-1)

    def _recover_log(self, dispatch_from: int) -> None:
        """Read from the start file to the first invalid record, dispatch the records, and cut everything after them."""
        index = self._start_file(dispatch_from)
        file = self.log.files[index]
        at = 0
        last_sound = file.start
        if self.clean:
            last_sound = 0 if self.settings.sync_flush else self.log.max_offset
        elif self.settings.accelerated_recovery and dispatch_from >= file.start:
            at = dispatch_from - file.start
            last_sound = dispatch_from
        runs = self._runs(file, dispatch_from)
        while True:
            if passed := runs.run_from(at):
                last_sound, at = file.start + passed.last, passed.end
                continue
            checked = self.records.check(file.view, at, crc=self.settings.check_crc)
            if checked.is_record and not self._is_foreign(checked, file):
                last_sound = file.start + at
                at += checked.size
                if not self.clean or checked.log_offset > dispatch_from:
                    self._dispatch(checked)
            elif checked.is_blank and index + 1 < len(self.log.files):
                index += 1
                file = self.log.files[index]
                runs = self._runs(file, dispatch_from)
                at = 0
            else:
                break
        self._end_log(file.start + at, last_sound)

    def _runs(self, file: JavaFile, dispatch_from: int) -> SoundRuns:
        """Return the batches of records in FILE that need no dispatch."""
        wanted: Wanted | None = EnteredRecords(self.queues)
        if self.clean:
            wanted = partial(_at_or_before, dispatch_from)
        elif self.settings.check_offset or self._indexes:
            wanted = None
        return SoundRuns(file.view, self.settings, wanted)

    @property
    def _indexes(self) -> bool:
        """Does dispatch write the index?"""
        return self.settings.index_enabled and self.settings.index_file_write

    def _is_foreign(self, checked: Checked, file: JavaFile) -> bool:
        if self.clean or not self.settings.check_offset:
            return False
        return not file.start <= checked.log_offset <= file.start + file.size

    def _end_log(self, end: int, last_sound: int) -> None:
        self.checkpoint.confirm(last_sound)
        if self._queues_end() >= end:
            for queue in self.queues.values():
                queue.truncate_dirty(end)
        self.log.truncate(end)

    def _start_file(self, dispatch_from: int) -> int:
        """Return the index of the file where reading begins. The setting limits its distance from the end."""
        left = self.settings.recover_files_max
        index = len(self.log.files) - 1
        while index > 0:
            left -= 1
            if self._matches(self.log.files[index], dispatch_from) or left <= 0:
                break
            index -= 1
        return index

    def _matches(self, file: JavaFile, dispatch_from: int) -> bool:
        first = self.records.check(file.view, 0, crc=self.settings.check_crc)
        if not first.success or first.store_timestamp_ms == 0:
            return False
        indexed_ms = self.checkpoint.index_time_ms
        safe = self.settings.index_enabled and self.settings.index_safe
        if safe and first.store_timestamp_ms > indexed_ms:
            return False
        if not self.clean and self.checkpoint.queues_log_offset <= 0:
            return first.store_timestamp_ms <= self.checkpoint.queues_time_ms
        return first.log_offset <= dispatch_from

    def _dispatch(self, record: Checked) -> None:
        if record.sys_flag & SYS_TRANSACTION in (0, SYS_COMMIT):
            self.queue(record.topic, record.queue_id).put(record)
        if self._indexes:
            self.index.build(record, self.checkpoint)


def _at_or_before(log_offset: int, _: object, columns: record_run.RunColumns) -> NDArray[np.bool_]:
    return columns.log_offset <= log_offset


def _queue_id(name: str) -> int | None:
    """Return the result of Integer.parseInt for a folder's name."""
    digits = name[1:] if name[:1] in ("+", "-") else name
    if not (digits.isascii() and digits.isdecimal()) or abs(int(name)) >= 1 << 31:
        return None
    return int(name)


def queue_type_of(attributes: Mapping[str, str]) -> str:
    """Return the kind of queues of a topic with ATTRIBUTES."""
    return "BatchCQ" if attributes.get("queue.type") == "BatchCQ" else "SimpleCQ"
