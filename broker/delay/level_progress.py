"""How far each delay level was delivered: `config/delayOffset.json` in memory, and on disk as far as that is safe.

The file says of each level which message of its queue comes next. It never says more than the device holds: a save
takes a snapshot, and writes it once the log is flushed up to where it ended at that moment, delivered copies included.
After a power cut what was delivered since is delivered again; nothing is lost. After a kill the note, which is written
with every chunk, knows better.

Not thread-safe: the event loop owns it. Source: Apache's ScheduleMessageService.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...proto.errors import PocketMQError
from ...store.message_store import MessageStore
from ...store.state_files import StateFile
from ...store.state_tables import DelayOffsets, parse_delay_offsets, render_delay_offsets
from ..appends import synced
from .delivered_note import DeliveredNote

logger = logging.getLogger(__name__)

#: Apache's: messages between two steps of the file's version.
_MESSAGES_PER_VERSION: Final = 200


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
        now_ms: Callable[[], int],
        note: DeliveredNote | None = None,
    ) -> None:
        self._file = file
        self._store = store
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
        store.on_flushed(self._on_flushed)

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
        if snapshot is not None and self._store.flushed_offset >= snapshot.end_offset:
            self._file.save(render_delay_offsets(snapshot.table))
            self._pending = None
