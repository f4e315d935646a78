"""The parts of an open store, handed around as one value; what it tells others, and whether it may be written to.

Files of the log, the queues and the timer log that somebody cut get their length back before they are opened, with
zeros: recovery finds what that lost, and makes again what the log has. (Apache refuses to start.) That a file was cut,
and is not of a store with smaller files, shows in others of its row that are whole, or in our folder being there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from ..proto.errors import DiskFailure, StoreClosed, StoreError, StoreFull, StoreRefused
from ..proto.record_run import RunColumns
from .checkpoints import CheckpointFile
from .commit_log import CommitLog
from .config import StoreConfig
from .consume_queues import ConsumeQueues, queue_folders
from .disk import Disk
from .dispatch import Dispatcher
from .message_index import MessageIndex

logger = logging.getLogger(__name__)


#: Told of bytes that the log has taken, whole records but for the last one perhaps; of the log offset of the first; and
#: where the records stand, if that is known.
HearRecords: TypeAlias = Callable[[bytes, int, RunColumns | None], object]


@dataclass(frozen=True, slots=True)
class StoreEvents:
    """What a store tells, in its owner's thread: for each event, who is called. Others add and remove themselves.

    flushed: everything before this log offset is on the device;
    caught_up: the (topic, queue) whose messages were stored before, and can be read only from now on;
    followed: the log has taken whole records of a master's.
    """

    flushed: list[Callable[[int], None]] = field(default_factory=list)
    caught_up: list[Callable[[list[tuple[str, int]]], None]] = field(default_factory=list)
    followed: list[HearRecords] = field(default_factory=list)

    def kept(self) -> StoreEvents:
        """Return who is called now, for `restore`."""
        return StoreEvents(list(self.flushed), list(self.caught_up), list(self.followed))

    def restore(self, before: StoreEvents) -> None:
        """Call those of BEFORE from now on, and nobody else."""
        self.flushed[:] = before.flushed
        self.caught_up[:] = before.caught_up
        self.followed[:] = before.followed


class StoreHealth:
    """What stands in the way of writing. A failure stays until the store is opened again; being full passes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.failure: StoreError | None = None
        self.full: str | None = None
        self.read_only = False
        self.closed = False
        #: Does the log take the bytes of a master's, and nothing else?
        self.following = False

    @property
    def state(self) -> str:
        """Return "open", "read-only", "full", "failed" or "closed"."""
        if self.closed:
            return "closed"
        if self.failure is not None:
            return "failed"
        if self.read_only:
            return "read-only"
        return "full" if self.full is not None else "open"

    def check_open(self) -> None:
        """Raise StoreClosed for a store that was closed."""
        if self.closed:
            raise StoreClosed(f"the store {self._path} is closed", path=self._path)

    def check_writable(self) -> None:
        """Raise what a writer of messages has to be told, if anything."""
        if self.closed or self.failure or self.read_only or self.full or self.following:
            self.check_followable()
            raise StoreRefused(
                f"the store {self._path} follows a master's log: messages are sent to the master",
                path=self._path,
            )

    def check_followable(self) -> None:
        """Raise what stands in the way of taking what a master has."""
        self.check_changeable()
        if self.full is not None:
            raise StoreFull(self.full, path=self._path)

    def check_changeable(self) -> None:
        """Raise what stands in the way of any change; a full disk does not: deleting makes room."""
        self.check_open()
        if self.failure is not None:
            raise DiskFailure(
                f"the store takes no more writes: {self.failure.message}",
                path=self._path,
                reason=self.failure.message,
            )
        if self.read_only:
            raise StoreClosed(f"the store {self._path} was opened read-only", path=self._path)

    def fail(self, error: StoreError) -> None:
        """Stop all writing for good: after ERROR it is unknown what is on the device."""
        if self.failure is None:
            self.failure = error
            logger.error("the store failed", extra={"path": self._path, "reason": error.message})

    def close(self) -> None:
        """Refuse everything from now on."""
        self.closed = True

    def follow(self) -> None:
        """Refuse records of its own from now on: a master's bytes are taken."""
        self.following = True

    def lead(self) -> None:
        """Undo `follow`."""
        self.following = False

    def set_full(self, reason: str | None) -> None:
        """Refuse writes for REASON, or take them again."""
        if reason != self.full:
            event = "writes are refused" if reason else "writes are taken again"
            logger.warning(event, extra={"path": self._path, "reason": reason})
        self.full = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParts:
    """The parts of one store. Before recovery every file of every row counts as full.

    index: None if the settings want none;  dispatcher: derives entries in `queues` and `index` from records.
    """

    config: StoreConfig
    disk: Disk
    log: CommitLog
    queues: ConsumeQueues
    index: MessageIndex | None
    dispatcher: Dispatcher
    checkpoint: CheckpointFile
    #: Path and length, as found, of the files that had been cut.
    cut: Sequence[tuple[str, int]] = ()

    @classmethod
    def load(cls, config: StoreConfig, disk: Disk, now_ms: Callable[[], int]) -> Self:
        """Open all files of a store; nothing is judged or changed yet, but for the length of files that were cut."""
        cut = _restore(disk, config, config.log_folder, config.log_file_size_bytes)
        cut += _restore(disk, config, config.timer_log_folder, config.timer_log_file_size_bytes)
        log = CommitLog.load(disk, config.log_folder, config.log_file_size_bytes)
        try:
            queues = ConsumeQueues.load(disk, config)
        except StoreRefused:
            cut_queues = _restore_queues(disk, config)
            if not cut_queues:
                raise
            queues = ConsumeQueues.load(disk, config)
            cut += cut_queues
        checkpoint = CheckpointFile(disk, config.checkpoint_path)
        index = _load_index(config, disk) if config.index else None
        return cls(
            config=config,
            disk=disk,
            log=log,
            queues=queues,
            index=index,
            dispatcher=Dispatcher(queues, index, now_ms, config.delay_levels_ms),
            checkpoint=checkpoint,
            cut=cut if index is None else cut + index.cut,
        )


def _load_index(config: StoreConfig, disk: Disk) -> MessageIndex:
    return MessageIndex.load(
        disk,
        config.index_folder,
        slots=config.index_slots,
        entries=config.index_entries,
    )


def _restore(disk: Disk, config: StoreConfig, folder: str, size: int) -> list[tuple[str, int]]:
    """Give the files in FOLDER that were cut their SIZE back; return path and length, as found, of each."""
    entries = [entry for entry in disk.list(folder) if entry.name.isdecimal()]
    short = [entry for entry in entries if entry.size < size]
    served = disk.is_folder(config.own_folder)
    if not short or not (served or len(short) < len(entries)):
        return []
    starts = [int(entry.name) for entry in entries]
    room = dict(zip(starts, [*starts[1:], starts[-1] + size], strict=True))
    found = []
    for entry in short:
        start, is_new = int(entry.name), entry is entries[-1] and entry.size == 0
        if start % size == 0 and room[start] >= start + size and not is_new:
            path = f"{folder}/{entry.name}"
            logger.warning("file was cut", extra={"path": path, "size": entry.size})
            disk.truncate(path, size)
            found.append((path, entry.size))
    return found


def _restore_queues(disk: Disk, config: StoreConfig) -> list[tuple[str, int]]:
    kinds = (
        (config.queue_folder, config.queue_file_size_bytes),
        (config.batch_queue_folder, config.batch_queue_file_size_bytes),
    )
    found = []
    for root, size in kinds:
        for topic, queue in queue_folders(disk, root):
            found += _restore(disk, config, f"{root}/{topic}/{queue}", size)
    return found
