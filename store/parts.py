"""What an open store is made of, handed around as one value."""

from __future__ import annotations

from dataclasses import dataclass

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
