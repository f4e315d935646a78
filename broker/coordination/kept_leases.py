"""The leases of a broker, over its restarts.

The table is in `<root>/pocketmq/leases.json`, written when something was granted or ended, a second later at most;
without the file, leases that members still have are believed (see leases.py).
"""

from __future__ import annotations

import logging
from typing import Final

from ...proto.errors import PocketMQError
from ..timers import Timers
from .lease_file import LeaseFile
from .leases import Lease, Leases, QueueKey

logger = logging.getLogger(__name__)

PERSIST_INTERVAL_MS: Final = 1_000


class KeptLeases:
    """A table of at most LIMIT records, and the FILE that keeps it, by the machine's TIMERS. The event loop owns it."""

    def __init__(self, file: LeaseFile, timers: Timers, *, limit: int) -> None:
        self._file = file
        self._timers = timers
        self.now_ms = timers.now_ms
        self.table = Leases(self.now_ms(), limit=limit)
        #: The file says something else than the table.
        self.changed = False
        file.load(self.table, self.now_ms())

    def holder(self, group: str, key: QueueKey) -> Lease | None:
        """Return the lease by which somebody holds KEY for GROUP at present."""
        return self.table.holder(group, key, self.now_ms())

    def start(self) -> None:
        """Begin to write the table down."""
        self._timers.every(PERSIST_INTERVAL_MS, self.save)

    def save(self) -> None:
        """Write the table down if it changed. A disk that takes nothing costs memory of it, never a message."""
        if not self.changed:
            return
        try:
            self._file.save(self.table, self.now_ms())
        except PocketMQError as error:
            logger.error("leases not saved reason=%s", error.message)
        else:
            self.changed = False
