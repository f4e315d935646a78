"""The progress of deliveries: a note with every chunk, and the file of the delay levels, `config/delayOffset.json`.

RocketMQ's files (`timercheck`, `delayOffset.json`) have the progress of about a second ago, which is on disk. A broker
that is killed every few seconds would deliver the same messages each time. So PocketMQ has its own note: a table of the
broker's journal (store/tables.py) that is written after every chunk and not synced. It survives a kill of the process,
not a power cut. It is valid only if log and timer log are as long as they were, and not after a clean stop. Losing it
causes redeliveries, not losses.

    levels      level                 the next queue offset
    slots       time of the slot      the newest timer record that was scanned; due time and position of the first
                                      pending record: scanned records before it were delivered
    progress    "read ms"             the start of the oldest slot that was not delivered completely
                "timer log end"       the length of the timer log

Not thread-safe: the event loop owns both. Source: ScheduleMessageService of Apache RocketMQ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from ...proto.errors import PocketMQError
from ...store.format.state_tables import DelayOffsets, parse_delay_offsets, render_delay_offsets
from ...store.message_store import MessageStore
from ...store.state_files import StateFile
from ...store.tables import Durability, JournalTable, JsonCodec
from ..messages.appender import Appender, synced

logger = logging.getLogger(__name__)

_LEVELS: Final = "levels"
_SLOTS: Final = "slots"
_PROGRESS: Final = "progress"
_READ_MS: Final = "read ms"
_TIMER_LOG_END: Final = "timer log end"
#: Messages between two increments of the file's version, as in RocketMQ.
_MESSAGES_PER_VERSION: Final = 200


# --- the note


class SlotNote(NamedTuple):
    """Note of one slot: records up to LAST were scanned; those before (DUE_MS, POSITION) were delivered or recalled."""

    last: int
    due_ms: int
    position: int


class DeliveredNote:
    """The note of STORE, stored in KEPT. First `find` the note of the last process, then `write_…` after each chunk.

    `remove` it at a clean stop.
    """

    def __init__(
        self, store: MessageStore, kept: JournalTable[str, str, Any], *, has_replicas: bool = False
    ) -> None:
        """HAS_REPLICAS: no old note is valid, because another replica may have delivered since, or lost messages."""
        self._store = store
        self._kept = kept
        self._has_replicas = has_replicas
        #: The start of the oldest slot that was not delivered completely.
        self.read_ms = 0
        #: The next queue offset of each level; levels count from 1.
        self.levels: dict[int, int] = {}
        self._slots: dict[int, SlotNote] = {}

    def find(self) -> None:
        """Load the note of the last process, if it is valid."""
        if not len(self._kept):
            return
        try:
            is_believed = self._read()
        except (ValueError, TypeError) as error:
            logger.warning("delivery progress not restored reason=%r", error)
            is_believed = False
        if not is_believed:
            self.remove()

    def _read(self) -> bool:
        """Load the table; return whether it is valid. Raises ValueError or TypeError, and then changes nothing."""
        progress = self._kept.of_scope(_PROGRESS)
        timer_log_end, read_ms = (int(progress.get(key, 0)) for key in (_TIMER_LOG_END, _READ_MS))
        levels = {int(key): int(to) for key, to in self._kept.of_scope(_LEVELS).items()}
        kept_slots = self._kept.of_scope(_SLOTS).items()
        slots = {int(key): SlotNote(*map(int, note)) for key, note in kept_slots}
        if (
            self._store.last_stop_was_clean
            or self._has_replicas
            or timer_log_end > self._store.timers.log.max_offset
        ):
            return False
        self.read_ms, self.levels, self._slots = read_ms, levels, slots
        return True

    @property
    def slots(self) -> list[int]:
        """The times of the slots that have a note."""
        return list(self._slots)

    def of_slot(self, slot_ms: int) -> SlotNote | None:
        """Return the note of the slot at SLOT_MS."""
        return self._slots.get(slot_ms)

    def write_levels(self, levels: Mapping[int, int]) -> None:
        """Store the next queue offset of each of LEVELS."""
        self.levels.update(levels)
        for level, offset in levels.items():
            self._kept.put(_LEVELS, f"{level}", offset)

    def write_slots(self, slots: Iterable[tuple[int, SlotNote]]) -> None:
        """Store the notes of SLOTS, without the slots that the timer store reports as delivered."""
        for slot_ms, note in slots:
            self._slots[slot_ms] = note
            self._kept.put(_SLOTS, f"{slot_ms}", note)
        self.read_ms = max(self.read_ms, self._store.timers.read_ms)
        for slot_ms in [slot_ms for slot_ms in self._slots if slot_ms < self.read_ms]:
            del self._slots[slot_ms]
            self._kept.drop(_SLOTS, f"{slot_ms}")
        self._kept.put(_PROGRESS, _READ_MS, self.read_ms)
        self._kept.put(_PROGRESS, _TIMER_LOG_END, self._store.timers.log.max_offset)

    def remove(self) -> None:
        """Clear the note: the store is about to be closed, and its own files have the exact progress."""
        self._kept.clear_all()


def delivered_table() -> JournalTable[str, str, Any]:
    """Return the table that stores the note."""
    return JournalTable(2, "delivered", JsonCodec(), Durability.PROCESS)


# --- the file of the levels


class _Snapshot(NamedTuple):
    """Content of the file that may be written once the log is flushed up to END_OFFSET."""

    table: DelayOffsets
    end_offset: int


class LevelProgress:
    """The next queue offset of each level, stored in FILE. NOW_MS dates its versions. NOTE was found before."""

    def __init__(
        self,
        file: StateFile,
        store: MessageStore,
        appends: Appender,
        now_ms: Callable[[], int],
        note: DeliveredNote | None = None,
    ) -> None:
        self._file = file
        self._store = store
        self._appends = appends
        self._now_ms = now_ms
        table = file.load_value(parse_delay_offsets) or DelayOffsets()
        self._version = table.version
        self._offsets = dict(table.offsets)
        self._note = note
        if note is not None:
            for level, offset in note.levels.items():
                if offset > self._offsets.get(level, 0):
                    self._offsets[level] = offset
        self._delivered = 0
        self._dirty = False
        self._pending: _Snapshot | None = None
        store.events.flushed.append(self._on_flushed)

    @property
    def offsets(self) -> Mapping[int, int]:
        """The next message in the queue of each level."""
        return self._offsets

    def offset(self, level: int) -> int:
        """Return the offset of the next message in the queue of LEVEL."""
        return self._offsets.get(level, 0)

    def reached(self, level: int, offset: int, messages: int = 0) -> None:
        """Record that OFFSET is next, after MESSAGES were delivered."""
        if self._offsets.get(level) != offset:
            self._offsets[level] = offset
            self._dirty = True
        if messages and self._note is not None:
            self._note.write_levels({level: offset})
        steps = self._delivered // _MESSAGES_PER_VERSION
        self._delivered += messages
        if self._delivered // _MESSAGES_PER_VERSION > steps:
            self._version = self._version.next(self._now_ms())

    def save(self) -> None:
        """Write changes as soon as they are safe. Call this periodically. Raises errors of the disk."""
        if self._pending is None and self._dirty:
            self._pending = self._snapshot()
            self._dirty = False
        self._write_if_safe()

    async def save_exactly(self) -> None:
        """Wait until the log is on disk, then write all progress. Disk errors are logged."""
        if self._pending is None and not self._dirty:
            return
        self._pending = snapshot = self._snapshot()
        self._dirty = False
        try:
            await synced(self._store, snapshot.end_offset)
            self._write_if_safe()
        except PocketMQError as error:
            self._pending = None
            logger.warning("delayed messages may be delivered again: %s", error.message)

    def _snapshot(self) -> _Snapshot:
        table = DelayOffsets(self._version, dict(sorted(self._offsets.items())))
        return _Snapshot(table, self._store.max_log_offset)

    def _on_flushed(self, flushed_offset: int) -> None:
        try:
            self._write_if_safe()
        except PocketMQError as error:  # The next save tries again.
            logger.warning("state file not saved file=%s reason=%s", self._file.name, error.message)

    def _write_if_safe(self) -> None:
        snapshot = self._pending
        if snapshot is not None and self._appends.flushed_offset >= snapshot.end_offset:
            self._file.save(render_delay_offsets(snapshot.table))
            self._pending = None
