"""What an open store is made of, handed around as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from .checkpoint import CheckpointFile
from .commit_log import CommitLog
from .config import StoreConfig
from .consume_queues import ConsumeQueues
from .disk import Disk
from .dispatch import Dispatcher
from .message_index import MessageIndex


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

    @classmethod
    def load(cls, config: StoreConfig, disk: Disk, now_ms: Callable[[], int]) -> Self:
        """Open all files of a store; nothing is judged or changed yet."""
        log = CommitLog.load(disk, config.log_folder, config.log_file_size_bytes)
        queues = ConsumeQueues.load(disk, config)
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
        )


def _load_index(config: StoreConfig, disk: Disk) -> MessageIndex:
    return MessageIndex.load(
        disk,
        config.index_folder,
        slots=config.index_slots,
        entries=config.index_entries,
    )
