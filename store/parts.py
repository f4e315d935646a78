"""What an open store is made of, handed around as one value.

Files of the log, the queues and the timer log that somebody cut get their length back before they are opened, with
zeros: recovery finds what that lost, and makes again what the log has. (Apache refuses to start.) That a file was cut,
and is not of a store with smaller files, shows in others of its row that are whole, or in our folder being there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from ..proto.errors import StoreRefused
from .checkpoints import CheckpointFile
from .commit_log import CommitLog
from .config import StoreConfig
from .consume_queues import ConsumeQueues, queue_folders
from .disk import Disk
from .dispatch import Dispatcher
from .message_index import MessageIndex

logger = logging.getLogger(__name__)


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
