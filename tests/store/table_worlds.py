"""A log and tables for tests of their journal: processes that are killed, and machines that lose power."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

from pocketmq.proto.clock import Readings, VirtualClock
from pocketmq.proto.errors import StoreError
from pocketmq.store.disk import Disk
from pocketmq.store.file_changes import ChangeTable, change_table
from pocketmq.store.flush import Flusher, Waiter
from pocketmq.store.format.state_tables import GROUPS, TOPICS
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.table_files import FoundTables
from pocketmq.store.table_journal import JournalParts, JournalSizes, TableJournal
from pocketmq.store.tables import AnyTable, Durability, JournalTable, JsonCodec

SMALL = JournalSizes(file=2_048, snapshot=3_000, ratio=4, journal=16_384)
BOOT = b"A" * 16
JsonTable = JournalTable[str, str, Any]


class FakeLog:
    """A log of random bytes. What is behind `flushed` may be lost, and then other bytes come there."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.data = b""
        self.flushed = 0

    @property
    def end(self) -> int:
        return len(self.data)

    def tail(self, end: int) -> int | None:
        return zlib.crc32(self.data[max(0, end - 16) : end]) if end <= self.end else None

    def whole(self, end: int) -> int:
        """Return the CRC of everything before END."""
        return zlib.crc32(self.data[:end])

    def when_flushed(self, end: int, waiter: Waiter) -> None:
        self.flushed = max(self.flushed, end)
        waiter(None)

    def grow(self) -> None:
        self.data += self._rng.randbytes(self._rng.randrange(1, 30))

    def lose_power(self) -> None:
        self.data = self.data[: self._rng.randint(self.flushed, self.end)]
        self.flushed = self.end


class Turns:
    """An event loop: what is asked for happens in `run`."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []

    def soon(self, function: Any) -> None:
        self._waiting.append(function)

    def run(self) -> None:
        waiting, self._waiting = self._waiting, []
        for function in waiting:
            function()

    def run_all(self) -> None:
        while self._waiting:
            self.run()


class World:
    """A process with four tables, one of each durability, and their journal in PATH."""

    def __init__(
        self,
        path: Path | str,
        log: FakeLog,
        *,
        disk: Disk | None = None,
        boot_id: bytes = BOOT,
        sizes: JournalSizes = SMALL,
        open_now: bool = True,
    ) -> None:
        self.folder = f"{path}/tables"
        self.log = log
        self.clock = VirtualClock()
        self.turns = Turns()
        self.failure: StoreError | None = None
        parts = JournalParts(
            disk=disk or OsDisk(),
            folder=self.folder,
            log=log,
            flusher=Flusher("not started: syncs at once"),
            clock=self.clock,
            call_owner=lambda function: function(),
            failed=self._fail,
            boot_id=boot_id,
        )
        codec = JsonCodec()
        self.topics: JsonTable = JournalTable(
            1, "topics", codec, Durability.BEFORE_REPLY, needs_log=False
        )
        self.offsets: JsonTable = JournalTable(2, "offsets", codec, Durability.LAZY)
        self.deliveries: JsonTable = JournalTable(
            3, "deliveries", codec, Durability.WITH_LOG, ordered=True
        )
        self.progress: JsonTable = JournalTable(4, "progress", codec, Durability.PROCESS)
        self.tables = [self.topics, self.offsets, self.deliveries, self.progress]
        self.journal = TableJournal(parts, sizes)
        for table in self.tables:
            self.journal.add(table)
        self.found = FoundTables()
        if open_now:
            self.open()

    def open(self) -> None:
        self.found = self.journal.open()
        self.journal.start(self.turns.soon)

    def _fail(self, error: StoreError) -> None:
        self.failure = error

    def rows(self) -> list[dict[tuple[str, str], Any]]:
        """Return the entries of each table."""
        return [{(s, k): v for s, k, v in table.items()} for table in self.tables]


def opened_journal(
    store: Path,
    *tables: AnyTable,
    sizes: JournalSizes | None = None,
    disk: Disk | None = None,
    log: FakeLog | None = None,
    clock: Readings | None = None,
    flusher: Flusher | None = None,
) -> TableJournal:
    """Return the journal of TABLES in the folder STORE; LOG: that of the store, which is empty without."""
    parts = JournalParts(
        disk=disk or OsDisk(),
        folder=str(store / "pocketmq" / "tables"),
        log=log or FakeLog(random.Random(1)),
        flusher=flusher or Flusher("not started: syncs at once"),
        clock=clock or VirtualClock(),
        call_owner=lambda function: function(),
        failed=lambda error: None,
    )
    journal = TableJournal(parts, sizes)
    for table in tables:
        journal.add(table)
    journal.open()
    return journal


def open_changes(
    store: Path | str, *, disk: Disk | None = None, flusher: Flusher | None = None
) -> tuple[ChangeTable, ChangeTable]:
    """Return the tables for changes of topics and of groups of the folder STORE, with an open journal."""
    topics, groups = change_table(TOPICS), change_table(GROUPS)
    opened_journal(Path(store), topics, groups, disk=disk, flusher=flusher)
    return topics, groups
