"""Leases over a restart: the records of the lease table, in a table of the broker's journal (store/tables.py).

A change is written at the end of the turn of the event loop, so a power cut may lose the last grants. Therefore a token
of an earlier run is accepted if no record contradicts it. Renewals are not written: after a restart, a lease that was
held has its full time again.

A master of a replica set starts with its epoch instead. It accepts no earlier token, because it does not know what the
masters before it granted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...store.tables import Durability, JournalTable, JsonCodec
from ..timing.timers import Timers
from .lease_table import OVER, TOKENS_ROW, Lease, LeaseTable, QueueKey, Row

logger = logging.getLogger(__name__)


class LeaseStore:
    """The lease table with up to LIMIT records, stored in KEPT, with the machine's TIMERS. The event loop owns it.

    EPOCH: that of a master of a replica set.
    """

    def __init__(
        self,
        kept: JournalTable[str, str, Row],
        timers: Timers,
        *,
        limit: Callable[[], int],
        epoch: int = 0,
    ) -> None:
        self._kept = kept
        self.now_ms = timers.now_ms
        self.table = LeaseTable(self.now_ms(), limit=limit, epoch=epoch, on_change=self._changed)
        try:
            self.table.restore(kept.items(), self.now_ms())
        except (ValueError, LookupError, TypeError) as error:
            logger.warning("leases not restored reason=%r", error)
        kept.keep_elsewhere(lambda: self.table.rows(self.now_ms()))

    def _changed(self, group: str, key: str, row: Row | None) -> None:
        if row is None:
            self._kept.drop(group, key)
        else:
            self._kept.put(group, key, row)

    def holder(self, group: str, key: QueueKey) -> Lease | None:
        """Return the present lease of KEY for GROUP; None if it has no owner."""
        return self.table.holder(group, key, self.now_ms())

    def member_of(self, group: str, topic: str, queue: int) -> str:
        """Return the member that owns QUEUE of TOPIC for GROUP; "" if there is none."""
        lease = self.holder(group, QueueKey(topic, queue))
        return "" if lease is None else lease.member_id

    def close(self) -> None:
        """Record which leases have ended, so that a restart does not restore them."""
        for group, key, row in self.table.rows(self.now_ms()):
            if (group, key) != TOKENS_ROW and row[4] == OVER:
                self._kept.put(group, key, row)


def lease_table() -> JournalTable[str, str, Row]:
    """Return the table that stores leases: rows by group and queue."""
    return JournalTable(1, "leases", JsonCodec(), Durability.WITH_LOG, needs_log=False)
