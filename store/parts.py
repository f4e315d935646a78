"""The parts of an open store, as one value, and the function that opens its files.

Opening restores the length of files that were cut short (cut_files.py). It checks and changes nothing else: recovery
follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from ..proto.errors import StoreMismatch
from .checkpoints import CheckpointFile
from .commit_log import CommitLog
from .config import StoreConfig
from .consume_queues import ConsumeQueues
from .cut_files import restore_cut_files, restore_cut_queues
from .disk import Disk
from .dispatch import Dispatcher
from .message_index import MessageIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParts:
    """The parts of one store. Before recovery each file counts as full.

    index: None if it is disabled;  dispatcher: derives the entries of `queues` and `index` from records.
    """

    config: StoreConfig
    disk: Disk
    log: CommitLog
    queues: ConsumeQueues
    index: MessageIndex | None
    dispatcher: Dispatcher
    checkpoint: CheckpointFile
    #: Path and found length of files that were cut short.
    cut: Sequence[tuple[str, int]] = ()

    @classmethod
    def load(cls, config: StoreConfig, disk: Disk, now_ms: Callable[[], int]) -> Self:
        """Open all files of a store."""
        cut = restore_cut_files(disk, config, config.log_folder, config.log_file_size_bytes)
        cut += restore_cut_files(
            disk, config, config.timer_log_folder, config.timer_log_file_size_bytes
        )
        log = CommitLog.load(disk, config.log_folder, config.log_file_size_bytes)
        try:
            queues = ConsumeQueues.load(disk, config)
        except StoreMismatch:
            cut_queues = restore_cut_queues(disk, config)
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
