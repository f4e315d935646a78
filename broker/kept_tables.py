"""The tables that a broker keeps next to its log, and their one journal (store/table_journal.py)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from ..proto.clock import Readings
from ..proto.facts import Facts
from ..store.disk import Disk
from ..store.flush import Waiter
from ..store.message_store import MessageStore
from ..store.table_files import FOLDER
from ..store.table_journal import JournalParts, JournalSizes, TableJournal, boot_id
from ..store.tables import JournalTable
from .delay.progress import delivered_table
from .groups.kept_leases import lease_table
from .groups.lease_table import Row
from .producers.sequences import log_tail

logger = logging.getLogger(__name__)

#: What earlier versions kept instead, in the same folder: it is deleted.
_OLD_FILES: Final = ("delivered", "leases.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptTables:
    """The tables of a broker, and the journal that keeps them."""

    journal: TableJournal
    leases: JournalTable[str, str, Row]
    delivered: JournalTable[str, str, Any]

    @classmethod
    def open(
        cls,
        store: MessageStore,
        clock: Readings,
        *,
        discard: bool = False,
        sizes: JournalSizes | None = None,
    ) -> KeptTables:
        """Return the tables of STORE as they were kept; CLOCK is the machine's.

        Args:
            discard: Begin with empty ones: another broker may have had the log since.

        Raises:
            StoreError: What must not count any more could not be marked so.
        """
        delete_old_files(store.disk, store.config.own_folder)
        parts = JournalParts(
            disk=store.disk,
            folder=folder_in(store.config.own_folder),
            log=_StoreLog(store),
            flusher=store.flusher,
            clock=clock,
            call_owner=lambda function: store.call_owner(function),
            failed=store.health.fail,
            boot_id=boot_id(store.disk),
        )
        tables = cls(
            journal=TableJournal(parts, sizes), leases=lease_table(), delivered=delivered_table()
        )
        for table in (tables.leases, tables.delivered):
            tables.journal.add(table)
        found = tables.journal.open(discard=discard)
        if found.number and store.ended_cleanly and not found.ended:
            logger.warning(
                "tables not closed by the last clean stop, the latest changes may be missing %s",
                Facts(path=parts.folder),
            )
        return tables


class _StoreLog:
    """The log of STORE, as tables see it."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    @property
    def end(self) -> int:
        return self._store.max_log_offset

    def tail(self, end: int) -> int | None:
        return log_tail(self._store.log, end)

    def when_flushed(self, end: int, waiter: Waiter) -> None:
        self._store.request_sync(end, waiter)


def folder_in(own_folder: str) -> str:
    """Return where the journal is in OWN_FOLDER, the broker's own."""
    return f"{own_folder}/{FOLDER}"


def delete_old_files(disk: Disk, own_folder: str) -> None:
    """Delete what earlier versions kept in OWN_FOLDER instead of tables."""
    for name in _OLD_FILES:
        if disk.exists(path := f"{own_folder}/{name}"):
            disk.delete(path)


def discard_tables(disk: Disk, own_folder: str) -> None:
    """Delete the tables in OWN_FOLDER, which no broker has open."""
    disk.delete_folder(folder_in(own_folder))
