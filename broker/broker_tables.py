"""The tables that a broker keeps next to its log, and their one journal (store/table_journal.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from ..proto.clock import Readings
from ..proto.facts import Facts
from ..store.disk import Disk
from ..store.file_changes import ChangeTable, change_table
from ..store.flush import Waiter
from ..store.format.state_tables import GROUPS, TOPICS
from ..store.format.table_frames import ClockReading
from ..store.message_store import MessageStore
from ..store.table_files import FOLDER, read_entries
from ..store.table_journal import JournalParts, JournalSizes, TableJournal, boot_id
from ..store.tables import AnyTable, JournalTable, NamedTable
from .commit_texts import CommitTextTable, commit_text_table
from .consume_stats import StatisticsTable, cut_stats, statistics_table
from .delay.progress import delivered_table
from .groups.kept_leases import lease_table
from .groups.lease_table import Row
from .pop.deliveries import DeliveryTable
from .producers.snapshots import log_tail

logger = logging.getLogger(__name__)

#: Files of earlier versions in the same folder, which are deleted.
_OLD_FILES: Final = ("accounts.jsonl", "delivered", "leases.json")
#: Files of earlier versions in folders, which are deleted as well.
_OLD_NUMBERED: Final = {
    "pop": ("journal-", "snapshot-"),
    "changes": ("topics.json", "subscriptionGroup.json"),
}

#: Further tables. Each has a name, JSON values that are not null, and its own durability. Followers
#: get them too.
OTHER_TABLES: Final[list[Callable[[], NamedTable]]] = []


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerTables:
    """The tables of a broker, and the journal that stores them."""

    journal: TableJournal
    leases: JournalTable[str, str, Row]
    delivered: JournalTable[str, str, Any]
    deliveries: DeliveryTable
    statistics: StatisticsTable
    commit_texts: CommitTextTable
    topics: ChangeTable
    groups: ChangeTable
    others: dict[str, NamedTable]

    @classmethod
    def open(
        cls,
        store: MessageStore,
        clock: Readings,
        *,
        entry_clock: Readings | None = None,
        forget_own: bool = False,
        sizes: JournalSizes | None = None,
    ) -> BrokerTables:
        """Open the journal of STORE, and load its tables. CLOCK is the machine's.

        Args:
            entry_clock: The virtual clock that deliveries are timed by; None: the machine's clock.
            forget_own: Clear leases and delay progress: another broker may have had the log since.

        Raises:
            StoreError: The journal could not record which old entries are invalid.
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
            entry_clock=entry_clock,
        )
        tables = cls(
            journal=TableJournal(parts, sizes),
            leases=lease_table(),
            delivered=delivered_table(),
            deliveries=DeliveryTable(),
            statistics=statistics_table(),
            commit_texts=commit_text_table(),
            topics=change_table(TOPICS),
            groups=change_table(GROUPS),
            others={table.name: table for table in (make() for make in OTHER_TABLES)},
        )
        own: list[AnyTable] = [tables.leases, tables.delivered, tables.deliveries]
        for table in (*own, tables.topics, tables.groups, *tables.replicated):
            tables.journal.add(table)
        found = tables.journal.open()
        if found.number and store.last_stop_was_clean and not found.ended:
            logger.warning(
                "tables not closed by the last clean stop, the latest changes may be missing %s",
                Facts(path=parts.folder),
            )
            # Another broker may have run on the store since, and delivered.
            tables.deliveries.clear_all()
            tables.journal.sync()
        if tables.deliveries.number in found.incomplete:
            tables.deliveries.note_loss()
        if forget_own:
            tables.forget_own()
        cut_stats(tables.statistics, store.queues.end)
        return tables

    @property
    def replicated(self) -> tuple[AnyTable, ...]:
        """The tables that followers receive, entry by entry."""
        return (self.statistics, self.commit_texts, *self.others.values())

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the journal if the block raises: to the next start it would look as if another broker had run."""
        try:
            yield
        except BaseException:
            self.journal.close()
            raise

    def forget_own(self) -> None:
        """Clear leases and delay progress: they are valid only for the broker that wrote them."""
        for table in (self.leases, self.delivered):
            if len(table):
                table.clear_all()


class _StoreLog:
    """The log of STORE, as journal tables use it."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    @property
    def end(self) -> int:
        return self._store.log.max_offset

    def tail(self, end: int) -> int | None:
        return log_tail(self._store.log, end)

    def when_flushed(self, end: int, waiter: Waiter) -> None:
        self._store.request_sync(end, waiter)


def folder_in(own_folder: str) -> str:
    """Return the journal's folder in OWN_FOLDER, the broker's own."""
    return f"{own_folder}/{FOLDER}"


def delete_old_files(disk: Disk, own_folder: str) -> None:
    """Delete the files of earlier versions in OWN_FOLDER that tables replaced."""
    for name in _OLD_FILES:
        # A kill may have left a temporary file.
        for path in (f"{own_folder}/{name}", f"{own_folder}/{name}.tmp"):
            if disk.exists(path):
                disk.delete(path)
    for name, prefixes in _OLD_NUMBERED.items():
        _delete_numbered(disk, f"{own_folder}/{name}", prefixes)


def _delete_numbered(disk: Disk, folder: str, prefixes: tuple[str, ...]) -> None:
    """Delete files with a number after one of PREFIXES in FOLDER, and FOLDER if it has nothing else."""
    if not disk.is_folder(folder):
        return
    entries = disk.list(folder)
    old = [entry for entry in entries if not entry.is_folder and entry.name.startswith(prefixes)]
    for entry in old:
        disk.delete(f"{folder}/{entry.name}")
    if len(old) == len(entries):
        disk.delete_folder(folder)


def copy_group_tables(disk: Disk, root: str, store: MessageStore, clock: Readings) -> None:
    """Copy statistics, offset metadata and deliveries of the store at ROOT on DISK to STORE, which no broker uses."""
    found: list[AnyTable] = [statistics_table(), commit_text_table(), DeliveryTable()]
    files = read_entries(disk, f"{root}/pocketmq/{FOLDER}", found, _StoreLog(store))
    # Another broker may have run on the source since, and delivered; or the reset of an offset may be missing.
    if (store.last_stop_was_clean and not files.ended) or found[-1].number in files.incomplete:
        found.pop()
    if not any(len(table) for table in found):
        return
    files.shift(found, ClockReading(clock.now_ms(), clock.unix_ms()))
    tables = BrokerTables.open(store, clock)
    copies: list[AnyTable] = [tables.statistics, tables.commit_texts, tables.deliveries]
    for table, copy in zip(found, copies, strict=False):
        for scope, key, value in table.items():
            copy.put(scope, key, value)
    tables.journal.close()
