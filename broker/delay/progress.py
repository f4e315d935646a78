"""How far delivery has come: a note with every chunk, and the levels' own file, `config/delayOffset.json`.

Apache's files (`timercheck`, `delayOffset.json`) have the progress of about a second ago that is on disk. A broker that
is killed every few seconds would deliver the same messages each time. So PocketMQ has its own note: a table of the
broker's journal (store/tables.py) that is written after every chunk and never synced. It survives the process, not the
machine. It counts only if log and timer log are as long as they were, and not after a clean stop. Losing it causes
redeliveries, not losses.

    levels      level                 the next queue offset
    slots       time of the slot      the newest timer record that was looked at; due time and position of the first
                                      pending record: what was looked at before it was delivered
    progress    "read ms"             the start of the oldest slot that was not delivered as a whole
                "timer log end"       how long the timer log was

Not thread-safe: the event loop owns both. Source: Apache's ScheduleMessageService.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...proto.errors import PocketMQError
from ...store.format.state_tables import DelayOffsets, parse_delay_offsets, render_delay_offsets
from ...store.message_store import MessageStore
from ...store.state_files import StateFile
from ...store.tables import Durability, JournalTable, JsonCodec
from ..messages.appender import Appends, synced

logger = logging.getLogger(__name__)

_LEVELS: Final = "levels"
_SLOTS: Final = "slots"
_PROGRESS: Final = "progress"
_READ_MS: Final = "read ms"
_TIMER_LOG_END: Final = "timer log end"
#: Apache's: messages between two steps of the file's version.
_MESSAGES_PER_VERSION: Final = 200


# --- the note


class SlotNote(NamedTuple):
    """Of one slot: records up to LAST that come before (DUE_MS, POSITION) were delivered, or recalled."""

    last: int
    due_ms: int
    position: int


class DeliveredNote:
    """The note of STORE, kept as KEPT. `find` what the last process left, then `write_…` with every chunk.

    `remove` it at a clean stop.
    """

    def __init__(
        self, store: MessageStore, kept: JournalTable[str, str, Any], *, has_replicas: bool = False
    ) -> None:
        """HAS_REPLICAS: others may have delivered since, and what was delivered be gone: no note counts."""
        self._store = store
        self._kept = kept
        self._has_replicas = has_replicas
        #: Start of the oldest slot that was not delivered as a whole.
        self.read_ms = 0
        #: The next queue offset of each level, from 1 on.
        self.levels: dict[int, int] = {}
        self._slots: dict[int, SlotNote] = {}

    def find(self) -> None:
        """Take over what the last process noted, if that is to be believed."""
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
        """Take over the table; return whether it counts. Raises ValueError and TypeError, and changes nothing then."""
        progress = self._kept.of_scope(_PROGRESS)
        timer_log_end, read_ms = (int(progress.get(key, 0)) for key in (_TIMER_LOG_END, _READ_MS))
        levels = {int(key): int(to) for key, to in self._kept.of_scope(_LEVELS).items()}
        kept_slots = self._kept.of_scope(_SLOTS).items()
        slots = {int(key): SlotNote(*map(int, note)) for key, note in kept_slots}
        if (
            self._store.ended_cleanly
            or self._has_replicas
            or timer_log_end > self._store.timers.log.max_offset
        ):
            return False
        self.read_ms, self.levels, self._slots = read_ms, levels, slots
        return True

    @property
    def slots(self) -> list[int]:
        """The times of the slots of which something is known."""
        return list(self._slots)

    def of_slot(self, slot_ms: int) -> SlotNote | None:
        """Return what is known of the slot of SLOT_MS."""
        return self._slots.get(slot_ms)

    def write_levels(self, levels: Mapping[int, int]) -> None:
        """Note the next queue offset of each of LEVELS."""
        self.levels.update(levels)
        for level, offset in levels.items():
            self._kept.put(_LEVELS, f"{level}", offset)

    def write_slots(self, slots: Iterable[tuple[int, SlotNote]]) -> None:
        """Note of SLOTS what was delivered of them; what the timers say is over is left out."""
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
        """Forget it: the store is about to be closed, and its own files tell exactly what was delivered."""
        self._kept.clear_all()


def delivered_table() -> JournalTable[str, str, Any]:
    """Return the table that keeps the note."""
    return JournalTable(2, "delivered", JsonCodec(), Durability.PROCESS)


# --- the file of the levels


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What is to be written, once the log is flushed up to END_OFFSET."""

    table: DelayOffsets
    end_offset: int


class LevelProgress:
    """The next queue offset of each level, over FILE; NOW_MS dates its versions. NOTE was found before."""

    def __init__(
        self,
        file: StateFile,
        store: MessageStore,
        appends: Appends,
        now_ms: Callable[[], int],
        note: DeliveredNote | None = None,
    ) -> None:
        self._file = file
        self._store = store
        self._appends = appends
        self._now_ms = now_ms
        loaded = file.load(parse_delay_offsets)
        if loaded.problem:
            logger.warning("state file was broken file=%s problem=%s", file.name, loaded.problem)
        table = loaded.value or DelayOffsets()
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
        """Which message of the queue of each level comes next."""
        return self._offsets

    def offset(self, level: int) -> int:
        """Return which message of the queue of LEVEL comes next."""
        return self._offsets.get(level, 0)

    def reached(self, level: int, offset: int, messages: int = 0) -> None:
        """Note that the one at OFFSET comes next, after MESSAGES were delivered."""
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
        """Write what is new, as soon as it is safe; call this every now and then. Raises what the disk raises."""
        if self._pending is None and self._dirty:
            self._pending = self._snapshot()
            self._dirty = False
        self._write_if_safe()

    async def save_exactly(self) -> None:
        """Have everything so far on the device, and write it; an error of the disk is told in the log."""
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
